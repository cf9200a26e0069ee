# SPDX-License-Identifier: Apache-2.0
"""Partitions are added to a topic whose partitions several brokers of a region own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path

import pytest
from meridian_broker.engines.memory.ledgers import MemoryLedgerStore
from meridian_broker.engines.sqlite.metadata import SqliteMetadataStore
from meridian_broker.metadata.errors import Contended, NotFound
from meridian_broker.positions.position import EARLIEST
from meridian_broker.topics.errors import TopicFenced
from meridian_broker.topics.service import creation, partition_growth
from meridian_broker.topics.service.partition_growth import Growth
from meridian_broker.wire.pulsar.topic_name import TopicName, parse
from support.contracts.metadata_contract import wait_until
from support.worlds.brokers_of_a_region import REGION, ServingBroker, serving, stored

NAME = parse("persistent://public/default/shared")
FIRST = NAME.with_partition(0)


class Region:
    """Two brokers that call each other directly."""

    def __init__(self, brokers: list[ServingBroker]) -> None:
        self.brokers = brokers
        self.before: Callable[[TopicName, Growth], Awaitable[None]] | None = None
        """Called before a partition's owner prepares it."""

    async def owner(self, name: TopicName) -> ServingBroker:
        found = await self.brokers[0].owner.locate(name)
        return next(one for one in self.brokers if one.name == found.broker.broker)

    async def subscriptions(self, first: TopicName) -> Mapping[str, bool]:
        return await partition_growth.subscriptions((await self.owner(first)).service.opener, first)

    async def prepare(self, partition: TopicName, growth: Growth) -> None:
        if self.before is not None:
            await self.before(partition, growth)
        await partition_growth.prepare((await self.owner(partition)).service.opener, partition, growth)

    async def grow(self, partitions: int, asked: int = 0) -> None:
        await partition_growth.grow(self.brokers[asked].service.opener, NAME, partitions, owners=self)

    async def number(self) -> int:
        return (await self.brokers[0].catalog.partitioned.get(NAME)).partitions

    async def on_record(self) -> list[int]:
        return [one.partition for one in await self.brokers[0].catalog.topics.partitions(NAME)]

    async def beginnings(self) -> list[dict[str, bool]]:
        """The subscriptions of each partition of the topic."""
        found = []
        for number in range(await self.number()):
            name = NAME.with_partition(number)
            topic = await (await self.owner(name)).service.opener.topic(name, create=False)
            found.append({name: one.replicated for name, one in topic.subscriptions.items()})
        return found


@pytest.fixture
async def region(tmp_path: Path) -> AsyncIterator[Region]:
    """A region with a topic of two partitions and a subscription."""
    metadata = await SqliteMetadataStore.open(tmp_path / "metadata")
    loop = asyncio.get_running_loop()
    ledgers = MemoryLedgerStore(schedule=lambda work: loop.call_soon(work))
    async with serving("a", metadata, ledgers) as a, serving("b", metadata, ledgers) as b:
        await wait_until(lambda: len(a.owner.view.brokers) == len(b.owner.view.brokers) == 2)
        for number in range(8):  # each gets what the other does not own
            bundle = await a.bundle(NAME.with_partition(number))
            if bundle not in [*a.owner.owned(), *b.owner.owned()]:
                await (a if len(a.owner.owned()) <= len(b.owner.owned()) else b).owner.acquire(bundle)
        made = Region([a, b])
        assert {(await made.owner(NAME.with_partition(number))).name for number in range(2, 8)} == {"a", "b"}
        await creation.create_partitioned((await made.owner(FIRST)).service.opener, NAME, 2, {})
        for number in range(2):
            name = NAME.with_partition(number)
            topic = await (await made.owner(name)).service.opener.topic(name, create=False)
            topic.subscribing.create_subscription("s", EARLIEST, replicated=True)
        yield made
    await metadata.close()


@pytest.mark.parametrize("asked", [0, 1])
async def test_each_owner_creates_its_partitions_with_their_subscriptions(region: Region, asked: int) -> None:
    await region.grow(8, asked)
    assert await region.beginnings() == [{"s": True}] * 8


