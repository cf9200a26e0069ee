# SPDX-License-Identifier: Apache-2.0
"""The ledgers of one topic in order, as the metadata list them and as positions run over them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from meridian_broker.ledgers.block_times import BlockTimes
from meridian_broker.ledgers.holes import Hole
from meridian_broker.ledgers.index import LedgerIndex
from meridian_broker.ledgers.labels import Belonging, Kind, Label
from meridian_broker.ledgers.store import LedgerNotFound, Reader
from meridian_broker.positions.position import EARLIEST, Position

_new: Final = tuple.__new__
"""Half the cost of calling a ``NamedTuple`` class: cursors walk over every entry."""


@dataclass(frozen=True, slots=True)
class Span:
    """A ledger of a topic as the metadata describe it."""

    ledger_id: int
    own_before: Position = EARLIEST
    """The last own entry known when the ledger was made."""
    origins_before: dict[str, Position] = field(default_factory=dict)
    entries: int = -1
    """Number of entries; -1 while it may still be written."""
    size: int = 0
    sealed_ms: int = 0
    is_joined: bool = True
    """False: not every region had been asked yet, so entries after ``own_before`` may be stored elsewhere (R5)."""
    latest_ms: int = 0
    """The latest publish time of its entries; 0 while it may still be written, and if none was recorded."""

    @property
    def link(self) -> Position:
        """``prev`` of the ledger's first own entry; if that is uncertain, one with which it claims itself alone."""
        return self.own_before if self.is_joined else Position(self.ledger_id, -1)

    def label(self, belonging: Belonging) -> bytes:
        """The label that its ledger gets."""
        return Label(Kind.MESSAGES, belonging, self.own_before, self.origins_before, self.is_joined).encode()


class LogMetadata(Protocol):
    """Stores a topic's list of ledgers."""

    @property
    def belonging(self) -> Belonging: ...

    async def allocate_ledger_id(self) -> int: ...

    async def save_spans(
        self,
        spans: list[Span],
        last_own: Position,
        last_origins: Mapping[str, Position],
        holes: Mapping[str, list[Hole]],
    ) -> None:
        """Durable on return. :raises MetadataError: another owner wrote it, or the store does not answer."""
        ...


@dataclass(frozen=True, slots=True)
class LogLimits:
    """When a ledger is full, and how much of the tail stays in memory."""

    max_entries: int = 50_000
    max_bytes: int = 256 << 20
    tail_bytes: int = 8 << 20


@dataclass(slots=True)
class CacheBudget:
    """Bytes of the newest entries that all topics of a broker may keep in memory together."""

    limit: int
    used: int = 0


class Chapter:
    """One ledger of the chain, in memory."""

    __slots__ = (
        "_latest_ms",
        "entries",
        "index",
        "is_joined",
        "ledger_id",
        "origins_before",
        "own_before",
        "reader",
        "sealed_ms",
        "size",
        "times",
    )

    def __init__(self, span: Span) -> None:
        self.ledger_id = span.ledger_id
        self.own_before = span.own_before
        self.is_joined = span.is_joined
        self.origins_before = span.origins_before
        self.entries = max(span.entries, 0)
        self.size = span.size
        self.sealed_ms = span.sealed_ms
        self.index: LedgerIndex | None = None
        self.reader: Reader | None = None
        self.times: BlockTimes | None = None
        self._latest_ms = span.latest_ms

    @property
    def latest_ms(self) -> int:
        """The latest publish time of its entries; 0: not known."""
        return self._latest_ms if self.times is None else self.times.latest_ms

    def span(self, is_open: bool) -> Span:
        return Span(
            self.ledger_id,
            self.own_before,
            self.origins_before,
            -1 if is_open else self.entries,
            self.size,
            self.sealed_ms,
            self.is_joined,
            0 if is_open else self.latest_ms,
        )

    def ends(self) -> tuple[Position, dict[str, Position]]:
        """The last own entry, and the last one of every other region, at the durable end of this ledger.

        The ledger being written has its index in memory.
        """
        own, origins = self.own_before, dict(self.origins_before)
        index = self.index
        if index is not None:
            own = max(own, index.last_own() or EARLIEST)
            for region, last in index.last_origins().items():
                origins[region] = max(last, origins.get(region, EARLIEST))
        return own, origins


