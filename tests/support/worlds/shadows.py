# SPDX-License-Identifier: Apache-2.0
"""Actions of shadows' tests on open topics."""

from __future__ import annotations

from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.topics.subscriptions import administration
from meridian_broker.topics.topic import Topic


async def subscribe(topic: Topic, name: str = "s", place: Position = EARLIEST) -> None:
    await administration.make_subscription(topic.subscribing, name, place, replicated=False, properties={})


async def all_of(topic: Topic) -> list[Position]:
    """The positions of all entries, in reading order."""
    found: list[Position] = []
    after = EARLIEST
    while some := await topic.log.read_after(after, 1000, 1 << 20):
        found += [position for position, _ in some]
        after = found[-1]
    return found
