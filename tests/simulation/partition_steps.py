# SPDX-License-Identifier: Apache-2.0
"""Lines of a story about partitioned topics. Partitions are named as topics are: ``produce us p-partition-1 x3``.

partitions us p 2           make a partitioned topic, as the admin API does: told to all regions that can be reached
grow us p 4                 add partitions; replicators tell the others
delete us p                 delete it with all its partitions: see region_steps.py
expect partitions p         how many each region has, and which are on record beyond that number
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from meridian_broker.ledgers.store import LedgerError
from meridian_broker.metadata.store import MetadataError
from meridian_broker.topics.errors import TopicError
from meridian_broker.topics.service import creation, partition_growth
from meridian_broker.wire.pulsar import topic_name
from simulation.names import full_name, number_of
from simulation.teller import Teller

if TYPE_CHECKING:
    from simulation.broker import SimBroker


class PartitionSteps(Teller):
    """See the module's text. A part of ``story.Story``."""

    def do_partitions(self, region: str, topic: str, count: str) -> None:
        self.world.partitions.names.add(topic)
        name, number = topic_name.parse(full_name(topic)), int(count)
        self._ask_for(
            *(region, topic, number),
            lambda broker: creation.create_partitioned(broker.service.opener, name, number, {}),
        )

    def do_grow(self, region: str, topic: str, count: str) -> None:
        name, number = topic_name.parse(full_name(topic)), int(count)
        self._ask_for(region, topic, number, lambda broker: partition_growth.grow(broker.service.opener, name, number))

    def _ask_for(self, region: str, topic: str, count: int, ask: Callable[[SimBroker], Awaitable[None]]) -> None:
        broker, counts = self._broker(region), self.world.partitions
        if broker is None:
            return
        self.world.trouble()

        async def work() -> None:
            counts.asked(broker.home, topic, count)
            counts.under_way.append(broker)
            try:
                await ask(broker)
            except (TopicError, LedgerError, MetadataError) as error:
                self.say(f"refused: {error}")
            finally:
                counts.under_way.remove(broker)
                counts.asked(broker.home, topic, count)  # a deletion may have come first

        self.world.loop.spawn(broker, work(), "ask for partitions")

    def expect_partitions(self, topic: str) -> None:
        for region, home in self.world.regions.items():
            found = self.world.partitions.of(home, topic)
            beyond = sorted(number for name in found.partitions if (number := number_of(name)) >= found.number)
            left = f", beyond that number {' '.join(map(str, beyond))}" if beyond else ""
            self.say(f"{region}: {found.number or 'none'}{left}")
