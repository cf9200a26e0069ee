# SPDX-License-Identifier: Apache-2.0
"""Shared and Key_Shared dispatch on a real topic over ledgers in memory, driven by random consumers.

The world checks each delivery at the moment it happens: permits, deliver times, redelivery counts, one consumer per
key, nothing overtaking within a key. At the end everything must have been acknowledged, and nothing be kept.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from meridian_broker.engines.memory.ledgers import MemoryLedgerStore
from meridian_broker.ledgers.chapters import CacheBudget, LogLimits, Span
from meridian_broker.ledgers.entry import CHUNK, pack_extras, pack_own, unpack
from meridian_broker.ledgers.log import TopicLog
from meridian_broker.metadata.rules import Rules
from meridian_broker.positions import HybridClock
from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.server.loop import LoopScheduler
from meridian_broker.topics.cursors import rewinding
from meridian_broker.topics.dispatch import in_flight, key_shared
from meridian_broker.topics.dispatch.consumer import Consumer
from meridian_broker.topics.dispatch.delayed import TICK_MS, Delays
from meridian_broker.topics.dispatch.in_flight import InFlightDispatcher
from meridian_broker.topics.dispatch.key_ranges import KeySharedPolicy
from meridian_broker.topics.dispatch.key_shared import KeySharedDispatcher
from meridian_broker.topics.dispatch.shared import SharedDispatcher
from meridian_broker.topics.dispatch.types import KEY_SHARED, SHARED, SubscriptionType
from meridian_broker.topics.journal.progress_log import ProgressLog
from meridian_broker.topics.lifecycle import replay
from meridian_broker.topics.limits import TopicLimits
from meridian_broker.topics.subscriptions.subscription import Subscription
from meridian_broker.topics.topic import Topic
from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar.metadata import build_body
from support.worlds.topic_record import TopicRecord

START_MS = 1_700_000_000_000
LEDGER = 7


class Clocked(LoopScheduler):
    """The broker's scheduler with a clock that stands until somebody moves it."""

    def __init__(self) -> None:
        super().__init__()
        self.ms = START_MS
        self._timers: list[tuple[int, int, ManualTimer]] = []

    def now_ms(self) -> int:
        return self.ms

    def later(self, seconds: float, callback: Callable[[], None]) -> Any:
        timer = ManualTimer(callback)
        heapq.heappush(self._timers, (self.ms + round(seconds * 1000), id(timer), timer))
        return timer

    def pass_time(self, ms: int) -> None:
        self.ms += ms
        while self._timers and self._timers[0][0] <= self.ms:
            heapq.heappop(self._timers)[2].run()

    @property
    def quiet(self) -> bool:
        return not self._tasks


class ManualTimer:
    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback: Callable[[], None] | None = callback

    def run(self) -> None:
        if self._callback is not None:
            self._callback()

    def cancel(self) -> None:
        self._callback = None


class SlowLog(TopicLog):
    """Single entries come from a disk that takes its time, and meanwhile things happen."""

    async def read_one(self, position: Position) -> bytes:
        for _ in range(position.entry % 4):
            await asyncio.sleep(0)
        return await super().read_one(position)


class Message:
    """One entry of the topic's log."""

    def __init__(self, key: int, delay_ms: int = 0, chunk: tuple[str, int, int] | None = None, messages: int = 1):
        self.key = key
        self.delay_ms = delay_ms
        self.chunk = chunk
        self.messages = messages

    def stored(self, number: int) -> bytes:
        extras = pack_extras(None, START_MS + self.delay_ms if self.delay_ms else None)
        metadata = pb.MessageMetadata(producer_name="p", sequence_id=number, publish_time=START_MS)
        flags = 0
        if self.chunk is not None:
            flags = CHUNK
            metadata.uuid, metadata.chunk_id, metadata.num_chunks_from_msg = self.chunk
            metadata.total_chunk_msg_size = 100
        prev = Position(LEDGER, number - 1) if number else EARLIEST
        head = pack_own(flags, self.messages, self.key, 0, START_MS, START_MS, prev.ledger, prev.entry, extras)
        return head + build_body(metadata.SerializeToString(), b"x")


