# SPDX-License-Identifier: Apache-2.0
"""What each field of a specification does: what an object causes in each of several states of the regions.

The fields come from the CRDs, so that a new field is covered without being listed here.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from meridian_operator.api.crd import KINDS, document
from meridian_operator.api.settings import Settings
from meridian_operator.handlers.deleting import FINALIZER
from meridian_operator.handlers.geo_topics import GeoTopics
from meridian_operator.handlers.metadata_sync_policies import MetadataSyncPolicies
from meridian_operator.handlers.reconciling import look
from meridian_operator.handlers.replicated_subscriptions import ReplicatedSubscriptions
from meridian_operator.handlers.reporting import Answer
from meridian_operator.handlers.shadow_topics import ShadowTopics
from meridian_operator.handlers.subject import Subject, Views
from meridian_operator.plan.changes import Change
from meridian_operator.plan.contenders import Contender
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
from meridian_operator.regions.client import POLICIES

NAMES: Final = ("ap", "eu", "us")
TOPIC: Final = "persistent://public/default/orders"
OTHER_TOPIC: Final = "persistent://public/default/others"
SINCE: Final = "2025-12-31T21:00:00Z"
TIME: Final = "2026-01-01T00:00:00Z"
SUBJECTS: Final[dict[str, Subject[Any]]] = {
    one.kind.kind: one for one in (GeoTopics(), ReplicatedSubscriptions(), MetadataSyncPolicies(), ShadowTopics())
}
Spec = dict[str, Any]
_SUBSCRIPTION: Final[Spec] = {
    "topic": TOPIC,
    "subscription": "billing",
    "regions": list(NAMES),
    "deletionPolicy": "Delete",
}
SPECS: Final[dict[str, tuple[Spec, ...]]] = {
    "GeoTopic": (
        {
            "topic": TOPIC,
            "regions": list(NAMES),
            "partitions": 4,
            "retention": {"time": "1h", "size": "1Gi"},
            "messageTTL": "1h",
            "backlogQuota": {"time": "1h", "size": "1Gi", "policy": "ProducerException"},
            "deduplication": True,
            "schema": {"type": "JSON", "definition": "{}"},
            "deletionPolicy": "Delete",
        },
    ),
    "ReplicatedSubscription": (_SUBSCRIPTION, _SUBSCRIPTION | {"dispatchScope": "Origin", "witness": "ca"}),
    "MetadataSyncPolicy": ({"regions": list(NAMES), "deletionPolicy": "Delete"},),
    "ShadowTopic": ({"source": TOPIC, "region": NAMES[0], "topic": f"{TOPIC}-view", "deletionPolicy": "Delete"},),
}
"""Per kind, specifications in which each field has the other fields that it needs to matter."""
_TEXTS: Final = {
    "ShadowTopic.topic": [f"{OTHER_TOPIC}-view"],
    "topic": [OTHER_TOPIC],
    "source": [OTHER_TOPIC],
    "region": [NAMES[1]],
    "eventTopic": [OTHER_TOPIC],
    "subscription": ["shipping"],
    "witness": ["sa"],
    "definition": ['{"type": "string"}'],
    "maxClockSkew": ["30m"],
    "duration": ["2h"],
    "size": ["2Gi"],
}
"""Other values of strings: by field name, by kind and field name, or by what the pattern describes."""

Path = tuple[str, ...]


def fields() -> Iterator[tuple[str, Path, dict[str, Any]]]:
    """Kind, path and schema of every field that has no fields of its own."""
    for kind in KINDS:
        schema = document(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
        for path, one in _leaves(schema):
            yield kind.kind, path, one


def _leaves(schema: dict[str, Any], path: Path = ()) -> Iterator[tuple[Path, dict[str, Any]]]:
    for name, one in schema["properties"].items():
        if one["type"] == "object":
            yield from _leaves(one, (*path, name))
        else:
            yield (*path, name), one


def other_values(kind: str, path: Path, schema: dict[str, Any]) -> list[Any]:
    """Two values or more, or one that occurs in no specification of ``SPECS``."""
    name = path[-1]
    if "enum" in schema:
        return list(schema["enum"])
    match schema["type"]:
        case "boolean":
            return [True, False]
        case "integer":
            return [schema["minimum"], schema["minimum"] + 4]
        case "array":
            return [schema["items"].get("enum", NAMES)[:-1]]
    for key in (f"{kind}.{name}", name):
        if key in _TEXTS:
            return _TEXTS[key]
    rules = str(schema["x-kubernetes-validations"])
    return _TEXTS["duration" if "{1,9}ms" in rules else "size" if "Ki" in rules else "unknown"]


def has(spec: Spec, path: Path, schema: dict[str, Any], value: Any) -> bool:
    """Whether this is the field's value, explicitly or by default."""
    default = schema.get("default")
    there: Any = spec
    for name in path:
        there = there.get(name, default) if isinstance(there, dict) else default
    return bool(there == value)


def with_value(spec: Spec, path: Path, value: Any) -> Spec:
    """A copy of the specification with another value of one field."""
    made = copy.deepcopy(spec)
    inside = made
    for name in path[:-1]:
        inside = inside.setdefault(name, {})
    inside[path[-1]] = value
    return made


def without(spec: Spec, path: Path) -> Spec:
    """A copy of the specification without one field, and without parents that it leaves empty."""
    made = copy.deepcopy(spec)
    inside = [made]
    for name in path[:-1]:
        inside.append(inside[-1].get(name, {}))
    inside[-1].pop(path[-1], None)
    for outer, name in zip(reversed(inside[:-1]), reversed(path[:-1]), strict=True):
        if not outer.get(name, True):
            del outer[name]
    return made


