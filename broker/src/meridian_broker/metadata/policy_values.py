# SPDX-License-Identifier: Apache-2.0
"""Values of policies, validated when they are set, and their JSON form in Pulsar's API."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from meridian_broker.metadata.errors import Invalid
from meridian_broker.metadata.records import Json, mapping, take
from meridian_broker.wire.proto import pulsar_pb2 as pb

QUOTA_POLICIES: Final = ("producer_request_hold", "producer_exception", "consumer_backlog_eviction")
QUOTA_KINDS: Final = ("destination_storage", "message_age")
SUBSCRIPTION_TYPES: Final = tuple(pb.CommandSubscribe.SubType.keys())
"""Subscription types, named as on the wire."""
EXACT: Final = "exact"
"""Replicated subscriptions: every acknowledgement travels between Meridian regions."""
SNAPSHOT: Final = "snapshot"
"""Only how far everything is acknowledged travels, by snapshots (PIP-33)."""
SYNC_MODES: Final = (EXACT, SNAPSHOT)
TOPIC_TYPES: Final = ("non-partitioned", "partitioned")

LARGEST_NUMBER: Final = (1 << 63) - 1
"""JSON has no largest number, but times and rates computed from one do."""

WITHOUT_SUBSCRIPTIONS: Final = "delete_when_no_subscriptions"
CAUGHT_UP: Final = "delete_when_subscriptions_caught_up"
INACTIVE_MODES: Final = (WITHOUT_SUBSCRIPTIONS, CAUGHT_UP)


def whole(data: Mapping[str, Any], key: str, default: int | None = None) -> Any:
    """A whole number. :raises Invalid: it is something else, or too large."""
    value = take(data, key, int, default)
    if value is not None and abs(value) > LARGEST_NUMBER:
        raise Invalid(f"{key} is a number of {value.bit_length()} bits: the maximum is {LARGEST_NUMBER}")
    return value


def at_least(data: Mapping[str, Any], key: str, least: int, default: int) -> int:
    """A whole number. :raises Invalid: it is something else, or too small."""
    value: int = whole(data, key, default)
    if value < least:
        raise Invalid(f"{key} is {value}: the minimum is {least}")
    return value


def one_of(data: Mapping[str, Any], key: str, known: tuple[str, ...], default: str) -> str:
    """One of the ``known`` words. :raises Invalid: it is something else."""
    value: str = take(data, key, str, default)
    if value not in known:
        raise Invalid(f"{key} is {value!r}: expected one of {', '.join(known)}")
    return value


@dataclass(frozen=True, slots=True)
class Retention:
    """How long acknowledged messages stay. -1: no limit; 0 in both: until every subscription has acknowledged them."""

    time_minutes: int
    size_mb: int

    def to_json(self) -> Json:
        return {"retentionTimeInMinutes": self.time_minutes, "retentionSizeInMB": self.size_mb}

    @classmethod
    def from_json(cls, source: Any) -> Retention:
        """:raises Invalid: a field is wrong, or exactly one of the two limits is 0."""
        data = mapping(source, "retention")
        time_minutes = whole(data, "retentionTimeInMinutes", 0)
        size_mb = whole(data, "retentionSizeInMB", 0)
        if min(time_minutes, size_mb) < -1:
            raise Invalid(f"retention: {time_minutes} minutes, {size_mb} MB: the minimum is -1, which means no limit")
        if (time_minutes == 0) != (size_mb == 0):
            raise Invalid(
                "retention: set both time and size to 0, or neither: a single 0 would make the other limit void"
            )
        return cls(time_minutes, size_mb)


@dataclass(frozen=True, slots=True)
class BacklogQuota:
    """Limit on a subscription's backlog, and what happens beyond it."""

    limit_bytes: int
    """-1: no limit by size."""
    limit_seconds: int
    """-1: no limit by age."""
    policy: str

    def to_json(self) -> Json:
        return {"limitSize": self.limit_bytes, "limitTime": self.limit_seconds, "policy": self.policy}

    @classmethod
    def from_json(cls, source: Any) -> BacklogQuota:
        """``limit`` is the older name of ``limitSize``. :raises Invalid: a field is wrong."""
        data = mapping(source, "a backlog quota")
        policy = take(data, "policy", str, QUOTA_POLICIES[0])
        if policy not in QUOTA_POLICIES:
            raise Invalid(f"{policy!r} is not a backlog quota policy: expected one of {', '.join(QUOTA_POLICIES)}")
        return cls(whole(data, "limitSize", whole(data, "limit", -1)), whole(data, "limitTime", -1), policy)


@dataclass(frozen=True, slots=True)
class PublishRate:
    """Rate at which all producers of one topic together may publish, per second; 0 or less: no limit."""

    messages: int = 0
    bytes: int = 0

    def to_json(self) -> Json:
        return {"publishThrottlingRateInMsg": self.messages, "publishThrottlingRateInByte": self.bytes}

    @classmethod
    def from_json(cls, source: Any) -> PublishRate:
        """:raises Invalid: a field is wrong."""
        data = mapping(source, "a publish rate")
        messages = whole(data, "publishThrottlingRateInMsg", 0)
        return cls(messages, whole(data, "publishThrottlingRateInByte", 0))


