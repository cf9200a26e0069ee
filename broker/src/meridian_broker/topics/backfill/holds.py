# SPDX-License-Identifier: Apache-2.0
"""Keeps entries that other regions still need from here (R6).

While an origin cannot reach a region, or is lost for good, other regions forward its entries as long as they have them.
So before a ledger with entries of another region is trimmed, every third region is asked how far it has that origin.
The ledger is kept while a region lacks entries in it that are meant for that region, but no longer than
``entries_held_minutes`` after it was sealed, because a region that never returns must not fill the disk. After that it
is trimmed, which is logged and counted.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.topics.backfill.answers import find
from meridian_broker.topics.backfill.backfill import Backfill
from meridian_broker.topics.backfill.questions import PeerAway, Want

if TYPE_CHECKING:
    from meridian_broker.ledgers.chapters import Chapter
    from meridian_broker.topics.context import TopicContext

log = logging.getLogger(__name__)


class RetentionHolds:
    """What one topic keeps for other regions."""

    def __init__(self, topic: TopicContext, backfill: Backfill | None) -> None:
        """:param backfill: asks the other regions; None: there are none to ask."""
        self._topic = topic
        self._backfill = backfill
        self._known: dict[tuple[str, str], Position] = {}
        """``(region, origin)``: how far the region was known to have the origin."""
        self.reason = ""
        """Why something is kept now; empty if nothing is."""
        self.bytes_held = 0
        self.entries_let_go = 0
        """Entries trimmed after the time limit although a region may lack them, since the topic was opened."""

    async def upto(self, below: Position, keep_bytes: int | None, keep_since_ms: int | None) -> Position:
        """The position up to which entries may be trimmed, of those at or before ``below``.

        :raises LedgerError: an entry cannot be read.
        :raises TopicFenced: the topic was closed or deleted while another region was asked.
        """
        topic, backfill = self._topic, self._backfill
        self.reason, self.bytes_held = "", 0
        if backfill is None or not backfill.others():
            return below
        going = topic.log.trimmable(below, keep_bytes, keep_since_ms)
        asked: set[tuple[str, str]] = set()
        upto = below
        for chapter in going:
            topic.check_open()
            reason = self.reason or await self._needed_by(chapter, backfill, asked)
            if not reason:
                continue
            age_ms = topic.scheduler.now_ms() - chapter.sealed_ms
            if age_ms > topic.limits.entries_held_minutes * 60_000:
                self.entries_let_go += chapter.entries
                log.warning(
                    "%s: deleting ledger %d, because entriesHeldForRegionsMinutes is over: %s",
                    topic.name,
                    chapter.ledger_id,
                    reason,
                )
                continue
            if not self.reason:
                upto = min(below, topic.log.before(Position(chapter.ledger_id, 0)))
            self.reason = reason
            self.bytes_held += chapter.size
        return upto

    async def _needed_by(self, chapter: Chapter, backfill: Backfill, asked: set[tuple[str, str]]) -> str:
        """Why a ledger has to be kept: which region lacks entries of another region in it. Empty: none does."""
        others = backfill.others()
        for origin, last in self._topic.log.origins_through(chapter).items():
            if last <= chapter.origins_before.get(origin, EARLIEST) or origin in self._topic.log.unchained:
                continue
            for region in sorted(others - {origin}):
                reason = await self._lacks(region, origin, last, backfill, asked)
                if reason:
                    return reason
        return ""

    async def _lacks(
        self, region: str, origin: str, last: Position, backfill: Backfill, asked: set[tuple[str, str]]
    ) -> str:
        topic, key = self._topic, (region, origin)
        end = Position(last.ledger, last.entry + 1)
        if self._known.get(key, EARLIEST) < last and key not in asked:
            asked.add(key)
            try:
                said = await backfill.ask(region, Want(topic.name, topic.incarnation, origin, last, end))
            except PeerAway as away:
                return f"held for {region}: {away}"
            self._known[key] = max(said.last, self._known.get(key, EARLIEST))
        known = self._known.get(key, EARLIEST)
        if known >= last:
            return ""
        found = await find(topic, backfill, region, Want(topic.name, topic.incarnation, origin, known, end))
        if not found.entries:
            return ""  # what it lacks is not meant for it, or is trimmed here, too
        return f"held for {region}, which has entries of {origin} up to {known} only, not to {last}"
