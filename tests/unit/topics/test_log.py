# SPDX-License-Identifier: Apache-2.0
"""A topic's log: groups of entries through roll-overs, slow and refusing disks; each token is answered once."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from meridian_broker.engines.memory.ledgers import MemoryDisk, MemoryLedgerStore
from meridian_broker.ledgers import block_times, times
from meridian_broker.ledgers.chapters import CacheBudget, LogLimits, Span
from meridian_broker.ledgers.entry import EntryHeader, unpack
from meridian_broker.ledgers.log import TopicLog
from meridian_broker.ledgers.store import LedgerError, LedgerNotFound
from meridian_broker.ledgers.times import PublishTimes, first_since
from meridian_broker.metadata.store import MetadataUnavailable
from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.server.loop import LoopScheduler
from support.worlds.topic_record import TopicRecord

Step = tuple[str, int]
step = st.one_of(
    st.sampled_from([("own", count) for count in range(1, 10)]),
    st.sampled_from([("foreign", count) for count in range(1, 4)]),
    st.sampled_from([("sync", count) for count in range(1, 13)]),
    st.sampled_from([("turn", count) for count in range(1, 5)]),
)
steps = st.lists(step, max_size=25)


class Writing:
    """A log, its input, and its answers."""

    def __init__(self, store: MemoryLedgerStore, scheduler: LoopScheduler) -> None:
        self.store = store
        self.scheduler = scheduler
        self.record = TopicRecord()
        self.log = self.opening(store)
        self.given: list[int] = []
        self.stored: dict[int, Position] = {}
        self.refused: list[int] = []

    def opening(self, store: MemoryLedgerStore) -> TopicLog:
        return TopicLog("here", store, self.record, 1, LogLimits(max_entries=7), self.scheduler, CacheBudget(1 << 20))

    def told(self, tokens: list[Any], result: Position | LedgerError) -> None:
        for at, token in enumerate(tokens):
            assert token not in self.stored and token not in self.refused
            if isinstance(result, Position):
                self.stored[token] = Position(result.ledger, result.entry + at)
            else:
                self.refused.append(token)

    def own(self, count: int) -> None:
        tokens = list(range(len(self.given), len(self.given) + count))
        self.given += tokens
        entries = [(0, 1 + t % 3, t, 0, t * 7 % 5, b"", b"body %d" % t) for t in tokens]
        self.log.append_own(entries, self.told, tokens)

    def foreign(self, count: int) -> None:
        for _ in range(count):
            token = len(self.given)
            self.given.append(token)
            last = self.log.last_origin.get("there", EARLIEST)
            origin = Position(1, last.entry + 1)
            header = EntryHeader(0, 0, 1, token, 0, 0, 0, last, "there", origin, None, None)
            self.log.append_foreign(header, b"body %d" % token, self.told, token)

    async def run(self, step: Step) -> None:
        what, count = step
        if what == "own":
            self.own(count)
        elif what == "foreign":
            self.foreign(count)
        elif what == "sync":
            self.store.sync(count)
        else:
            for _ in range(count):
                await asyncio.sleep(0)

    async def settle(self) -> None:
        while len(self.stored) + len(self.refused) < len(self.given) or self.scheduler._tasks:
            self.store.sync()
            await asyncio.sleep(0)

    async def check(self) -> None:
        """What was confirmed can be read, in the order given, linked to what came before."""
        assert list(self.stored) == self.given[: len(self.stored)]
        assert list(self.stored.values()) == sorted(self.stored.values())
        entries = await self.log.read_after(EARLIEST, 1, 1)
        previous: dict[str | None, Position] = {None: EARLIEST, "there": EARLIEST}
        read: dict[int, Position] = {}
        while entries:
            for position, entry in entries:
                header = unpack(entry)
                assert entry[header.body_offset :] == b"body %d" % header.key_hash
                assert header.prev == previous[header.region]
                previous[header.region] = position if header.origin is None else header.origin
                read[header.key_hash] = position
                index = await self.log.load_index(position.ledger)
                place = index.place(position.entry)
                assert place is not None and place.prev == header.prev
                assert index.origin(position.entry) == (place.region, place.origin)
                assert index.messages(position.entry) == header.messages
            entries = await self.log.read_after(entries[-1][0], 3, 1 << 20)
        assert read == self.stored


async def _run(chosen: list[Step], fail_at: int | None) -> None:
    scheduler = LoopScheduler()
    writing = Writing(MemoryLedgerStore(MemoryDisk()), scheduler)
    try:
        for at, step in enumerate(chosen):
            if at == fail_at:
                writing.store.fail_writes("no space")
            await writing.run(step)
        await writing.settle()
        await writing.check()
        assert fail_at is not None or not writing.refused
        assert writing.given == [*writing.stored, *sorted(writing.refused)]
        heard: list[LedgerError | None] = []
        writing.log.when_durable(heard.append)
        assert heard == [None] or fail_at is not None
    finally:
        await scheduler.close()


@settings(max_examples=500, deadline=None)
@given(steps)
def test_each_token_is_told_its_entrys_position_once(chosen: list[Step]) -> None:
    asyncio.run(_run(chosen, None))


@settings(max_examples=500, deadline=None)
@given(steps, st.integers(0, 20))
def test_a_disk_that_refuses_loses_nothing_it_confirmed(chosen: list[Step], fail_at: int) -> None:
    asyncio.run(_run(chosen, fail_at))


class Seen:
    """The last entry of each region that was ever on disk, trimmed or not."""

    def __init__(self, disk: MemoryDisk) -> None:
        self._disk = disk
        self.last: dict[str, Position] = {}

    def look(self) -> None:
        for ledger, stored in self._disk.ledgers.items():
            for number, entry in enumerate(stored.entries):
                header = unpack(entry)
                region, origin = header.region or "here", header.origin or Position(ledger, number)
                self.last[region] = max(origin, self.last.get(region, EARLIEST))

    async def until(self, work: Coroutine[Any, Any, Any], store: MemoryLedgerStore) -> None:
        """Wait for ``work`` while the disk goes on."""
        task = asyncio.ensure_future(work)
        while not task.done():
            store.sync(1)
            self.look()
            await asyncio.sleep(0)
        await task


async def _reopened(chosen: list[Step], is_closed: bool) -> None:
    scheduler = LoopScheduler()
    store = MemoryLedgerStore(MemoryDisk())
    writing, seen = Writing(store, scheduler), Seen(store.disk)
    log = writing.log
    try:
        for step in chosen:
            if step[0] == "trim":
                await seen.until(log.trim(log.last_confirmed, None, scheduler.now_ms() + 1), store)
            else:
                await writing.run(step)
            seen.look()
        if is_closed:
            await seen.until(log.close(), store)
        after = MemoryLedgerStore(store.crash())
        again = writing.opening(after)
        await seen.until(again.open(*writing.record.spans), after)
        assert {"here": again.last_own, **again.last_origin} == {"here": EARLIEST, **seen.last}
    finally:
        await scheduler.close()


@settings(max_examples=500, deadline=None)
@given(st.lists(st.one_of(step, st.just(("trim", 0))), max_size=25), st.booleans())
def test_an_opened_log_knows_the_last_entries_that_were_stored(chosen: list[Step], is_closed: bool) -> None:
    """Neither entries that never reached the disk, nor less than what was trimmed (R4)."""
    asyncio.run(_reopened(chosen, is_closed))


async def _times(chosen: list[Step], moments: list[int]) -> None:
    scheduler = LoopScheduler()
    writing = Writing(MemoryLedgerStore(MemoryDisk()), scheduler)
    known = PublishTimes(writing.log, moments)
    try:
        for step in chosen:
            await writing.run(step)
            last = writing.log.last_confirmed
            if last.entry >= 0:
                await known.load(last)  # again and again, while the ledger grows
                assert known.of(last)
            stored = [(at, unpack(await writing.log.read_one(at)).publish_time_ms) for at in writing.stored.values()]
            for place, published in stored:
                side = [moment <= known.of(place) for moment in moments]
                assert not known.of(place) or side == [moment <= max(published, 1) for moment in moments]
            for moment in moments:
                first = next((place for place, published in stored if max(published, 1) >= moment), None)
                assert await first_since(writing.log, moment) == first
        await writing.settle()
    finally:
        await scheduler.close()


@settings(max_examples=500, deadline=None)
@given(steps, st.lists(st.integers(1, 5), max_size=3))
def test_publish_times_separate_entries_before_and_after_a_moment(chosen: list[Step], moments: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(block_times, "BLOCK", 3)
        patch.setattr(times, "BLOCK", 3)
        patch.setattr(times, "BLOCKS_MAX", 2)
        asyncio.run(_times(chosen, moments))


class _Unwritable(TopicRecord):
    """A metadata store that refuses the first write."""

    is_away = True

    async def save_spans(self, *what: Any) -> None:
        if self.is_away:
            self.is_away = False
            raise MetadataUnavailable("the metadata store is away")
        await super().save_spans(*what)


async def test_a_failed_opening_is_retried_with_the_ledgers_it_was_given() -> None:
    """R5: an opening is told the ledgers that the volume had when the broker started. An empty one among them
    is deleted, and what failed after that may be retried."""
    scheduler, record = LoopScheduler(), _Unwritable()
    store = MemoryLedgerStore(schedule=scheduler.defer)
    await store.create(7, fence=1)
    found = [Span(7, EARLIEST, {})]

    async def opened() -> TopicLog:
        log = TopicLog("here", store, record, 2, LogLimits(), scheduler, CacheBudget(1 << 20))
        await log.open([], EARLIEST, {}, {}, found)
        return log

    try:
        with pytest.raises(MetadataUnavailable):
            await opened()
        with pytest.raises(LedgerNotFound):
            await store.open(7)
        assert (await opened()).spans() == []
    finally:
        await scheduler.close()


class _Slow(TopicRecord):
    """A metadata store whose writes wait until they are let through."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.gate.set()
        self.asked = asyncio.Semaphore(0)

    async def save_spans(self, *what: Any) -> None:
        self.asked.release()
        await self.gate.wait()
        await super().save_spans(*what)


