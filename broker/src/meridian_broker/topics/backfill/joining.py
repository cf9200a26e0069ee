# SPDX-License-Identifier: Apache-2.0
"""Whether a topic's copy in this region is complete (R21).

A region that joins a topic has nothing of it, or what it had before it was removed from it. The others send it
everything that they still store. That reaches back at least to the earliest message that any replicated subscription
waits for, because nothing of that is trimmed anywhere. Until all of it has arrived, with the subscriptions, the
region is not *ready*: clients that failed over to it would miss messages for a while. Meanwhile it reports what is
missing, and trims nothing.

It dispatches nevertheless. Acknowledgements from elsewhere are filtered by progress, which arrives separately and is
requested before the first dispatch (R20). An acknowledgement here claims only entries that are here, so what is still
to arrive is neither skipped nor claimed. And the entries of each origin arrive in order. Delaying dispatch would add
a wait and prevent nothing.

If the others no longer store the first entries of an origin, the copy begins after them, at the *join point*
(``TopicLog.joined``), which is kept for comparisons of copies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from meridian_broker.positions.position import EARLIEST, LATEST, Position
from meridian_broker.topics.backfill.questions import Feed, Found, HasOtherKind, NotWanted, PeerAway, Peers, Want
from meridian_broker.topics.subscriptions.registry import count_replicated

if TYPE_CHECKING:
    from meridian_broker.topics.context import TopicContext
    from meridian_broker.topics.subscriptions.subscription import Subscription


class Readiness(NamedTuple):
    """What status shows of it."""

    is_ready: bool
    reason: str
    """What it waits for; empty if it is ready."""
    missing: int
    """Entries that other regions still have to send, as of their last answers."""


READY: Final = Readiness(True, "", 0)
OUTSIDE: Final = Feed(EARLIEST, EARLIEST, 0, "this region is not one of the topic's regions there")


class Joining:
    """The state of joining of one topic. Each replicated topic has one."""

    def __init__(
        self,
        topic: TopicContext,
        subscriptions: Mapping[str, Subscription],
        peers: Peers,
        others: Callable[[], set[str]],
        *,
        is_joining: bool,
    ) -> None:
        """:param subscriptions: those of the topic, by name; a live view.
        :param is_joining: the topic was just created here, or was incomplete when it was closed.
        """
        self._topic = topic
        self._subscriptions = subscriptions
        self._peers = peers
        self._others = others
        self.is_joining = is_joining
        self._was_single_region = False
        """The topic existed in this region only at the last call of ``follow``."""
        self._times_begun = 0
        self.origins: set[str] = set()
        """Regions of which others have entries, including former regions of the topic."""
        self.drained: set[str] = set()
        """Origins of which no region that can be asked has more."""
        self._targets: dict[str, Position] = {}
        """Per region the position in its log up to which everything must be here."""
        self._feeds: Mapping[str, Feed | None] = {}
        self._other_kinds: list[str] = []
        """Answers of regions that have a topic of the other kind under this name."""
        record = None if topic.metadata is None else topic.metadata.record
        self._saved = None if record is None else (record.joining, dict(record.joined))

    def follow(self, *, is_multi_region: bool) -> None:
        """Start joining if the topic existed in this region only and now has other regions."""
        if self._was_single_region and is_multi_region:
            self._begin()
        self._was_single_region = not is_multi_region

    def _begin(self) -> None:
        self.is_joining = True
        self._times_begun += 1
        self._targets.clear()
        self.drained.clear()

    @property
    def is_due(self) -> bool:
        """Whether there is something to ask for or to record."""
        return self.is_joining or self._saved != (self.is_joining, self._topic.log.joined)

    @property
    def keeps_all(self) -> bool:
        """Whether nothing may be trimmed: subscriptions may still be announced that wait for what is stored here. If
        no other region sends anything, because replication is one-way, none is announced.
        """
        return self.is_joining and not (self._feeds and all(feed is OUTSIDE for feed in self._feeds.values()))

    def readiness(self) -> Readiness:
        """As of the last ``look``."""
        if not self.is_joining:
            return READY
        waits = self._waits()
        missing = sum(feed.behind for feed in self._feeds.values() if feed is not None)
        return Readiness(False, "; ".join(waits) or "the other regions are being asked", missing)

    async def look(self) -> None:
        """Ask every other region how far it is, and record what changed."""
        is_joining, times_begun = self.is_joining, self._times_begun
        if is_joining:
            await self._ask()
            is_joining = bool(self._waits())
        joined = dict(self._topic.log.joined)
        metadata, now = self._topic.metadata, (is_joining, joined)
        if metadata is not None and self._saved != now:
            await metadata.save_joining(*now)
            self._saved = now
        if self._times_begun == times_begun:  # otherwise it was restarted meanwhile
            self.is_joining = is_joining

    async def _ask(self) -> None:
        topic, feeds, other_kinds = self._topic, dict[str, Feed | None](), list[str]()
        # Asked about our own entries beyond the end: no entries are returned, but everything else.
        want = Want(topic.name, topic.incarnation, topic.region, Position(LATEST.ledger, LATEST.entry - 1), LATEST)
        for region in sorted(self._others()):
            try:
                found: Found = await self._peers.ask(region, want)
            except NotWanted:
                feeds[region] = OUTSIDE
                continue
            except HasOtherKind as error:
                other_kinds.append(str(error))
                continue
            except PeerAway:
                continue
            if found.is_outside:
                feeds[region] = OUTSIDE
                continue
            self.origins |= found.origins - {topic.region}
            feeds[region] = feed = found.feed
            if feed is not None:
                self._targets.setdefault(region, feed.end)
        self._feeds, self._other_kinds = feeds, other_kinds

    def _waits(self) -> list[str]:
        """What it waits for, one sentence each."""
        if self._topic.terminated is not None:
            return []  # nothing is accepted any more (``intake.py``)
        others, waits = self._others(), list(self._other_kinds)
        if others and not self._feeds:
            return waits or ["no other region could be asked yet"]
        for region in sorted(others):
            feed = self._feeds.get(region)
            if region not in self._feeds:
                if region not in self.drained and region in self.origins:
                    waits.append(f"entries of {region}, which cannot be reached, are still coming from others")
            elif feed is OUTSIDE:
                waits.append(f"{region} does not count {self._topic.region} among the topic's regions")
            elif feed is None:
                if region not in self.drained:
                    waits.append(f"{region} does not send yet")
            elif feed.confirmed < self._targets.get(region, EARLIEST) and region not in self.drained:
                waits.append(f"{feed.behind} entries of {region} are missing" + (feed.held and f": {feed.held}"))
        waits.extend(
            f"entries of {region}, which is no longer a region of the topic, are still coming"
            for region in sorted(self.origins - others - self.drained)
        )
        known = count_replicated(self._subscriptions)
        for region, feed in sorted(self._feeds.items()):
            if feed is not None and feed.subscriptions > known:
                waits.append(f"{region} has {feed.subscriptions} replicated subscriptions, and {known} are known here")
        return waits
