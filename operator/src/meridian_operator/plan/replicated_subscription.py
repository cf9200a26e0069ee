# SPDX-License-Identifier: Apache-2.0
"""Plans for ReplicatedSubscriptions.

A new subscription is created in one region only, and from there appears in the others at the same position (R15).
Creating it in each region would begin it at a different position in each.
"""

from __future__ import annotations

from collections.abc import Sequence

from meridian_operator.api.geo_topic import SyncMode
from meridian_operator.api.replicated_subscription import ReplicatedSubscriptionSpec
from meridian_operator.plan.changes import (
    Change,
    CreateSubscription,
    DeleteSubscription,
    GoOnWithout,
    ReplicateSubscription,
    SetDispatchScope,
)
from meridian_operator.plan.geo_topic import SNAPSHOT, SUBSCRIPTION_SYNC
from meridian_operator.plan.history import NOTHING, History
from meridian_operator.plan.observed import UNREACHABLE, RegionSeen, TopicName
from meridian_operator.plan.outcome import Plan


def refusal(spec: ReplicatedSubscriptionSpec, names: Sequence[str], of_topic: Sequence[str]) -> tuple[str, str] | None:
    """Why this spec cannot be carried out: reason and sentence; None: it can.

    :param of_topic: the regions of the topic's GeoTopic; empty: it has none.
    """
    if spec.sync_mode == SyncMode.SNAPSHOT and spec.dispatch_scope == "Origin":
        return "InvalidSpec", "dispatchScope Origin requires syncMode Exact"
    if spec.witness is not None and spec.dispatch_scope != "Origin":
        return "InvalidSpec", "witness requires dispatchScope Origin"
    if not names:
        return "WaitingForTopic", f"no GeoTopic names {spec.topic}: create one, or set spec.regions"
    if spec.regions is not None and of_topic and set(spec.regions) != set(of_topic):
        return "NotSupported", _everywhere(of_topic)
    return None


def _everywhere(regions: Sequence[str]) -> str:
    return (
        f"a replicated subscription exists in all regions of its topic, here {', '.join(sorted(regions))}: "
        "remove spec.regions, or list exactly these"
    )


def plan(
    spec: ReplicatedSubscriptionSpec,
    seen: Sequence[RegionSeen],
    history: History = NOTHING,
    *,
    topic_comes: bool = False,
    lost: frozenset[str] = frozenset(),
) -> Plan:
    """The changes that give every region in ``seen`` the replicated subscription.

    :param topic_comes: a GeoTopic will create the topic where it is missing.
    :param lost: regions that have been silent for ``spec.partial_snapshot_after``.
    """
    topic = TopicName.parse(spec.topic)
    changes: list[Change] = []
    problems: list[tuple[str, str, str]] = []
    waiting: list[str] = []
    for region in seen:
        if not region.reachable:
            problems.append((region.name, region.reason, f"{region.name} could not be asked: {region.problem}"))
        elif region.topic is None and topic_comes:
            waiting.append(f"{region.name} is waiting for the GeoTopic of {topic}")
        elif region.topic is None:
            problems.append((region.name, "TopicNotFound", f"{region.name} has no topic {topic}: create a GeoTopic"))
    holding = [region for region in seen if region.topic is not None]
    linked = {link.region for region in holding if region.topic is not None for link in region.topic.links}
    if holding and linked - {region.name for region in seen}:
        everywhere = linked | {region.name for region in holding}
        return Plan((), (*problems, (holding[0].name, "NotSupported", _everywhere(sorted(everywhere)))))
    having = [region for region in holding if region.subscription is not None]
    if holding and not having:
        if history.established and not history.recreate:
            problems += [(region.name, "Vanished", _vanished(spec)) for region in holding]
        elif not waiting:
            earliest = spec.initial_position == "Earliest"
            changes.append(CreateSubscription(holding[0].name, topic, spec.subscription, earliest))
    if having and not any(region.subscription.replicated for region in having if region.subscription):
        changes.append(ReplicateSubscription(having[0].name, topic, spec.subscription))
    else:
        waiting += [
            f"{region.name} is waiting for subscription {spec.subscription} to arrive from another region"
            for region in holding
            if having and (region.subscription is None or not region.subscription.replicated)
        ]
    if spec.sync_mode == SyncMode.SNAPSHOT:
        waiting += [
            f"{region.name} syncs {topic} in mode Exact: set subscriptionSync.mode Snapshot on its GeoTopic"
            for region in holding
            if region.topic is not None and region.topic.policies.get(SUBSCRIPTION_SYNC) != SNAPSHOT
        ]
    if holding and len(having) == len(holding) and not changes and not waiting:
        _scope(spec, topic, having, changes, problems, waiting)
    changes += [
        GoOnWithout(region.name, topic, region.topic.partitions, tuple(sorted(region.topic.without | lost)))
        for region in holding
        if region.topic is not None and region.topic.takes_snapshots and not lost <= region.topic.without
    ]
    return Plan(tuple(changes), tuple(problems), tuple(waiting))


