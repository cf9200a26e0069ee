# SPDX-License-Identifier: Apache-2.0
"""How unused topics and subscriptions are deleted, once they have been idle for as long as their rules say.

A topic of several regions is deleted on request only. A replicated subscription is deleted if it was unused in all
regions (R16).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final

from meridian_broker.ledgers.periodic import each
from meridian_broker.ledgers.scheduling import in_slices
from meridian_broker.metadata.policy_values import CAUGHT_UP
from meridian_broker.topics.errors import TopicInUse
from meridian_broker.topics.service import removal
from meridian_broker.topics.subscriptions.administration import remove_subscriptions
from meridian_broker.wire.pulsar import topic_name

if TYPE_CHECKING:
    from meridian_broker.topics.service.opener import TopicOpener
    from meridian_broker.topics.service.registry import TopicRegistry
    from meridian_broker.topics.subscriptions.subscription import Subscription
    from meridian_broker.topics.topic import Topic
    from meridian_broker.wire.pulsar.topic_name import TopicName

log = logging.getLogger(__name__)


async def remove_unused(opener: TopicOpener) -> None:
    """Remove unused topics whose rules say so; a partitioned one with all its partitions, or not at all.

    :raises SomeFailed: some could not be removed now.
    """
    found: dict[TopicName, list[Topic]] = {}
    async for name, topic in in_slices(opener.parts.scheduler, opener.registry.topics.items()):
        if topic.rules.inactive_topics.remove and not opener.parts.catalog.shadows.of(topic_name.parse(name)):
            found.setdefault(topic_name.parse(name).base, []).append(topic)

    def check(topic: Topic) -> None:
        if not is_unused(topic, alone=not opener.parts.is_in_other_regions(topic.name)):
            raise TopicInUse(f"{topic.name} is in use again")

    async def remove(base: TopicName) -> None:
        topics = found[base]
        with contextlib.suppress(TopicInUse):
            record = await opener.parts.catalog.partitioned.find(base)
            if record is None or len(topics) == record.partitions:
                for topic in topics:
                    check(topic)
                async with AsyncExitStack() as locks:
                    names = [topic_name.parse(topic.name) for topic in topics]
                    if record is not None:
                        await locks.enter_async_context(opener.registry.lock(str(base)))
                    held = await removal.hold(opener, names, locks)
                    stamp = await removal.new_stamp(opener, base)
                    only = base if record is None else names[0]  # a partitioned topic stays on record, without any
                    async with removal.without_shadows(opener, only) as also:  # now that none is made here
                        await removal.remove(opener, held, check, stamp, also=also)
                log.info("%s was unused and has been removed", base)

    await each(opener.parts.scheduler, found, str, remove)


def is_unused(topic: Topic, *, alone: bool) -> bool:
    """Has it been unused for as long as its rules say, and is nothing of it to be kept?

    :param alone: it lives in this region only.
    """
    rule, retention = topic.rules.inactive_topics, topic.rules.retention
    idle_ms = topic.scheduler.now_ms() - topic.last_used_ms
    if (
        not alone
        or not topic.rules.are_current
        or topic.is_quarantined
        or topic.subscription_registry.lost_records.in_doubt
        or topic.failure is not None
        or topic.producers
        or topic.admission.is_expecting
        or removal.clients(topic)
    ):
        return False
    if idle_ms < rule.seconds * 1000 or retention.time_minutes < 0 or idle_ms < retention.time_minutes * 60_000:
        return False
    if rule.mode == CAUGHT_UP:
        return all(one.cursor.mark_delete >= topic.log.last_confirmed for one in topic.subscriptions.values())
    return not topic.subscriptions


ASKED_MAX: Final = 100
"""Replicated subscriptions about which other regions are asked in one look; the rest has its turn in the next."""


UsedElsewhere = Callable[[str, str, int], Awaitable[str | None]]
"""Why a subscription of a topic may have been used in another region within this many milliseconds; None: it was not
(R16)."""


async def expire_subscriptions(registry: TopicRegistry, used_elsewhere: UsedElsewhere) -> None:
    """Delete the subscriptions that have been unused for as long as their topic's rules say.

    One that other regions know must be unused in all of them: they are asked, and a region that does not answer keeps
    it (R16).

    :raises SomeFailed: some could not be deleted now.
    """
    asked = 0

    async def expire(subscription: Subscription) -> None:
        nonlocal asked
        topic = subscription.topic
        if topic.failure is not None or not is_abandoned(subscription):
            return
        if subscription.registry.may_be_known_elsewhere(subscription):
            asked += 1
            if asked > ASKED_MAX or await _is_used(subscription, used_elsewhere):
                return
        await remove_subscriptions([subscription])
        log.info("subscription %s of %s was unused and has expired", subscription.name, topic.name)

    scheduler = registry.parts.scheduler
    every: list[Subscription] = []
    async for topic in in_slices(scheduler, registry.topics.values()):
        every += topic.subscriptions.values()
    await each(scheduler, every, lambda one: f"{one.name} of {one.topic.name}", expire)


async def _is_used(subscription: Subscription, used_elsewhere: UsedElsewhere) -> bool:
    """True also if that is unknown, or if it is in use here by now."""
    topic = subscription.topic
    minutes = topic.rules.subscription_expiration_minutes
    objection = await used_elsewhere(topic.name, subscription.name, minutes * 60_000)
    if objection is not None:
        log.debug("subscription %s of %s did not expire: %s", subscription.name, topic.name, objection)
    is_there = topic.failure is None and subscription.is_there
    return objection is not None or not is_there or not is_abandoned(subscription)


def is_abandoned(subscription: Subscription) -> bool:
    """Has it had no consumer in this region for that long?"""
    limit_ms = subscription.topic.rules.subscription_expiration_minutes * 60_000
    if not limit_ms or not subscription.durable or subscription.consumers:
        return False
    if not subscription.topic.rules.are_current:
        return False
    last_used_ms = max(subscription.cursor.last_acked_ms, subscription.last_left_ms)
    return subscription.topic.scheduler.now_ms() - last_used_ms > limit_ms