class World:
    """A topic, its subscription, and consumers (they are the port of each other, too)."""

    def __init__(self, kind: SubscriptionType, messages: list[Message], policy: KeySharedPolicy | None = None) -> None:
        self.kind = kind
        self.messages = messages
        self.policy = policy
        self.consumers: list[Consumer] = []
        self.in_flight: dict[Position, Consumer] = {}
        self.acked: set[Position] = set()
        self.given_back: Counter[Position] = Counter()
        self.deliveries: list[tuple[Consumer, Position]] = []
        self.full: set[Consumer] = set()
        self._joined = 0

    async def open(self) -> None:
        self.scheduler = Clocked()
        loop = asyncio.get_running_loop()
        store = MemoryLedgerStore(schedule=lambda work: loop.call_soon(work))
        writer = await store.create(LEDGER, 1)
        for number, message in enumerate(self.messages):
            writer.append(message.stored(number), lambda _: None)
        info = await writer.seal()
        record = TopicRecord()
        log = SlowLog("here", store, record, 1, LogLimits(), self.scheduler, CacheBudget(1 << 20))
        last = Position(LEDGER, len(self.messages) - 1) if self.messages else EARLIEST
        await log.open([Span(LEDGER, EARLIEST, {}, info.entries, info.size)] if self.messages else [], last, {})
        clock = HybridClock(self.scheduler.now_ms, "here")

        def progress_log(topic: Topic) -> ProgressLog:
            return ProgressLog(store, record, 1, self.scheduler, lambda: replay.snapshot(topic))

        self.topic = Topic("t", -1, "here", "", log, progress_log, self.scheduler, clock, TopicLimits(), None)
        self.topic.follow(Rules(max_unacked_per_consumer=12, max_unacked_per_subscription=20))
        await self.topic.progress_log.open([])
        self.subscription: Subscription = self.topic.create_subscription("s", EARLIEST)
        await self.settle()

    async def settle(self) -> None:
        """Let everything that can happen now happen."""
        quiet = turns = 0
        while quiet < 4:
            await asyncio.sleep(0)
            quiet = quiet + 1 if self.scheduler.quiet and not self.subscription._pumping else 0
            turns += 1
            assert turns < 3000, "it spins"
        assert self.topic.failure is None

    async def close(self) -> None:
        await self.scheduler.close()

    # -- the port of all consumers -------------------------------------------------------------------------------

    def deliver(self, consumer: Consumer, position: Position, entry: bytes, redeliveries: int, _: int | None) -> None:
        message = self.messages[position.entry]
        assert consumer in self.consumers
        assert position not in self.in_flight
        assert position not in self.acked
        assert redeliveries == self.given_back[position]
        assert self.scheduler.ms >= START_MS + message.delay_ms, "delivered too early"
        if message.chunk is None:
            assert consumer.permits + message.messages > 0
        if self.kind == KEY_SHARED:
            self._check_key(consumer, position, message.key)
        self.in_flight[position] = consumer
        self.deliveries.append((consumer, position))

    def _check_key(self, consumer: Consumer, position: Position, key: int) -> None:
        holders = {one for other, one in self.in_flight.items() if self.messages[other.entry].key == key}
        assert holders <= {consumer}, "the key is with another consumer"
        if self.messages[position.entry].delay_ms:
            return
        for number in range(position.entry):
            earlier = Position(LEDGER, number)
            if self.messages[number].key == key and not self.messages[number].delay_ms:
                assert earlier in self.in_flight or earlier in self.acked, f"{position} overtakes {earlier}"

    def writable(self) -> bool:
        return True

    def disconnect_consumer(self, consumer: Consumer) -> None:
        raise AssertionError("nobody asked for that")

    def active_consumer_changed(self, consumer: Consumer, active: bool) -> None:
        raise AssertionError("consumers share")

    def reached_end(self, consumer: Consumer) -> None:
        raise AssertionError("the topic goes on")

    # -- what consumers do ---------------------------------------------------------------------------------------

    def join(self, _: int) -> None:
        if len(self.consumers) < 4:
            self._joined += 1
            name = f"c{self._joined}"
            consumer = Consumer(self.subscription, self, self._joined, name, 0, START_MS, None, self.policy)
            self.consumers.append(consumer)
            self.subscription.add_consumer(consumer, self.kind)

    def leave(self, choice: int) -> None:
        if self.consumers:
            consumer = self.consumers.pop(choice % len(self.consumers))
            self.in_flight = {position: one for position, one in self.in_flight.items() if one is not consumer}
            if not self.consumers:
                self.given_back.clear()  # counts are kept as long as somebody consumes
            self.subscription.remove_consumer(consumer)

    def flow(self, choice: int) -> None:
        if self.consumers:
            self.consumers[choice % len(self.consumers)].flow(1 + choice)

    def acknowledge(self, choice: int) -> None:
        if self.in_flight:
            position = sorted(self.in_flight)[choice % len(self.in_flight)]
            consumer = self.in_flight.pop(position)
            self.acked.add(position)
            self.subscription.acknowledge(consumer, [position])

    def give_back(self, choice: int) -> None:
        if self.in_flight:
            position = sorted(self.in_flight)[choice % len(self.in_flight)]
            consumer = self.in_flight.pop(position)
            self.given_back[position] += 1
            self.subscription.send_again(consumer, [position], 0)

    def give_all_back(self, choice: int) -> None:
        if self.consumers:
            consumer = self.consumers[choice % len(self.consumers)]
            mine = [position for position, one in self.in_flight.items() if one is consumer]
            for position in mine:
                del self.in_flight[position]
                self.given_back[position] += 1
            self.subscription.send_again(consumer, None, 0)

    def acknowledge_elsewhere(self, choice: int) -> None:
        """Another region acknowledges an entry that was given back here and waits to be sent again."""
        waiting = sorted(self.given_back.keys() - self.in_flight.keys() - self.acked)
        if waiting:
            position = waiting[choice % len(waiting)]
            self.acked.add(position)
            delta, place = self.subscription.cursor.progress.empty_delta(), self.topic.log.place(position)
            assert place is not None
            delta.ack(self.subscription.cursor.progress.epoch, place.region, place.prev, place.origin)
            rewinding.merge(self.subscription.cursor, delta, lambda _: None)

    def pass_time(self, choice: int) -> None:
        self.scheduler.pass_time(100 * choice)

    def check_counts(self) -> None:
        """Redeliveries are counted only of entries on their way."""
        dispatcher = self.subscription.dispatcher
        if isinstance(dispatcher, InFlightDispatcher):
            if isinstance(dispatcher, KeySharedDispatcher):
                waiting = {position for lane in dispatcher._lanes._lanes.values() for position in lane.waiting}
            else:
                assert isinstance(dispatcher, SharedDispatcher)
                waiting = set(dispatcher._replay)
            assert dispatcher._redeliveries.keys() <= self.in_flight.keys() | waiting

    async def finish(self) -> None:
        """A consumer with room and patience gets the rest."""
        if not self.consumers:
            self.join(0)
        for _ in range(len(self.messages) + 40):
            for consumer in self.consumers:
                consumer.flow(10)
            self.scheduler.pass_time(100)
            await self.settle()
            while self.in_flight:
                self.acknowledge(0)
            await self.settle()
        everything = {Position(LEDGER, number) for number in range(len(self.messages))}
        assert self.acked == everything
        assert self.subscription.unacked_messages == 0
        if self.messages:
            assert self.subscription.cursor.mark_delete == Position(LEDGER, len(self.messages) - 1)
        dispatcher = self.subscription.dispatcher
        assert isinstance(dispatcher, InFlightDispatcher)
        assert not dispatcher._redeliveries
        assert not dispatcher.delays
        if isinstance(dispatcher, KeySharedDispatcher):
            assert not dispatcher._slots
            assert not dispatcher._lanes._lanes


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


