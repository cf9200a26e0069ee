# SPDX-License-Identifier: Apache-2.0
"""The snapshots of one topic in one region: when they are taken, what is answered, and what follows (PIP-33).

Both sides are here. A region *takes* snapshots of a topic while one of its own subscriptions there is replicated, at
most one per ``interval_ms``, and only if a message was stored since the last one began: a topic at rest writes no
markers. When a consumer leaves, the snapshot does not wait for the interval. A region *answers* whoever asks, whether
or not it has such subscriptions.

The last snapshot begins after the last message was stored *here*. It may still be on its way to a third region, which
then answers with a position before it. But that region takes a snapshot of its own when the message arrives. So
whoever is asked takes one more, a *follow-up*; its requests say so in their ids, and nobody follows up on them. Then
every region has been asked once everything is everywhere, and a subscription that acknowledges everything, however
late, is moved past the last message in every region.

The topic's owner does the rest: it calls ``received`` for each marker from another region, once it is durable and in
the order of the log, ``published`` after messages were stored, ``tick`` at ``deadline_ms``, and looks at that again
after every call and every ``done``. Nothing waits, and nothing is kept on disk: after a restart snapshots that a
subscription has not passed are found in the log again (``found``), and a first one is taken at once, because an update
may have been lost.

A topic that is just being filled stores no markers yet. An answer that could not be stored is written again until the
other region has given up: Pulsar does not ask again before its own timeout, half a minute by default.

A marker is believed only about the region that sent it (R7): what is refused has no effect, and is counted.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.replication.snapshots.ports import SnapshotHost, SnapshotRules, needed
from meridian_broker.replication.snapshots.taking import FOLLOW_UP, SnapshotCounts, SnapshotTaker
from meridian_broker.replication.snapshots.updating import SubscriptionUpdates
from meridian_broker.wire.pulsar.markers import (
    Marker,
    Place,
    Snapshot,
    SnapshotRequest,
    SnapshotResponse,
    SubscriptionUpdate,
)

PAUSE_MAX_MS: Final = 600_000
"""Longest pause before a topic at rest tries again: a region may be linked to this one and never answer."""


class _Unanswered(NamedTuple):
    """A region's request whose answer could not be stored."""

    snapshot_id: str
    again_ms: int
    until_ms: int
    """When that region stops waiting."""


