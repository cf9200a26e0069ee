# SPDX-License-Identifier: Apache-2.0
"""The log of a topic that another broker of the region writes, as this broker reads it while it grows (PIP-180).

The topic's record lists the ledgers. Up to which entry the last of them is confirmed, the ledger store says and,
sooner, the writer's broker (the shadow replicator); either is enough. What is confirmed is read once, in order: the
index is built from it, and the newest entries stay in memory for all readers. Ledgers that were sealed before are read,
and their indexes built, when somebody asks for them. Nothing is ever written, fenced or sealed: the writer does not
notice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final, NoReturn

from meridian_broker.ledgers.block_times import BlockTimes
from meridian_broker.ledgers.chapters import CacheBudget, Chapter, LogLimits, Span
from meridian_broker.ledgers.entry import EntryFormatError, unpack
from meridian_broker.ledgers.index import LedgerIndex
from meridian_broker.ledgers.labels import Belonging
from meridian_broker.ledgers.log import TopicLog
from meridian_broker.ledgers.notifying import notify_all
from meridian_broker.ledgers.scheduling import Scheduler, next_turn
from meridian_broker.ledgers.store import FollowingReader, LedgerCorrupt, LedgerError, LedgerStore, LedgerUnreadable
from meridian_broker.positions.position import EARLIEST, Position

log = logging.getLogger(__name__)

READ_BYTES: Final = 256 << 10
"""Bytes read before other tasks get a turn."""


def _nobody() -> None:
    """Nobody waits for more."""


class NoRecord:
    """The log is another broker's, so no list of ledgers is written."""

    belonging = Belonging("", "")

    async def allocate_ledger_id(self) -> NoReturn:
        raise not_its_own()

    async def save_spans(self, *_: object) -> NoReturn:
        raise not_its_own()


def not_its_own() -> LedgerError:
    """The error of every write."""
    return LedgerError("this log is a view of another topic's: it stores nothing of its own")


