# SPDX-License-Identifier: Apache-2.0
"""A namespace's policies, in Pulsar's words.

The policies that this broker acts on are fields, checked when they are set. All others are kept as they came, so that
tools which set them find them again, and a later version can act on them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from meridian_broker.metadata.errors import Invalid
from meridian_broker.metadata.records import Json, mapping, names, take, without
from meridian_broker.positions.clock import Stamp

REPLICATION_CLUSTERS: Final = "replication_clusters"
ALLOWED_CLUSTERS: Final = "allowed_clusters"
RETENTION: Final = "retention_policies"
MESSAGE_TTL: Final = "message_ttl_in_seconds"
DEDUPLICATION: Final = "deduplicationEnabled"
MAX_PRODUCERS: Final = "max_producers_per_topic"
BACKLOG_QUOTAS: Final = "backlog_quota_map"
BUNDLES: Final = "bundles"

KNOWN: Final = (
    REPLICATION_CLUSTERS,
    ALLOWED_CLUSTERS,
    RETENTION,
    MESSAGE_TTL,
    DEDUPLICATION,
    MAX_PRODUCERS,
    BACKLOG_QUOTAS,
    BUNDLES,
)

NAME_SETS: Final = frozenset({REPLICATION_CLUSTERS, ALLOWED_CLUSTERS})
"""Policies that are sets of names: each element has a path of its own (R41)."""

DEFAULT_BUNDLES: Final = 4
MAX_BUNDLES: Final = 1024

QUOTA_POLICIES: Final = ("producer_request_hold", "producer_exception", "consumer_backlog_eviction")
QUOTA_KINDS: Final = ("destination_storage", "message_age")


@dataclass(frozen=True, slots=True)
class Retention:
    """How long acknowledged messages stay. -1 is without limit; 0 in both: they go once every subscription has them."""

    time_minutes: int
    size_mb: int

    def to_json(self) -> Json:
        return {"retentionTimeInMinutes": self.time_minutes, "retentionSizeInMB": self.size_mb}

    @classmethod
    def from_json(cls, source: Any) -> Retention:
        """:raises Invalid: a field is wrong, or exactly one of the two limits is 0."""
        data = mapping(source, RETENTION)
        time_minutes = take(data, "retentionTimeInMinutes", int, 0)
        size_mb = take(data, "retentionSizeInMB", int, 0)
        if min(time_minutes, size_mb) < -1:
            raise Invalid(f"{RETENTION}: {time_minutes} minutes, {size_mb} MB: -1 is the least, for no limit")
        if (time_minutes == 0) != (size_mb == 0):
            raise Invalid(f"{RETENTION}: time and size are both 0 or neither is, else one would make the other void")
        return cls(time_minutes, size_mb)


@dataclass(frozen=True, slots=True)
class BacklogQuota:
    """How much may wait for a subscription, and what happens beyond that."""

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
        data = mapping(source, BACKLOG_QUOTAS)
        policy = take(data, "policy", str, QUOTA_POLICIES[0])
        if policy not in QUOTA_POLICIES:
            raise Invalid(f"{policy!r} is no backlog quota policy: {', '.join(QUOTA_POLICIES)} are")
        return cls(take(data, "limitSize", int, take(data, "limit", int, -1)), take(data, "limitTime", int, -1), policy)


@dataclass(frozen=True, slots=True)
class NamespaceRecord:
    """A namespace. None means "not set": the broker's default holds."""

    replication_clusters: frozenset[str] = frozenset()
    """The regions that its topics live in."""
    allowed_clusters: frozenset[str] = frozenset()
    retention: Retention | None = None
    message_ttl_seconds: int | None = None
    deduplication: bool | None = None
    max_producers: int | None = None
    """Producers of one topic; 0: no limit."""
    backlog_quotas: Mapping[str, BacklogQuota] = field(default_factory=dict)
    """By kind: ``destination_storage`` (size), ``message_age``."""
    bundles: int = DEFAULT_BUNDLES
    """Into how many parts of the hash range its topics are dealt."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Every other policy, by Pulsar's name."""
    deleting: bool = False
    """Its deletion has begun: nothing new may be made in it."""
    stamp: Stamp | None = None

    def to_json(self) -> Json:
        """Pulsar's ``Policies``: policies that are not set are left out."""
        result: Json = {
            REPLICATION_CLUSTERS: sorted(self.replication_clusters),
            ALLOWED_CLUSTERS: sorted(self.allowed_clusters),
            BUNDLES: {"numBundles": self.bundles, "boundaries": boundaries(self.bundles)},
            BACKLOG_QUOTAS: {kind: quota.to_json() for kind, quota in self.backlog_quotas.items()},
            **self.extra,
        }
        if self.retention is not None:
            result[RETENTION] = self.retention.to_json()
        if self.message_ttl_seconds is not None:
            result[MESSAGE_TTL] = self.message_ttl_seconds
        if self.deduplication is not None:
            result[DEDUPLICATION] = self.deduplication
        if self.max_producers is not None:
            result[MAX_PRODUCERS] = self.max_producers
        if self.deleting:
            result["deleted"] = True
        return result

    @classmethod
    def from_json(cls, source: Any) -> NamespaceRecord:
        """:raises Invalid: a policy is not what it should be."""
        data = mapping(source, "policies")
        retention, ttl = data.get(RETENTION), take(data, MESSAGE_TTL, int)
        if ttl is not None and ttl < 0:
            raise Invalid(f"{MESSAGE_TTL} is {ttl}: it cannot be negative, 0 is for ever")
        producers = take(data, MAX_PRODUCERS, int)
        if producers is not None and producers < 0:
            raise Invalid(f"{MAX_PRODUCERS} is {producers}: it cannot be negative, 0 is for no limit")
        quotas = take(data, BACKLOG_QUOTAS, Mapping, {})
        if not quotas.keys() <= set(QUOTA_KINDS):
            raise Invalid(f"{BACKLOG_QUOTAS} has {sorted(quotas)}: {' and '.join(QUOTA_KINDS)} are the kinds")
        return cls(
            replication_clusters=names(data, REPLICATION_CLUSTERS),
            allowed_clusters=names(data, ALLOWED_CLUSTERS),
            retention=None if retention is None else Retention.from_json(retention),
            message_ttl_seconds=ttl,
            deduplication=take(data, DEDUPLICATION, bool),
            max_producers=producers,
            backlog_quotas={kind: BacklogQuota.from_json(quota) for kind, quota in quotas.items()},
            bundles=_bundles(data),
            extra={key: value for key, value in without(data, *KNOWN, "deleted").items() if value is not None},
        )

    def with_policy(self, policy: str, value: Any) -> NamespaceRecord:
        """The same with one policy set to a JSON value; None takes it away.

        :raises Invalid: the value is not what it should be.
        """
        changed = NamespaceRecord.from_json({**self.to_json(), policy: value})
        return replace(changed, deleting=self.deleting, stamp=self.stamp)

    def policies(self) -> Json:
        """What is stored: each policy that is set, by name."""
        result = {key: value for key, value in self.to_json().items() if value not in ([], {}) and key != "deleted"}
        result[BUNDLES] = {"numBundles": self.bundles}
        return result


def boundaries(bundles: int) -> list[str]:
    """The borders of equal parts of the 32-bit hash range, as Pulsar writes them."""
    size = (1 << 32) // bundles
    return [*(f"0x{i * size:08x}" for i in range(bundles)), "0xffffffff"]


def _bundles(data: Mapping[str, Any]) -> int:
    value = data.get(BUNDLES)
    count: int = DEFAULT_BUNDLES if value is None else take(mapping(value, BUNDLES), "numBundles", int, DEFAULT_BUNDLES)
    if not 1 <= count <= MAX_BUNDLES:
        raise Invalid(f"{count} bundles: 1 to {MAX_BUNDLES} are possible")
    return count
