# SPDX-License-Identifier: Apache-2.0
"""Reading a topic's log: new entries from memory, others from the store; and facts from their headers.

Two things about entries outlive their cached content: the index of their origins (``index.py``), until it is no longer
needed, and the publish times of blocks of entries (``block_times.py``). Both are rebuilt from the headers of a ledger
when they are missing.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Final

from meridian_broker.ledgers.block_times import BlockTimes
from meridian_broker.ledgers.chapters import CacheBudget, Chain, Chapter
from meridian_broker.ledgers.damage import Damage, Rebuilding, published_ms, stand_in
from meridian_broker.ledgers.entry import EntryFormatError, unpack
from meridian_broker.ledgers.index import LedgerIndex, Place, RegionCodes
from meridian_broker.ledgers.repeated_reads import Asked, RepeatedReads
from meridian_broker.ledgers.scheduling import Scheduler, next_turn
from meridian_broker.ledgers.store import HeadReader, LedgerCorrupt, LedgerNotFound, LedgerStore, Reader
from meridian_broker.positions.position import EARLIEST, LATEST, Position

log = logging.getLogger(__name__)

SCAN_BYTES: Final = 128 << 10
"""Bytes of entries whose headers are read before other tasks run: a thousand small entries, a few milliseconds."""

ANSWER_BYTES: Final = 64 << 10
"""Most bytes of entries that are remembered as the last answer from memory."""
PLACES_AT_ONCE: Final = 2000
"""Damaged entries looked up before other tasks run: a few milliseconds."""

_new: Final = tuple.__new__
"""Half the cost of calling a ``NamedTuple`` class, for use once per entry."""

Stored = tuple[Position, bytes]


class ReadableLog(Chain):
    """The stored entries of a topic or partition in this region, for reading."""

    def __init__(self, region: str, store: LedgerStore, cache: CacheBudget, scheduler: Scheduler) -> None:
        super().__init__()
        self._store = store
        self._scheduler = scheduler
        self._cache = cache
        self._codes = RegionCodes(region)
        self._index: LedgerIndex | None = None
        """Index of the ledger being written."""
        self._tail: dict[int, bytes] = {}
        """Its newest entries."""
        self._tail_first = 0
        self._tail_bytes = 0
        self._answered: tuple[Position, Position, list[Stored]] = (LATEST, EARLIEST, [])
        """The last answer from memory: after where, up to where, and the entries. When an entry was stored, thousands
        of subscriptions ask the same."""
        self._asked_origin: tuple[Position, tuple[str, Position]] = (EARLIEST, ("", EARLIEST))
        """The last answer of ``origin``, for the same reason. An entry's origin does not change."""
        self._repeated = RepeatedReads(cache, scheduler)
        self._ends_on_record: tuple[Position, Mapping[str, Position]] = (EARLIEST, {})
        """The last entry of each chain in the last ledger, as of the last write of the record."""
        self.damage = Damage()
        self.on_damage: Callable[[], None] = lambda: None
        """Called after a damaged entry was found."""

    @property
    def region(self) -> str:
        return self._codes.names[0]

    @property
    def unchained(self) -> set[str]:
        """Regions of Apache Pulsar that bring entries, or did: each region stores what it gets itself, and regions do
        not send each other these entries."""
        return self._codes.unchained

    # -- entries -------------------------------------------------------------------------------------------------

    def tail_after(self, position: Position, max_entries: int, max_bytes: int) -> list[Stored] | None:
        """Entries after ``position`` from memory; None when they must be read from the store. Not to be changed."""
        after, upto, answered = self._answered
        if position == after and upto is self.last_confirmed and len(answered) <= max_entries:
            return answered
        following = self.after(position)
        if following is None:
            return []
        if not self._chapters or following.ledger != self._chapters[-1].ledger_id or following.entry not in self._tail:
            return self._kept(following, max_entries, max_bytes)
        tail, ledger, found, size = self._tail, following.ledger, [], 0
        for number in range(following.entry, min(self.last_confirmed.entry, following.entry + max_entries - 1) + 1):
            entry = tail[number]
            size += len(entry)
            found.append((_new(Position, (ledger, number)), entry))
            if size >= max_bytes:
                break
        else:
            if len(found) < max_entries and size <= ANSWER_BYTES:
                self._answered = position, self.last_confirmed, found
        return found

    async def read_after(self, position: Position, max_entries: int, max_bytes: int) -> list[Stored]:
        """Stored entries after ``position``, durable ones only; at least one if there is any.

        In place of a damaged one its copy is returned, or a placeholder without content (``damage.stand_in``).

        :raises LedgerError: the store cannot read them.
        """
        cached = self.tail_after(position, max_entries, max_bytes)
        if cached is not None:
            return cached
        following = self.after(position)
        if following is None:
            return []
        chapter = self._chapter(following.ledger)
        asked = Asked(following, min(max_entries, chapter.entries - following.entry), max_bytes)
        try:
            return await self._repeated.read(asked, lambda: self._read(chapter, asked))
        except LedgerCorrupt as error:
            return [(following, await self._instead(following, error))]

    async def _read(self, chapter: Chapter, asked: Asked) -> list[Stored]:
        (ledger, first), count, max_bytes = asked
        entries = await (await self._reader(chapter)).read(first, first + count - 1, max_bytes)
        return [(_new(Position, (ledger, number)), entry) for number, entry in enumerate(entries, first)]

    def _kept(self, first: Position, max_entries: int, max_bytes: int) -> list[Stored] | None:
        """Entries that others have read; None: nobody has, or the index of their origins is not in memory."""
        if self.index(first.ledger) is None:
            return None
        return self._repeated.kept(
            first, min(max_entries, self._chapter(first.ledger).entries - first.entry), max_bytes
        )

    async def read_one(self, position: Position) -> bytes:
        """:raises LedgerNotFound: no such entry here."""
        if not self.holds(position):
            raise LedgerNotFound(f"there is no entry {position} here: it was trimmed, or never stored")
        return (await self.read_after(Position(position.ledger, position.entry - 1), 1, 1))[0][1]

    async def _reader(self, chapter: Chapter) -> Reader:
        if chapter.reader is None:
            chapter.reader = await self._store.open(chapter.ledger_id)
        return chapter.reader

    # -- damaged entries -------------------------------------------------------------------------------------------

    async def _instead(self, position: Position, error: LedgerCorrupt) -> bytes:
        """The bytes read in place of a damaged entry."""
        copy = await self._copy(position)
        if copy is not None:
            return copy
        index = await self.load_index(position.ledger)
        place, times = index.place(position.entry), await self.load_times(position.ledger)
        if place is not None:
            self.tell_damaged(self.damage.found({position: place}), str(error))
        time_ms = None if place is None else published_ms(place, self.region, error.remains)
        if time_ms is None:  # not earlier than it really was: a seek to a time should include it rather than skip it
            known = times.between(position.entry)
            time_ms = 1 if known is None else known[1]
        return stand_in(place, self.region, position, time_ms)

    async def whole_again(self, position: Position) -> bytes | None:
        """A damaged entry, if the disk can read it again: the file was restored, or a cable was loose."""
        if not self.holds(position):
            self.damage.forget(position)
            return None
        reader = await self._reader(self._chapter(position.ledger))
        try:
            entry = (await reader.read(position.entry, position.entry, 1))[0]
        except LedgerCorrupt:
            return None
        self.damage.forget(position)
        index = self.index(position.ledger)
        if index is not None and index is not self._index:
            await self.reload_index(position.ledger)
        return entry

    async def _copy(self, position: Position) -> bytes | None:
        """The entry that replaces a damaged one; None if there is none, or if it is damaged as well."""
        at = self.damage.copies.get(position)
        if at is None or not self.holds(at):
            return None
        try:
            marker = (await (await self._reader(self._chapter(at.ledger))).read(at.entry, at.entry, 1))[0]
            header = unpack(marker)
            if header.replaces == position:
                return marker[header.body_offset :]
        except (LedgerCorrupt, EntryFormatError):
            pass
        self.damage.copies.pop(position, None)
        return None

    def tell_damaged(self, new: int, why: str | None) -> None:
        """Damaged entries were found.

        :param new: how many were not known before.
        :param why: the error of the first one.
        """
        if new:
            more = f", and {new - 1} more entries of its ledger" if new > 1 else ""
            log.error("%s%s; asking the other regions for copies", why, more)
            self._scheduler.defer(self.on_damage)

    # -- the tail in memory --------------------------------------------------------------------------------------

    def _shrink_tail(self, limit: int) -> None:
        tail = self._tail
        before = self._tail_bytes
        if self._tail_bytes > limit:
            self._answered = LATEST, EARLIEST, []
        while self._tail_bytes > limit and self._tail_first in tail:
            self._tail_bytes -= len(tail.pop(self._tail_first))
            self._tail_first += 1
        self._cache.used -= before - self._tail_bytes

    def _forget_tail(self) -> None:
        self._cache.used -= self._tail_bytes
        self._tail, self._tail_first, self._tail_bytes = {}, 0, 0
        self._answered = LATEST, EARLIEST, []
        self._repeated.forget()

    def drop_tail(self) -> None:
        """Drop the cached tail: nobody has read this log for a while."""
        self._shrink_tail(0)
        self._repeated.forget()

    # -- facts from the headers ------------------------------------------------------------------------------------

    def index(self, ledger: int) -> LedgerIndex | None:
        """The index of a ledger if it is in memory."""
        index = self._index
        if index is not None and index.ledger_id == ledger:
            return index
        at = bisect_right(self._ids, ledger) - 1
        return self._chapters[at].index if at >= 0 and self._ids[at] == ledger else None

    def origin(self, position: Position) -> tuple[str, Position] | None:
        """The region and position where an entry was first stored; None: no common origin, or its index is not in
        memory.

        :raises IndexError: the ledger has no such entry.
        """
        asked, known = self._asked_origin
        if asked is position:
            return known
        index = self.index(position.ledger)
        found = None if index is None else index.origin(position.entry)
        if found is not None:
            self._asked_origin = position, found
        return found

    async def load_index(self, ledger: int) -> LedgerIndex:
        """The index of a ledger, rebuilt from its entries' headers when it is not in memory.

        :raises LedgerError: no such ledger, or it cannot be read.
        """
        chapter = self._chapter(ledger)
        return await self.reload_index(ledger) if chapter.index is None else chapter.index

    async def reload_index(self, ledger: int) -> LedgerIndex:
        """Like ``load_index``, from the ledger as it is now: copies of damaged entries were added. The old index stays
        in memory until the new one is complete. That of the ledger being written was not built from stored entries and
        is kept."""
        chapter = self._chapter(ledger)
        if chapter.index is not None and chapter.index is self._index:
            return chapter.index
        index, times = LedgerIndex(ledger, self._codes, chapter.span(is_open=False).link), BlockTimes()
        rebuilding = Rebuilding(index, self.region, chapter.span(is_open=False).link, chapter.origins_before)
        reader, found, last_ms = await self._reader(chapter), dict[int, str](), 1
        read = reader.read_heads if isinstance(reader, HeadReader) else reader.read
        while (at := len(index)) < chapter.entries:
            # After a damaged entry read one at a time: with many, each read would otherwise cover all the rest.
            end = at if at - 1 in found else chapter.entries - 1
            try:
                entries = await read(at, end, SCAN_BYTES)
            except LedgerCorrupt as error:
                position = Position(ledger, at)
                copy = await self._copy(position)
                entries = [] if copy is None else [copy]
                if copy is None:
                    header = rebuilding.add_damaged(self.damage.damaged.get(position), error.remains)
                    last_ms = last_ms if header is None else header.publish_time_ms
                    times.note(at, 1, last_ms, last_ms)
                    found[at] = str(error)  # the error would keep this frame, and so all of them, in a reference cycle
            for entry in entries:
                header = unpack(entry)
                last_ms = header.publish_time_ms
                times.note(len(index), 1, last_ms, last_ms)
                rebuilding.add(header)
            if len(index) < chapter.entries:
                await next_turn(self._scheduler)
        following = self._following(ledger)
        ends = self._ends_on_record if following is None else (following.own_before, following.origins_before)
        for _ in rebuilding.finish(*ends, is_sure=following is not None):
            await next_turn(self._scheduler)
        await self._note_damaged(index, found)
        chapter.index, chapter.times = index, times  # not earlier: damaged entries must not be claimed
        return index

    async def _note_damaged(self, index: LedgerIndex, found: Mapping[int, str]) -> None:
        """:param found: the entries of a ledger that cannot be read, each with its error."""
        numbers, first, new = iter(found), EARLIEST, 0
        while some := list(islice(numbers, PLACES_AT_ONCE)):
            places = {Position(index.ledger_id, n): place for n in some if (place := index.place(n)) is not None}
            if places and first == EARLIEST:
                first = next(iter(places))
            new += self.damage.found(places)
            if len(some) == PLACES_AT_ONCE:
                await next_turn(self._scheduler)
        self.tell_damaged(new, found.get(first.entry))

    def _following(self, ledger: int) -> Chapter | None:
        at = bisect_right(self._ids, ledger)
        return self._chapters[at] if at < len(self._chapters) else None

    def times(self, ledger: int) -> BlockTimes | None:
        """When the blocks of a ledger were published; None: not in memory, call ``load_times``."""
        at = bisect_right(self._ids, ledger) - 1
        return self._chapters[at].times if at >= 0 and self._ids[at] == ledger else None

    async def load_times(self, ledger: int) -> BlockTimes:
        """Like ``times``, read from the ledger's headers if necessary. :raises LedgerError: as ``load_index``."""
        chapter = self._chapter(ledger)
        if chapter.times is None:
            await self.load_index(ledger)
        assert chapter.times is not None  # loaded along with the index
        return chapter.times

    def latest_ms(self, ledger: int) -> int:
        """The latest publish time in a ledger; 0: only its headers would tell.

        :raises LedgerNotFound: no such ledger.
        """
        return self._chapter(ledger).latest_ms

    def place(self, position: Position) -> Place | None:
        """The claim of acknowledging ``position``, or None.

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
