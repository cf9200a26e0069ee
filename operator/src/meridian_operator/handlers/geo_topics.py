# SPDX-License-Identifier: Apache-2.0
"""GeoTopic: one function looks, plans, changes and reports, whatever the reason it is called for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import kopf
from pydantic import ValidationError

from meridian_operator.api.geo_topic import GEO_TOPIC, GeoTopicRegion, GeoTopicSpec, GeoTopicStatus, RemoteStatus
from meridian_operator.api.shared import GROUP, VERSION, DeletionPolicy
from meridian_operator.handlers import world as shared
from meridian_operator.handlers.reporting import Report
from meridian_operator.handlers.world import World, apply, asked, known, observe
from meridian_operator.plan import geo_topic
from meridian_operator.plan.observed import RegionSeen, TopicName
from meridian_operator.plan.outcome import Plan, judge

RESOURCE: Final = (GROUP, VERSION, GEO_TOPIC.plural)
RESYNC_SECONDS: Final = 15.0
"""How often an object is looked at though nothing happened: regions come back, and people change things by hand."""
GIVE_UP_SECONDS: Final = 300.0
"""A deletion waits so long for a region that does not answer."""


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
    if asked(body, shared.PAUSED):
        report.paused()
        return
    try:
        spec = GeoTopicSpec.model_validate(dict(body["spec"]))
    except (ValidationError, ValueError) as error:
        report.refuse("InvalidSpec", str(error))
        return
    meta = body["metadata"]
    winner = min(indices["geo_topics"].get(spec.topic, ()), default=None)
    if winner is not None and winner[1:] != (meta["namespace"], meta["name"]):
        older = f"{winner[1]}/{winner[2]} is older and rules {spec.topic}: delete one of the two"
        report.refuse("ConflictingResource", older)
        return
    world: World = memo.world
    found = known(indices["regions"])
    topic = TopicName.parse(spec.topic)
    seen = await observe(world, found, spec.regions, topic)
    managed = body.get("status", {}).get("managed", ())
    planned = geo_topic.plan(spec, seen, managed)
    if asked(body, shared.DRY_RUN):
        report.dry_run(planned)
        return
    failures = await apply(world, found, planned.changes)
    report.events(planned.changes, failures)
    if planned.changes:
        seen = await observe(world, found, spec.regions, topic)
        planned = geo_topic.plan(spec, seen, managed)
    findings = [*judge(planned, spec.regions, failures), geo_topic.replicating(spec, seen)]
    report.write(findings, _status(spec, seen, planned))


@kopf.on.delete(*RESOURCE, timeout=GIVE_UP_SECONDS)
async def delete(body: kopf.Body, memo: Any, **indices: Any) -> None:
    """Policy Delete: the topic goes in every region. A region that stays silent is left alone after a while."""
    spec = GeoTopicSpec.model_validate(dict(body["spec"]))
    if spec.deletion_policy is DeletionPolicy.RETAIN:
        return
    world: World = memo.world
    found = known(indices["regions"])
    seen = await observe(world, found, spec.regions, TopicName.parse(spec.topic))
    planned = geo_topic.deletion(spec, seen)
    failures = await apply(world, found, planned.changes)
    undone = [sentence for _, _, sentence in planned.problems] + [sentence for _, sentence in failures]
    if undone:
        raise kopf.TemporaryError("; ".join(undone), delay=10)


def _status(spec: GeoTopicSpec, seen: list[RegionSeen], planned: Plan) -> GeoTopicStatus:
    behind = {change.region for change in planned.changes}
    problems: dict[str, str] = {}
    for region, _, sentence in planned.problems:
        problems.setdefault(region, sentence)
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
