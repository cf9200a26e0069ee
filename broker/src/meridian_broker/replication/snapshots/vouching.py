# SPDX-License-Identifier: Apache-2.0
"""Which subscriptions' places a region of Apache Pulsar may be told.

Pulsar sends each message to every region of the topic by itself, and to one that joins only what it publishes from then
on. So a region may have acknowledged all that it has from there, while another Meridian region still owes what was sent
before. An update says "everything up to here". Pulsar would pass those messages, too, and tell the others: nobody would
get them.

So Pulsar is told the place of a subscription once somebody has *vouched* for what it sent before its link to this
region began:

* Pulsar itself, by an update that names a place of this region's log after that beginning: it has acknowledged all of
  it. Or
* all other Meridian regions, by such updates. Their snapshots include Pulsar (R30). The place named is an answer of
  this region after the beginning, and Pulsar's last answer to them came later (``taking.py``). It arrived there after
  all that Pulsar had sent before, and they have acknowledged everything up to it.

What was sent after the beginning is here, so this region's own mark-delete speaks for it. Hence once is enough: a
subscription that was vouched for stays so. Nothing of it is kept on disk: after a restart the next updates vouch again.

In snapshot mode Meridian regions learn from Pulsar alone which of its messages are acknowledged, so they cannot vouch
for each other before it is told; there, and where no other Meridian region is, its place is always told.

Until then Pulsar's place in updates is ``EARLIEST``, which makes a subscription known and moves it nowhere. It still
says that Pulsar took part in the snapshot, so two regions that joined late can vouch for each other.
"""

from __future__ import annotations

from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.replication.snapshots.ports import SnapshotHost, needed
from meridian_broker.wire.pulsar.markers import Place


class Vouching:
    """What was vouched for, for the replicated subscriptions of one topic in one region."""

    def __init__(self, host: SnapshotHost) -> None:
        self._host = host
        self._heard: dict[str, dict[str, tuple[Position, set[str]]]] = {}
        """By subscription and region of Pulsar: where this log ended when the link began, and who vouched for what was
        sent before. The subscriptions are those followed."""

    def begin(self, subscription: str) -> None:
        """What is said of the subscription counts from now on."""
        self._heard.setdefault(subscription, {})

    def forget(self, subscription: str) -> None:
        """It was deleted, or is not replicated any more."""
        self._heard.pop(subscription, None)

    def heard(self, subscription: str, places: tuple[Place, ...], sender: str) -> bool:
        """Another region wrote an update. :returns: whether it is the first that vouches for something."""
        by_region, host = self._heard.get(subscription), self._host
        named = dict(places)
        here = named.get(host.region)
        if by_region is None or here is None or here > host.last_position():
            return False
        is_new = False
        for region in host.without_records() - {host.region}:
            is_of_all = sender == region or (region in named and sender not in host.without_records())
            since, vouched = host.linked_at(region), self._vouched(subscription, region)
            if is_of_all and here > since and sender not in vouched:
                by_region[region] = since, vouched | {sender}
                is_new = True
        return is_new

    def _vouched(self, subscription: str, region: str) -> set[str]:
        """Who vouched; nobody if the region left meanwhile and was linked anew."""
        since, vouched = self._heard.get(subscription, {}).get(region, (None, set[str]()))
        return vouched if since == self._host.linked_at(region) else set()

    def missing(self, subscription: str, region: str) -> frozenset[str]:
        """The Meridian regions that have not vouched yet for what a region of Pulsar sent before; none: it may be told
        the subscription's place."""
        vouched = self._vouched(subscription, region)
        if region in vouched:
            return frozenset()
        others = needed(self._host) - self._host.without_records() - vouched
        return frozenset(other for other in others if not self._host.is_moved_by(other))

    def tellable(self, subscription: str, places: tuple[Place, ...]) -> tuple[Place, ...]:
        """The places of an update, without those that nobody has vouched for."""
        return tuple(
            Place(region, EARLIEST)
            if region in self._host.without_records() and self.missing(subscription, region)
            else Place(region, position)
            for region, position in places
        )
