# SPDX-License-Identifier: Apache-2.0
"""The export of a live broker: its tables say what clients did, readers cannot harm it, and nothing is left behind."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pyarrow as pa
import pytest
from support.brokers.broker_process import BrokerProcess, HttpAnswer, http, wait_until
from support.brokers.region_clients import PATIENCE_MS

BASE = "/admin/v2/persistent/public/default"
SETTINGS = {"managedLedgerMaxEntriesPerLedger": "10", "retentionCheckIntervalInSeconds": "1"}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess("solo", tmp_path / "data", settings=SETTINGS) as running:
        yield running


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker for requests that are refused and so leave nothing behind."""
    with BrokerProcess("solo", tmp_path_factory.mktemp("shared") / "data", settings=SETTINGS) as running:
        yield running


def take(broker: BrokerProcess, body: Any = ...) -> dict[str, Any]:
    answer = broker.http("POST", "/meridian/v1/export", body)
    assert answer.status == 200, answer.text
    taken: dict[str, Any] = answer.json
    return taken


def ask(broker: BrokerProcess, snapshot: str, table: str, query: str = "") -> HttpAnswer:
    return broker.http("GET", f"/meridian/v1/export/{snapshot}/{table}{query}")


def rows(broker: BrokerProcess, snapshot: str, table: str, query: str = "") -> list[dict[str, Any]]:
    answer = ask(broker, snapshot, table, query)
    assert answer.status == 200, answer.text
    assert answer.headers["Content-Type"] == "application/vnd.apache.arrow.stream"
    found: list[dict[str, Any]] = pa.ipc.open_stream(answer.body).read_all().to_pylist()
    return found


def publish(client: pulsar.Client, topic: str, count: int) -> list[tuple[int, int]]:
    producer = client.create_producer(topic, batching_enabled=False)
    ids = [producer.send(b"some data") for _ in range(count)]
    producer.close()
    return [(one.ledger_id(), one.entry_id()) for one in ids]


def children(broker: BrokerProcess) -> list[str]:
    return Path(f"/proc/{broker.pid}/task/{broker.pid}/children").read_text().split()


def test_the_tables_say_what_clients_did(broker: BrokerProcess, client: pulsar.Client) -> None:
    consumer = client.subscribe("told", "work", pulsar.ConsumerType.Shared)
    ids = publish(client, "told", 25)
    received = [consumer.receive(PATIENCE_MS) for _ in ids]
    for message in [*received[:4], *received[6:8]]:
        consumer.acknowledge(message)
    publish(client, "other", 1)

    def backlog() -> int:
        stats = broker.http("GET", f"{BASE}/told/stats").json
        return int(stats["subscriptions"]["work"]["msgBacklog"])

    wait_until(lambda: backlog() == 19, "the acknowledgements to be applied")
    taken = take(broker, {"topics": "persistent://public/default/to*"})
    name = taken["snapshot"]
    assert (taken["region"], taken["format"]) == ("solo", 1)
    assert taken["taken_ms"] < taken["expires"]
    (topic,) = rows(broker, name, "topics")
    assert topic["topic"] == "persistent://public/default/told"
    assert [one["entries"] for one in topic["ledgers"]] == [10, 10, 5]
    assert [one["sealed"] for one in topic["ledgers"]] == [True, True, False]
    assert topic["last_origins"] == [{"region": "solo", "ledger": ids[-1][0], "entry": ids[-1][1]}]
    assert (topic["trimmed_ledger"], topic["trimmed_entry"], topic["trimmed_origins"]) == (-1, -1, [])
    (cursor,) = rows(broker, name, "cursors")
    assert (cursor["subscription"], cursor["type"], cursor["backlog"]) == ("work", "Shared", 19)
    assert (cursor["mark_delete_ledger"], cursor["mark_delete_entry"]) == ids[3]
    passed = [((one["after_ledger"], one["after_entry"]), (one["upto_ledger"], one["upto_entry"])) for one in
              rows(broker, name, "passed")]  # fmt: skip
    assert passed == [((-1, -1), ids[3]), (ids[5], ids[7])]
    progress = rows(broker, name, "progress")
    assert [(one["upto_ledger"], one["upto_entry"]) for one in progress] == [ids[3], ids[7]]
    acked = [one for one in rows(broker, name, "acks") if one["firsthand"]]
    assert {(one["upto_ledger"], one["upto_entry"]) for one in acked} >= {ids[3], ids[7]}
    entries = rows(broker, name, "entries")
    assert [(one["ledger"], one["entry"]) for one in entries] == ids
    assert [(one["prev_ledger"], one["prev_entry"]) for one in entries] == [(-1, -1), *ids[:-1]]
    assert rows(broker, name, "entries", "?partition=0&after=20") == entries[20:]
    metadata = {one["path"] for one in rows(broker, name, "metadata")}
    assert {"/geo/clusters/solo", "/geo/namespaces/public/default"} <= metadata
    # A snapshot never changes.
    publish(client, "told", 5)
    assert rows(broker, name, "entries") == entries
    assert len({one["topic"] for one in rows(broker, take(broker)["snapshot"], "topics")}) == 2


