# SPDX-License-Identifier: Apache-2.0
"""Messages dropped without an acknowledgement, through the unmodified client and real HTTP: TTL and expireMessages."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pulsar
import pyarrow as pa
import pytest
from support.brokers.broker_process import BrokerProcess, wait_until
from support.brokers.region_clients import PATIENCE_MS, connected
from support.protocol.admin_paths import topic_path
from support.protocol.raw_connection import RawConnection

SETTINGS = {"managedLedgerMaxEntriesPerLedger": "10", "retentionCheckIntervalInSeconds": "1"}

QUIET_MS = 300
SHARED = pulsar.ConsumerType.Shared
EARLIEST = pulsar.InitialPosition.Earliest
_numbers = itertools.count()


def restart(broker: BrokerProcess) -> None:
    broker.kill()
    broker.start()


@pytest.fixture
def space(broker: BrokerProcess) -> str:
    """A namespace of the test's own, for its policies. Acknowledged and dropped messages stay stored in it."""
    name = f"public/expiry-{next(_numbers)}"
    assert broker.http("PUT", f"/admin/v2/namespaces/{name}", {}).status == 204
    keep = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
    assert broker.http("POST", f"/admin/v2/namespaces/{name}/retention", keep).status == 204
    return name


def publish(client: pulsar.Client, topic: str, *bodies: bytes) -> list[pulsar.MessageId]:
    producer = client.create_producer(topic, batching_enabled=False)
    ids = [producer.send(body) for body in bodies]
    producer.close()
    return ids


async def publish_old(broker: BrokerProcess, topic: str, count: int) -> None:
    """Publish messages whose publish times are years ago."""
    raw = await RawConnection.open(broker.port)
    name = (await raw.producer(topic)).producer_name
    for number in range(count):
        raw.send(name, number, b"%d" % number)
        await raw.receipt()
    await raw.close()


def rest(consumer: pulsar.Consumer, count: int = 0) -> list[bytes]:
    """Receive and acknowledge ``count`` messages that have to come, and then the rest until nothing more comes."""
    found: list[bytes] = []
    while True:
        try:
            message = consumer.receive(PATIENCE_MS if len(found) < count else QUIET_MS)
        except pulsar.Timeout:
            return found
        found.append(message.data())
        consumer.acknowledge(message)


def expire(broker: BrokerProcess, topic: str, subscription: str, what: str, body: Any = ...) -> int:
    return broker.http("POST", f"{topic_path(topic)}/subscription/{subscription}/expireMessages{what}", body).status


def backlog(broker: BrokerProcess, topic: str, subscription: str) -> int:
    return int(broker.http("GET", f"{topic_path(topic)}/stats").json["subscriptions"][subscription]["msgBacklog"])


def set_ttl(broker: BrokerProcess, space: str, seconds: int) -> None:
    assert broker.http("POST", f"/admin/v2/namespaces/{space}/messageTTL", seconds).status == 204


def dropped(broker: BrokerProcess, topic: str) -> list[tuple[str, str, int, int]]:
    """What the export says was dropped: subscription, cause, entries of one ledger ``(after, upto]``."""
    snapshot = broker.http("POST", "/meridian/v1/export", {"topics": topic}).json["snapshot"]
    answer = broker.http("GET", f"/meridian/v1/export/{snapshot}/dropped")
    rows = pa.ipc.open_stream(answer.body).read_all().to_pylist()
    return [(row["subscription"], row["cause"], row["after_entry"], row["upto_entry"]) for row in rows]


def test_messages_older_than_the_ttl_are_dropped_and_the_rest_stays(
    broker: BrokerProcess, client: pulsar.Client, space: str
) -> None:
    topic = f"persistent://{space}/ttl"
    for name in ("idle", "half"):
        client.subscribe(topic, name).close()
    asyncio.run(publish_old(broker, topic, 3))
    half = client.subscribe(topic, "half", consumer_type=SHARED)
    messages = [half.receive(PATIENCE_MS) for _ in range(3)]
    half.acknowledge(messages[1])
    wait_until(lambda: backlog(broker, topic, "half") == 2, "the acknowledgement to be applied")
    publish(client, topic, b"young")
    set_ttl(broker, space, 3600)
    for name in ("idle", "half"):
        wait_until(lambda name=name: backlog(broker, topic, name) == 1, "old messages to expire")
    assert rest(half, 1) == [b"young"]
    half.negative_acknowledge(messages[2])  # it was delivered before it was dropped, and is not redelivered
    assert rest(half) == []
    idle = client.subscribe(topic, "idle", consumer_type=SHARED)
    assert rest(idle, 1) == [b"young"]
    stats = broker.http("GET", f"{topic_path(topic)}/stats").json["subscriptions"]
    assert {name: one["totalMsgExpired"] for name, one in stats.items()} == {"idle": 3, "half": 2}
    assert {name: one["unackedMessages"] for name, one in stats.items()} == {"idle": 0, "half": 0}
    assert sorted(dropped(broker, topic)) == [("half", "ttl", -1, 2), ("idle", "ttl", -1, 2)]


