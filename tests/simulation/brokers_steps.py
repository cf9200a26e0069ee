# SPDX-License-Identifier: Apache-2.0
"""Lines of a story about the brokers of a region that several share:

suspend us b1 / resume us b1    SIGSTOP and SIGCONT
die us b1 / begin us b1         SIGKILL; a new process starts
leave us b1                     drain, as SIGTERM does, and end
hand us t b2                    the owner of a topic hands its bundle to b2; without b2: to any other
divide us t                     the owner of a topic splits its bundle in the middle
isolate us b1 / reach us b1     this broker alone cannot reach the metadata store / can again
expect owners us                the bundles and their owners, as the metadata store has them
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from meridian_broker.metadata.store import MetadataError
from meridian_broker.ownership.bundles import NotDivisible
from meridian_broker.ownership.owner import NotServing
from meridian_broker.wire.pulsar import topic_name
from simulation.brokers_region import BrokersRegion
from simulation.names import full_name
from simulation.teller import StoryError, Teller

if TYPE_CHECKING:
    from meridian_broker.ownership.bundles import Bundle
    from simulation.brokers_region import OwningBroker

    Step = Callable[[OwningBroker, Bundle], Awaitable[None]]


class BrokersSteps(Teller):
    """See the module's text. A part of ``story.Story``."""

    def _of_brokers(self, region: str) -> BrokersRegion:
        home = self.world.regions[region]
        if not isinstance(home, BrokersRegion):
            raise StoryError(f"{region} has one broker: begin with: brokers 2")
        self.world.trouble()
        return home

    def do_suspend(self, region: str, broker: str) -> None:
        self._of_brokers(region).suspend(broker)

    def do_resume(self, region: str, broker: str) -> None:
        self._of_brokers(region).resume(broker)

    def do_die(self, region: str, broker: str) -> None:
        home = self._of_brokers(region)
        home.kill(broker)
        self.world.model.crashed(home)

    def do_begin(self, region: str, broker: str) -> None:
        self._of_brokers(region).start_one(broker)

    def do_leave(self, region: str, broker: str) -> None:
        found = self._of_brokers(region).running(broker)
        if found is None or not found.ready or found.is_leaving:
            self.say(f"{broker} is not up")
            return
        found.is_leaving = True
        self.world.loop.spawn(found, found.drain(), "drain")

    def do_hand(self, region: str, topic: str, to: str = "") -> None:
        self._with_owner(region, topic, lambda broker, bundle: broker.owner.give_up(bundle, to))

    def do_divide(self, region: str, topic: str) -> None:
        self._with_owner(region, topic, lambda broker, bundle: broker.owner.split(bundle, bundle.middle))

    def _with_owner(self, region: str, topic: str, do: Step) -> None:
        owner = self._of_brokers(region).broker_of(topic)
        if owner is None:
            self.say(f"nobody owns {topic}")
            return

        async def work() -> None:
            name = topic_name.parse(full_name(topic))
            try:
                await do(owner, (await owner.owner.bundles(name.namespace_name)).of(name))
            except (NotServing, NotDivisible, MetadataError) as error:
                self.say(f"refused: {error}")

        self.world.loop.spawn(owner, work(), "change a bundle")

    def do_isolate(self, region: str, broker: str) -> None:
        self._cut_off(region, broker, is_cut_off=True)

    def do_reach(self, region: str, broker: str) -> None:
        self._cut_off(region, broker, is_cut_off=False)

    def _cut_off(self, region: str, broker: str, *, is_cut_off: bool) -> None:
        if (found := self._of_brokers(region).running(broker)) is not None:
            found.metadata.is_cut_off = is_cut_off

    def expect_owners(self, region: str) -> None:
        for line in self._of_brokers(region).shown_owners():
            self.say(line)
