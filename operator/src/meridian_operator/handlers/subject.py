# SPDX-License-Identifier: Apache-2.0
"""The interface through which the reconciler handles a kind."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from meridian_operator.api.fields import Kind, ReconciledStatus
from meridian_operator.api.geo_topic import GeoTopicSpec
from meridian_operator.api.metadata_sync_policy import MetadataSyncPolicySpec
from meridian_operator.api.replicated_subscription import ReplicatedSubscriptionSpec
from meridian_operator.api.settings import Settings, tenant_of
from meridian_operator.api.shadow_topic import ShadowTopicSpec
from meridian_operator.plan.contenders import Contender, heir
from meridian_operator.plan.history import History
from meridian_operator.plan.observed import RegionSeen, TopicName
from meridian_operator.plan.outcome import Finding, Plan
from meridian_operator.plan.verdicts import Row

if TYPE_CHECKING:
    from meridian_operator.handlers.world import World

Spec = TypeVar("Spec", bound=GeoTopicSpec | ReplicatedSubscriptionSpec | MetadataSyncPolicySpec | ShadowTopicSpec)


@dataclass(frozen=True, slots=True)
class Views:
    """kopf's indices: what its watches have seen so far. kopf updates them in place."""

    geo_topics: Mapping[str, Any]
    replicated_subscriptions: Mapping[tuple[str, str], Any]
    topic_regions: Mapping[str, Any]
    sync_policies: Mapping[str, Any]
    shadow_topics: Mapping[tuple[str, str], Any] = field(default_factory=dict)
    geo_topic_names: Mapping[tuple[str, str], Any] = field(default_factory=dict)

    @classmethod
    def of(cls, indices: Mapping[str, Any]) -> Views:
        """From the arguments that kopf passes to a handler."""
        return cls(**{name: indices[name] for name in cls.__slots__})


@dataclass(frozen=True, slots=True)
class Look:
    """The regions as observed after the changes were applied."""

    seen: list[RegionSeen]
    """The regions that the object names, followed by those that it used to name."""
    planned: Plan
    """What remains to be changed."""
    verdict: Row | None
    """The verifier's verdict; None: there is none."""


@dataclass(frozen=True, slots=True)
class Wish(Generic[Spec]):
    """A parsed object, with the context needed to reconcile it."""

    spec: Spec
    body: Mapping[str, Any]
    """The object as Kubernetes stores it."""
    views: Views
    history: History
    settings: Settings
    gone: Container[str]
    """UIDs of objects that are still in the views but no longer exist."""
    now: str
    """The time, formatted as in conditions."""

    @property
    def full_name(self) -> tuple[str, str]:
        """Namespace and name."""
        meta = self.body["metadata"]
        return meta["namespace"], meta["name"]

    @property
    def uid(self) -> str:
        return str(self.body["metadata"]["uid"])

    tenant: str
    """The tenant that the object has to be allowed to manage; ``*``: all."""

    @property
    def is_allowed(self) -> bool:
        """May the object do what it specifies?"""
        return self.settings.allows_tenant(self.full_name[0], self.tenant)

    def counts(self, contender: Contender) -> bool:
        """Does another contender still exist, and is it allowed to manage the same tenant?"""
        return contender.uid not in self.gone and self.settings.allows_tenant(contender.namespace, self.tenant)


class Subject(ABC, Generic[Spec]):
    """One kind: how its objects are planned, deleted and reported."""

    kind: ClassVar[Kind]
    model: ClassVar[type[Any]]
    is_verified: ClassVar[bool] = True
    """Does the verifier judge it?"""

    def tenant(self, spec: Spec) -> str:
        """The tenant that its object has to be allowed to manage; ``*``: all."""
        return tenant_of(spec.topic)

    def known_as(self, body: Mapping[str, Any]) -> frozenset[str]:
        """What events of this object are about, for those that listen."""
        return frozenset({str((body.get("spec") or {}).get("topic", ""))})

    def listens_to(self, body: Mapping[str, Any]) -> frozenset[str]:
        """What events make a look at this object necessary, besides its own. It stays the same for its lifetime."""
        return self.known_as(body)

    async def see(self, wish: Wish[Spec], world: World, names: Sequence[str]) -> list[RegionSeen]:
        """Observe the object's topic or subscription in these regions."""
        return await world.see(names, *self.place(wish))

    @abstractmethod
    def what(self, wish: Wish[Spec]) -> str:
        """The topic or subscription, as it appears in messages."""

    @abstractmethod
    def contenders(self, wish: Wish[Spec]) -> Iterable[Contender]:
        """All objects that name, and may manage, the same topic or subscription."""

    @abstractmethod
    def names(self, wish: Wish[Spec]) -> list[str]:
        """The regions that should have it."""

    def heir(self, wish: Wish[Spec]) -> Contender | None:
        """The contender that takes control of all of it when the object is deleted; None: there is no other."""
        return heir(self.contenders(wish), wish.uid)

    def ending(self, wish: Wish[Spec]) -> list[str]:
        """The regions where it ends when the object is deleted with policy Delete."""
        return self.names(wish) or sorted(wish.history.established)

    @abstractmethod
    def place(self, wish: Wish[Spec]) -> tuple[TopicName, str | None]:
        """The topic, and the subscription if the kind describes one."""

    @abstractmethod
    def refusal(self, wish: Wish[Spec]) -> tuple[str, str] | None:
        """Why the spec cannot be carried out: reason and sentence; None: it can."""

    @abstractmethod
    def plan(self, wish: Wish[Spec], seen: Sequence[RegionSeen]) -> Plan:
        """What to change in the regions."""

    @abstractmethod
    def deletion(self, wish: Wish[Spec], seen: Sequence[RegionSeen], abandoned: Sequence[str]) -> Plan:
        """What to change to delete it everywhere except in abandoned regions."""

    @abstractmethod
    def report(self, wish: Wish[Spec], look: Look) -> tuple[list[Finding], ReconciledStatus]:
        """Further findings, and the status."""
