# SPDX-License-Identifier: Apache-2.0
"""A topic with two subscriptions over ledgers in memory, in one region, beside a list of what is owed.

The list has for each entry whether a client acked it and whether it was dropped. After every step, each subscription
must owe exactly the entries that the list says, its cursor must be before the first of them, and its progress, which
other regions are told, must contain what clients acked and nothing that was only dropped.
"""

from __future__ import annotations

import asyncio
from typing import Any

from meridian_broker.engines.memory.ledgers import MemoryDisk, MemoryLedgerStore
from meridian_broker.ledgers.chapters import CacheBudget, LogLimits
from meridian_broker.ledgers.entry import EntryHeader
from meridian_broker.ledgers.log import TopicLog
from meridian_broker.ledgers.store import LedgerError, WhenDurable
from meridian_broker.positions import Cause, HybridClock, Progress
from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.server.loop import LoopScheduler
from meridian_broker.topics.cursors import drops, rewind_merging, seeking
from meridian_broker.topics.dispatch.consumer import Consumer
from meridian_broker.topics.journal.progress_log import ProgressLog
from meridian_broker.topics.lifecycle import replay
from meridian_broker.topics.limits import TopicLimits
from meridian_broker.topics.retention import trimming
from meridian_broker.topics.subscriptions.administration import NoClient
from meridian_broker.topics.subscriptions.subscription import Subscription
from meridian_broker.topics.topic import Topic
from support.worlds.topic_of_one_region import load_indexes
from support.worlds.topic_record import TopicRecord

START_MS = 1_700_000_000_000
TTL_MS = 1000
NAMES = ("one", "two")
STEPS = (
    *(
        "own",
        "ahead",
        "foreign",
        "foreign",
        "wait",
        "ack",
        "ack",
        "cumulative",
        "cumulative",
        "expire",
        "expire",
        "upto",
    ),
    *("seek", "reopen", "roll", "trim", "trim", "truncate"),
)


class Clocked(LoopScheduler):
    ms = START_MS

    def now_ms(self) -> int:
        return self.ms


class Told:
    """Records the progress that other regions are told."""

    def __init__(self) -> None:
        self.progress = {name: Progress() for name in NAMES}

    def local_change(
        self, topic: str, subscription: str, delta: Progress, durable: WhenDurable, **changed: object
    ) -> None:
        def told(_: LedgerError | None) -> None:
            self.progress[subscription].join(delta)

        durable(told)

    def opened(self, topic: str) -> None:
        pass

    def send_pending(self) -> None:
        pass

    def barrier(self, topic: str, subscription: str, passed: Any) -> None:
        passed()

    def flush(self, topic: str, subscription: str, passed: Any) -> None:
        passed()


class Entry:
    def __init__(self, place: Position, region: str, origin: Position, published_ms: int, stored_ms: int) -> None:
        self.place, self.region, self.origin = place, region, origin
        self.published_ms, self.stored_ms = published_ms, stored_ms


