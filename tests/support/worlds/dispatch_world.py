# SPDX-License-Identifier: Apache-2.0
"""A topic with one subscription over ledgers in memory, and consumers that share it, under a clock that tests move.

The world checks each delivery as it happens: permits, deliver times, redelivery counts, one consumer per key, order
within a key. ``finish`` acknowledges everything; afterwards, the dispatcher must remember nothing.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

from meridian_broker.engines.memory.ledgers import MemoryLedgerStore
from meridian_broker.ledgers.chapters import CacheBudget, LogLimits, Span
from meridian_broker.ledgers.entry import CHUNK, pack_extras, pack_own
from meridian_broker.ledgers.log import TopicLog
from meridian_broker.metadata.rules import Rules
from meridian_broker.positions import HybridClock
from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.server.loop import LoopScheduler
from meridian_broker.topics.cursors import rewinding
from meridian_broker.topics.dispatch.consumer import Consumer
from meridian_broker.topics.dispatch.in_flight import InFlightDispatcher
from meridian_broker.topics.dispatch.key_ranges import KeySharedPolicy
from meridian_broker.topics.dispatch.key_shared import KeySharedDispatcher
from meridian_broker.topics.dispatch.shared import SharedDispatcher
from meridian_broker.topics.dispatch.types import KEY_SHARED, SubscriptionType
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
    """The broker's scheduler with a clock that moves only when a test moves it."""

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
    """Reads of single entries are slow, so that other things happen meanwhile."""

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


class DispatchWorld:
    """A topic, its subscription, and consumers; the world is the port of them all."""

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
        self.subscription: Subscription = self.topic.subscribing.create_subscription("s", EARLIEST)
        await self.settle()

    async def settle(self) -> None:
        """Let everything happen that is possible now."""
        quiet = turns = 0
        while quiet < 4:
            await asyncio.sleep(0)
            quiet = quiet + 1 if self.scheduler.quiet and not self.subscription.is_waiting else 0
            turns += 1
            assert turns < 3000, "the event loop never becomes idle"
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
        assert holders <= {consumer}, "another consumer has messages of this key"
        if self.messages[position.entry].delay_ms:
            return
        for number in range(position.entry):
            earlier = Position(LEDGER, number)
            if self.messages[number].key == key and not self.messages[number].delay_ms:
                assert earlier in self.in_flight or earlier in self.acked, f"{position} overtakes {earlier}"

    def writable(self) -> bool:
        return True

    def disconnect_consumer(self, consumer: Consumer) -> None:
        raise AssertionError("unexpected disconnection")

    def active_consumer_changed(self, consumer: Consumer, active: bool) -> None:
        raise AssertionError("shared subscriptions have no active consumer")

    def reached_end(self, consumer: Consumer) -> None:
        raise AssertionError("the topic has no end")

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
                self.given_back.clear()  # counts are kept while there are consumers
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
        """Another region acknowledges an entry that was given back here and waits for redelivery."""
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
        """Redeliveries are counted only for entries that are in flight or waiting for redelivery."""
        dispatcher = self.subscription.dispatcher
        if isinstance(dispatcher, InFlightDispatcher):
            if isinstance(dispatcher, KeySharedDispatcher):
                waiting = {position for lane in dispatcher._lanes._lanes.values() for position in lane.waiting}
            else:
                assert isinstance(dispatcher, SharedDispatcher)
                waiting = set() if dispatcher._replay is None else dispatcher._replay.positions
            assert dispatcher._redeliveries.keys() <= self.in_flight.keys() | waiting

    async def finish(self) -> None:
        """A consumer with enough permits and time gets the rest."""
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
