# SPDX-License-Identifier: Apache-2.0
"""Entries that no region has any more: who went on behind them, and whether nobody was owed them (R4)."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from meridian_broker.positions.position import Origin
from meridian_broker.topics.backfill.gaps import NOBODY, Accepted
from meridian_broker.topics.topic import Topic
from simulation.facts import Rewound

if TYPE_CHECKING:
    from meridian_broker.topics.context import TopicContext
    from meridian_broker.topics.subscriptions.subscription import Subscription
    from simulation.broker import SimRegion
    from simulation.world import World


def goes_on(target: Topic | None, source: str) -> bool:
    """What the target lacks of the source concerns nobody there: no person is needed, it should be passed over."""
    gaps = () if target is None else target.gaps.open()
    return any(target.gaps.concerns_nobody(source) for one in gaps if target is not None and one.origin == source)


def is_nowhere(target: Topic | None, source: str) -> bool:
    """Every region was asked for what the target lacks of the source, and none has it."""
    gaps = () if target is None else target.gaps.open()
    return any(one.is_judged and not one.away for one in gaps if one.origin == source)


def accepted(target: TopicContext | None) -> list[Accepted]:
    """What the target, a whole topic, went on behind."""
    if target is None:
        return []
    assert isinstance(target, Topic)
    return target.gaps.accepted


def lies_in(passed: Collection[Accepted], origin: Origin) -> bool:
    return any(one.origin == origin.region and one.after < origin.position <= one.upto for one in passed)


def check(world: World, home: SimRegion, subscription: Subscription) -> None:
    """What the region went on behind by itself, everybody who is owed anything there had acknowledged."""
    model, opened = world.model, subscription.topic
    topic = opened.name.rpartition("/")[2]
    facts = model.facts_of(subscription)
    passed = [one for one in accepted(opened) if one.by == NOBODY]
    if not passed or any(isinstance(one, Rewound) for one in facts.all()):
        return  # after a rewind it was acknowledged once, and is not any more
    for origin in model.logs.published.keys() - (facts.nowhere or ()):
        if world.topic_of_ledger.get((origin.region, origin.ledger)) == topic and lies_in(passed, origin):
            is_dropped = model.judging.is_dropped_somewhere(topic, subscription, origin)  # perhaps a floor passed it
            if not is_dropped and model.judging.owed(home, topic, subscription, origin, 1):
                text = f"{home.name} goes on behind {world.shown(origin)} of {topic}/{subscription.name}"
                model.violate("passed over unread", f"{text}, which nobody acked")
