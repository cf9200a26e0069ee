# SPDX-License-Identifier: Apache-2.0
"""Plans for ShadowTopics: one region creates the shadow, which follows its source's partitions by itself."""

from __future__ import annotations

from collections.abc import Container, Sequence

from meridian_operator.api.shadow_topic import ShadowTopicSpec
from meridian_operator.plan.changes import (
    AutoResetBacklog,
    Change,
    CreateShadow,
    DeleteTopic,
    FollowPartitions,
    HoldSourceLedgers,
)
from meridian_operator.plan.history import History
from meridian_operator.plan.observed import RegionSeen, TopicName, TopicSeen
from meridian_operator.plan.outcome import SYNCED, Finding, Plan

DISAPPEARED = "Vanished"
PARTITIONING_DIFFERS = "PartitioningDiffers"
GROWING = "Progressing"
"""Reason of Synced for a shadow with fewer partitions than its source."""


def refusal(spec: ShadowTopicSpec, source: str | None) -> tuple[str, str] | None:
    """Why this spec cannot be carried out: reason and sentence; None: it can.

    :param source: the topic that ``spec.source`` names; None: it names a GeoTopic that does not exist.
    """
    if source is None:
        return "WaitingForSource", f"there is no GeoTopic {spec.source} in this namespace: create it"
    if source == spec.topic:
        return "InvalidSpec", "a topic cannot be its own shadow"
    return None


def plan(
    spec: ShadowTopicSpec, source: str, seen: Sequence[RegionSeen], history: History, *, was_behind: bool = False
) -> Plan:
    """The changes that give the region the shadow.

    :param seen: the region, with what it holds of the source.
    :param was_behind: the shadow had fewer partitions than its source at the last look, too. It follows by itself while
        the source grows, and a request that comes between would end that growth.
    """
    topic = TopicName.parse(spec.topic)
    changes: list[Change] = []
    problems: list[tuple[str, str, str]] = []
    waiting: list[str] = []
    for region in seen:
        name = region.name
        if not region.reachable:
            problems.append((name, region.reason, f"{name} could not be asked: {region.problem}"))
        elif region.topic is None and region.source_problem is not None:
            problems.append(_unread(name, source, *region.source_problem))
        elif region.topic is None and region.source is None:
            text = (
                f"{name} has no topic {source} yet: the shadow waits for it. If another region has it, add {name} to "
                "the regions of its GeoTopic: a shadow reads the copy in its own region"
            )
            problems.append((name, "SourceNotFound", text))
        elif region.topic is None and not region.namespace_exists:
            space = f"{topic.tenant}/{topic.namespace}"
            problems.append((name, "NamespaceNotFound", f"{name} has no namespace {space}: create it"))
        elif region.topic is None and name in history.established and not history.recreate:
            text = (
                f"shadow {topic} has disappeared, and its subscriptions with it. To create it again, set annotation "
                "meridian.dev/recreate to a new value"
            )
            problems.append((name, DISAPPEARED, text))
        elif region.topic is None:
            made = CreateShadow(name, topic, source, spec.hold_source_ledgers, spec.auto_reset_backlog_entries)
            changes.append(made)
        elif region.topic.shadow is None or region.topic.shadow.source != source:
            text = f"{topic} exists in {name} and {_other(region.topic)}: choose another name, or delete that topic"
            problems.append((name, "TopicExists", text))
        else:
            if region.topic.shadow.holds != spec.hold_source_ledgers:
                changes.append(HoldSourceLedgers(name, topic, spec.hold_source_ledgers))
            if region.topic.shadow.reset_behind != spec.auto_reset_backlog_entries:
                changes.append(AutoResetBacklog(name, topic, spec.auto_reset_backlog_entries))
            if _is_behind(region) and not was_behind:
                waiting.append(
                    f"in {name}, {topic} has fewer partitions than its source {source}, which may be growing"
                )
            elif _is_behind(region):
                assert region.source is not None
                changes.append(FollowPartitions(name, topic, source, region.source.partitions))
            elif _differs(region):
                text = (
                    f"in {name}, {topic} has {_number(region.topic)}, and its source {source} was made again with "
                    f"{_number(region.source)}: delete this object and the shadow, and create them again"
                )
                problems.append((name, PARTITIONING_DIFFERS, text))
            elif not region.topic.shadow.connected and region.source_problem is not None:
                problems.append(_unread(name, source, *region.source_problem))
            elif not region.topic.shadow.connected:
                problems.append((name, "SourceNotFound", f"{name} has lost topic {source}: the shadow waits for it"))
    return Plan(tuple(changes), tuple(problems), tuple(waiting))


