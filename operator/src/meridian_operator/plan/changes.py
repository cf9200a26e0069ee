# SPDX-License-Identifier: Apache-2.0
"""Every change that the operator can make in a region, each with a sentence for Events and dry runs."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from meridian_operator.plan.observed import TopicName


@dataclass(frozen=True, slots=True)
class Change(ABC):
    """One change through a region's admin API."""

    region: str
    topic: TopicName

    @abstractmethod
    def sentence(self) -> str:
        """What the change does, beginning with the region."""

    @property
    def warning(self) -> str:
        """Reason of a warning Event, for a change that the object allows but people must know of; empty: no Event."""
        return ""

    @property
    def is_healing(self) -> bool:
        """If everything was as specified before, does this revert what somebody changed?"""
        return not self.warning


@dataclass(frozen=True, slots=True)
class CreateNamespace(Change):
    """Create the topic's namespace, and its tenant if that is missing."""

    regions: tuple[str, ...]
    """Clusters that a new tenant is allowed to use."""

    def sentence(self) -> str:
        return f"{self.region}: create namespace {self.topic.tenant}/{self.topic.namespace}"


@dataclass(frozen=True, slots=True)
class CreateTopic(Change):
    """Create the topic with ``partitions`` partitions; 0: not partitioned."""

    partitions: int

    def sentence(self) -> str:
        how = f"with {self.partitions} partitions" if self.partitions else "without partitions"
        return f"{self.region}: create topic {self.topic} {how}"


@dataclass(frozen=True, slots=True)
class CreateShadow(Change):
    """Create the topic as a shadow of another one."""

    source: str
    holds: bool
    """Its subscriptions keep ledgers of the source."""
    reset_behind: int = 0
    """As in ``AutoResetBacklog``."""

    def sentence(self) -> str:
        return f"{self.region}: create {self.topic} as a shadow of {self.source}"


@dataclass(frozen=True, slots=True)
class HoldSourceLedgers(Change):
    """Whether the subscriptions of a shadow keep ledgers of its source."""

    holds: bool

    def sentence(self) -> str:
        what = "hold" if self.holds else "release"
        return f"{self.region}: let the subscriptions of {self.topic} {what} ledgers of its source"


@dataclass(frozen=True, slots=True)
class AutoResetBacklog(Change):
    """Up to how many entries of a full ledger are read ahead for a shadow; 0: as the region's settings say."""

    entries: int

    def sentence(self) -> str:
        return f"{self.region}: set autoResetBacklogEntries of {self.topic} to {self.entries}"


@dataclass(frozen=True, slots=True)
class FollowPartitions(Change):
    """Give a shadow as many partitions as its source has. Its region does so when the source grows, unless a broker is
    away."""

    source: str
    partitions: int

    def sentence(self) -> str:
        return f"{self.region}: let {self.topic} follow {self.source} to {self.partitions} partitions"

    @property
    def is_healing(self) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class GrowTopic(Change):
    """Add partitions."""

    partitions: int

    def sentence(self) -> str:
        return f"{self.region}: expand topic {self.topic} to {self.partitions} partitions"


@dataclass(frozen=True, slots=True)
class SetPolicy(Change):
    """Set a topic-level policy, given as the last part of its path and the request body."""

    policy: str
    value: Any

    def sentence(self) -> str:
        return f"{self.region}: set {self.policy} of {self.topic} to {json.dumps(self.value, sort_keys=True)}"


@dataclass(frozen=True, slots=True)
class RemovePolicy(Change):
    """Remove a topic-level policy, so that the namespace's applies again."""

    policy: str

    def sentence(self) -> str:
        return f"{self.region}: remove {self.policy} of {self.topic}"


@dataclass(frozen=True, slots=True)
class Unlink(Change):
    """Stop replication from a region that was removed from the topic. Its copy stays there."""

    def sentence(self) -> str:
        return f"{self.region}: stop replicating {self.topic}; its copy there stays"


@dataclass(frozen=True, slots=True)
class AddSchema(Change):
    """Add a version of the topic's schema."""

    type: str
    definition: str

    def sentence(self) -> str:
        return f"{self.region}: add a {self.type} schema to {self.topic}"


@dataclass(frozen=True, slots=True)
class DeleteTopic(Change):
    """Delete the topic and its messages."""

    partitioned: bool

    def sentence(self) -> str:
        return f"{self.region}: delete topic {self.topic}"


@dataclass(frozen=True, slots=True)
class CreateSubscription(Change):
    """Create a replicated subscription at one end of the topic."""

    subscription: str
    earliest: bool

    def sentence(self) -> str:
        where = "earliest" if self.earliest else "latest"
        return f"{self.region}: create subscription {self.subscription} on {self.topic} at the {where} message"


@dataclass(frozen=True, slots=True)
class ReplicateSubscription(Change):
    """Make the subscription replicated."""

    subscription: str

    def sentence(self) -> str:
        return f"{self.region}: replicate subscription {self.subscription} on {self.topic}"


@dataclass(frozen=True, slots=True)
class SetDispatchScope(Change):
    """Set which region dispatches which messages of the subscription. The region propagates it to the others."""

    subscription: str
    scope: str
    """``local`` or ``origin``."""
    witness: str | None = None
    """The region that votes besides the topic's regions; None: unchanged."""

    def sentence(self) -> str:
        scope = self.scope if self.witness is None else f"{self.scope} with witness {self.witness}"
        return f"{self.region}: set dispatch scope {scope} for subscription {self.subscription} on {self.topic}"


@dataclass(frozen=True, slots=True)
class GoOnWithout(Change):
    """Take snapshots of the topic without regions that have been silent for a long time."""

    partitions: int
    lost: tuple[str, ...]

    def sentence(self) -> str:
        return (
            f"{self.region}: take snapshots of {self.topic} without {', '.join(self.lost)}; messages from there that "
            "never reached this region stay owed, but an Apache Pulsar region that has them skips them"
        )

    @property
    def warning(self) -> str:
        return "PartialSnapshots"


@dataclass(frozen=True, slots=True)
class DeleteSubscription(Change):
    """Delete the subscription and its progress."""

    subscription: str
    force: bool = False
    """Do not ask the other regions first, because one of them is abandoned."""

    def sentence(self) -> str:
        return f"{self.region}: delete subscription {self.subscription} on {self.topic}"


@dataclass(frozen=True, slots=True)
class SetSetting(Change):
    """Change a setting of all the region's brokers, until it is removed."""

    key: str
    value: str

    def sentence(self) -> str:
        return f"{self.region}: set {self.key} to {self.value}"


@dataclass(frozen=True, slots=True)
class RemoveSetting(Change):
    """Return to the value in the brokers' own configuration."""

    key: str

    def sentence(self) -> str:
        return f"{self.region}: remove {self.key}"
