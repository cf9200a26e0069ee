# SPDX-License-Identifier: Apache-2.0
"""ReplicatedSubscription: the plan.

A new subscription is made in one region only; from there it appears in the others, at the same place (R15). Making it
in each would begin it at as many places as there are regions.
"""

from __future__ import annotations

from collections.abc import Sequence

from meridian_operator.api.replicated_subscription import ReplicatedSubscriptionSpec
from meridian_operator.plan.changes import (
    Change,
    CreateSubscription,
    DeleteSubscription,
    ReplicateSubscription,
    SetDispatchScope,
)
from meridian_operator.plan.observed import RegionSeen, TopicName
from meridian_operator.plan.outcome import Plan


def plan(spec: ReplicatedSubscriptionSpec, seen: Sequence[RegionSeen]) -> Plan:
    """What to do so that every region in ``seen`` has the subscription, replicated."""
    topic = TopicName.parse(spec.topic)
    changes: list[Change] = []
    problems: list[tuple[str, str, str]] = []
    waiting: list[str] = []
    for region in seen:
        if not region.reachable:
            problems.append((region.name, "RegionUnreachable", f"{region.name} could not be asked: {region.problem}"))
        elif region.topic is None:
            problems.append(
                (region.name, "TopicNotFound", f"{region.name} has no topic {topic} yet: a GeoTopic makes it")
            )
    if spec.sync_mode != "Exact":
        asked = f"syncMode {spec.sync_mode.value}"
        problems.append((seen[0].name if seen else "", "NotSupported", f"{asked}: this version has Exact only"))
    holding = [region for region in seen if region.topic is not None]
    having = [region for region in holding if region.subscription is not None]
    if holding and not having:
        earliest = spec.initial_position == "Earliest"
        changes.append(CreateSubscription(holding[0].name, topic, spec.subscription, earliest))
    if having and not any(region.subscription.replicated for region in having if region.subscription):
        changes.append(ReplicateSubscription(having[0].name, topic, spec.subscription))
    else:
        waiting += [
            f"{region.name} hears of subscription {spec.subscription} from another region"
            for region in holding
            if having and (region.subscription is None or not region.subscription.replicated)
        ]
    if holding and len(having) == len(holding) and not changes and not waiting:
        _scope(spec, topic, having, changes, problems, waiting)
    return Plan(tuple(changes), tuple(problems), tuple(waiting))


def _scope(
    spec: ReplicatedSubscriptionSpec,
    topic: TopicName,
    having: Sequence[RegionSeen],
    changes: list[Change],
    problems: list[tuple[str, str, str]],
    waiting: list[str],
) -> None:
    """The dispatch scope. One region is told, and tells the others; told again only when none of them has it."""
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
        waiting += [
            f"{region.name} hears of dispatch scope {spec.dispatch_scope} from another region" for region in other
        ]
    for region in having:
        if region not in other and region.subscription and region.subscription.scope_problem:
            reason = f"dispatchScope {spec.dispatch_scope} is not in force: {region.subscription.scope_problem}"
            problems.append((region.name, "ScopeNotInForce", reason))


def deletion(spec: ReplicatedSubscriptionSpec, seen: Sequence[RegionSeen]) -> Plan:
    """What to do when the object is deleted with policy Delete: one region tells the others."""
    topic = TopicName.parse(spec.topic)
    having = [region for region in seen if region.subscription is not None]
    changes = [DeleteSubscription(having[0].name, topic, spec.subscription)] if having else []
    problems = [
        (region.name, "RegionUnreachable", f"{region.name} could not be asked: {region.problem}")
        for region in seen
        if not region.reachable
    ]
    return Plan(tuple(changes), tuple(problems))
