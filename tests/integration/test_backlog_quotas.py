# SPDX-License-Identifier: Apache-2.0
"""Backlog quotas through the unmodified client: producers wait or fail, or the oldest messages are dropped."""

from __future__ import annotations

import itertools
from typing import Any

import pulsar
import pytest
from support.brokers.broker_process import BrokerProcess, wait_until
from support.brokers.region_clients import PATIENCE_MS
from support.protocol.admin_paths import topic_path

SETTINGS = {"backlogQuotaCheckIntervalInSeconds": "1"}

QUIET_MS = 300
LIMIT = 20_000
BODY = b"x" * 1000
_numbers = itertools.count()


@pytest.fixture
def space(broker: BrokerProcess) -> str:
    name = f"public/quota-{next(_numbers)}"
    assert broker.http("PUT", f"/admin/v2/namespaces/{name}", {}).status == 204
    return name


def set_quota(broker: BrokerProcess, space: str, quota: dict[str, Any], kind: str = "destination_storage") -> None:
    path = f"/admin/v2/namespaces/{space}/backlogQuota?backlogQuotaType={kind}"
    assert broker.http("POST", path, quota).status == 204


def subscription(broker: BrokerProcess, topic: str, name: str = "s") -> dict[str, Any]:
    answer = broker.http("GET", f"{topic_path(topic)}/stats")
    found: dict[str, Any] = answer.json["subscriptions"][name]
    return found


def publishers(broker: BrokerProcess, topic: str) -> int:
    return len(broker.http("GET", f"{topic_path(topic)}/stats").json["publishers"])


def consume(client: pulsar.Client, topic: str, count: int, name: str = "s") -> list[bytes]:
    """Receive and acknowledge ``count`` messages that have to come, and then the rest until nothing more comes."""
    consumer = client.subscribe(topic, name)
    found: list[bytes] = []
    while True:
        try:
            message = consumer.receive(PATIENCE_MS if len(found) < count else QUIET_MS)
        except pulsar.Timeout:
            break
        consumer.acknowledge(message)
        found.append(message.data())
    consumer.close()
    return found


def bodies(first: int, count: int) -> list[bytes]:
    return [b"%05d" % number + BODY for number in range(first, first + count)]


def test_producers_are_held_until_the_backlog_shrinks(broker: BrokerProcess, client: pulsar.Client, space: str) -> None:
    topic = f"persistent://{space}/hold"
    client.subscribe(topic, "s").close()
    producer = client.create_producer(topic, batching_enabled=False, send_timeout_millis=60_000)
    for body in bodies(0, 25):
        producer.send(body)
    set_quota(broker, space, {"limitSize": LIMIT, "policy": "producer_request_hold"})
    wait_until(lambda: publishers(broker, topic) == 0, "the producer to be disconnected")
    results: list[pulsar.Result] = []
    producer.send_async(bodies(25, 1)[0], lambda result, _: results.append(result))
    with pytest.raises(pulsar.ProducerBlockedQuotaExceededError):
        client.create_producer(topic)
    assert subscription(broker, topic)["msgBacklog"] == 25, "nothing was stored, and nothing dropped"
    assert results == []
    found = consume(client, topic, 25)
    wait_until(lambda: results, "the held message to be stored")
    assert results == [pulsar.Result.Ok]
    assert found + ([] if len(found) == 26 else consume(client, topic, 1)) == bodies(0, 26)
    client.create_producer(topic).close()


def test_producers_fail_when_the_policy_says_so(broker: BrokerProcess, client: pulsar.Client, space: str) -> None:
    topic = f"persistent://{space}/fail"
    client.subscribe(topic, "s").close()
    producer = client.create_producer(topic, batching_enabled=False)
    for body in bodies(0, 25):
        producer.send(body)
    set_quota(broker, space, {"limitSize": LIMIT, "policy": "producer_exception"})
    wait_until(lambda: publishers(broker, topic) == 0, "the producer to be disconnected")
    with pytest.raises(pulsar.PulsarException) as failed:
        producer.send(bodies(25, 1)[0])
    assert isinstance(failed.value, pulsar.ProducerBlockedQuotaExceededException)
    with pytest.raises(pulsar.ProducerBlockedQuotaExceededException):
        client.create_producer(topic)
    assert consume(client, topic, 25) == bodies(0, 25)
    client.create_producer(topic).close()


def test_the_slowest_subscription_loses_its_oldest_messages(
    broker: BrokerProcess, client: pulsar.Client, space: str
) -> None:
    topic = f"persistent://{space}/evict"
    for name in ("slow", "quick"):
        client.subscribe(topic, name).close()
    producer = client.create_producer(topic, batching_enabled=False)
    for body in bodies(0, 40):
        producer.send(body)
    quick = client.subscribe(topic, "quick")
    for _ in range(35):
        quick.acknowledge(quick.receive(PATIENCE_MS))
    quick.close()
    set_quota(broker, space, {"limitSize": LIMIT, "policy": "consumer_backlog_eviction"})
    wait_until(lambda: subscription(broker, topic, "slow")["msgBacklog"] < 40, "the oldest messages to be dropped")
    assert publishers(broker, topic) == 1, "nobody is disconnected"
    kept = consume(client, topic, subscription(broker, topic, "slow")["msgBacklog"], "slow")
    assert kept == bodies(40 - len(kept), len(kept))
    assert 0.7 * LIMIT < sum(map(len, kept)) < 0.95 * LIMIT
    assert consume(client, topic, 5, "quick") == bodies(35, 5)
    producer.send(bodies(40, 1)[0])
    assert consume(client, topic, 1, "slow") == bodies(40, 1)


def test_old_messages_count_too(broker: BrokerProcess, client: pulsar.Client, space: str) -> None:
    held, evicted = f"persistent://{space}/held-by-age", f"persistent://{space}/evicted-by-age"
    producers = {}
    for topic in (held, evicted):
        client.subscribe(topic, "s").close()
        producers[topic] = client.create_producer(topic, batching_enabled=False, send_timeout_millis=60_000)
        producers[topic].send(b"old")
    own = f"/admin/v2/{evicted.replace('://', '/')}/backlogQuota?backlogQuotaType=message_age"
    assert broker.http("POST", own, {"limitTime": 1, "policy": "consumer_backlog_eviction"}).status == 204
    set_quota(broker, space, {"limitTime": 1, "policy": "producer_request_hold"}, "message_age")
    wait_until(lambda: subscription(broker, evicted)["msgBacklog"] == 0, "the old message to be dropped")
    assert subscription(broker, evicted)["totalMsgExpired"] == 1
    wait_until(lambda: publishers(broker, held) == 0, "the producer to be disconnected")
    with pytest.raises(pulsar.ProducerBlockedQuotaExceededError):
        client.create_producer(held)
    assert consume(client, held, 1) == [b"old"]
    producers[held].send(b"new")
    assert consume(client, held, 1) == [b"new"]
