# SPDX-License-Identifier: Apache-2.0
"""What subscriptions of shadow topics were promised (PIP-180), and whether the promises were kept.

=======================================  =====================================================================
promise                                  how it is checked
=======================================  =====================================================================
a shadow has its source's entries,       at each delivery the region must have that entry, in a ledger of the
under the same ids                       source
nothing acknowledged is sent again       at each delivery: an acknowledgement counts once it is confirmed
everything owed is delivered             in the end each entry that the source stores was delivered to each
                                         subscription, or is dropped on record
gaps are only where trimming said so     a shadow that holds its source's ledgers drops nothing, and none of
                                         them is trimmed before each subscription had its entries
=======================================  =====================================================================

Consumers of shadows acknowledge everything at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from meridian_broker.ledgers.store import LedgerError
from meridian_broker.metadata.errors import CatalogError
from meridian_broker.metadata.store import MetadataError
from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.topics.dispatch.consumer import Consumer
from meridian_broker.topics.dispatch.types import SHARED
from meridian_broker.topics.errors import TopicError
from meridian_broker.topics.service import subscribing
from meridian_broker.wire.pulsar import topic_name
from simulation.names import full_name

if TYPE_CHECKING:
    from simulation.stage import Broker, Region, Stage

REFUSALS: Final = (TopicError, LedgerError, MetadataError, CatalogError)
ALL: Final = 1_000_000
ROUNDS: Final = 60
"""At the end each subscription has this many rounds of ..."""
ROUND_MS: Final = 500
"""... this length to get everything."""


@dataclass(eq=False)
class Watched:
    """A subscription of a shadow, for as long as the shadow lives."""

    home: Region
    shadow: str
    name: str
    source: str
    holds: bool
    is_there: bool = False
    """Whether it was created durably."""
    read: list[Position] = field(default_factory=list)
    """What it was sent, in order of arrival."""
    acked: set[Position] = field(default_factory=set)
    """What it acknowledged and was told is durable."""


class ShadowWatch:
    """See the module's text. One per world."""

    def __init__(self, world: Stage) -> None:
        self._world = world
        self._sources: dict[tuple[str, str], tuple[str, bool]] = {}
        """(region, shadow) -> its source, and whether it holds the source's ledgers."""
        self._watched: dict[tuple[str, str, str], Watched] = {}
        self._trimmed_for: dict[str, list[Watched]] = {}
        """Region -> the subscriptions that existed when its present trim began."""

    def made(self, region: str, shadow: str, source: str, *, holds: bool) -> None:
        """Such a shadow exists, or may exist."""
        self._sources.setdefault((region, shadow), (source, holds))

    def goes(self, region: str, shadow: str) -> None:
        """It is being deleted: nothing is promised any more, whether that succeeds or not."""
        for key in [one for one in self._watched if one[:2] == (region, shadow)]:
            del self._watched[key]
        self._sources.pop((region, shadow), None)

    def read(self, region: str, shadow: str, name: str) -> list[Position]:
        watched = self._watched.get((region, shadow, name))
        return [] if watched is None else watched.read

    async def view(self, broker: Broker, shadow: str, name: str, permits: int) -> None:
        """A consumer that reads ``permits`` messages. :raises TopicError and others: see ``REFUSALS``."""
        opened = await broker.service.opener.topic(topic_name.parse(full_name(shadow)), create=False)
        key = broker.home.name, shadow, name
        if opened.shadow_of is None or key[:2] not in self._sources:
            return
        source, holds = self._sources[key[:2]]
        watched = self._watched.setdefault(key, Watched(broker.home, shadow, name, source, holds))
        subscription = await subscribing.subscription(
            *(broker.service.parts, opened, name),
            durable=True,
            replicated=None,
            initial=EARLIEST,
            properties={},
        )
        watched.is_there = True
        viewer = _Viewer(self._world, broker, watched)
        consumer = Consumer(subscription, viewer, 1, name, 0, 0, None, None, subscription.cursor.progress.epoch)
        subscription.add_consumer(consumer, SHARED)
        consumer.flow(permits)

    # -- promises

    def trimming(self, home: Region) -> None:
        """A trim begins. A subscription created meanwhile begins after what is trimmed."""
        there = [one for one in self._watched.values() if one.home is home and one.is_there]
        if home.trimming > 1:
            there = [one for one in self._trimmed_for.get(home.name, []) if one in there]
        self._trimmed_for[home.name] = there

    def trimmed(self, home: Region, source: str, ledger: int) -> None:
        """The region has dropped a ledger of the source, which no shadow should need."""
        entries = enumerate(self._world.model.logs.ledger(home, ledger))
        stored = [entry for entry, (origin, _, _) in entries if origin is not None]
        for one in self._trimmed_for.get(home.name, ()):
            if one in self._watched.values() and one.source == source and one.holds:
                had = set(one.read)
                lost = [entry for entry in stored if Position(ledger, entry) not in had]
                if lost:
                    text = f"{home.name} trims {self._shown(one, Position(ledger, lost[0]))}, which it was not sent"
                    self._world.model.violate("trimmed under a shadow", f"{one.shadow}/{one.name}: {text}")

    def read_on(self, number: int) -> bool:
        """At the end: let every subscription that lacks something read. Returns whether one still lacks something.

        :param number: of the round.
        """
        owed = [key for key, one in self._watched.items() if one.is_there and self._owed(one) is not None]
        for region, shadow, name in owed if number % 10 == 0 else ():
            broker = self._world.regions[region].broker_of(shadow)
            if broker is not None:
                broker.spawn(self._view_if_possible(broker, shadow, name), "read a shadow")
        return bool(owed)

    def check(self) -> None:
        """Check that every subscription has had everything."""
        for (region, shadow, name), one in self._watched.items():
            if one.is_there and (missing := self._owed(one)) is not None:
                text = f"{region} never delivers {self._shown(one, missing)} of {one.source} to {shadow}/{name}"
                self._world.model.violate("a shadow skips", text)

    async def _view_if_possible(self, broker: Broker, shadow: str, name: str) -> None:
        try:
            await self.view(broker, shadow, name, ALL)
        except REFUSALS:
            return  # another round follows

    def _owed(self, one: Watched) -> Position | None:
        """An entry that the source stores and the subscription was not sent; None: it had everything."""
        broker = one.home.broker_of(one.shadow)
        opened = None if broker is None else broker.topic(one.shadow)
        subscription = None if opened is None else opened.subscriptions.get(one.name)
        had = set(one.read)
        for place, origin, _ in self._world.model.logs.of(one.home, one.source):
            if place not in had:
                dropped = None if subscription is None else subscription.cursor.dropped
                if one.holds or dropped is None or not dropped.contains(origin.region, origin.position):
                    return place
        return None

    def _shown(self, one: Watched, place: Position) -> str:
        return f"{one.home.name}/{self._world.number(one.home.name, place.ledger)}:{place.entry}"