def test_a_late_acknowledgement_and_a_reader_of_expired_messages(
    broker: BrokerProcess, client: pulsar.Client, space: str
) -> None:
    topic = f"persistent://{space}/reader"
    consumer = client.subscribe(topic, "s", consumer_type=SHARED)
    ids = publish(client, topic, b"0", b"1", b"2", b"3")
    message = consumer.receive(PATIENCE_MS)
    reader = client.create_reader(topic, pulsar.MessageId.earliest, receiver_queue_size=1)
    assert reader.read_next(PATIENCE_MS).data() == b"0"
    last = {"ledgerId": ids[2].ledger_id(), "entryId": ids[2].entry_id()}
    assert expire(broker, topic, "s", "", last) == 204
    consumer.acknowledge(message)  # this counts as an acknowledgement, and moves no cursor
    assert reader.read_next(PATIENCE_MS).data() == b"1", "a reader has its own place"
    assert broker.http("POST", f"{topic_path(topic)}/all_subscription/expireMessages/0").status == 204
    wait_until(lambda: backlog(broker, topic, "s") == 0, "everything to expire")
    publish(client, topic, b"4")
    found = [reader.read_next(PATIENCE_MS).data()]
    while found[-1] != b"4":
        found.append(reader.read_next(PATIENCE_MS).data())
    assert b"3" not in found, "a reader skips expired messages, except those in flight"


def test_drops_survive_kill_9_and_a_seek_takes_them_back(broker: BrokerProcess, space: str) -> None:
    topic = f"persistent://{space}/again"
    with connected(broker.service_url) as client:
        client.subscribe(topic, "s").close()
        ids = publish(client, topic, *(b"%d" % number for number in range(25)))
    place = {"ledgerId": ids[20].ledger_id(), "entryId": ids[20].entry_id(), "excluded": True}
    assert expire(broker, topic, "s", "", place) == 204
    assert backlog(broker, topic, "s") == 5
    restart(broker)
    assert backlog(broker, topic, "s") == 5
    back = {"ledgerId": ids[15].ledger_id(), "entryId": ids[15].entry_id()}
    assert broker.http("POST", f"{topic_path(topic)}/subscription/s/resetcursor", back).status == 204
    with connected(broker.service_url) as client:
        assert rest(client.subscribe(topic, "s"), 10) == [b"%d" % number for number in range(15, 25)]
    restart(broker)
    assert backlog(broker, topic, "s") == 0
    assert broker.http("POST", f"{topic_path(topic)}/subscription/s/resetcursor/0").status == 204
    assert dropped(broker, topic) == []
    with connected(broker.service_url) as client:
        assert rest(client.subscribe(topic, "s"), 25) == [b"%d" % number for number in range(25)]


def test_expiring_by_hand(broker: BrokerProcess, client: pulsar.Client, space: str) -> None:
    topic = f"persistent://{space}/hand"
    for name in ("a", "b"):
        client.subscribe(topic, name).close()
    ids = publish(client, topic, b"0", b"1", b"2")
    assert expire(broker, topic, "a", "/3600") == 204, "nothing is that old: nothing happens"
    assert backlog(broker, topic, "a") == 3
    first = {"ledgerId": ids[0].ledger_id(), "entryId": ids[0].entry_id(), "partitionIndex": -1}
    assert expire(broker, topic, "a", "", first) == 204
    assert (backlog(broker, topic, "a"), backlog(broker, topic, "b")) == (2, 3)
    assert expire(broker, topic, "a", "/0") == 204
    assert (backlog(broker, topic, "a"), backlog(broker, topic, "b")) == (0, 3)
    assert expire(broker, topic, "a", "/0") == 409, "there is no backlog"
    assert expire(broker, topic, "nobody", "/0") == 404
    assert expire(broker, topic, "b", "/many") == 400
    assert broker.http("POST", f"{topic_path(topic)}/all_subscription/expireMessages/0").status == 204
    assert backlog(broker, topic, "b") == 0