class FollowedLog(TopicLog):
    """See the module's text. ``take`` the record, then ``advance``; repeat whenever ``on_grown`` is called."""

    def __init__(
        self, region: str, store: LedgerStore, scheduler: Scheduler, limits: LogLimits, cache: CacheBudget
    ) -> None:
        super().__init__(region, store, NoRecord(), 0, limits, scheduler, cache)
        self._recorded: tuple[Span, ...] = ()
        self._unfollow: Callable[[], None] = _nobody
        self._told = EARLIEST
        """What the writer's broker said last. It may be about a ledger that the record does not list yet."""
        self.exists = False
        """Whether there is such a topic, as far as its follower knows."""
        self.on_grown: Callable[[], None] = _nobody
        """Called when there may be more to read."""
        self.reset_behind = 0
        """If more entries than this are left of a ledger sealed meanwhile, they are not read ahead; 0: they always
        are."""
        self.resets = 0
        """How often entries were not read ahead."""
        self.read_bytes = 0
        """Bytes of entries read to follow the log."""

    # -- the record ----------------------------------------------------------------------------------------------

    def fits(self, spans: Sequence[Span]) -> bool:
        """Whether this can be a later record of the same log. If not, the topic was recreated or restored."""
        listed = {span.ledger_id: span for span in spans}
        first = self._first_of(spans)
        for chapter in self._chapters:
            span = listed.get(chapter.ledger_id)
            if span is None and chapter.ledger_id >= first and chapter.entries:
                return False
            if span is not None and 0 <= span.entries < chapter.entries:
                return False
        return True

    def take(self, spans: Sequence[Span], last_own: Position, last_origins: Mapping[str, Position]) -> None:
        """Take over the record as it is now. Ledgers sealed before the first call are not read ahead.

        :param last_own: and ``last_origins``: as of the record.
        """
        if not self._recorded and not self._chapters:
            for span in spans:
                if span.entries < 0:
                    break
                self._chapters.append(Chapter(span))
                self._ids.append(span.ledger_id)
                if span.entries:
                    self._tell(Position(span.ledger_id, span.entries - 1))
        self._drop_unused({span.ledger_id for span in spans})
        self._recorded = tuple(spans)
        self._note_ends(last_own, last_origins)

    def _drop_unused(self, listed: Collection[int]) -> None:
        """Forget newest ledgers that never had an entry and that the topic's next owner did not keep."""
        while self._chapters and not self._chapters[-1].entries and self._ids[-1] not in listed:
            self.stop_following()
            self._forget_tail()
            self._index = None
            del self._chapters[-1], self._ids[-1]

    @property
    def gone(self) -> Position | None:
        """The last entry of the ledgers that the record no longer lists; None: it lists all."""
        first = self._first_of(self._recorded)
        going = [chapter for chapter in self._chapters if chapter.ledger_id < first]
        return Position(going[-1].ledger_id, max(going[-1].entries - 1, 0)) if going else None

    def forget_gone(self) -> None:
        """Nobody needs the ledgers that the record no longer lists."""
        first = self._first_of(self._recorded)
        count = sum(chapter.ledger_id < first for chapter in self._chapters)
        if count == len(self._chapters):
            self.stop_following()
            self._forget_tail()
            self._index = None
        del self._chapters[:count]
        del self._ids[:count]
        if count:
            self.damage.forget_below(first)

    def _first_of(self, spans: Sequence[Span]) -> int:
        """The first ledger that still exists; if none is listed, all are gone."""
        if spans:
            return spans[0].ledger_id
        return self._ids[-1] + 1 if self._ids else 0

    # -- reading on ----------------------------------------------------------------------------------------------

    async def advance(self) -> None:
        """Read what is confirmed and not read yet. :raises LedgerError: not possible now."""
        for span in self._recorded:
            if self._ids and span.ledger_id < self._ids[-1]:
                continue
            if not self._ids or span.ledger_id > self._ids[-1]:
                self._begin(span)
            chapter = self._chapters[-1]
            if span.entries < 0:
                await self._read_open(chapter)
                return
            if not chapter.sealed_ms:
                await self._read_sealed(chapter, span)

    def _begin(self, span: Span) -> None:
        """Go on with the next ledger."""
        self._forget_tail()
        chapter = Chapter(replace(span, entries=0, size=0, sealed_ms=0))
        chapter.index = self._index = LedgerIndex(span.ledger_id, self._codes, span.link)
        chapter.times = BlockTimes()
        self._chapters.append(chapter)
        self._ids.append(span.ledger_id)
        self._note_ends(span.own_before, span.origins_before)

    def told_confirmed(self, position: Position) -> None:
        """The writer's broker says that everything up to here is confirmed, and can be read."""
        self._told = position
        if position > self.last_confirmed:
            self._grown()

    def is_past(self, position: Position) -> bool:
        """Whether the record lists no ledger any more that has this entry or an earlier one."""
        return bool(self._recorded) and position.ledger < self._recorded[0].ledger_id

    async def _read_open(self, chapter: Chapter) -> None:
        reader = await self._reader(chapter)
        if isinstance(reader, FollowingReader):
            if self._told.ledger == chapter.ledger_id:
                reader.learn(self._told.entry)
            if self._unfollow is _nobody:
                self._unfollow = reader.follow(self._grown)
        while chapter.entries <= (last := reader.last_confirmed()):
            await self._read_some(chapter, last)

    async def _read_sealed(self, chapter: Chapter, span: Span) -> None:
        """The rest of a ledger that was sealed while it was followed."""
        self.stop_following()
        chapter.reader = None  # it was made while the ledger was open
        behind = span.entries - chapter.entries
        is_late = 0 < self.reset_behind < behind
        try:
            while not is_late and chapter.entries < span.entries:
                await self._read_some(chapter, span.entries - 1)
        except (LedgerCorrupt, EntryFormatError) as error:
            log.warning("ledger %d will be read again when its entries are needed: %s", chapter.ledger_id, error)
        if chapter.entries < span.entries:
            self.resets += is_late
            self._forget_tail()
            chapter.index = self._index = chapter.times = None
            chapter.entries = span.entries
            self._tell(Position(span.ledger_id, span.entries - 1))
        chapter.size, chapter.sealed_ms = span.size, span.sealed_ms

    async def _read_some(self, chapter: Chapter, last: int) -> None:
        reader = await self._reader(chapter)
        try:
            entries = await reader.read(chapter.entries, last, READ_BYTES)
        except LedgerCorrupt as error:
            if chapter.sealed_ms or self._is_sealed(chapter):
                raise
            raise LedgerUnreadable(f"{error}; its readers wait until the ledger is sealed") from error
        if not entries:
            raise LedgerUnreadable(f"ledger {chapter.ledger_id} ends before entry {chapter.entries}")
        index, times = chapter.index, chapter.times
        assert index is not None and times is not None
        headers = [unpack(entry) for entry in entries]
        size = 0
        for number, (header, entry) in enumerate(zip(headers, entries, strict=True), chapter.entries):
            index.add(header)
            times.note(number, 1, header.publish_time_ms, header.publish_time_ms)
            self._tail[number] = entry
            size += len(entry)
        chapter.entries += len(entries)
        chapter.size += size
        self._tail_bytes += size
        self._cache.used += size
        self.read_bytes += size
        self._note_ends(*chapter.ends())
        over = self._cache.used - self._cache.limit
        self._shrink_tail(max(0, min(self._limits.tail_bytes, self._tail_bytes - max(over, 0))))
        self._tell(Position(chapter.ledger_id, chapter.entries - 1))
        await next_turn(self._scheduler)

    def _is_sealed(self, chapter: Chapter) -> bool:
        return any(span.ledger_id == chapter.ledger_id and span.entries >= 0 for span in self._recorded)

    def _grown(self) -> None:
        self.on_grown()

    def _tell(self, end: Position) -> None:
        self.last_confirmed = max(self.last_confirmed, end)
        notify_all(tuple(self._watchers))

    def _note_ends(self, own: Position, origins: Mapping[str, Position]) -> None:
        self._own_appended = max(self._own_appended, own)
        for region, last in origins.items():
            self.last_origin[region] = max(last, self.last_origin.get(region, EARLIEST))

    # -- the end -------------------------------------------------------------------------------------------------

    def stop_following(self) -> None:
        """Stop asking the store how far the ledger is confirmed."""
        unfollow, self._unfollow = self._unfollow, _nobody
        unfollow()

    async def close(self) -> None:
        """Stop following it. Nothing is sealed or written."""
        self.failure = self.failure or LedgerError("the topic is no longer followed here: look its shadow up again")
        self.stop_following()
        self._forget_tail()

    async def delete(self) -> None:
        """Stop following it. Nothing is deleted."""
        await self.close()
