# SPDX-License-Identifier: Apache-2.0
"""Publish and dispatch rates, by policy and setting, seen through the real client and the wire.

These tests depend on the clock, so each sends a burst far above the rate and checks that it took long enough.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import Any

import pulsar
import pytest
from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar.errors import ServerError
from support.brokers.broker_process import BrokerProcess, wait_until
from support.brokers.region_clients import PATIENCE_MS
from support.protocol.raw_connection import RawConnection

SETTINGS = {"brokerPublisherThrottlingMaxByteRate": "4000000", "keepAliveIntervalSeconds": "1"}
"""Clients may publish 4 MB a second in total, and keep-alive is short."""

T = pb.BaseCommand
TOPICS = "/admin/v2/persistent/public/default"
NS = "/admin/v2/namespaces/public/default"
_numbers = itertools.count()


def new_topic(broker: BrokerProcess, **policies: Any) -> str:
    """A topic with these policies, once they are in force."""
    name = f"rates-{next(_numbers)}"
    assert broker.http("PUT", f"{TOPICS}/{name}").status == 204
    for policy, value in policies.items():
        assert broker.http("POST", f"{TOPICS}/{name}/{policy}", value).status == 204
    return name


def until_in_force(broker: BrokerProcess, topic: str, policy: str) -> None:
    """An open topic applies its policies once a second; on opening, it applies those known then."""
    applied = f"{TOPICS}/{topic}/{policy}?applied=true"
    wait_until(lambda: broker.http("GET", applied).status == 200, "the policy to be known")
    assert broker.http("PUT", f"{TOPICS}/{topic}/unload").status == 204


async def test_publishing_above_the_topics_rate_waits(broker: BrokerProcess) -> None:
    """10 a second: 10 pass at once, plus what came in the same read; the last of 60 come 3 s later or more.

    The connection is held meanwhile, longer than two keep-alive intervals, and so is its other producer; another
    connection is not.
    """
    topic = new_topic(broker, publishRate={"publishThrottlingRateInMsg": 10, "publishThrottlingRateInByte": -1})
    until_in_force(broker, topic, "publishRate")
    free = f"persistent://public/default/{new_topic(broker)}"
    held = await RawConnection.open(broker.port)
    await held.producer(f"persistent://public/default/{topic}", 1)
    await held.producer(free, 2)
    began = time.monotonic()
    held.send_at_once("a", [b"x"] * 40)
    for number in range(40):
        assert await held.receipt() == (number, True)
    held.send("b", 0, b"y", producer_id=2)
    waiting = asyncio.ensure_future(held.receipt())
    other = await RawConnection.open(broker.port)  # only now: otherwise it would miss pings during the wait
    await other.producer(free, 1)
    other.send("c", 0, b"z")
    assert await other.receipt() == (0, True)
    assert not waiting.done(), "another connection is not held"
    assert await waiting == (0, True)
    assert time.monotonic() - began >= 2.9, "the connection waits, with all its producers"
    for connection in (held, other):
        await connection.close()


def test_a_rate_of_bytes_over_all_topics(broker: BrokerProcess, client: pulsar.Client) -> None:
    """4 MB a second in total: 10 MB to two topics take at least a second and a half."""
    producers = [client.create_producer(new_topic(broker), batching_enabled=False) for _ in range(2)]
    body = bytes(500_000)
    began = time.monotonic()
    for number in range(20):
        producers[number % 2].send_async(body, lambda result, _: results.append(result))
    results: list[pulsar.Result] = []
    for producer in producers:
        producer.flush()
        producer.close()
    assert time.monotonic() - began >= 1.2
    assert results == [pulsar.Result.Ok] * 20


@pytest.mark.parametrize(
    ("policy", "kind"),
    [
        ("dispatchRate", pulsar.ConsumerType.Exclusive),
        ("subscriptionDispatchRate", pulsar.ConsumerType.Shared),
        ("dispatchRate", pulsar.ConsumerType.KeyShared),
    ],
)
def test_dispatch_keeps_its_rate(
    broker: BrokerProcess, client: pulsar.Client, policy: str, kind: pulsar.ConsumerType
) -> None:
    """20 a second: the last of 60 messages come two seconds after the first, and each comes once."""
    rate = {"dispatchThrottlingRateInMsg": 20, "dispatchThrottlingRateInByte": -1, "ratePeriodInSecond": 1}
    topic = new_topic(broker, **{policy: rate})
    until_in_force(broker, topic, policy)
    producer = client.create_producer(topic, batching_enabled=False)
    for number in range(60):
        producer.send_async(b"%d" % number, None)
    producer.flush()
    began = time.monotonic()
    consumer = client.subscribe(topic, "all", kind, initial_position=pulsar.InitialPosition.Earliest)
    got = [consumer.receive(PATIENCE_MS) for _ in range(60)]
    assert time.monotonic() - began >= 1.9, "20 at once, 20 more in each second after it"
    assert sorted(int(message.data()) for message in got) == list(range(60))
    consumer.close()
    producer.close()


def test_a_namespaces_rate_applies_until_it_is_removed(broker: BrokerProcess, client: pulsar.Client) -> None:
    """One a minute: the third message waits until the policy is removed."""
    rate = {"dispatchThrottlingRateInMsg": 1, "dispatchThrottlingRateInByte": -1, "ratePeriodInSecond": 60}
    assert broker.http("POST", f"{NS}/dispatchRate", rate).status == 204
    assert broker.http("GET", f"{NS}/dispatchRate").json == rate | {"relativeToPublishRate": False}
    topic = new_topic(broker)
    until_in_force(broker, topic, "dispatchRate")
    producer = client.create_producer(topic, batching_enabled=False)
    consumer = client.subscribe(topic, "all")
    for number in range(3):
        producer.send(b"%d" % number)
    assert [consumer.receive(PATIENCE_MS).data() for _ in range(2)] == [b"0", b"1"]
    with pytest.raises(pulsar.Timeout):
        consumer.receive(1500)
    assert broker.http("DELETE", f"{NS}/dispatchRate").status == 204
    assert consumer.receive(PATIENCE_MS).data() == b"2"


async def test_producers_that_do_not_encrypt_are_refused(broker: BrokerProcess) -> None:
    namespace = "/admin/v2/namespaces/public/sealed"
    assert broker.http("PUT", namespace).status == 204
    assert broker.http("POST", f"{namespace}/encryptionRequired", True).status == 204
    assert broker.http("GET", f"{namespace}/encryptionRequired").json is True
    assert broker.http("GET", namespace).json["encryption_required"] is True
    connection = await RawConnection.open(broker.port)
    topic = "persistent://public/sealed/t"
    connection.ask_producer(topic)
    refused = await connection.hear(T.ERROR)
    assert (refused.error, "encryptionRequired" in refused.message) == (ServerError.METADATA, True)
    await connection.producer(topic, encrypted=True)
    await connection.close()


async def test_raising_the_rate_ends_the_wait(broker: BrokerProcess) -> None:
    rate = {"publishThrottlingRateInMsg": 1, "publishThrottlingRateInByte": -1}
    topic = new_topic(broker, publishRate=rate)
    until_in_force(broker, topic, "publishRate")
    connection = await RawConnection.open(broker.port)
    await connection.producer(f"persistent://public/default/{topic}")
    for number in range(100):
        connection.send("p", number, b"x")
    for number in range(100):
        assert await connection.receipt() == (number, True)
    began = time.monotonic()
    connection.send("p", 100, b"x")  # a minute and a half from now
    assert broker.http("DELETE", f"{TOPICS}/{topic}/publishRate").status == 204
    assert await connection.receipt() == (100, True)
    assert time.monotonic() - began < 60
    await connection.close()
