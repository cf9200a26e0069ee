# SPDX-License-Identifier: Apache-2.0
"""Replication between real brokers: exactly once and in order, whichever side goes away (R3, R4, R41)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
import pytest
from meridian_broker.gateway.client_errors import RequestRefused
from meridian_broker.gateway.roles import Consumer, Delivery, Producer
from meridian_broker.replication.entries.replicator_status import ReplicatorStatus
from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar.topic_name import parse
from support.brokers.broker_regions import Region, regions, until

TOPIC = "persistent://public/default/flights"


async def publish(region: Region, first: int, last: int, topic: str = TOPIC) -> None:
    connection = await region.connect()
    producer = await Producer.open(connection, topic)
    for number in range(first, last):
        await producer.send(b"%d" % number)
    await producer.flush()
    await connection.close()


async def collect(region: Region, count: int, topic: str = TOPIC, subscription: str = "all") -> list[Delivery]:
    """Everything the topic holds, from the start; waits until ``count`` messages are there."""
    connection = await region.connect()
    consumer = await Consumer.subscribe(connection, topic, subscription)
    async with asyncio.timeout(60):
        found = [await consumer.receive() for _ in range(count)]
    await connection.close()
    return found


def numbers(deliveries: list[Delivery]) -> list[int]:
    return [int(delivery.payloads[0]) for delivery in deliveries]


def status(region: Region, remote: Region, topic: str = TOPIC) -> ReplicatorStatus | None:
    return region.process.runner.status(topic).get(remote.name)


async def caught_up(region: Region, remote: Region, topic: str = TOPIC) -> None:
    def is_caught_up() -> bool:
        one = status(region, remote, topic)
        return one is not None and one.connected and one.backlog == 0

    await until(is_caught_up)


def stored_entries(region: Region, topic: str = TOPIC) -> int:
    return region.process.service.topics[topic].log.entries


async def test_order_and_origin_hold_and_nothing_repeats_across_restarts_of_either_side(tmp_path: Path) -> None:
    async with regions(tmp_path, "us-east", "us-west") as (east, west):
        await publish(east, 0, 300)
        await caught_up(east, west)
        deliveries = await collect(west, 300)
        assert numbers(deliveries) == list(range(300))
        assert {delivery.metadata.replicated_from for delivery in deliveries} == {"us-east"}

        await west.stop()
        await publish(east, 300, 600)
        one = status(east, west)
        assert one is not None
        assert (one.connected, one.backlog) == (False, 300)
        await west.start()
        await caught_up(east, west)
        assert stored_entries(west) == 600

        await publish(east, 600, 700)
        await east.stop()  # perhaps before all of it was replicated
        await east.start()
        await caught_up(east, west)
        assert stored_entries(west) == 700
        assert numbers(await collect(west, 700, subscription="again")) == list(range(700))
        assert stored_entries(east) == 700, "a message returned to its origin"


async def test_a_shadow_has_the_origins_of_its_source_and_no_replicated_subscription(tmp_path: Path) -> None:
    async with regions(tmp_path, "us-east", "us-west") as (east, west), aiohttp.ClientSession() as http:
        await publish(west, 0, 5)
        await publish(east, 5, 10)
        await caught_up(east, west)
        topics = f"{west.admin_url}/admin/v2/persistent/public/default"
        view = f"{TOPIC}-view"
        async with http.post(f"{topics}/flights/shadowTopics", json=view) as response:
            assert response.status == 204, await response.text()
        of_source, of_shadow = await collect(west, 10), await collect(west, 10, view)
        assert of_shadow == of_source
        assert [one.metadata.replicated_from for one in of_shadow].count("us-east") == 5

        connection = await west.connect()
        with pytest.raises(RequestRefused, match="shadow"):
            await Consumer.subscribe(connection, view, "everywhere", replicated=True)
        await connection.close()
        async with http.put(f"{topics}/flights-view/subscription/everywhere?replicated=true") as response:
            assert response.status == 405, await response.text()
        status_of_all = f"{topics}/flights-view/subscription/all/replicatedSubscriptionStatus"
        async with http.post(status_of_all, json=True) as response:
            assert response.status in (405, 412), await response.text()
        async with http.get(status_of_all) as response:
            assert await response.json() == {view: False}
        assert view not in east.process.service.topics


async def test_both_directions_at_once(tmp_path: Path) -> None:
    async with regions(tmp_path, "us-east", "us-west") as (east, west):
        await asyncio.gather(publish(east, 0, 200), publish(west, 1000, 1200))
        await caught_up(east, west)
        await caught_up(west, east)
        for region in (east, west):
            found = numbers(await collect(region, 400))
            assert [number for number in found if number < 1000] == list(range(200))
            assert [number for number in found if number >= 1000] == list(range(1000, 1200))
            assert stored_entries(region) == 400


async def test_replicate_to_is_honoured(tmp_path: Path) -> None:
    async with regions(tmp_path, "us-east", "us-west", "eu-central") as (east, west, central):
        connection = await east.connect()
        producer = await Producer.open(connection, TOPIC)
        targets = [(), ("us-west",), ("eu-central",), ("__local__",), ("us-west", "eu-central"), ()]
        for number, target in enumerate(targets):
            await producer.send(b"%d" % number, replicate_to=target)
        await producer.flush()
        await connection.close()
        await caught_up(east, west)
        await caught_up(east, central)
        assert numbers(await collect(west, 4)) == [0, 1, 4, 5]
        assert numbers(await collect(central, 4)) == [0, 2, 4, 5]
        assert stored_entries(west) == stored_entries(central) == 4


async def test_a_replicator_keeps_its_rate(tmp_path: Path) -> None:
    """20 a second: the last of 60 messages come two seconds after the first. A removed rate delays nobody."""
    async with regions(tmp_path, "us-east", "us-west") as (east, west), aiohttp.ClientSession() as http:
        policy = f"{east.admin_url}/admin/v2/namespaces/public/default/replicatorDispatchRate"
        rate = {"dispatchThrottlingRateInMsg": 20, "dispatchThrottlingRateInByte": -1, "ratePeriodInSecond": 1}
        async with http.post(policy, json=rate) as response:
            assert response.status == 204, await response.text()
        topic = await east.process.service.opener.topic(parse(TOPIC), create=True)
        await until(lambda: topic.rules.replicator_dispatch_rate.messages > 0)
        began = asyncio.get_running_loop().time()
        await publish(east, 0, 60)
        await caught_up(east, west)
        assert asyncio.get_running_loop().time() - began >= 1.9
        await publish(east, 60, 2060)  # a hundred seconds
        async with http.delete(policy) as response:
            assert response.status == 204, await response.text()
        await caught_up(east, west)
        assert numbers(await collect(west, 2060)) == list(range(2060))


async def test_partitions_follow_and_grow(tmp_path: Path) -> None:
    async with regions(tmp_path, "us-east", "us-west") as (east, west), aiohttp.ClientSession() as http:
        path = "/admin/v2/persistent/public/default/flights/partitions"

        async def count() -> int:
            async with http.get(west.admin_url + path) as response:
                return int((await response.json())["partitions"]) if response.status == 200 else 0

        json_type = {"Content-Type": "application/json"}
        async with http.put(east.admin_url + path, data="3", headers=json_type) as response:
            assert response.status in (200, 204), await response.text()
        await publish(east, 0, 5, f"{TOPIC}-partition-1")
        await caught_up(east, west, f"{TOPIC}-partition-1")
        assert await count() == 3
        assert numbers(await collect(west, 5, f"{TOPIC}-partition-1")) == list(range(5))

        async with http.post(east.admin_url + path, data="5", headers=json_type) as response:
            assert response.status in (200, 204), await response.text()
        await publish(east, 5, 7, f"{TOPIC}-partition-4")
        await caught_up(east, west, f"{TOPIC}-partition-4")
        assert await count() == 5


async def test_schema_versions_are_those_of_the_receiver(tmp_path: Path) -> None:
    first = pb.Schema(name="n", type=pb.Schema.String, schema_data=b"")
    second = pb.Schema(name="n", type=pb.Schema.Json, schema_data=b'{"type":"record","name":"F","fields":[]}')
    async with regions(tmp_path, "us-east", "us-west") as (east, west):
        for region in (east, west):  # a schema needs an existing topic
            await region.process.service.opener.topic(parse(TOPIC), create=True)
        for_west = await west.connect()
        await Producer.open(for_west, TOPIC)
        await for_west.get_or_create_schema(TOPIC, first)
        for_east = await east.connect()
        producer = await Producer.open(for_east, TOPIC)
        ours = await for_east.get_or_create_schema(TOPIC, second)
        await producer.send(b"1", schema_version=ours)
        await producer.send(b"2")
        await producer.flush()
        await caught_up(east, west)
        theirs = await for_west.get_or_create_schema(TOPIC, second)
        assert theirs != ours
        deliveries = await collect(west, 2)
        assert [delivery.metadata.schema_version for delivery in deliveries] == [theirs, b""]
        await for_east.close()
        await for_west.close()