async def test_a_ledger_begun_while_others_are_trimmed_does_not_record_those_again() -> None:
    """Both write the record from memory as it is when they begin: ledgers being trimmed are left out."""
    scheduler, record = LoopScheduler(), _Slow()
    store = MemoryLedgerStore(schedule=scheduler.defer)
    log = TopicLog("here", store, record, 1, LogLimits(max_entries=2), scheduler, CacheBudget(1 << 20))
    try:
        await log.open([], EARLIEST, {}, {})
        for _ in range(3):
            await scheduler.answer(
                lambda ready: log.append_own([(0, 1, 0, 0, 1, b"", b"x")], lambda _, result: ready(result), [0])
            )
        kept = log.spans()[-1].ledger_id
        record.gate.clear()
        record.asked = asyncio.Semaphore(0)
        trimming = asyncio.create_task(log.trim(log.last_confirmed, 0, None))
        await record.asked.acquire()
        assert len(log.spans()) == 2, "memory follows the record"
        rolling = asyncio.create_task(log.roll())
        await record.asked.acquire()
        assert len(log.spans()) == 3
        record.gate.set()
        await asyncio.gather(trimming, rolling)
        on_record = [span.ledger_id for span in record.spans[0]]
        assert on_record[0] == kept
        assert on_record == [span.ledger_id for span in log.spans()]
    finally:
        await scheduler.close()


