# SPDX-License-Identifier: Apache-2.0
"""What consumers say alike has the same effect as if each had said it alone."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from meridian_broker.positions.position import Position
from meridian_broker.topics.cursors import seeking
from meridian_broker.topics.cursors.cursor import Cursor
from meridian_broker.topics.dispatch.consumer import Consumer
from meridian_broker.topics.dispatch.types import EXCLUSIVE, SHARED
from meridian_broker.topics.journal import common_acks
from meridian_broker.topics.subscriptions import alike
from support.worlds.topic_of_one_region import BEGAN_MS, Region, region

COUNT = 12


class Port:
    """A client's connection that takes everything."""

    def __init__(self) -> None:
        self.got: list[Position] = []

    def deliver(self, _: Consumer, position: Position, *__: object) -> None:
        self.got.append(position)

    def writable(self) -> bool:
        return True

    def disconnect_consumer(self, _: Consumer) -> None:
        pass


class World:
    """A topic, and a consumer of each of its subscriptions: the first is replicated, the last two are Shared."""

    async def start(self) -> None:
        self.one: Region = await region(**{f"s{number}": not number for number in range(COUNT)})
        self.one.topic.begin()
        self.ports = [Port() for _ in range(COUNT)]
        self.consumers = [self.join(number) for number in range(COUNT)]
        await self.one.settle()

    def join(self, number: int) -> Consumer:
        found = self.one.topic.subscriptions[f"s{number}"]
        for there in list(found.consumers):
            found.remove_consumer(there)
        port: Any = self.ports[number]
        consumer = Consumer(found, port, number, "c", 0, BEGAN_MS, None, None, found.cursor.progress.epoch)
        found.add_consumer(consumer, SHARED if number >= COUNT - 2 else EXCLUSIVE)
        consumer.flow(3)
        return consumer

    async def rewind(self, number: int, entry: int) -> None:
        found = self.one.topic.subscriptions[f"s{number}"]
        await seeking.seek(found.cursor, self.one.stored[entry])
        self.consumers[number] = self.join(number)

    def sent(self) -> list[Any]:
        found, stored = self.one.topic.subscriptions.values(), self.one.stored
        places = [stored.index(s.cursor.mark_delete) if s.cursor.mark_delete in stored else -1 for s in found]
        return [places, [s.unacked_messages for s in found], [one.permits for one in self.consumers]]


@pytest.mark.parametrize("together", [3, common_acks.TOGETHER])
@pytest.mark.parametrize("seed", range(8))
async def test_it_has_the_effect_of_each_alone(seed: int, together: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random = Random(seed)
    monkeypatch.setattr(common_acks, "TOGETHER", together)
    joined, apart = World(), World()
    for world in (joined, apart):
        await world.start()
    for _ in range(30):
        for _ in range(random.randrange(1, 4)):
            numbers, entry = random.choices(range(COUNT), k=random.randrange(1, 2 * COUNT)), random.randrange(12)
            alike.acknowledge([joined.consumers[number] for number in numbers], joined.one.stored[entry])
            alike.flow([joined.consumers[number] for number in numbers], entry % 3)
            for number in numbers:
                consumer = apart.consumers[number]
                consumer.subscription.acknowledge(consumer, [apart.one.stored[entry]])
            for number in numbers:
                apart.consumers[number].flow(entry % 3)
        if not random.randrange(6):
            number, entry = random.randrange(COUNT), random.randrange(12)
            for world in (joined, apart):
                await world.rewind(number, entry)
        for world in (joined, apart):
            for _ in range(5):
                await world.one.settle()
    assert acked(joined) == acked(apart)
    assert joined.sent() == apart.sent()
    for world in (joined, apart):
        before = acked(world)
        await world.one.kill()
        await world.one.start()
        assert acked(world) == before


def acked(world: World) -> dict[str, list[bool]]:
    """By subscription, whether each entry is owed no more. Stamps of rewinds differ between two topics."""
    return {
        name: [found.cursor.progress.is_acked("us", position) for position in world.one.stored]
        for name, found in world.one.topic.subscriptions.items()
    }


async def test_if_one_fails_the_acknowledgements_before_it_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    await world.start()
    claim_as = Cursor.claim_as

    def failing(cursor: Cursor, *what: Any) -> bool:
        if cursor.name == "s5":
            raise OSError("a fault")
        return claim_as(cursor, *what)

    monkeypatch.setattr(Cursor, "claim_as", failing)
    with pytest.raises(OSError, match="a fault"):
        alike.acknowledge(world.consumers, world.one.stored[0])
    await world.one.settle()
    await world.one.kill()
    await world.one.start()
    assert [name for name, done in acked(world).items() if done[0]] == ["s0", "s1", "s2", "s3", "s4"]
