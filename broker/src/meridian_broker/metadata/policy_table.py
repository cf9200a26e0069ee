# SPDX-License-Identifier: Apache-2.0
"""Every policy this broker acts on that a topic, a namespace or the broker may set, in one table.

A *level* holds the policies that a namespace or topic has set: values by the names of Pulsar's ``Policies``. A policy
with parts that are set individually (a quota of each kind, a rate in each region) is a map here and has one path
per element in the metadata (R41).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from meridian_broker.metadata.errors import Invalid
from meridian_broker.metadata.policy_values import (
    QUOTA_KINDS,
    SUBSCRIPTION_TYPES,
    SYNC_MODES,
    AutoSubscriptionCreation,
    AutoTopicCreation,
    BacklogQuota,
    DelayedDelivery,
    DispatchRate,
    InactiveTopics,
    PublishRate,
    Retention,
    at_least,
    whole,
)
from meridian_broker.metadata.records import Json, mapping, take

REPLICATION: Final = "replicationClusters"
"""Policy of a topic. A namespace always has a list of its own."""
RETENTION: Final = "retention_policies"
MESSAGE_TTL: Final = "message_ttl_in_seconds"
DEDUPLICATION: Final = "deduplicationEnabled"
REPLICATE_SUBSCRIPTIONS: Final = "replicateSubscriptionState"
"""PIP-398's name, like that of the broker's setting."""
SUBSCRIPTION_SYNC: Final = "subscriptionSync"
MAX_PRODUCERS: Final = "max_producers_per_topic"
MAX_CONSUMERS: Final = "max_consumers_per_topic"
MAX_CONSUMERS_PER_SUBSCRIPTION: Final = "max_consumers_per_subscription"
MAX_SUBSCRIPTIONS: Final = "max_subscriptions_per_topic"
MAX_TOPICS: Final = "max_topics_per_namespace"
MAX_UNACKED_PER_CONSUMER: Final = "max_unacked_messages_per_consumer"
MAX_UNACKED_PER_SUBSCRIPTION: Final = "max_unacked_messages_per_subscription"
MAX_MESSAGE_SIZE: Final = "max_message_size"
BACKLOG_QUOTAS: Final = "backlog_quota_map"
ENCRYPTION_REQUIRED: Final = "encryption_required"
PUBLISH_RATE: Final = "publishMaxMessageRate"
DISPATCH_RATE: Final = "topicDispatchRate"
SUBSCRIPTION_DISPATCH_RATE: Final = "subscriptionDispatchRate"
REPLICATOR_DISPATCH_RATE: Final = "replicatorDispatchRate"
DELAYED_DELIVERY: Final = "delayed_delivery_policies"
INACTIVE_TOPICS: Final = "inactive_topic_policies"
COMPACTION_THRESHOLD: Final = "compaction_threshold"
SUBSCRIPTION_EXPIRATION: Final = "subscription_expiration_time_minutes"
ENABLED_TYPES: Final = "subscription_types_enabled"
OFFLOAD_THRESHOLD: Final = "offload_threshold"
OFFLOAD_THRESHOLD_SECONDS: Final = "offload_threshold_in_seconds"
OFFLOAD_LAG: Final = "offload_deletion_lag_ms"
AUTO_TOPICS: Final = "autoTopicCreationOverride"
AUTO_SUBSCRIPTIONS: Final = "autoSubscriptionCreationOverride"

Level = Mapping[str, Any]


def _as_it_is(value: Any) -> Any:
    return value


def _to_json(value: Any) -> Any:
    return value.to_json()


@dataclass(frozen=True, slots=True)
class Policy:
    """One policy: its names, and how its values are parsed and shown."""

    name: str
    """In Pulsar's ``Policies`` and in the metadata."""
    attribute: str
    """Name in ``Rules``."""
    parse: Callable[[Any], Any]
    show: Callable[[Any], Any] = _to_json
    each: Literal["", "kind", "region", "member"] = ""
    """A map with a value for each of these. A set is a map from its members to true."""


def _number(name: str, attribute: str) -> Policy:
    def parse(value: Any) -> Any:
        found = whole({name: value}, name)
        if found < 0:
            raise Invalid(f"{name} is {found}: it cannot be negative; 0 means no limit")
        return found

    return Policy(name, attribute, parse, _as_it_is)


def _number_or_off(name: str, attribute: str) -> Policy:
    return Policy(name, attribute, lambda value: at_least({name: value}, name, -1, -1), _as_it_is)


def _truth(name: str, attribute: str) -> Policy:
    return Policy(name, attribute, lambda value: take({name: value}, name, bool), _as_it_is)


def _member(value: Any) -> Any:
    return take({REPLICATION: value}, REPLICATION, bool)


