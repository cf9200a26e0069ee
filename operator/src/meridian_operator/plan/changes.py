# SPDX-License-Identifier: Apache-2.0
"""Everything the operator ever does to a region. Each change has a sentence for Events and dry runs."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from meridian_operator.plan.observed import TopicName


@dataclass(frozen=True, slots=True)
class Change(ABC):
    """One call of a region's admin API."""

    region: str
    topic: TopicName

    @abstractmethod
    def sentence(self) -> str:
        """What it does, beginning with the region."""


@dataclass(frozen=True, slots=True)
class CreateNamespace(Change):
    """Make the topic's namespace, and its tenant where there is none."""

    regions: tuple[str, ...]
    """Those in which a new tenant may have topics."""

    def sentence(self) -> str:
        return f"{self.region}: make namespace {self.topic.tenant}/{self.topic.namespace}"


@dataclass(frozen=True, slots=True)
class CreateTopic(Change):
    """Make the topic, with ``partitions`` partitions or, when 0, without."""

    partitions: int

    def sentence(self) -> str:
        how = f"with {self.partitions} partitions" if self.partitions else "without partitions"
        return f"{self.region}: make topic {self.topic} {how}"


@dataclass(frozen=True, slots=True)
class GrowTopic(Change):
    """Add partitions."""

    partitions: int

    def sentence(self) -> str:
        return f"{self.region}: grow topic {self.topic} to {self.partitions} partitions"


@dataclass(frozen=True, slots=True)
class SetPolicy(Change):
    """Set one topic-level policy; its path's last part, and the body of the call."""

    policy: str
    value: Any

    def sentence(self) -> str:
        return f"{self.region}: set {self.policy} of {self.topic} to {json.dumps(self.value, sort_keys=True)}"


@dataclass(frozen=True, slots=True)
class RemovePolicy(Change):
    """Take one topic-level policy back, so that the namespace's holds again."""

    policy: str

    def sentence(self) -> str:
        return f"{self.region}: remove {self.policy} of {self.topic}"


@dataclass(frozen=True, slots=True)
class Unlink(Change):
    """Let the region, which the topic has left, send to no other region any more. Its copy stays there."""

    def sentence(self) -> str:
        return f"{self.region}: stop replicating {self.topic}, whose copy stays there"


@dataclass(frozen=True, slots=True)
class AddSchema(Change):
    """Add a version of the topic's schema."""

    type: str
    definition: str

    def sentence(self) -> str:
        return f"{self.region}: add a {self.type} schema to {self.topic}"


@dataclass(frozen=True, slots=True)
class DeleteTopic(Change):
    """Delete the topic with its messages."""

    partitioned: bool

    def sentence(self) -> str:
        return f"{self.region}: delete topic {self.topic}"


@dataclass(frozen=True, slots=True)
class CreateSubscription(Change):
    """Make a replicated subscription at one end of the topic."""

    subscription: str
    earliest: bool

    def sentence(self) -> str:
        where = "earliest" if self.earliest else "latest"
        return f"{self.region}: make subscription {self.subscription} on {self.topic} at the {where} message"


@dataclass(frozen=True, slots=True)
class ReplicateSubscription(Change):
    """Keep the subscription's place the same in all regions."""

    subscription: str

    def sentence(self) -> str:
        return f"{self.region}: replicate subscription {self.subscription} on {self.topic}"


@dataclass(frozen=True, slots=True)
class SetDispatchScope(Change):
    """Say which region dispatches which messages of the subscription; one region tells the others."""

    subscription: str
    scope: str
    """``local`` or ``origin``."""
    witness: str | None = None
    """Who votes besides the topic's regions; None: as before."""

    def sentence(self) -> str:
        scope = self.scope if self.witness is None else f"{self.scope} with witness {self.witness}"
        return f"{self.region}: dispatch scope {scope} for subscription {self.subscription} on {self.topic}"


@dataclass(frozen=True, slots=True)
class DeleteSubscription(Change):
    """Delete the subscription with its progress."""

    subscription: str
    force: bool = False
    """Without asking the other regions, because one of them is given up."""

    def sentence(self) -> str:
        return f"{self.region}: delete subscription {self.subscription} on {self.topic}"
