# SPDX-License-Identifier: Apache-2.0
"""What the flow of every kind needs to know of one kind."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from meridian_operator.api.geo_topic import GeoTopicSpec
from meridian_operator.api.replicated_subscription import ReplicatedSubscriptionSpec
from meridian_operator.api.settings import Settings
from meridian_operator.api.shared import Kind, ReconciledStatus
from meridian_operator.plan.claims import Claim
from meridian_operator.plan.history import History
from meridian_operator.plan.observed import RegionSeen, TopicName
from meridian_operator.plan.outcome import Finding, Plan

Spec = TypeVar("Spec", bound=GeoTopicSpec | ReplicatedSubscriptionSpec)


@dataclass(frozen=True, slots=True)
class Views:
    """kopf's indices: what its watches have seen so far. They change in place."""

    geo_topics: Mapping[str, Any]
    replicated_subscriptions: Mapping[tuple[str, str], Any]
    topic_regions: Mapping[str, Any]
    verdicts: Mapping[Any, Any]
    verdict_runs: Mapping[Any, Any]

    @classmethod
    def of(cls, indices: Mapping[str, Any]) -> Views:
        """Out of the arguments that kopf gives a handler."""
        return cls(**{name: indices[name] for name in cls.__slots__})


@dataclass(frozen=True, slots=True)
class Look:
    """One look at the regions, after the changes that it led to."""

    seen: list[RegionSeen]
    """The regions that the object names, then those that it named before."""
    planned: Plan
    """What is left to do."""


@dataclass(frozen=True, slots=True)
class Wish(Generic[Spec]):
    """One object, read."""

    spec: Spec
    body: Mapping[str, Any]
    """The object as Kubernetes has it."""
    views: Views
    history: History
    settings: Settings
    gone: Container[str]
    """Objects, by uid, that are in the views and no longer exist."""

    @property
    def claim(self) -> tuple[str, str]:
        """Namespace and name."""
        meta = self.body["metadata"]
        return meta["namespace"], meta["name"]

    @property
    def is_allowed(self) -> bool:
        """May the object name this topic? Otherwise it has no say."""
        return self.settings.allows(self.claim[0], self.spec.topic)

    def counts(self, claim: Claim) -> bool:
        """Does an object that names the same topic exist, and may it?"""
        return claim.uid not in self.gone and self.settings.allows(claim.namespace, self.spec.topic)


class Subject(ABC, Generic[Spec]):
    """One kind: how its objects are planned, deleted and reported."""

    kind: ClassVar[Kind]
    model: ClassVar[type[Any]]

    @abstractmethod
    def what(self, wish: Wish[Spec]) -> str:
        """The topic or subscription, for a sentence."""

    @abstractmethod
    def claims(self, wish: Wish[Spec]) -> Iterable[Claim]:
        """All objects that name the same topic or subscription, and may."""

    @abstractmethod
    def names(self, wish: Wish[Spec]) -> list[str]:
        """The regions in which it shall be."""

    @abstractmethod
    def place(self, wish: Wish[Spec]) -> tuple[TopicName, str | None]:
        """Topic, and subscription if the kind is about one."""

    @abstractmethod
    def refusal(self, wish: Wish[Spec]) -> tuple[str, str] | None:
        """Why nothing can be done for the object as it is: reason and sentence."""

    @abstractmethod
    def plan(self, wish: Wish[Spec], seen: Sequence[RegionSeen]) -> Plan:
        """What to change in the regions."""

    @abstractmethod
    def deletion(self, wish: Wish[Spec], seen: Sequence[RegionSeen], abandoned: Sequence[str]) -> Plan:
        """What to change so that it is gone everywhere but in the abandoned regions."""

    @abstractmethod
    def report(self, wish: Wish[Spec], look: Look, now: str) -> tuple[list[Finding], ReconciledStatus]:
        """More findings, and the status."""
