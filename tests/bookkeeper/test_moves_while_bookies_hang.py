# SPDX-License-Identifier: Apache-2.0
"""Bundles that move, or are lost, while all bookies hang: clients get in as soon as a broker can serve the topic."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from meridian_broker.wire.proto import pulsar_pb2 as pb
from support.brokers.bookies import Bookies
from support.brokers.bookkeeper_region import Region, received
from support.brokers.broker_process import BrokerProcess, wait_until
from support.brokers.region_clients import EARLIEST, SHARED, connected
from support.protocol.raw_connection import RawConnection, T

TOPIC = "persistent://public/default/orders"
LOOKUP = "/lookup/v2/topic/persistent/public/default/orders"
STATS = "/admin/v2/persistent/public/default/orders/stats"
NAMESPACE = "/admin/v2/namespaces/public/default"
NUMBERS = range(1, 5)


@pytest.fixture
def hanging(bookies: Bookies) -> Iterator[Bookies]:
    """Bookies that run again at the end."""
    yield bookies
    resume(bookies)
    bookies.until_registered()


def hang(bookies: Bookies) -> None:
    for number in NUMBERS:
        bookies.pause(number)


def resume(bookies: Bookies) -> None:
    for number in NUMBERS:
        bookies.resume(number)


def owners(region: Region) -> tuple[BrokerProcess, BrokerProcess]:
    """The owner of the topic, and the other broker."""
    first = region.owner("orders", region.brokers["a"])
    assert first is not None
    return first, next(one for one in region.brokers.values() if one is not first)


def is_being_created(owner: BrokerProcess, subscription: str) -> bool:
    return subscription in owner.http("GET", STATS).json["subscriptions"]


async def sent_away(wire: RawConnection) -> None:
    """Wait until the topic closes the connection's producer."""
    while (await wire.hear_any())[0] != T.CLOSE_PRODUCER:
        pass


def test_a_consumer_whose_subscription_is_being_created_moves_with_the_bundle(region: Region, hanging: Bookies) -> None:
    """The topic is closed before the subscription is durable. The client's own time-out is 60 seconds, and it fails
    after that."""
    first, other = owners(region)
    bundle = first.http("GET", f"{LOOKUP}/bundle").text
    to = f"{NAMESPACE}/{bundle}/unload?destinationBroker=127.0.0.1:{other.http_port}"

    async def moved() -> int:
        """Ask for the move, and let the bookies continue once clients were sent away."""
        wire = await RawConnection.open(first.port)
        await wire.producer(TOPIC, producer_name="p")
        moving = asyncio.create_task(asyncio.to_thread(first.http, "PUT", to))
        await sent_away(wire)
        resume(hanging)
        await wire.close()
        return (await moving).status

    with connected(first.service_url) as client, ThreadPoolExecutor() as beside:
        client.subscribe("orders", "earlier", SHARED).close()
        hang(hanging)
        subscribing = beside.submit(client.subscribe, "orders", "s", SHARED, initial_position=EARLIEST)
        wait_until(lambda: is_being_created(first, "s"), "the subscription to be under way")
        assert asyncio.run(moved()) == 204
        consumer = subscribing.result()
        client.create_producer("orders", batching_enabled=False).send(b"1")
        assert received(consumer, 1) == [b"1"]


def test_a_closing_that_hangs_ends_with_the_term_and_the_broker_may_own_the_bundle_again(
    region: Region, hanging: Bookies
) -> None:
    """What is left to do would be refused; whoever owns the bundle next recovers the topic."""
    first, other = owners(region)
    assert other.stop() == 0
    bundle = first.http("GET", f"{LOOKUP}/bundle").text
    owns = f": owns public/default/{bundle} in term"

    async def lost_while_closing() -> None:
        """Unload the bundle while a subscription is not stored yet; delete its owner's record once it is closing."""
        wire = await RawConnection.open(first.port)
        await wire.producer(TOPIC, producer_name="p")
        wire.send("p", 0, b"1")
        assert await wire.receipt() == (0, True)
        earlier = pb.CommandSubscribe(topic=TOPIC, subscription="s", consumer_id=1, request_id=8, subType="Shared")
        wire.say(T.SUBSCRIBE, earlier)
        await wire.hear(T.SUCCESS)
        hang(hanging)
        late = pb.CommandSubscribe(topic=TOPIC, subscription="late", consumer_id=2, request_id=9, subType="Shared")
        wire.say(T.SUBSCRIBE, late)
        await asyncio.to_thread(wait_until, lambda: is_being_created(first, "late"), "the subscription to be under way")
        unloading = asyncio.create_task(asyncio.to_thread(first.http, "PUT", f"{NAMESPACE}/{bundle}/unload"))
        await sent_away(wire)
        await asyncio.to_thread(hanging.delete_key, f"{region.name}/local/ownership/owners/public/default/{bundle}")
        await asyncio.to_thread(
            wait_until, lambda: f"{TOPIC} was not closed cleanly" in first.log(), "the closing to end", 3.0
        )
        await unloading
        await wire.close()

    terms = first.log().count(owns)
    try:
        asyncio.run(lost_while_closing())
        wait_until(lambda: first.log().count(owns) > terms, "the broker to own the bundle again", 5.0)
    finally:
        resume(hanging)
    with connected(first.service_url) as client:
        consumer = client.subscribe("orders", "new", SHARED, initial_position=EARLIEST)
        assert received(consumer, 1) == [b"1"]