def _unread(name: str, source: str, reason: str, problem: str) -> tuple[str, str, str]:
    return name, reason, f"{name} could not be asked about the source, {source}: {problem}"


def _other(topic: TopicSeen) -> str:
    """What a topic is that is not the shadow."""
    return "is not a shadow" if topic.shadow is None else f"is a shadow of {topic.shadow.source}"


def _is_behind(region: RegionSeen) -> bool:
    """Whether the shadow has some of its source's partitions."""
    topic, source = region.topic, region.source
    return topic is not None and source is not None and 0 < topic.partitions < source.partitions


def _differs(region: RegionSeen) -> bool:
    topic, source = region.topic, region.source
    return topic is not None and source is not None and topic.partitions != source.partitions


def _number(topic: TopicSeen | None) -> str:
    return f"{topic.partitions} partitions" if topic is not None and topic.partitions else "no partitions"


def deletion(sources: Container[str], topic: str, seen: Sequence[RegionSeen]) -> Plan:
    """The changes to make when the object is deleted with policy Delete. A topic that is not this shadow stays.

    :param sources: what the shadow may read, by the spec and by the last status.
    """
    problems = [
        (region.name, region.reason, f"{region.name} could not be asked: {region.problem}")
        for region in seen
        if not region.reachable
    ]
    if problems:
        return Plan((), tuple(problems))
    changes, kept = list[Change](), list[str]()
    for region in seen:
        if region.topic is None:
            continue
        if region.topic.shadow is not None and region.topic.shadow.source in sources:
            changes.append(DeleteTopic(region.name, TopicName.parse(topic), region.topic.partitions > 0))
        else:
            kept.append(f"{topic} in {region.name} {_other(region.topic)} and is left unchanged")
    return Plan(tuple(changes), kept=tuple(kept))


def synced(source: str, seen: Sequence[RegionSeen]) -> Finding:
    """Does the shadow read its source?"""
    for region in seen:
        if not region.reachable:
            return Finding(SYNCED, "Unknown", region.reason, f"{region.name} could not be asked: {region.problem}")
        shadow = None if region.topic is None else region.topic.shadow
        if shadow is None or shadow.source != source:
            return Finding(SYNCED, "False", "NotThere", f"{region.name} has no such shadow")
        if _is_behind(region):
            return Finding(SYNCED, "False", GROWING, f"its source {source} has more partitions")
        if _differs(region):
            return Finding(SYNCED, "False", PARTITIONING_DIFFERS, f"its source {source} has other partitions")
        if not shadow.connected and region.source_problem is not None:
            return Finding(SYNCED, "Unknown", region.source_problem[0], region.source_problem[1])
        if not shadow.connected:
            return Finding(SYNCED, "False", "SourceNotFound", f"its source {source} does not exist")
    return Finding(SYNCED, "True", "Reading", f"it reads {source}")


def established(source: str, seen: Sequence[RegionSeen], history: History) -> list[str]:
    """Regions known to have the shadow. A region that lost it stays listed."""
    having = {
        region.name
        for region in seen
        if region.topic is not None and region.topic.shadow is not None and region.topic.shadow.source == source
    }
    return sorted(having | history.established)
