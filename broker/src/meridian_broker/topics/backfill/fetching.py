# SPDX-License-Identifier: Apache-2.0
"""Fetches the entries of one range from the regions that have them, and stores them under their origin (R3, R5, R6).

Each round asks, chooses the answer that goes furthest, and stores it. Only an unbroken chain is accepted: the first
entry must follow the last one stored. Where the chain is broken in every region, the missing entries are lost; whether
that may be accepted is the caller's decision.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from meridian_broker.ledgers.entry import EntryHeader, pack_foreign, unpack
from meridian_broker.ledgers.store import LedgerError
from meridian_broker.positions.position import EARLIEST, LATEST, Position
from meridian_broker.topics.backfill.answers import checked
from meridian_broker.topics.backfill.intake import Offered
from meridian_broker.topics.backfill.questions import Found, PeerAway, Peers, Want
from meridian_broker.topics.errors import TopicError
from meridian_broker.wire.pulsar import origin_fields

if TYPE_CHECKING:
    from meridian_broker.ledgers.holes import Hole
    from meridian_broker.topics.backfill.intake import Intake
    from meridian_broker.topics.backfill.joining import Joining
    from meridian_broker.topics.backfill.schema_numbers import SchemaNumbers
    from meridian_broker.topics.context import TopicContext

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Round:
    """What the regions answered to one question."""

    found: dict[str, Found] = field(default_factory=dict)
    away: set[str] = field(default_factory=set)
    """Regions of the topic that did not return all they have."""

    @property
    def having(self) -> dict[str, Found]:
        """Answers with entries."""
        return {region: one for region, one in self.found.items() if one.entries}

    @property
    def damaged(self) -> set[str]:
        """Regions in which the next entry is damaged."""
        return {region for region, one in self.found.items() if one.is_damaged}


class Fetching:
    """See the module's text. One per topic."""

    def __init__(
        self,
        topic: TopicContext,
        peers: Peers,
        intake: Intake,
        joining: Joining,
        schema_numbers: SchemaNumbers,
        *,
        others: Callable[[], set[str]],
        given_back: Callable[[bytes], None],
    ) -> None:
        """
        :param others: the topic's other regions.
        :param given_back: called with each of our own entries that was fetched back and is durable.
        """
        self._topic = topic
        self._peers = peers
        self._intake = intake
        self._joining = joining
        self._schema_numbers = schema_numbers
        self._others = others
        self._given_back = given_back
        self.returned = 0
        """Own entries that were fetched back since the topic was opened."""
        self.problem = ""
        """Why something that is missing cannot be fetched now; empty if nothing is in the way."""

    async def fetch(self, origin: str, hole: Hole, regions: Iterable[str], *, may_skip: bool) -> set[str]:
        """Fetch the entries of a hole from any region that has them. Returns the regions of the topic that could not
        return all they have.

        :param may_skip: if no region has the next entry, continue with the first one that any region has. A region
            that joins begins with that in any case (R21); earlier ones of an unreachable region arrive in a hole
            later.
        """
        topic, (after, before) = self._topic, hole
        asking = sorted(regions)
        source: str | None = None  # asked alone as long as it has more: the others would return the same
        while topic.failure is None:
            want = Want(topic.name, topic.incarnation, origin, after, before)
            answers = await self._ask(want, asking if source is None else [source])
            chained = {region: one for region, one in answers.having.items() if one.is_chained}
            if source is not None and source not in chained:
                source = None
                continue
            if not chained:
                chained = self._accept_loss(want, answers, may_skip=may_skip)
            is_drained = bool(answers.found) and not answers.having and not answers.damaged and before == LATEST
            if is_drained and (origin not in asking or origin in answers.found):
                self._joining.drained.add(origin)
            if not chained:
                if origin == topic.region and is_drained and not answers.away:
                    await self._follow_end(max((one.last for one in answers.found.values()), default=EARLIEST))
                return answers.away | answers.having.keys()
            best = max(chained, key=lambda region: len(chained[region].entries))
            try:
                stored = await self._store(best, want, chained[best].entries)
            except PeerAway as error:
                self.problem = str(error)
                return answers.away | {best}
            if stored is None:  # something else was stored meanwhile, or it is not admitted: retried later
                return answers.away if topic.terminated is not None else answers.away | {best}
            after, source = stored, best
        return set(asking)

    async def _ask(self, want: Want, regions: Iterable[str]) -> _Round:
        answers, others = _Round(), self._others()
        for region in regions:
            try:
                answers.found[region] = await self._peers.ask(region, want)
            except PeerAway as error:
                if region in others:
                    answers.away.add(region)
                    self.problem = str(error)
        its = answers.found.get(want.origin)
        if its is not None and want.origin != self._topic.region and not its.is_complete:
            answers.away.add(want.origin)  # it may get more back itself
        if damaged := answers.damaged:
            answers.away |= damaged & others
            self.problem = f"{', '.join(sorted(damaged))}: the next entry of {want.origin} is damaged there"
        return answers

    def _accept_loss(self, want: Want, answers: _Round, *, may_skip: bool) -> dict[str, Found]:
        """No region has the next entry: the answer to continue with, if that may be; else empty."""
        topic, origin, having = self._topic, want.origin, answers.having
        is_all = want.after == EARLIEST and want.before == LATEST
        joins = self._joining.is_joining and is_all and origin != topic.region
        if not having or not (joins or (may_skip and not answers.away)):
            return {}
        first = min(having, key=lambda region: _first(having[region]))
        if not joins:
            log.warning(
                "%s: entries of %s between %s and %s no longer exist in any region, so they are skipped",
                *(topic.name, origin, want.after, _first(having[first])),
            )
        elif answers.away or (origin not in answers.found and origin in self._others()):
            topic.log.holes.open(origin, want.after, _first(having[first]))
        return {first: having[first]}

    async def _follow_end(self, end: Position) -> None:
        """No region has anything up to ``end`` any more, because all that had it trimmed it: continue after it."""
        topic = self._topic
        if end > topic.log.last_own:
            if topic.metadata is not None:
                await topic.metadata.never_below(end.ledger)
            topic.log.follow(end)

    async def _store(self, source: str, want: Want, entries: Iterable[bytes]) -> Position | None:
        """Store fetched entries, unless something else was stored meanwhile. Durable on return; returns the last one.

        :raises PeerAway: the region that sent them cannot be asked for a schema.
        """
        topic, after = self._topic, want.after
        taken: list[tuple[EntryHeader, bytes]] = []
        for entry in entries:
            header, body = checked(entry, want, after)
            assert header.origin is not None
            after = header.origin
            if want.origin == topic.region:
                body = origin_fields.strip_appended(
                    body, origin_fields.appended_bytes(body, want.origin, *header.origin)
                )
            else:
                body = await self._schema_numbers.renumbered(source, header, body)
            taken.append((header, body))
        if want.origin == topic.region and topic.metadata is not None:
            await topic.metadata.never_below(after.ledger)
        end = self._room(want, taken[0][0].origin)
        taken = self._let_in(want, [one for one in taken if one[0].origin is not None and one[0].origin < end])
        if not taken:
            return None
        now = topic.scheduler.now_ms()
        for header, body in taken:
            topic.log.append_foreign(header._replace(stored_time_ms=now), body, self._stored, None)
        await topic.scheduler.answer(topic.log.when_durable)
        for header, _ in taken:
            assert header.origin is not None
            after = header.origin
            topic.log.holes.fill(want.origin, after)
            if want.origin == topic.region:
                self._given_back(pack_foreign(header._replace(stored_time_ms=now)) + body)
        if want.origin == topic.region:
            self.returned += len(taken)
        return after

    def _let_in(self, want: Want, taken: list[tuple[EntryHeader, bytes]]) -> list[tuple[EntryHeader, bytes]]:
        """The entries before the first one that may not be stored: those after it are chained to it."""
        intake, is_own = self._intake, want.origin == self._topic.region
        for count, (header, body) in enumerate(taken):
            assert header.origin is not None
            size = len(body) - origin_fields.appended_bytes(body, want.origin, *header.origin)
            try:
                intake.check(Offered(size, header.origin, is_own), want.origin)
            except TopicError as refusal:
                self.problem = str(refusal)
                return taken[:count]
        return taken

    def _room(self, want: Want, first: Position | None) -> Position:
        """The position before which entries from ``first`` on may be stored; ``EARLIEST``: none fits any more.

        It ends at whatever was published or arrived while the others were asked, because that may be fetched back,
        too.
        """
        held, is_own = self._topic.log, want.origin == self._topic.region
        last = held.last_own if is_own else held.last_origin.get(want.origin, EARLIEST)
        if first is not None and want.after == last and first > last:
            return LATEST
        ends = [b for a, b in held.holes.of(want.origin) if a == want.after and first is not None and first < b]
        return min(ends, default=EARLIEST)

    def _stored(self, _: list[None], result: Position | LedgerError) -> None:
        if isinstance(result, LedgerError):
            self._topic.fence(str(result))


def _first(found: Found) -> Position:
    origin = unpack(found.entries[0]).origin
    assert origin is not None
    return origin
