# SPDX-License-Identifier: Apache-2.0
"""A topic's entries: a chain of ledgers that looks like one log.

This module opens, closes, trims and deletes it; its base classes read it, make entries durable and append them
(``reading.py``, ``durability.py``, ``appending.py``). Each ledger's record in the metadata describes the state before
it (the last own entry, the last entry of every other region), so that a restart reads the headers of unsealed ledgers
only, and trimming loses no information (R4).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from meridian_broker.ledgers.appending import AppendableLog
from meridian_broker.ledgers.chapters import Chapter, Span
from meridian_broker.ledgers.damage import Mend
from meridian_broker.ledgers.holes import Hole, Holes
from meridian_broker.ledgers.restored import surviving
from meridian_broker.ledgers.scheduling import next_turn
from meridian_broker.ledgers.store import LedgerError
from meridian_broker.positions.position import EARLIEST, Position

HEARD_AT_ONCE: Final = 2000
"""Entries whose origins are recorded in one turn of the loop while opening."""


class TopicLog(AppendableLog):
    """This region's log of one topic or partition."""

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

        :param last_own: like ``last_origins`` and ``holes``, as of the last write of the record; the ledgers are newer,
            or older when the volume was restored from an older copy than the metadata.
        :param found: later ledgers of the topic that the metadata, if older than the volume, do not name.
        :param trimmed: ledgers of the topic that an earlier owner removed from the record and did not delete. They are
            deleted now, unless the volume is an older copy: its metadata may still be restored, too.
        :param mends: the recorded mends of damaged entries.
        :raises LedgerError: a ledger cannot be recovered; nothing was changed.
        """
        for _ in self.damage.restore(mends):
            await next_turn(self._scheduler)
        stands = await surviving(
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
            for chapter in self._chapters[max(named - 1, 0) :]:  # the last recorded ledger has grown since
                await self._hear_again(chapter, is_new=chapter.ledger_id in new)
            last = self._chapters[-1]
            self.last_confirmed = Position(last.ledger_id, last.entries - 1)
        else:
            self._own_appended, self.last_origin = stands.last_own, stands.last_origins
        self._own_link = self._known_own = self._own_appended
        self._known_origins = dict(self.last_origin)
        if stands.is_older:  # nor can the metadata know where that hole begins
            self.holes.open_all(holes or {})
        if stands.is_other:
            await self._save()
        if not stands.is_older:
            for ledger_id in trimmed:
                await self._store.delete(ledger_id)

    async def _hear_again(self, chapter: Chapter, *, is_new: bool) -> None:
        """Record the origins of one ledger's entries.

        :param is_new: the metadata does not know the ledger: what was recorded while it was written is lost.
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
        """Take over what was learned before the topic was opened.

        :param recorded: as ``joined``.
        :param is_joined: every region was asked, as after ``join``.
        """
        self.joined.update(recorded)
        self.is_joined = is_joined

    def follow(self, end: Position) -> None:
        """The next own entry follows ``end``, which is no longer stored anywhere (R5)."""
        if end > self._own_appended:
            self._own_appended = self._own_link = self._known_own = end
            self._own_waits = True

    async def close(self) -> None:
        """Seal the ledger being written, so the next owner need not recover it."""
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

    # -- space ---------------------------------------------------------------------------------------------------

    def own_before(self, ledger: int) -> Position:
        """The last own entry known when a ledger was created; the ledger's first own entry may not name it (R5)."""
        return self._chapter(ledger).own_before

    def gone_upto(self) -> dict[str, Position]:
        """Per region the last entry stored before the first ledger here; during a trim, before the first one that
        stays."""
        return self.origins_before(self.staying_from)

    @property
    def staying_from(self) -> int:
        """The first ledger here; during a trim, the first one that stays; -1: there is none."""
        return self._ids[self._leaving] if self._leaving < len(self._ids) else -1

    def origins_before(self, ledger: int) -> dict[str, Position]:
        """Per region the last entry stored before this ledger of the log; ``ledger`` -1: before the next one."""
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
