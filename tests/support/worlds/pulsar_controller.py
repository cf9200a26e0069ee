# SPDX-License-Identifier: Apache-2.0
"""An Apache Pulsar region in ``snapshot_world``: it supports replication and the markers of PIP-33, nothing else.

It follows Pulsar's brokers where they differ from ``replication/snapshots``: both rounds of a snapshot have the same
id; nothing follows up on another region's snapshot; a snapshot begins each interval if a message was stored since the
last complete one began; a failed write is noticed only by the time limit; a restart requests no snapshot.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from meridian_broker.positions.position import Position
from meridian_broker.replication.snapshots.ports import SnapshotHost, SnapshotRules
from meridian_broker.wire.pulsar.markers import (
    Marker,
    Place,
    Snapshot,
    SnapshotRequest,
    SnapshotResponse,
    SubscriptionUpdate,
)


@dataclass
class _Builder:
    began_ms: int
    news: int
    """Number of messages stored here when the snapshot began."""
    waits_for: set[str]
    positions: dict[str, Position] = field(default_factory=dict)
    """Positions of the first round."""
    is_second: bool = False


class PulsarController:
    """The controller of one topic, with the calls of ``SnapshotController``."""

    def __init__(self, host: SnapshotHost, rules: SnapshotRules) -> None:
        self._host = host
        self._rules = rules
        self._marks: dict[str, Position] = {}
        self._cache: dict[str, list[Snapshot]] = {}
        self._builders: dict[str, _Builder] = {}
        self._next_ms = host.now_ms() + rules.interval_ms
        self._stored = 0
        """Number of messages stored in this run of the broker."""
        self._covered = 0
        """Value of ``_stored`` when the last complete snapshot began."""
        self._has_completed = False

    # -- time

    @property
    def deadline_ms(self) -> int | None:
        return self._next_ms if self._marks and (self._builders or self._stored > self._covered) else None

    def tick(self) -> None:
        now_ms, host = self._host.now_ms(), self._host
        self._next_ms = now_ms + self._rules.interval_ms
        for snapshot_id, one in list(self._builders.items()):
            if now_ms - one.began_ms >= self._rules.timeout_ms:
                del self._builders[snapshot_id]
        if self._builders and not self._has_completed:
            return
        if self._stored <= self._covered or not all(host.is_connected(other) for other in host.others()):
            return
        snapshot_id = host.new_id()
        self._builders[snapshot_id] = _Builder(now_ms, self._stored, set(host.others()))
        self._ask(snapshot_id)

    def _ask(self, snapshot_id: str) -> None:
        self._host.write(SnapshotRequest(snapshot_id, self._host.region), None, _unnoticed)

    # -- what happens here

    def published(self) -> None:
        self._stored += 1
        self._next_ms = max(self._next_ms, self._host.now_ms() + 1)

    def follow(self, subscription: str, mark_delete: Position) -> None:
        self._marks[subscription] = mark_delete
        self._cache.setdefault(subscription, [])

    def moved(self, subscription: str, mark_delete: Position) -> None:
        if subscription in self._marks:
            self._marks[subscription] = mark_delete
            self._update(subscription)

    def found(self, snapshot: Snapshot) -> None:
        for cached in self._cache.values():
            cached.append(snapshot)
            del cached[: -self._rules.cached]

    def consumer_left(self) -> None:
        pass

    def regions_changed(self) -> None:
        pass

    def _update(self, subscription: str) -> None:
        cached, mark_delete = self._cache[subscription], self._marks[subscription]
        passed = [one for one in cached if one.position <= mark_delete]
        if passed:
            self._cache[subscription] = [one for one in cached if one.position > mark_delete]
            self._host.write(SubscriptionUpdate(subscription, passed[-1].places), None, _unnoticed)

    # -- what other regions wrote

    def received(self, marker: Marker, sender: str, at: Position) -> None:
        match marker:
            case SnapshotRequest(snapshot_id, source) if source == sender:
                place = Place(self._host.region, self._host.last_position())
                self._host.write(SnapshotResponse(snapshot_id, place), sender, _unnoticed)
            case SnapshotResponse(snapshot_id, place) if snapshot_id in self._builders:
                self._answered(snapshot_id, self._builders[snapshot_id], place, at)
            case SubscriptionUpdate(subscription, places):
                position = dict(places).get(self._host.region)
                if position is not None:
                    self._host.acknowledge(subscription, position, sender, frozenset())

    def _answered(self, snapshot_id: str, builder: _Builder, place: Place, at: Position) -> None:
        builder.positions.setdefault(place.region, place.position)
        builder.waits_for.discard(place.region)
        if builder.waits_for:
            return
        if len(self._host.others()) > 1 and not builder.is_second:
            builder.is_second, builder.waits_for = True, set(self._host.others())
            self._ask(snapshot_id)
            return
        snapshot = Snapshot(snapshot_id, at, tuple(Place(*one) for one in sorted(builder.positions.items())))

        def stored(position: Position | None) -> None:
            if position is not None and self._builders.pop(snapshot_id, None) is not None:
                self._has_completed, self._covered = True, max(self._covered, builder.news)
                self.found(snapshot)
                for subscription in self._marks:
                    self._update(subscription)

        self._host.write(snapshot, self._host.region, stored)


def _unnoticed(_: Position | None) -> None:
    """Ignore whether a marker was stored."""
