# SPDX-License-Identifier: Apache-2.0
"""ReplicatedSubscription: as GeoTopic; the verifier's verdict becomes the condition Aligned."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import kopf

from meridian_operator.api.replicated_subscription import (
    REPLICATED_SUBSCRIPTION,
    ReplicatedSubscriptionSpec,
    ReplicatedSubscriptionStatus,
    SubscriptionRegion,
    Verdict,
)
from meridian_operator.api.shared import GROUP, VERSION, DeletionPolicy
from meridian_operator.handlers.reconciling import GIVE_UP_SECONDS, RESYNC_SECONDS, Regions, ruled_by_another, wanted
from meridian_operator.handlers.reporting import Report
from meridian_operator.handlers.world import now, verdict_on
from meridian_operator.plan import replicated_subscription
from meridian_operator.plan.observed import RegionSeen, TopicName
from meridian_operator.plan.outcome import Plan
from meridian_operator.plan.verdicts import Row, aligned

RESOURCE: Final = (GROUP, VERSION, REPLICATED_SUBSCRIPTION.plural)


@kopf.index(*RESOURCE)
def replicated_subscriptions(meta: Mapping[str, Any], spec: Mapping[str, Any], **_: Any) -> Any:
    """Topic and subscription -> the objects that want it."""
    key = (spec.get("topic"), spec.get("subscription"))
    return {key: (meta["creationTimestamp"], meta["namespace"], meta["name"])}


@kopf.index(GROUP, VERSION, "geotopics")
def topic_regions(spec: Mapping[str, Any], **_: Any) -> Any:
    """Topic -> its regions, for subscriptions that name none."""
    return {spec.get("topic"): tuple(spec.get("regions", ()))}


@kopf.on.resume(*RESOURCE)
@kopf.on.create(*RESOURCE)
@kopf.on.update(*RESOURCE)
@kopf.timer(*RESOURCE, interval=RESYNC_SECONDS, initial_delay=RESYNC_SECONDS)
async def reconcile(body: kopf.Body, patch: kopf.Patch, memo: Any, **indices: Any) -> None:
    """Bring every region to what the spec says, and the status to what was found."""
    report = Report(body, patch, ReplicatedSubscriptionStatus)
    spec = wanted(body, ReplicatedSubscriptionSpec, report)
    if spec is None:
        return
    same = indices["replicated_subscriptions"].get((spec.topic, spec.subscription), ())
    if ruled_by_another(body, same, f"subscription {spec.subscription}", report):
        return
    regions = _regions(spec, memo, indices)
    if not regions.names:
        report.refuse("TopicUnknown", f"no GeoTopic names {spec.topic}: make one, or list spec.regions")
        return
    outcome = await regions.reconcile(body, partial(replicated_subscription.plan, spec), report)
    if outcome is not None:
        verdict = verdict_on(indices, spec.topic, spec.subscription)
        findings = [*outcome.findings, aligned(verdict, now())]
        report.write(findings, _status(outcome.seen, outcome.planned, verdict, len(regions.names)))


@kopf.on.delete(*RESOURCE, timeout=GIVE_UP_SECONDS)
async def delete(body: kopf.Body, memo: Any, **indices: Any) -> None:
    """Policy Delete: the subscription goes in every region."""
    spec = ReplicatedSubscriptionSpec.model_validate(dict(body["spec"]))
    if spec.deletion_policy is not DeletionPolicy.RETAIN:
        await _regions(spec, memo, indices).remove(partial(replicated_subscription.deletion, spec))


def _regions(spec: ReplicatedSubscriptionSpec, memo: Any, indices: Mapping[str, Any]) -> Regions:
    names = spec.regions
    if names is None:
        names = sorted({name for of_topic in indices["topic_regions"].get(spec.topic, ()) for name in of_topic})
    return Regions(memo.world, indices["regions"], names, TopicName.parse(spec.topic), spec.subscription)


def _status(
    seen: list[RegionSeen], planned: Plan, verdict: Row | None, wanted_regions: int
) -> ReplicatedSubscriptionStatus:
    problems = planned.first_problems()
    rows = []
    for region in seen:
        place = region.subscription
        reasons = "" if place is None else "; ".join(place.reasons)
        rows.append(
            SubscriptionRegion(
                name=region.name,
                reachable=region.reachable,
                exists=place is not None,
                replicated=place is not None and place.replicated,
                mark_delete="" if place is None else place.mark_delete,
                holes=0 if place is None else place.holes,
                backlog=0 if place is None else place.backlog,
                consumers=0 if place is None else place.consumers,
                synced=place is not None and place.synced,
                message=(problems.get(region.name, "") or reasons)[:1024],
            )
        )
    good = [row for row in rows if row.exists and row.replicated and row.name not in problems]
    told = Verdict() if verdict is None else Verdict(verdict=verdict.verdict, time=verdict.time, detail=verdict.detail)
    return ReplicatedSubscriptionStatus(
        regions_ready=f"{len(good)}/{wanted_regions}",
        regions=rows,
        backlog=max((row.backlog for row in rows), default=0),
        verification=told,
    )
