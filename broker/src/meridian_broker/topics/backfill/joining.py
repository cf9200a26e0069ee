# SPDX-License-Identifier: Apache-2.0
"""Whether a topic's copy in this region is filled (R21).

A region that begins to take part in a topic has nothing of it, or what it had before it was taken out. The others send
it all that they still store, which reaches back at least to the earliest message that any replicated subscription waits
for: nothing of that is trimmed anywhere. Until it is all here, with the subscriptions, the region is not *ready*: who
failed over to it would find messages missing for a while. So it says what is missing, and trims nothing.

It dispatches all the same. What was acknowledged elsewhere is filtered by progress, which comes by another way and is
asked for before the first dispatch (R20); an acknowledgement here claims only entries that are here, so what is still
to come is neither skipped nor claimed; and the entries of each origin come in their order. Holding dispatch back would
add a wait and keep nothing from harm.

Where the others no longer store the first entries of an origin, the copy begins behind them: the *join point*
(``TopicLog.joined``), kept for whoever compares copies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from meridian_broker.positions.position import EARLIEST, LATEST, Position
from meridian_broker.topics.backfill.questions import Feed, Found, HasOtherKind, NotWanted, PeerAway, Peers, Want

if TYPE_CHECKING:
    from meridian_broker.topics.context import TopicContext
    from meridian_broker.topics.subscriptions.subscription import Subscription


class Readiness(NamedTuple):
    """What can be said about it from outside."""

    is_ready: bool
    reason: str
    """What it waits for; empty when it is ready."""
    missing: int
    """Entries that other regions still have to send, as they said when they were last asked."""


READY: Final = Readiness(True, "", 0)
OUTSIDE: Final = Feed(EARLIEST, EARLIEST, 0, "this region is not one of the topic's regions there")


class Joining:
    """See the module's text. Each topic that is replicated has one."""

    def __init__(
        self,
        topic: TopicContext,
        subscriptions: Mapping[str, Subscription],
        peers: Peers,
        others: Callable[[], set[str]],
        *,
        is_joining: bool,
    ) -> None:
        """
        :param subscriptions: of the topic, now.
        :param is_joining: the topic was just made here, or was not filled yet when it was closed.
        """
        self._topic = topic
        self._subscriptions = subscriptions
        self._peers = peers
        self._others = others
        self.is_joining = is_joining
        self._times_begun = 0
        self.origins: set[str] = set()
        """Regions whose entries others have, be they regions of the topic or not any more."""
        self.drained: set[str] = set()
        """Origins of which nobody who can be asked has anything more."""
        self._targets: dict[str, Position] = {}
        """Per region the place in its log up to which everything must be here."""
        self._feeds: Mapping[str, Feed | None] = {}
        self._other_kinds: list[str] = []
        """What the regions said that have a topic of the other kind by this name."""
        record = None if topic.metadata is None else topic.metadata.record
        self._saved = None if record is None else (record.joining, dict(record.joined))

    def begin(self) -> None:
        """The topic was on its own here, and now has other regions."""
        self.is_joining = True
        self._times_begun += 1
        self._targets.clear()
        self.drained.clear()

    @property
    def is_due(self) -> bool:
        """There is something to ask for, or to write down."""
        return self.is_joining or self._saved != (self.is_joining, self._topic.log.joined)

    @property
    def keeps_all(self) -> bool:
        """Nothing is trimmed: subscriptions that wait for what is here may yet be heard of. Where no other region sends
        anything, as replication goes one way, nobody is heard of."""
        return self.is_joining and not (self._feeds and all(feed is OUTSIDE for feed in self._feeds.values()))

    def readiness(self) -> Readiness:
        """As of the last look."""
        if not self.is_joining:
            return READY
        waits = self._waits()
        missing = sum(feed.behind for feed in self._feeds.values() if feed is not None)
        return Readiness(False, "; ".join(waits) or "the other regions are being asked", missing)

    async def look(self) -> None:
        """Ask every other region how far it is, and write down what changed."""
        is_joining, times_begun = self.is_joining, self._times_begun
        if is_joining:
            await self._ask()
            is_joining = bool(self._waits())
        joined = dict(self._topic.log.joined)
        metadata, now = self._topic.metadata, (is_joining, joined)
        if metadata is not None and self._saved != now:
            await metadata.save_joining(*now)
            self._saved = now
        if self._times_begun == times_begun:  # else it was begun anew meanwhile
            self.is_joining = is_joining

    async def _ask(self) -> None:
        topic, feeds, other_kinds = self._topic, dict[str, Feed | None](), list[str]()
        # Of our own entries after all: nothing is sent, and everything is said.
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
        """What it waits for, a sentence each."""
        if self._topic.terminated is not None:
            return []  # nothing comes in any more (``intake.py``)
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
        known = sum(one.durable and one.replicated for one in self._subscriptions.values())
        for region, feed in sorted(self._feeds.items()):
            if feed is not None and feed.subscriptions > known:
                waits.append(f"{region} has {feed.subscriptions} replicated subscriptions, and {known} are known here")
        return waits