class SnapshotController:
    """See the module's text."""

    def __init__(self, host: SnapshotHost, rules: SnapshotRules | None = None) -> None:
        self._host = host
        self._rules = rules or SnapshotRules()
        self._updates = SubscriptionUpdates(host, self._rules)
        self._taker = SnapshotTaker(host, self._rules, self._taken, self._try_again)
        self._has_news = True
        """A message may be stored after the beginning of the last snapshot, or that one failed."""
        self._was_asked = False
        """Another region has begun a snapshot since, so it may have news."""
        self._began_ms: int | None = None
        """When the last snapshot was begun."""
        self._failures = 0
        """Failures in a row since a message was stored."""
        self._next_ms = host.now_ms()
        """When the next snapshot may begin."""
        self._unanswered: dict[str, _Unanswered] = {}
        """By region, its newest unanswered request."""
        self.refused = 0
        """Markers of other regions that had no effect: they speak for somebody else, or name what is not here."""

    # -- figures

    @property
    def counts(self) -> SnapshotCounts:
        return self._taker.counts

    @property
    def pending(self) -> int:
        """Snapshots under way."""
        return self._taker.pending

    @property
    def updates_written(self) -> int:
        """Updates of subscriptions that were stored, since the topic was opened."""
        return self._updates.written

    def held_back(self, subscription: str) -> dict[str, frozenset[str]]:
        """See ``SubscriptionUpdates.held_back``."""
        return self._updates.held_back(subscription)

    @property
    def missing(self) -> list[str]:
        """Regions without which no snapshot can be taken: entries do not reach them at the moment."""
        return sorted(region for region in needed(self._host) if not self._host.is_connected(region))

    # -- time

    @property
    def deadline_ms(self) -> int | None:
        """When ``tick`` is due; None: there is nothing to do until something happens."""
        due = [self._taker.deadline_ms, self._updates.deadline_ms, self._next_ms if self._wants_snapshot else None]
        due.extend(one.again_ms for one in self._unanswered.values())
        return min((one for one in due if one is not None), default=None)

    def tick(self) -> None:
        """Do what is due."""
        self._taker.expire()
        self._updates.retry()
        now_ms = self._host.now_ms()
        for region in [region for region, one in self._unanswered.items() if one.again_ms <= now_ms]:
            one = self._unanswered.pop(region)
            if region in self._host.others():
                self._answer(region, one.snapshot_id, one.until_ms)
        if self._wants_snapshot and self._next_ms <= self._host.now_ms():
            self._begin()

    @property
    def _wants_snapshot(self) -> bool:
        return (self._has_news or self._was_asked) and len(self._updates) > 0

    def _begin(self) -> None:
        """Take a snapshot, or try again after the interval."""
        now_ms = self._host.now_ms()
        self._next_ms = now_ms + self._rules.interval_ms
        if not needed(self._host) or self.missing or not self._taker.may_begin:
            return
        is_follow_up = not self._has_news
        self._began_ms, self._has_news, self._was_asked = now_ms, False, False
        self._taker.begin(is_follow_up)

    def _taken(self, snapshot: Snapshot) -> None:
        self._failures = 0
        self._updates.add(snapshot)

    def _try_again(self) -> None:
        """A snapshot failed: try again, after longer and longer pauses unless there are messages."""
        self._has_news = True
        self._failures += 1
        pause_ms = min(self._rules.interval_ms << min(self._failures, 20), PAUSE_MAX_MS)
        self._next_ms = max(self._next_ms, self._host.now_ms() + pause_ms)

    # -- what happens here

    def follow(self, subscription: str, mark_delete: Position) -> None:
        """A subscription of this region is replicated."""
        if self._updates.follow(subscription, mark_delete):
            self._has_news = True

    def pause(self, subscription: str) -> None:
        """As ``unfollow``, but it will be followed anew: other regions may know more of it than is known here."""
        self._updates.pause(subscription)

    def unfollow(self, subscription: str) -> None:
        """It was deleted, or is not replicated any more."""
        self._updates.unfollow(subscription)

    def moved(self, subscription: str, mark_delete: Position) -> None:
        """A subscription's mark-delete position moved, durably."""
        self._updates.moved(subscription, mark_delete)

    def regions_changed(self) -> None:
        """The topic's regions changed, or one was given up or is back: earlier snapshots do not say enough."""
        self._has_news = True
        self._updates.regions_changed()

    def published(self) -> None:
        """Messages were stored, of whatever region. Markers do not count."""
        self._has_news = True
        if self._failures and self._began_ms is not None:
            self._failures = 0
            self._next_ms = min(self._next_ms, self._began_ms + self._rules.interval_ms)

    def consumer_left(self) -> None:
        """A consumer of a replicated subscription is leaving: what it acknowledged reaches the others soon."""
        now_ms = self._host.now_ms()
        earliest_ms = now_ms if self._began_ms is None else max(now_ms, self._began_ms + self._rules.flush_ms)
        self._next_ms = min(self._next_ms, earliest_ms)
        self.tick()

    def found(self, snapshot: Snapshot) -> None:
        """A snapshot of this region was read from its log, again."""
        self._updates.add(snapshot)

    # -- what other regions wrote

    def received(self, marker: Marker, sender: str, at: Position) -> None:
        """A marker of another region was stored here.

        :param sender: the region that it was replicated from, as proven by the connection.
        :param at: where it was stored.
        """
        if sender not in self._host.others():
            self.refused += 1
            return
        match marker:
            case SnapshotRequest(snapshot_id, source) if source == sender:
                self._was_asked |= not snapshot_id.startswith(FOLLOW_UP)
                self._unanswered.pop(sender, None)
                self._answer(sender, snapshot_id, self._host.now_ms() + self._rules.timeout_ms)
            case SnapshotResponse(_, place) if place.region == sender:
                self._taker.answered(marker, at)
            case SubscriptionUpdate(subscription, places):
                self._updates.heard(subscription, places, sender)
                if self._host.is_moved_by(sender):
                    self._move(subscription, places, sender)
            case _:
                self.refused += 1

    def _answer(self, region: str, snapshot_id: str, until_ms: int) -> None:
        def stored(position: Position | None) -> None:
            again_ms = self._host.now_ms() + self._rules.interval_ms
            if position is None and again_ms < until_ms and region not in self._unanswered:
                self._unanswered[region] = _Unanswered(snapshot_id, again_ms, until_ms)

        place = Place(self._host.region, self._host.last_position())
        self._host.write(SnapshotResponse(snapshot_id, place), region, stored)

    def _move(self, subscription: str, places: tuple[Place, ...], sender: str) -> None:
        """An update moves nothing past the end of the log: that region knows entries which were lost here (R5).

        It does not speak for a region whose place in it is ``EARLIEST``: its sender held the place back, or there is
        nothing to speak for (``vouching.py``).
        """
        position = dict(places).get(self._host.region)
        if position is None:
            return
        if position > self._host.last_position():
            self.refused += 1
            return
        spoken_for = {place.region for place in places if place.position > EARLIEST}
        unknown = self._host.others() - spoken_for - {sender}
        self._host.acknowledge(subscription, position, sender, unknown)
