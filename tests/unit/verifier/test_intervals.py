# SPDX-License-Identifier: Apache-2.0
"""Interval sets against plain sets of numbers, and coordinates against tuples."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from meridian_verifier.align.coordinates import Coordinates
from meridian_verifier.align.intervals import EMPTY, IntervalSet, keys_of, union

ranges = st.lists(st.tuples(st.integers(-1, 40), st.integers(-1, 40)), max_size=12)
many = settings(max_examples=500, deadline=None)
UNIVERSE = keys_of(range(-2, 43))


def make(pairs: list[tuple[int, int]]) -> IntervalSet:
    return IntervalSet.of([after for after, _ in pairs], [upto for _, upto in pairs])


def members(pairs: list[tuple[int, int]]) -> set[int]:
    return {number for after, upto in pairs for number in range(after + 1, upto + 1)}


def shown(one: IntervalSet) -> set[int]:
    return set(one.within(UNIVERSE).tolist())


@given(ranges)
@many
def test_ranges_in_any_order_make_one_canonical_set(pairs: list[tuple[int, int]]) -> None:
    one = make(pairs)
    assert shown(one) == members(pairs)
    assert one == make(list(reversed(pairs)))
    assert all(one.after < one.upto)
    assert all(one.upto[:-1] < one.after[1:])


@given(ranges, ranges)
@many
def test_union_difference_and_intersection_are_those_of_sets(
    left: list[tuple[int, int]], right: list[tuple[int, int]]
) -> None:
    one, two = make(left), make(right)
    assert shown(one | two) == members(left) | members(right)
    assert shown(one - two) == members(left) - members(right)
    assert shown(one & two) == members(left) & members(right)
    assert (one - two) | (one & two) == one
    assert union([one, two, EMPTY]) == one | two


places = st.tuples(st.sampled_from((-1, 7, 8, 1 << 52, (1 << 63) - 1)), st.integers(-1, 1 << 39))


@given(st.lists(places, min_size=1, max_size=20))
@many
def test_keys_keep_the_order_of_positions_and_map_back(some: list[tuple[int, int]]) -> None:
    coordinates = Coordinates.over([ledger for ledger, _ in some])
    keys = coordinates.keys([ledger for ledger, _ in some], [entry for _, entry in some])
    assert [coordinates.position(int(key)) for key in keys] == some
    assert [some[at] for at in np.argsort(keys, kind="stable")] == sorted(some)


def test_after_everything_is_after_everything() -> None:
    latest = (1 << 63) - 1
    coordinates = Coordinates.over([5, latest])
    assert coordinates.key(5, latest) < coordinates.key(latest, 0) < coordinates.key(latest, latest)
