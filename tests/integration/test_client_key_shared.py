# SPDX-License-Identifier: Apache-2.0
"""Key_Shared subscriptions through the unmodified client: keys stick, stay in order, and move when consumers do."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import pulsar
import pytest
from support.brokers.broker_process import wait_until
from support.brokers.region_clients import PATIENCE_MS

QUIET_MS = 400


def join(client: pulsar.Client, topic: str, name: str | None = None, **options: Any) -> pulsar.Consumer:
    kind = pulsar.ConsumerType.KeyShared
    start = pulsar.InitialPosition.Earliest
    return client.subscribe(topic, "s", consumer_type=kind, consumer_name=name, initial_position=start, **options)


def sticky(*ranges: tuple[int, int], **options: Any) -> pulsar.ConsumerKeySharedPolicy:
    return pulsar.ConsumerKeySharedPolicy(pulsar.KeySharedMode.Sticky, sticky_ranges=list(ranges), **options)


class Publisher:
    """Publishes messages ``key:number``, numbers counting up per key."""

    def __init__(self, client: pulsar.Client, topic: str, **options: Any) -> None:
        options = {"batching_enabled": False, **options}
        self._producer = client.create_producer(topic, block_if_queue_full=True, **options)
        self._next: dict[str, int] = {}

    def publish(self, messages: int, keys: int) -> None:
        for number in range(messages):
            key = f"key-{number % keys}"
            value = self._next.get(key, 0)
            self._next[key] = value + 1
            self._producer.send_async(b"%s:%d" % (key.encode(), value), _sent, partition_key=key)
        self._producer.flush()


def _sent(result: pulsar.Result, _: pulsar.MessageId) -> None:
    assert result == pulsar.Result.Ok


class Seen:
    """What consumers got, per key in order of arrival."""

    def __init__(self) -> None:
        self.values: dict[str, list[int]] = {}
        self.consumers: dict[str, list[str]] = {}

    def note(self, consumer: str, message: pulsar.Message) -> None:
        key, _, value = message.data().decode().partition(":")
        assert message.partition_key() == key
        self.values.setdefault(key, []).append(int(value))
        owners = self.consumers.setdefault(key, [])
        if not owners or owners[-1] != consumer:
            owners.append(consumer)

    def count(self) -> int:
        return sum(map(len, self.values.values()))

    def collect(self, consumers: dict[str, pulsar.Consumer], total: int) -> None:
        """Receive and acknowledge round robin until ``total`` messages were seen."""
        until = time.monotonic() + PATIENCE_MS / 1000
        while self.count() < total:
            assert time.monotonic() < until, f"{self.count()} of {total} messages came"
            for name, consumer in consumers.items():
                with contextlib.suppress(pulsar.Timeout):
                    # with a longer timeout, each message would wait for the other consumers' silence
                    message = consumer.receive(1)
                    self.note(name, message)
                    consumer.acknowledge(message)
                    until = time.monotonic() + PATIENCE_MS / 1000

    def assert_in_order(self, keys: int, each: int) -> None:
        assert len(self.values) == keys
        for key, values in self.values.items():
            assert values == list(range(each)), key


def test_keys_stick_to_a_consumer_and_stay_in_order(client: pulsar.Client, topic: str) -> None:
    consumers = {name: join(client, topic, name) for name in "abc"}
    Publisher(client, topic).publish(3000, keys=60)
    seen = Seen()
    seen.collect(consumers, 3000)
    seen.assert_in_order(60, 50)
    assert all(len(owners) == 1 for owners in seen.consumers.values())
    assert {owners[0] for owners in seen.consumers.values()} == {"a", "b", "c"}


def test_batches_by_key_go_to_the_consumer_of_their_key(client: pulsar.Client, topic: str) -> None:
    consumers = {name: join(client, topic, name) for name in "ab"}
    publisher = Publisher(
        client, topic, batching_enabled=True, batching_type=pulsar.BatchingType.KeyBased, batching_max_messages=50
    )
    publisher.publish(1000, keys=20)
    seen = Seen()
    seen.collect(consumers, 1000)
    seen.assert_in_order(20, 50)
    assert all(len(owners) == 1 for owners in seen.consumers.values())


def test_messages_without_a_key_spread(client: pulsar.Client, topic: str) -> None:
    consumers = [join(client, topic, name) for name in "abc"]
    producer = client.create_producer(topic, batching_enabled=False)
    for number in range(300):
        producer.send_async(b"%d" % number, _sent)
    producer.flush()
    counts = [0, 0, 0]

    def all_came() -> bool:
        for at, consumer in enumerate(consumers):
            counts[at] += len(drain(consumer))
        return sum(counts) >= 300

    wait_until(all_came, "all messages to arrive")
    assert sum(counts) == 300
    assert min(counts) > 30


def drain(consumer: pulsar.Consumer, count: int = 0) -> list[pulsar.Message]:
    """Receive at least ``count`` messages, and then the rest until nothing more comes."""
    found: list[pulsar.Message] = []
    with contextlib.suppress(pulsar.Timeout):
        while True:
            found.append(consumer.receive(PATIENCE_MS if len(found) < count else QUIET_MS))
    return found


def test_a_slow_consumer_holds_up_its_own_keys_only(client: pulsar.Client, topic: str) -> None:
    slow = join(client, topic, "slow", receiver_queue_size=10)
    fast = join(client, topic, "fast")
    Publisher(client, topic).publish(2000, keys=40)
    quick = drain(fast, 201)
    for message in quick:
        fast.acknowledge(message)
    assert 200 < len(quick) < 2000
    seen = Seen()
    for message in quick:
        seen.note("fast", message)
    seen.collect({"slow": slow, "fast": fast}, 2000)
    seen.assert_in_order(40, 50)
    assert all(len(owners) == 1 for owners in seen.consumers.values())


def test_a_consumer_that_leaves_hands_its_keys_over_in_order(client: pulsar.Client, topic: str) -> None:
    consumers = {name: join(client, topic, name) for name in "abc"}
    Publisher(client, topic).publish(1500, keys=30)
    seen = Seen()
    seen.collect(consumers, 600)
    leaver = consumers.pop("b")
    for message in drain(leaver):  # received and never acknowledged: other consumers get them, in order
        assert message.redelivery_count() == 0
    leaver.close()
    seen.collect(consumers, 1500)
    seen.assert_in_order(30, 50)
    assert all(len(owners) == 1 or owners[0] == "b" for owners in seen.consumers.values())


def test_a_joining_consumer_waits_for_messages_of_its_keys_that_others_hold(client: pulsar.Client, topic: str) -> None:
    first = join(client, topic, "a")
    publisher = Publisher(client, topic)
    publisher.publish(400, keys=40)
    held = drain(first, 400)
    assert len(held) == 400
    second = join(client, topic, "b")
    publisher.publish(400, keys=40)
    assert drain(second) == []  # the first consumer holds messages of every key
    seen = Seen()
    for message in held:
        seen.note("a", message)
        first.acknowledge(message)
    seen.collect({"a": first, "b": second}, 800)
    seen.assert_in_order(40, 20)
    moved = [owners for owners in seen.consumers.values() if owners == ["a", "b"]]
    assert 5 < len(moved) < 35


def test_a_joining_consumer_may_get_keys_at_once_when_order_does_not_matter(client: pulsar.Client, topic: str) -> None:
    policy = pulsar.ConsumerKeySharedPolicy(allow_out_of_order_delivery=True)
    first = join(client, topic, "a", key_shared_policy=policy)
    publisher = Publisher(client, topic)
    publisher.publish(100, keys=40)
    assert len(drain(first, 100)) == 100
    second = join(client, topic, "b", key_shared_policy=policy)
    publisher.publish(400, keys=40)
    assert len(drain(second, 51)) > 50
    with pytest.raises(pulsar.ConsumerBusy):
        join(client, topic, "c")


def test_a_negative_acknowledgement_holds_back_newer_messages_of_its_key(client: pulsar.Client, topic: str) -> None:
    consumer = join(client, topic, "a", negative_ack_redelivery_delay_ms=100, receiver_queue_size=1)
    publisher = Publisher(client, topic)
    publisher.publish(10, keys=1)
    order: list[int] = []
    again = 0
    while len(order) < 10:
        message = consumer.receive(PATIENCE_MS)
        if message.data().endswith(b"3") and message.redelivery_count() < 2:
            consumer.negative_acknowledge(message)
            again += 1
            continue
        order.append(message.redelivery_count())
        consumer.acknowledge(message)
    assert again == 2
    assert sorted(order) == [0] * 9 + [2]


def test_sticky_ranges_say_who_gets_what(client: pulsar.Client, topic: str) -> None:
    low = join(client, topic, "low", key_shared_policy=sticky((0, 32767)))
    with pytest.raises(pulsar.ConsumerAssignError):
        join(client, topic, "over", key_shared_policy=sticky((30000, 40000)))
    with pytest.raises(pulsar.ConsumerAssignError):
        join(client, topic, "equal", key_shared_policy=sticky((0, 32767)))
    Publisher(client, topic).publish(400, keys=40)
    seen = Seen()
    for message in drain(low, 1):
        seen.note("low", message)
        low.acknowledge(message)
    assert 0 < seen.count() < 400  # keys of the other half wait for a consumer
    high = join(client, topic, "high", key_shared_policy=sticky((32768, 65535)))
    seen.collect({"low": low, "high": high}, 400)
    seen.assert_in_order(40, 10)
    assert all(len(owners) == 1 for owners in seen.consumers.values())


def test_a_cumulative_acknowledgement_is_ignored(client: pulsar.Client, topic: str) -> None:
    consumer = join(client, topic, "a")
    Publisher(client, topic).publish(10, keys=2)
    messages = drain(consumer, 10)
    with contextlib.suppress(pulsar.PulsarException):
        consumer.acknowledge_cumulative(messages[-1])
    consumer.close()
    assert len(drain(join(client, topic, "a"), 10)) == 10
