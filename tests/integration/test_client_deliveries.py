# SPDX-License-Identifier: Apache-2.0
"""Chunks, dead letters and Failover through the unmodified client."""

from __future__ import annotations

import contextlib
import os

import pulsar
import pytest
from support.brokers.broker_process import BrokerProcess, wait_until
from support.brokers.region_clients import PATIENCE_MS, drain

SHARED = pulsar.ConsumerType.Shared
FAILOVER = pulsar.ConsumerType.Failover
EARLIEST = pulsar.InitialPosition.Earliest


# -- chunks ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [pulsar.ConsumerType.Exclusive, SHARED, pulsar.ConsumerType.KeyShared])
def test_a_message_of_many_chunks_arrives_whole(client: pulsar.Client, topic: str, kind: pulsar.ConsumerType) -> None:
    consumer = client.subscribe(topic, "s", consumer_type=kind)
    producer = client.create_producer(topic, batching_enabled=False, chunking_enabled=True)
    large = os.urandom(12 << 20)
    producer.send(large)
    producer.send(b"small")
    first = consumer.receive(PATIENCE_MS)
    assert first.data() == large
    consumer.acknowledge(first)
    assert drain(consumer, 1) == [b"small"]
    consumer.close()
    assert drain(client.subscribe(topic, "s", consumer_type=kind)) == []


def test_the_chunks_of_a_message_go_to_one_of_many_consumers(client: pulsar.Client, topic: str) -> None:
    consumers = [client.subscribe(topic, "s", consumer_type=SHARED) for _ in range(3)]
    producers = [client.create_producer(topic, batching_enabled=False, chunking_enabled=True) for _ in range(2)]
    bodies = [os.urandom(11 << 20) for _ in range(4)]
    for number, body in enumerate(bodies):
        producers[number % 2].send_async(body, lambda _r, _m: None)
        producers[0].send_async(b"small", lambda _r, _m: None)
    for producer in producers:
        producer.flush()
    found: list[bytes] = []

    def all_came() -> bool:
        for consumer in consumers:
            found.extend(drain(consumer))
        return len(found) >= 8

    wait_until(all_came, "the large and the small messages to arrive")
    assert sorted(found) == sorted([*bodies, *[b"small"] * 4])
    assert [drain(consumer) for consumer in consumers] == [[], [], []]


def test_a_chunked_message_goes_whole_to_another_consumer(client: pulsar.Client, topic: str) -> None:
    first = client.subscribe(topic, "s", consumer_type=SHARED)
    producer = client.create_producer(topic, batching_enabled=False, chunking_enabled=True)
    large = os.urandom(12 << 20)
    producer.send(large)
    assert first.receive(PATIENCE_MS).data() == large
    second = client.subscribe(topic, "s", consumer_type=SHARED)
    first.close()
    assert drain(second, 1) == [large]


# -- dead letters ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [SHARED, pulsar.ConsumerType.KeyShared])
def test_a_message_given_back_too_often_becomes_a_dead_letter(
    client: pulsar.Client, topic: str, kind: pulsar.ConsumerType
) -> None:
    policy = pulsar.ConsumerDeadLetterPolicy(
        max_redeliver_count=2, dead_letter_topic=f"{topic}-dead", initial_subscription_name="undertaker"
    )
    consumer = client.subscribe(
        topic, "s", consumer_type=kind, dead_letter_policy=policy, negative_ack_redelivery_delay_ms=100
    )
    producer = client.create_producer(topic, batching_enabled=False)
    for number in range(10):
        producer.send(b"%d" % number, partition_key=f"key-{number}", properties={"n": str(number)})
    counts: dict[bytes, list[int]] = {}
    with contextlib.suppress(pulsar.Timeout):
        while True:  # five come once, five three times
            message = consumer.receive(PATIENCE_MS if sum(map(len, counts.values())) < 20 else 2000)
            counts.setdefault(message.data(), []).append(message.redelivery_count())
            if int(message.data()) % 2:
                consumer.negative_acknowledge(message)
            else:
                consumer.acknowledge(message)
    assert counts == {b"%d" % n: [0, 1, 2] if n % 2 else [0] for n in range(10)}
    # The subscription was created with the dead letter topic, so nothing is lost before somebody reads it.
    dead = client.subscribe(f"{topic}-dead", "undertaker", consumer_type=SHARED)
    assert sorted(drain(dead, 5)) == [b"1", b"3", b"5", b"7", b"9"]
    consumer.close()
    assert drain(client.subscribe(topic, "s", consumer_type=kind)) == []


