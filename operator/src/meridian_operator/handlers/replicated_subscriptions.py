# SPDX-License-Identifier: Apache-2.0
"""ReplicatedSubscription: how its objects are planned, deleted and reported."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import kopf

from meridian_operator.api.fields import GROUP, VERSION, ReconciledStatus
from meridian_operator.api.geo_topic import GEO_TOPIC
from meridian_operator.api.quantities import duration_ms
from meridian_operator.api.replicated_subscription import (
    REPLICATED_SUBSCRIPTION,
    ReplicatedSubscriptionSpec,
    ReplicatedSubscriptionStatus,
    SilentRegion,
    SubscriptionRegion,
    Verdict,
)
from meridian_operator.handlers.geo_topics import contender_of
from meridian_operator.handlers.subject import Look, Subject, Wish
from meridian_operator.plan import replicated_subscription
from meridian_operator.plan.contenders import Contender
from meridian_operator.plan.history import History
from meridian_operator.plan.observed import RegionSeen, TopicName
from meridian_operator.plan.outcome import Finding, Plan

RESOURCE: Final = (GROUP, VERSION, REPLICATED_SUBSCRIPTION.plural)


@kopf.index(*RESOURCE)
def replicated_subscriptions(meta: Mapping[str, Any], spec: Mapping[str, Any], **_: Any) -> Any:
    """(topic, subscription) -> the objects that name it."""
    return {(spec.get("topic"), spec.get("subscription")): contender_of(meta, REPLICATED_SUBSCRIPTION)}


@kopf.index(GROUP, VERSION, "geotopics")
def topic_regions(meta: Mapping[str, Any], spec: Mapping[str, Any], **_: Any) -> Any:
    """Topic -> the objects that name it, with their regions, for subscriptions that list none."""
    return {spec.get("topic"): (contender_of(meta, GEO_TOPIC), tuple(spec.get("regions", ())))}


class ReplicatedSubscriptions(Subject[ReplicatedSubscriptionSpec]):
    """ReplicatedSubscription. The verifier's verdict is part of its status."""

    kind = REPLICATED_SUBSCRIPTION
    model = ReplicatedSubscriptionSpec

    def what(self, wish: Wish[ReplicatedSubscriptionSpec]) -> str:
        return f"subscription {wish.spec.subscription} of {wish.spec.topic}"

    def contenders(self, wish: Wish[ReplicatedSubscriptionSpec]) -> Iterable[Contender]:
        contenders = wish.views.replicated_subscriptions.get((wish.spec.topic, wish.spec.subscription), ())
        return [contender for contender in contenders if wish.counts(contender)]

    def names(self, wish: Wish[ReplicatedSubscriptionSpec]) -> list[str]:
        return list(wish.spec.regions) if wish.spec.regions is not None else _of_topic(wish)

    def place(self, wish: Wish[ReplicatedSubscriptionSpec]) -> tuple[TopicName, str | None]:
        return TopicName.parse(wish.spec.topic), wish.spec.subscription

    def refusal(self, wish: Wish[ReplicatedSubscriptionSpec]) -> tuple[str, str] | None:
        return replicated_subscription.refusal(wish.spec, self.names(wish), _of_topic(wish))

    def plan(self, wish: Wish[ReplicatedSubscriptionSpec], seen: Sequence[RegionSeen]) -> Plan:
        still = self._named(wish, seen)
        return replicated_subscription.plan(
            wish.spec, still, wish.history, topic_comes=bool(_of_topic(wish)), lost=_lost(wish, still)
        )

    def deletion(
        self, wish: Wish[ReplicatedSubscriptionSpec], seen: Sequence[RegionSeen], abandoned: Sequence[str]
    ) -> Plan:
        return replicated_subscription.deletion(wish.spec, seen, abandoned)

    def report(self, wish: Wish[ReplicatedSubscriptionSpec], look: Look) -> tuple[list[Finding], ReconciledStatus]:
        return [], _status(self._named(wish, look.seen), look, wish.history, wish.now)

    def _named(self, wish: Wish[ReplicatedSubscriptionSpec], seen: Sequence[RegionSeen]) -> list[RegionSeen]:
        """Leaves out regions removed from the topic: the subscription is no longer replicated there."""
        names = set(self.names(wish))
        return [region for region in seen if region.name in names]


def _lost(wish: Wish[ReplicatedSubscriptionSpec], seen: Sequence[RegionSeen]) -> frozenset[str]:
    """The regions that have been silent for as long as the object waits; none if it waits forever."""
    if wish.spec.partial_snapshot_after is None:
        return frozenset()
    until = datetime.fromisoformat(wish.now) - timedelta(milliseconds=duration_ms(wish.spec.partial_snapshot_after))
    silent = replicated_subscription.silent(seen, wish.history, wish.now)
    return frozenset(name for name, since in silent.items() if datetime.fromisoformat(since) <= until)


def _of_topic(wish: Wish[ReplicatedSubscriptionSpec]) -> list[str]:
    """The regions of the topic's GeoTopics."""
    topics = wish.views.topic_regions.get(wish.spec.topic, ())
    return sorted({name for contender, names in topics if wish.counts(contender) for name in names})


def _status(seen: list[RegionSeen], look: Look, history: History, now: str) -> ReplicatedSubscriptionStatus:
    problems = look.planned.first_problems()
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
    silent = replicated_subscription.silent(seen, history, now)
    good = [row for row in rows if row.exists and row.replicated and row.name not in problems]
    verdict = look.verdict
    told = Verdict() if verdict is None else Verdict(verdict=verdict.verdict, time=verdict.time, detail=verdict.detail)
    return ReplicatedSubscriptionStatus(
        regions_ready=f"{len(good)}/{len(seen)}",
        regions=rows[:16],
        silent=[SilentRegion(name=name, since=since) for name, since in silent.items()][:16],
        backlog=max((row.backlog for row in rows), default=0),
        verification=told,
        established=replicated_subscription.established(seen, history),
    )
