# SPDX-License-Identifier: Apache-2.0
"""A topic's entries: a chain of ledgers that looks like one log.

One ledger at a time is written; it is created when the first entry arrives after the topic was opened, because a broker
never appends to a ledger it finds (R1). Roll-over creates the next one and seals the last; entries published in between
wait in order. Each ledger's record in the metadata describes the state before it (the last own entry, the last entry of
every other region), so that a restart reads the headers of unsealed ledgers only, and trimming loses no information
(R4).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from meridian_broker.ledgers.block_times import BlockTimes
from meridian_broker.ledgers.chapters import CacheBudget, Chapter, LogLimits, LogMetadata, Span
from meridian_broker.ledgers.damage import Mend
from meridian_broker.ledgers.entry import MARKER, NO_ORIGIN, EntryHeader, pack_foreign, pack_own, unpack
from meridian_broker.ledgers.holes import Hole, Holes, is_break
from meridian_broker.ledgers.index import LedgerIndex
from meridian_broker.ledgers.notifying import notify_all
from meridian_broker.ledgers.pending import AppendedToLog, OwnEntry, Pending, Waiting
from meridian_broker.ledgers.reading import ReadableLog
from meridian_broker.ledgers.restored import standing
from meridian_broker.ledgers.scheduling import Scheduler, next_turn
from meridian_broker.ledgers.store import FollowedWriter, LedgerError, LedgerStore, Writer
from meridian_broker.metadata.store import MetadataError
from meridian_broker.positions.position import EARLIEST, Position

_log: Final = logging.getLogger(__name__)
_NO_LINK: Final = MARKER | NO_ORIGIN
HEARD_AT_ONCE: Final = 2000
"""Entries whose origins an opening records in one turn of the loop."""
"""An entry with one of these flags is not a link of its origin's chain."""