class Chain:
    """Ledgers in order, and the arithmetic of positions over them."""

    def __init__(self) -> None:
        self._chapters: list[Chapter] = []
        self._ids: list[int] = []
        self.last_confirmed = EARLIEST
        """The last durable entry."""

    @property
    def chain(self) -> tuple[list[Chapter], list[int]]:
        """The ledgers and their ids, not copies: a view of this log sees every change at once."""
        return self._chapters, self._ids

    @property
    def first(self) -> Position:
        """The first entry still stored; right after the last confirmed one if there is none."""
        for chapter in self._chapters:
            if chapter.entries:
                return Position(chapter.ledger_id, 0)
        return Position(self.last_confirmed.ledger, self.last_confirmed.entry + 1)

    @property
    def entries(self) -> int:
        """Number of entries stored."""
        return sum(chapter.entries for chapter in self._chapters)

    @property
    def size(self) -> int:
        """Bytes stored."""
        return sum(chapter.size for chapter in self._chapters)

    def counts(self) -> list[tuple[int, int, int]]:
        """``(ledger, entries, bytes)`` of each ledger."""
        return [(c.ledger_id, c.entries, c.size) for c in self._chapters]

    def after(self, position: Position) -> Position | None:
        """The first stored entry after ``position``, or None."""
        if position >= self.last_confirmed:
            return None
        at = bisect_right(self._ids, position.ledger) - 1
        if at >= 0 and self._ids[at] == position.ledger and position.entry + 1 < self._chapters[at].entries:
            return _new(Position, (position.ledger, max(position.entry, -1) + 1))
        for chapter in self._chapters[at + 1 :]:
            if chapter.entries:
                return Position(chapter.ledger_id, 0)
        return None

    def before(self, position: Position) -> Position:
        """The last place before ``position``: an entry, or ``(ledger, -1)`` at the start of the log."""
        at = bisect_right(self._ids, position.ledger) - 1
        if at >= 0 and self._ids[at] == position.ledger and position.entry > 0:
            return Position(position.ledger, min(position.entry, self._chapters[at].entries) - 1)
        first = at - 1 if at >= 0 and self._ids[at] == position.ledger else at
        for chapter in reversed(self._chapters[: first + 1]):
            if chapter.entries:
                return Position(chapter.ledger_id, chapter.entries - 1)
        if self._chapters:
            return Position(self._chapters[0].ledger_id, -1)
        return EARLIEST

    def below(self, region: str, heights: Mapping[str, Position], others: Position = EARLIEST) -> Position:
        """The last place before the first ledger that may contain an entry above these heights, one per origin.

        :param region: this region.
        :param others: the height of origins that are not named.
        """
        if not self._chapters:
            return EARLIEST
        chapter = self._chapters[0]
        for following in self._chapters[1:]:
            if following.own_before > heights.get(region, others) or any(
                last > heights.get(origin, others) for origin, last in following.origins_before.items()
            ):
                break
            chapter = following
        return self.before(Position(chapter.ledger_id, 0))

    def distance(self, after: Position, upto: Position) -> int:
        """How many stored entries lie in ``(after, upto]``."""
        total = 0
        for chapter in self._chapters[bisect_left(self._ids, after.ledger) : bisect_right(self._ids, upto.ledger)]:
            low = after.entry if chapter.ledger_id == after.ledger else -1
            high = upto.entry if chapter.ledger_id == upto.ledger else chapter.entries - 1
            total += max(min(high, chapter.entries - 1) - max(low, -1), 0)
        return total

    def stretches(self, after: Position, upto: Position) -> Iterator[tuple[int, int, int]]:
        """``(ledger, first, last)`` of the entries in ``(after, upto]``, ledger by ledger."""
        for chapter in self._chapters[bisect_left(self._ids, after.ledger) : bisect_right(self._ids, upto.ledger)]:
            first = max(after.entry, -1) + 1 if chapter.ledger_id == after.ledger else 0
            last = chapter.entries - 1
            if chapter.ledger_id == upto.ledger:
                last = min(last, upto.entry)
            if first <= last:
                yield chapter.ledger_id, first, last

    def bytes_after(self, position: Position) -> int:
        """Approximate bytes stored after a position; a partly passed ledger counts in proportion to the entries
        left."""
        total = 0
        for chapter in self._chapters:
            if chapter.ledger_id > position.ledger:
                total += chapter.size
            elif chapter.ledger_id == position.ledger and chapter.entries:
                left = max(chapter.entries - 1 - max(position.entry, -1), 0)
                total += chapter.size * left // chapter.entries
        return total

    def own_after(self, position: Position) -> int:
        """Entries after a position that were first stored here; all count in ledgers whose index is not in memory."""
        total = 0
        for chapter in self._chapters:
            if chapter.ledger_id >= position.ledger:
                first = max(position.entry, -1) + 1 if chapter.ledger_id == position.ledger else 0
                left = max(chapter.entries - first, 0)
                total += left if chapter.index is None else min(left, chapter.index.own_from(first))
        return total

    def place_before_last(self, size: int) -> Position:
        """The entry that about the last ``size`` bytes follow; ``EARLIEST``: less than that is stored."""
        for chapter in reversed(self._chapters):
            if chapter.size > size:
                kept = chapter.entries * size // chapter.size
                return Position(chapter.ledger_id, chapter.entries - 1 - kept)
            size -= chapter.size
        return EARLIEST

    def holds(self, position: Position) -> bool:
        """Whether this entry is stored here."""
        at = bisect_right(self._ids, position.ledger) - 1
        return at >= 0 and self._ids[at] == position.ledger and 0 <= position.entry < self._chapters[at].entries

    def trimmable(self, below: Position, keep_bytes: int | None, keep_since_ms: int | None) -> list[Chapter]:
        """The ledgers at the head of the chain that ``TopicLog.trim`` would delete."""
        going: list[Chapter] = []
        remaining = self.size
        for chapter in self._chapters[:-1]:
            remaining -= chapter.size
            is_old = keep_since_ms is not None and chapter.sealed_ms <= keep_since_ms
            is_over = keep_bytes is not None and remaining >= keep_bytes
            if Position(chapter.ledger_id, chapter.entries - 1) > below or not (is_old or is_over):
                break
            going.append(chapter)
        return going

    def origins_through(self, chapter: Chapter) -> dict[str, Position]:
        """The last entry of every other region in or before a ledger that is not the last one."""
        return self._chapters[bisect_right(self._ids, chapter.ledger_id)].origins_before

    def cool_indexes(self, below: int) -> None:
        """Called periodically: pack the indexes of sealed ledgers; the next call drops those below ledger ``below``.

        They are rebuilt on demand. Indexes that a caller loads stay until the second call after that.
        """
        for chapter in self._chapters[:-1]:
            if chapter.index is None:
                continue
            if chapter.ledger_id < below and chapter.index.is_packed:
                chapter.index = None
            else:
                chapter.index.pack()

    def _chapter(self, ledger: int) -> Chapter:
        at = bisect_right(self._ids, ledger) - 1
        if at < 0 or self._ids[at] != ledger:
            raise LedgerNotFound(f"ledger {ledger} is not one of this topic's: it was trimmed or belongs to another")
        return self._chapters[at]
