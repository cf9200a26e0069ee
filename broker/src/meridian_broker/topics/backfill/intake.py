# SPDX-License-Identifier: Apache-2.0
"""The one gate through which entries of other regions enter a topic's log.

They arrive in two ways: *pushed* by the replicator of the region that published them (``publishing/storing.py``), or
*fetched* from any region that has them (``backfill.py``). Both pass here, so that entries which are refused from a
replicator are not fetched instead. ``decide`` is the rule; ``Intake`` knows the state of the topic.

This region's own entries, lost in a restore and returned by others (R5), were accepted once already. No quota and no
size limit keeps them out, only the end of a topic that was terminated before them. The same holds for entries of other
regions that a terminated topic had before its end.
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
"""A refused replicator retries within five seconds. One that has not retried for this long cannot connect to us."""


class Verdict(Enum):
    """The decision on an entry."""

    STORE = "stored"
    REFUSE_ENDED = "refused: the topic was terminated"
    REFUSE_FULL = "refused: the topic is over its backlog quota"
    REFUSE_TOO_LARGE = "refused: larger than this broker accepts"


class Offered(NamedTuple):
    """An entry that another region has."""

    size: int
    """Size in bytes of the body as its origin stored it."""
    origin: Position | None = None
    """Its position in the region that published it, if it was fetched; None: it was pushed."""
    is_own: bool = False
    """This region published it."""


class TopicState(NamedTuple):
    """The state of the topic."""

    is_ended: bool
    """It accepts no more messages."""
    end: Position | None
    """The last entry of the publishing region before the recorded end; None: there is none."""
    is_full: bool
    """It exceeds a backlog quota that keeps producers out."""
    largest: int
    """The largest body in bytes that this broker accepts."""


def decide(offered: Offered, state: TopicState) -> Verdict:
    """Whether the entry may be stored."""
    if state.is_ended:
        is_before_the_end = offered.origin is not None and state.end is not None and offered.origin <= state.end
        return Verdict.STORE if is_before_the_end else Verdict.REFUSE_ENDED
    if offered.is_own:
        return Verdict.STORE
    if state.is_full:
        return Verdict.REFUSE_FULL
    return Verdict.REFUSE_TOO_LARGE if offered.size > state.largest else Verdict.STORE


class Intake:
    """The gate of one topic."""

    def __init__(self, topic: TopicContext, subscriptions: Mapping[str, Subscription]) -> None:
        """:param subscriptions: those of the topic, by name; a live view."""
        self._topic = topic
        self._subscriptions = subscriptions
        self._full = ""
        """How the backlog quota was exceeded at the last check; empty: it was not."""
        self._turned_away: dict[str, tuple[str, int]] = {}
        """Region -> why its entries were refused last, and when by the monotonic clock."""

    def check(self, offered: Offered, region: str) -> None:
        """
        :param region: the one that published it.
        :raises TopicTerminated, BacklogQuotaHold, MessageTooLarge: it may not be stored.
        """
        topic = self._topic
        largest = topic.limits.message_bytes + METADATA_BYTES
        end = topic.terminated if region == topic.region else topic.ends.get(region)
        verdict = decide(offered, TopicState(topic.is_ended, end, bool(self._full), largest))
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
        """As ``check``, for an entry pushed by its region's replicator; a refusal is remembered."""
        try:
            self.check(Offered(size), region)
        except TopicError as refusal:
            self.turned_away(region, str(refusal))
            raise

    async def enter(self, region: str) -> None:
        """Check whether a region's replicator may connect now. :raises TopicTerminated, BacklogQuotaHold: see
        ``check``.
        """
        await self.look()
        self.check_pushed(region, 0)
        self._turned_away.pop(region, None)

    async def closed(self) -> str:
        """Why no entry of any other region is accepted now; empty: they are accepted."""
        await self.look()
        try:
            self.check(_ANY, "")
        except TopicError as refusal:
            return str(refusal)
        return ""

    async def look(self) -> None:
        """Check the backlog quota. :raises LedgerError: the oldest message cannot be read."""
        self.found(await exceeded(self._topic, self._subscriptions.values()))

    def found(self, problem: str | None) -> None:
        """Record how the backlog quota is exceeded; None: it is not."""
        self._full = problem or ""

    def turned_away(self, region: str, why: str) -> None:
        """The region's replicator was refused or disconnected: it can connect to us, and sends its entries once it
        may.
        """
        self._turned_away[region] = why, self._topic.scheduler.monotonic_ms()

    def refusals(self) -> dict[str, str]:
        """Regions whose replicators were refused recently, each with the reason."""
        if not self._turned_away:
            return {}
        since = self._topic.scheduler.monotonic_ms() - REMEMBERED_MS
        self._turned_away = {region: one for region, one in self._turned_away.items() if one[1] >= since}
        return {region: why for region, (why, _) in self._turned_away.items()}


_ANY: Final = Offered(0)