Step = tuple[Callable[[World, int], None], int]
steps = st.lists(
    st.tuples(
        st.sampled_from(
            [
                *[World.join, World.leave, World.flow, World.flow, World.flow, World.acknowledge, World.acknowledge],
                *[World.give_back, World.give_all_back, World.acknowledge_elsewhere, World.pass_time],
            ]
        ),
        st.integers(0, 9),
    ),
    max_size=40,
)
keys = st.integers(1, 5).map(lambda key: key * 13_107)
messages = st.lists(
    st.builds(Message, keys, st.sampled_from([0, 0, 0, 150, 400, 2000]), st.none(), st.sampled_from([1, 1, 3])),
    min_size=1,
    max_size=30,
)
busy: st.SearchStrategy[tuple[list[Message], list[Step]]] = st.tuples(
    st.lists(st.builds(Message, keys), min_size=15, max_size=30),
    steps.map(lambda chosen: [(World.join, 1), (World.flow, 6), (World.join, 1), *chosen]),
)
"""Much in flight before anything else happens."""


async def story(world: World, chosen: list[Step]) -> None:
    await world.open()
    try:
        for step, choice in chosen:
            step(world, choice)
            if choice % 3:
                await world.settle()
            else:
                await asyncio.sleep(0)  # in the midst of whatever is under way
            world.check_counts()
        await world.finish()
    finally:
        await world.close()


