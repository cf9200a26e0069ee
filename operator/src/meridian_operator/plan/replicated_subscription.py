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
from meridian_operator.plan.history import NOTHING, History
from meridian_operator.plan.observed import RegionSeen, TopicName
from meridian_operator.plan.outcome import Plan


def refusal(spec: ReplicatedSubscriptionSpec, names: Sequence[str], of_topic: Sequence[str]) -> tuple[str, str] | None:
    """Why nothing is done for this specification: reason and sentence.

    :param of_topic: the regions that a GeoTopic names; empty: there is none.
    """
    fields = []
    if spec.sync_mode != "Exact":
        fields.append(f"syncMode {spec.sync_mode.value}")
    if spec.partial_snapshot_after is not None:
        fields.append("partialSnapshotAfter")
    if fields:
        return "NotSupported", f"this version does not act on {', '.join(fields)}: remove that from the spec"
    if spec.witness is not None and spec.dispatch_scope != "Origin":
        return "InvalidSpec", "witness has a meaning with dispatchScope Origin only"
    if not names:
        return "WaitingForTopic", f"no GeoTopic names {spec.topic}: make one, or list spec.regions"
    if spec.regions is not None and of_topic and set(spec.regions) != set(of_topic):
        return "NotSupported", _everywhere(of_topic)
    return None


def _everywhere(regions: Sequence[str]) -> str:
    return (
        f"a replicated subscription exists in all regions of its topic, here {', '.join(sorted(regions))}: "
        "remove spec.regions, or name exactly those"
    )


def plan(
    spec: ReplicatedSubscriptionSpec,
    seen: Sequence[RegionSeen],
    history: History = NOTHING,
    *,
    topic_comes: bool = False,
) -> Plan:
    """What to do so that every region in ``seen`` has the subscription, replicated.

    :param topic_comes: a GeoTopic makes the topic where it is missing.
    """
    topic = TopicName.parse(spec.topic)
    changes: list[Change] = []
    problems: list[tuple[str, str, str]] = []
    waiting: list[str] = []
    for region in seen:
        if not region.reachable:
            problems.append((region.name, region.reason, f"{region.name} could not be asked: {region.problem}"))
        elif region.topic is None and topic_comes:
            waiting.append(f"{region.name} gets {topic} from its GeoTopic")
        elif region.topic is None:
            problems.append((region.name, "TopicNotFound", f"{region.name} has no topic {topic}: make a GeoTopic"))
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
            f"{region.name} hears of subscription {spec.subscription} from another region"
            for region in holding
            if having and (region.subscription is None or not region.subscription.replicated)
        ]
    if holding and len(having) == len(holding) and not changes and not waiting:
        _scope(spec, topic, having, changes, problems, waiting)
    return Plan(tuple(changes), tuple(problems), tuple(waiting))


def established(seen: Sequence[RegionSeen], history: History) -> list[str]:
    """Regions that are known to have the subscription; where all that answer have lost it, what was known stays."""
    having = {region.name for region in seen if region.subscription is not None}
    silent = {region.name for region in seen if not region.reachable}
    return sorted(having | (history.established & silent)) if having else sorted(history.established)


def _vanished(spec: ReplicatedSubscriptionSpec) -> str:
    return (
        f"subscription {spec.subscription} was there and is gone. Making it again would begin it at the "
        f"{spec.initial_position.lower()} message: to do that, set annotation meridian.dev/recreate to a new value"
    )


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


def deletion(spec: ReplicatedSubscriptionSpec, seen: Sequence[RegionSeen], abandoned: Sequence[str] = ()) -> Plan:
    """What to do when the object is deleted with policy Delete: nothing until every region answers, then one region is
    told, and tells the others.

    :param seen: the regions that are not abandoned.
    :param abandoned: regions that are given up. A region deletes without asking them only by force, so it is made sure
        of here that nobody consumes in the others.
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
                f"{region.name} has {region.subscription.consumers} consumers of it",
            )
            for region in having
            if region.subscription is not None and region.subscription.consumers
        ]
    if problems or not having:
        return Plan((), tuple(problems))
    return Plan((DeleteSubscription(having[0].name, topic, spec.subscription, force=bool(abandoned)),))
