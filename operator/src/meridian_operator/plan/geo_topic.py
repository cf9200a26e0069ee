# SPDX-License-Identifier: Apache-2.0
"""GeoTopic: the plan.

A region that does not answer is a problem and holds nothing up elsewhere. Topic-level policies are set, never the
namespace's: other topics of the namespace are none of our business. What the spec does not name is left alone, unless
this object set it before. A region that joined and is not filled yet is waited for: nobody should fail over to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from meridian_operator.api.geo_topic import BacklogQuota, GeoTopicSpec, Retention
from meridian_operator.api.quantities import UNLIMITED, duration_ms, size_bytes
from meridian_operator.plan.changes import (
    AddSchema,
    Change,
    CreateTopic,
    DeleteTopic,
    GrowTopic,
    RemovePolicy,
    SetPolicy,
)
from meridian_operator.plan.observed import RegionSeen, TopicName
from meridian_operator.plan.outcome import REPLICATING, Finding, Plan

REPLICATION: Final = "replication"
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


def plan(spec: GeoTopicSpec, seen: Sequence[RegionSeen], managed: Iterable[str] = ()) -> Plan:
    """What to do so that every region in ``seen`` holds the topic as specified.

    :param managed: policies that this object has set before.
    """
    topic = TopicName.parse(spec.topic)
    changes: list[Change] = []
    problems: list[tuple[str, str, str]] = []
    waiting: list[str] = []
    wanted = policies(spec)
    given_up = sorted(set(managed) - wanted.keys())
    for region in seen:
        problem = _problem(spec, topic, region)
        if problem is not None:
            problems.append((region.name, *problem))
        if problem is None or problem[0] == "MorePartitions":
            changes += _topic(spec, topic, region)
            changes += _policies(topic, region, wanted, given_up)
            changes += _schema(spec, topic, region)
        if region.topic is not None and region.topic.unfilled:
            waiting.append(f"{region.name} is being filled: {region.topic.unfilled}")
    return Plan(tuple(changes), tuple(problems), tuple(waiting))


def deletion(spec: GeoTopicSpec, seen: Sequence[RegionSeen]) -> Plan:
    """What to do when the object is deleted with policy Delete."""
    topic = TopicName.parse(spec.topic)
    problems = [(region.name, "RegionUnreachable", _unreachable(region)) for region in seen if not region.reachable]
    changes = [
        DeleteTopic(region.name, topic, partitioned=region.topic.partitions > 0)
        for region in seen
        if region.topic is not None
    ]
    return Plan(tuple(changes), tuple(problems))


def replicating(spec: GeoTopicSpec, seen: Sequence[RegionSeen]) -> Finding:
    """Does every region send to every other one?"""
    broken = []
    for region in seen:
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
        return "RegionUnreachable", _unreachable(region)
    if not region.namespace_exists:
        return (
            "NamespaceNotFound",
            (
                f"{region.name} has no namespace {topic.tenant}/{topic.namespace}: make it there "
                f"(meridian namespaces create {topic.tenant}/{topic.namespace})"
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
    shall = (spec.topic_schema.type, spec.topic_schema.definition)
    newest = None if region.topic is None else region.topic.schema
    if newest is None or (newest.get("type"), newest.get("data")) != shall:
        yield AddSchema(region.name, topic, *shall)


def _retention(retention: Retention) -> dict[str, int]:
    minutes = -1 if retention.time == UNLIMITED else -(-duration_ms(retention.time) // 60_000)
    mebibytes = -1 if retention.size == UNLIMITED else -(-size_bytes(retention.size) // (1 << 20))
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