async def test_clients_learn_only_of_partitions_that_have_their_subscriptions(region: Region) -> None:
    async def look(partition: TopicName, _: Growth) -> None:
        assert await region.number() == 2
        assert partition.partition >= 2

    region.before = look
    await region.grow(4)
    assert await region.number() == 4


async def test_an_unreachable_owner_leaves_the_number_as_it_was(region: Region) -> None:
    async def away(partition: TopicName, growth: Growth) -> None:
        if partition.partition == 6 and growth.partitions == 8:
            raise TopicFenced("its broker is away")

    region.before = away
    with pytest.raises(TopicFenced, match="is away"):
        await region.grow(8)
    assert await region.on_record() == [0, 1]
    region.before = None
    await region.grow(5)
    assert await region.beginnings() == [{"s": True}] * 5


async def test_partitions_left_by_a_dead_broker_are_recreated(region: Region) -> None:
    """Their subscriptions may have been deleted since, and there may be more partitions than are wanted now."""
    _, version = await region.brokers[0].catalog.partitioned.begin_growth(NAME)
    for number in (2, 5):
        await region.prepare(NAME.with_partition(number), Growth(6, version, {"gone": False}))
    assert await region.on_record() == [0, 1, 2, 5]
    await region.grow(4, asked=1)
    assert await region.beginnings() == [{"s": True}] * 4
    assert await region.on_record() == [0, 1, 2, 3]


async def test_a_partition_that_holds_messages_is_not_rolled_back(region: Region) -> None:
    """A region that knew of the partition earlier may have sent messages."""
    _, version = await region.brokers[0].catalog.partitioned.begin_growth(NAME)
    name = NAME.with_partition(2)
    await region.prepare(name, Growth(3, version))
    topic = await (await region.owner(name)).service.opener.topic(name, create=False)
    (place,) = await stored(topic, b"kept")
    await region.grow(3)
    assert await region.beginnings() == [{"s": True}] * 3
    topic = await (await region.owner(name)).service.opener.topic(name, create=False)
    assert topic.subscriptions["s"].cursor.is_owed(REGION, place)


async def test_of_two_brokers_that_add_partitions_at_once_the_later_wins(region: Region) -> None:
    """The earlier one is held up after its first partition, and rolls back nothing that the later one created."""
    later: list[int] = []

    async def meanwhile(partition: TopicName, growth: Growth) -> None:
        if growth.partitions == 4 and partition.partition == 3 and not later:
            later.append(1)
            first = (await region.owner(NAME.with_partition(2))).service.topics
            await wait_until(lambda: "s" in getattr(first.get(str(NAME.with_partition(2))), "subscriptions", {}))
            await region.grow(6, asked=1)

    region.before = meanwhile
    with pytest.raises((TopicFenced, Contended)):
        await region.grow(4, asked=0)
    assert await region.beginnings() == [{"s": True}] * 6
    assert await region.on_record() == list(range(6))


async def test_a_deletion_that_begins_meanwhile_ends_the_growth(region: Region) -> None:
    admin = region.brokers[1]

    async def delete(partition: TopicName, _: Growth) -> None:
        if partition.partition == 3:
            await admin.catalog.partitioned.begin_deletion(NAME, admin.service.parts.clock.next(None))

    region.before = delete
    with pytest.raises(NotFound):
        await region.grow(8)
    record = await admin.catalog.partitioned.on_record(NAME)
    assert record is not None
    assert record.partitions == 2


async def test_a_late_request_changes_nothing(region: Region) -> None:
    """A request of a finished growth reaches an owner."""
    _, version = await region.brokers[0].catalog.partitioned.begin_growth(NAME)
    late = Growth(4, version, {"deleted since": False})
    await region.grow(4)
    for growth in (late, Growth(2, version)):
        with pytest.raises(TopicFenced, match="repeat the request"):
            await region.prepare(NAME.with_partition(3), growth)
    assert await region.beginnings() == [{"s": True}] * 4