@dataclass(frozen=True, slots=True)
class DispatchRate:
    """Rate of dispatch per period; 0 or less: no limit."""

    messages: int = -1
    bytes: int = -1
    period_seconds: int = 1
    relative_to_publish_rate: bool = False
    """Kept for tools, without effect: the rate does not depend on the rate of incoming messages."""

    def to_json(self) -> Json:
        return {
            "dispatchThrottlingRateInMsg": self.messages,
            "dispatchThrottlingRateInByte": self.bytes,
            "relativeToPublishRate": self.relative_to_publish_rate,
            "ratePeriodInSecond": self.period_seconds,
        }

    @classmethod
    def from_json(cls, source: Any) -> DispatchRate:
        """:raises Invalid: a field is wrong."""
        data = mapping(source, "a dispatch rate")
        messages = whole(data, "dispatchThrottlingRateInMsg", -1)
        size, period = whole(data, "dispatchThrottlingRateInByte", -1), at_least(data, "ratePeriodInSecond", 1, 1)
        return cls(messages, size, period, take(data, "relativeToPublishRate", bool, False))


@dataclass(frozen=True, slots=True)
class DelayedDelivery:
    """Whether messages may ask to be delivered later, and how much later."""

    active: bool = True
    tick_ms: int = 1000
    """Kept for tools, without effect: messages are delivered when they are due."""
    max_delay_ms: int = 0
    """A message that asks for more is refused; 0: no limit."""

    def to_json(self) -> Json:
        return {"active": self.active, "tickTime": self.tick_ms, "maxDeliveryDelayInMillis": self.max_delay_ms}

    @classmethod
    def from_json(cls, source: Any) -> DelayedDelivery:
        """:raises Invalid: a field is wrong."""
        data = mapping(source, "delayed delivery")
        tick, longest = at_least(data, "tickTime", 1, 1000), at_least(data, "maxDeliveryDelayInMillis", 0, 0)
        return cls(take(data, "active", bool, False), tick, longest)


@dataclass(frozen=True, slots=True)
class InactiveTopics:
    """When an unused topic is deleted."""

    remove: bool = False
    mode: str = WITHOUT_SUBSCRIPTIONS
    seconds: int = 60
    """Required time without use."""

    def to_json(self) -> Json:
        return {
            "inactiveTopicDeleteMode": self.mode,
            "maxInactiveDurationSeconds": self.seconds,
            "deleteWhileInactive": self.remove,
        }

    @classmethod
    def from_json(cls, source: Any) -> InactiveTopics:
        """:raises Invalid: a field is wrong."""
        data = mapping(source, "inactive topics")
        mode = one_of(data, "inactiveTopicDeleteMode", INACTIVE_MODES, WITHOUT_SUBSCRIPTIONS)
        remove = take(data, "deleteWhileInactive", bool, False)
        return cls(remove, mode, at_least(data, "maxInactiveDurationSeconds", 1, 60))


@dataclass(frozen=True, slots=True)
class AutoTopicCreation:
    """Whether a client that names a topic that does not exist creates it, and of which kind."""

    allowed: bool = True
    partitioned: bool = False
    partitions: int = 1

    def to_json(self) -> Json:
        result: Json = {"allowAutoTopicCreation": self.allowed, "topicType": TOPIC_TYPES[self.partitioned]}
        return result | ({"defaultNumPartitions": self.partitions} if self.partitioned else {})

    @classmethod
    def from_json(cls, source: Any) -> AutoTopicCreation:
        """:raises Invalid: a field is wrong, or the number of partitions is missing."""
        data = mapping(source, "automatic topic creation")
        allowed = take(data, "allowAutoTopicCreation", bool, False)
        partitioned = one_of(data, "topicType", TOPIC_TYPES, TOPIC_TYPES[0]) == "partitioned"
        if allowed and partitioned and data.get("defaultNumPartitions") is None:
            raise Invalid("defaultNumPartitions is missing: topics of type partitioned need it")
        return cls(allowed, partitioned, at_least(data, "defaultNumPartitions", 1, 1) if partitioned else 1)


@dataclass(frozen=True, slots=True)
class AutoSubscriptionCreation:
    """Whether a consumer that names a subscription which does not exist creates it."""

    allowed: bool = True

    def to_json(self) -> Json:
        return {"allowAutoSubscriptionCreation": self.allowed}

    @classmethod
    def from_json(cls, source: Any) -> AutoSubscriptionCreation:
        """:raises Invalid: a field is wrong."""
        data = mapping(source, "automatic subscription creation")
        return cls(take(data, "allowAutoSubscriptionCreation", bool, False))
