# SPDX-License-Identifier: Apache-2.0
"""Finds a client's subscription, or creates it if that is allowed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.topics.cursors import seeking
from meridian_broker.topics.errors import NotAllowed
from meridian_broker.wire.pulsar import topic_name

if TYPE_CHECKING:
    from meridian_broker.topics.lifecycle.parts import BrokerParts
    from meridian_broker.topics.subscriptions.subscription import Subscription
    from meridian_broker.topics.topic import Topic


async def subscription(
    parts: BrokerParts,
    topic: Topic,
    name: str,
    *,
    durable: bool,
    replicated: bool | None,
    initial: Position,
    properties: dict[str, str],
    read_compacted: bool = False,
    may_create: bool = False,
) -> Subscription:
    """Find or create a subscription. When this returns, it is durable and has its start position.

    :param may_create: even if policies forbid automatic creation.
    :param replicated: None: as the current policies say, which may be newer than ``topic.rules``.
    :raises TopicError: refused.
    """
    places = None
    if durable and name not in topic.subscriptions:
        if replicated is None:
            replicated = parts.rules(topic_name.parse(topic.name)).replicate_subscriptions
        places = await seeking.for_new(topic, initial)
    if read_compacted:
        await topic.compaction.prepare()
    answer: Subscription = await parts.scheduler.answer(
        lambda ready: topic.subscribing.subscribe(
            name,
            durable=durable,
            replicated=replicated,
            initial=initial,
            properties=properties,
            may_create=may_create or topic.rules.auto_subscription_creation.allowed,
            read_compacted=read_compacted,
            ready=ready,
            places=places,
        )
    )
    return answer


async def ensure_subscription(parts: BrokerParts, topic: Topic, name: str) -> None:
    """Create the subscription at the earliest message if it does not exist (a producer's initial subscription).

    :raises NotAllowed: it does not exist, and subscriptions are not created automatically.
    """
    if name not in topic.subscriptions and not topic.rules.auto_subscription_creation.allowed:
        raise NotAllowed(f"there is no subscription {name!r}, and automatic creation is disabled")
    await subscription(parts, topic, name, durable=True, replicated=None, initial=EARLIEST, properties={})
