# SPDX-License-Identifier: Apache-2.0
"""The one gate through which entries that other regions hold enter a topic's log.

They come in two ways: *pushed* by the replicator of the region that published them (``publishing/storing.py``), or
*fetched*, from whatever region has them (``backfill.py``). Both pass here, so what keeps a replicator out keeps the
same entries from being fetched instead. ``decide`` is the table; ``Intake`` knows how the topic stands.

This region's own entries, lost in a restore and given back by others (R5), were taken once already. No quota and no
size keeps them out, only the end of a topic that was terminated before them.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from meridian_broker.positions.position import Position
from meridian_broker.topics.errors import BacklogQuotaHold, MessageTooLarge, TopicError
from meridian_broker.topics.policies import METADATA_BYTES
from meridian_broker.topics.subscriptions.backlogs import exceeded

if TYPE_CHECKING:
    from meridian_broker.topics.context import TopicContext
    from meridian_broker.topics.subscriptions.subscription import Subscription

REMEMBERED_MS: Final = 15_000
"""A replicator that was turned away tries again within five seconds. One that has not for so long cannot dial us."""


class Verdict(Enum):
    """What becomes of an entry."""

    STORE = "stored"
    REFUSE_ENDED = "refused: the topic was terminated"
    REFUSE_FULL = "refused: the topic is over its backlog quota"
    REFUSE_TOO_LARGE = "refused: larger than this broker accepts"


class Offered(NamedTuple):
    """An entry that another region has."""

    size: int
    """Of the body as its origin stored it."""
    own: Position | None = None
    """Where this region had stored it; None: it was published in another region."""


class Standing(NamedTuple):
    """The topic."""

    is_ended: bool
    """It takes no more messages."""
    end: Position | None
    """The recorded end: the last entry for ever."""
    is_full: bool
    """It is over a backlog quota that keeps producers out."""
    largest: int
    """The largest body that this broker takes."""


def decide(offered: Offered, standing: Standing) -> Verdict:
    """Whether the entry may be stored."""
    if standing.is_ended:
        is_before_the_end = offered.own is not None and standing.end is not None and offered.own <= standing.end
        return Verdict.STORE if is_before_the_end else Verdict.REFUSE_ENDED
    if offered.own is not None:
        return Verdict.STORE
    if standing.is_full:
        return Verdict.REFUSE_FULL
    return Verdict.REFUSE_TOO_LARGE if offered.size > standing.largest else Verdict.STORE


class Intake:
    """The gate of one topic."""

    def __init__(self, topic: TopicContext, subscriptions: Mapping[str, Subscription]) -> None:
        """:param subscriptions: of the topic, now."""
        self._topic = topic
        self._subscriptions = subscriptions
        self._full = ""
        """How the backlog quota was exceeded when that was looked at last; empty: it was not."""
        self._turned_away: dict[str, tuple[str, int]] = {}
        """Region -> why its entries were refused last, and when by the monotonic clock."""

    def check(self, offered: Offered) -> None:
        """:raises TopicTerminated, BacklogQuotaHold, MessageTooLarge: it may not be stored."""
        topic = self._topic
        largest = topic.limits.message_bytes + METADATA_BYTES
        verdict = decide(offered, Standing(topic.is_ended, topic.terminated, bool(self._full), largest))
        if verdict is Verdict.STORE:
            return
        if verdict is Verdict.REFUSE_ENDED:
            raise topic.refusal()
        if verdict is Verdict.REFUSE_FULL:
            raise BacklogQuotaHold(
                f"{topic.name}: {self._full}; entries of other regions are accepted once the backlog is smaller"
            )
        raise MessageTooLarge(
            f"an entry of {offered.size} bytes with its metadata does not fit into {topic.name} in {topic.region}: "
            f"{largest} is the limit (maxMessageSize)"
        )

    def check_pushed(self, region: str, size: int) -> None:
        """The same for an entry that its region's replicator brings, which is remembered when it is refused."""
        try:
            self.check(Offered(size))
        except TopicError as refusal:
            self.turned_away(region, str(refusal))
            raise

    async def enter(self, region: str) -> None:
        """May the replicator of a region come in now? :raises TopicTerminated, BacklogQuotaHold: see ``check``."""
        await self.look()
        self.check_pushed(region, 0)
        self._turned_away.pop(region, None)

    async def closed(self) -> str:
        """Why no entry of any other region may come in now; empty: they may."""
        await self.look()
        try:
            self.check(_ANY)
        except TopicError as refusal:
            return str(refusal)
        return ""

    async def look(self) -> None:
        """Is the backlog quota exceeded? :raises LedgerError: the oldest message cannot be read."""
        self.found(await exceeded(self._topic, self._subscriptions.values()))

    def found(self, problem: str | None) -> None:
        """How the backlog quota is exceeded, as somebody just found; None: it is not."""
        self._full = problem or ""

    def turned_away(self, region: str, why: str) -> None:
        """The region's replicator was refused, or sent away: it can dial us, and brings its entries once it may."""
        self._turned_away[region] = why, self._topic.scheduler.monotonic_ms()

    def refusals(self) -> dict[str, str]:
        """Regions whose replicators were turned away lately, each with the reason."""
        since = self._topic.scheduler.monotonic_ms() - REMEMBERED_MS
        self._turned_away = {region: one for region, one in self._turned_away.items() if one[1] >= since}
        return {region: why for region, (why, _) in self._turned_away.items()}


_ANY: Final = Offered(0)
