# SPDX-License-Identifier: Apache-2.0
"""With dispatch scope ``origin``, checks that only one region at a time would dispatch a message (R26)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from meridian_broker.positions.position import Origin, Position
from meridian_broker.topics.dispatch.consumer import Consumer
from meridian_broker.topics.subscriptions.subscription import Subscription
from simulation.facts import subscription_of

if TYPE_CHECKING:
    from simulation.stage import Broker, Stage

COMMANDED_US: Final = 3_600_000_000
"""For this long, a region that is cut off from the other does not learn who was told to dispatch its stream."""


def holders(world: Stage, topic: str, name: str, origin: str) -> Iterator[tuple[Broker, Subscription]]:
    """Brokers that would send messages of this origin now, because of a lease."""
    for region in world.regions.values():
        for broker in region.everyone():
            opened = broker.topic(topic)
            subscription = None if opened is None else opened.subscriptions.get(name)
            streams = None if subscription is None else subscription.streams
            if subscription is not None and streams is not None and streams.holds(origin):
                yield broker, subscription


def _is_unheard(one: frozenset[str], other: frozenset[str]) -> bool:
    """Whether the topic's regions were changed and a region does not know yet: majorities of both sets need not share a
    voter, unless they differ by one region, of three or more."""
    return len(one ^ other) > 1 or (one != other and min(len(one), len(other)) < 3)


def delivering(sender: Broker, topic: str, consumer: Consumer, position: Position) -> None:
    """Check that one region at a time dispatches a message."""
    subscription, world = subscription_of(consumer), sender.world
    if subscription.streams is None:
        return
    index = subscription.topic.log.index(position.ledger)
    origin = None if index is None else index.origin(position.entry)
    if origin is None:
        return
    if len(subscription.topic.regions()) == 2 and world.loop.now_us < (
        world.model.commands_us.get((topic, subscription.name), -COMMANDED_US) + COMMANDED_US
    ):
        return  # documented: takeover by command is a person's decision
    others = [
        broker
        for broker, other in holders(world, topic, subscription.name, origin[0])
        if broker is not sender and not _is_unheard(subscription.topic.regions(), other.topic.regions())
    ]
    if others:
        shown = world.shown(Origin(origin[0], *origin[1]))
        what = f"{sender.region} sends {shown} of {topic}/{subscription.name}"
        world.model.violate("dispatched twice", f"{what} while {others[0].region} would also send it")
