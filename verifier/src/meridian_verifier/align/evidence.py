# SPDX-License-Identifier: Apache-2.0
"""All regions' reports about one origin's entries of one topic, in one set of coordinates: the input of the rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from meridian_verifier.align.coordinates import Coordinates
from meridian_verifier.align.facts import EARLIEST, Place, World
from meridian_verifier.align.findings import RANGES_SHOWN, Finding, Reason
from meridian_verifier.align.intervals import EMPTY, IntervalSet, Keys, Mask, union

Holder = tuple[str, str]
"""``(region, subscription)``."""


class Partial(NamedTuple):
    """A partly acked batch: bit i set = message i is acked (R18)."""

    size: int
    bits: int


@dataclass(frozen=True, slots=True)
class Acked:
    """The acks that a region reports."""

    full: IntervalSet = field(default_factory=lambda: EMPTY)
    """Whole entries, those below the floor (R11) included."""
    partial: Mapping[int, Partial] = field(default_factory=dict)


NOTHING = Acked()


@dataclass(frozen=True, slots=True)
class Stored:
    """The origin's entries in one region, in the order of that region's log. Markers are left out."""

    keys: Keys
    local: Keys
    prev: Keys
    checksum: Keys
    stored_ms: Keys
    elsewhere: int
    """How many of them have another position than at their origin."""


@dataclass(frozen=True, slots=True)
class Known:
    """The origin's entries that at least one region holds: sorted, each once. Markers are left out."""

    keys: Keys
    prev: Keys
    messages: Keys
    publish_ms: Keys
    withheld: Mapping[str, Mask]
    """Per region: which entries ``replicate_to`` withholds from it. The origin is never excluded from its own."""

    def stretches(self) -> Keys:
        """Numbers the stretches of the origin's chain: an entry begins a stretch when it says that it follows something
        earlier than the known entry before it, or nothing at all (R5). Entries that it skipped may come late."""
        begins = self.prev == Coordinates.before_ledger(self.keys)
        begins[1:] |= self.prev[1:] < self.keys[:-1]
        return np.cumsum(begins)

    def meant_for(self, region: str) -> Mask:
        """The entries that this region should hold."""
        excluded = self.withheld.get(region)
        return np.ones(len(self.keys), dtype=np.bool_) if excluded is None else ~excluded