def _types(value: Any) -> frozenset[str]:
    """:raises Invalid: an element is not a subscription type."""
    if not isinstance(value, list) or not value or not set(map(str, value)) <= set(SUBSCRIPTION_TYPES):
        raise Invalid(f"{ENABLED_TYPES} is {value!r}: expected one or more of {', '.join(SUBSCRIPTION_TYPES)}")
    return frozenset(value)


def _sync(value: Any) -> str:
    """:raises Invalid: it is not a mode."""
    if value not in SYNC_MODES:
        raise Invalid(f"{SUBSCRIPTION_SYNC} is {value!r}: expected {' or '.join(SYNC_MODES)}")
    return str(value)


TABLE: Final[Mapping[str, Policy]] = {
    policy.name: policy
    for policy in (
        Policy(REPLICATION, "regions", _member, _as_it_is, each="member"),
        Policy(RETENTION, "retention", Retention.from_json),
        _number(MESSAGE_TTL, "message_ttl_seconds"),
        _truth(DEDUPLICATION, "deduplication"),
        _truth(ENCRYPTION_REQUIRED, "encryption_required"),
        _truth(REPLICATE_SUBSCRIPTIONS, "replicate_subscriptions"),
        Policy(SUBSCRIPTION_SYNC, "subscription_sync", _sync, _as_it_is),
        _number(MAX_PRODUCERS, "max_producers"),
        _number(MAX_CONSUMERS, "max_consumers"),
        _number(MAX_CONSUMERS_PER_SUBSCRIPTION, "max_consumers_per_subscription"),
        _number(MAX_SUBSCRIPTIONS, "max_subscriptions"),
        _number(MAX_TOPICS, "max_topics"),
        _number(MAX_UNACKED_PER_CONSUMER, "max_unacked_per_consumer"),
        _number(MAX_UNACKED_PER_SUBSCRIPTION, "max_unacked_per_subscription"),
        _number(MAX_MESSAGE_SIZE, "max_message_bytes"),
        Policy(BACKLOG_QUOTAS, "backlog_quotas", BacklogQuota.from_json, each="kind"),
        Policy(PUBLISH_RATE, "publish_rate", PublishRate.from_json, each="region"),
        Policy(DISPATCH_RATE, "dispatch_rate", DispatchRate.from_json, each="region"),
        Policy(SUBSCRIPTION_DISPATCH_RATE, "subscription_dispatch_rate", DispatchRate.from_json, each="region"),
        Policy(REPLICATOR_DISPATCH_RATE, "replicator_dispatch_rate", DispatchRate.from_json, each="region"),
        Policy(DELAYED_DELIVERY, "delayed_delivery", DelayedDelivery.from_json),
        Policy(INACTIVE_TOPICS, "inactive_topics", InactiveTopics.from_json),
        _number(COMPACTION_THRESHOLD, "compaction_threshold_bytes"),
        _number(SUBSCRIPTION_EXPIRATION, "subscription_expiration_minutes"),
        _number_or_off(OFFLOAD_THRESHOLD, "offload_threshold_bytes"),
        _number_or_off(OFFLOAD_THRESHOLD_SECONDS, "offload_threshold_seconds"),
        _number_or_off(OFFLOAD_LAG, "offload_deletion_lag_ms"),
        Policy(ENABLED_TYPES, "subscription_types", _types, sorted),
        Policy(AUTO_TOPICS, "auto_topic_creation", AutoTopicCreation.from_json),
        Policy(AUTO_SUBSCRIPTIONS, "auto_subscription_creation", AutoSubscriptionCreation.from_json),
    )
}


def parse_level(data: Mapping[str, Any]) -> dict[str, Any]:
    """The policies of the table that a JSON object sets. null and an empty list set nothing, as in Pulsar, whose tools
    send every existing policy. Other keys are ignored.

    :raises Invalid: a value is not valid.
    """
    level: dict[str, Any] = {}
    for name, value in data.items():
        policy = TABLE.get(name)
        if policy is None or value is None or value == []:
            continue
        if not policy.each:
            level[name] = policy.parse(value)
            continue
        elements = {key: policy.parse(one) for key, one in mapping(value, name).items() if one is not None}
        if policy.each == "kind" and not elements.keys() <= set(QUOTA_KINDS):
            raise Invalid(f"{name} has {sorted(elements)}: the kinds are {' and '.join(QUOTA_KINDS)}")
        if elements:
            level[name] = elements
    return level


def show(name: str, value: Any) -> Any:
    """A policy's value as JSON."""
    policy = TABLE[name]
    return {key: policy.show(one) for key, one in value.items()} if policy.each else policy.show(value)


def show_level(level: Level) -> Json:
    """A level as JSON."""
    return {name: show(name, value) for name, value in level.items()}


def with_value(level: Level, name: str, value: Any, element: str | None = None) -> Json:
    """The level as JSON, with one policy, or one element of it, set to a JSON value; None removes it."""
    shown = show_level(level)
    if element is None:
        return {**shown, name: value}
    return {**shown, name: {**shown.get(name, {}), element: value}}
