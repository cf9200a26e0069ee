# SPDX-License-Identifier: Apache-2.0
"""ReplicatedSubscription: as GeoTopic; the verifier's verdict becomes the condition Aligned."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import kopf
from pydantic import ValidationError

from meridian_operator.api.replicated_subscription import (
    REPLICATED_SUBSCRIPTION,
    ReplicatedSubscriptionSpec,
    ReplicatedSubscriptionStatus,
    SubscriptionRegion,
    Verdict,
)
from meridian_operator.api.shared import GROUP, VERSION, DeletionPolicy
from meridian_operator.handlers import world as shared
from meridian_operator.handlers.geo_topics import GIVE_UP_SECONDS, RESYNC_SECONDS
from meridian_operator.handlers.reporting import Report
from meridian_operator.handlers.world import World, apply, asked, known, observe
from meridian_operator.plan import replicated_subscription
from meridian_operator.plan.observed import RegionSeen, TopicName
from meridian_operator.plan.outcome import Plan, judge

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
    if asked(body, shared.PAUSED):
        report.paused()
        return
    try:
        spec = ReplicatedSubscriptionSpec.model_validate(dict(body["spec"]))
    except (ValidationError, ValueError) as error:
        report.refuse("InvalidSpec", str(error))
        return
    meta = body["metadata"]
    winner = min(indices["replicated_subscriptions"].get((spec.topic, spec.subscription), ()), default=None)
    if winner is not None and winner[1:] != (meta["namespace"], meta["name"]):
        older = f"{winner[1]}/{winner[2]} is older and rules subscription {spec.subscription}: delete one of the two"
        report.refuse("ConflictingResource", older)
        return
    names = _regions(spec, indices["topic_regions"])
    if not names:
        report.refuse("TopicUnknown", f"no GeoTopic names {spec.topic}: make one, or list spec.regions")
        return
    world: World = memo.world
    found = known(indices["regions"])
    topic = TopicName.parse(spec.topic)
    seen = await observe(world, found, names, topic, spec.subscription)
    planned = replicated_subscription.plan(spec, seen)
    if asked(body, shared.DRY_RUN):
        report.dry_run(planned)
        return
    failures = await apply(world, found, planned.changes)
    report.events(planned.changes, failures)
    if planned.changes:
        seen = await observe(world, found, names, topic, spec.subscription)
        planned = replicated_subscription.plan(spec, seen)
    documents = [data for found_data in indices["verdicts"].values() for data in found_data]
    verdict = replicated_subscription.verdict_of(documents, spec.topic, spec.subscription)
    findings = [*judge(planned, names, failures), replicated_subscription.aligned(verdict)]
    report.write(findings, _status(names, seen, planned, verdict))


@kopf.on.delete(*RESOURCE, timeout=GIVE_UP_SECONDS)
async def delete(body: kopf.Body, memo: Any, **indices: Any) -> None:
    """Policy Delete: the subscription goes in every region."""
    spec = ReplicatedSubscriptionSpec.model_validate(dict(body["spec"]))
    if spec.deletion_policy is DeletionPolicy.RETAIN:
        return
    world: World = memo.world
    found = known(indices["regions"])
    names = _regions(spec, indices["topic_regions"])
    seen = await observe(world, found, names, TopicName.parse(spec.topic), spec.subscription)
    planned = replicated_subscription.deletion(spec, seen)
    failures = await apply(world, found, planned.changes)
    undone = [sentence for _, _, sentence in planned.problems] + [sentence for _, sentence in failures]
    if undone:
        raise kopf.TemporaryError("; ".join(undone), delay=10)


def _regions(spec: ReplicatedSubscriptionSpec, topic_regions: Any) -> list[str]:
    if spec.regions is not None:
        return list(spec.regions)
    return sorted({name for names in topic_regions.get(spec.topic, ()) for name in names})


def _status(
    names: list[str], seen: list[RegionSeen], planned: Plan, verdict: replicated_subscription.Verdict | None
) -> ReplicatedSubscriptionStatus:
    problems: dict[str, str] = {}
    for named, _, sentence in planned.problems:
        problems.setdefault(named, sentence)
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
        regions_ready=f"{len(good)}/{len(names)}",
        regions=rows,
        backlog=max((row.backlog for row in rows), default=0),
        verification=told,
    )
