# SPDX-License-Identifier: Apache-2.0
"""What the regions were seen to hold, at one moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class TopicName:
    """``persistent://tenant/namespace/name`` in its parts."""

    tenant: str
    namespace: str
    local: str

    @classmethod
    def parse(cls, text: str) -> TopicName:
        """:raises ValueError: it is not of that form."""
        domain, separator, rest = text.partition("://")
        parts = rest.split("/", 2)
        if domain != "persistent" or not separator or len(parts) != 3 or not all(parts):
            raise ValueError(f"{text!r} is not a topic name: expected persistent://tenant/namespace/name")
        return cls(*parts)

    def __str__(self) -> str:
        return f"persistent://{self.tenant}/{self.namespace}/{self.local}"


@dataclass(frozen=True, slots=True)
class Link:
    """Replication from one region to another, of one topic (the worst of its partitions)."""

    region: str
    connected: bool
    backlog: int
    lag_seconds: int


@dataclass(frozen=True, slots=True)
class TopicSeen:
    """A topic in one region."""

    partitions: int
    """0: not partitioned."""
    policies: Mapping[str, Any] = field(default_factory=dict)
    """Topic-level policies by the last part of their path; absent when not set."""
    schema: Mapping[str, Any] | None = None
    """Newest version: ``type``, and ``sha256`` of its text, in hexadecimal digits."""
    links: tuple[Link, ...] = ()
    unfilled: str = ""
    """Why the copy in this region is not ready to be failed over to; empty: it is."""


@dataclass(frozen=True, slots=True)
class SubscriptionSeen:
    """A subscription in one region, all partitions together."""

    replicated: bool
    mark_delete: str
    holes: int
    backlog: int
    consumers: int
    synced: bool
    reasons: tuple[str, ...] = ()
    """Why it is not synced with some region, a sentence each."""
    scopes: frozenset[str] = frozenset({"local"})
    """Dispatch scopes of its partitions."""
    witnesses: frozenset[str] = frozenset({""})
    """Who votes besides the topic's regions, of its partitions; empty: nobody."""
    scope_problem: str = ""
    """Why the scope that is set is not in force; empty when it is."""


@dataclass(frozen=True, slots=True)
class RegionSeen:
    """One region, or why it could not be asked."""

    name: str
    url: str
    problem: str = ""
    """Empty: the region answered."""
    reason: str = "RegionUnreachable"
    """Why not, in one word."""
    namespace_exists: bool = True
    known_regions: frozenset[str] = frozenset()
    """Clusters that this region knows, itself too."""
    topic: TopicSeen | None = None
    """None: there is none, or the region could not be asked."""
    subscription: SubscriptionSeen | None = None

    @property
    def reachable(self) -> bool:
        return not self.problem
