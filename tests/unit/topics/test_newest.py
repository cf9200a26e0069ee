# SPDX-License-Identifier: Apache-2.0
"""Subscriptions that have everything before it get the newest entry over a shorter path, with the same result."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest
from meridian_broker.ledgers.entry import BATCH
from meridian_broker.positions.dropped import Cause
from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.topics import topic as topics
from meridian_broker.topics import turns
from meridian_broker.topics.cursors import drops
from meridian_broker.topics.cursors.cursor import Cursor
from meridian_broker.topics.dispatch.consumer import Consumer
from meridian_broker.topics.dispatch.single import SingleDispatcher
from meridian_broker.topics.dispatch.types import EXCLUSIVE, FAILOVER, SHARED, SubscriptionType
from meridian_broker.topics.subscriptions import newest
from meridian_broker.topics.subscriptions.administration import move_subscription
from meridian_broker.topics.subscriptions.newest import FEW
from support.worlds.topic_of_one_region import BEGAN_MS, Region

Sent = tuple[Position, int, int | None]


class Port:
    """A client's connection."""

    def __init__(self) -> None:
        self.is_full = False
        self.got: list[Sent] = []
        self.left: Consumer | None = None

    def deliver(self, _: Consumer, position: Position, entry: bytes, redeliveries: int, remaining: int | None) -> None:
        del entry
        self.got.append((position, redeliveries, remaining))

    def writable(self) -> bool:
        return not self.is_full

    def disconnect_consumer(self, consumer: Consumer) -> None:
        self.left = consumer

    def active_consumer_changed(self, *_: object) -> None:
        pass

    def reached_end(self, consumer: Consumer) -> None:
        self.got.append((EARLIEST, consumer.permits, None))


class World:
    """A topic, and a consumer of each of its subscriptions."""

    def __init__(self, count: int) -> None:
        self.one = Region()
        self.names = [f"s{number}" for number in range(count)]
        self.ports: dict[str, Port] = {}
        self.consumers: dict[str, Consumer] = {}

    async def start(self, kinds: list[SubscriptionType]) -> None:
        await self.one.start()
        for name in self.names:
            self.one.topic.subscribing.create_subscription(name, EARLIEST, replicated=False)
        self.one.topic.begin()
        for name, kind in zip(self.names, kinds, strict=True):
            self.ports[name] = Port()
            self.join(name, kind)
            self.consumers[name].flow(20 if len(self.ports) == 1 else 1000)
        await self.one.settle()

    def join(self, name: str, kind: SubscriptionType) -> None:
        found = self.one.topic.subscriptions[name]
        consumer = Consumer(found, self.ports[name], 0, "c", 0, BEGAN_MS, None, None, found.cursor.progress.epoch)
        found.add_consumer(consumer, kind)
        self.consumers[name] = consumer

    def publish(self, messages: int) -> None:
        one = self.one
        entry = (BATCH if messages > 1 else 0, messages, 0, 0, one.scheduler.ms, b"", b"x")
        one.topic.log.append_own([entry], self._stored, [0])

    def _stored(self, _: object, first: Any) -> None:
        self.one.stored.append(first)

    async def do(self, act: str, name: str, number: int, kind: SubscriptionType) -> None:
        one, consumer, port = self.one, self.consumers[name], self.ports[name]
        subscription = one.topic.subscriptions[name]
        place = one.stored[-1 - number % len(one.stored)] if one.stored else EARLIEST
        if act == "publish":
            self.publish(1)
        elif act == "batch":
            self.publish(3)
        elif act == "acknowledge" and one.stored:
            subscription.acknowledge(consumer, [place])
        elif act == "some of a batch" and one.stored and one.topic.log.messages(place) > 1:
            subscription.acknowledge(consumer, [place], {place: 0b101})
        elif act == "flow":
            consumer.flow(number)
        elif act == "full":
            port.is_full = not port.is_full
            if not port.is_full:
                consumer.resume()
        elif act == "acknowledge unsent":
            port.is_full = True
            self.publish(1)
            await one.settle()
            if number % 2:
                consumer.resume()
            subscription.acknowledge(consumer, [one.stored[-1]])
            port.is_full = False
            if number % 3:
                await one.settle()
            consumer.resume()
        elif act == "redeliver":
            subscription.send_again(consumer, None, 0)
        elif act == "seek" and one.stored:
            await move_subscription(subscription, place)
        elif act == "drop":
            await drops.drop_upto(one.topic, [subscription.cursor], Cause.TRUNCATED, place)
        elif act == "leave":
            subscription.leave(consumer)
            port.left = consumer
        if port.left is not None:
            port.left = None
            self.join(name, kind)
            self.consumers[name].flow(300)

    async def rest(self) -> None:
        """Wait until nothing more is sent: old entries are read from the store."""
        before = -1
        while before != (before := sum(len(port.got) for port in self.ports.values())):
            for _ in range(5):
                await self.one.settle()

    def state(self) -> dict[str, Any]:
        return {
            name: (
                self.ports[name].got,
                found.cursor.mark_delete,
                found.cursor.progress,
                found.unacked_messages,
                (found.messages_out, found.bytes_out),
                [(consumer.permits, consumer.messages_out, consumer.bytes_out) for consumer in found.consumers],
                None if found.dispatcher is None else found.dispatcher.read,
            )
            for name, found in self.one.topic.subscriptions.items()
        }


