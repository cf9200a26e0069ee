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
    """The parts of ``persistent://tenant/namespace/name``."""

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
        """Its partitions; the topic itself if it has none."""
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
    """A shadow's relation to its source, over all partitions."""

    source: str
    connected: bool
    """The source exists."""
    holds: bool
    """Its subscriptions keep ledgers of the source."""
    backlog: int
    """Entries after the position of the subscription that is furthest behind."""
    gap: int
    """Entries deleted from the source before a subscription had them, since the shadow was opened."""
    reset_behind: int = 0
    """Its ``autoResetBacklogEntries``."""
    resets: int = 0
    """How often entries were not read ahead because of it, since the shadow was opened."""


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
    """None: it is not a shadow."""
    takes_snapshots: bool = False
    """Snapshots carry its subscriptions' positions to other regions."""
    without: frozenset[str] = frozenset()
    """Regions that its snapshots leave out."""


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
    """Why it is not synced, one sentence per region."""
    scopes: frozenset[str] = frozenset({"local"})
    """Dispatch scopes that its partitions have."""
    witnesses: frozenset[str] = frozenset({""})
    """Witness regions that its partitions have; an empty string: no witness."""
    scope_problem: str = ""
    """Why the configured scope is not in force; empty: it is."""


CONFLICTS_SHOWN: Final = 5


@dataclass(frozen=True, slots=True)
class ConflictSeen:
    """Two regions wrote the same metadata concurrently. Values are JSON, possibly truncated."""

    path: str
    won: str
    winner: str
    """The region that wrote it; empty: it is a deletion, and no region remembers whose."""
    lost: str
    loser: str
    caller: str = ""
    """The role that requested the lost write; empty: unknown."""


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
    """The last conflicts, latest first."""
    lag_seconds: int = 0
    troubles: tuple[str, ...] = ()
    """What keeps the region out of sync, one sentence each."""


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
    """The topic that ``topic`` shadows, or will; None: it was not asked for, does not exist or got no answer."""
    source_problem: tuple[str, str] | None = None
    """Why ``source`` got no answer, in one word and in a sentence."""

    @property
    def copy(self) -> TopicSeen | None:
        """The region's copy of a replicated topic; None: it has none, or only a shadow of that name."""
        return None if self.topic is None or self.topic.shadow is not None else self.topic

    @property
    def reachable(self) -> bool:
        return not self.problem
