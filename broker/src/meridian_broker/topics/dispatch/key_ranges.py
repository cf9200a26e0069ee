# SPDX-License-Identifier: Apache-2.0
"""Key ownership among the consumers of a Key_Shared subscription.

A key's hash, modulo 65,536, is its *slot*. Consumers own slots in one of two ways:

- ``AutoSplit``: consistent hashing. Every consumer has ``POINTS`` points on a ring of slots and owns the arc before
  each, so a consumer that joins or leaves moves only its own part of the slots.
- ``StickyRanges``: each consumer names its slots. No two may name the same slot; a slot that none names has no owner.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Hashable
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

import mmh3

from meridian_broker.topics.errors import ConsumerAssignError

SLOTS: Final = 65536
"""Pulsar's number, because sticky ranges refer to it."""
POINTS: Final = 100
"""Points of one consumer on the ring: with three consumers, their parts differ by about a tenth."""
RANGES_MAX: Final = 1000
"""Ranges that one sticky consumer may name. The frame of SUBSCRIBE is bounded, and so must be what is kept of it."""

C = TypeVar("C", bound=Hashable)


class KeySharedPolicy(NamedTuple):
    """How a consumer wants keys to be distributed (KeySharedMeta of SUBSCRIBE)."""

    sticky: bool = False
    out_of_order: bool = False
    """A key may move to another consumer although its earlier messages are not acknowledged."""
    ranges: tuple[tuple[int, int], ...] = ()
    """Sticky: slots owned, both ends included."""

    def fits(self, other: KeySharedPolicy) -> bool:
        """Whether consumers with the two policies can share one subscription."""
        return self[:2] == other[:2]

    def __str__(self) -> str:
        order = ", out of order allowed" if self.out_of_order else ""
        return ("sticky ranges" if self.sticky else "auto split") + order


class Split(Protocol[C]):
    """Assignment of slots to consumers."""

    def join(self, consumer: C, name: str, ranges: tuple[tuple[int, int], ...]) -> None:
        """:raises ConsumerAssignError: its ranges are not valid, or overlap another consumer's. Nothing has changed
        then.
        """
        ...

    def leave(self, consumer: C) -> None: ...

    def owner(self, slot: int) -> C | None: ...


def slot_of(key_hash: int) -> int:
    """The slot of a key's hash. Slot 0 is never used: Pulsar reserves it for "unknown"."""
    return key_hash % SLOTS or 1


class AutoSplit(Generic[C]):
    """Consistent hashing."""

    def __init__(self) -> None:
        self._points: list[tuple[int, int, int]] = []
        """(slot, tie breaker, number of the consumer), sorted."""
        self._numbers: dict[int, C] = {}
        self._places: dict[C, tuple[int, str, int]] = {}
        self._next = 0

    def join(self, consumer: C, name: str, ranges: tuple[tuple[int, int], ...] = ()) -> None:
        del ranges
        taken = {copy for _, other, copy in self._places.values() if other == name}
        copy = next(number for number in range(len(taken) + 1) if number not in taken)
        number, self._next = self._next, self._next + 1
        self._numbers[number] = consumer
        self._places[consumer] = (number, name, copy)
        for point in self._points_of(name, copy):
            insort(self._points, (*point, number))

    def leave(self, consumer: C) -> None:
        number, *_ = self._places.pop(consumer)
        del self._numbers[number]
        self._points = [point for point in self._points if point[2] != number]

    def _points_of(self, name: str, copy: int) -> list[tuple[int, int]]:
        """The points depend on the name only, so a consumer that reconnects gets its old slots; ``copy``
        distinguishes consumers of the same name.
        """
        hashes = (mmh3.hash(f"{name}\0{copy}\0{point}", 0, signed=False) for point in range(POINTS))
        return [(hashed % SLOTS, hashed) for hashed in hashes]

    def owner(self, slot: int) -> C | None:
        points = self._points
        if not points:
            return None
        at = bisect_left(points, (slot, -1, -1))
        return self._numbers[points[at if at < len(points) else 0][2]]


class StickyRanges(Generic[C]):
    """Slots as named by the consumers."""

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int, C]] = []
        self._starts: list[int] = []

    def join(self, consumer: C, name: str, ranges: tuple[tuple[int, int], ...]) -> None:
        _check_ranges(name, ranges)
        for start, end in ranges:
            at = bisect_left(self._starts, start)
            for first, last, _ in self._ranges[max(at - 1, 0) : at + 1]:
                if first <= end and start <= last:
                    raise ConsumerAssignError(
                        f"{start}-{end} of consumer {name!r} overlaps {first}-{last}, which another consumer has: "
                        "choose other ranges, or close that consumer"
                    )
        self._set([*self._ranges, *((start, end, consumer) for start, end in ranges)])

    def leave(self, consumer: C) -> None:
        self._set([kept for kept in self._ranges if kept[2] is not consumer])

    def _set(self, ranges: list[tuple[int, int, C]]) -> None:
        self._ranges = sorted(ranges, key=lambda one: one[0])
        self._starts = [start for start, _, _ in self._ranges]

    def owner(self, slot: int) -> C | None:
        at = bisect_left(self._starts, slot + 1) - 1
        if at < 0:
            return None
        _, last, consumer = self._ranges[at]
        return consumer if slot <= last else None


def _check_ranges(name: str, ranges: tuple[tuple[int, int], ...]) -> None:
    """:raises ConsumerAssignError: there are none or too many, or one is reversed, out of bounds or overlaps
    another.
    """
    if not 0 < len(ranges) <= RANGES_MAX:
        raise ConsumerAssignError(f"consumer {name!r} names {len(ranges)} key ranges: name 1 to {RANGES_MAX}")
    before = -1
    for start, end in sorted(ranges):
        if not before < start <= end < SLOTS:
            raise ConsumerAssignError(
                f"{start}-{end} of consumer {name!r} is not a valid range: both ends must be in 0-{SLOTS - 1}, the "
                "first not above the last, and a consumer's ranges must not overlap"
            )
        before = end
