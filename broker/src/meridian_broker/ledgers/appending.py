# SPDX-License-Identifier: Apache-2.0
"""Appending to a topic's log, one ledger at a time.

A ledger is created when the first entry arrives after the topic was opened, because a broker never appends to a ledger
it finds (R1). Roll-over creates the next one and seals the last; entries published in between wait in order. Each
ledger's record in the metadata describes the state before it: the last own entry, and the last entry of every other
region (R4).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from meridian_broker.ledgers.block_times import BlockTimes
from meridian_broker.ledgers.chapters import CacheBudget, Chapter, LogLimits, LogMetadata, Span
from meridian_broker.ledgers.durability import DurableLog
from meridian_broker.ledgers.entry import MARKER, NO_ORIGIN, EntryHeader, pack_foreign, pack_own, unpack
from meridian_broker.ledgers.holes import Holes, is_break
from meridian_broker.ledgers.index import LedgerIndex
from meridian_broker.ledgers.pending import AppendedToLog, OwnEntry, Pending, Waiting
from meridian_broker.ledgers.scheduling import Scheduler
from meridian_broker.ledgers.store import LedgerError, LedgerStore, Writer
from meridian_broker.metadata.store import MetadataError
from meridian_broker.positions.position import EARLIEST, Position

_log: Final = logging.getLogger(__name__)
_NO_LINK: Final = MARKER | NO_ORIGIN
"""An entry with one of these flags is not a link of its origin's chain."""


class AppendableLog(DurableLog):
    """A log that entries of this region and of others are appended to."""

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
        super().__init__(region, store, cache, scheduler, limits)
        self._metadata = metadata
        self._fence = fence
        self._writing = -1
        """The ledger of the writer."""
        self._last_number = 0
        self._room = 0
        """Last entry id, and bytes left, before the ledger is full."""
        self._times = BlockTimes()
        """Times in the ledger being written, including entries that are not durable yet."""
        self._rolling = False
        self._leaving = 0
        """The first ``_leaving`` ledgers are being removed from the record."""
        self._rolled: list[Callable[[], None]] = []  # callbacks waiting for the current roll-over
        self._own_appended = EARLIEST
        self._known_own = EARLIEST
        self._known_origins: dict[str, Position] = {}
        """As of the opening; ``_known_own`` may also be an entry that is no longer stored anywhere (``follow``)."""
        self._own_link = EARLIEST
        """``prev`` of the next own entry; names nothing before that entry while other regions may know of more
        (R5)."""
        self._own_waits = False
        """Own entries go to a new ledger, because their predecessor has changed."""
        self.is_joined = True
        """False: before the first own entry is published, ask every region whether it has more of ours."""
        self.holes = Holes()
        self.last_origin: dict[str, Position] = {}
        """Last entry appended of every other region (R4)."""
        self.joined: dict[str, Position] = {}
        """Per origin, the join point: the copy here never contained entries up to it (R21)."""

    @property
    def last_own(self) -> Position:
        """The last own entry appended here."""
        return self._own_appended

    def spans(self) -> list[Span]:
        """The ledgers as the metadata list them now; the open ledger last."""
        return [c.span(self._writer is not None and c is self._chapters[-1]) for c in self._chapters]

    # -- entries -------------------------------------------------------------------------------------------------

    def append_own(self, entries: Sequence[OwnEntry], done: AppendedToLog, tokens: list[Any]) -> None:
        """Append entries first stored here. ``done`` is called with all their tokens, in order, in one or more calls.

        Every entry is packed before the first is appended: if one cannot be stored, this raises and nothing changes.
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

        Or one of this region's own that it lost and another region still had (R5).
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
        """Pass packed entries to the store. False: that failed halfway; ``done`` gets the error in the next turn.

        The store may then have an unknown part of them, so nothing is appended after them: the log fails, and the next
        opening reads what is there.
        """
        try:
            writer.append_many(stored, self._on_durable)
        except Exception as raised:
            _log.exception("ledger %d: an append failed halfway, so its topic is opened again", self._writing)
            failure = LedgerError(f"entries could not be appended to ledger {self._writing}: {raised!r}")
            self._scheduler.defer(lambda: done(tokens, failure))
            self._on_durable(failure)
            self._fail(failure)
            return False
        return True

    def pass_over(self, region: str, after: Position, upto: Position) -> None:
        """The entries of another region between the two will not arrive. No effect if later ones arrived already."""
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
            self._fail(why)  # the log's users are told; only a bug needs a traceback
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
            except Exception as raised:  # callers after it need an answer, too
                _log.exception(
                    "ledger %d: entries waiting for it cannot be stored, and their senders are told", self._writing
                )
                each.done(each.tokens, LedgerError(f"entries cannot be stored: {raised!r}"))

    def _next_span(self, ledger_id: int) -> Span:
        return Span(ledger_id, *self._ends(), is_joined=self.is_joined or self._is_chain_known())

    def _is_chain_known(self) -> bool:
        """Whether something was published since the opening, so the next own entry's predecessor is certain."""
        has_published = self._own_link.ledger == self._writing and self._own_link.entry >= 0
        return self._writing >= 0 and (has_published or self._chapters[-1].is_joined)

    def _ends(self) -> tuple[Position, dict[str, Position]]:
        """The last own entry and the last one of every other region that are or were durable. Entries on their way to
        the disk may never arrive; if they were counted, they would never be sent again."""
        if not self._chapters:
            return self._known_own, self._known_origins
        own, origins = self._chapters[-1].ends()
        return max(own, self._known_own), origins

    async def _save(self) -> None:
        await self._metadata.save_spans(self.spans()[self._leaving :], *self._ends(), self.holes.ranges)
