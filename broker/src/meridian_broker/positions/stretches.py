# SPDX-License-Identifier: Apache-2.0
"""Stretches ``(after, upto]`` of one origin's stream, as ascending lists without overlaps.

Intersects and subtracts lists, and reads the acks of several layers together.
"""

from __future__ import annotations

from collections.abc import Iterable

from meridian_broker.positions.ackset import AckSet
from meridian_broker.positions.layer import Layer
from meridian_broker.positions.position import EARLIEST, Position

Stretch = tuple[Position, Position]


def both(some: list[Stretch], others: list[Stretch]) -> list[Stretch]:
    """The positions in both lists."""
    found: list[Stretch] = []
    at = 0
    for after, upto in some:
        while at < len(others) and others[at][1] <= after:
            at += 1
        number = at
        while number < len(others) and others[number][0] < upto:
            low, high = max(after, others[number][0]), min(upto, others[number][1])
            if low < high:
                found.append((low, high))
            number += 1
    return found


def without(some: list[Stretch], others: Iterable[Stretch]) -> list[Stretch]:
    """The positions in ``some`` that are in none of ``others``, which may be in any order and overlap."""
    gaps: list[Stretch] = []
    end: Position | None = None
    for after, upto in sorted(others):
        if end is None:
            gaps.append((_BELOW_ALL, after))
        elif after > end:
            gaps.append((end, after))
        end = upto if end is None else max(end, upto)
    if end is None:
        return list(some)
    return both(some, [*gaps, (end, _ABOVE_ALL)])


def acked_over(region: str, upto: Position, base: AckSet | None, newest_first: list[Layer]) -> list[Stretch]:
    """The entries of a region up to a position that are acked whenever they were published: in every layer that may be
    the newest to rule them."""
    found: list[Stretch] = []
    undecided = [(EARLIEST, upto)] if upto > EARLIEST else []
    for layer in newest_first:
        acked = _runs(layer.acks.get(region))
        if layer.publish_time_ms is not None:
            undecided = both(undecided, acked)
        if layer.rules_all_by_time:
            found += undecided
            undecided = []
        rule = layer.rules.get(region)
        if rule is not None:
            found += both(both(undecided, [rule]), acked)
            undecided = without(undecided, [rule])
    return sorted(found + both(undecided, _runs(base)))


def claimed(stretches: list[Stretch]) -> AckSet:
    """A set that claims these stretches."""
    acks = AckSet()
    for after, upto in stretches:
        if after == EARLIEST:
            acks.raise_floor(upto)
        elif upto.entry >= 0:
            acks.claim(after, upto)
    return acks


def _runs(acks: AckSet | None) -> list[Stretch]:
    return [] if acks is None else list(acks.runs())


_BELOW_ALL = Position(-2, -1)
_ABOVE_ALL = Position(1 << 64, 0)
