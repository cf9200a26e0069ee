# SPDX-License-Identifier: Apache-2.0
"""A region's own facts in one snapshot, except the ranges: topics, cursors, links.

They are small (some hundred bytes per subscription), so the driver holds them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

Place = tuple[int, int]
"""``(ledger, entry)``; the field's name says in whose coordinates."""

Hole = tuple[Place, Place]
"""Entries of one origin strictly between the two may still come."""

Range = tuple[Place, Place]
"""Entries of one origin, ``(after, upto]``."""

EARLIEST: Final[Place] = (-1, -1)


@dataclass(frozen=True, slots=True)
class Cursor:
    """A subscription in one region at one snapshot."""

    replicated: bool
    durable: bool
    type: str
    mark_delete: Place
    backlog: int | None
    epoch: str


@dataclass(frozen=True, slots=True)
class Link:
    """The way from one region to another, for one topic."""

    connected: bool
    backlog: int
    last_ack_ms: int


@dataclass(frozen=True, slots=True)
class TopicState:
    """A topic in one region at one snapshot."""

    incarnation: str = ""
    trimmed_to: Place = EARLIEST
    """Local: everything up to here was trimmed."""
    last_origins: Mapping[str, Place] = field(default_factory=dict)
    """Per origin region, this one included, the last entry stored here (R4)."""
    joined: Mapping[str, Place] = field(default_factory=dict)
    """Per origin region, the place up to which this region was never meant to have entries (R21)."""
    links: Mapping[str, Link] = field(default_factory=dict)
    cursors: Mapping[str, Cursor] = field(default_factory=dict)
    trimmed_origins: Mapping[str, Place] | None = None
    """Per origin, the last of its entries that was trimmed; None: an older broker, which does not report it."""
    holes: Mapping[str, Sequence[Hole]] = field(default_factory=dict)
    """Per origin, where this region still waits for entries although it has later ones (R5)."""
    compacted_to: Place = EARLIEST
    """Local: the last entry that the region's compacted view takes into account."""
    skipped: Mapping[str, Sequence[Range]] = field(default_factory=dict)
    """Per other region, which entries of this one an administrator dropped from its replication backlog."""
    shadow_of: str = ""
    """The source of this shadow; empty: it is not a shadow."""
    ledgers: Sequence[tuple[int, int]] = ()
    """For shadows and their sources: ledgers in order, each with its number of entries."""
    told: Mapping[str, Mapping[str, Place]] = field(default_factory=dict)
    """Per subscription replicated by snapshots: per origin, up to where this region told the others that everything is
    acknowledged."""
    unchained: frozenset[str] = frozenset()
    """Origins that run Apache Pulsar. They send each message to every region themselves, and do not say which ones they
    withhold or have given up sending: a region may never have been meant to get what it lacks."""

    @property
    def gave_back_compacted(self) -> bool:
        """Some trimmed entries may have been passed unacknowledged because the view did not contain them, and no record
        says which."""
        return EARLIEST not in (self.trimmed_to, self.compacted_to)


@dataclass(frozen=True, slots=True)
class RegionState:
    """One region at one snapshot."""

    region: str
    snapshot: str
    taken_ms: int
    topics: Mapping[str, TopicState]
    """By name, without the shadows."""
    shadows: Mapping[str, TopicState] = field(default_factory=dict)
    """By name. A shadow is compared with its source in the same region, and with nothing else."""


@dataclass(frozen=True, slots=True)
class PulsarCursor:
    """A subscription in a region of Apache Pulsar, in that region's own ids."""

    replicated: bool
    mark_delete: Place
    deleted: tuple[Range, ...] = ()
    """Ranges acknowledged beyond ``mark_delete``."""


@dataclass(frozen=True, slots=True)
class PulsarTopic:
    """A topic in a region of Apache Pulsar."""

    end: Place
    """Its last entry."""
    links: Mapping[str, bool] = field(default_factory=dict)
    """Other regions to which it replicates the topic: whether it is connected."""
    cursors: Mapping[str, PulsarCursor] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PulsarRegion:
    """An Apache Pulsar region at S1 and S2: those topics that a Meridian region replicates to it and that it has."""

    earlier: Mapping[str, PulsarTopic] = field(default_factory=dict)
    later: Mapping[str, PulsarTopic] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class World:
    """All regions at the two snapshots S1 (``earlier``) and S2 (``later``), at least ``max_lag_ms`` apart."""

    asked: tuple[str, ...]
    earlier: Mapping[str, RegionState]
    later: Mapping[str, RegionState]
    unreachable: Mapping[str, str]
    """Regions that did not answer at S1 or at S2, each with a sentence that says why."""
    max_lag_ms: int
    pulsar: Mapping[str, PulsarRegion] = field(default_factory=dict)
    """Named regions that run Apache Pulsar; those that did not answer are empty, and in ``unreachable``. They export
    nothing, so they are in none of the other fields."""

    @property
    def named(self) -> tuple[str, ...]:
        """Every region that was named, for people."""
        return *self.asked, *self.pulsar

    def topics(self) -> list[str]:
        """Every topic some region listed at S2, sorted."""
        return sorted({topic for state in self.later.values() for topic in state.topics})

    def regions_of(self, topic: str) -> list[str]:
        """The asked regions that hold the topic or that some region replicates it to, in the order asked."""
        named = set()
        for region, state in self.later.items():
            if topic in state.topics:
                named |= {region, *state.topics[topic].links}
        return [region for region in self.asked if region in named]

    def replicated_to(self, topic: str) -> set[str]:
        """Regions of the topic, asked or not: those that hold it, and those they replicate it to."""
        named = set()
        for moment in (self.earlier, self.later):
            for region, state in moment.items():
                if topic in state.topics:
                    named |= {region, *state.topics[topic].links}
        return named

    def not_asked(self, topic: str) -> list[str]:
        """Regions of the topic that this check was not asked to cover, sorted."""
        return sorted(self.replicated_to(topic) - set(self.named))

    def not_read(self, topic: str) -> list[str]:
        """Regions that may hold evidence about the topic and were not read to the end, sorted: regions of the topic,
        and former ones of which entries are on record."""
        named = self.replicated_to(topic)
        for state in self.later.values():
            if topic in state.topics:
                named |= {*state.topics[topic].last_origins, *state.topics[topic].joined}
        return sorted(named - (self.later.keys() - self.unreachable.keys()))

    def subscriptions(self, topic: str) -> list[str]:
        """Subscriptions of the topic that some region replicated at both snapshots, sorted."""
        return sorted(
            {
                name
                for region in self.later
                for name, cursor in self.cursors(region, topic, self.later).items()
                if cursor.replicated and name in self.cursors(region, topic, self.earlier)
            }
        )

    @staticmethod
    def cursors(region: str, topic: str, moment: Mapping[str, RegionState]) -> Mapping[str, Cursor]:
        """A region's cursors of a topic at ``world.earlier`` or ``world.later``; empty if it has no such topic."""
        state = moment.get(region)
        found = state.topics.get(topic) if state else None
        return found.cursors if found else {}