def silent(seen: Sequence[RegionSeen], history: History, now: str) -> dict[str, str]:
    """Regions that neither the operator nor any region with the topic can reach, and since when. Empty if no region
    answers: the operator itself may be cut off."""
    holding = [region.topic for region in seen if region.topic is not None]
    if not holding:
        return {}
    reached = {link.region for topic in holding for link in topic.links if link.connected}
    away = [region.name for region in seen if region.reason == UNREACHABLE and not region.reachable]
    return {name: history.silent.get(name, now) for name in sorted(away) if name not in reached}


def established(seen: Sequence[RegionSeen], history: History) -> list[str]:
    """Regions known to have the subscription. If every region that answers has lost it, the list stays as it was."""
    having = {region.name for region in seen if region.subscription is not None}
    silent = {region.name for region in seen if not region.reachable}
    return sorted(having | (history.established & silent)) if having else sorted(history.established)


def _vanished(spec: ReplicatedSubscriptionSpec) -> str:
    return (
        f"subscription {spec.subscription} has disappeared. To create it again at the "
        f"{spec.initial_position.lower()} message, set annotation meridian.dev/recreate to a new value"
    )


def _scope(
    spec: ReplicatedSubscriptionSpec,
    topic: TopicName,
    having: Sequence[RegionSeen],
    changes: list[Change],
    problems: list[tuple[str, str, str]],
    waiting: list[str],
) -> None:
    """Plan the dispatch scope. One region sets it and informs the others; it is set again only if none has it."""
    scope = spec.dispatch_scope.lower()
    witness = spec.witness if scope == "origin" else None
    other = [
        region
        for region in having
        if (seen := region.subscription)
        and (seen.scopes != frozenset({scope}) or (witness is not None and seen.witnesses != frozenset({witness})))
    ]
    if other and len(other) == len(having):
        changes.append(SetDispatchScope(having[0].name, topic, spec.subscription, scope, witness))
    else:
        waiting += [f"{region.name} is waiting for dispatch scope {spec.dispatch_scope} to arrive" for region in other]
    for region in having:
        if region not in other and region.subscription and region.subscription.scope_problem:
            reason = f"dispatchScope {spec.dispatch_scope} is not in force: {region.subscription.scope_problem}"
            problems.append((region.name, "ScopeNotInForce", reason))


def deletion(spec: ReplicatedSubscriptionSpec, seen: Sequence[RegionSeen], abandoned: Sequence[str] = ()) -> Plan:
    """The changes to make when the object is deleted with policy Delete: none until every region answers; then one
    region is asked to delete, and informs the others.

    :param seen: the regions that are not abandoned.
    :param abandoned: regions not waited for. Deleting without asking them requires force, so this function checks that
        the other regions have no consumers.
    """
    topic = TopicName.parse(spec.topic)
    problems = [
        (region.name, region.reason, f"{region.name} could not be asked: {region.problem}")
        for region in seen
        if not region.reachable
    ]
    having = [region for region in seen if region.subscription is not None]
    if abandoned:
        problems += [
            (
                region.name,
                "InUse",
                f"{region.name} still has {region.subscription.consumers} consumers on the subscription",
            )
            for region in having
            if region.subscription is not None and region.subscription.consumers
        ]
    if problems or not having:
        return Plan((), tuple(problems))
    return Plan((DeleteSubscription(having[0].name, topic, spec.subscription, force=bool(abandoned)),))
