# SPDX-License-Identifier: Apache-2.0
"""ShadowTopic: how its objects are planned, deleted and reported."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import kopf

from meridian_operator.api.fields import GROUP, VERSION, ReconciledStatus
from meridian_operator.api.settings import tenant_of
from meridian_operator.api.shadow_topic import SHADOW_TOPIC, ShadowTopicSpec, ShadowTopicStatus
from meridian_operator.handlers.geo_topics import contender_of, named
from meridian_operator.handlers.subject import Look, Subject, Wish
from meridian_operator.handlers.world import World
from meridian_operator.plan import shadow_topic
from meridian_operator.plan.contenders import Contender
from meridian_operator.plan.observed import RegionSeen, TopicName
from meridian_operator.plan.outcome import Finding, Plan

RESOURCE: Final = (GROUP, VERSION, SHADOW_TOPIC.plural)
Shadow = Wish[ShadowTopicSpec]


@kopf.index(*RESOURCE)
def shadow_topics(meta: Mapping[str, Any], spec: Mapping[str, Any], **_: Any) -> Any:
    """(topic, region) -> the objects that name it."""
    return {(spec.get("topic"), spec.get("region")): contender_of(meta, SHADOW_TOPIC)}


@kopf.index(GROUP, VERSION, "geotopics")
def geo_topic_names(meta: Mapping[str, Any], spec: Mapping[str, Any], **_: Any) -> Any:
    """(namespace, name) -> the topic of that GeoTopic."""
    return {(meta["namespace"], meta["name"]): spec.get("topic")}


class ShadowTopics(Subject[ShadowTopicSpec]):
    """ShadowTopic."""

    kind = SHADOW_TOPIC
    model = ShadowTopicSpec
    is_verified = False

    def listens_to(self, body: Mapping[str, Any]) -> frozenset[str]:
        """Also to its source."""
        source = str((body.get("spec") or {}).get("source", ""))
        return self.known_as(body) | {source if "/" in source else named(body["metadata"]["namespace"], source)}

    async def see(self, wish: Shadow, world: World, names: Sequence[str]) -> list[RegionSeen]:
        """The shadow and its source."""
        seen = await world.see(names, TopicName.parse(wish.spec.topic), None)
        try:
            source = TopicName.parse(_source(wish) or "")
        except ValueError:  # nothing is created then, but the object may have to be deleted
            return seen
        of_source = await world.see(names, source, None)  # second: it grows before its shadow does
        return [
            replace(one, source=other.topic, source_problem=(other.reason, other.problem) if other.problem else None)
            for one, other in zip(seen, of_source, strict=True)
        ]

    def what(self, wish: Shadow) -> str:
        return f"shadow {wish.spec.topic} of {wish.spec.source} in {wish.spec.region}"

    def contenders(self, wish: Shadow) -> Iterable[Contender]:
        """ShadowTopics and GeoTopics: a topic is one or the other."""
        shadows = wish.views.shadow_topics.get((wish.spec.topic, wish.spec.region), ())
        return [one for one in (*shadows, *wish.views.geo_topics.get(wish.spec.topic, ())) if wish.counts(one)]

    def names(self, wish: Shadow) -> list[str]:
        return [wish.spec.region]

    def place(self, wish: Shadow) -> tuple[TopicName, str | None]:
        return TopicName.parse(wish.spec.topic), None

    def refusal(self, wish: Shadow) -> tuple[str, str] | None:
        source = _source(wish)
        refused = shadow_topic.refusal(wish.spec, source)
        if refused is not None or source is None:
            return refused
        try:
            TopicName.parse(source)
        except ValueError as error:
            return "InvalidSpec", f"source: {error}"
        tenant, namespace = tenant_of(source), wish.full_name[0]
        if not wish.settings.allows_tenant(namespace, tenant):  # a shadow has every message of its source
            return "TenantNotAllowed", (
                f"objects in namespace {namespace} may not read topics of tenant {tenant}: add the tenant to "
                f"tenantsByNamespace.{namespace} in the operator's chart values"
            )
        return None

    def plan(self, wish: Shadow, seen: Sequence[RegionSeen]) -> Plan:
        was_behind = (wish.body.get("status") or {}).get("state") == shadow_topic.GROWING
        return shadow_topic.plan(wish.spec, _source(wish) or "", _here(wish, seen), wish.history, was_behind=was_behind)

    def deletion(self, wish: Shadow, seen: Sequence[RegionSeen], _abandoned: Sequence[str]) -> Plan:
        return shadow_topic.deletion({_source(wish) or "", _recorded(wish)}, wish.spec.topic, _here(wish, seen))

    def report(self, wish: Shadow, look: Look) -> tuple[list[Finding], ReconciledStatus]:
        source = _source(wish) or ""
        seen = _here(wish, look.seen)
        finding = shadow_topic.synced(source, seen)
        if any(not one.reachable for one in seen):  # what was seen last says more than nothing
            last = ShadowTopicStatus.model_validate(wish.body.get("status") or {})
            told = {"state": finding.reason, "source": last.source or source[:600], "plan": []}
            return [finding], last.model_copy(update=told)
        shadow = next((one.topic.shadow for one in seen if one.topic is not None), None)
        reads = shadow is not None and shadow.source == _recorded(wish)  # even if the spec now means another topic
        status = ShadowTopicStatus(
            state=finding.reason,
            source=_recorded(wish) if reads else source[:600],
            connected=shadow is not None and shadow.connected,
            lag_entries=0 if shadow is None else shadow.backlog,
            gap_entries=0 if shadow is None else shadow.gap,
            auto_resets=0 if shadow is None else shadow.resets,
            established=shadow_topic.established(source, seen, wish.history),
        )
        return [finding], status


def _source(wish: Shadow) -> str | None:
    """The topic that ``spec.source`` names. If its GeoTopic is gone, the one that the shadow was last seen reading;
    None: there was no shadow yet."""
    if "/" in wish.spec.source:
        return wish.spec.source
    named = [one for one in wish.views.geo_topic_names.get((wish.full_name[0], wish.spec.source), ()) if one]
    if named:
        return str(named[0])
    return (_recorded(wish) or None) if wish.history.established else None


def _recorded(wish: Shadow) -> str:
    """The shadow's source by the last status; empty: unknown."""
    return str((wish.body.get("status") or {}).get("source", ""))


def _here(wish: Shadow, seen: Sequence[RegionSeen]) -> list[RegionSeen]:
    return [region for region in seen if region.name == wish.spec.region]
