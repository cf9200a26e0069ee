# SPDX-License-Identifier: Apache-2.0
"""What a topic's rules mean at its doors: numbers ready for the hot path, and who may come in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from meridian_broker.metadata.rules import Rules
from meridian_broker.topics.errors import ConsumerBusy, LimitReached, NotAllowed

if TYPE_CHECKING:
    from meridian_broker.topics.dispatch.types import SubscriptionType
    from meridian_broker.topics.limits import TopicLimits
    from meridian_broker.topics.subscriptions.subscription import Subscription
    from meridian_broker.topics.topic import Topic

METADATA_BYTES: Final = 4096
"""What a message's metadata may add to the largest message."""
UNLIMITED: Final = 1 << 70
"""More than any number on the wire."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Numbers that are compared with for each message."""

    body_bytes: int
    """Metadata and payload of one message."""
    producers: int
    unacked_per_consumer: int
    unacked_per_subscription: int
    delay_ms: int
    """Between the time a message was published and the time it asks to be delivered at."""


def bounds(limits: TopicLimits, rules: Rules) -> Bounds:
    """What ``rules`` say within the broker's own limits."""
    largest = limits.message_bytes + METADATA_BYTES
    return Bounds(
        min(largest, rules.max_message_bytes or largest),
        min(limits.producers, rules.max_producers or limits.producers),
        rules.max_unacked_per_consumer or UNLIMITED,
        rules.max_unacked_per_subscription or UNLIMITED,
        rules.delayed_delivery.max_delay_ms or UNLIMITED,
    )


def follow(topic: Topic, rules: Rules) -> None:
    """These rules hold from now on, also for the clients that are there."""
    before, topic.rules = topic.bounds, rules
    topic.bounds = bounds(topic.limits, rules)
    topic.admission.limit = topic.bounds.producers
    topic.deduplication.follow(rules.deduplication)
    topic.pacing.follow(rules)
    if topic.bounds != before:
        for subscription in topic.subscriptions.values():
            for consumer in subscription.consumers:
                consumer.blocked = consumer.unacked_messages >= topic.bounds.unacked_per_consumer
            subscription.dispatch_soon()


def check_new_subscription(topic: Topic, name: str) -> None:
    """:raises LimitReached: the topic has as many subscriptions as it may have."""
    most = topic.rules.max_subscriptions
    durable = sum(subscription.durable for subscription in topic.subscriptions.values()) if most else 0
    if most and durable >= most:
        raise LimitReached(f"{topic.name} has {durable} subscriptions, its limit: {name!r} is not made")


def check_new_consumer(subscription: Subscription, kind: SubscriptionType) -> None:
    """:raises NotAllowed: subscriptions of this type are switched off.
    :raises ConsumerBusy: there are as many consumers as there may be.
    """
    topic, rules = subscription.topic, subscription.topic.rules
    if kind.name not in rules.subscription_types:
        raise NotAllowed(f"{topic.name} takes no {kind.name} subscriptions: its policies do not enable them")
    if (most := rules.max_consumers) and sum(len(s.consumers) for s in topic.subscriptions.values()) >= most:
        raise ConsumerBusy(f"{topic.name} has {most} consumers, its limit: close some")
    if (most := rules.max_consumers_per_subscription) and len(subscription.consumers) >= most:
        raise ConsumerBusy(f"subscription {subscription.name!r} has {most} consumers, its limit: close some")
