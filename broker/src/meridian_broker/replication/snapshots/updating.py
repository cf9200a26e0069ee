# SPDX-License-Identifier: Apache-2.0
"""Moving the subscriptions of other regions: what follows from snapshots (PIP-33).

Each subscription has a cache of snapshots. Once its mark-delete position is at or past one, whichever of the two came
first, an update with the snapshot's places is written, and older snapshots are not needed any more. An update that
could not be stored is written again later; while one is being written, only the newest of what follows is kept.

A region of Apache Pulsar knows of a subscription only what updates say. A consumer that is the first there would create
it at the end of the log, and so pass everything that is owed here. So a subscription that is behind the first snapshot
gets an update that says nothing but its name: Pulsar creates it at the earliest message.

Nor does an update tell Pulsar more than the Meridian regions together can say (``vouching.py``). What was held back is
told once they can.

Only a snapshot that names every other region of the topic counts (R30). So one that was taken before a region was
added, and is still in the log, is not used; nor is a partial one, once the region that was given up is back.
"""

from __future__ import annotations

from dataclasses import dataclass

from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.replication.snapshots.cache import SnapshotCache
from meridian_broker.replication.snapshots.ports import SnapshotHost, SnapshotRules, needed
from meridian_broker.replication.snapshots.vouching import Vouching
from meridian_broker.wire.pulsar.markers import Place, Snapshot, SubscriptionUpdate


@dataclass(slots=True)
class _Followed:
    """A subscription whose position other regions are to learn."""

    mark_delete: Position
    cache: SnapshotCache
    unsent: Snapshot | None = None
    """The newest for which an update is to be written."""
    is_writing: bool = False
    retry_ms: int | None = None
    held: Snapshot | None = None
    """The newest that some region was not told completely: nobody vouches for it yet."""
    is_told: bool = False
    """Regions that keep no records know of it."""


class SubscriptionUpdates:
    """The replicated subscriptions of one topic in one region."""

    def __init__(self, host: SnapshotHost, rules: SnapshotRules) -> None:
        self._host = host
        self._rules = rules
        self._followed: dict[str, _Followed] = {}
        self._vouching = Vouching(host)
        self.written = 0
        """Updates that were stored, since the topic was opened."""

    def __len__(self) -> int:
        return len(self._followed)

    @property
    def deadline_ms(self) -> int | None:
        """When the first update that could not be stored is written again."""
        return min((one.retry_ms for one in self._followed.values() if one.retry_ms is not None), default=None)

    def follow(self, subscription: str, mark_delete: Position) -> bool:
        """A subscription is replicated. False: it was already."""
        if subscription in self._followed:
            self.moved(subscription, mark_delete)
            return False
        self._vouching.begin(subscription)
        self._followed[subscription] = _Followed(mark_delete, SnapshotCache(self._rules.cached))
        return True

    def pause(self, subscription: str) -> None:
        """Stop following it, until it is followed anew: it may have moved."""
        self._followed.pop(subscription, None)

    def unfollow(self, subscription: str) -> None:
        """It was deleted, or is not replicated any more."""
        self._followed.pop(subscription, None)
        self._vouching.forget(subscription)

    def heard(self, subscription: str, places: tuple[Place, ...], sender: str) -> None:
        """Another region wrote an update: perhaps more can be told now."""
        one = self._followed.get(subscription)
        if self._vouching.heard(subscription, places, sender) and one is not None and one.held is not None:
            self._tell(subscription, one, one.held)

    def regions_changed(self) -> None:
        """The topic's regions changed, or one was given up or is back: perhaps less is needed to tell more."""
        for subscription, one in self._followed.items():
            if one.held is not None:
                self._tell(subscription, one, one.held)

    def held_back(self, subscription: str) -> dict[str, frozenset[str]]:
        """By region of Apache Pulsar that is not told how far the subscription is: the Meridian regions that have not
        vouched for what it sent before. Empty: nothing is held back."""
        one = self._followed.get(subscription)
        if one is None or one.held is None:
            return {}
        regions = sorted(self._host.without_records() & {place.region for place in one.held.places})
        missing = {region: self._vouching.missing(subscription, region) for region in regions}
        return {region: others for region, others in missing.items() if others}

    def moved(self, subscription: str, mark_delete: Position) -> None:
        """Its mark-delete position moved, after a seek perhaps back."""
        one = self._followed.get(subscription)
        if one is None:
            return
        one.mark_delete = mark_delete
        first = one.cache.first
        if first is not None and first <= mark_delete:
            self._use(subscription, one)

    def add(self, snapshot: Snapshot) -> None:
        """A snapshot was taken, or found in the log."""
        at = self._host.entries_before(snapshot.position)
        for subscription, one in list(self._followed.items()):
            one.cache.add(snapshot, at)
            if snapshot.position <= one.mark_delete:
                self._use(subscription, one)
            elif not one.is_told:
                self._name(subscription, one)

    def retry(self) -> None:
        """Write again what could not be stored and is due."""
        now_ms = self._host.now_ms()
        for subscription, one in list(self._followed.items()):
            if one.retry_ms is not None and one.retry_ms <= now_ms:
                self._write(subscription, one)

    def _name(self, subscription: str, one: _Followed) -> None:
        regions = self._host.without_records()
        if not regions:
            return
        one.is_told = True

        def stored(position: Position | None) -> None:
            if position is None:
                one.is_told = False

        places = tuple(Place(region, EARLIEST) for region in sorted(regions))
        self._host.write(SubscriptionUpdate(subscription, places), None, stored)

    def _use(self, subscription: str, one: _Followed) -> None:
        snapshot = one.cache.take(one.mark_delete)
        if snapshot is None or not needed(self._host) <= {place.region for place in snapshot.places}:
            return
        self._tell(subscription, one, snapshot)

    def _tell(self, subscription: str, one: _Followed, snapshot: Snapshot) -> None:
        if one.unsent is None or one.unsent.position < snapshot.position:
            one.unsent = snapshot
        if not one.is_writing:
            self._write(subscription, one)

    def _write(self, subscription: str, one: _Followed) -> None:
        snapshot, one.unsent, one.retry_ms = one.unsent, None, None
        if snapshot is None:
            return
        one.is_writing = True
        places = self._vouching.tellable(subscription, snapshot.places)
        one.held = None if places == snapshot.places else snapshot

        def stored(position: Position | None) -> None:
            one.is_writing = False
            if self._followed.get(subscription) is not one:
                return
            if position is not None:
                self.written += 1
                one.is_told = True
                self._write(subscription, one)
                return
            if one.unsent is None:
                one.unsent = snapshot
            one.retry_ms = self._host.now_ms() + self._rules.interval_ms

        self._host.write(SubscriptionUpdate(subscription, places), None, stored)