def test_first_hand_evidence_survives_kill_9(broker: BrokerProcess, client: pulsar.Client) -> None:
    """The progress a subscription began with is first-hand too, or it would look merely claimed after a restart."""
    ids = publish(client, "begun", 5)
    at = {"ledgerId": ids[3][0], "entryId": ids[3][1]}
    broker.http("PUT", f"{BASE}/begun/subscription/latest?replicated=true")
    broker.http("PUT", f"{BASE}/begun/subscription/middle?replicated=true", at)
    broker.kill()
    broker.start()
    name = take(broker)["snapshot"]
    every = rows(broker, name, "ranges")
    for subscription, last in (("latest", ids[4]), ("middle", ids[2])):
        own = [one for one in every if one["subscription"] == subscription]
        progress = [one for one in own if one["table"] == "progress"]
        first_hand = [one for one in own if one["table"] == "acks" and one["firsthand"] and one["received_ms"] is None]
        assert [(one["upto_ledger"], one["upto_entry"]) for one in progress] == [last]
        assert [(one["upto_ledger"], one["upto_entry"]) for one in first_hand] == [last]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("nowhere/topics", 404),
        ("{}/nothing", 404),
        ("{}/entries?partition=1", 404),
        ("{}/entries?partition=-1", 400),
        ("{}/entries?after=x", 400),
        ("..%2F..%2Fmetadata.sqlite/topics", 404),
    ],
)
def test_unknown_snapshots_and_tables_are_refused(shared: BrokerProcess, path: str, status: int) -> None:
    name = take(shared)["snapshot"]
    answer = shared.http("GET", f"/meridian/v1/export/{path.format(name)}")
    assert answer.status == status
    assert answer.reason


def test_bad_patterns_are_refused(shared: BrokerProcess) -> None:
    for body in ({"topics": "re:("}, {"topics": 5}, [1]):
        assert shared.http("POST", "/meridian/v1/export", body).status == 412
    assert take(shared, {"topics": "re:persistent://.*"})["partitions"]["entries"] == 1


def test_the_oldest_snapshot_is_deleted_with_its_files(broker: BrokerProcess) -> None:
    names = [take(broker)["snapshot"] for _ in range(9)]
    assert ask(broker, names[0], "topics").status == 404
    assert ask(broker, names[1], "topics").status == 200
    directory = broker.data_dir / "export"
    assert {path.stem for path in directory.iterdir()} == set(names[1:])
    broker.kill()
    broker.start()
    assert not directory.exists()
    assert ask(broker, names[8], "topics").status == 404
    take(broker)
    assert broker.stop() == 0
    assert not list(directory.iterdir())


