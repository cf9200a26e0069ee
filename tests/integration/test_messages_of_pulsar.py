# SPDX-License-Identifier: Apache-2.0
"""Messages that a region of Apache Pulsar sends to two real regions: acknowledged in one, known in the other."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import urlsplit

import pytest
from meridian_broker.server.broker import BrokerProcess
from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar import metadata
from support.brokers.broker_process import RegionsProcess, http
from support.brokers.region_clients import SHARED, client, rest, stored, subscribe, take, wait_for_backlog
from support.protocol.admin_paths import subscription_path
from support.protocol.raw_connection import RawConnection

EAST, WEST = REGIONS = ("east", "west")
APACHE = "apache"
NOWHERE = {"serviceUrl": "http://127.0.0.1:1", "brokerServiceUrl": "pulsar://127.0.0.1:1", "kind": "pulsar"}


@pytest.fixture
def shop(regions: RegionsProcess) -> str:
    """A namespace of both regions and of an Apache Pulsar region that cannot be reached from here."""
    clusters = [*REGIONS, APACHE]
    for region in REGIONS:
        assert regions.http(region, "PUT", f"/admin/v2/clusters/{APACHE}", NOWHERE).status in (204, 409)
        assert regions.http(region, "PUT", "/admin/v2/tenants/shop", {"allowedClusters": clusters}).status in (204, 409)
        policies = {"replication_clusters": clusters}
        assert regions.http(region, "PUT", "/admin/v2/namespaces/shop/all", policies).status in (204, 409)
    return "persistent://shop/all"


def status(regions: RegionsProcess, region: str, topic: str) -> Any:
    return regions.http(region, "GET", f"{subscription_path(topic, 's')}/status").json["pulsar"]


def port_of(regions: RegionsProcess, region: str) -> int:
    return int(urlsplit(regions.service_url(region)).netloc.rpartition(":")[2])


async def sends(port: int, region: str, topic: str, sources: list[int], *, stamps: bool = True) -> RawConnection:
    """Act as Apache Pulsar: connect to a region and send the numbers of these positions."""
    wire = await RawConnection.open(port, names_sources=stamps)
    await wire.producer(topic, producer_name=f"pulsar.repl.{APACHE}-->{region}", user_provided_producer_name=True)
    for source in sources:
        said = pb.MessageMetadata(producer_name="theirs", sequence_id=source, publish_time=1, replicated_from=APACHE)
        if stamps:
            said.properties.add(key=metadata.SOURCE_POSITION_PROPERTY, value=f"3:{source}")
        wire.send_body(source, metadata.build_body(said.SerializeToString(), str(source).encode()))
        await wire.receipt()
    return wire


async def test_what_is_acknowledged_in_one_region_is_not_delivered_in_the_other(
    regions: RegionsProcess, shop: str
) -> None:
    topic = f"{shop}/stamped"
    with client(regions, EAST) as east, client(regions, WEST) as west:
        consumer = subscribe(east, topic, kind=SHARED)
        wires = [await sends(port_of(regions, EAST), EAST, topic, [0, 1, 2, 4, 5, 8])]
        for message in take(consumer, 6):
            if int(message.data()) not in (2, 5):
                consumer.acknowledge(message)
        wires.append(await sends(port_of(regions, WEST), WEST, topic, [0, 1, 2, 3, 4, 5]))
        stored(regions, WEST, topic, 6)
        wait_for_backlog(regions, EAST, topic, 2)
        wait_for_backlog(regions, WEST, topic, 3)
        assert status(regions, WEST, topic) == [{"region": APACHE, "moves": "exact", "detail": ""}]
        consumer.close()
        assert rest(subscribe(west, topic, kind=SHARED), [2, 3, 5]) == [2, 3, 5]
        wait_for_backlog(regions, EAST, topic, 0)
        wires.append(await sends(port_of(regions, WEST), WEST, topic, [4, 5, 6]))
        wait_for_backlog(regions, WEST, topic, 1)
        for wire in wires:
            await wire.close()


async def test_status_says_how_each_kind_of_message_is_replicated(inside: BrokerProcess) -> None:
    """One region can say so alone; the other cannot be reached."""
    admin = f"http://127.0.0.1:{inside.settings.network.web_service_port}"
    clusters = ["inside", WEST, APACHE]

    async def call(method: str, path: str, body: object = ...) -> Any:
        answer = await asyncio.to_thread(http, method, f"{admin}{path}", body)
        assert answer.status in (200, 204), (path, answer.text)
        return answer.json if answer.status == 200 else None

    await call("PUT", f"/admin/v2/clusters/{APACHE}", NOWHERE)
    await call("PUT", f"/admin/v2/clusters/{WEST}", {**NOWHERE, "kind": "meridian"})
    await call("PUT", "/admin/v2/tenants/shop", {"allowedClusters": clusters})
    await call("PUT", "/admin/v2/namespaces/shop/all", {"replication_clusters": clusters})
    for name, stamps, moves in (("stamped", True, "exact"), ("unstamped", False, "snapshot")):
        topic = f"persistent://shop/all/{name}"
        await call("PUT", f"/admin/v2/persistent/shop/all/{name}/subscription/s?replicated=true", None)
        (shown,) = (await call("GET", f"{subscription_path(topic, 's')}/status"))["pulsar"]
        assert (shown["region"], shown["moves"]) == (APACHE, "unknown")
        port = inside.settings.network.broker_service_port
        wire = await sends(port, "inside", topic, [0, 1, 4], stamps=stamps)
        (shown,) = (await call("GET", f"{subscription_path(topic, 's')}/status"))["pulsar"]
        assert (shown["region"], shown["moves"]) == (APACHE, moves)
        assert ("sends no source positions" in shown["detail"]) == (not stamps)
        stats = await call("GET", f"/admin/v2/persistent/shop/all/{name}/stats")
        assert stats["subscriptions"]["s"]["msgBacklog"] == 3
        await wire.close()
