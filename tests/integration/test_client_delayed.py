# SPDX-License-Identifier: Apache-2.0
"""Delayed messages through the unmodified client: not early, not lost, and nobody waits behind them."""

from __future__ import annotations

import contextlib
import time
from datetime import timedelta
from pathlib import Path

import pulsar
import pytest
from support.brokers.broker_process import BrokerProcess, RegionsProcess
from support.brokers.region_clients import PATIENCE_MS, connect

QUIET_MS = 400
LATE_MS = 20_000
"""How late a message may come on a busy machine. A tick is 100 ms."""
SHARED = pulsar.ConsumerType.Shared
EARLIEST = pulsar.InitialPosition.Earliest


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def receive(consumer: pulsar.Consumer, count: int) -> list[tuple[bytes, int]]:
    """Receive and acknowledge messages; return each with the time at which it came."""
    found = []
    for _ in range(count):
        message = consumer.receive(PATIENCE_MS)
        found.append((message.data(), now_ms()))
        consumer.acknowledge(message)
    return found


def _sent(result: pulsar.Result, _: pulsar.MessageId) -> None:
    assert result == pulsar.Result.Ok


def assert_quiet(consumer: pulsar.Consumer) -> None:
    with pytest.raises(pulsar.Timeout):
        consumer.receive(QUIET_MS)


@pytest.mark.parametrize("kind", [SHARED, pulsar.ConsumerType.KeyShared])
def test_a_delayed_message_comes_at_its_time_and_others_do_not_wait(
    client: pulsar.Client, topic: str, kind: pulsar.ConsumerType
) -> None:
    consumer = client.subscribe(topic, "s", consumer_type=kind)
    producer = client.create_producer(topic, batching_enabled=False)
    due = now_ms() + 6000
    producer.send_async(b"second", _sent, deliver_at=due, partition_key="k")
    producer.send_async(b"first", _sent, deliver_after=timedelta(seconds=5), partition_key="k")
    producer.send_async(b"past", _sent, deliver_at=now_ms() - 1000, partition_key="k")
    producer.send_async(b"now", _sent, partition_key="k")
    producer.flush()
    assert [body for body, _ in receive(consumer, 2)] == [b"past", b"now"]
    (first, _), (second, came) = receive(consumer, 2)
    assert (first, second) == (b"first", b"second")
    assert due <= came < due + LATE_MS
    assert_quiet(consumer)


@pytest.mark.parametrize("kind", [pulsar.ConsumerType.Exclusive, pulsar.ConsumerType.Failover])
def test_types_with_one_active_consumer_keep_the_order_instead(
    client: pulsar.Client, topic: str, kind: pulsar.ConsumerType
) -> None:
    consumer = client.subscribe(topic, "s", consumer_type=kind)
    producer = client.create_producer(topic, batching_enabled=False)
    producer.send(b"delayed", deliver_after=timedelta(hours=1))
    producer.send(b"now")
    assert [body for body, _ in receive(consumer, 2)] == [b"delayed", b"now"]


def test_many_delayed_messages_come_once_each(client: pulsar.Client, topic: str) -> None:
    consumers = [client.subscribe(topic, "s", consumer_type=SHARED) for _ in range(2)]
    producer = client.create_producer(topic, batching_enabled=False, block_if_queue_full=True)
    due = now_ms() + 2000
    for number in range(2000):
        producer.send_async(b"%d" % number, lambda _r, _m: None, deliver_at=due + number % 500)
    producer.flush()
    found: list[bytes] = []
    until = now_ms() + 60_000
    while len(found) < 2000:
        assert now_ms() < until, f"{len(found)} of 2000 messages came"
        for consumer in consumers:
            with contextlib.suppress(pulsar.Timeout):
                message = consumer.receive(50)
                assert now_ms() >= due + int(message.data()) % 500
                found.append(message.data())
                consumer.acknowledge(message)
    assert sorted(found) == sorted(b"%d" % number for number in range(2000))
    assert_quiet(consumers[0])


def test_a_delayed_message_can_be_given_back_and_its_consumer_can_leave(client: pulsar.Client, topic: str) -> None:
    options = {"consumer_type": SHARED, "negative_ack_redelivery_delay_ms": 100}
    consumer = client.subscribe(topic, "s", **options)
    producer = client.create_producer(topic, batching_enabled=False)
    due = now_ms() + 800
    producer.send(b"a", deliver_at=due)
    producer.send(b"b", deliver_at=due + 6000)
    message = consumer.receive(PATIENCE_MS)
    consumer.negative_acknowledge(message)
    again = consumer.receive(PATIENCE_MS)
    assert (again.data(), again.redelivery_count()) == (b"a", 1)
    consumer.acknowledge(again)
    consumer.close()
    other = client.subscribe(topic, "s", **options)
    (body, came), *_ = receive(other, 1)
    assert body == b"b"
    assert came >= due + 6000


def test_delayed_messages_survive_a_restart(tmp_path: Path) -> None:
    with BrokerProcess("one", tmp_path) as broker:
        client = connect(broker.service_url)
        consumer = client.subscribe("t", "s", consumer_type=SHARED)
        producer = client.create_producer("t", batching_enabled=False)
        due = now_ms() + 6000
        producer.send(b"later", deliver_at=due)
        producer.send(b"now")
        assert receive(consumer, 1)[0][0] == b"now"
        consumer.close()
        broker.kill()
        broker.start()
        consumer = client.subscribe("t", "s", consumer_type=SHARED)
        if now_ms() < due - 4 * QUIET_MS:
            assert_quiet(consumer)
        (body, came), *_ = receive(consumer, 1)
        assert body == b"later"
        assert came >= due
        client.close()


def test_a_delayed_message_keeps_its_time_in_another_region(tmp_path: Path) -> None:
    with RegionsProcess(("east", "west"), tmp_path / "regions") as regions:
        east, west = (connect(regions.service_url(region)) for region in ("east", "west"))
        producer = east.create_producer("t", batching_enabled=False)
        producer.send(b"first of all")
        consumer = west.subscribe("t", "s", consumer_type=SHARED, initial_position=EARLIEST)
        assert receive(consumer, 1)[0][0] == b"first of all"
        due = now_ms() + 8000
        producer.send_async(b"later", _sent, deliver_at=due)
        producer.send_async(b"now", _sent)
        producer.flush()
        (now, _), (later, came) = receive(consumer, 2)
        assert (now, later) == (b"now", b"later")
        assert due <= came < due + LATE_MS
        east.close()
        west.close()
