# SPDX-License-Identifier: Apache-2.0
"""Every field of a specification means something: another value leads to another call, or to another condition.

The fields are those of the CRDs, so that a field which nothing reads fails here the day it is added.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from meridian_operator.api.crd import KINDS, document
from meridian_operator.api.settings import Settings
from meridian_operator.handlers.deleting import FINALIZER
from meridian_operator.handlers.geo_topics import GeoTopics
from meridian_operator.handlers.metadata_sync_policies import MetadataSyncPolicies
from meridian_operator.handlers.reconciling import look
from meridian_operator.handlers.replicated_subscriptions import ReplicatedSubscriptions
from meridian_operator.handlers.shadow_topics import ShadowTopics
from meridian_operator.handlers.subject import Subject, Views
from meridian_operator.plan.changes import Change
from meridian_operator.plan.claims import Claim
from meridian_operator.plan.observed import (
    Link,
    RegionSeen,
    ShadowSeen,
    SubscriptionSeen,
    SyncSeen,
    TopicName,
    TopicSeen,
)
from meridian_operator.plan.verdicts import Verdicts
from meridian_verifier.wanted_lags import max_lags

NAMES = ("ap", "eu", "us")
OTHER_TOPIC = "persistent://public/default/others"
ACTED_ON: dict[str, Subject[Any]] = {
    one.kind.kind: one for one in (GeoTopics(), ReplicatedSubscriptions(), MetadataSyncPolicies(), ShadowTopics())
}
BASE: dict[str, dict[str, Any]] = {
    "GeoTopic": {
        "topic": "persistent://public/default/orders",
        "regions": list(NAMES),
        "partitions": 4,
        "retention": {"time": "1h", "size": "1Gi"},
        "messageTTL": "1h",
        "backlogQuota": {"time": "1h", "size": "1Gi", "policy": "ProducerException"},
        "deduplication": True,
        "schema": {"type": "JSON", "definition": "{}"},
    },
    "ReplicatedSubscription": {
        "topic": "persistent://public/default/orders",
        "subscription": "billing",
        "regions": list(NAMES),
        "dispatchScope": "Origin",
        "witness": "ca",
    },
    "MetadataSyncPolicy": {"regions": list(NAMES)},
    "ShadowTopic": {
        "source": "persistent://public/default/orders",
        "region": NAMES[0],
        "topic": "persistent://public/default/orders-view",
    },
}
"""With what a field needs beside it to mean something."""
TEXTS = {
    "topic": [OTHER_TOPIC],
    "source": [OTHER_TOPIC],
    "region": [NAMES[1]],
    "eventTopic": [OTHER_TOPIC],
    "subscription": ["shipping"],
    "witness": ["sa"],
    "definition": ['{"type": "string"}'],
    "duration": ["2h"],
    "size": ["2Gi"],
}
"""Other values of strings, by the field's name or the kind of its pattern."""