class TopicLog(ReadableLog):
    """The log of one topic or partition in this region."""

    def __init__(
        self,
        region: str,
        store: LedgerStore,
        metadata: LogMetadata,
        fence: int,
        limits: LogLimits,
        scheduler: Scheduler,
        cache: CacheBudget,
    ) -> None:
        super().__init__(region, store, cache, scheduler)
        self._metadata = metadata
        self._fence = fence
        self._limits = limits
        self._writer: Writer | None = None
        self._writing = -1
        """The ledger of the writer."""
        self._last_number = 0
        self._room = 0
        """The entry, and the bytes, after which the ledger is full."""
        self._times = BlockTimes()
        """Times in the ledger being written, including entries that are not durable yet."""
        self._rolling = False
        self._leaving = 0
        """The first ``_leaving`` ledgers are being removed from the record."""
        self._rolled: list[Callable[[], None]] = []  # callbacks waiting for the current roll-over
        self._waiting: deque[Waiting] = deque()
        self._pending: deque[Pending] = deque()
        self._durable = -1
        """The last entry of the writer's ledger that the store called durable."""
        self._refusal: LedgerError | None = None
        self._watchers: list[Callable[[], None]] = []
        self._waking = False
        self._own_appended = EARLIEST
        self._known_own = EARLIEST
        self._known_origins: dict[str, Position] = {}
        """As of the opening; ``_known_own`` may also be an entry that is no longer stored anywhere (``follow``)."""
        self._own_link = EARLIEST
        """``prev`` of the next own entry; claims nothing before that one while other regions may know of more (R5)."""
        self._own_waits = False
        """Own entries go to a new ledger, because their predecessor has changed."""
        self.is_joined = True
        """False: before the first own entry is published every region should be asked whether it has more of ours."""
        self.holes = Holes()
        self.failure: LedgerError | None = None
        self.last_origin: dict[str, Position] = {}
        """Last entry appended of every other region (R4)."""
        self.joined: dict[str, Position] = {}
        """Before which first entry ever of a region there were others (R21)."""
        self.appended_bytes = 0
        self._asked = 0
        self._finished = 0
        self._awaiting: deque[tuple[int, Callable[[LedgerError | None], None]]] = deque()

    # -- opening and closing -------------------------------------------------------------------------------------

    async def open(
        self,
        spans: list[Span],
        last_own: Position,
        last_origins: Mapping[str, Position],
        holes: Mapping[str, Sequence[Hole]] | None = None,
        found: Sequence[Span] = (),
        trimmed: Sequence[int] = (),
        mends: Sequence[Mend] = (),
    ) -> None:
        """Take over from an earlier owner: fence and seal its ledgers, and read the headers of the last one.

        :param last_own: ``last_origins`` and ``holes``: as of the last write of the record; the ledgers are
            newer, or older when the volume was restored from an older copy than the metadata.
        :param found: later ledgers of the topic that the metadata, an older copy than the volume, do not name.
        :param trimmed: ledgers of the topic that an earlier owner removed from the record and did not delete. They are
            deleted now, unless the volume is an older copy: its metadata may still be restored, too.
        :param mends: the recorded mends of damaged entries.
        :raises LedgerError: a ledger cannot be recovered; nothing was changed.
        """
        for _ in self.damage.restore(mends):
            await next_turn(self._scheduler)
        stands = await standing(
            self._store, spans, found, last_own, last_origins, self._fence, self._scheduler.now_ms()
        )
        self._chapters = stands.chapters
        self._ids = [chapter.ledger_id for chapter in stands.chapters]
        self.holes = Holes() if stands.is_older else Holes(holes)
        if not stands.is_older and not found:
            self._ends_on_record = last_own, last_origins
        if self._chapters:
            new = {span.ledger_id for span in (stands.chapters if stands.is_older else found)}
            named = sum(chapter.ledger_id not in new for chapter in self._chapters)
            for chapter in self._chapters[max(named - 1, 0) :]:  # the last recorded one grew since it was recorded
                await self._hear_again(chapter, is_new=chapter.ledger_id in new)
            last = self._chapters[-1]
            self.last_confirmed = Position(last.ledger_id, last.entries - 1)
        else:
            self._own_appended, self.last_origin = stands.last_own, stands.last_origins
        self._own_link = self._known_own = self._own_appended
        self._known_origins = dict(self.last_origin)
        if stands.is_older:  # nor can the metadata know where a hole begins that the volume knows of
            self.holes.open_all(holes or {})
        if stands.is_other:
            await self._save()
        if not stands.is_older:
            for ledger_id in trimmed:
                await self._store.delete(ledger_id)

    async def _hear_again(self, chapter: Chapter, *, is_new: bool) -> None:
        """Record the origins of one ledger's entries.

        :param is_new: to the metadata: the state recorded when it was written is lost.
        """
        index = await self.load_index(chapter.ledger_id)
        self._own_appended = max(chapter.own_before, index.last_own() or EARLIEST)
        for region, last in chapter.origins_before.items():
            self.last_origin[region] = max(last, self.last_origin.get(region, EARLIEST))
        if is_new and not chapter.is_joined:
            self.holes.open(self.region, chapter.own_before, Position(chapter.ledger_id, -1))
        for first in range(0, chapter.entries, HEARD_AT_ONCE):
            if first:
                await next_turn(self._scheduler)
            for entry in range(first, min(first + HEARD_AT_ONCE, chapter.entries)):
                place = index.place(entry)
                if place is not None:
                    if place.region != self._codes.names[0]:
                        self._heard(*place)
                    self.holes.fill(place.region, place.origin)

    def join(self) -> None:
        """Every region was asked: all remaining entries of this region are stored here."""
        self.is_joined = True
        self.holes.close(self.region)
        if self._writer is not None and self._own_link.entry < 0 and not self._chapters[-1].is_joined:
            self._own_link, self._own_waits = self._own_appended, True

    def restore_joined(self, recorded: Mapping[str, Position], *, is_joined: bool) -> None:
        """What was found out before the topic was opened.

        :param recorded: as ``joined``.
        :param is_joined: every region was asked, as after ``join``.
        """
        self.joined.update(recorded)
        self.is_joined = is_joined

    def follow(self, end: Position) -> None:
        """The next own entry follows ``end``, which is stored nowhere any more (R5)."""
        if end > self._own_appended:
            self._own_appended = self._own_link = self._known_own = end
            self._own_waits = True

    async def close(self) -> None:
        """Seal the ledger being written, so that the next owner need not recover it."""
        if self.failure is None:
            self.failure = LedgerError("the topic is being closed: look its owner up again")
        self._fail_waiting(self.failure)
        if self._rolling:
            await self._rolled_over()
        writer, self._writer = self._writer, None
        if writer is not None:
            await writer.seal()
            self._take_durable()
            self._chapters[-1].sealed_ms = self._scheduler.now_ms()
            await self._save()
        self._answer()
        self._forget_tail()

    async def _save(self) -> None:
        await self._metadata.save_spans(self.spans()[self._leaving :], *self._ends(), self.holes.ranges)

    # -- appending -----------------------------------------------------------------------------------------------

    def append_own(self, entries: Sequence[OwnEntry], done: AppendedToLog, tokens: list[Any]) -> None:
        """Append entries first stored here. ``done`` is called with all their tokens, in order, in one or more calls.

        Every entry is packed before the first is appended: if one cannot be stored this raises, and nothing changes.
        """
        writer = self._writer
        if writer is None or self._rolling or self._own_waits:
            self._wait_for_ledger(Waiting(done, tokens, entries))
            return
        now_ms, ledger = self._scheduler.now_ms(), self._writing
        number = first = writer.next_entry
        prev_ledger, prev_entry = self._own_link
        earliest_ms = latest_ms = entries[0][4]
        room, last_number = self._room, self._last_number
        is_full = False
        stored: list[bytes] = []
        facts: list[EntryHeader | int] = []
        for flags, messages, key_hash, checksum, publish_ms, extras, body in entries:
            entry = pack_own(
                flags, messages, key_hash, checksum, publish_ms, now_ms, prev_ledger, prev_entry, extras, body
            )
            stored.append(entry)
            if flags & _NO_LINK:
                facts.append(unpack(entry))
            else:
                facts.append(messages)
                prev_ledger, prev_entry = ledger, number
            if publish_ms > latest_ms:
                latest_ms = publish_ms
            elif publish_ms < earliest_ms:
                earliest_ms = publish_ms
            room -= len(entry)
            is_full = number >= last_number or room <= 0
            if is_full:
                break
            number += 1
        if not self._append(writer, stored, done, tokens):
            return
        count = len(stored)
        self._room = room
        self._own_link = Position(prev_ledger, prev_entry)
        if prev_entry >= 0:
            self._own_appended = self._own_link
        self._times.note(first, count, earliest_ms, latest_ms)
        self._asked += count
        self._pending.append(Pending(first, stored, facts, done, tokens))
        if is_full:
            self._roll()
            if count < len(entries):
                self._pending[-1].tokens = tokens[:count]
                self._wait_for_ledger(Waiting(done, tokens[count:], entries[count:]))

    def append_foreign(self, header: EntryHeader, body: bytes | memoryview, done: AppendedToLog, token: Any) -> None:
        """Append an entry of another region; the caller has checked that it is the next one of its origin (R4).

        Or one of this region's own that it lost, and that another region had (R5).
        """
        entry = pack_foreign(header) + body
        is_own = header.region == self._codes.names[0]
        if header.region is not None and header.origin is not None and not is_own:
            self._heard(header.region, header.prev, header.origin)
        writer = self._writer
        if writer is None or self._rolling:
            self._wait_for_ledger(Waiting(done, [token], [], header, body))
            return
        number = writer.next_entry
        if not self._append(writer, [entry], done, [token]):
            return
        self._asked += 1
        self._times.note(number, 1, header.publish_time_ms, header.publish_time_ms)
        self._pending.append(Pending(number, [entry], [header], done, [token]))
        if is_own and header.origin is not None and header.origin > self._own_appended:
            self._own_appended = self._own_link = header.origin
            self._own_waits = True
        self._room -= len(entry)
        if number >= self._last_number or self._room <= 0:
            self._roll()

    def _append(self, writer: Writer, stored: list[bytes], done: AppendedToLog, tokens: list[Any]) -> bool:
        """Pass packed entries to the store. False: that failed half way, and ``done`` is called with it in the next
        turn.

        The store may then have some of them, and which ones is not known, so nothing is appended behind them: the log
        fails, and the next opening reads what is there.
        """
        append, on_durable = writer.append, self._on_durable
        try:
            for entry in stored:
                append(entry, on_durable)
        except Exception as raised:
            _log.exception("ledger %d: an append failed half way", self._writing)
            failure = LedgerError(f"entries could not be appended to ledger {self._writing}: {raised!r}")
            self._scheduler.defer(lambda: done(tokens, failure))
            on_durable(failure)
            self._fail(failure)
            return False
        return True

    def pass_over(self, region: str, after: Position, upto: Position) -> None:
        """The entries of another region between the two will not arrive; without effect if others arrived after
        them.
        """
        if self.last_origin.get(region, EARLIEST) == after:
            self.last_origin[region] = upto

    def _heard(self, region: str, prev: Position, origin: Position) -> None:
        """Record the last entry of another region, unless it fills a hole."""
        last = self.last_origin.get(region, EARLIEST)
        if origin > last:
            if last == EARLIEST < prev and region not in self.unchained:
                self.joined.setdefault(region, prev)
            if is_break(prev, origin) and region not in self.unchained:
                self.holes.open(region, last, origin)
            self.last_origin[region] = origin

    def _wait_for_ledger(self, waiting: Waiting) -> None:
        if self.failure is not None:
            failure = self.failure
            self._scheduler.defer(lambda: waiting.done(waiting.tokens, failure))
            return
        self._asked += len(waiting.tokens)
        self._waiting.append(waiting)
        if self._writer is None or self._own_waits:
            self._roll()

    def _on_durable(self, result: int | LedgerError) -> None:
        """The store's result for one entry. All results of one turn are processed together, after it."""
        if isinstance(result, int):
            self._durable = result
        elif self._refusal is None:
            self._refusal = result
        if not self._waking:
            self._waking = True
            self._scheduler.defer(self._wake)

    def _take_durable(self) -> None:
        """Publish what became durable, then call all waiting callbacks; an exception of one is raised after the
        others.
        """
        mistake: Exception | None = None
        told: list[Pending] = []
        while self._pending and self._pending[0].first <= self._durable:
            count = self._durable + 1 - self._pending[0].first
            told.append(self._pending[0].cut(count) or self._pending.popleft())
        if told:
            index, chapter = self._index, self._chapters[-1]
            assert index is not None
            size = 0
            for group in told:
                index.add_all(group.facts)
                self._tail.update(zip(range(group.first, group.first + len(group.entries)), group.entries, strict=True))
                size += sum(map(len, group.entries))
            chapter.entries = self._durable + 1
            chapter.size += size
            self.appended_bytes += size
            self._tail_bytes += size
            self._cache.used += size
            self.last_confirmed = Position(chapter.ledger_id, self._durable)
            for group in told:
                self._finished += len(group.entries)
                try:
                    group.done(group.tokens, Position(chapter.ledger_id, group.first))
                except Exception as raised:
                    mistake = raised
        if self._refusal is not None:
            refusal = self._refusal
            self._fail(refusal)
            failed, self._pending = self._pending, deque()
            notify_all([partial(group.done, group.tokens) for group in failed], refusal)
        if self._awaiting:
            self._answer()
        if mistake is not None:
            raise mistake

    def when_durable(self, callback: Callable[[LedgerError | None], None]) -> None:
        """Call ``callback`` once everything appended so far is durable, at once if it is, or with the error that
        prevents it.
        """
        self._awaiting.append((self._asked, callback))
        self._answer()

    def _answer(self) -> None:
        due: list[Callable[[], None]] = []
        while self._awaiting and (self._awaiting[0][0] <= self._finished or self.failure is not None):
            asked, callback = self._awaiting.popleft()
            due.append(partial(callback, None if asked <= self._finished else self.failure))
        notify_all(due)

    def _wake(self) -> None:
        self._waking = False
        try:
            self._take_durable()
        finally:
            if self._tail_bytes > self._limits.tail_bytes:
                self._shrink_tail(self._limits.tail_bytes)
            if self._cache.used > self._cache.limit:
                self._shrink_tail(max(0, self._tail_bytes - (self._cache.used - self._cache.limit)))
            notify_all(tuple(self._watchers))

    def announce(self) -> None:
        """Let brokers that follow this log know of what is durable."""
        if isinstance(self._writer, FollowedWriter):
            self._writer.announce()

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call ``callback``, once per turn of the loop, after entries became durable. Returns a function that ends
        this.
        """
        self._watchers.append(callback)

        def unwatch() -> None:
            if callback in self._watchers:
                self._watchers.remove(callback)

        return unwatch

    def _fail(self, error: LedgerError) -> None:
        if self.failure is None:
            self.failure = error
            self._writer = None
            self._forget_tail()
            self._scheduler.defer(lambda: self._fail_waiting(error))
            self._answer()
            notify_all(tuple(self._watchers))

    def _fail_waiting(self, error: LedgerError) -> None:
        waiting, self._waiting = self._waiting, deque()
        notify_all([partial(each.done, each.tokens) for each in waiting], error)

    # -- roll-over -----------------------------------------------------------------------------------------------

    def _roll(self) -> None:
        if not self._rolling:
            self._rolling = True
            self._scheduler.spawn(self._roll_over(), "roll a ledger over")

    async def roll(self) -> None:
        """Continue in another ledger, so that everything stored so far can be trimmed. :raises LedgerError: the log
        failed.
        """
        if self.failure is None and self._chapters and self._chapters[-1].entries:
            self._roll()
        if self._rolling:
            await self._rolled_over()
        if self.failure is not None:
            raise self.failure

    async def _rolled_over(self) -> None:
        await self._scheduler.answer(lambda ready: self._rolled.append(lambda: ready(None)))

    async def _roll_over(self) -> None:
        try:
            await self._begin_ledger()
        finally:
            rolled, self._rolled = self._rolled, []
            for ready in rolled:
                ready()

    async def _begin_ledger(self) -> None:
        try:
            if self._writer is not None:
                await self._writer.seal()
                self._take_durable()
                self._chapters[-1].sealed_ms = self._scheduler.now_ms()
            ledger_id = await self._metadata.allocate_ledger_id()
            label = self._next_span(ledger_id).label(self._metadata.belonging)
            writer = await self._store.create(ledger_id, self._fence, label)
            span = self._next_span(ledger_id)
            if not span.is_joined:
                self.holes.open(self.region, self._own_appended, Position(ledger_id, -1))
            chapter = Chapter(span)
            self._own_link = span.link
            chapter.index = self._index = LedgerIndex(ledger_id, self._codes, self._own_link)
            chapter.times = self._times = BlockTimes()
            self._chapters.append(chapter)
            self._ids.append(ledger_id)
            self._writer = writer
            self._writing = ledger_id
            self._durable = -1
            self._last_number = self._limits.max_entries - 1
            self._room = self._limits.max_bytes
            await self._save()
        except Exception as error:
            why = error if isinstance(error, LedgerError) else LedgerError(f"no new ledger could be created: {error}")
            self._rolling = False
            self._fail(why)  # whoever uses the log is told; a traceback says more than that only of a bug
            if not isinstance(error, (LedgerError, MetadataError)):
                raise
            return
        self._forget_tail()
        self._rolling = self._own_waits = False
        waiting, self._waiting = self._waiting, deque()
        for each in waiting:
            self._asked -= len(each.tokens)
            try:
                if each.header is None:
                    self.append_own(each.entries, each.done, each.tokens)
                else:
                    self.append_foreign(each.header, each.body, each.done, each.tokens[0])
            except Exception as raised:  # callers behind it need an answer, too
                _log.exception("ledger %d: entries that waited for it cannot be stored", self._writing)
                each.done(each.tokens, LedgerError(f"entries cannot be stored: {raised!r}"))

    def _next_span(self, ledger_id: int) -> Span:
        return Span(ledger_id, *self._ends(), is_joined=self.is_joined or self._is_chain_known())

    def _is_chain_known(self) -> bool:
        """Whether this opening has published already, so that the predecessor of the next own entry is certain."""
        has_published = self._own_link.ledger == self._writing and self._own_link.entry >= 0
        return self._writing >= 0 and (has_published or self._chapters[-1].is_joined)

    def _ends(self) -> tuple[Position, dict[str, Position]]:
        """The last own entry and the last one of every other region that are or were durable. Entries on their way to
        the disk may never arrive; counting them would mean that they are never sent again."""
        if not self._chapters:
            return self._known_own, self._known_origins
        own, origins = self._chapters[-1].ends()
        return max(own, self._known_own), origins

    # -- state for readers -----------------------------------------------------------------------------------------

    @property
    def last_own(self) -> Position:
        """The last own entry appended here."""
        return self._own_appended

    def own_before(self, ledger: int) -> Position:
        """The last own entry that was known when a ledger was made; its first own entry may not say so (R5)."""
        return self._chapter(ledger).own_before

    def spans(self) -> list[Span]:
        """The ledgers as the metadata list them now; the open ledger last."""
        return [c.span(self._writer is not None and c is self._chapters[-1]) for c in self._chapters]

    # -- space ---------------------------------------------------------------------------------------------------

    def gone_upto(self) -> dict[str, Position]:
        """Per region the last entry that was stored before the first ledger here, or before the first one that stays
        when a trim is under way."""
        return self.origins_before(self.staying_from)

    @property
    def staying_from(self) -> int:
        """The first ledger here, or the first one that stays when a trim is under way; -1: there is none."""
        return self._ids[self._leaving] if self._leaving < len(self._ids) else -1

    def origins_before(self, ledger: int) -> dict[str, Position]:
        """Per region the last entry that was stored before a ledger of this log; -1: before the next one."""
        if ledger < 0:
            return {**self.last_origin, self.region: self.last_own}
        chapter = self._chapter(ledger)
        return {**chapter.origins_before, self.region: chapter.own_before}

    async def trim(self, below: Position, keep_bytes: int | None, keep_since_ms: int | None) -> list[int]:
        """Delete whole ledgers that lie at or below ``below`` and outside retention; returns their ids.

        A ledger is outside when it was sealed before ``keep_since_ms``, or when the ones after it hold ``keep_bytes``
        already; None: no such limit. The record changes first, then memory, then the disk: a write that fails leaves
        everything as it was, and files left by a crash are deleted at the next opening.

        :raises MetadataError: the record was not written.
        """
        gone = [] if self._leaving else self.trimmable(below, keep_bytes, keep_since_ms)
        if gone:
            self._leaving = len(gone)
            try:
                await self._save()
                del self._chapters[: len(gone)]
                del self._ids[: len(gone)]
            finally:
                self._leaving = 0
            self.damage.forget_below(self._ids[0])
            for chapter in gone:
                await self._store.delete(chapter.ledger_id)
        return [chapter.ledger_id for chapter in gone]

    async def delete(self) -> None:
        """Delete every ledger: the topic is deleted."""
        self.failure = self.failure or LedgerError("the topic was deleted")
        writer, self._writer = self._writer, None
        if writer is not None:
            await writer.seal()
        for chapter in self._chapters:
            await self._store.delete(chapter.ledger_id)
        self._chapters.clear()
        self._ids.clear()
        self._forget_tail()
