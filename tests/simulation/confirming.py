# SPDX-License-Identifier: Apache-2.0
"""Flushes and barriers between regions, and what they guarantee. Part of ``model.Model``.

A flush confirmed by a region means: what was durable here when it began is durable there. A barrier means: what was
durable there is known here, and soon durable here. Without faults both must be complete.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from meridian_broker.ledgers.store import LedgerError
from meridian_broker.replication.progress.waits import WaitResult
from simulation.facts import Acked, Key, Rewound, SubscriptionFacts
from simulation.names import HEARD_US, incarnation_of

if TYPE_CHECKING:
    from simulation.stage import Broker, Region, Stage


class Confirming:
    """See the module's text."""

    def __init__(self, world: Stage, facts: dict[Key, SubscriptionFacts], violate: Callable[[str, str], None]) -> None:
        self._world = world
        self._facts = facts
        self._violate = violate

    def flush_begun(self, broker: Broker, topic_name: str, name: str) -> Callable[[WaitResult], None]:
        """What is durable here now becomes durable in every region that confirms."""
        home = broker.home
        was_served = home.serves(broker, topic_name)
        incarnation = self._incarnation(home, topic_name)
        known = self._known(home.name, incarnation, name)
        now = self._world.loop.now_us
        restores = {r: one.restores for r, one in self._world.regions.items() if now - one.restored_us >= HEARD_US}

        def done(result: WaitResult) -> None:
            regions = self._world.regions
            same = {region for region in result.confirmed if regions[region].restores == restores.get(region)}
            if was_served and home.serves(broker, topic_name):
                told = {region for region in same if self._is_told(region, topic_name, name)}
                self._spread(known, frozenset(region for region in told if regions[region].is_one))
            self._complete("flush", home, topic_name, result)

        return done

    def barrier_begun(self, broker: Broker, topic_name: str, name: str) -> Callable[[WaitResult], None]:
        """What is durable now in a region that answers becomes known here, and durable soon after."""
        home = broker.home
        incarnation = self._incarnation(home, topic_name)
        known = {
            region: self._known(region, incarnation, name)
            for region in self._world.names
            if self._is_told(region, topic_name, name)
        }

        def done(result: WaitResult) -> None:
            for region in result.confirmed & known.keys():
                is_one = home.serves(broker, topic_name) and self._world.regions[region].is_one
                if is_one and self._is_told(region, topic_name, name):
                    self._hear(broker, topic_name, known[region])
            self._complete("barrier", home, topic_name, result)

        return done

    def _is_told(self, region: str, topic_name: str, name: str) -> bool:
        """According to this region's record, do regions exchange the subscription (R17)?"""
        broker = self._world.regions[region].broker_of(topic_name)
        topic = None if broker is None else broker.service.topics.get(topic_name)
        found = None if topic is None else topic.subscriptions.get(name)
        return found is None or found.replicated

    def _hear(self, broker: Broker, topic_name: str, known: list[Acked | Rewound]) -> None:
        home, topic = broker.home, broker.service.topics.get(topic_name)
        if topic is None:
            return
        for one in known:
            if isinstance(one, Acked) and one.known:
                one.heard_by[home.name] = broker

        def durable(error: LedgerError | None) -> None:
            if error is None:
                self._spread(known, frozenset((home.name,)))

        topic.progress_log.when_durable(durable)

    def _complete(self, what: str, home: Region, topic_name: str, result: WaitResult) -> None:
        asked = [one for one in result.missing if self._counts_in(one, home.name, topic_name)]
        if asked and self._world.calm():
            missing = ", ".join(f"{region} ({result.missing[region]})" for region in sorted(asked))
            self._violate(f"a {what} was not complete", f"in {home.name} without {missing}, though nothing was wrong")

    def _counts_in(self, region: str, other: str, topic_name: str) -> bool:
        """Whether the region, as far as it was told, counts the other among the topic's regions."""
        broker = self._world.regions[region].broker_of(topic_name)
        return broker is None or other in broker.service.parts.regions_of(topic_name)

    @staticmethod
    def _incarnation(home: Region, topic_name: str) -> str:
        """The incarnation that the region has now."""
        broker = home.broker_of(topic_name)
        topic = None if broker is None else broker.service.topics.get(topic_name)
        return incarnation_of(topic_name, "" if topic is None else topic.incarnation)

    def _known(self, region: str, incarnation: str, name: str) -> list[Acked | Rewound]:
        incarnations = [
            facts
            for (of, name_since), facts in self._facts.items()
            if of == incarnation and (name_since == name or name_since.startswith(f"{name} since "))
        ]
        return [one for facts in incarnations for one in facts.all() if region in one.known]

    def all_know(self, facts: SubscriptionFacts, regions: frozenset[str]) -> None:
        """Progress is equal and durable in these regions: each knows what any of them knew."""
        self._spread([one for one in facts.all() if not regions.isdisjoint(one.known)], regions)

    def _spread(self, known: list[Acked | Rewound], regions: frozenset[str]) -> None:
        now = self._world.loop.now_us
        for one in known:
            if one.known:
                for region in regions:
                    one.known.setdefault(region, now)