# -- Failover ----------------------------------------------------------------------------------------------------


def send(client: pulsar.Client, topic: str, bodies: list[bytes]) -> None:
    producer = client.create_producer(topic, batching_enabled=False)
    for body in bodies:
        producer.send(body)
    producer.close()


def active(broker: BrokerProcess, topic: str) -> str | None:
    stats = broker.http("GET", f"/admin/v2/persistent/public/default/{topic}/stats").json
    name: str | None = stats["subscriptions"]["s"].get("activeConsumerName")
    return name


def test_the_first_by_name_is_active_and_a_better_one_takes_over(
    client: pulsar.Client, broker: BrokerProcess, topic: str
) -> None:
    def join(name: str) -> pulsar.Consumer:
        return client.subscribe(topic, "s", consumer_type=FAILOVER, consumer_name=name, initial_position=EARLIEST)

    consumers = {name: join(name) for name in ("m", "z")}
    assert active(broker, topic) == "m"
    consumers["b"] = join("b")
    assert active(broker, topic) == "b"
    send(client, topic, [b"1", b"2"])
    for body in (b"1", b"2"):
        message = consumers["b"].receive(PATIENCE_MS)
        assert message.data() == body
        consumers["b"].acknowledge(message)
    consumers["b"].close()
    wait_until(lambda: active(broker, topic) == "m", "consumer m to be active again")
    send(client, topic, [b"3"])
    assert consumers["m"].receive(PATIENCE_MS).data() == b"3"
    assert drain(consumers["z"]) == []


def test_partitions_spread_over_failover_consumers(client: pulsar.Client, broker: BrokerProcess, topic: str) -> None:
    made = broker.http("PUT", f"/admin/v2/persistent/public/default/{topic}/partitions", 4)
    assert made.status == 204, made.text
    consumers = [client.subscribe(topic, "s", consumer_type=FAILOVER, consumer_name=name) for name in ("a", "b")]
    names = [
        wait_until(lambda p=p: active(broker, f"{topic}-partition-{p}"), f"partition {p} to have an active consumer")
        for p in range(4)
    ]
    assert names == ["a", "b", "a", "b"]
    send(client, topic, [b"%d" % n for n in range(40)])
    for consumer in consumers:
        partitions = {consumer.receive(PATIENCE_MS).topic_name() for _ in range(20)}
        assert len(partitions) == 2
        assert drain(consumer) == []


@pytest.mark.parametrize("kind", [pulsar.ConsumerType.Exclusive, FAILOVER])
def test_redelivery_with_one_active_consumer_comes_in_order_and_uncounted(
    client: pulsar.Client, topic: str, kind: pulsar.ConsumerType
) -> None:
    consumer = client.subscribe(topic, "s", consumer_type=kind)
    bodies = [b"%d" % number for number in range(20)]
    send(client, topic, bodies)
    messages = [consumer.receive(PATIENCE_MS) for _ in range(20)]
    consumer.acknowledge_cumulative(messages[4])
    consumer.redeliver_unacknowledged_messages()
    again = [consumer.receive(PATIENCE_MS) for _ in range(15)]
    assert [message.data() for message in again] == bodies[5:]
    assert all(message.redelivery_count() == 0 for message in again)
