# SPDX-License-Identifier: Apache-2.0
"""What handlers share: the regions that were found, one HTTP session, and reading an object's state.

kopf keeps the indices from its watches, so nothing here asks Kubernetes anything.
"""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
import kopf

from meridian_operator.plan.changes import Change
from meridian_operator.plan.observed import RegionSeen, TopicName
from meridian_operator.plan.verdicts import Row, rows_of, run_of, verdict_of
from meridian_operator.regions.client import Refused, RegionClient
from meridian_operator.regions.directory import REGION_LABEL, Region, Tokens, region_of

VERDICT_LABEL: Final = "meridian.dev/verdict"
PAUSED: Final = "meridian.dev/paused"
DRY_RUN: Final = "meridian.dev/dry-run"
PARALLEL_REGIONS: Final = 16


@dataclass(slots=True)
class World:
    """Everything outside of Kubernetes that handlers use."""

    http: aiohttp.ClientSession
    tokens: Tokens

    def client(self, region: Region) -> RegionClient:
        return RegionClient(region, self.http, self.tokens)


@kopf.index("services", labels={REGION_LABEL: kopf.PRESENT})  # type: ignore[arg-type]
def regions(name: str, namespace: str, labels: Mapping[str, str], spec: Mapping[str, Any], **_: Any) -> Any:
    """Region's name -> where it is."""
    found = region_of(name, namespace, labels, spec)
    return None if found is None else {found.name: found}


@kopf.index("configmaps", labels={VERDICT_LABEL: kopf.PRESENT})  # type: ignore[arg-type]
def verdicts(namespace: str, labels: Mapping[str, str], body: Mapping[str, Any], **_: Any) -> Any:
    """Topic and subscription -> rows of the verifiers' ConfigMaps, which are read once, when they change."""
    return rows_of((namespace, labels[VERDICT_LABEL]), body.get("data") or {})


@kopf.index("configmaps", labels={VERDICT_LABEL: kopf.PRESENT})  # type: ignore[arg-type]
def verdict_runs(namespace: str, labels: Mapping[str, str], body: Mapping[str, Any], **_: Any) -> Any:
    """Verifier -> its run in force."""
    run = run_of(body.get("data") or {})
    return {} if run is None else {(namespace, labels[VERDICT_LABEL]): run}


def verdict_on(indices: Mapping[str, Any], topic: str, subscription: str = "") -> Row | None:
    """What the newest run says of a topic, or of a subscription of it."""
    rows = indices["verdicts"]
    of_topic = rows.get((topic, ""), ()) if subscription else ()
    return verdict_of(rows.get((topic, subscription), ()), of_topic, indices["verdict_runs"])


def known(index: Mapping[str, Any]) -> dict[str, Region]:
    """The regions in the index. Of two Services for one region the first by URL counts."""
    return {name: min(found, key=lambda one: one.url) for name, found in index.items()}


async def observe(
    world: World, found: Mapping[str, Region], names: Sequence[str], topic: TopicName, subscription: str | None = None
) -> list[RegionSeen]:
    """All regions that an object names, asked at the same time."""

    async def one(name: str) -> RegionSeen:
        if name not in found:
            return RegionSeen(name, "", problem=f"there is no Service labelled {REGION_LABEL}={name}")
        return await world.client(found[name]).see(topic, subscription)

    return list(await asyncio.gather(*(one(name) for name in names[:PARALLEL_REGIONS])))


async def apply(world: World, found: Mapping[str, Region], planned: Sequence[Change]) -> list[tuple[str, str]]:
    """Make the changes, in order within a region. What regions refused: region and sentence."""

    async def one(region: str) -> list[tuple[str, str]]:
        client = world.client(found[region])
        for change in planned:
            if change.region != region:
                continue
            try:
                await client.apply(change)
            except (Refused, aiohttp.ClientError, TimeoutError, OSError) as error:
                # What comes after in this region builds on this change.
                return [(region, f"{change.sentence()}: {error or type(error).__name__}")]
        return []

    failed = await asyncio.gather(*(one(region) for region in {change.region: None for change in planned}))
    return [failure for region in failed for failure in region]


def now() -> str:
    """The time as conditions have it."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def asked(body: Mapping[str, Any], annotation: str) -> bool:
    """Is the annotation ``true``?"""
    return bool(body["metadata"].get("annotations", {}).get(annotation) == "true")


def write(patch: kopf.Patch, body: Mapping[str, Any], status: Mapping[str, Any]) -> None:
    """Put the status into the patch, if it differs: a write that changes nothing would only make noise."""
    before = body.get("status", {})
    for key, value in status.items():
        if before.get(key) != value:
            patch.status[key] = value