def leaves(schema: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """Path and schema of every field that is not made of others."""
    for name, one in schema["properties"].items():
        if one["type"] == "object":
            yield from leaves(one, (*path, name))
        else:
            yield (*path, name), one


def others(name: str, schema: dict[str, Any]) -> list[Any]:
    """Values that differ from that in ``BASE``."""
    if "enum" in schema:
        return list(schema["enum"])
    match schema["type"]:
        case "boolean":
            return [True, False]
        case "integer":
            return [schema["minimum"], schema["minimum"] + 4]
        case "array":
            return [schema["items"].get("enum", NAMES)[:-1]]
    if name in TEXTS:
        return TEXTS[name]
    rules = str(schema["x-kubernetes-validations"])
    return TEXTS["duration" if "{1,9}ms" in rules else "size" if "Ki" in rules else "unknown"]


def changed(spec: dict[str, Any], path: Sequence[str], value: Any) -> dict[str, Any]:
    made = copy.deepcopy(spec)
    inside = made
    for name in path[:-1]:
        inside = inside.setdefault(name, {})
    inside[path[-1]] = value
    return made


@dataclass
class Witnessed:
    """Regions in one state, and what is asked of them."""

    topic: TopicSeen | None
    subscription: SubscriptionSeen | None
    namespace_exists: bool
    sync: SyncSeen = field(default_factory=SyncSeen)
    asked: list[Any] = field(default_factory=list)
    gone: frozenset[str] = frozenset()
    settings: Settings = field(default_factory=lambda: Settings(tenants_by_namespace={"y": ["*"]}))
    verdicts: Verdicts = field(default_factory=Verdicts)

    def now(self) -> str:
        return "2026-01-01T00:00:00Z"

    def token_warnings(self, names: Sequence[str]) -> list[str]:
        return []

    async def see(self, names: Sequence[str], topic: TopicName, subscription: str | None) -> list[RegionSeen]:
        self.asked.append((tuple(names), topic, subscription))
        known = frozenset((*NAMES, "ca"))
        return [
            RegionSeen(
                name,
                "",
                namespace_exists=self.namespace_exists,
                known_regions=known,
                topic=self.topic,
                subscription=self.subscription,
            )
            for name in names
        ]

    async def see_synchronization(self, names: Sequence[str]) -> list[RegionSeen]:
        self.asked.append(tuple(names))
        return [RegionSeen(name, "", sync=self.sync) for name in names]

    async def apply(self, planned: Sequence[Change]) -> list[tuple[str, str]]:
        self.asked.append(tuple(planned))
        return []


TOPIC = TopicSeen(4, links=tuple(Link(name, True, 0, 0) for name in NAMES))
PLACE = SubscriptionSeen(replicated=True, mark_delete="", holes=0, backlog=0, consumers=0, synced=True)
OWNER = Claim("2026-01-01T00:00:00Z", "y", "orders", uid="orders")
SYNC = SyncSeen(
    {
        "metadataSyncEventTopic": "persistent://public/default/metadata-events",
        "metadataSyncScopes": "namespaces,tenants",
    },
    enabled=True,
    synced=True,
)
VIEW = TopicSeen(0, shadow=ShadowSeen(str(BASE["ShadowTopic"]["source"]), connected=True, holds=True, backlog=0, gap=0))
STATES = ((None, None, False), (None, None, True), (TOPIC, None, True), (TOPIC, PLACE, True, SYNC), (VIEW, None, True))
"""What a world is made with."""


@dataclass
class Listed:
    """The cluster as the verifier asks it: it reads maxLag in the objects themselves."""

    one: dict[str, Any]

    def get(self, _: str) -> dict[str, Any]:
        return {"items": [self.one], "metadata": {}}


def effect(kind: str, spec: dict[str, Any]) -> Any:
    """Everything that an object with this specification leads to: made, or deleted, in each state of the regions."""
    found: list[Any] = []
    views = Views(
        geo_topics={},
        replicated_subscriptions={},
        topic_regions={BASE["GeoTopic"]["topic"]: [(OWNER, NAMES)], OTHER_TOPIC: [(OWNER, NAMES)]},
        sync_policies={},
    )
    meta = {"name": "x", "namespace": "y", "uid": "z", "generation": 1, "creationTimestamp": "2026-01-01T00:00:00Z"}
    made = {"metadata": meta, "spec": spec}
    deleted = {
        "metadata": meta | {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": [FINALIZER]},
        "spec": spec,
    }
    for body in (made, deleted):
        for state in STATES:
            world = Witnessed(*state)
            answer = asyncio.run(look(ACTED_ON[kind], body, views, world))  # type: ignore[arg-type]
            found.append((world.asked, answer.status.get("conditions"), answer.finalizers, answer.event))
    if kind == "ReplicatedSubscription":
        found.append(max_lags(Listed(made)))  # type: ignore[arg-type]
    return found


def fields() -> list[Any]:
    spec = {
        kind.kind: document(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
        for kind in KINDS
        if kind.kind in ACTED_ON
    }
    return [
        pytest.param(kind, path, schema, id=".".join((kind, *path)))
        for kind, of_kind in spec.items()
        for path, schema in leaves(of_kind)
    ]


@pytest.mark.parametrize(("kind", "path", "schema"), fields())
def test_another_value_leads_to_another_call_or_condition(
    kind: str, path: tuple[str, ...], schema: dict[str, Any]
) -> None:
    before = effect(kind, BASE[kind])
    for value in others(path[-1], schema):
        spec = changed(BASE[kind], path, value)
        default = schema.get("default")
        inside: Any = BASE[kind]
        for name in path:
            inside = inside.get(name, default) if isinstance(inside, dict) else default
        if value != inside:
            assert effect(kind, spec) != before, f"{'.'.join(path)}: {value!r} is the same as {inside!r}"


def test_kinds_whose_fields_mean_nothing_yet_are_named() -> None:
    assert {kind.kind for kind in KINDS} == ACTED_ON.keys()
