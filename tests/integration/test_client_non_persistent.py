# SPDX-License-Identifier: Apache-2.0
"""Non-persistent topics, through the unmodified client and over HTTP."""

from __future__ import annotations

import itertools
from typing import Any

import pulsar
import pytest
from support.brokers.broker_process import BrokerProcess, HttpAnswer, http, wait_until
from support.brokers.region_clients import PATIENCE_MS

QUIET_MS = 300
"""How long silence must last before a test believes that nothing comes."""
_numbers = itertools.count()


class Light:
    """A topic of the test's own, with what the admin API says about it."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.local_name = f"light-{next(_numbers)}"
        self.name = f"non-persistent://public/default/{self.local_name}"
        self._broker = broker

    def http(self, method: str, path: str = "", body: Any = ...) -> HttpAnswer:
        url = f"{self._broker.admin_url}/admin/v2/non-persistent/public/default/{self.local_name}"
        return http(method, url + path, body)

    @property
    def stats(self) -> Any:
        return self.http("GET", "/stats").json

    def room(self, subscription: str) -> int:
        """How many messages its consumers could take now; 0 if the topic does not exist."""
        answer = self.http("GET", "/stats")
        found = answer.json["subscriptions"].get(subscription) if answer.status == 200 else None
        return sum(one["availablePermits"] for one in found["consumers"]) if found else 0


@pytest.fixture
def topic(broker: BrokerProcess) -> Light:
    return Light(broker)


def receive(consumer: pulsar.Consumer, count: int) -> list[bytes]:
    found = []
    for _ in range(count):
        message = consumer.receive(PATIENCE_MS)
        consumer.acknowledge(message)
        found.append(message.data())
    return found


def assert_quiet(consumer: pulsar.Consumer) -> None:
    with pytest.raises(pulsar.Timeout):
        consumer.receive(QUIET_MS)


@pytest.mark.parametrize("batching", [False, True])
def test_connected_consumers_get_every_message_and_later_ones_none(
    client: pulsar.Client, topic: Light, batching: bool
) -> None:
    producer = client.create_producer(topic.name, batching_enabled=batching)
    producer.send(b"nobody hears this")
    one, two = (client.subscribe(topic.name, name) for name in ("one", "two"))
    bodies = [b"%d" % number for number in range(100)]
    for body in bodies:
        producer.send_async(body, None)
    producer.flush()
    assert receive(one, 100) == receive(two, 100) == bodies
    two.close()
    two = client.subscribe(topic.name, "two", initial_position=pulsar.InitialPosition.Earliest)
    assert_quiet(two)
    stats = topic.stats
    assert (stats["msgInCounter"], stats["storageSize"], stats["backlogSize"]) == (101, 0, 0)
    assert stats["subscriptions"]["one"]["msgOutCounter"] == 100
    assert stats["subscriptions"]["one"]["type"] == "Exclusive"
    assert [one["producerName"] for one in stats["publishers"]] == [producer.producer_name()]
    assert topic.http("GET", "/subscriptions").json == ["one", "two"]


def test_a_consumer_without_room_misses_messages_and_gets_the_next(client: pulsar.Client, topic: Light) -> None:
    consumer = client.subscribe(topic.name, "s", receiver_queue_size=2)
    producer = client.create_producer(topic.name)
    for number in range(50):
        producer.send(b"%d" % number)
    stats = topic.stats
    dropped = stats["msgDropCount"]
    assert dropped >= 40
    assert stats["subscriptions"]["s"]["msgDropCount"] == dropped
    assert receive(consumer, 2) == [b"0", b"1"]
    receive(consumer, 48 - dropped)
    wait_until(lambda: topic.room("s") > 0, "the consumer to have room for a message")
    producer.send(b"again")
    assert receive(consumer, 1) == [b"again"]


def test_shared_consumers_take_turns_the_best_priority_first(client: pulsar.Client, topic: Light) -> None:
    consumers = [client.subscribe(topic.name, "s", pulsar.ConsumerType.Shared) for _ in range(2)]
    producer = client.create_producer(topic.name)
    for number in range(20):
        producer.send(b"%d" % number)
    halves = [receive(consumer, 10) for consumer in consumers]
    assert sorted(int(body) for half in halves for body in half) == list(range(20))


def test_failover_changes_to_the_next_at_once(client: pulsar.Client, topic: Light) -> None:
    first, second = (
        client.subscribe(topic.name, "s", pulsar.ConsumerType.Failover, consumer_name=name) for name in ("a", "b")
    )
    producer = client.create_producer(topic.name)
    producer.send(b"1")
    assert receive(first, 1) == [b"1"]
    assert topic.stats["subscriptions"]["s"]["activeConsumerName"] == "a"
    first.close()
    producer.send(b"2")
    assert receive(second, 1) == [b"2"]


def test_keys_keep_to_their_consumer(client: pulsar.Client, topic: Light) -> None:
    consumers = [client.subscribe(topic.name, "s", pulsar.ConsumerType.KeyShared) for _ in range(3)]
    producer = client.create_producer(topic.name)
    for number in range(60):
        producer.send(b"%d" % number, partition_key=f"key-{number % 12}")
    stats = topic.stats["subscriptions"]["s"]["consumers"]
    owners: dict[str, set[int]] = {}
    for at, consumer in enumerate(consumers):
        sent = next(one["msgOutCounter"] for one in stats if one["consumerName"] == consumer.consumer_name())
        for _ in range(sent):
            owners.setdefault(consumer.receive(PATIENCE_MS).partition_key(), set()).add(at)
    assert len(owners) == 12
    assert all(len(one) == 1 for one in owners.values())


def test_partitions_and_how_they_grow(client: pulsar.Client, topic: Light) -> None:
    assert topic.http("PUT", "/partitions", 2).status == 204
    assert topic.http("PUT", "/partitions", 2).status == 409
    consumer = client.subscribe(topic.name, "s", pulsar.ConsumerType.Shared)
    routing = pulsar.PartitionsRoutingMode.RoundRobinDistribution
    producer = client.create_producer(topic.name, message_routing_mode=routing, batching_enabled=False)
    for number in range(10):
        producer.send(b"%d" % number)
    assert sorted(int(body) for body in receive(consumer, 10)) == list(range(10))
    stats = topic.http("GET", "/partitioned-stats").json
    assert {name: one["msgInCounter"] for name, one in stats["partitions"].items()} == {
        f"{topic.name}-partition-{index}": 5 for index in range(2)
    }
    assert stats["msgOutCounter"] == 10
    assert topic.http("POST", "/partitions", 3).status == 204
    assert topic.http("GET", "/partitions").json["partitions"] == 3
    assert topic.http("DELETE", "/partitions").status == 412
    assert topic.http("DELETE", "/partitions?force=true").status == 204


def test_created_unloaded_and_deleted_through_the_admin_api(
    client: pulsar.Client, topic: Light, broker: BrokerProcess
) -> None:
    listing = f"{broker.admin_url}/admin/v2/non-persistent/public/default"
    assert topic.http("GET", "/stats").status == 404
    assert topic.http("PUT").status == 204
    assert topic.http("PUT").status == 409
    assert topic.name in http("GET", listing).json
    consumer = client.subscribe(topic.name, "s")
    producer = client.create_producer(topic.name)
    producer.send(b"before")
    assert receive(consumer, 1) == [b"before"]
    assert topic.http("DELETE").status == 412
    assert topic.http("PUT", "/unload").status == 204
    wait_until(lambda: topic.room("s") > 0, "the consumer to come back")
    producer.send(b"after")
    assert receive(consumer, 1) == [b"after"]
    consumer.close()
    producer.close()
    wait_until(lambda: topic.http("DELETE").status == 204, "the topic to have no clients")
    assert topic.name not in http("GET", listing).json


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/lastMessageId"),
        ("POST", "/subscription/s/skip_all"),
        ("GET", "/internalStats"),
    ],
)
def test_what_needs_stored_messages_is_refused(topic: Light, method: str, path: str) -> None:
    assert topic.http("PUT").status == 204
    answer = topic.http(method, path)
    assert answer.status == 405
    assert "stores no messages" in answer.reason


def test_lookup_over_http(topic: Light, broker: BrokerProcess) -> None:
    url = f"{broker.admin_url}/lookup/v2/topic/non-persistent/public/default/{topic.local_name}"
    assert http("GET", url).json["brokerUrl"] == broker.service_url
