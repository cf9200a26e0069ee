# SPDX-License-Identifier: Apache-2.0
"""A broker in a process of its own that offloads to a real S3 server: read, exported, killed, trimmed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest
from support.brokers import region_clients
from support.brokers.broker_process import BrokerProcess, wait_until
from support.brokers.region_clients import PATIENCE_MS, connected
from support.brokers.s3_server import SECRET, S3Server

pa = pytest.importorskip("pyarrow")

MESSAGES = [b"%04d" % number * 2000 for number in range(300)]
NAMESPACE = "/admin/v2/namespaces/public/default"


@pytest.fixture
def broker(server: S3Server, tmp_path: Path, credentials: None) -> Iterator[BrokerProcess]:
    settings = {
        **server.settings,
        "offloadPrefix": tmp_path.name,
        "s3ManagedLedgerOffloadMaxBlockSizeInBytes": str(1 << 20),
        "managedLedgerMaxEntriesPerLedger": "100",
        "managedLedgerOffloadDeletionLagMs": "0",
        "retentionCheckIntervalInSeconds": "1",
    }
    with BrokerProcess("one", tmp_path / "data", settings=settings) as process:
        yield process


def ledgers(broker: BrokerProcess) -> list[dict[str, Any]]:
    answer = broker.http("GET", "/admin/v2/persistent/public/default/t/internalStats")
    assert answer.status == 200, answer.text
    found: list[dict[str, Any]] = answer.json["ledgers"]
    return found


def publish(client: pulsar.Client) -> None:
    client.subscribe("t", "s").close()
    region_clients.publish(client, "t", MESSAGES)


def offload(broker: BrokerProcess) -> None:
    """Offload by a policy, and wait until all ledgers but the last are only in the bucket."""
    assert broker.http("PUT", f"{NAMESPACE}/offloadThreshold", 0).status == 204
    wait_until(
        lambda: all(one["offloaded"] for one in ledgers(broker)[:-1]), "all ledgers but the last to be offloaded"
    )
    wait_until(lambda: not live_bytes(broker), "the ledgers to leave the volume")


def live_bytes(broker: BrokerProcess) -> bool:
    text = broker.http("GET", "/metrics").text
    (line,) = [one for one in text.splitlines() if one.startswith("meridian_ledgers{")]
    return float(line.rpartition(" ")[2]) > 2  # the last ledger, and that of the acknowledgements


def copies(server: S3Server, directory: Path) -> list[Path]:
    return [path for path in server.objects() if directory.name in path.parts]


def names(server: S3Server, directory: Path) -> set[str]:
    """The ledgers that have copies."""
    return {
        next(part for part in path.parts if part.isdigit() and len(part) == 16) for path in copies(server, directory)
    }


def test_what_left_is_read_after_a_kill_and_goes_with_its_ledger(
    broker: BrokerProcess, server: S3Server, tmp_path: Path
) -> None:
    with connected(broker.service_url) as client:
        publish(client)
        offload(broker)
        assert len(copies(server, tmp_path)) == 12, "for each ledger a chunk and an index, and the same for its headers"
    broker.kill()
    broker.start()
    with connected(broker.service_url) as client:
        consumer = client.subscribe("t", "s")
        found = [consumer.receive(PATIENCE_MS) for _ in MESSAGES]
        assert [one.data() for one in found] == MESSAGES
        consumer.acknowledge_cumulative(found[-1])
        wait_until(lambda: len(ledgers(broker)) == 1, "the ledgers to be trimmed")
        (last,) = ledgers(broker)  # it was not the last one before the kill
        wait_until(lambda: names(server, tmp_path) == {f"{last['ledgerId']:016d}"}, "the copies to be deleted")
    assert SECRET not in broker.log_file.read_text()


def test_the_export_reads_what_left(broker: BrokerProcess) -> None:
    with connected(broker.service_url) as client:
        publish(client)
        offload(broker)
        snapshot = broker.http("POST", "/meridian/v1/export").json["snapshot"]
        answer = broker.http("GET", f"/meridian/v1/export/{snapshot}/entries")
        assert answer.status == 200, answer.text
        rows = pa.ipc.open_stream(answer.body).read_all()
        assert rows.num_rows == len(MESSAGES)
        assert min(rows.column("size").to_pylist()) >= len(MESSAGES[0])


def test_a_broker_that_is_killed_while_it_copies_goes_on_and_leaves_no_rest(
    broker: BrokerProcess, server: S3Server, tmp_path: Path
) -> None:
    with connected(broker.service_url) as client:
        publish(client)
        server.pause()  # the first request of the upload is under way, or soon will be
        assert broker.http("PUT", f"{NAMESPACE}/offloadThreshold", 0).status == 204
        upto = {"ledgerId": ledgers(broker)[-1]["ledgerId"], "entryId": 0, "partitionIndex": -1}
        assert broker.http("PUT", "/admin/v2/persistent/public/default/t/offload", upto).status == 204
        broker.kill()
    server.resume()
    broker.start()
    offload(broker)
    indexes = [path for path in copies(server, tmp_path) if path.name == "index" and path.parent.name != "heads"]
    assert len(indexes) == 2, "one copy of each ledger but the last"
    with connected(broker.service_url) as client:
        consumer = client.subscribe("t", "s")
        assert [consumer.receive(PATIENCE_MS).data() for _ in MESSAGES] == MESSAGES


def test_a_server_that_dies_stops_no_producer_and_its_readers_go_on_when_it_is_back(
    broker: BrokerProcess, server: S3Server
) -> None:
    with connected(broker.service_url) as client:
        publish(client)
        offload(broker)
        server.kill()
        publish(client)
        consumer = client.subscribe("t", "s")
        found = wait_until(lambda: unread(broker), "the broker to report what the consumer waits for")
        assert "bucket messages" in found[0]["reason"]
        server.start()
        assert [consumer.receive(PATIENCE_MS).data() for _ in MESSAGES * 2] == MESSAGES * 2


def unread(broker: BrokerProcess) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = broker.http("GET", "/meridian/v1/health").json["unreadSubscriptions"]["first"]
    return found
