# SPDX-License-Identifier: Apache-2.0
"""GeoTopic: how its objects are planned, deleted and reported."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import kopf

from meridian_operator.api.fields import GROUP, VERSION, Kind, ReconciledStatus
from meridian_operator.api.geo_topic import GEO_TOPIC, GeoTopicRegion, GeoTopicSpec, GeoTopicStatus, RemoteStatus
from meridian_operator.handlers.subject import Look, Subject, Wish
from meridian_operator.plan import geo_topic
from meridian_operator.plan.contenders import Contender
from meridian_operator.plan.history import History
from meridian_operator.plan.observed import RegionSeen, TopicName
from meridian_operator.plan.outcome import Finding, Plan

RESOURCE: Final = (GROUP, VERSION, GEO_TOPIC.plural)


@kopf.index(*RESOURCE)
def geo_topics(meta: Mapping[str, Any], spec: Mapping[str, Any], **_: Any) -> Any:
    """Topic -> the objects that name it."""
    return {spec.get("topic"): contender_of(meta, GEO_TOPIC)}


def contender_of(meta: Mapping[str, Any], kind: Kind) -> Contender:
    """An object as a contender for what it names."""
    return Contender(
        str(meta["creationTimestamp"]),
        meta["namespace"],
        meta["name"],
        kind.kind,
        str(meta["uid"]),
        leaving=bool(meta.get("deletionTimestamp")),
    )


def named(namespace: str, name: str) -> str:
    """A GeoTopic as objects that name it, and not its topic, refer to it."""
    return f"{namespace}/{name}"


class GeoTopics(Subject[GeoTopicSpec]):
    """GeoTopic."""

    kind = GEO_TOPIC
    model = GeoTopicSpec

    def known_as(self, body: Mapping[str, Any]) -> frozenset[str]:
        """Also by its name: ShadowTopics may give that as their source."""
        return super().known_as(body) | {named(body["metadata"]["namespace"], body["metadata"]["name"])}

    def what(self, wish: Wish[GeoTopicSpec]) -> str:
        return f"topic {wish.spec.topic}"

    def contenders(self, wish: Wish[GeoTopicSpec]) -> Iterable[Contender]:
        """GeoTopics, and ShadowTopics in the same regions: a topic is one or the other."""
        regions = {*wish.spec.regions, *wish.history.established}
        shadows = [one for region in regions for one in wish.views.shadow_topics.get((wish.spec.topic, region), ())]
        return [one for one in (*wish.views.geo_topics.get(wish.spec.topic, ()), *shadows) if wish.counts(one)]

    def names(self, wish: Wish[GeoTopicSpec]) -> list[str]:
        return list(wish.spec.regions)

    def place(self, wish: Wish[GeoTopicSpec]) -> tuple[TopicName, str | None]:
        return TopicName.parse(wish.spec.topic), None

    def refusal(self, wish: Wish[GeoTopicSpec]) -> tuple[str, str] | None:
        return geo_topic.refusal(wish.spec)

    def plan(self, wish: Wish[GeoTopicSpec], seen: Sequence[RegionSeen]) -> Plan:
        return geo_topic.plan(wish.spec, seen, wish.history)

    def deletion(self, wish: Wish[GeoTopicSpec], seen: Sequence[RegionSeen], abandoned: Sequence[str]) -> Plan:
        return geo_topic.deletion(wish.spec, seen, abandoned)

    def report(self, wish: Wish[GeoTopicSpec], look: Look) -> tuple[list[Finding], ReconciledStatus]:
        return [geo_topic.replicating(wish.spec, look.seen)], _status(wish.spec, wish.history, look)


def _status(spec: GeoTopicSpec, history: History, look: Look) -> GeoTopicStatus:
    behind = {change.region for change in look.planned.changes}
    problems = look.planned.first_problems()
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
        for region in look.seen
    ]
    good = [
        region
        for region in look.seen
        if region.name in spec.regions
        and region.topic is not None
        and region.name not in problems
        and region.name not in behind
    ]
    return GeoTopicStatus(
        regions_ready=f"{len(good)}/{len(spec.regions)}",
        regions=rows[:16],
        max_lag_seconds=max((link.lag_seconds for row in rows for link in row.remotes), default=0),
        managed=sorted(geo_topic.policies(spec)),
        left=geo_topic.left(spec, look.seen, history)[:16],
        established=geo_topic.established(spec, look.seen, history),
    )