def test_ledgers_of_a_snapshot_are_not_taken_away(broker: BrokerProcess, client: pulsar.Client) -> None:
    # Subscribe first: without a subscription, a topic's full ledgers are deleted within a second.
    broker.http("PUT", f"{BASE}/kept")
    broker.http("PUT", f"{BASE}/kept/subscription/work", "earliest")
    ids = publish(client, "kept", 35)

    def ledgers() -> int:
        return len(broker.http("GET", f"{BASE}/kept/internalStats").json["ledgers"])

    held = take(broker)["snapshot"]
    assert ledgers() == 4
    broker.http("POST", f"{BASE}/kept/subscription/work/skip_all")
    wait_until(lambda: ledgers() < 4, "the topic to be trimmed")
    assert [(one["ledger"], one["entry"]) for one in rows(broker, held, "entries")] == ids
    later = take(broker)["snapshot"]
    assert len(rows(broker, later, "entries")) < 35
    (topic,) = rows(broker, later, "topics")
    assert (topic["trimmed_ledger"], topic["trimmed_entry"]) == (ids[30][0], -1)
    assert topic["trimmed_origins"] == [{"region": "solo", "ledger": ids[29][0], "entry": ids[29][1]}]
    assert topic["holes"] == []
    broker.http("DELETE", f"{BASE}/kept?force=true")
    assert len(rows(broker, held, "entries")) == 35
    # What the process left undone when it ended is done at the next start.
    note = broker.data_dir / "ledgers-to-delete"
    assert len(note.read_text().splitlines()) == 4
    broker.kill()
    broker.start()
    assert not note.exists()
    held_now = [
        line for line in broker.http("GET", "/metrics").text.splitlines() if line.startswith("meridian_ledgers{")
    ]
    assert held_now == ['meridian_ledgers{cluster="solo"} 0.0']


def test_a_reader_that_disconnects_leaves_no_child_process(broker: BrokerProcess, client: pulsar.Client) -> None:
    broker.http("PUT", f"{BASE}/large")
    broker.http("PUT", f"{BASE}/large/subscription/keeps", "earliest")
    publish(client, "large", 300)
    name = take(broker)["snapshot"]
    for _ in range(3):
        with socket.create_connection(("127.0.0.1", broker.http_port)) as reader:
            reader.sendall(f"GET /meridian/v1/export/{name}/entries HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            wait_until(lambda: children(broker), "the encoder to start")
    wait_until(lambda: not children(broker), "the encoders to end")
    assert len(rows(broker, name, "entries")) == 300
    assert broker.stop() == 0


def test_many_readers_share_two_encoders_and_the_broker_goes_on(broker: BrokerProcess, client: pulsar.Client) -> None:
    broker.http("PUT", f"{BASE}/shared")
    broker.http("PUT", f"{BASE}/shared/subscription/keeps", "earliest")
    publish(client, "shared", 50)
    name = take(broker)["snapshot"]
    url = f"{broker.admin_url}/meridian/v1/export/{name}/entries"
    lengths: list[int] = []

    def read() -> None:
        lengths.append(pa.ipc.open_stream(http("GET", url).body).read_all().num_rows)

    readers = [threading.Thread(target=read) for _ in range(6)]
    for reader in readers:
        reader.start()
    most = 0
    producer = client.create_producer("meanwhile")
    while any(reader.is_alive() for reader in readers):
        most = max(most, len(children(broker)))
        producer.send(b"still served")
    for reader in readers:
        reader.join()
    assert lengths == [50] * 6
    assert 1 <= most <= 2


def test_an_encoder_that_fails_cuts_the_answer_short(broker: BrokerProcess, client: pulsar.Client) -> None:
    publish(client, "broken", 5)
    name = take(broker)["snapshot"]
    (broker.data_dir / "export" / f"{name}.jsonl").unlink()
    answer = ask(broker, name, "topics")
    assert answer.status == 500
    assert "No such file" in answer.reason
    assert broker.http("GET", "/admin/v2/brokers/health").status == 200


def test_the_broker_never_loads_arrow(broker: BrokerProcess, client: pulsar.Client) -> None:
    publish(client, "light", 5)
    rows(broker, take(broker)["snapshot"], "entries")
    assert "arrow" not in Path(f"/proc/{broker.pid}/maps").read_text()
