# SPDX-License-Identifier: Apache-2.0
"""An operator who accepts gaps: a region continues without entries that no region has any more (R4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meridian_broker.metadata.errors import NotFound
from meridian_broker.topics.errors import TopicError

if TYPE_CHECKING:
    from collections.abc import Callable

    from meridian_broker.topics.backfill.gaps import Gap
    from meridian_broker.topics.topic import Topic
    from simulation.broker import SimBroker
    from simulation.world import World


def accept(world: World, broker: SimBroker, topic: Topic, gap: Gap, say: Callable[[str], None]) -> None:
    """Accept a gap as the admin API does, without force."""

    async def work() -> None:
        world.model.accepting(broker.home, topic, gap)
        try:
            await topic.gaps.accept(gap.origin, gap.upto, "somebody", forced=False)
        except (TopicError, NotFound) as error:
            say(f"refused: {type(error).__name__}")

    broker.spawn(work(), "accept a gap")


def accept_all(world: World) -> None:
    """Accept each gap about which every other region has been asked."""
    for home in world.regions.values():
        broker = home.broker_of("")
        for topic in broker.service.topics.values() if broker is not None else ():
            for gap in topic.gaps.all() if topic.failure is None else ():
                if broker is not None and gap.is_judged and not gap.away:
                    accept(world, broker, topic, gap, lambda _: None)