def own(number: int, messages: int = 1) -> tuple[int, int, int, int, int, bytes, bytes]:
    return (0, messages, number, 0, 1, b"", b"body %d" % number)


async def test_of_entries_given_together_none_is_stored_if_one_cannot_be() -> None:
    """And later entries are at the positions that were reported."""
    scheduler = LoopScheduler()
    writing = Writing(MemoryLedgerStore(MemoryDisk()), scheduler)
    try:
        writing.own(2)
        await writing.settle()
        for unstorable in (-1, 1 << 32):
            with pytest.raises(struct.error):
                writing.log.append_own([own(90), own(91, unstorable), own(92)], writing.told, [90, 91, 92])
        writing.own(3)
        await writing.settle()
        await writing.check()
    finally:
        await scheduler.close()


@pytest.mark.logs_error("entries waiting for it cannot be stored")
async def test_entries_that_cannot_be_stored_do_not_block_later_ones() -> None:
    """While a ledger is being created."""
    scheduler = LoopScheduler()
    writing = Writing(MemoryLedgerStore(MemoryDisk()), scheduler)
    refused: list[LedgerError] = []
    try:
        writing.log.append_own([own(90, -1)], lambda _, error: refused.append(error), [90])  # type: ignore[arg-type]
        writing.own(3)
        await writing.settle()
        await writing.check()
        assert [type(error) for error in refused] == [LedgerError]
    finally:
        await scheduler.close()


@pytest.mark.logs_error("an append failed halfway")
@pytest.mark.parametrize("fails_at", [0, 1, 2])
async def test_a_log_whose_store_raises_half_way_accepts_no_more_and_reopens_with_what_is_stored(
    fails_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing may follow entries that may or may not be stored."""
    scheduler = LoopScheduler()
    store = MemoryLedgerStore(MemoryDisk())
    writing = Writing(store, scheduler)
    try:
        writing.own(2)
        await writing.settle()
        append, left = store.append, [fails_at]

        def fragile(*given: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                raise MemoryError
            return append(*given)

        monkeypatch.setattr(store, "append", fragile)
        writing.own(3)
        writing.own(1)
        writing.foreign(1)
        await writing.settle()
        assert (list(writing.stored), sorted(writing.refused)) == ([0, 1], [2, 3, 4, 5, 6])
        assert isinstance(writing.log.failure, LedgerError)
        store.sync()
        after = MemoryLedgerStore(store.crash(), schedule=scheduler.defer)
        again = writing.opening(after)
        await again.open(*writing.record.spans)
        (ledger,) = after.disk.ledgers
        assert again.last_own == Position(ledger, 1 + fails_at)
        assert len(await again.read_after(EARLIEST, 100, 1 << 20)) == 2 + fails_at
    finally:
        await scheduler.close()
