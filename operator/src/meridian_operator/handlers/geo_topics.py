# SPDX-License-Identifier: Apache-2.0
"""GeoTopic: one function looks, plans, changes and reports, whatever the reason it is called for."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import kopf

from meridian_operator.api.geo_topic import GEO_TOPIC, GeoTopicRegion, GeoTopicSpec, GeoTopicStatus, RemoteStatus
from meridian_operator.api.shared import GROUP, VERSION, DeletionPolicy
from meridian_operator.handlers.reconciling import GIVE_UP_SECONDS, RESYNC_SECONDS, Regions, ruled_by_another, wanted
from meridian_operator.handlers.reporting import Report
from meridian_operator.handlers.world import now, verdict_on
from meridian_operator.plan import geo_topic
from meridian_operator.plan.observed import RegionSeen, TopicName
from meridian_operator.plan.outcome import Plan
from meridian_operator.plan.verdicts import aligned

RESOURCE: Final = (GROUP, VERSION, GEO_TOPIC.plural)


@kopf.index(*RESOURCE)
def geo_topics(meta: Mapping[str, Any], spec: Mapping[str, Any], **_: Any) -> Any:
    """Topic -> the objects that want it."""
    return {spec.get("topic"): (meta["creationTimestamp"], meta["namespace"], meta["name"])}


@kopf.on.resume(*RESOURCE)
@kopf.on.create(*RESOURCE)
@kopf.on.update(*RESOURCE)
@kopf.timer(*RESOURCE, interval=RESYNC_SECONDS, initial_delay=RESYNC_SECONDS)
async def reconcile(body: kopf.Body, patch: kopf.Patch, memo: Any, **indices: Any) -> None:
    """Bring every region to what the spec says, and the status to what was found."""
    report = Report(body, patch, GeoTopicStatus)
    spec = wanted(body, GeoTopicSpec, report)
    if spec is None or ruled_by_another(body, indices["geo_topics"].get(spec.topic, ()), spec.topic, report):
        return
    managed = body.get("status", {}).get("managed", ())
    regions = Regions(memo.world, indices["regions"], spec.regions, TopicName.parse(spec.topic))
    outcome = await regions.reconcile(body, lambda seen: geo_topic.plan(spec, seen, managed), report)
    if outcome is not None:
        verified = aligned(verdict_on(indices, spec.topic), now())
        findings = [*outcome.findings, geo_topic.replicating(spec, outcome.seen), verified]
        report.write(findings, _status(spec, outcome.seen, outcome.planned))


@kopf.on.delete(*RESOURCE, timeout=GIVE_UP_SECONDS)
async def delete(body: kopf.Body, memo: Any, **indices: Any) -> None:
    """Policy Delete: the topic goes in every region. A region that stays silent is left alone after a while."""
    spec = GeoTopicSpec.model_validate(dict(body["spec"]))
    if spec.deletion_policy is not DeletionPolicy.RETAIN:
        regions = Regions(memo.world, indices["regions"], spec.regions, TopicName.parse(spec.topic))
        await regions.remove(partial(geo_topic.deletion, spec))


def _status(spec: GeoTopicSpec, seen: list[RegionSeen], planned: Plan) -> GeoTopicStatus:
    behind = {change.region for change in planned.changes}
    problems = planned.first_problems()
    rows = [
        GeoTopicRegion(
            name=region.name,
            url=region.url,
            reachable=region.reachable,
            partitions=0 if region.topic is None else region.topic.partitions,
            message=problems.get(region.name, "")[:1024],
            remotes=[
                RemoteStatus(
                    region=link.region, connected=link.connected, backlog=link.backlog, lag_seconds=link.lag_seconds
                )
                for link in (() if region.topic is None else region.topic.links)
            ],
        )
        for region in seen
    ]
    good = [region for region in seen if region.name not in problems and region.name not in behind]
    return GeoTopicStatus(
        regions_ready=f"{len(good)}/{len(spec.regions)}",
        regions=rows,
        max_lag_seconds=max((link.lag_seconds for row in rows for link in row.remotes), default=0),
        managed=sorted(geo_topic.policies(spec)),
    )
