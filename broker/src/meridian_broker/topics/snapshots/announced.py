# SPDX-License-Identifier: Apache-2.0
"""What other Meridian regions were told by snapshots, in origin coordinates; exported for the verifier."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from meridian_broker.positions.position import Position
    from meridian_broker.topics.topic import Topic
    from meridian_broker.wire.pulsar.markers import Place, Snapshot, SubscriptionUpdate

ENDS_MAX: Final = 1000
"""Snapshots of one topic whose ends are remembered."""


class Announced:
    """What others were told of each subscription of one topic since it was opened."""

    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self._ends: dict[tuple[Place, ...], dict[str, Position]] = {}
        """By the places of each recent snapshot, as an update names them: per origin, its last entry at or before the
        snapshot.
        """
        self._told: dict[str, dict[str, Position]] = {}
        """The same, for each subscription, of the last update."""

    def taken(self, snapshot: Snapshot) -> None:
        """A snapshot was stored."""
        log, position = self._topic.log, snapshot.position
        index = log.index(position.ledger)
        if index is not None and log.holds(position):
            while len(self._ends) >= ENDS_MAX:
                del self._ends[next(iter(self._ends))]
            before = log.origins_before(position.ledger)
            self._ends[snapshot.places] = before | index.last_of_each(position.entry + 1)

    def updated(self, update: SubscriptionUpdate) -> None:
        """An update was stored."""
        self._told[update.subscription] = self._ends.get(update.places, {})

    def of(self, subscription: str) -> dict[str, Position]:
        """Per origin, up to where everything is acknowledged, as far as others were told."""
        return self._told.get(subscription, {})
