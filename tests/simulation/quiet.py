# SPDX-License-Identifier: Apache-2.0
"""The end of a story, or a pause in it: everything is repaired, regions agree, and every promise is checked.

Then, after all other consumers have left, one consumer per region reads everything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from meridian_broker.topics.dispatch.types import EXCLUSIVE
from meridian_broker.topics.subscriptions.subscription import Subscription
from simulation.acceptance import accept_all
from simulation.agreement import Agreement
from simulation.consumers import SimConsumer
from simulation.scopes import probe_streams
from simulation.shadow_watch import ROUND_MS, ROUNDS

if TYPE_CHECKING:
    from simulation.broker import SimBroker
    from simulation.world import World

CONVERGES_US: Final = 90_000_000
"""Time that regions may take to agree once everything works again."""


class Quiet:
    """See the module's text."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._model = world.model
        self._agreement = Agreement(world)

    def come(self) -> None:
        """Repair everything, wait until the regions agree, and check every promise."""
        self._model.check_open()
        self._world.repair()
        deadline = self._world.loop.now_us + CONVERGES_US
        difference = "never looked"
        self._world.run(1000)
        told: set[SimBroker] = set()
        while not self._model.violations:
            self._world.tell_the_rest(told)
            difference = self._agreement.disagreement()
            if not difference or self._world.loop.now_us > deadline:
                break
            if self._world.accepts_gaps:
                accept_all(self._world)
            self._world.run(2000)
        if difference and not self._model.violations:
            after = f"{CONVERGES_US // 1_000_000} s after everything works again"
            self._model.violate("no agreement", f"{after}: {difference}")
        if not self._model.violations:
            self._judge()

    def _judge(self) -> None:
        self._world.partitions.check()
        for topic in self._world.topics():
            self._model.judging.check_logs(topic)
            for home in self._world.homes_of(topic).values():
                broker = home.broker_of(topic)
                opened = broker.topic(topic) if broker is not None else None
                for subscription in opened.subscriptions.values() if opened is not None else ():
                    self._model.judging.check_record(topic, subscription)
                    self._model.judging.check_passed(home, subscription)
                    if subscription.replicated:
                        facts = self._model.facts_of(subscription)
                        self._model.confirming.all_know(facts, frozenset(self._world.homes_of(topic)))
        for topic in self._world.topics():
            for name in sorted(self._names(topic)):
                self._probe(topic, name)
        self._read_shadows()
        for (region, full), _ in sorted(self._model.quarantined.items()):
            topic = full.rpartition("/")[2]
            for name in sorted(self._subscriptions(region, topic)):
                self._look_at_all(region, topic, name)

    def _read_shadows(self) -> None:
        for number in range(ROUNDS):
            if self._model.violations or not self._world.shadows.read_on(number):
                break
            self._world.run(ROUND_MS)
        self._world.shadows.check()

    def _names(self, topic: str) -> set[str]:
        return {name for region in self._world.names for name in self._subscriptions(region, topic)}

    def _subscriptions(self, region: str, topic: str) -> dict[str, Subscription]:
        """Subscriptions that a region has, even if it is no longer one of the topic's."""
        broker = self._world.regions[region].broker_of(topic)
        opened = broker.topic(topic) if broker is not None else None
        return {} if opened is None else {n: one for n, one in opened.subscriptions.items() if one.durable}

    def _probe(self, topic: str, name: str) -> None:
        """In every region a consumer reads everything, after all others have left."""
        for consumer in list(self._world.consumers.values()):
            if consumer.topic == topic and consumer.subscription == name and not consumer.is_closed:
                consumer.close(lambda: None)
        self._world.run(1000)
        probe_streams(self._world, topic, name)
        for region in self._world.names:
            if not self._model.violations and name in self._subscriptions(region, topic):
                self._look_at_all(region, topic, name)

    def _look_at_all(self, region: str, topic: str, name: str) -> None:
        probe = SimConsumer(self._world, f"probe of {name}", region, topic, name, EXCLUSIVE)
        probe.probe = {}
        probe.connect()
        got = -1
        for _ in range(200):
            self._world.run(300)
            if len(probe.probe) == got and probe.server is not None:
                break
            got = len(probe.probe)
        probe.close(lambda: None)
        for _ in range(10):
            if not probe.is_closed:
                self._world.run(300)
        if self._model.violations:
            return
        if probe.server is not None or not probe.is_closed:
            self._model.violate("no close", f"a consumer of {topic}/{name} in {region} is not released")
        if (subscription := self._subscriptions(region, topic).get(name)) is not None:
            self._model.judging.check_delivered(self._world.regions[region], topic, subscription, probe.probe)
