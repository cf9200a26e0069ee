# SPDX-License-Identifier: Apache-2.0
"""A log that follows another broker's equals it, whenever it looks, and whatever it reads ahead."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from meridian_broker.engines.memory.ledgers import MemoryLedgerStore, MemoryReader
from meridian_broker.ledgers.chapters import CacheBudget, LogLimits
from meridian_broker.ledgers.entry import EntryHeader
from meridian_broker.ledgers.followed import FollowedLog
from meridian_broker.ledgers.log import TopicLog
from meridian_broker.ledgers.store import LedgerCorrupt, LedgerError, Reader
from meridian_broker.ledgers.view import LogView
from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.server.loop import LoopScheduler
from support.worlds.topic_record import TopicRecord

LIMITS = LogLimits(max_entries=7, tail_bytes=400)

steps = st.lists(
    st.one_of(
        st.tuples(st.just("own"), st.integers(1, 9)),
        st.tuples(st.just("foreign"), st.integers(1, 3)),
        st.tuples(st.just("sync"), st.integers(1, 12)),
        st.tuples(st.just("look"), st.integers(0, 1)),
        st.tuples(st.just("tell"), st.integers(0, 60)),
        st.tuples(st.just("trim"), st.integers(0, 30)),
        st.tuples(st.just("turn"), st.integers(1, 4)),
        st.tuples(st.just("reopen"), st.just(0)),
    ),
    max_size=30,
)


class Deaf(MemoryReader):
    """A reader that hears what is confirmed in its ledger from nobody but the broker that writes it."""

    def __init__(self, near: MemoryReader) -> None:
        self.near = near
        self.known = -1

    @property
    def ledger_id(self) -> int:
        return self.near.ledger_id

    def last_confirmed(self) -> int:
        return self.known

    def learn(self, confirmed: int) -> bool:
        is_news, self.known = confirmed > self.known, max(confirmed, self.known)
        return is_news

    def follow(self, grown: Callable[[], None]) -> Callable[[], None]:
        return lambda: None

    async def read(self, first: int, last: int, max_bytes: int) -> list[bytes]:
        return await self.near.read(first, last, max_bytes)


class DeafStore(MemoryLedgerStore):
    """Ledgers of another store, with deaf readers."""

    def __init__(self, near: MemoryLedgerStore) -> None:
        super().__init__()
        self.near = near

    async def open(self, ledger_id: int) -> Deaf:
        return Deaf(await self.near.open(ledger_id))


class World:
    """A log and its follower; each look sees what is recorded and stored at that moment."""

    def __init__(self, scheduler: LoopScheduler, reset_behind: int = 0, *, deaf: bool = False) -> None:
        """:param deaf: the store does not say what is confirmed."""
        self.store = MemoryLedgerStore()
        self.confirmed = [EARLIEST]
        """The ends of the log, one after the other."""
        self.scheduler = scheduler
        self.record = TopicRecord()
        self.fence = 1
        self.log = self._opening()
        self.waiting = 0
        store = DeafStore(self.store) if deaf else self.store
        self.followed = FollowedLog("here", store, scheduler, LIMITS, CacheBudget(1 << 20))
        self.followed.reset_behind = reset_behind
        self.view = LogView("here", self.store, scheduler, CacheBudget(1 << 20))
        self.view.attach(self.followed)
        self.told: list[Position] = []
        self.view.watch(lambda: self.told.append(self.view.last_confirmed))

    def _opening(self) -> TopicLog:
        return TopicLog("here", self.store, self.record, self.fence, LIMITS, self.scheduler, CacheBudget(1 << 20))

    def _done(self, tokens: list[Any], _: Position | LedgerError) -> None:
        self.waiting -= len(tokens)

    async def run(self, what: str, count: int) -> None:
        if what == "own":
            self.waiting += count
            entries = [(0, 1 + number % 3, number, 0, number, b"", b"own %d" % number) for number in range(count)]
            self.log.append_own(entries, self._done, list(range(count)))
        elif what == "foreign":
            for _ in range(count):
                last = self.log.last_origin.get("there", EARLIEST)
                origin = Position(1, last.entry + 1)
                header = EntryHeader(0, 0, 1, 0, 0, 0, 0, last, "there", origin, None, None)
                self.waiting += 1
                self.log.append_foreign(header, b"foreign", self._done, 0)
        elif what == "sync":
            self.store.sync(count)
        elif what == "look":
            await self.look()
        elif what == "tell":
            self.followed.told_confirmed(self.confirmed[-1 - count % len(self.confirmed)])
        elif what == "trim":
            await self.trim(count)
        elif what == "reopen":
            await self.reopen()
        for _ in range(count if what == "turn" else 1):
            await asyncio.sleep(0)
            self._note_end()

    def _note_end(self) -> None:
        if self.log.last_confirmed > self.confirmed[-1]:
            self.confirmed.append(self.log.last_confirmed)

    async def settle(self) -> None:
        while self.waiting or self.scheduler._tasks:
            self.store.sync()
            await asyncio.sleep(0)
        self._note_end()

    async def synced(self, work: Any) -> None:
        """Wait for an action that writes."""
        task = asyncio.ensure_future(work)
        while not task.done():
            self.store.sync()
            await asyncio.sleep(0)
        await task

    async def reopen(self) -> None:
        """Another broker takes over while the old one has not sealed its ledger."""
        await self.settle()
        self.fence += 1
        spans, own, origins, holes = self.record.spans
        self.log = self._opening()
        await self.synced(self.log.open(spans, own, origins, holes))

    async def trim(self, entries: int) -> None:
        await self.settle()
        places = await all_of(self.log)
        if places:
            await self.synced(self.log.trim(places[min(entries, len(places) - 1)], 0, None))

    async def look(self) -> None:
        spans, own, origins, _ = self.record.spans
        assert self.followed.fits(spans)
        self.followed.take(spans, own, origins)
        self.followed.forget_gone()
        await self.followed.advance()
        assert self.followed.last_confirmed <= self.log.last_confirmed or not self.log.entries
        assert await all_of(self.view) == [p for p in await all_of(self.log) if p <= self.view.last_confirmed]

    async def check(self) -> None:
        """Both are equal, down to what an acknowledgement of each entry claims."""
        await self.settle()
        self.followed.told_confirmed(self.log.last_confirmed)
        await self.look()
        assert await everything(self.view) == await everything(self.log)
        assert self.view.last_own == self.log.last_own
        assert self.followed.last_origin == self.log.last_origin
        assert [one[:2] for one in self.view.counts() if one[1]] == [one[:2] for one in self.log.counts() if one[1]]
        for ledger, entries, _ in self.log.counts():
            mine, its = await self.view.load_index(ledger), await self.log.load_index(ledger)
            assert [mine.place(n) for n in range(entries)] == [its.place(n) for n in range(entries)]
            assert [mine.messages(n) for n in range(entries)] == [its.messages(n) for n in range(entries)]
            if entries:
                times = await self.view.load_times(ledger), await self.log.load_times(ledger)
                assert times[0].between(0) == times[1].between(0)
        assert self.told == sorted(self.told)


async def everything(log: TopicLog) -> list[tuple[Position, bytes]]:
    found: list[tuple[Position, bytes]] = []
    while some := await log.read_after(found[-1][0] if found else EARLIEST, 5, 1 << 20):
        found += some
    return found


async def all_of(log: TopicLog) -> list[Position]:
    return [position for position, _ in await everything(log)]


EMPTIED = [("own", 1), ("reopen", 0), *[("own", 1)] * 3, ("own", 4), ("look", 0), ("trim", 7), ("reopen", 0)]
"""Nothing of the followed log exists any more, and no ledger is recorded."""


UNUSED = [("own", 7), ("trim", 0), ("look", 0), ("reopen", 0)]
"""The owner ended after it had begun a ledger; nothing was stored there, and the next owner did not keep it."""


@settings(max_examples=150, deadline=None)
@given(steps, st.sampled_from([0, 1, 3]), st.booleans())
@example(UNUSED, 0, False)
@example([*UNUSED, ("look", 0), ("own", 9), ("look", 0), ("own", 3)], 0, False)
@example(EMPTIED, 0, False)
@example([*EMPTIED, ("look", 0), ("own", 9), ("look", 0), ("own", 3)], 0, False)
@example(
    [("own", 3), ("sync", 12), ("look", 0), ("reopen", 0), ("own", 3), ("sync", 12), ("tell", 1), ("look", 0)], 0, True
)
def test_it_equals_the_log_whenever_it_looks(done: list[tuple[str, int]], reset_behind: int, deaf: bool) -> None:
    """Whoever says what is confirmed, the store or the broker that writes, and however late."""

    async def story() -> None:
        scheduler = LoopScheduler()
        try:
            world = World(scheduler, reset_behind, deaf=deaf)
            for step in done:
                await world.run(*step)
            await world.check()
        finally:
            await scheduler.close()

    asyncio.run(story())


async def test_missed_entries_beyond_the_limit_are_not_read_ahead_and_not_lost() -> None:
    scheduler = LoopScheduler()
    world = World(scheduler, reset_behind=4)
    await world.run("own", 1)
    await world.settle()
    await world.look()
    await world.run("own", 2)  # within the limit, in the ledger being written
    await world.settle()
    await world.look()
    assert (world.followed.resets, world.view.resets) == (0, 0)
    before = world.followed.read_bytes
    await world.run("own", 15)  # two ledgers are full now: 4 entries of the first were missed, 7 of the second
    await world.settle()
    await world.look()
    assert world.followed.resets == 1 == world.view.resets
    assert world.followed.read_bytes > before
    await world.check()
    await scheduler.close()


class Rotten(Reader):
    """A reader of a ledger whose entries are damaged from some entry on."""

    def __init__(self, near: Reader, first: int) -> None:
        self.near = near
        self.first = first

    @property
    def ledger_id(self) -> int:
        return self.near.ledger_id

    def last_confirmed(self) -> int:
        return self.near.last_confirmed()

    async def read(self, first: int, last: int, max_bytes: int) -> list[bytes]:
        if first >= self.first:
            raise LedgerCorrupt(f"entry {first} is damaged")
        return await self.near.read(first, min(last, self.first - 1), max_bytes)


async def test_damage_in_the_open_ledger_is_reported_only_once_it_is_sealed() -> None:
    scheduler = LoopScheduler()
    world = World(scheduler)
    opening = world.store.open

    async def rotten(ledger_id: int) -> Reader:
        return Rotten(await opening(ledger_id), 2) if ledger_id == 1 else await opening(ledger_id)

    await world.run("own", 4)
    await world.settle()
    world.followed._store = world.view._store = store = MemoryLedgerStore()
    store.open = rotten  # type: ignore[assignment, method-assign]
    with pytest.raises(LedgerError, match="until the ledger is sealed"):
        await world.look()
    assert world.followed.last_confirmed == Position(1, 1)
    await world.run("own", 5)
    await world.settle()
    spans, own, origins, _ = world.record.spans
    world.followed.take(spans, own, origins)
    await world.followed.advance()
    assert world.followed.last_confirmed == world.log.last_confirmed
    assert len(await all_of(world.view)) == 9  # placeholders stand for damaged entries
    assert len(world.followed.damage.damaged) == 5
    await scheduler.close()


async def test_it_reads_on_as_soon_as_the_writers_broker_says_so() -> None:
    scheduler = LoopScheduler()
    world = World(scheduler, deaf=True)
    grown: list[Position] = []
    world.followed.on_grown = lambda: grown.append(world.followed._told)
    await world.run("own", 3)
    await world.settle()
    await world.look()
    assert world.view.last_confirmed == EARLIEST, "the store has said nothing"
    world.view.source_confirmed(Position(1, 1))
    await world.look()
    assert world.view.last_confirmed == Position(1, 1)
    world.view.source_confirmed(Position(1, 0))
    assert grown == [Position(1, 1)], "an earlier entry is no news"
    await world.look()
    assert world.view.last_confirmed == Position(1, 1)
    await world.check()
    await scheduler.close()