@dataclass(frozen=True, slots=True)
class Evidence:
    """One topic, one origin."""

    topic: str
    origin: str
    world: World
    coordinates: Coordinates
    known: Known
    stored: Mapping[str, Stored]
    earlier: Mapping[Holder, Acked]
    """Progress at S1."""
    later: Mapping[Holder, Acked]
    """Progress at S2."""
    firsthand: Mapping[Holder, Acked]
    """First-hand acks at S2."""
    dropped: Mapping[Holder, IntervalSet]
    """Drops at S2."""
    passed: Mapping[Holder, IntervalSet]
    """Ranges that the cursor had passed at S2, in that region's **local** keys."""
    compacted: Mapping[Holder, IntervalSet]
    """Ranges that the cursor may have passed by S2 unacked because its compacted view lacks them. Local keys."""

    @property
    def has_chain(self) -> bool:
        """Whether the origin says which of its entries each region should have."""
        return not any(
            self.topic in state.topics and self.origin in state.topics[self.topic].unchained
            for state in self.world.later.values()
        )

    def place(self, region: str, moment: str, default: Place = EARLIEST) -> int:
        """Key of the last entry of this origin that ``region`` says it stored, at ``"earlier"`` or ``"later"``."""
        state = (self.world.earlier if moment == "earlier" else self.world.later).get(region)
        topic = state.topics.get(self.topic) if state else None
        place = topic.last_origins.get(self.origin, default) if topic else default
        return self.coordinates.key(*place)

    def place_key(self, places: Mapping[str, Place]) -> int:
        """Key of this origin's place in such a map."""
        return self.coordinates.key(*places.get(self.origin, EARLIEST))

    def high_water(self, region: str) -> int:
        """Key up to which the region has this origin's entries at S2: above it is lag, below it a hole is a loss
        (R62)."""
        held = self.stored.get(region)
        seen = int(held.keys.max()) if held and len(held.keys) else self.coordinates.key(*EARLIEST)
        return max(seen, self.place(region, "later"))

    def low_water(self, region: str) -> int:
        """Up to here the region need not hold anything except expected entries: before its join point, or trimmed.

        An older broker reports only in local coordinates what it trimmed. The chain translates that: everything before
        the first remaining entry, in the origin's order, used to be there.
        """
        state = self.world.later[region].topics[self.topic]
        joined = self.joined(region)
        if state.trimmed_origins is not None:
            return max(joined, self.coordinates.key(*state.trimmed_origins.get(self.origin, EARLIEST)))
        if state.trimmed_to == EARLIEST:
            return joined
        held = self.stored.get(region)
        if held is None or not len(held.keys):
            return max(joined, self.high_water(region))
        return max(joined, int(held.prev[np.argmin(held.keys)]))

    def joined(self, region: str) -> int:
        """Up to here the region was never meant to have entries, though some may have come later (R21)."""
        state = self.world.later[region].topics[self.topic]
        return self.coordinates.key(*state.joined.get(self.origin, EARLIEST))

    def awaited(self, region: str) -> IntervalSet:
        """Ranges where the region says it is waiting for entries that it lacks (R5)."""
        holes = self.world.later[region].topics[self.topic].holes.get(self.origin, ())
        after = [self.coordinates.key(*one) for one, _ in holes]
        return IntervalSet.of(after, [self.coordinates.key(*before) - 1 for _, before in holes])

    def skipped(self, region: str) -> IntervalSet:
        """Entries that an administrator dropped from the origin's backlog for the region: they are not sent there."""
        state = self.world.later.get(self.origin)
        topic = state.topics.get(self.topic) if state else None
        stretches = topic.skipped.get(region, ()) if topic else ()
        after = [self.coordinates.key(*one) for one, _ in stretches]
        return IntervalSet.of(after, [self.coordinates.key(*upto) for _, upto in stretches])

    def dropped_anywhere(self, region: str) -> IntervalSet:
        """Entries that the region dropped for at least one subscription."""
        return union(ranges for (holder, _), ranges in self.dropped.items() if holder == region)

    def dropped_everywhere(self, subscription: str) -> IntervalSet:
        """Entries that every reachable region dropped for the subscription: a floor also covers those (R11)."""
        regions = [region for region, state in self.world.later.items() if self.topic in state.topics]
        common = self.dropped.get((regions[0], subscription), EMPTY) if regions else EMPTY
        for region in regions[1:]:
            common &= self.dropped.get((region, subscription), EMPTY)
        return common

    def finding(
        self, reason: Reason, subscription: str, source: str, target: str, chosen: Mask, messages: int | None = None
    ) -> Finding | None:
        """The finding about the known entries that ``chosen`` marks; None if there are none."""
        indexes = np.flatnonzero(chosen)
        if not len(indexes):
            return None
        times = self.known.publish_ms[indexes]
        return Finding(
            reason,
            self.topic,
            subscription,
            self.origin,
            source,
            target,
            len(indexes),
            int(self.known.messages[indexes].sum()) if messages is None else messages,
            int(times.min()),
            int(times.max()),
            self._ranges(indexes),
        )

    def _ranges(self, indexes: Keys) -> tuple[tuple[Place, Place], ...]:
        """Runs of neighbours in the origin's chain as ranges; the place before the first known entry is the start."""
        starts = np.flatnonzero(np.append(True, np.diff(indexes) > 1))
        ends = np.append(starts[1:], len(indexes)) - 1
        shown = []
        for start, end in zip(starts[:RANGES_SHOWN], ends[:RANGES_SHOWN], strict=True):
            first = int(indexes[start])
            after = self.coordinates.position(int(self.known.keys[first - 1])) if first else EARLIEST
            shown.append((after, self.coordinates.position(int(self.known.keys[indexes[end]]))))
        return tuple(shown)