def test_partitions_expire_together(broker: BrokerProcess, client: pulsar.Client, space: str) -> None:
    topic = f"persistent://{space}/parts"
    assert broker.http("PUT", f"{topic_path(topic)}/partitions", 2).status == 204
    client.subscribe(topic, "s").close()
    publish(client, topic, *(b"%d" % number for number in range(6)))
    where = {"ledgerId": 1, "entryId": 1, "partitionIndex": -1}
    assert expire(broker, topic, "s", "", where) == 412, "ids differ by partition"
    assert expire(broker, topic, "s", "/0") == 204
    partitions = [f"{topic}-partition-{number}" for number in range(2)]
    assert [backlog(broker, one, "s") for one in partitions] == [0, 0]


def test_the_space_of_expired_messages_is_freed(broker: BrokerProcess, client: pulsar.Client) -> None:
    topic = "persistent://public/default/expired-space"
    client.subscribe(topic, "s").close()
    publish(client, topic, *(b"%d" % number for number in range(40)))

    def ledgers() -> int:
        return len(broker.http("GET", f"{topic_path(topic)}/internalStats").json["ledgers"])

    assert ledgers() >= 4
    assert expire(broker, topic, "s", "/0") == 204
    wait_until(lambda: ledgers() <= 1, "the ledgers to be deleted")
    assert sum(upto - after for _, _, after, upto in dropped(broker, topic)) >= 9, "the record of the drop stays"
    publish(client, topic, b"new")
    assert rest(client.subscribe(topic, "s"), 1) == [b"new"]


def test_truncating_empties_a_topic_whatever_is_retained(
    broker: BrokerProcess, client: pulsar.Client, space: str
) -> None:
    topic = f"persistent://{space}/truncated"
    consumer = client.subscribe(topic, "busy", consumer_type=SHARED)
    client.subscribe(topic, "idle").close()
    producer = client.create_producer(topic, batching_enabled=False)
    for number in range(25):
        producer.send(b"%d" % number)
    held = [consumer.receive(PATIENCE_MS) for _ in range(3)]
    consumer.acknowledge(held[1])
    assert broker.http("POST", f"{topic_path(topic)}/trim").status == 204
    assert entries(broker, topic) == 25, "retention keeps everything, and so does the backlog"
    assert broker.http("DELETE", f"{topic_path(topic)}/truncate").status == 204
    assert entries(broker, topic) == 0
    assert [backlog(broker, topic, name) for name in ("busy", "idle")] == [0, 0]
    producer.send(b"new")
    assert rest(client.subscribe(topic, "idle", consumer_type=SHARED), 1) == [b"new"]
    causes = {(subscription, cause) for subscription, cause, _, _ in dropped(broker, topic)}
    assert causes == {("busy", "truncated"), ("idle", "truncated")}
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    assert reader.read_next(PATIENCE_MS).data() == b"new"
    assert broker.http("DELETE", f"{topic_path(topic)}-nobody-knows/truncate").status == 404


def test_a_truncated_topic_goes_on_after_kill_9(broker: BrokerProcess, space: str) -> None:
    topic = f"persistent://{space}/truncated-killed"
    with connected(broker.service_url) as client:
        client.subscribe(topic, "s").close()
        publish(client, topic, *(b"%d" % number for number in range(15)))
    before = broker.http("GET", f"{topic_path(topic)}/internalStats").json["lastOwn"]
    assert broker.http("DELETE", f"{topic_path(topic)}/truncate").status == 204
    restart(broker)
    after = broker.http("GET", f"{topic_path(topic)}/internalStats").json
    assert (after["lastOwn"], after["numberOfEntries"]) == (before, 0)
    with connected(broker.service_url) as client:
        publish(client, topic, b"new")
        assert rest(client.subscribe(topic, "s"), 1) == [b"new"]


def test_trimming_at_once(broker: BrokerProcess, client: pulsar.Client) -> None:
    topic = "persistent://public/default/trimmed-at-once"
    consumer = client.subscribe(topic, "s")
    publish(client, topic, *(b"%d" % number for number in range(35)))
    assert len(rest(consumer, 35)) == 35
    wait_until(lambda: backlog(broker, topic, "s") == 0, "the acknowledgements to be applied")
    assert broker.http("POST", f"{topic_path(topic)}/trim").status == 204
    assert entries(broker, topic) <= 10, "the ledger that is being written stays"


def entries(broker: BrokerProcess, topic: str) -> int:
    return int(broker.http("GET", f"{topic_path(topic)}/internalStats").json["numberOfEntries"])
