# SPDX-License-Identifier: Apache-2.0
"""Gaps: entries of another region that it can no longer send, because it does not store them any more (R4).

That region reports a gap when its replicator connects. Then all other regions are asked, and those that have the
entries send them. If no region has some of them any more, replication from there stops, and status shows which are
missing: nothing is skipped silently. An operator accepts the loss explicitly: the missing entries are recorded as
dropped with cause *lost* (R14) for every subscription here, and replication continues after them.

No operator is needed if no subscription is owed the entries. This holds if

* no region of the topic stores them: each was asked and has answered. The origin itself knows of nothing that it may
  recover, such as an entry that its disk damaged;
* every durable subscription here has all of them acknowledged, in whatever region. A region that stores none of them
  cannot deliver any either, so nothing is skipped that would have been delivered;
* no other region knows a subscription that is unknown here, because it might be owed them. The origin is asked, too;
* the topic is not compacted here, because a compacted view needs entries that all subscriptions acknowledged.

A subscription elsewhere that is still owed some of them keeps them stored there, so they are fetched from there. What
is acknowledged stays so unless a subscription seeks back, and a seek returns what is stored. So the gap is passed over,
and recorded as if an operator had accepted it (``BY_BROKER``). This happens when a failed disk returns after the other
regions trimmed everything, and when a region was outside a topic for a while.

An accepted gap is kept in the topic's progress log as long as it is the end of what is stored from that region.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from meridian_broker.metadata.errors import NotFound
from meridian_broker.positions import Cause, Dropped
from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.topics.cursors import drops
from meridian_broker.topics.errors import GapNotAcceptable
from meridian_broker.topics.journal.changes import Kind

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

    from meridian_broker.topics.compaction.compaction import Compaction
    from meridian_broker.topics.context import TopicContext
    from meridian_broker.topics.subscriptions.subscription import Subscription

log = logging.getLogger(__name__)

ACCEPTED_MAX: Final = 100
"""Accepted gaps that a topic remembers."""
BY_BROKER: Final = "the broker (owed to no subscription)"
"""Recorded as the one who accepted a gap whose entries no subscription is owed."""


@dataclass(frozen=True, slots=True)
class Gap:
    """The entries of one origin that are missing."""

    origin: str
    after: Position
    """The last of its entries stored here, ..."""
    upto: Position
    """... and the last one that it can no longer send."""
    since_ms: int
    is_judged: bool = False
    """Whether the other regions were asked."""
    lost_upto: Position = EARLIEST
    """Up to here no region that was asked has the entries; after it, one does."""
    away: tuple[str, ...] = ()
    """Regions that may have them: they could not be asked, or their copy is damaged."""
    is_damage: bool = False
    """They were stored here, and the disk damaged them (``repair.py``)."""

    @property
    def entries_at_most(self) -> int | None:
        """The most that can be missing, because entries of other regions may lie between. None: unknown."""
        same = self.after.ledger == self.upto.ledger
        return self.upto.entry - self.after.entry if same else None


@dataclass(frozen=True, slots=True)
class Accepted:
    """A gap that was accepted."""

    origin: str
    after: Position
    upto: Position
    at_ms: int
    by: str

    def encode(self) -> bytes:
        """As JSON; there are only a few."""
        fields = {"after": self.after, "upto": self.upto, "at_ms": self.at_ms, "by": self.by}
        return json.dumps(fields, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, origin: str, data: bytes) -> Accepted:
        """:raises ValueError: it is not a valid record."""
        try:
            fields = json.loads(data)
            after, upto = Position(*fields["after"]), Position(*fields["upto"])
            return cls(origin, after, upto, int(fields["at_ms"]), str(fields["by"]))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{data[:80]!r} is not a record of an accepted gap: {error}") from error


class Gaps:
    """The gaps of one topic. Each topic has one."""

    def __init__(
        self,
        topic: TopicContext,
        subscriptions: Mapping[str, Subscription],
        compaction: Compaction,
        *,
        damaged: Callable[[], list[Gap]],
        give_up: Callable[[Gap], Awaitable[None]],
        ask: Callable[[], None],
    ) -> None:
        """:param subscriptions: those of the topic, by name; a live view.
        :param damaged: returns what is damaged now (``repair.py``).
        :param give_up: gives up a range of damaged entries.
        :param ask: starts asking the other regions for what is missing.
        """
        self._topic = topic
        self._subscriptions = subscriptions
        self._compaction = compaction
        self._damaged = damaged
        self._give_up = give_up
        self._ask = ask
        self._open: dict[str, Gap] = {}
        self.accepted: list[Accepted] = []
        """Oldest first."""

    def open(self) -> list[Gap]:
        """The gaps known now."""
        if not self._open:
            return []
        found = []
        for origin, gap in sorted(self._open.items()):
            last = self._last(origin)
            if last >= gap.upto:
                del self._open[origin]
            else:
                found.append(gap if last == gap.after else replace(gap, after=last, is_judged=False))
        return found

    def all(self) -> list[Gap]:
        """The gaps known now, and the damaged entries."""
        return [*self.open(), *self._damaged()]

    def told(self, origin: str, upto: Position) -> None:
        """The region reported that it cannot send its entries up to ``upto`` any more: ask the others."""
        after = self._last(origin)
        if upto <= after:
            self._open.pop(origin, None)
            return
        known = self._open.get(origin)
        if known is None:
            log.warning(
                "%s: %s no longer has its entries after %s up to %s; asking other regions for them",
                self._topic.name,
                origin,
                after,
                upto,
            )
        if known is None or (known.after, known.upto) != (after, upto):
            since_ms = self._topic.scheduler.now_ms() if known is None else known.since_ms
            self._open[origin] = Gap(origin, after, upto, since_ms)
        self._ask()

    def judged(self, gap: Gap, lost_upto: Position, away: tuple[str, ...]) -> None:
        """The others were asked for what is missing after ``gap.after``. Their answer does not cover a gap that grew
        since.
        """
        known = self._open.get(gap.origin)
        if known is not None and known.upto == gap.upto:
            self._open[gap.origin] = replace(gap, is_judged=True, lost_upto=lost_upto, away=away)

    def owed_to(self, gap: Gap, upto: Position) -> list[str]:
        """Names of durable subscriptions here that may be owed some of the missing entries up to a position."""
        durable = [one for one in self._subscriptions.values() if one.durable]
        return sorted(one.name for one in durable if not one.cursor.progress.all_acked(gap.origin, gap.after, upto))

    def concerns_nobody(self, origin: str) -> bool:
        """Whether no region has the missing entries of the origin any more, and no subscription here is owed them."""
        gap = self._open.get(origin)
        if gap is None or not gap.is_judged or gap.away or gap.lost_upto <= gap.after:
            return False
        return not self.is_compacted and not self.owed_to(gap, gap.lost_upto)

    @property
    def is_compacted(self) -> bool:
        """Whether there is a compacted view: it needs entries that all subscriptions acknowledged."""
        return self._compaction.is_wanted

    async def pass_over(self, origin: str) -> None:
        """Continue after a gap that ``concerns_nobody``. :raises TopicFenced: the topic was closed meanwhile."""
        gap = self._open[origin]
        await self._accept(Accepted(origin, gap.after, gap.lost_upto, self._topic.scheduler.now_ms(), BY_BROKER))

    async def pass_over_damaged(self, gap: Gap) -> None:
        """Continue after damaged entries that no region has and no subscription is owed.

        :raises TopicFenced: the topic was closed meanwhile.
        :raises MetadataError: it was not recorded; they are asked for again.
        """
        await self._accept(Accepted(gap.origin, gap.after, gap.upto, self._topic.scheduler.now_ms(), BY_BROKER))
        await self._give_up(gap)

    def _last(self, origin: str) -> Position:
        return self._topic.log.last_origin.get(origin, EARLIEST)

    async def accept(self, origin: str, upto: Position, by: str, *, forced: bool) -> tuple[Accepted, list[str]]:
        """Give up what is missing of an origin. Says what that was, and for which subscriptions it is recorded.

        :param upto: as ``open`` shows it, so that an operator accepts exactly the gap that was shown (R64).
        :param by: who asked.
        :param forced: although a region that may have the entries could not be asked.
        :raises NotFound: nothing of that origin is missing here.
        :raises GapNotAcceptable: another gap is there now, or somebody may have the entries.
        :raises TopicFenced: the topic was closed meanwhile; ask again.
        :raises MetadataError: the loss of damaged entries is recorded, but they are not passed over yet; ask again.
        """
        topic = self._topic
        topic.check_open()
        gaps = [one for one in self.all() if one.origin == origin]
        gap = next((one for one in gaps if one.upto == upto), gaps[0] if gaps else None)
        if gap is None:
            raise NotFound(f"no entries of {origin} are known to be missing on {topic.name} in {topic.region}")
        if gap.upto != upto:
            raise GapNotAcceptable(
                f"the missing entries of {origin} are those after {gap.after} up to {gap.upto}, not {upto}"
            )
        if not gap.is_judged:
            raise GapNotAcceptable(f"the other regions are being asked for {origin}'s entries after {gap.after}: wait")
        if gap.away and not forced:
            raise GapNotAcceptable(
                f"{', '.join(gap.away)} did not answer or has a damaged copy, and may have {origin}'s entries after "
                f"{gap.after}: wait until it is back, or force"
            )
        accepted = Accepted(origin, gap.after, gap.lost_upto, topic.scheduler.now_ms(), by)
        lost = Dropped()
        lost.add(Cause.LOST, origin, accepted.after, accepted.upto)
        names = [one.name for one in self._subscriptions.values() if one.durable]
        # All in one turn: nothing of the origin is stored in between. The drops come first, so that a crash leaves
        # either nothing, or a gap that is asked about again.
        for name in names:
            self._subscriptions[name].cursor.record_dropped(lost)
        await self._accept(accepted)
        if gap.is_damage:
            await self._give_up(gap)
        return accepted, names

    async def _accept(self, accepted: Accepted) -> None:
        """Continue after the gap. What the caller appended to the progress log in the same turn is durable with it."""
        topic, one = self._topic, accepted
        topic.progress_log.append(Kind.GAP, one.origin, one.encode())
        self._take(one)
        log.warning("%s: loss of %s (%s..%s] accepted by %s", topic.name, one.origin, one.after, one.upto, one.by)
        await drops.durable(topic)

    # -- what is on record

    def replay(self, origin: str, payload: bytes) -> None:
        """A record of the progress log."""
        self._take(Accepted.decode(origin, payload))

    def snapshot(self) -> Iterator[tuple[Kind, str, bytes]]:
        """What a new ledger of the progress log begins with."""
        return ((Kind.GAP, one.origin, one.encode()) for one in list(self.accepted))

    def _take(self, accepted: Accepted) -> None:
        if accepted not in self.accepted:  # a new ledger of the log repeats it
            self.accepted.append(accepted)
        del self.accepted[:-ACCEPTED_MAX]
        if accepted.origin != self._topic.region:
            self._topic.log.pass_over(accepted.origin, accepted.after, accepted.upto)
        gap = self._open.get(accepted.origin)
        if gap is not None and accepted.upto >= gap.upto:
            del self._open[accepted.origin]
