# SPDX-License-Identifier: Apache-2.0
"""Whether and how topics and subscriptions are created automatically, and how many there may be."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from typing import Any

import pulsar
import pytest
from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar.errors import ServerError
from meridian_broker.wire.pulsar.metadata import build_body
from support.brokers.broker_process import BrokerProcess, wait_until
from support.protocol.raw_connection import RawConnection, T

SETTINGS = {"maxSubscriptionsPerTopic": "3", "maxMessageSize": "100000"}

NS = "/admin/v2/namespaces/public"
TOPICS = "/admin/v2/persistent/public"
FAILED = pb.CommandPartitionedTopicMetadataResponse.Failed


def policy(broker: BrokerProcess, path: str, value: Any) -> None:
    answer = broker.http("POST", path, value)
    assert answer.status == 204, answer.text
    assert broker.http("GET", path).json == value


def eventually_refused(act: Callable[[], Any], kind: type[Exception]) -> None:
    """Policies reach open topics within a second."""

    def refused() -> bool:
        try:
            made = act()
        except kind:
            return True
        if hasattr(made, "close"):
            made.close()
        return False

    wait_until(refused, f"a refusal with {kind.__name__}")


def test_topics_are_not_created_where_the_namespace_forbids_it(broker: BrokerProcess, client: pulsar.Client) -> None:
    broker.http("PUT", f"{NS}/strict")
    policy(broker, f"{NS}/strict/autoTopicCreation", {"allowAutoTopicCreation": False, "topicType": "non-partitioned"})
    with pytest.raises(pulsar.TopicNotFound):
        client.create_producer("public/strict/t")
    with pytest.raises(pulsar.TopicNotFound):
        client.subscribe("public/strict/t", "s")
    assert broker.http("GET", f"{TOPICS}/strict/t/partitions?checkAllowAutoCreation=true").status == 404
    assert broker.http("GET", f"{TOPICS}/strict").json == []
    assert broker.http("PUT", f"{TOPICS}/strict/t").status == 204
    client.create_producer("public/strict/t").close()
    assert broker.http("DELETE", f"{NS}/strict/autoTopicCreation").status == 204
    assert broker.http("GET", f"{NS}/strict/autoTopicCreation").status == 204
    client.create_producer("public/strict/now").close()


def test_a_subscription_created_over_the_api_creates_its_topic(broker: BrokerProcess) -> None:
    """As a consumer would, where the namespace creates topics automatically: tools create subscriptions first."""
    for namespace, value in (
        ("subscribed", {"allowAutoTopicCreation": True, "topicType": "non-partitioned"}),
        ("divided", {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 3}),
        ("closed", {"allowAutoTopicCreation": False, "topicType": "non-partitioned"}),
    ):
        broker.http("PUT", f"{NS}/{namespace}")
        policy(broker, f"{NS}/{namespace}/autoTopicCreation", value)
    assert broker.http("PUT", f"{TOPICS}/subscribed/t/subscription/s", "earliest").status == 204
    assert broker.http("PUT", f"{TOPICS}/divided/t/subscription/s").status == 204
    assert broker.http("PUT", f"{TOPICS}/closed/t/subscription/s").status == 404
    assert broker.http("PUT", f"{TOPICS}/nowhere/t/subscription/s").status == 404
    assert broker.http("GET", f"{TOPICS}/subscribed/t/subscriptions").json == ["s"]
    assert broker.http("GET", f"{TOPICS}/divided/t/partitions").json["partitions"] == 3
    assert broker.http("GET", f"{TOPICS}/divided/t-partition-2/subscriptions").json == ["s"]
    assert broker.http("GET", f"{TOPICS}/closed").json == []


def test_the_wire_says_that_a_topic_is_not_found(broker: BrokerProcess) -> None:
    """Commands as old and new clients send them, without asking for the number of partitions first."""
    broker.http("PUT", f"{NS}/wired")
    off = {"allowAutoTopicCreation": False, "topicType": "non-partitioned"}
    policy(broker, f"{NS}/wired/autoTopicCreation", off)
    policy(broker, f"{NS}/wired/autoSubscriptionCreation", {"allowAutoSubscriptionCreation": False})
    broker.http("PUT", f"{TOPICS}/wired/there")

    async def story() -> None:
        raw = await RawConnection.open(broker.port)
        metadata = pb.CommandPartitionedTopicMetadata(topic="persistent://public/wired/t", request_id=90)
        raw.say(T.PARTITIONED_METADATA, metadata)
        answer = await raw.hear(T.PARTITIONED_METADATA_RESPONSE)
        assert (answer.response, answer.error) == (FAILED, ServerError.TOPIC_NOT_FOUND)
        raw.ask_producer("persistent://public/wired/t")
        assert (await raw.hear(T.ERROR)).error == ServerError.TOPIC_NOT_FOUND
        subscribe = pb.CommandSubscribe(
            topic="persistent://public/wired/t",
            subscription="s",
            subType=pb.CommandSubscribe.Exclusive,
            consumer_id=1,
            request_id=91,
        )
        raw.say(T.SUBSCRIBE, subscribe)
        assert (await raw.hear(T.ERROR)).error == ServerError.TOPIC_NOT_FOUND
        subscribe.topic = "persistent://public/wired/there"
        raw.say(T.SUBSCRIBE, subscribe)
        assert (await raw.hear(T.ERROR)).error == ServerError.SUBSCRIPTION_NOT_FOUND
        raw.ask_producer("persistent://public/wired/there", initial_subscription_name="s")
        assert (await raw.hear(T.ERROR)).error == ServerError.NOT_ALLOWED
        await raw.close()

    asyncio.run(story())


def test_partitioned_topics_are_created_where_the_namespace_says_so(
    broker: BrokerProcess, client: pulsar.Client
) -> None:
    broker.http("PUT", f"{NS}/parts")
    many = {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 3}
    policy(broker, f"{NS}/parts/autoTopicCreation", many)
    producer = client.create_producer("public/parts/t")
    assert len(client.get_topic_partitions("public/parts/t")) == 3
    assert broker.http("GET", f"{TOPICS}/parts/t/partitions").json["partitions"] == 3
    producer.close()
    wrong = {"allowAutoTopicCreation": True, "topicType": "partitioned"}
    assert broker.http("POST", f"{NS}/parts/autoTopicCreation", wrong).status == 412


def test_subscriptions_are_not_created_where_the_topic_forbids_it(broker: BrokerProcess, client: pulsar.Client) -> None:
    """The Python client keeps asking when a subscription is not found, so the answer is checked on the wire."""
    path = f"{TOPICS}/default/closed"
    broker.http("PUT", path)
    policy(broker, f"{path}/autoSubscriptionCreation", {"allowAutoSubscriptionCreation": False})
    assert broker.http("PUT", f"{path}/unload").status == 204
    numbers = itertools.count(1)

    async def answer(subscription: str) -> int:
        raw, number = await RawConnection.open(broker.port), next(numbers)
        topic = "persistent://public/default/closed"
        asked = pb.CommandSubscribe(
            topic=topic,
            subscription=subscription,
            subType=pb.CommandSubscribe.Exclusive,
            consumer_id=number,
            request_id=number,
        )
        raw.say(T.SUBSCRIBE, asked)
        kind, message = (await raw.hear_any())[:2]
        await raw.close()
        return int(message.error) if kind == T.ERROR else -1

    assert asyncio.run(answer("new")) == ServerError.SUBSCRIPTION_NOT_FOUND
    assert broker.http("PUT", f"{path}/subscription/made").status == 204
    client.subscribe("closed", "made").close()
    client.create_reader("closed", pulsar.MessageId.earliest).close()  # a reader creates no subscription
    assert broker.http("DELETE", f"{path}/autoSubscriptionCreation").status == 204
    wait_until(lambda: asyncio.run(answer("new")) == -1, "subscriptions to be created again")


def test_the_number_of_topics_of_a_namespace_is_limited(broker: BrokerProcess, client: pulsar.Client) -> None:
    broker.http("PUT", f"{NS}/small")
    policy(broker, f"{NS}/small/maxTopicsPerNamespace", 3)
    assert broker.http("PUT", f"{TOPICS}/small/p/partitions", 2).status == 204
    assert broker.http("PUT", f"{TOPICS}/small/q/partitions", 2).status == 412
    client.create_producer("public/small/one").close()
    with pytest.raises(pulsar.NotAllowedError):
        client.create_producer("public/small/two")
    assert broker.http("PUT", f"{TOPICS}/small/two").status == 412
    assert broker.http("DELETE", f"{NS}/small/maxTopicsPerNamespace").status == 204
    client.create_producer("public/small/two").close()


def test_consumers_are_limited_in_number_and_kind(broker: BrokerProcess, client: pulsar.Client) -> None:
    path, topic = f"{TOPICS}/default/limited", "limited"
    shared = {"consumer_type": pulsar.ConsumerType.Shared}
    kept = [client.subscribe(topic, "a", **shared), client.subscribe(topic, "a", **shared)]
    policy(broker, f"{path}/maxConsumersPerSubscription", 2)
    eventually_refused(lambda: client.subscribe(topic, "a", **shared), pulsar.ConsumerBusy)
    kept.append(client.subscribe(topic, "b", **shared))
    policy(broker, f"{path}/maxConsumers", 3)
    eventually_refused(lambda: client.subscribe(topic, "b", **shared), pulsar.ConsumerBusy)
    assert broker.http("DELETE", f"{path}/maxConsumers").status == 204
    kept.append(
        wait_until(
            lambda: _unless(pulsar.ConsumerBusy, lambda: client.subscribe(topic, "c")),
            "the limit on consumers to be lifted",
        )
    )
    # The broker's own limit is three subscriptions, and policies may say otherwise.
    with pytest.raises(pulsar.NotAllowedError):
        client.subscribe(topic, "d")
    assert broker.http("PUT", f"{path}/subscription/d").status == 412
    policy(broker, f"{path}/maxSubscriptionsPerTopic", 4)
    kept.append(
        wait_until(
            lambda: _unless(pulsar.NotAllowedError, lambda: client.subscribe(topic, "d")),
            "a fourth subscription to be allowed",
        )
    )
    policy(broker, f"{path}/subscriptionTypesEnabled", ["Exclusive", "Shared"])
    failover = {"consumer_type": pulsar.ConsumerType.Failover}
    kept.pop().close()
    eventually_refused(lambda: client.subscribe(topic, "d", **failover), pulsar.NotAllowedError)
    for consumer in kept:
        consumer.close()


def _unless(kind: type[Exception], act: Callable[[], Any]) -> Any:
    try:
        return act()
    except kind:
        return None


def test_messages_are_at_most_as_large_and_as_delayed_as_the_topic_allows(
    broker: BrokerProcess, client: pulsar.Client
) -> None:
    path = f"{TOPICS}/default/bounded"
    producer = client.create_producer("bounded", batching_enabled=False)
    consumer = client.subscribe("bounded", "s", consumer_type=pulsar.ConsumerType.Shared)
    producer.send(b"x" * 5000)
    producer.close()
    policy(broker, f"{path}/maxMessageSize", 1000)
    assert broker.http("POST", f"{path}/maxMessageSize", 200_000).status == 412
    delays = {"active": True, "tickTime": 1000, "maxDeliveryDelayInMillis": 60_000}
    policy(broker, f"{path}/delayedDelivery", delays)
    assert broker.http("PUT", f"{path}/unload").status == 204
    asyncio.run(_refusals(broker.port, "persistent://public/default/bounded"))
    policy(broker, f"{path}/delayedDelivery", {"active": False, "tickTime": 1000, "maxDeliveryDelayInMillis": 0})

    def at_once() -> bool:
        client.create_producer("bounded").send(b"at once", deliver_at=int(time.time() * 1000) + 10**7)
        try:
            while True:
                message = consumer.receive(200)
                consumer.acknowledge(message)
                if message.data() == b"at once":
                    return True
        except pulsar.Timeout:
            return False

    wait_until(at_once, "messages to arrive at once")
    consumer.close()


async def _refusals(port: int, topic: str) -> None:
    """Send messages that are too large or delayed too long, and others that are neither."""
    raw = await RawConnection.open(port)
    name = (await raw.producer(topic)).producer_name
    cases = [(b"x" * 5000, 0), (b"x" * 1000, 0), (b"x" * 900, 0), (b"late", 60_001), (b"soon", 60_000)]
    for number, (payload, delay_ms) in enumerate(cases):
        metadata = pb.MessageMetadata(producer_name=name, sequence_id=number, publish_time=1_000_000)
        if delay_ms:
            metadata.deliver_at_time = 1_000_000 + delay_ms
        raw.send_body(number, build_body(metadata.SerializeToString(), payload))
    answers = []
    for _ in cases:
        answer = (await raw.hear_any())[1]
        answers.append((answer.sequence_id, getattr(answer, "error", None)))
    refused = ServerError.NOT_ALLOWED
    assert sorted(answers) == [(0, refused), (1, refused), (2, None), (3, refused), (4, None)]
    await raw.close()


def test_unacknowledged_messages_are_limited_by_the_topic(broker: BrokerProcess, client: pulsar.Client) -> None:
    path = f"{TOPICS}/default/unacked"
    broker.http("PUT", path)
    policy(broker, f"{path}/maxUnackedMessagesOnConsumer", 4)
    policy(broker, f"{path}/maxUnackedMessagesOnSubscription", 6)
    wait_until(
        lambda: broker.http("GET", f"{path}/maxUnackedMessagesOnConsumer?applied=true").json == 4,
        "the limit to be in force",
    )
    assert broker.http("PUT", f"{path}/unload").status == 204
    consumers = [client.subscribe("unacked", "s", consumer_type=pulsar.ConsumerType.Shared) for _ in range(2)]
    producer = client.create_producer("unacked", batching_enabled=False)
    for number in range(20):
        producer.send(b"%d" % number)

    def unacked() -> list[int]:
        stats = broker.http("GET", f"{path}/stats").json["subscriptions"]["s"]
        return sorted(one["unackedMessages"] for one in stats["consumers"])

    wait_until(lambda: sum(unacked()) == 6 and max(unacked()) <= 4, "delivery to pause")
    assert broker.http("DELETE", f"{path}/maxUnackedMessagesOnConsumer").status == 204
    assert broker.http("DELETE", f"{path}/maxUnackedMessagesOnSubscription").status == 204
    wait_until(lambda: sum(unacked()) == 20, "delivery to go on by itself")
    for consumer in consumers:
        consumer.close()
