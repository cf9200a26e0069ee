# SPDX-License-Identifier: Apache-2.0
"""Entries that other regions hold and this one lacks: requested, checked, and stored under their own origin (R5, R6).

A region restored from an older copy of its volume has lost entries that it had acknowledged to producers and
replicated. So before the first producer of a topic is admitted, every reachable region is asked for entries of ours
beyond our end, and what they have is fetched. A region that cannot be asked blocks nothing: publishing continues, the
first entry then names no predecessor (``ledgers/holes.py``), and the region is asked once it is reachable. Regions
outside the topic are asked as well: one may have been removed from it with what we lost, or the copy that we were
restored from may predate its addition. Those are not waited for if they cannot be reached.

In the same way, while a region cannot be reached, or is lost for good, the others ask each other for its entries.

This module decides what is asked for, and when; ``fetching.py`` asks and stores. Where the chain of an origin is broken
in every region, the missing entries are lost; that is accepted only once every region of the topic was asked.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from meridian_broker.ledgers.entry import unpack
from meridian_broker.ledgers.finding import origins_between
from meridian_broker.ledgers.holes import Hole
from meridian_broker.ledgers.notifying import notify_all
from meridian_broker.ledgers.store import LedgerError
from meridian_broker.metadata.store import MetadataError
from meridian_broker.positions.position import EARLIEST, LATEST, Position
from meridian_broker.topics.backfill.answers import ANSWER_ENTRIES
from meridian_broker.topics.backfill.fetching import Fetching
from meridian_broker.topics.backfill.joining import Joining
from meridian_broker.topics.backfill.questions import Found, PeerAway, Peers, Want
from meridian_broker.topics.backfill.schema_numbers import SchemaNumbers
from meridian_broker.topics.errors import TopicError
from meridian_broker.topics.subscriptions.registry import count_replicated

if TYPE_CHECKING:
    from meridian_broker.topics.backfill.gaps import Gap, Gaps
    from meridian_broker.topics.backfill.intake import Intake
    from meridian_broker.topics.backfill.schema_numbers import AddSchema
    from meridian_broker.topics.context import TopicContext
    from meridian_broker.topics.publishing.producer import Producer
    from meridian_broker.topics.subscriptions.subscription import Subscription

log = logging.getLogger(__name__)

FORMER_MAX: Final = 100
"""Former regions of a topic that are remembered."""
UNFED_MS: Final = 3000
"""A region whose replicator has been missing for this long is not waited for any more: it may be unable to connect to
us.
"""


class Due(Enum):
    """Whether other regions should be asked."""

    NEVER = 0
    POLL = 1
    """Some region does not send its entries itself: another one may have more of it."""
    NOW = 2
    """Entries are known to be missing, or a region was not asked yet."""


class Look(NamedTuple):
    """What one look at a topic finds."""

    due: Due
    absent: Set[str] = frozenset()
    """With ``Due.POLL``: regions that do not send their entries themselves, ..."""
    sources: Set[str] = frozenset()
    """... and those that can be asked for them."""
    seen: tuple[object, ...] | None = None
    """While a region cannot be reached: what must change before asking again is likely to find more. None: it may find
    more at any time.
    """


NOTHING_DUE: Final = Look(Due.NEVER)
DUE_NOW: Final = Look(Due.NOW)


class Backfill:
    """Requests the entries that one topic lacks from other regions."""

    def __init__(
        self,
        topic: TopicContext,
        peers: Peers,
        subscriptions: Mapping[str, Subscription],
        producers: Mapping[str, Producer],
        intake: Intake,
        gaps: Gaps,
        *,
        add_schema: AddSchema,
        given_back: Callable[[bytes], None],
        is_joining: bool = False,
    ) -> None:
        """:param subscriptions: those of the topic, by name; a live view.
        :param producers: those of the topic, by name; a live view.
        :param given_back: called with each of our own entries that was fetched back and is durable.
        :param is_joining: the copy here is not known to be complete (R21).
        """
        self.joining = Joining(topic, subscriptions, peers, self.others, is_joining=is_joining)
        self.schema_numbers = SchemaNumbers(topic.name, peers, add_schema)
        self._fetching = Fetching(
            *(topic, peers, intake, self.joining, self.schema_numbers), others=self.others, given_back=given_back
        )
        self._topic = topic
        self._peers = peers
        self._subscriptions = subscriptions
        self._producers = producers
        self._intake = intake
        self._gaps = gaps
        self._asked: set[str] = set()
        """Regions that returned all they had of our own entries."""
        self._is_running = False
        self._is_tried = False
        self._waiting: list[Callable[[None], None]] = []
        self._published_over: dict[str, Hole] = {}
        """Regions that have entries of ours at a place where our log has none."""
        self._taken_back: set[tuple[str, Position]] = set()
        """What was fetched back of those since the topic was opened, by the entry after it."""
        self._searched: set[str] = set()
        """Regions of which all others returned what they had from before the end of this terminated topic."""
        self._former: set[str] = set()
        """Regions removed from the topic of which others may still have entries."""
        self._unfed_since_ms: dict[str, int] = {}
        """Regions without a replicator here, and since when, by the monotonic clock."""

    @property
    def problem(self) -> str:
        """Why something that is missing cannot be fetched now; empty if nothing is in the way."""
        return self._fetching.problem

    @property
    def returned(self) -> int:
        """Own entries that were fetched back since the topic was opened."""
        return self._fetching.returned

    @property
    def is_complete(self) -> bool:
        """Whether every region of the topic was asked for our own entries."""
        return self.others() <= self._asked and (self._is_tried or not self._outsiders())

    def others(self) -> set[str]:
        """The topic's other regions."""
        return set(self._topic.regions()) - {self._topic.region}

    def _outsiders(self) -> set[str]:
        """Regions outside the topic that may have entries of ours nevertheless.

        Empty for a topic that never had another region, as far as is known here.
        """
        others = self.others()
        if not others and not self._topic.log.last_origin:
            return set()
        return set(self._peers.regions()) - {self._topic.region} - others

    def sources(self) -> set[str]:
        """Regions that may have entries of this topic, whether or not they are among its regions."""
        return self.others() | self._outsiders()

    async def ask(self, region: str, want: Want) -> Found:
        """:raises PeerAway: there is no answer, or the region cannot answer."""
        return await self._peers.ask(region, want)

    def ready(self, told: Callable[[None], None]) -> None:
        """Call ``told`` once every reachable region was asked, so that producers may be admitted."""
        if self._is_tried or self.is_complete or self._topic.failure is not None:
            told(None)
        else:
            self._waiting.append(told)
            self.start()  # necessary if the topic had other regions when it was opened

    def left(self, region: str) -> None:
        """The region left the topic, or another region has entries of it: whichever has more sends them (R6)."""
        if region != self._topic.region and len(self._former) < FORMER_MAX:
            self._former.add(region)

    def _gone(self, others: Set[str]) -> set[str]:
        """Regions outside the topic that may have been among its regions."""
        log = self._topic.log
        return (log.last_origin.keys() | self._former) - others - log.unchained

    def ask_again(self, region: str) -> None:
        """The region named an entry of ours that is not here: ask it again."""
        self._asked.discard(region)
        self.start()

    def came_back(self, region: str, after: Position, before: Position) -> bool:
        """Whether everything was fetched back that the region has of ours between two entries that are neighbours
        here.

        The region was outside the topic and unreachable when we lost those entries, so we published over them.
        Acknowledgements since then of later entries cover them as well: that cannot be told apart here any more (R3).
        """
        if (region, before) in self._taken_back:
            return True
        self._published_over[region] = (after, before)
        self.start()
        return False

    def start(self) -> None:
        """Ask the regions that should be asked now, unless that is in progress."""
        if not self._is_running and self._topic.failure is None:
            self._is_running = True
            self._topic.scheduler.spawn(self._run(), f"fetch what {self._topic.name} lacks")

    def look(self) -> Look:
        """Whether there is anything to ask for. ``BackfillRounds`` calls it for every topic every few seconds."""
        others: Set[str] = self._topic.remotes
        if self._topic.log.unchained:
            others = others - self._topic.log.unchained  # of those, no region has anything for another
        joining = self.joining.is_due
        if not others:
            return DUE_NOW if joining else NOTHING_DUE
        if self._topic.is_ended and others <= self._asked and not joining:
            return DUE_NOW if self._lost_before_the_end() else NOTHING_DUE
        away = self._away(others)
        sources = others - away
        if joining or not sources <= self._asked:
            return DUE_NOW
        gaps, holes = self._gaps.open(), self._foreign_holes()
        absent = self.absent(others)
        if not (gaps or holes or (absent and sources)):
            return NOTHING_DUE
        seen: tuple[object, ...] | None = None
        if away and sources.isdisjoint(absent):  # one that can be asked but does not send may have more at any time
            last = map(self._topic.log.last_origin.get, sorted(absent))
            seen = (self._away(self.sources()), gaps, holes, tuple(last))
        return Look(Due.NOW if gaps or holes else Due.POLL, absent, sources, seen)

    def _away(self, others: Set[str]) -> set[str]:
        return {region for region in others if not self._peers.is_reachable(region)}

    def absent(self, others: Set[str]) -> set[str]:
        """The regions that do not send their entries themselves."""
        return self._away(others) | self._gone(others) | self._unfed(others)

    def _unfed(self, others: Collection[str]) -> set[str]:
        """Regions that have not sent their entries themselves for a while."""
        now = self._topic.scheduler.monotonic_ms()
        fed = {producer.remote_region for producer in self._producers.values()}
        known = self._unfed_since_ms
        fed |= self._intake.refusals().keys()  # what a replicator may not send is not fetched either
        self._unfed_since_ms = {region: known.get(region, now) for region in others if region not in fed}
        return {region for region, since in self._unfed_since_ms.items() if now - since >= UNFED_MS}

    async def _run(self) -> None:
        self._fetching.problem = ""
        try:
            await self._ask_for_own()
            self._told_ready()
            await self._take_back()
            await self._ask_for_others()
            await self.joining.look()
        except (LedgerError, TopicError, MetadataError) as error:
            self._fetching.problem = str(error)
            log.warning("%s: fetching entries from other regions failed, will retry: %s", self._topic.name, error)
        finally:
            self._is_running = False
            self._told_ready()

    def _told_ready(self) -> None:
        self._is_tried = True
        waiting, self._waiting = self._waiting, []
        notify_all(waiting, None)

    # -- our own entries (R5)

    async def _ask_for_own(self) -> None:
        topic, others = self._topic, self.others()
        if self.is_complete:
            return
        asked, away = others | self._outsiders(), set[str]()
        for after, before in ((topic.log.last_own, LATEST), *topic.log.holes.of(topic.region)):
            away |= await self._fetching.fetch(topic.region, (after, before), asked, may_skip=True)
        self._asked = others - away
        if not away:
            topic.log.join()

    async def _take_back(self) -> None:
        """Entries that we published over are stored after the newer ones, as those of any hole."""
        topic = self._topic
        for region, (after, before) in list(self._published_over.items()):
            stored = await origins_between(topic.log, topic.region, after, before, ANSWER_ENTRIES)
            hole = (max((origin for origin, _ in stored), default=after), before)
            topic.log.holes.open(topic.region, *hole)
            returned = self.returned
            away = await self._fetching.fetch(topic.region, hole, {region}, may_skip=True)
            topic.log.holes.close(topic.region, before)
            if not away:
                del self._published_over[region]
                self._taken_back.add((region, before))
                log.warning(
                    "%s: %d entries before %s came back from %s: subscriptions that acknowledged it may skip them",
                    *(topic.name, self.returned - returned, before, region),
                )

    # -- entries of regions that do not bring them themselves (R6)

    def _foreign_holes(self) -> list[tuple[str, Hole]]:
        holes = self._topic.log.holes
        return [(region, hole) for region in holes.ranges if region != self._topic.region for hole in holes.of(region)]

    def _lost_before_the_end(self) -> list[tuple[str, Hole]]:
        """What other regions published before the end of a terminated topic, and a restore of the volume lost."""
        held, lost = self._topic.log.last_origin, list[tuple[str, Hole]]()
        for region, end in self._topic.ends.items():
            last = held.get(region, EARLIEST)
            if last < end and region not in self._searched | self._topic.log.unchained:
                lost.append((region, (last, Position(end.ledger, end.entry + 1))))
        return lost

    async def _ask_for_others(self) -> None:
        topic, others = self._topic, self.others()
        for region, hole in self._lost_before_the_end():
            if not await self._fetching.fetch(region, hole, others, may_skip=True):
                self._searched.add(region)
        if why := await self._intake.closed():
            self._fetching.problem = why
            return
        for region, hole in self._foreign_holes():
            await self._fill(region, hole, others)
        for gap in self._gaps.open():
            await self._bridge(gap, others - {gap.origin})
        unfed = self._unfed(others)
        self.joining.drained.clear()
        origins = others | self._gone(others) | self.joining.origins
        for region in sorted(origins - topic.log.unchained - {topic.region}):
            is_away = region in others and not self._peers.is_reachable(region)
            if region not in others or is_away or region in unfed:
                last = topic.log.last_origin.get(region, EARLIEST)
                asked = others - {region} if is_away else others
                await self._fetching.fetch(region, (last, LATEST), asked, may_skip=region not in others)

    async def _bridge(self, gap: Gap, others: set[str]) -> None:
        """Fetch what an origin can no longer send from any region that has it, and find out what none has (R4)."""
        topic, before = self._topic, Position(gap.upto.ledger, gap.upto.entry + 1)
        await self._fetching.fetch(gap.origin, (gap.after, before), others, may_skip=False)
        after = topic.log.last_origin.get(gap.origin, EARLIEST)
        if after >= gap.upto:
            return
        want = Want(topic.name, topic.incarnation, gap.origin, after, before)
        answers = {region: await self._answer(region, want) for region in sorted(others)}
        lost_upto = gap.upto
        for found in answers.values():
            if found is not None and found.entries:
                lost_upto = min(lost_upto, max(unpack(found.entries[0]).prev, after))
        # A damaged copy may be repaired or given up there: until then it is unknown what its region can send.
        away = tuple(region for region, found in answers.items() if found is None or found.is_damaged)
        self._gaps.judged(replace(gap, after=after), lost_upto, away)
        if self._gaps.concerns_nobody(gap.origin):
            if gap.origin in self.others():
                origin = answers[gap.origin] = await self._answer(gap.origin, want)
                if origin is not None and (origin.entries or not origin.is_complete):
                    return  # what was damaged or lost there is back, or may be soon
            if self._knows_all_of(answers.values()) and self._gaps.concerns_nobody(gap.origin):
                await self._gaps.pass_over(gap.origin)

    async def _answer(self, region: str, want: Want) -> Found | None:
        """The answer of one region; None: there is none."""
        try:
            return await self._peers.ask(region, want)
        except PeerAway:
            return None

    def _knows_all_of(self, answers: Iterable[Found | None]) -> bool:
        """Whether every region answered, and none has more replicated subscriptions than are known here."""
        known = count_replicated(self._subscriptions)
        return all(one is not None and (one.feed is None or one.feed.subscriptions <= known) for one in answers)

    async def _fill(self, region: str, hole: Hole, others: set[str]) -> None:
        """Fetch what may be missing before an entry. Its origin knows; if that is lost for good, the others know as
        much.
        """
        asked = {region} & others or others
        away = await self._fetching.fetch(region, hole, asked, may_skip=region not in others)
        if not away:
            self._topic.log.holes.close(region, hole[1])