@settings(max_examples=700, deadline=None)
@given(st.tuples(messages, steps) | busy)
def test_key_shared_keeps_the_order_of_keys_whatever_consumers_do(drawn: tuple[list[Message], list[Step]]) -> None:
    run(story(World(KEY_SHARED, drawn[0]), drawn[1]))


@settings(max_examples=500, deadline=None)
@given(messages, steps)
def test_shared_delivers_everything_and_nothing_too_early(listed: list[Message], chosen: list[Step]) -> None:
    run(story(World(SHARED, listed), chosen))


@settings(max_examples=500, deadline=None)
@given(st.lists(st.integers(0, 3), max_size=20), steps)
def test_chunks_stay_together_while_their_consumer_does(order: list[int], chosen: list[Step]) -> None:
    """Four messages of chunks, interleaved at random."""
    sizes = Counter(order)
    seen: Counter[int] = Counter()
    listed = []
    for message in order:
        listed.append(Message(0, chunk=(f"u{message}", seen[message], sizes[message])))
        seen[message] += 1
    world = World(SHARED, listed)
    calm = [step for step in chosen if step[0] not in (World.leave, World.give_back, World.give_all_back)]
    run(story(world, calm))
    takers: dict[str, set[int]] = {}
    for consumer, position in world.deliveries:
        chunk = listed[position.entry].chunk
        assert chunk is not None
        takers.setdefault(chunk[0], set()).add(consumer.consumer_id)
    assert all(len(one) == 1 for one in takers.values())


@settings(max_examples=200, deadline=None)
@given(st.tuples(messages, steps) | busy)
def test_small_bounds_slow_down_and_lose_nothing(drawn: tuple[list[Message], list[Step]]) -> None:
    """Few entries looked ahead, few delayed ones noted: reading stops and goes on."""
    listed, chosen = drawn

    async def bounded(world: World) -> None:
        await world.open()
        try:
            for step, choice in chosen:
                step(world, choice)
                await world.settle()
                dispatcher = world.subscription.dispatcher
                if isinstance(dispatcher, InFlightDispatcher):
                    assert len(dispatcher.delays) <= 2
                if isinstance(dispatcher, KeySharedDispatcher):
                    given_back = sum(world.given_back.values()) + len(world.deliveries)
                    assert dispatcher._lanes.waiting <= 3 + given_back
            await world.finish()
        finally:
            await world.close()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_shared, "LOOK_AHEAD", 3)
        patch.setattr(in_flight, "Delays", lambda scheduler, wake: Delays(scheduler, wake, limit=2))
        for kind in (SHARED, KEY_SHARED):
            run(bounded(World(kind, listed)))


