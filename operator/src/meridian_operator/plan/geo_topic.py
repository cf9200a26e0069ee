# SPDX-License-Identifier: Apache-2.0
"""GeoTopic: the plan.

A region that does not answer is a problem and holds nothing up elsewhere. Topic-level policies are set, never the
namespace's: other topics of the namespace are none of our business. What the spec does not name is left alone, unless
this object set it before. A region that joined and is not filled yet is waited for: nobody should fail over to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any, Final

from meridian_operator.api.geo_topic import BacklogQuota, GeoTopicSpec, Retention
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
_VANISHED: Final = (
    "{topic} was there and is gone, and no other region holds it. Making it again would make an empty one: to do that, "
    "set annotation meridian.dev/recreate to a new value"
)
_QUOTA_POLICIES: Final = {
    "ProducerRequestHold": "producer_request_hold",
    "ProducerException": "producer_exception",
    "ConsumerBacklogEviction": "consumer_backlog_eviction",
}


def policies(spec: GeoTopicSpec) -> dict[str, Any]:
    """The topic-level policies that the spec asks for: last part of the path -> body."""
    wanted: dict[str, Any] = {REPLICATION: sorted(spec.regions)}
    if spec.retention is not None:
        wanted["retention"] = _retention(spec.retention)
    if spec.message_ttl is not None:
        wanted["messageTTL"] = -(-duration_ms(spec.message_ttl) // 1000)
    if spec.backlog_quota is not None:
        wanted["backlogQuota"] = _quota(spec.backlog_quota)
    if spec.deduplication is not None:
        wanted["deduplicationEnabled"] = spec.deduplication
    return wanted


def refusal(spec: GeoTopicSpec) -> tuple[str, str] | None:
    """Why nothing is done for this specification: reason and sentence."""
    sync, schema = spec.subscription_sync, spec.topic_schema
    fields = []
    if sync.mode != "Exact":
        fields.append(f"subscriptionSync.mode {sync.mode.value}")
    for name, value in (
        ("snapshotInterval", sync.snapshot_interval),
        ("snapshotTimeout", sync.snapshot_timeout),
        ("snapshotCacheSize", sync.snapshot_cache_size),
    ):
        if value is not None:
            fields.append(f"subscriptionSync.{name}")
    if schema is not None and schema.compatibility is not None:
        fields.append("schema.compatibility")
    if fields:
        return "NotSupported", f"this version does not act on {', '.join(fields)}: remove that from the spec"
    if schema is not None and not schema.definition and schema.type != "STRING":
        return "InvalidSpec", f"schema.definition is empty: a schema of type {schema.type} needs its text"
    return None


def plan(spec: GeoTopicSpec, seen: Sequence[RegionSeen], history: History = NOTHING) -> Plan:
    """What to do so that every region of the topic holds it as specified.

    :param seen: the regions that the object names, and those that it named before.
    """
    topic = TopicName.parse(spec.topic)
    changes: list[Change] = []
    problems: list[tuple[str, str, str]] = []
    waiting: list[str] = []
    wanted = policies(spec)
    given_up = sorted(set(history.managed) - wanted.keys())
    named = [region for region in seen if region.name in spec.regions]
    held = any(region.topic is not None for region in named)
    silent = any(region.name in history.established for region in named if not region.reachable)
    for region in named:
        problem = _problem(spec, topic, region)
        missing = problem is None and region.topic is None and not history.recreate
        if missing and history.established and not held and not silent:
            problem = "Vanished", f"{region.name}: {_VANISHED.format(topic=topic)}"
        if problem is not None:
            problems.append((region.name, *problem))
        elif missing and (region.name in history.established or (history.established and not held)):
            waiting.append(
                f"{region.name} has no {topic} and is filled from a region that still holds it at the next look"
            )
            continue
        if problem is None or problem[0] == "MorePartitions":
            changes += _topic(spec, topic, region)
            changes += _policies(topic, region, wanted, given_up)
            changes += _schema(spec, topic, region)
        if region.topic is not None and region.topic.unfilled:
            waiting.append(f"{region.name} is being filled: {region.topic.unfilled}")
    for region in seen:
        if region.name not in spec.regions:
            if not region.reachable:
                told = f"{region.name} has left {topic} and is still linked: {_unreachable(region)}"
                problems.append((region.name, region.reason, told))
            elif is_linked(region):
                changes.append(Unlink(region.name, topic))
    return Plan(tuple(changes), tuple(problems), tuple(waiting))


def is_linked(region: RegionSeen) -> bool:
    """Does a region that left the topic still send to others, or is it not known whether it does?"""
    if region.topic is None:
        return not region.reachable
    return region.topic.policies.get(REPLICATION) != [region.name]


def established(spec: GeoTopicSpec, seen: Sequence[RegionSeen], history: History) -> list[str]:
    """Regions that are known to hold the topic, to be remembered: a region that is silent is remembered too, and so is
    one that left and is still linked. Where all that answer have lost it, what was known stays."""
    holding = {region.name for region in seen if region.topic is not None and region.name in spec.regions}
    if not holding:
        return sorted(history.established)
    silent = {region.name for region in seen if not region.reachable}
    linked = {region.name for region in seen if region.name not in spec.regions and is_linked(region)}
    return sorted(holding | (history.established & (silent | linked)))


def left(spec: GeoTopicSpec, seen: Sequence[RegionSeen], history: History) -> list[str]:
    """Regions that the topic has left and that keep their copy of it."""
    gone = {
        region.name
        for region in seen
        if region.name not in spec.regions and region.topic is not None and not is_linked(region)
    }
    return sorted((gone | set(history.left)) - set(spec.regions))


def deletion(spec: GeoTopicSpec, seen: Sequence[RegionSeen], abandoned: Sequence[str] = ()) -> Plan:
    """What to do when the object is deleted with policy Delete: nothing until every region answers, then one region is
    told, and tells the others.

    :param seen: the regions that are not abandoned.
    :param abandoned: regions that are given up. The others unlink them first: a region refuses to delete a topic while
        it cannot ask the others who uses it.
    """
    topic = TopicName.parse(spec.topic)
    problems = [(region.name, region.reason, _unreachable(region)) for region in seen if not region.reachable]
    having = [region for region in seen if region.topic is not None]
    if problems or not having:
        return Plan((), tuple(problems))
    alone = sorted(region.name for region in seen)
    changes: list[Change] = []
    if abandoned:
        changes += [
            SetPolicy(region.name, topic, REPLICATION, alone)
            for region in having
            if region.topic is not None and region.topic.policies.get(REPLICATION) != alone
        ]
    first = having[0]
    partitioned = first.topic is not None and first.topic.partitions > 0
    changes.append(DeleteTopic(first.name, topic, partitioned=partitioned))
    return Plan(tuple(changes))


def replicating(spec: GeoTopicSpec, seen: Sequence[RegionSeen]) -> Finding:
    """Does every region send to every other one?"""
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
    return Finding(REPLICATING, "True", "AllLinksUp", "every region sends to every other one")


def _problem(spec: GeoTopicSpec, topic: TopicName, region: RegionSeen) -> tuple[str, str] | None:
    if not region.reachable:
        return region.reason, _unreachable(region)
    if not region.namespace_exists and not spec.create_namespace:
        return (
            "NamespaceNotFound",
            (
                f"{region.name} has no namespace {topic.tenant}/{topic.namespace}: make it there "
                f"(meridian namespaces create {topic.tenant}/{topic.namespace}), or set spec.createNamespace"
            ),
        )
    unknown = sorted(set(spec.regions) - region.known_regions)
    if unknown:
        return (
            "RegionUnknown",
            f"{region.name} does not know {', '.join(unknown)}: name it in that release's region.peers",
        )
    if region.topic is not None and (region.topic.partitions > 0) != (spec.partitions is not None):
        has = f"{region.topic.partitions} partitions" if region.topic.partitions else "no partitions"
        return (
            "PartitioningDiffers",
            (
                f"{topic} exists in {region.name} with {has}: a topic cannot become partitioned or cease to be. "
                "Change spec.partitions, or delete the topic there"
            ),
        )
    if region.topic is not None and spec.partitions is not None and region.topic.partitions > spec.partitions:
        return (
            "MorePartitions",
            (
                f"{topic} has {region.topic.partitions} partitions in {region.name}: raise spec.partitions to that; "
                "partitions never go"
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
