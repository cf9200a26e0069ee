# SPDX-License-Identifier: Apache-2.0
"""The rules of a topic: its own policies over its namespace's over the broker's settings.

``rules`` is the one place where that is decided. It is pure, so equal input gives equal rules; the topic service keeps
the result on each open topic and renews it when a policy changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from meridian_broker.metadata.policy_table import TABLE, Level
from meridian_broker.metadata.policy_values import (
    EXACT,
    SUBSCRIPTION_TYPES,
    AutoSubscriptionCreation,
    AutoTopicCreation,
    BacklogQuota,
    DelayedDelivery,
    DispatchRate,
    InactiveTopics,
    PublishRate,
    Retention,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The rules in force for one topic. The defaults are those of a broker without settings."""

    are_current: bool = True
    """False: the topic's namespace is missing or being deleted, and these are its last known rules. Nothing is deleted
    because of them."""
    regions: frozenset[str] | None = None
    """Where the topic lives by its own choice; None: where its namespace does."""
    retention: Retention = field(default=Retention(0, 0))
    message_ttl_seconds: int = 0
    """0: messages never expire."""
    deduplication: bool = False
    replicate_subscriptions: bool = False
    """Subscriptions made from now on are replicated unless their creator says otherwise (R17)."""
    subscription_sync: str = EXACT
    """How Meridian regions keep replicated subscriptions in step: one of ``SYNC_MODES``."""
    encryption_required: bool = False
    """Only producers that encrypt their messages are admitted."""
    max_producers: int = 0
    """0, here and in the other numbers: only the broker's own limit."""
    max_consumers: int = 0
    max_consumers_per_subscription: int = 0
    max_subscriptions: int = 0
    max_topics: int = 0
    """Per namespace."""
    max_unacked_per_consumer: int = 50_000
    max_unacked_per_subscription: int = 200_000
    max_message_bytes: int = 0
    backlog_quotas: Mapping[str, BacklogQuota] = field(default_factory=dict)
    """By kind: ``destination_storage`` (size), ``message_age``."""
    publish_rate: PublishRate = field(default=PublishRate())
    """In this region; so are the next three."""
    dispatch_rate: DispatchRate = field(default=DispatchRate())
    """For all subscriptions together."""
    subscription_dispatch_rate: DispatchRate = field(default=DispatchRate())
    """For each subscription."""
    replicator_dispatch_rate: DispatchRate = field(default=DispatchRate())
    """To each other region."""
    delayed_delivery: DelayedDelivery = field(default=DelayedDelivery())
    inactive_topics: InactiveTopics = field(default=InactiveTopics())
    compaction_threshold_bytes: int = 0
    """Backlog of compaction at which the topic is compacted; 0: never by itself."""
    offload_threshold_bytes: int = -1
    """The oldest ledgers are offloaded until at most this many bytes are not; -1: never because of size."""
    offload_threshold_seconds: int = -1
    """A ledger that was sealed this long ago is offloaded; -1: never because of age."""
    offload_deletion_lag_ms: int = 4 * 3600 * 1000
    """How long the original of an offloaded ledger stays; -1: as long as it is needed."""
    subscription_expiration_minutes: int = 0
    subscription_types: frozenset[str] = frozenset(SUBSCRIPTION_TYPES)
    auto_topic_creation: AutoTopicCreation = field(default=AutoTopicCreation())
    auto_subscription_creation: AutoSubscriptionCreation = field(default=AutoSubscriptionCreation())


def unlimited(found: Rules) -> Rules:
    """The same rules for a topic of the brokers themselves: nothing in it expires or is evicted, limits of clients do
    not apply to it, and whoever needs it may create it."""
    return replace(
        found,
        message_ttl_seconds=0,
        backlog_quotas={},
        subscription_expiration_minutes=0,
        encryption_required=False,
        max_producers=0,
        max_consumers=0,
        max_consumers_per_subscription=0,
        max_subscriptions=0,
        max_topics=0,
        max_unacked_per_consumer=0,
        max_unacked_per_subscription=0,
        max_message_bytes=0,
        publish_rate=PublishRate(),
        dispatch_rate=DispatchRate(),
        subscription_dispatch_rate=DispatchRate(),
        replicator_dispatch_rate=DispatchRate(),
        inactive_topics=InactiveTopics(),
        subscription_types=frozenset(SUBSCRIPTION_TYPES),
        auto_topic_creation=AutoTopicCreation(),
    )


def rules(broker: Rules, region: str, *levels: Level) -> Rules:
    """The rules from these levels, later ones overriding earlier ones, over the broker's settings.

    :param levels: the namespace's policies, then the topic's.
    """
    found: dict[str, Any] = {}
    for level in levels:
        for name, value in level.items():
            policy = TABLE[name]
            if policy.each == "kind":
                found[policy.attribute] = {**found.get(policy.attribute, getattr(broker, policy.attribute)), **value}
            elif policy.each == "member":
                found[policy.attribute] = frozenset(member for member, in_it in value.items() if in_it)
            elif policy.each == "region":
                if region in value:
                    found[policy.attribute] = value[region]
            else:
                found[policy.attribute] = value
    return replace(broker, **found) if found else broker
