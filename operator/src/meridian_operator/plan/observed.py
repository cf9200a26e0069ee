# SPDX-License-Identifier: Apache-2.0
"""What regions hold, as observed at one moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

UNREACHABLE: Final = "RegionUnreachable"
"""Why a region was not observed: it does not answer."""


@dataclass(frozen=True, slots=True)
class TopicName:
    """``persistent://tenant/namespace/name`` in its parts."""

    tenant: str
    namespace: str
    local: str

    @classmethod
    def parse(cls, text: str) -> TopicName:
        """:raises ValueError: ``text`` does not have that form."""
        domain, separator, rest = text.partition("://")
        parts = rest.split("/", 2)
        if domain != "persistent" or not separator or len(parts) != 3 or not all(parts):
            raise ValueError(f"{text!r} is not a topic name: expected persistent://tenant/namespace/name")
        return cls(*parts)

    def __str__(self) -> str:
        return f"persistent://{self.tenant}/{self.namespace}/{self.local}"

    def parts(self, partitions: int) -> list[TopicName]:
        """Its partitions; of a topic that has none, itself."""
        if not partitions:
            return [self]
        return [replace(self, local=f"{self.local}-partition-{index}") for index in range(partitions)]


@dataclass(frozen=True, slots=True)
class Link:
    """Replication of one topic from one region to another (of its worst partition)."""

    region: str
    connected: bool
    backlog: int
    lag_seconds: int


@dataclass(frozen=True, slots=True)
class ShadowSeen:
    """How a shadow stands to its source, over all partitions."""

    source: str
    connected: bool
    """The source exists."""
    holds: bool
    """Its subscriptions keep ledgers of the source."""
    backlog: int
    """Entries behind the place of the subscription that is furthest back."""
    gap: int
    """Entries that the source deleted although a subscription was owed them, since the shadow was opened."""
    reset_behind: int = 0
    """Its ``autoResetBacklogEntries``."""
    resets: int = 0
    """How often it did not read entries ahead for that, since the shadow was opened."""


@dataclass(frozen=True, slots=True)
class TopicSeen:
    """A topic in one region."""

    partitions: int
    """0: not partitioned."""
    policies: Mapping[str, Any] = field(default_factory=dict)
    """Topic-level policies by the last part of their path; absent when not set."""
    schema: Mapping[str, Any] | None = None
    """Newest version: ``type``, and ``sha256`` of its text in hexadecimal."""
    links: tuple[Link, ...] = ()
    unfilled: str = ""
    """Why the copy in this region is not ready for failover; empty: it is ready."""
    shadow: ShadowSeen | None = None
    """None: it is no shadow."""
    takes_snapshots: bool = False
    """Its subscriptions move in other regions by snapshots."""
    without: frozenset[str] = frozenset()
    """Regions without which they are taken."""


@dataclass(frozen=True, slots=True)
class SubscriptionSeen:
    """A subscription in one region, over all partitions."""

    replicated: bool
    mark_delete: str
    holes: int
    backlog: int
    consumers: int
    synced: bool
    reasons: tuple[str, ...] = ()
    """For each region that it is not synced with, why: a sentence each."""
    scopes: frozenset[str] = frozenset({"local"})
    """Dispatch scopes that its partitions have."""
    witnesses: frozenset[str] = frozenset({""})
    """Witness regions that its partitions have; an empty string: no witness."""
    scope_problem: str = ""
    """Why the configured scope is not in force; empty: it is."""


CONFLICTS_SHOWN: Final = 5


@dataclass(frozen=True, slots=True)
class ConflictSeen:
    """Two regions wrote the same metadata without knowing of each other. Values are JSON, and may be cut short."""

    path: str
    won: str
    winner: str
    """The region that wrote it; empty: all have forgotten who deleted it."""
    lost: str
    loser: str
    caller: str = ""
    """The role that asked for what was lost; empty: nobody knows."""


@dataclass(frozen=True, slots=True)
class SyncSeen:
    """Synchronization of metadata in one region. Counters begin when its broker starts."""

    chosen: Mapping[str, str] = field(default_factory=dict)
    """Settings that were changed at run time, by key."""
    enabled: bool = False
    synced: bool = False
    published: int = 0
    applied: int = 0
    stale: int = 0
    conflicts: int = 0
    latest: tuple[ConflictSeen, ...] = ()
    """The last of the conflicts, the latest one first."""
    lag_seconds: int = 0
    troubles: tuple[str, ...] = ()
    """What keeps the region from being in sync, a sentence each."""


@dataclass(frozen=True, slots=True)
class RegionSeen:
    """One region as observed, or why it could not be."""

    name: str
    url: str
    problem: str = ""
    """Why the region could not be observed; empty: it answered."""
    reason: str = UNREACHABLE
    """``problem`` in one word."""
    namespace_exists: bool = True
    known_regions: frozenset[str] = frozenset()
    """Clusters that this region knows, including itself."""
    topic: TopicSeen | None = None
    """None: there is none, or the region did not answer."""
    subscription: SubscriptionSeen | None = None
    sync: SyncSeen | None = None
    """None: it was not asked for, or the region did not answer."""
    source: TopicSeen | None = None
    """The topic that ``topic`` is, or is to be, a shadow of; None: as for ``sync``, or there is none."""

    @property
    def copy(self) -> TopicSeen | None:
        """The region's copy of a replicated topic; None: it has none, and what it may have of that name is a shadow."""
        return None if self.topic is None or self.topic.shadow is not None else self.topic

    @property
    def reachable(self) -> bool:
        return not self.problem
