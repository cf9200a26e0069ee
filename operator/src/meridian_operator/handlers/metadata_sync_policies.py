# SPDX-License-Identifier: Apache-2.0
"""MetadataSyncPolicy: how its objects are planned, deleted and reported."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any, Final

import kopf

from meridian_operator.api.fields import GROUP, VERSION, ReconciledStatus
from meridian_operator.api.metadata_sync_policy import (
    METADATA_SYNC_POLICY,
    MetadataSyncPolicySpec,
    MetadataSyncPolicyStatus,
    PolicyConflict,
    PolicyRegion,
)
from meridian_operator.api.settings import ALL_TENANTS
from meridian_operator.handlers.geo_topics import contender_of
from meridian_operator.handlers.subject import Look, Subject, Wish
from meridian_operator.handlers.world import World
from meridian_operator.plan import metadata_sync
from meridian_operator.plan.contenders import Contender, heir
from meridian_operator.plan.observed import CONFLICTS_SHOWN, ConflictSeen, RegionSeen, SyncSeen, TopicName
from meridian_operator.plan.outcome import Finding, Plan

RESOURCE: Final = (GROUP, VERSION, METADATA_SYNC_POLICY.plural)
Sync = Wish[MetadataSyncPolicySpec]


@kopf.index(*RESOURCE)
def sync_policies(meta: Mapping[str, Any], spec: Mapping[str, Any], **_: Any) -> Any:
    """Region -> the objects that name it: a region has one event topic."""
    return {name: contender_of(meta, METADATA_SYNC_POLICY) for name in spec.get("regions", ())}


class MetadataSyncPolicies(Subject[MetadataSyncPolicySpec]):
    """MetadataSyncPolicy. It affects every tenant, so its namespace must be allowed to manage all."""

    kind = METADATA_SYNC_POLICY
    model = MetadataSyncPolicySpec
    is_verified = False

    def tenant(self, _spec: MetadataSyncPolicySpec) -> str:
        return ALL_TENANTS

    async def see(self, _wish: Sync, world: World, names: Sequence[str]) -> list[RegionSeen]:
        return await world.see_synchronization(names)

    def what(self, wish: Sync) -> str:
        return f"synchronization of metadata between {', '.join(wish.spec.regions)}"

    def contenders(self, wish: Sync) -> Iterable[Contender]:
        """The objects that name one of its regions."""
        found = {contender for name in wish.spec.regions for contender in wish.views.sync_policies.get(name, ())}
        return [contender for contender in found if wish.counts(contender)]

    def names(self, wish: Sync) -> list[str]:
        return list(wish.spec.regions)

    def heir(self, wish: Sync) -> Contender | None:
        """If other objects name only some of the regions, synchronization ends in the rest."""
        return None if self.ending(wish) else super().heir(wish)

    def ending(self, wish: Sync) -> list[str]:
        contenders = wish.views.sync_policies
        return [
            name
            for name in wish.spec.regions
            if heir((one for one in contenders.get(name, ()) if wish.counts(one)), wish.uid) is None
        ]

    def place(self, wish: Sync) -> tuple[TopicName, str | None]:
        return TopicName.parse(wish.spec.event_topic), None

    def refusal(self, wish: Sync) -> tuple[str, str] | None:
        return metadata_sync.refusal(wish.spec)

    def plan(self, wish: Sync, seen: Sequence[RegionSeen]) -> Plan:
        return metadata_sync.plan(wish.spec, seen)

    def deletion(self, wish: Sync, seen: Sequence[RegionSeen], _abandoned: Sequence[str]) -> Plan:
        return metadata_sync.deletion(wish.spec, seen)

    def report(self, wish: Sync, look: Look) -> tuple[list[Finding], ReconciledStatus]:
        return [metadata_sync.synced(wish.spec, look.seen)], _status(wish, look)


def _status(wish: Sync, look: Look) -> MetadataSyncPolicyStatus:
    behind = {change.region for change in look.planned.changes}
    problems = look.planned.first_problems()
    rows = []
    for region in look.seen:
        sync = region.sync or SyncSeen()
        rows.append(
            PolicyRegion(
                name=region.name,
                enabled=sync.enabled,
                synced=sync.synced,
                published=sync.published,
                applied=sync.applied,
                stale=sync.stale,
                conflicts=sync.conflicts,
                lag_seconds=sync.lag_seconds,
                message=(problems.get(region.name, "") or "; ".join(sync.troubles))[:1024],
            )
        )
    names = wish.spec.regions
    good = [row for row in rows if row.name in names and row.name not in problems and row.name not in behind]
    return MetadataSyncPolicyStatus(
        regions_ready=f"{len(good)}/{len(names)}",
        regions=rows[:16],
        latest_conflicts=latest_conflicts(look.seen),
        conflicts=max((row.conflicts for row in rows), default=0),
        established=metadata_sync.established(look.seen, wish.history),
    )


def latest_conflicts(seen: Sequence[RegionSeen]) -> list[PolicyConflict]:
    """The latest conflicts, taken from each region in turn. One that several regions found is listed once, with the
    role that requested the lost write, which only the region that wrote it knows."""
    of_each = [region.sync.latest for region in seen if region.sync is not None]
    found: dict[ConflictSeen, str] = {}
    for one in (one for some in zip_longest(*of_each) for one in some if one is not None):
        what = replace(one, caller="")
        found[what] = found.get(what) or one.caller
    return [
        PolicyConflict(path=one.path, won=one.won, winner=one.winner, lost=one.lost, loser=one.loser, caller=caller)
        for one, caller in found.items()
    ][:CONFLICTS_SHOWN]
