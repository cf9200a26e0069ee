# SPDX-License-Identifier: Apache-2.0
"""Where readers and consumers begin: inside batches, inclusive or not, by age, at trimmed positions; and what happens
to consumers while a topic grows, is unloaded, or loses its subscription."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any

import pulsar
import pytest
from meridian_broker.wire.proto import pulsar_pb2 as pb
from support.brokers.broker_process import BrokerProcess, wait_until
from support.brokers.region_clients import PATIENCE_MS, connect
from support.protocol.raw_connection import RawConnection, T

SETTINGS = {"managedLedgerMaxEntriesPerLedger": "10", "retentionCheckIntervalInSeconds": "1"}

ADMIN = "/admin/v2/persistent/public/default"


def publish(client: pulsar.Client, topic: str, count: int, *, batched: bool) -> list[pulsar.MessageId]:
    producer = client.create_producer(
        topic, batching_enabled=batched, batching_max_publish_delay_ms=1000, batching_max_messages=10
    )
    ids: list[pulsar.MessageId] = []
    for number in range(count):
        producer.send_async(b"%d" % number, lambda _, one: ids.append(one))
    producer.flush()
    producer.close()
    assert len(ids) == count
    return ids


def keep(client: pulsar.Client, topic: str) -> None:
    """Readers retain nothing: where only they use a topic, full ledgers are deleted as soon as retention ends."""
    client.subscribe(topic, "keeper", initial_position=pulsar.InitialPosition.Earliest).close()


def read_all(reader: pulsar.Reader) -> list[int]:
    found = []
    while reader.has_message_available():
        found.append(int(reader.read_next(PATIENCE_MS).data()))
    return found


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("inclusive", [False, True])
@pytest.mark.parametrize("at", [0, 13, 29])
def test_a_reader_begins_at_a_message(
    client: pulsar.Client, topic: str, batched: bool, inclusive: bool, at: int
) -> None:
    keep(client, topic)
    ids = publish(client, topic, 30, batched=batched)
    reader = client.create_reader(topic, ids[at], start_message_id_inclusive=inclusive)
    assert read_all(reader) == list(range(at if inclusive else at + 1, 30))
    reader.close()


def received(consumer: pulsar.Consumer, count: int) -> list[pulsar.Message]:
    """Receive ``count`` messages that have to come, and then the rest until nothing more comes."""
    found: list[pulsar.Message] = []
    with contextlib.suppress(pulsar.Timeout):
        while True:
            found.append(consumer.receive(PATIENCE_MS if len(found) < count else 500))
    return found


def numbers(messages: list[pulsar.Message]) -> list[int]:
    return [int(message.data()) for message in messages]


def subscribe(client: pulsar.Client, topic: str, kind: pulsar.ConsumerType) -> pulsar.Consumer:
    return client.subscribe(topic, "s", consumer_type=kind, initial_position=pulsar.InitialPosition.Earliest)


def backlog(broker: BrokerProcess, topic: str) -> int:
    return int(broker.http("GET", f"{ADMIN}/{topic}/stats").json["subscriptions"]["s"]["msgBacklog"])


@pytest.mark.parametrize("kind", [pulsar.ConsumerType.Exclusive, pulsar.ConsumerType.Failover])
def test_what_a_client_drops_after_a_rewind_is_still_owed(
    broker: BrokerProcess, client: pulsar.Client, topic: str, kind: pulsar.ConsumerType
) -> None:
    """R13: an open consumer drops what is redelivered before its last cumulative acknowledgement. Its next one does not
    cover that, and a new consumer gets it."""
    keep(client, topic)
    publish(client, topic, 10, batched=False)
    consumer = subscribe(client, topic, kind)
    consumer.acknowledge_cumulative(received(consumer, 10)[7])
    wait_until(lambda: backlog(broker, topic) == 2, "the acknowledgement to be applied")
    assert broker.http("POST", f"{ADMIN}/{topic}/subscription/s/resetcursor/0").status == 204
    again = received(consumer, 2)
    assert numbers(again) == [8, 9], "the client drops nothing any more: this test has lost its subject"
    consumer.acknowledge_cumulative(again[1])
    wait_until(lambda: backlog(broker, topic) < 10, "the next acknowledgement to be applied")
    assert backlog(broker, topic) == 8
    consumer.close()
    consumer = subscribe(client, topic, kind)
    rest = received(consumer, 8)
    assert numbers(rest) == list(range(8))
    consumer.acknowledge_cumulative(rest[7])
    wait_until(lambda: backlog(broker, topic) == 0, "the last acknowledgement to be applied")
    consumer.seek(pulsar.MessageId.earliest)  # by itself: it drops nothing
    rest = received(consumer, 10)
    assert numbers(rest) == list(range(10))
    consumer.acknowledge_cumulative(rest[9])
    wait_until(lambda: backlog(broker, topic) == 0, "the acknowledgement after the seek to be applied")
    consumer.close()


def test_a_reader_begins_at_a_time_in_the_past(client: pulsar.Client, topic: str) -> None:
    """By publish time, as the client offers it: seek to a timestamp."""
    keep(client, topic)
    publish(client, topic, 5, batched=False)
    between = wait_until(lambda: _later(time.time_ns() // 1_000_000), "the clock to move on")
    publish(client, topic, 5, batched=False)
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    reader.seek(between)
    assert read_all(reader) == [0, 1, 2, 3, 4]
    reader.close()


def _later(now_ms: int) -> int:
    """A moment in the past, after everything published so far."""
    while time.time_ns() // 1_000_000 < now_ms + 3:
        pass
    return now_ms + 2


async def test_rollback_by_duration(broker: BrokerProcess, client: pulsar.Client, topic: str) -> None:
    """``start_message_rollback_duration_sec``: a non-durable cursor that begins that many seconds in the past."""
    publish(client, topic, 3, batched=False)
    raw = await RawConnection.open(broker.port)
    raw.say(
        T.SUBSCRIBE,
        pb.CommandSubscribe(
            topic=f"persistent://public/default/{topic}",
            subscription="reader",
            subType=pb.CommandSubscribe.Exclusive,
            consumer_id=1,
            request_id=1,
            durable=False,
            start_message_id=pb.MessageIdData(ledgerId=(1 << 63) - 1, entryId=(1 << 63) - 1),
            start_message_rollback_duration_sec=3600,
        ),
    )
    await raw.hear(T.SUCCESS)
    raw.say(T.FLOW, pb.CommandFlow(consumer_id=1, messagePermits=10))
    heard = [await raw.hear_any() for _ in range(3)]
    assert [one.command.message_id.entryId for one in heard] == [0, 1, 2]
    await raw.close()


def test_a_trimmed_position_means_the_next_one_left(broker: BrokerProcess, client: pulsar.Client, topic: str) -> None:
    keeper = client.subscribe(topic, "keeper")
    ids = publish(client, topic, 50, batched=False)
    keeper.acknowledge_cumulative(_receive(keeper, 35)[-1])
    wait_until(
        lambda: len(broker.http("GET", f"{ADMIN}/{topic}/internalStats").json["ledgers"]) <= 3, "space to be freed"
    )
    reader = client.create_reader(topic, ids[5], start_message_id_inclusive=True)
    assert read_all(reader) == list(range(30, 50))
    reader.close()
    keeper.close()


def test_at_the_end_nothing_is_available_until_something_comes(client: pulsar.Client, topic: str) -> None:
    empty = client.create_reader(topic, pulsar.MessageId.earliest)
    assert not empty.has_message_available()
    publish(client, topic, 10, batched=True)
    latest = client.create_reader(topic, pulsar.MessageId.latest)
    assert not latest.has_message_available()
    assert read_all(empty) == list(range(10))
    publish(client, topic, 2, batched=True)
    assert read_all(empty) == read_all(latest) == [0, 1]
    empty.seek(pulsar.MessageId.latest)
    assert not empty.has_message_available()


def test_a_topic_grows_under_its_clients(broker: BrokerProcess, client: pulsar.Client, topic: str) -> None:
    """Messages in a new partition are not lost before its consumer knows it: subscriptions there begin at Earliest."""
    path = f"{ADMIN}/{topic}/partitions"
    assert broker.http("PUT", path, 2).status == 204
    watching = connect(broker.service_url)
    consumer = watching.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
    publish(client, topic, 20, batched=False)
    assert broker.http("POST", path, 5).status == 204
    fresh = connect(broker.service_url)
    publish(fresh, topic, 50, batched=False)  # knows five partitions
    consumer.close()
    consumer = fresh.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
    got = [int(message.data()) for message in _receive(consumer, 70)]
    assert sorted(got) == sorted([*range(20), *range(50)])
    for one in (watching, fresh):
        one.close()


def test_unloading_under_load_loses_nothing(broker: BrokerProcess, client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
    producer = client.create_producer(topic, batching_enabled=False, block_if_queue_full=True)
    failed: list[Any] = []
    unloads = 5

    def unload() -> None:
        answers = [broker.http("PUT", f"{ADMIN}/{topic}/unload").status for _ in range(unloads)]
        failed.extend(status for status in answers if status != 204)

    def stored(result: pulsar.Result, _: pulsar.MessageId) -> None:
        if result != pulsar.Result.Ok:
            failed.append(result)

    thread = threading.Thread(target=unload)
    thread.start()
    sent = 0
    while thread.is_alive() or sent < 500:
        producer.send_async(b"%d" % sent, stored)
        sent += 1
        if sent % 100 == 0:
            producer.flush()
    thread.join()
    producer.flush()
    got: set[int] = set()
    while len(got) < sent:
        message = consumer.receive(PATIENCE_MS)
        got.add(int(message.data()))
        consumer.acknowledge(message)
    assert not failed
    assert got == set(range(sent))


async def test_a_forced_unsubscribe_disconnects_the_others(
    broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    other = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
    raw = await RawConnection.open(broker.port)
    raw.say(
        T.SUBSCRIBE,
        pb.CommandSubscribe(
            topic=f"persistent://public/default/{topic}",
            subscription="s",
            subType=pb.CommandSubscribe.Shared,
            consumer_id=1,
            request_id=1,
        ),
    )
    await raw.hear(T.SUCCESS)
    raw.say(T.UNSUBSCRIBE, pb.CommandUnsubscribe(consumer_id=1, request_id=2))
    assert (await raw.hear(T.ERROR)).error == pb.MetadataError, "somebody else consumes"
    raw.say(T.UNSUBSCRIBE, pb.CommandUnsubscribe(consumer_id=1, request_id=3, force=True))
    assert (await raw.hear(T.SUCCESS)).request_id == 3
    await raw.close()
    other.close()


def _receive(consumer: pulsar.Consumer, count: int) -> list[pulsar.Message]:
    return [consumer.receive(PATIENCE_MS) for _ in range(count)]
