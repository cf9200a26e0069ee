# SPDX-License-Identifier: Apache-2.0
"""Lines of a story about whole regions: what one loses, and which regions a topic has:

restore us volume           only the volume goes back to the copy; or ``metadata``: only that one
wipe us                     rebuilt under its old name with an empty disk and empty metadata
live t us eu                from now on the topic has these regions: told to each region that is up
tell us t us eu             the same, told to us alone
delete us t                 delete a topic, partitioned or not, in all its regions that can be reached, as the admin API
lose us                     power cut, and the region never comes back
hours 3                     let this much time pass
accept eu t us              accept in eu the loss of what us can no longer send (R4)
acceptance                  at the end, an operator accepts each loss about which every region was asked
expect gaps eu t            what is missing there, who may have it, and what was accepted
expect regions us t         the topic's regions, as us has them, and whether us is filled (R21)
expect topics us            which topics us has
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from meridian_broker.ledgers.store import LedgerError
from meridian_broker.metadata.errors import NotFound
from meridian_broker.metadata.store import MetadataError
from meridian_broker.positions import Stamp
from meridian_broker.positions.position import Origin
from meridian_broker.topics.errors import TopicError
from meridian_broker.topics.service import removal
from meridian_broker.wire.pulsar import topic_name
from simulation.acceptance import accept
from simulation.living import live_in
from simulation.names import full_name, incarnation_of
from simulation.teller import Teller

if TYPE_CHECKING:
    from simulation.broker import SimBroker

HOUR_MS = 3_600_000


class RegionSteps(Teller):
    """See the module's text. A part of ``story.Story``."""

    def do_restore(self, region: str, what: str = "") -> None:
        if not self.world.restore(region, what):
            self.say(f"{region} has no copy")

    def do_wipe(self, region: str) -> None:
        self.world.wipe(region)

    def do_lose(self, region: str) -> None:
        self.world.crash(region)
        self.world.gone.add(region)
        self.world.model.region_lost(region)

    def do_hours(self, count: str) -> None:
        self.world.run(int(count) * HOUR_MS)

    def do_tell(self, region: str, topic: str, *regions: str) -> None:
        self.world.trouble()
        self.world.told.add(topic)
        self.world.outside[topic] |= set(self.world.names).difference(regions)
        broker = self._broker(region)
        if broker is not None:
            broker.spawn(live_in(broker, topic, regions), "set the regions of a topic")

    def do_live(self, topic: str, *regions: str) -> None:
        self.world.trouble()
        self.world.told.add(topic)
        self.world.homes[topic] = frozenset(regions)
        self.world.outside[topic] |= set(self.world.names).difference(regions)
        for name in self.world.names:
            broker = self.world.broker(name)
            if broker is not None:
                broker.spawn(live_in(broker, topic, regions), "set the regions of a topic")

    def do_delete(self, region: str, topic: str) -> None:
        broker = self._broker(region)
        if broker is not None:
            self.world.loop.spawn(broker, self._delete(broker, topic), "delete a topic")

    async def _delete(self, broker: SimBroker, topic: str) -> None:
        """Delete a topic like ``admin.topics``, with force."""
        name = topic_name.parse(full_name(topic))
        others = broker.service.parts.regions_of(str(name)) - {broker.region}
        self.world.trouble()

        def tell(stamp: Stamp) -> None:
            self.world.model.deletions.done(topic, stamp)
            self.world.homes.pop(topic, None)  # the deletion also ends its own list of regions
            for other in sorted(others):
                target = self.world.broker(other)
                if target is None or not self.world.network.can_dial(broker.region, other):
                    self.say(f"{other} cannot be told")
                else:
                    target.spawn(self._delete_as_elsewhere(target, topic, stamp), "delete a topic as elsewhere")

        try:
            with self._deleting(broker, topic):
                await removal.delete(broker.service.opener, name, force=True, begun=tell)
        except (TopicError, LedgerError, MetadataError, NotFound) as error:
            self.say(f"refused: {error}")

    async def _delete_as_elsewhere(self, broker: SimBroker, topic: str, stamp: Stamp) -> None:
        is_partitioned = topic in self.world.partitions.names
        with self._deleting(broker, topic):
            await removal.delete_as_elsewhere(
                broker.service.opener, topic_name.parse(full_name(topic)), stamp, partitioned=is_partitioned
            )

    @contextlib.contextmanager
    def _deleting(self, broker: SimBroker, topic: str) -> Iterator[None]:
        deletions, counts = self.world.model.deletions, self.world.partitions
        going = [topic]
        if topic in counts.names:
            going += counts.of(broker.home, topic).partitions
            counts.under_way.append(broker)
        for one in going:
            opened = broker.topic(one)
            incarnation = None if opened is None else incarnation_of(one, opened.incarnation)
            deletions.begin(broker.region, one, incarnation, None if opened is None else opened.log)
        try:
            yield
        finally:
            for one in going:
                deletions.end(broker.region, one)
            if topic in counts.names:
                counts.under_way.remove(broker)

    def do_accept(self, region: str, topic: str, origin: str) -> None:
        broker = self._broker(region)
        opened = None if broker is None else broker.topic(topic)
        gap = None if opened is None else next((one for one in opened.gaps.all() if one.origin == origin), None)
        if broker is None or opened is None or gap is None:
            self.say("nothing is missing")
            return
        accept(self.world, broker, opened, gap, self.say)

    def do_acceptance(self) -> None:
        self.world.accepts_gaps = True

    def expect_gaps(self, region: str, topic: str) -> None:
        broker = self._broker(region)
        opened = None if broker is None else broker.topic(topic)
        if opened is None:
            return
        for gap in opened.gaps.all():
            after, upto = (self.world.shown(Origin(gap.origin, *place)) for place in (gap.after, gap.upto))
            state = "being asked about" if not gap.is_judged else f"{' '.join(gap.away) or 'nobody'} may have it"
            what = "damaged" if gap.is_damage else "missing"
            self.say(f"{what} after {after} up to {upto}, {state}")
        for one in opened.gaps.accepted:
            after, upto = (self.world.shown(Origin(one.origin, *place)) for place in (one.after, one.upto))
            self.say(f"accepted by {one.by}: after {after} up to {upto}")

    def expect_regions(self, region: str, topic: str) -> None:
        broker = self._broker(region)
        if broker is None:
            return
        shown = " ".join(sorted(broker.service.parts.regions_of(full_name(topic))))
        opened = broker.topic(topic)
        if opened is not None and opened.backfill is not None:
            state = opened.backfill.joining.readiness()
            shown += ", ready" if state.is_ready else f", not ready: {state.reason}"
            joined = [Origin(region, *place) for region, place in sorted(opened.log.joined.items())]
            if joined:
                shown += ", joined at " + " ".join(self.world.shown(origin) for origin in joined)
        self.say(shown)

    def expect_topics(self, region: str) -> None:
        broker = self._broker(region)
        if broker is not None:
            names = sorted(name.rpartition("/")[2] for name in broker.service.topics)
            self.say(" ".join(names) or "none")