class TopicWorld:
    """A topic with two subscriptions, and what must be true of it."""

    async def open(self) -> None:
        self.scheduler = Clocked()
        self.record = TopicRecord()
        self.told = Told()
        self.entries: list[Entry] = []
        self.acked: dict[str, set[Position]] = {name: set() for name in NAMES}
        self.dropped: dict[str, set[Position]] = {name: set() for name in NAMES}
        self.trimmed: set[Position] = set()
        self.forgotten: dict[str, set[Position]] = {name: set() for name in NAMES}
        """Trimmed before a possible merge of many rewinds: progress may have forgotten whether these were acked."""
        self.last_origin = EARLIEST
        self.disk = MemoryDisk()
        self.fence = 0
        await self._open_topic()
        for name in NAMES:
            self.topic.subscribing.create_subscription(name, EARLIEST, replicated=True)
        await self.settle()

    async def _open_topic(self) -> None:
        self.fence += 1
        loop = asyncio.get_running_loop()
        store = MemoryLedgerStore(self.disk, schedule=lambda work: loop.call_soon(work))
        cache = CacheBudget(1 << 20)
        log = TopicLog("here", store, self.record, self.fence, self.limits(), self.scheduler, cache)
        await log.open(*self.record.spans)

        def progress_log(topic: Topic) -> ProgressLog:
            return ProgressLog(store, self.record, self.fence, self.scheduler, lambda: replay.snapshot(topic))

        clock = HybridClock(self.scheduler.now_ms, "here")
        self.topic = Topic("t", -1, "here", "", log, progress_log, self.scheduler, clock, TopicLimits(), self.told)
        await self.topic.progress_log.open(list(self.record.progress))
        await replay.recover(self.topic)

    async def live(self, story: list[tuple[str, int]]) -> None:
        """Run the story step by step, and check everything after each step."""
        await self.open()
        try:
            for step, number in story:
                await getattr(self, step)(number)
                await self.settle()
                await self.check()
        finally:
            await self.scheduler.close()

    def limits(self) -> LogLimits:
        return LogLimits(max_entries=5)

    async def settle(self) -> None:
        quiet = 0
        while quiet < 4:
            await asyncio.sleep(0)
            quiet = 0 if self.scheduler._tasks else quiet + 1
        assert self.topic.failure is None

    def subscription(self, number: int) -> Subscription:
        return self.topic.subscriptions[NAMES[number % 2]]

    def owed(self, name: str) -> list[Position]:
        return [e.place for e in self.entries if e.place not in self.acked[name] | self.dropped[name]]

    def _choose(self, number: int) -> Entry | None:
        stored = [entry for entry in self.entries if entry.place not in self.trimmed]
        return stored[number // 2 % len(stored)] if stored else None

    def _nobody(self, subscription: Subscription, upto: Position) -> Consumer:
        """A consumer that was sent everything up to ``upto``."""
        if subscription.cursor.resent is not None:
            for entry in self.entries:
                if entry.place <= upto:
                    subscription.cursor.resent.note(entry.place)
        return Consumer(subscription, NoClient(), 0, "", 0, START_MS, None, None, subscription.cursor.progress.epoch)

    # -- steps ---------------------------------------------------------------------------------------------------

    async def own(self, number: int) -> None:
        """Publish with a clock that is behind or ahead."""
        self._publish(self.scheduler.ms + (number % 7 - 4) * 700)

    async def ahead(self, number: int) -> None:
        """Publish an entry with a later publish time than those after it: it is kept when they expire."""
        self._publish(self.scheduler.ms + 2 * TTL_MS)
        for _ in range(number % 3):
            self._publish(self.scheduler.ms)
        await self.settle()
        self.scheduler.ms += TTL_MS + 1

    def _publish(self, published_ms: int) -> None:
        stored_ms = self.scheduler.ms

        def stored(_: Any, first: Any) -> None:
            self.entries.append(Entry(first, "here", first, published_ms, stored_ms))

        self.topic.log.append_own([(0, 1, 0, 0, published_ms, b"", b"x")], stored, [0])

    async def foreign(self, number: int) -> None:
        last = self.topic.log.last_origin.get("there", EARLIEST)
        origin = Position(3, last.entry + 1 + number % 2)  # an entry may be withheld from this region
        prev = Position(3, origin.entry - 1) if origin.entry else EARLIEST
        published_ms = self.scheduler.ms - number * 50
        header = EntryHeader(0, 0, 1, 0, 0, published_ms, self.scheduler.ms, prev, "there", origin, None, None)

        def stored(_: Any, first: Any) -> None:
            self.entries.append(Entry(first, "there", origin, published_ms, header.stored_time_ms))
            self.last_origin = origin

        self.topic.log.append_foreign(header, b"x", stored, 0)

    async def wait(self, number: int) -> None:
        self.scheduler.ms += number * 60

    async def ack(self, number: int) -> None:
        subscription, entry = self.subscription(number), self._choose(number)
        if entry is not None:
            subscription.acknowledge(self._nobody(subscription, entry.place), [entry.place])
            self.acked[subscription.name].add(entry.place)

    async def cumulative(self, number: int) -> None:
        """Ack entries that a consumer can have been sent: nothing that was dropped before."""
        subscription, entry = self.subscription(number), self._choose(number)
        if entry is not None:
            acked = {place for place in self.owed(subscription.name) if place <= entry.place}
            subscription.acknowledge_cumulative(self._nobody(subscription, entry.place), entry.place)
            self.acked[subscription.name] |= acked

    async def expire(self, number: int) -> None:
        before_ms = self.scheduler.ms - TTL_MS
        chosen = NAMES if number % 3 else NAMES[:1]
        start = min(next(iter(self.owed(name)), Position(1 << 40, 0)) for name in chosen)
        owed = {name: set(self.owed(name)) for name in chosen}
        gone: dict[str, set[Position]] = {name: set() for name in chosen}
        for entry in self.entries:
            if entry.place >= start:
                if entry.published_ms < before_ms:
                    for name in chosen:
                        gone[name] |= {entry.place} & owed[name]
                elif entry.stored_ms >= before_ms:
                    break
        counts = await drops.drop_old(self.topic, [self.topic.subscriptions[name].cursor for name in chosen], before_ms)
        assert counts == {name: len(gone[name]) for name in chosen}
        for name in chosen:
            self.dropped[name] |= gone[name]

    async def upto(self, number: int) -> None:
        subscription, entry = self.subscription(number), self._choose(number)
        if entry is not None:
            await drops.drop_upto(self.topic, [subscription.cursor], Cause.TRUNCATED, entry.place)
            name = subscription.name
            self.dropped[name] |= {place for place in self.owed(name) if place <= entry.place}

    async def seek(self, number: int) -> None:
        subscription, entry = self.subscription(number), self._choose(number)
        if entry is not None:
            await seeking.seek(subscription.cursor, entry.place)
            name = subscription.name
            stored = {e.place for e in self.entries} - self.trimmed
            self.acked[name] = self.acked[name] - stored | {place for place in stored if place < entry.place}
            self.dropped[name] = {place for place in self.dropped[name] if place < entry.place}

    async def reopen(self, number: int) -> None:
        if number % 2:
            await self.topic.close("test")
        await self._open_topic()

    async def roll(self, _: int) -> None:
        self.topic.progress_log._roll()

    async def trim(self, _: int) -> None:
        """Trim ledgers with no owed entries."""
        self._note_forgotten()
        await trimming.trim(self.topic)
        self._note_trimmed()

    async def truncate(self, number: int) -> None:
        if number % 4 == 0:
            self._note_forgotten()
            await trimming.truncate(self.topic)
            for name in NAMES:
                self.dropped[name] |= set(self.owed(name))
            self._note_trimmed()
            assert self.topic.log.entries == 0

    def _note_forgotten(self) -> None:
        """Note entries that progress may forget, as many old rewinds are about to be merged."""
        for name in NAMES:
            if rewind_merging.are_many(self.topic.subscriptions[name].cursor):
                self.forgotten[name] |= self.trimmed

    def may_be_acked(self, name: str, place: Position) -> set[bool]:
        """The answers that progress may give for an entry."""
        return {place in self.acked[name], place in self.acked[name] | self.forgotten[name]}

    def _note_trimmed(self) -> None:
        self.trimmed = {entry.place for entry in self.entries if not self.topic.log.holds(entry.place)}
        for name in NAMES:
            assert not self.trimmed & set(self.owed(name))

    # -- what must hold ------------------------------------------------------------------------------------------

    async def check(self) -> None:
        log = self.topic.log
        assert log.last_origin.get("there", EARLIEST) == self.last_origin  # even once it is trimmed (R4)
        assert log.last_own == max((e.origin for e in self.entries if e.region == "here"), default=EARLIEST)
        for name in NAMES:
            subscription = self.topic.subscriptions[name]
            await load_indexes(log)  # for an exact backlog
            owed = self.owed(name)
            found = [e.place for e in self.entries if subscription.cursor.is_owed(e.region, e.origin)]
            assert found == owed
            assert subscription.backlog() == len(owed)
            following = self.topic.log.after(subscription.cursor.mark_delete)
            assert following == (owed[0] if owed else None)
            for entry in self.entries:
                may_be = self.may_be_acked(name, entry.place)
                assert subscription.cursor.progress.is_acked(entry.region, entry.origin) in may_be
                assert self.told.progress[name].is_acked(entry.region, entry.origin) in may_be
