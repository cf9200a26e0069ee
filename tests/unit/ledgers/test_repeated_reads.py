# SPDX-License-Identifier: Apache-2.0
"""Many readers of the same entries: each gets what it would get alone, and the store reads them few times."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meridian_broker.ledgers import repeated_reads
from meridian_broker.ledgers.chapters import CacheBudget
from meridian_broker.ledgers.repeated_reads import KEPT_BYTES, Asked, RepeatedReads, Stored
from meridian_broker.ledgers.store import LedgerError, LedgerUnreadable
from meridian_broker.positions.position import Position
from meridian_broker.server.loop import LoopScheduler

LOG = [(Position(7, number), b"%d" % number * (number % 5 + 1)) for number in range(40)]


class Store:
    """The entries of ``LOG``; counts the reads."""

    def __init__(self, limit: int = 1 << 20) -> None:
        self.cache = CacheBudget(limit)
        self.reads = RepeatedReads(self.cache, LoopScheduler())
        self.asked = 0
        self.failure: Exception | None = None
        self.open = asyncio.Event()
        self.open.set()

    async def fetch(self, asked: Asked) -> list[Stored]:
        self.asked += 1
        await self.open.wait()
        if self.failure is not None:
            raise self.failure
        return alone(asked)

    async def read(self, first: int, count: int, max_bytes: int = 1 << 20) -> list[Stored]:
        asked = Asked(Position(7, first), count, max_bytes)
        kept = self.reads.kept(*asked)
        return await self.reads.read(asked, lambda: self.fetch(asked)) if kept is None else kept


def alone(asked: Asked) -> list[Stored]:
    """What a single reader gets: at least one entry, and more while the byte limit allows."""
    found, size = list[Stored](), 0
    for stored in LOG[asked.first.entry : asked.first.entry + asked.most]:
        size += len(stored[1])
        if found and size > asked.max_bytes:
            break
        found.append(stored)
    return found


READS = st.lists(st.tuples(st.integers(0, 6), st.integers(1, 6), st.sampled_from((4, 30, 1 << 20))), max_size=30)


@given(READS, st.integers(0, 200), st.sets(st.integers(0, 29)))
async def test_each_gets_what_it_would_read_alone(
    reads: list[tuple[int, int, int]], limit: int, dropped: set[int]
) -> None:
    store = Store(limit)
    for number, (first, count, max_bytes) in enumerate(reads):
        if number in dropped:
            store.reads.forget()
            assert store.cache.used == 0
        asked = Asked(Position(7, first), count, max_bytes)
        assert await store.read(*(first, count, max_bytes)) == alone(asked)
        assert 0 <= store.cache.used <= limit


async def test_thousands_of_concurrent_readers_share_one_read() -> None:
    store = Store()
    store.open.clear()
    asking = [asyncio.ensure_future(store.read(3, 20)) for _ in range(2000)]
    await asyncio.sleep(0)
    store.open.set()
    assert all(found == LOG[3:23] for found in await asyncio.gather(*asking))
    assert store.asked == 1


async def test_thousands_of_successive_readers_share_the_second_read() -> None:
    store = Store()
    for _ in range(2000):
        assert await store.read(3, 20) == LOG[3:23]
    assert store.asked == 2
    assert await store.read(3, 5) == LOG[3:8]
    assert store.asked == 2


async def test_readers_that_follow_each_other_through_the_log_share_all_reads() -> None:
    store = Store()
    places = [0] * 50
    while any(place < len(LOG) for place in places):
        for number, place in enumerate(places):
            if place < len(LOG) and (number == 0 or places[number - 1] > place):
                places[number] += len(await store.read(place, 10))
    assert store.asked == 2 * len(LOG) // 10


async def test_the_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeated_reads, "KEPT_BYTES", 20)
    monkeypatch.setattr(repeated_reads, "REMEMBERED", 5)
    store = Store()
    for first in range(20):
        for _ in range(3):
            await store.read(first, 3)
            assert store.cache.used <= 20 and len(store.reads._known) <= 5
    assert store.cache.used > 0
    store.reads.forget()
    assert store.cache.used == 0


async def test_a_single_reader_caches_nothing() -> None:
    store = Store()
    for first in range(30):
        await store.read(first, 5)
    assert store.cache.used == 0


async def test_entries_too_large_or_without_room_are_not_cached() -> None:
    store = Store(limit=10)
    for _ in range(3):
        await store.read(0, 40)
    assert store.cache.used == 0 and store.asked == 3
    assert max(len(entry) for _, entry in LOG) < KEPT_BYTES


async def test_all_waiting_readers_get_the_failure_and_the_next_one_reads_again() -> None:
    store = Store()
    store.open.clear()
    asking = [asyncio.ensure_future(store.read(0, 9)) for _ in range(5)]
    await asyncio.sleep(0)
    store.failure = LedgerUnreadable("the volume is away")
    store.open.set()
    assert {str(error) for error in await asyncio.gather(*asking, return_exceptions=True)} == {"the volume is away"}
    store.failure = None
    assert await store.read(0, 9) == LOG[:9]


async def test_if_the_reading_caller_is_cancelled_the_others_read_for_themselves() -> None:
    store = Store()
    store.open.clear()
    asking = [asyncio.ensure_future(store.read(0, 9)) for _ in range(5)]
    await asyncio.sleep(0)
    asking[0].cancel()
    with suppress(asyncio.CancelledError):
        await asking[0]
    await asyncio.sleep(0)
    store.open.set()
    assert all(found == LOG[:9] for found in await asyncio.gather(*asking[1:]))
    assert store.asked == 2


async def test_a_programming_error_is_not_reported_as_a_storage_error() -> None:
    store = Store()
    store.failure = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError):
        await store.read(0, 9)
    store.failure = LedgerError("gone")
    with pytest.raises(LedgerError, match="gone"):
        await store.read(0, 9)