ACTS = (
    ["publish"] * 8
    + ["acknowledge"] * 6
    + ["batch", "some of a batch", "flow", "flow", "full", "redeliver", "acknowledge unsent"]
)


@pytest.mark.parametrize(("turn_ms", "together"), [(turns.TURN_MS, 1), (turns.TURN_MS, 4), (0, 1)])
@pytest.mark.parametrize("seed", range(12))
async def test_each_is_sent_what_the_usual_path_would_send(
    seed: int, turn_ms: int, together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if acknowledgements are pending in between: a turn of no time ends after each subscription."""
    random = Random(seed)
    monkeypatch.setattr(turns, "TURN_MS", turn_ms)
    monkeypatch.setattr(turns, "LOOK_EVERY", 1)
    monkeypatch.setattr(newest, "TOGETHER", together)
    kinds = [random.choice([EXCLUSIVE, EXCLUSIVE, FAILOVER, SHARED]) for _ in range(6)]
    worlds = World(6), World(6)

    for world, few in zip(worlds, (0, 1 << 30), strict=True):
        monkeypatch.setattr(topics, "FEW", few)
        await world.start(kinds)
        world.publish(1)
        await world.one.settle()
        assert (world.one.topic.subscription_registry.newest is None) == bool(few)
    acts = ACTS + (["seek", "drop", "leave"] if seed % 2 else [])
    for _ in range(150):
        several = [
            (random.choice(acts), random.randrange(6), random.randrange(5)) for _ in range(random.choice([1, 1, 1, 4]))
        ]
        for world in worlds:
            for act, at, number in several:
                await world.do(act, world.names[at], number, kinds[at])
            await world.rest()
        assert worlds[0].state() == worlds[1].state()

    for world in worlds:
        await world.one.kill()


def calls_of(monkeypatch: pytest.MonkeyPatch, kind: type, method: str) -> list[Any]:
    """Those on which the method is called from now on."""
    called: list[Any] = []
    real = getattr(kind, method)

    def noted(one: Any) -> None:
        called.append(one)
        real(one)

    monkeypatch.setattr(kind, method, noted)
    return called


async def test_only_the_first_of_many_takes_the_usual_path(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(FEW + 1)
    await world.start([EXCLUSIVE] * (FEW + 1))
    pumped = calls_of(monkeypatch, SingleDispatcher, "pump")
    for number in range(1, 4):
        world.publish(1)
        await world.one.settle()
        assert len(pumped) == number
    assert all(port.got == [(place, 0, None) for place in world.one.stored] for port in world.ports.values())


async def test_a_pending_acknowledgement_that_many_share_does_not_hold_back_the_newest_entry(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    count = FEW + 1
    world = World(count)
    await world.start([EXCLUSIVE] * count)
    for _ in range(2):
        world.publish(1)
        await world.one.settle()
    for name in world.names[:2]:  # from the second on, they share one
        await world.do("acknowledge", name, 0, EXCLUSIVE)
        await world.one.settle()
    monkeypatch.setattr(turns, "TURN_MS", 0)
    monkeypatch.setattr(turns, "LOOK_EVERY", 1)
    monkeypatch.setattr(newest, "TOGETHER", 1)
    world.publish(1)
    first = world.ports[world.names[0]]
    for _ in range(40):
        if len(first.got) == 3:
            break
        await asyncio.sleep(0)
    for name in world.names[2:]:
        assert len(world.ports[name].got) == 2, "its turn has not come"
        await world.do("acknowledge", name, 1, EXCLUSIVE)
    alone = calls_of(monkeypatch, Cursor, "flush")
    await world.rest()
    assert not alone
    assert all([place for place, _, _ in port.got] == world.one.stored for port in world.ports.values())
    for name in world.names[2:]:
        origin = world.one.topic.log.origin(world.one.stored[1])
        assert origin is not None
        assert world.one.topic.subscriptions[name].cursor.progress.is_acked(*origin)