class _Viewer:
    """Port of a consumer that acknowledges everything at once."""

    def __init__(self, world: Stage, broker: Broker, watched: Watched) -> None:
        self._world = world
        self._broker = broker
        self._watched = watched

    def deliver(self, consumer: Consumer, position: Position, _entry: bytes, _again: int, _left: int | None) -> None:
        one, world = self._watched, self._world
        if not self._broker.delivers(full_name(one.shadow)):
            return
        place = f"{one.home.name}/{world.number(one.home.name, position.ledger)}:{position.entry}"
        if world.topic_of_ledger.get((one.home.name, position.ledger)) != one.source:
            world.model.violate("not of the source", f"{one.shadow}/{one.name} delivers {place}")
        if position in one.acked:
            world.model.violate("a shadow repeats", f"{one.shadow}/{one.name} delivers {place}, which was acknowledged")
        one.read.append(position)

        def confirmed(failure: object = None) -> None:
            if failure is None:
                one.acked.add(position)

        consumer.subscription.acknowledge(consumer, [position], None, confirmed)

    def writable(self) -> bool:
        return True

    def disconnect_consumer(self, _: Consumer) -> None: ...

    def active_consumer_changed(self, _: Consumer, __: bool) -> None: ...

    def reached_end(self, _: Consumer) -> None: ...