def test_a_delayed_entry_wakes_its_subscription_within_a_tick() -> None:
    async def told() -> None:
        world = World(SHARED, [Message(0, 1234), Message(0), Message(0, 2500)])
        await world.open()
        world.join(0)
        world.flow(9)
        await world.settle()
        assert [position.entry for _, position in world.deliveries] == [1]
        world.pass_time(12)
        await world.settle()
        assert len(world.deliveries) == 1
        world.scheduler.pass_time(34 + TICK_MS)
        await world.settle()
        assert [position.entry for _, position in world.deliveries] == [1, 0]
        world.scheduler.pass_time(1300)
        await world.settle()
        assert [position.entry for _, position in world.deliveries] == [1, 0, 2]
        await world.close()

    run(told())


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
def test_reading_anew_forgets_what_was_noted(kind: SubscriptionType) -> None:
    """After a rewind (a barrier passed) delayed and waiting entries are met again, and come once."""

    async def told() -> None:
        world = World(kind, [Message(1, 500), Message(2), Message(2), Message(1)])
        await world.open()
        world.join(0)
        world.consumers[0].flow(1)
        await world.settle()
        assert [position.entry for _, position in world.deliveries] == [1]
        world.acknowledge(0)
        dispatcher = world.subscription.dispatcher
        assert dispatcher is not None
        dispatcher.rewind()
        world.consumers[0].flow(20)
        await world.settle()
        world.scheduler.pass_time(1000)
        await world.settle()
        assert [position.entry for _, position in world.deliveries] == [1, 2, 3, 0]
        await world.finish()
        await world.close()

    run(told())


def test_a_tick_that_comes_while_it_is_looked_for_still_wakes() -> None:
    """The dispatcher looks at the clock, finds nothing due, and a millisecond later it would be."""

    async def told() -> None:
        scheduler = Clocked()
        woken: list[int] = []
        delays = Delays(scheduler, lambda: woken.append(scheduler.ms))
        delays.add(START_MS + TICK_MS, Position(LEDGER, 0))
        scheduler.pass_time(TICK_MS)
        assert len(woken) == 1
        assert delays.take_due(scheduler.ms - 1, 10) == []  # what the clock showed before
        scheduler.pass_time(1)
        assert len(woken) == 2
        assert len(delays.take_due(scheduler.ms, 10)) == 1
        scheduler.pass_time(1000)
        assert len(woken) == 2

    run(told())


def test_delayed_entries_come_out_by_time_and_then_by_place() -> None:
    async def told() -> None:
        delays = Delays(Clocked(), lambda: None, limit=4)
        for number, due in enumerate((950, 120, 101, 130)):
            delays.add(START_MS + due, Position(LEDGER, number), number)
        assert delays.full
        assert delays.next_due_ms() == START_MS + 200
        assert delays.take_due(START_MS + 199, 10) == []
        assert delays.take_due(START_MS + 200, 2) == [(Position(LEDGER, 1), 1), (Position(LEDGER, 2), 2)]
        assert delays.take_due(START_MS + 5000, 10) == [(Position(LEDGER, 3), 3), (Position(LEDGER, 0), 0)]
        assert not delays

    run(told())


def test_a_foreign_entry_tells_its_deliver_time_too() -> None:
    from meridian_broker.ledgers.entry import EntryHeader, deliver_at_ms, pack_foreign

    for due in (None, 1, START_MS):
        for regions in (None, ("east", "west")):
            header = EntryHeader(0, 0, 1, 0, 0, 1, 2, EARLIEST, "east-of-eden", Position(LEDGER, 1), regions, due)
            foreign = pack_foreign(header) + b"body"
            own = pack_own(0, 1, 0, 0, 1, 2, -1, -1, pack_extras(regions, due)) + b"body"
            assert deliver_at_ms(foreign) == deliver_at_ms(own) == (due or 0)
            assert unpack(foreign).deliver_at_ms == due