@dataclass
class Witnessed:
    """Regions in one state, and what was asked of them."""

    topic: TopicSeen | None = None
    subscription: SubscriptionSeen | None = None
    namespace_exists: bool = True
    sync: SyncSeen = field(default_factory=SyncSeen)
    topics: Mapping[str, TopicSeen] = field(default_factory=dict)
    """Topics that differ from ``topic``, by name."""
    by_region: dict[str, TopicSeen] = field(default_factory=dict)
    """The topic in regions where it differs from ``topic``."""
    asked: list[Any] = field(default_factory=list)
    made: list[Change] = field(default_factory=list)
    away: frozenset[str] = frozenset()
    """Regions that do not answer."""
    gone: frozenset[str] = frozenset()
    settings: Settings = field(default_factory=lambda: Settings(tenants_by_namespace={"y": ["*"]}))
    verdicts: Verdicts = field(default_factory=Verdicts)

    def now(self) -> str:
        return TIME

    def token_warnings(self, names: Sequence[str]) -> list[str]:
        return []

    async def see(self, names: Sequence[str], topic: TopicName, subscription: str | None) -> list[RegionSeen]:
        self.asked.append((tuple(names), topic, subscription))
        return [
            RegionSeen(name, "", problem="it is down")
            if name in self.away
            else RegionSeen(
                name,
                "",
                namespace_exists=self.namespace_exists,
                known_regions=frozenset((*NAMES, "ca")),
                topic=self.by_region.get(name, self.topics.get(str(topic), self.topic)),
                subscription=self.subscription,
            )
            for name in names
        ]

    async def see_synchronization(self, names: Sequence[str]) -> list[RegionSeen]:
        self.asked.append(tuple(names))
        return [RegionSeen(name, "", sync=self.sync) for name in names]

    async def apply(self, planned: Sequence[Change]) -> list[tuple[str, str]]:
        self.made += planned
        return []


_LINKS: Final = tuple(Link(name, True, 0, 0) for name in NAMES)
_PARTITIONED: Final = TopicSeen(4, links=_LINKS)
_ADMINISTERED: Final = TopicSeen(4, policies=dict.fromkeys(POLICIES, "set before"), links=_LINKS)
_MOVING: Final = TopicSeen(
    4,
    policies={"replication": list(NAMES), "subscriptionSync": "snapshot"},
    links=tuple(Link(name, name != NAMES[-1], 0, 0) for name in NAMES),
    takes_snapshots=True,
)
_PLACE: Final = SubscriptionSeen(replicated=True, mark_delete="", holes=0, backlog=0, consumers=0, synced=True)
_OWNER: Final = Contender(TIME, "y", "orders", "GeoTopic", "orders")
_SYNC: Final = SyncSeen(
    {
        "metadataSyncEventTopic": "persistent://public/default/metadata-events",
        "metadataSyncScopes": "namespaces,tenants",
    },
    enabled=True,
    synced=True,
)
_SHADOW: Final = TopicSeen(0, shadow=ShadowSeen(TOPIC, connected=True, holds=True, backlog=0, gap=0))
_STATES: Final[tuple[dict[str, Any], ...]] = (
    {"namespace_exists": False},
    {},
    {"topics": {TOPIC: _PARTITIONED, OTHER_TOPIC: _PARTITIONED}},
    {"topic": _PARTITIONED},
    {"topic": _PARTITIONED, "subscription": _PLACE, "sync": _SYNC},
    {"topic": _ADMINISTERED, "subscription": _PLACE},
    {"topic": _SHADOW},
    {"topic": _MOVING, "subscription": _PLACE, "away": frozenset(NAMES[-1:])},
)
"""States of the regions: arguments of ``Witnessed``."""
_STATUS: Final = {"managed": list(POLICIES), "silent": [{"name": NAMES[-1], "since": SINCE}]}
"""Status of an object that has set all policies, and whose last region has been silent for three hours."""


@dataclass(frozen=True, slots=True)
class Effect:
    """What one object causes in one state of the regions."""

    asked: list[Any]
    changes: list[Change]
    answer: Answer

    @property
    def conditions(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.answer.status.get("conditions", [])
        return found

    @property
    def told(self) -> tuple[Any, ...]:
        """Everything that users and regions notice."""
        return self.asked, self.changes, self.conditions, self.answer.finalizers, self.answer.events


async def effects(kind: str, spec: Spec) -> list[Effect]:
    """What an object causes in each state of the regions: when it is created, after it has set all policies, and when
    it is deleted."""
    views = Views(
        geo_topics={},
        replicated_subscriptions={},
        topic_regions={TOPIC: [(_OWNER, NAMES)], OTHER_TOPIC: [(_OWNER, NAMES)]},
        sync_policies={},
    )
    finalizers = [FINALIZER] if spec.get("deletionPolicy") == "Delete" else []
    meta = {"name": "x", "namespace": "y", "uid": "z", "generation": 1, "creationTimestamp": TIME}
    bodies = (
        {"metadata": meta | {"finalizers": finalizers}, "spec": spec},
        {"metadata": meta | {"finalizers": finalizers}, "spec": spec, "status": _STATUS},
        {"metadata": meta | {"deletionTimestamp": TIME, "finalizers": [FINALIZER]}, "spec": spec},
    )
    found = []
    for body in bodies:
        for state in _STATES:
            world = Witnessed(**state)
            answer = await look(SUBJECTS[kind], body, views, world)  # type: ignore[arg-type]
            found.append(Effect(world.asked, world.made, answer))
    return found
