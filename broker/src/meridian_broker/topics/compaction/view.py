# SPDX-License-Identifier: Apache-2.0
"""The compacted view of a topic: the newest message of each key up to the *horizon*, in a separate ledger.

Its entries keep their positions and order from the log, and stay readable after the log was trimmed. A compacted reader
reads the view up to the horizon and the log after it. The index of the view's entries is in memory, at most two bytes
per entry; the entries themselves are read from the ledger.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Awaitable, Callable
from itertools import accumulate
from typing import Final

from pyroaring import BitMap

from meridian_broker.ledgers.reading import Stored
from meridian_broker.ledgers.store import LedgerCorrupt, LedgerNotFound, LedgerStore, Reader
from meridian_broker.metadata.topic_records import CompactedRecord
from meridian_broker.positions.bitruns import ENTRY_LIMIT
from meridian_broker.positions.position import Position
from meridian_broker.topics.compaction.view_format import Kind, ViewFormatError, kind_of, unpack_entry, unpack_index

READ_BYTES: Final = 1 << 20
Instead = Callable[[Position], Awaitable[bytes | None]]


async def survey(store: LedgerStore, ledger_id: int, horizon: Position, fence: int) -> CompactedRecord | None:
    """The record of a view of which only the ledger was found; None: it was never completed, is empty, or was deleted
    meanwhile.

    :raises LedgerError: it cannot be read.
    """
    try:
        info = await store.recover(ledger_id, fence)
    except LedgerNotFound:
        return None
    reader = await store.open(ledger_id)
    tombstones = entries = kept = at = 0
    while at < info.entries:
        records = await reader.read(at, info.entries - 1, READ_BYTES)
        at += len(records)
        try:
            for record in records:
                kind = kind_of(record)
                tombstones += kind is Kind.TOMBSTONES
                entries += kind is Kind.ENTRY
                kept += len(unpack_index(record)[1]) if kind is Kind.INDEX else 0
        except ViewFormatError as error:
            raise LedgerCorrupt(f"ledger {ledger_id}: {error}") from error
    if not entries or kept != entries:
        return None
    return CompactedRecord(ledger_id, horizon, tombstones, entries, info.size)


class CompactedView:
    """One view; it never changes. Call ``await load`` first."""

    def __init__(self, record: CompactedRecord, store: LedgerStore, instead: Instead | None = None) -> None:
        """:param instead: returns the log's entry where an entry of the view is damaged; None: there is none."""
        self.record = record
        self._instead = instead
        self.horizon = record.horizon
        self._store = store
        self._reader: Reader | None = None
        self._ledgers: list[int] = []
        self._kept: list[BitMap] = []
        self._before: list[int] = [0]
        """The number of entries before those of each ledger."""

    def index(self, kept: dict[int, BitMap]) -> None:
        """Set which entries of each ledger of the log the view has."""
        self._ledgers = sorted(kept)
        self._kept = [kept[ledger] for ledger in self._ledgers]
        self._before = [0, *accumulate(map(len, self._kept))]

    async def load(self) -> None:
        """Read the index.

        :raises LedgerError: the ledger cannot be read.
        """
        kept: dict[int, BitMap] = {}
        reader = await self.reader()
        at, end = self.record.first + self.record.entries, reader.last_confirmed()
        while at <= end:
            records = await reader.read(at, end, READ_BYTES)
            at += len(records)
            try:
                kept.update(map(unpack_index, records))
            except ViewFormatError as error:
                raise LedgerCorrupt(f"ledger {self.record.ledger_id}: {error}") from error
        self.index(kept)

    async def reader(self) -> Reader:
        """:raises LedgerError: the ledger was deleted, or cannot be read."""
        if self._reader is None:
            self._reader = await self._store.open(self.record.ledger_id)
        return self._reader

    # -- which entries -------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self._before[-1]

    @property
    def is_loaded(self) -> bool:
        """Whether the index is in memory."""
        return len(self) == self.record.entries

    def kept(self, ledger: int) -> BitMap:
        """The entries of one ledger of the log that the view has. Read-only."""
        at = bisect_left(self._ledgers, ledger)
        return self._kept[at] if at < len(self._ledgers) and self._ledgers[at] == ledger else BitMap()

    def holds(self, position: Position) -> bool:
        """Whether this is an entry of the view. Any id may be asked for, including impossible ones."""
        at = bisect_left(self._ledgers, position.ledger)
        if at == len(self._ledgers) or self._ledgers[at] != position.ledger:
            return False
        return 0 <= position.entry < ENTRY_LIMIT and position.entry in self._kept[at]

    def number_after(self, position: Position) -> int:
        """The number of entries at or before ``position``, which is the number of the first one after it."""
        at = bisect_left(self._ledgers, position.ledger)
        if at == len(self._ledgers) or self._ledgers[at] != position.ledger or position.entry < 0:
            return self._before[at]
        return self._before[at] + self._kept[at].rank(min(position.entry, ENTRY_LIMIT - 1))

    def position(self, number: int) -> Position:
        """The position of the entry with this number. :raises IndexError: there is none."""
        if not 0 <= number < len(self):
            raise IndexError(f"entry {number} of a view of {len(self)} entries")
        at = bisect_right(self._before, number) - 1
        return Position(self._ledgers[at], self._kept[at][number - self._before[at]])

    def after(self, position: Position) -> Position | None:
        """The first entry after ``position``; None: there is none in the view."""
        number = self.number_after(position)
        return self.position(number) if number < len(self) else None

    @property
    def last(self) -> Position | None:
        """The last entry; None: the view is empty."""
        return self.position(len(self) - 1) if len(self) else None

    # -- reading -------------------------------------------------------------------------------------------------

    async def read_after(self, position: Position, max_entries: int, max_bytes: int) -> list[Stored]:
        """Entries after ``position``; none at the end of the view.

        :raises LedgerError: they cannot be read.
        """
        first = self.number_after(position)
        last = min(first + max_entries, len(self)) - 1
        if last < first:
            return []
        reader = await self.reader()
        try:
            records = await reader.read(self.record.first + first, self.record.first + last, max_bytes)
            return [unpack_entry(record) for record in records]
        except LedgerCorrupt:
            damaged = self.position(first)
            entry = None if self._instead is None else await self._instead(damaged)
            if entry is None:
                raise
            return [(damaged, entry)]
        except ViewFormatError as error:
            raise LedgerCorrupt(f"ledger {self.record.ledger_id}: {error}") from error

    async def read_one(self, position: Position) -> bytes | None:
        """The entry; None: the view does not have it."""
        if not self.holds(position):
            return None
        return (await self.read_after(Position(position.ledger, position.entry - 1), 1, 1))[0][1]
