# SPDX-License-Identifier: Apache-2.0
"""Sets of entries as sorted, disjoint, half-open ranges ``(after, upto]`` over whole numbers.

A subscription's acked entries are a set, and sets of millions of entries are a few thousand ranges. All operations here
are sweeps over sorted arrays, so their cost follows the number of ranges, never the number of entries between them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Keys = NDArray[np.int64]
Mask = NDArray[np.bool_]


def keys_of(values: Iterable[int]) -> Keys:
    """The values as an array of keys."""
    return np.fromiter(values, dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class IntervalSet:
    """A set of keys. ``after[i] < upto[i] < after[i + 1]``: ranges that touch are one range."""

    after: Keys
    upto: Keys

    @classmethod
    def of(cls, after: Any, upto: Any) -> IntervalSet:
        """From ranges in any order, which may overlap or be empty."""
        starts, ends = np.asarray(after, dtype=np.int64), np.asarray(upto, dtype=np.int64)
        real = starts < ends
        starts, ends = starts[real], ends[real]
        if not len(starts):
            return EMPTY
        order = np.argsort(starts, kind="stable")
        starts, reach = starts[order], np.maximum.accumulate(ends[order])
        first = np.empty(len(starts), dtype=np.bool_)
        first[0] = True
        np.greater(starts[1:], reach[:-1], out=first[1:])
        last = np.append(first[1:], True)
        return cls(starts[first], reach[last])

    def __len__(self) -> int:
        """The number of ranges."""
        return len(self.after)

    def __bool__(self) -> bool:
        return len(self.after) > 0

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, IntervalSet):
            return NotImplemented
        return np.array_equal(self.after, other.after) and np.array_equal(self.upto, other.upto)

    def __or__(self, other: IntervalSet) -> IntervalSet:
        return union((self, other))

    def __sub__(self, other: IntervalSet) -> IntervalSet:
        return self._sweep(other, keep_other=False)

    def __and__(self, other: IntervalSet) -> IntervalSet:
        return self._sweep(other, keep_other=True)

    def _sweep(self, other: IntervalSet, *, keep_other: bool) -> IntervalSet:
        if not self or not other:
            return EMPTY if keep_other or not self else self
        bounds = np.unique(np.concatenate((self.after, self.upto, other.after, other.upto)))
        # Between two neighbouring bounds membership cannot change, so the upper one decides for the whole piece.
        pieces = bounds[1:]
        kept = self.holds(pieces) & (other.holds(pieces) == keep_other)
        return IntervalSet.of(bounds[:-1][kept], pieces[kept])

    def holds(self, keys: Keys) -> Mask:
        """Whether each key is in the set."""
        if not self:
            return np.zeros(len(keys), dtype=np.bool_)
        at = np.searchsorted(self.after, keys, side="left") - 1
        return (at >= 0) & (keys <= self.upto[np.maximum(at, 0)])

    def within(self, sorted_keys: Keys) -> Keys:
        """The sorted keys that are in the set."""
        return sorted_keys[self.holds(sorted_keys)]


def union(sets: Iterable[IntervalSet]) -> IntervalSet:
    """Everything that is in at least one of the sets."""
    filled = [one for one in sets if one]
    if not filled:
        return EMPTY
    if len(filled) == 1:
        return filled[0]
    return IntervalSet.of(np.concatenate([one.after for one in filled]), np.concatenate([one.upto for one in filled]))


EMPTY = IntervalSet(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))
"""No entry at all."""
