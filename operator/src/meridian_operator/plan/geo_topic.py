# SPDX-License-Identifier: Apache-2.0
"""Plans for GeoTopics.

A region that does not answer is reported and holds nothing up elsewhere. Only topic-level policies are set, never the
namespace's, which would affect its other topics. Settings that the spec does not name are left alone, unless this
object set them before. A region that joined is waited for until its backfill completes: it is no failover target yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any, Final

from meridian_operator.api.geo_topic import BacklogQuota, GeoTopicSpec, Retention, SyncMode
from meridian_operator.api.quantities import UNLIMITED, duration_ms, size_bytes
from meridian_operator.plan.changes import (
    AddSchema,
    Change,
    CreateNamespace,
    CreateTopic,
    DeleteTopic,
    GrowTopic,
    RemovePolicy,
    SetPolicy,
    Unlink,
)
from meridian_operator.plan.history import NOTHING, History
from meridian_operator.plan.observed import RegionSeen, TopicName
from meridian_operator.plan.outcome import REPLICATING, Finding, Plan

REPLICATION: Final = "replication"
SUBSCRIPTION_SYNC: Final = "subscriptionSync"
SNAPSHOT: Final = "snapshot"
_VANISHED: Final = (
    "{topic} has disappeared, and no other region holds it. To create it again, empty, set annotation "
    "meridian.dev/recreate to a new value"
)
_QUOTA_POLICIES: Final = {
    "ProducerRequestHold": "producer_request_hold",
    "ProducerException": "producer_exception",
    "ConsumerBacklogEviction": "consumer_backlog_eviction",
}


def policies(spec: GeoTopicSpec) -> dict[str, Any]:
    """The topic-level policies that the spec asks for: last part of the path -> request body."""
    wanted: dict[str, Any] = {REPLICATION: sorted(spec.regions)}
    if spec.retention is not None:
        wanted["retention"] = _retention(spec.retention)
    if spec.message_ttl is not None:
        wanted["messageTTL"] = -(-duration_ms(spec.message_ttl) // 1000)
    if spec.backlog_quota is not None:
        wanted["backlogQuota"] = _quota(spec.backlog_quota)
    if spec.deduplication is not None:
        wanted["deduplicationEnabled"] = spec.deduplication
    if spec.subscription_sync.mode == SyncMode.SNAPSHOT:
        wanted[SUBSCRIPTION_SYNC] = SNAPSHOT
    return wanted


def refusal(spec: GeoTopicSpec) -> tuple[str, str] | None:
    """Why this spec cannot be carried out: reason and sentence; None: it can."""
    sync, schema = spec.subscription_sync, spec.topic_schema
    for name, value, instead in (
        ("snapshotInterval", sync.snapshot_interval, "replicatedSubscriptionsSnapshotFrequencyMillis"),
        ("snapshotTimeout", sync.snapshot_timeout, "replicatedSubscriptionsSnapshotTimeoutSeconds"),
        ("snapshotCacheSize", sync.snapshot_cache_size, "replicatedSubscriptionsSnapshotMaxCachedPerSubscription"),
    ):
        if value is not None:
            text = f"subscriptionSync.{name} is not supported: remove it, and set {instead} of the brokers"
            return "NotSupported", text
    if schema is not None and schema.compatibility is not None:
        return "NotSupported", "schema.compatibility is not supported: remove it. Brokers accept every new version"
    if schema is not None and not schema.definition and schema.type != "STRING":
        return "InvalidSpec", f"schema.definition is empty: a schema of type {schema.type} needs one"
    return None


def plan(spec: GeoTopicSpec, seen: Sequence[RegionSeen], history: History = NOTHING) -> Plan:
    """The changes that bring every region of the topic to the spec.

    :param seen: the regions that the object names, and those that it used to name.
    """
    topic = TopicName.parse(spec.topic)
    changes: list[Change] = []
    problems: list[tuple[str, str, str]] = []
    waiting: list[str] = []
    wanted = policies(spec)
    given_up = sorted(set(history.managed) - wanted.keys())
    named = [region for region in seen if region.name in spec.regions]
    held = any(region.copy is not None for region in named)
    silent = any(region.name in history.established for region in named if not region.reachable)
    for region in named:
        problem = _problem(spec, topic, region)
        missing = problem is None and region.topic is None and not history.recreate
        if missing and history.established and not held and not silent:
            problem = "Vanished", f"{region.name}: {_VANISHED.format(topic=topic)}"
        if problem is not None:
            problems.append((region.name, *problem))
        elif missing and (region.name in history.established or (history.established and not held)):
            waiting.append(f"{region.name} has lost {topic}; it will be backfilled from a region that still holds it")
            continue
        if problem is None or problem[0] == "MorePartitions":
            changes += _topic(spec, topic, region)
            changes += _policies(topic, region, wanted, given_up)
            changes += _schema(spec, topic, region)
        if region.topic is not None and region.topic.unfilled:
            waiting.append(f"{region.name} is being backfilled: {region.topic.unfilled}")
    for region in seen:
        if region.name not in spec.regions:
            if not region.reachable:
                told = f"{region.name} was removed from {topic} but still replicates it: {_unreachable(region)}"
                problems.append((region.name, region.reason, told))
            elif is_linked(region):
                changes.append(Unlink(region.name, topic))
    return Plan(tuple(changes), tuple(problems), tuple(waiting))


def is_linked(region: RegionSeen) -> bool:
    """Does a region that was removed from the topic still replicate it, as far as is known?"""
    if region.copy is None:
        return not region.reachable
    return region.copy.policies.get(REPLICATION) != [region.name]


def established(spec: GeoTopicSpec, seen: Sequence[RegionSeen], history: History) -> list[str]:
    """Regions known to hold the topic, for the status. Unreachable regions stay in the list, and so do removed regions
    that still replicate. If every region that answers has lost the topic, the list stays as it was."""
    holding = {region.name for region in seen if region.copy is not None and region.name in spec.regions}
    if not holding:
        return sorted(history.established)
    silent = {region.name for region in seen if not region.reachable}
    linked = {region.name for region in seen if region.name not in spec.regions and is_linked(region)}
    return sorted(holding | (history.established & (silent | linked)))


def left(spec: GeoTopicSpec, seen: Sequence[RegionSeen], history: History) -> list[str]:
    """Regions that were removed from the topic and keep their copy."""
    gone = {
        region.name
        for region in seen
        if region.name not in spec.regions and region.copy is not None and not is_linked(region)
    }
    return sorted((gone | set(history.left)) - set(spec.regions))


def deletion(spec: GeoTopicSpec, seen: Sequence[RegionSeen], abandoned: Sequence[str] = ()) -> Plan:
    """The changes to make when the object is deleted with policy Delete: none until every region answers; then one
    region is asked to delete, and informs the others. A region where the topic is a shadow is left alone.

    :param seen: the regions that are not abandoned.
    :param abandoned: regions not waited for. The others unlink them first: a region refuses to delete a topic while it
        cannot ask every other region whether the topic is in use.
    """
    topic = TopicName.parse(spec.topic)
    problems = [(region.name, region.reason, _unreachable(region)) for region in seen if not region.reachable]
    ours = [region for region in seen if region.topic is None or region.copy is not None]
    having = [region for region in ours if region.copy is not None]
    if problems or not having:
        return Plan((), tuple(problems))
    alone = sorted(region.name for region in ours)
    changes: list[Change] = []
    if abandoned or len(ours) < len(seen):
        changes += [
            SetPolicy(region.name, topic, REPLICATION, alone)
            for region in having
            if region.copy is not None and region.copy.policies.get(REPLICATION) != alone
        ]
    first = having[0]
    partitioned = first.copy is not None and first.copy.partitions > 0
    changes.append(DeleteTopic(first.name, topic, partitioned=partitioned))
    return Plan(tuple(changes))


def replicating(spec: GeoTopicSpec, seen: Sequence[RegionSeen]) -> Finding:
    """Does every region replicate to every other region?"""
    broken = []
    for region in seen:
        if region.name not in spec.regions:
            continue
        if not region.reachable or region.topic is None:
            broken.append(f"{region.name} does not hold the topic yet" if region.reachable else _unreachable(region))
            continue
        connected = {link.region for link in region.topic.links if link.connected}
        missing = sorted(set(spec.regions) - connected - {region.name})
        if missing:
            broken.append(f"{region.name} is not connected to {', '.join(missing)}")
    if broken:
        return Finding(REPLICATING, "False", "LinkDown", "; ".join(broken)[:4000])
    return Finding(REPLICATING, "True", "AllLinksUp", "every region replicates to every other region")


def _problem(spec: GeoTopicSpec, topic: TopicName, region: RegionSeen) -> tuple[str, str] | None:
    if not region.reachable:
        return region.reason, _unreachable(region)
    if not region.namespace_exists and not spec.create_namespace:
        return (
            "NamespaceNotFound",
            (
                f"{region.name} has no namespace {topic.tenant}/{topic.namespace}: create it there "
                f"(meridian namespaces create {topic.tenant}/{topic.namespace}), or set spec.createNamespace"
            ),
        )
    unknown = sorted(set(spec.regions) - region.known_regions)
    if unknown:
        return (
            "RegionUnknown",
            f"{region.name} does not know {', '.join(unknown)}: add it to region.peers of that release",
        )
    if region.topic is not None and region.topic.shadow is not None:
        return (
            "TopicExists",
            (
                f"{topic} exists in {region.name} and is a shadow of {region.topic.shadow.source}: "
                "choose another name, or delete it there"
            ),
        )
    if region.topic is not None and (region.topic.partitions > 0) != (spec.partitions is not None):
        has = f"{region.topic.partitions} partitions" if region.topic.partitions else "no partitions"
        return (
            "PartitioningDiffers",
            (
                f"{topic} exists in {region.name} with {has}: a topic cannot become partitioned or non-partitioned. "
                "Change spec.partitions, or delete the topic there"
            ),
        )
    if region.topic is not None and spec.partitions is not None and region.topic.partitions > spec.partitions:
        return (
            "MorePartitions",
            (
                f"{topic} has {region.topic.partitions} partitions in {region.name}: raise spec.partitions to that; "
                "partitions cannot be removed"
            ),
        )
    return None


def _unreachable(region: RegionSeen) -> str:
    return f"{region.name} could not be asked: {region.problem}"


def _topic(spec: GeoTopicSpec, topic: TopicName, region: RegionSeen) -> Iterable[Change]:
    partitions = spec.partitions or 0
    if not region.namespace_exists:
        yield CreateNamespace(region.name, topic, tuple(sorted(spec.regions)))
    if region.topic is None:
        yield CreateTopic(region.name, topic, partitions)
    elif 0 < region.topic.partitions < partitions:
        yield GrowTopic(region.name, topic, partitions)


def _policies(
    topic: TopicName, region: RegionSeen, wanted: Mapping[str, Any], given_up: Iterable[str]
) -> Iterable[Change]:
    has: Mapping[str, Any] = {} if region.topic is None else region.topic.policies
    for policy, value in wanted.items():
        if has.get(policy) != value:
            yield SetPolicy(region.name, topic, policy, value)
    for policy in given_up:
        if policy in has:
            yield RemovePolicy(region.name, topic, policy)


def _schema(spec: GeoTopicSpec, topic: TopicName, region: RegionSeen) -> Iterable[Change]:
    if spec.topic_schema is None:
        return
    kind, text = spec.topic_schema.type, spec.topic_schema.definition
    newest = None if region.topic is None else region.topic.schema
    if newest is None or (newest.get("type"), newest.get("sha256")) != (kind, sha256(text.encode()).hexdigest()):
        yield AddSchema(region.name, topic, kind, text)


def _retention(retention: Retention) -> dict[str, int]:
    time, size = retention.time or UNLIMITED, retention.size or UNLIMITED
    minutes = -1 if time == UNLIMITED else -(-duration_ms(time) // 60_000)
    mebibytes = -1 if size == UNLIMITED else -(-size_bytes(size) // (1 << 20))
    return {"retentionTimeInMinutes": minutes, "retentionSizeInMB": mebibytes}


def _quota(quota: BacklogQuota) -> dict[str, dict[str, Any]]:
    policy = _QUOTA_POLICIES[quota.policy]
    made: dict[str, dict[str, Any]] = {}
    if quota.size is not None:
        made["destination_storage"] = {"limitSize": size_bytes(quota.size), "limitTime": -1, "policy": policy}
    if quota.time is not None:
        seconds = -(-duration_ms(quota.time) // 1000)
        made["message_age"] = {"limitSize": -1, "limitTime": seconds, "policy": policy}
    return made
