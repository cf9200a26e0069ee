# SPDX-License-Identifier: Apache-2.0
"""Reading a topic's log: entries from memory while they are new, else from the store; and what their headers say.

Of entries that were read once, two things stay when they are gone from memory: the index of their origins
(``index.py``), until nobody needs it, and of blocks of them the publish times (``times.py``). Both are rebuilt from
the headers of a ledger whenever they are not there.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

from meridian_broker.ledgers.chapters import CacheBudget, Chain
from meridian_broker.ledgers.entry import unpack
from meridian_broker.ledgers.index import LedgerIndex, Place, RegionCodes
from meridian_broker.ledgers.scheduling import Scheduler
from meridian_broker.ledgers.store import LedgerNotFound, LedgerStore
from meridian_broker.ledgers.times import BlockTimes
from meridian_broker.positions.position import Position

SCAN_BYTES: Final = 128 << 10
"""Bytes of entries whose headers are read before others run: a thousand small ones, some milliseconds."""

_new: Final = tuple.__new__
"""Half the price of calling a ``NamedTuple`` class, where that is done for every entry."""

Stored = tuple[Position, bytes]


class ReadableLog(Chain):
    """What is stored of a topic or partition in this region, to be read."""

    def __init__(self, region: str, store: LedgerStore, cache: CacheBudget, scheduler: Scheduler) -> None:
        super().__init__()
        self._store = store
        self._scheduler = scheduler
        self._cache = cache
        self._codes = RegionCodes(region)
        self._index: LedgerIndex | None = None
        """Of the ledger that is written."""
        self._tail: dict[int, bytes] = {}
        """Its newest entries."""
        self._tail_first = 0
        self._tail_bytes = 0

    @property
    def region(self) -> str:
        return self._codes.names[0]

    # -- entries -------------------------------------------------------------------------------------------------

    def tail_after(self, position: Position, max_entries: int, max_bytes: int) -> list[Stored] | None:
        """Entries after ``position`` from memory; None when they must be read from the store."""
        following = self.after(position)
        if following is None:
            return []
        if not self._chapters or following.ledger != self._chapters[-1].ledger_id or following.entry not in self._tail:
            return None
        tail, ledger, found, size = self._tail, following.ledger, [], 0
        for number in range(following.entry, min(self.last_confirmed.entry, following.entry + max_entries - 1) + 1):
            entry = tail[number]
            size += len(entry)
            found.append((_new(Position, (ledger, number)), entry))
            if size >= max_bytes:
                break
        return found

    async def read_after(self, position: Position, max_entries: int, max_bytes: int) -> list[Stored]:
        """Stored entries after ``position``, durable ones only; at least one unless there is none.

        :raises LedgerError: the store cannot give them.
        """
        cached = self.tail_after(position, max_entries, max_bytes)
        if cached is not None:
            return cached
        following = self.after(position)
        if following is None:
            return []
        chapter = self._chapter(following.ledger)
        if chapter.reader is None:
            chapter.reader = await self._store.open(chapter.ledger_id)
        last = min(following.entry + max_entries, chapter.entries) - 1
        entries = await chapter.reader.read(following.entry, last, max_bytes)
        ledger = following.ledger
        return [(_new(Position, (ledger, number)), entry) for number, entry in enumerate(entries, following.entry)]

    async def read_one(self, position: Position) -> bytes:
        """:raises LedgerNotFound: no such entry here."""
        if not self.holds(position):
            raise LedgerNotFound(f"there is no entry {position} here: it was trimmed, or never stored")
        return (await self.read_after(Position(position.ledger, position.entry - 1), 1, 1))[0][1]

    # -- the tail in memory --------------------------------------------------------------------------------------

    def _shrink_tail(self, limit: int) -> None:
        tail = self._tail
        before = self._tail_bytes
        while self._tail_bytes > limit and self._tail_first in tail:
            self._tail_bytes -= len(tail.pop(self._tail_first))
            self._tail_first += 1
        self._cache.used -= before - self._tail_bytes

    def _forget_tail(self) -> None:
        self._cache.used -= self._tail_bytes
        self._tail, self._tail_first, self._tail_bytes = {}, 0, 0

    def drop_tail(self) -> None:
        """Let the cached tail go: nobody has read here for a while."""
        self._shrink_tail(0)

    # -- what the headers say --------------------------------------------------------------------------------------

    def index(self, ledger: int) -> LedgerIndex | None:
        """The index of a ledger when it is in memory."""
        index = self._index
        if index is not None and index.ledger_id == ledger:
            return index
        at = bisect_right(self._ids, ledger) - 1
        return self._chapters[at].index if at >= 0 and self._ids[at] == ledger else None

    async def load_index(self, ledger: int) -> LedgerIndex:
        """The index of a ledger, rebuilt from its entries' headers when it is not in memory.

        :raises LedgerError: no such ledger, or it cannot be read.
        """
        chapter = self._chapter(ledger)
        if chapter.index is not None:
            return chapter.index
        index, times = LedgerIndex(ledger, self._codes, chapter.span(is_open=False).link), BlockTimes()
        if chapter.reader is None:
            chapter.reader = await self._store.open(ledger)
        while len(index) < chapter.entries:
            for entry in await chapter.reader.read(len(index), chapter.entries - 1, SCAN_BYTES):
                header = unpack(entry)
                times.note(len(index), 1, header.publish_time_ms, header.publish_time_ms)
                index.add(header)
            if len(index) < chapter.entries:
                await self._scheduler.answer(lambda ready: self._scheduler.defer(lambda: ready(None)))
        chapter.index, chapter.times = index, times
        return index

    def times(self, ledger: int) -> BlockTimes | None:
        """When the blocks of a ledger were published, as far as that is in memory: ``load_times`` else."""
        at = bisect_right(self._ids, ledger) - 1
        return self._chapters[at].times if at >= 0 and self._ids[at] == ledger else None

    async def load_times(self, ledger: int) -> BlockTimes:
        """As ``times``, read from the ledger's headers when need be. :raises LedgerError: as ``load_index``."""
        chapter = self._chapter(ledger)
        if chapter.times is None:
            await self.load_index(ledger)
        assert chapter.times is not None  # whoever has the index has the times
        return chapter.times

    def latest_ms(self, ledger: int) -> int:
        """The latest publish time in a ledger. 0: not known without its headers.

        :raises LedgerNotFound: no such ledger.
        """
        return self._chapter(ledger).latest_ms

    def place(self, position: Position) -> Place | None:
        """What acknowledging ``position`` claims; None when that is nothing.

        :raises KeyError: the ledger's index is not in memory: ``load_index`` first.
        :raises IndexError: no such entry.
        """
        index = self.index(position.ledger)
        if index is None:
            raise KeyError(position.ledger)
        return index.place(position.entry)

    def messages(self, position: Position) -> int:
        """How many messages the entry holds. :raises KeyError: as ``place``."""
        index = self.index(position.ledger)
        if index is None:
            raise KeyError(position.ledger)
        return index.messages(position.entry)
