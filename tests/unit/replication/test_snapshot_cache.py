# SPDX-License-Identifier: Apache-2.0
"""The snapshot cache: bounded, and thinned so that the snapshot found is never far behind (PIP-33)."""

from __future__ import annotations

import random
from bisect import bisect_right
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from meridian_broker.positions.position import LATEST, Position
from meridian_broker.replication.snapshots.cache import LEAST, SnapshotCache
from meridian_broker.wire.pulsar.markers import Snapshot


def snapshot(at: int) -> Snapshot:
    return Snapshot(str(at), place(at), ())


def place(at: int) -> Position:
    """The position of the entry with that many entries before it: each ledger has ten."""
    return Position(*divmod(at, 10))


def filled(most: int, distances: list[int]) -> SnapshotCache:
    cache, at = SnapshotCache(most), 0
    for distance in distances:
        at += distance
        cache.add(snapshot(at), at)
    return cache


def widest(cache: SnapshotCache) -> tuple[int, float]:
    """The widest gap and the average."""
    gaps = [later - earlier for (_, earlier), (_, later) in pairwise(cache.kept())]
    return max(gaps, default=0), sum(gaps) / max(len(gaps), 1)


@settings(max_examples=500)
@given(st.integers(LEAST, 12), st.lists(st.integers(1, 30), max_size=80))
def test_no_gap_is_wider_than_twice_the_average(most: int, distances: list[int]) -> None:
    cache = filled(most, distances)
    assert len(cache) == len(cache.kept()) == min(most, len(distances))
    if distances:
        gap, average = widest(cache)
        assert gap <= max(2 * average, *distances)
        assert [at for _, at in cache.kept()][:: len(cache) - 1 or 1] == sorted({distances[0], sum(distances)})


@settings(max_examples=500)
@given(
    st.integers(LEAST, 6),
    st.lists(st.tuples(st.sampled_from(["add", "add", "add", "again", "take"]), st.integers(0, 60)), max_size=60),
)
def test_the_newest_kept_snapshot_is_taken(most: int, steps: list[tuple[str, int]]) -> None:
    """In whatever order snapshots are added or repeated."""
    cache = SnapshotCache(most)
    for step, at in steps:
        before = [kept for _, kept in cache.kept()]
        if step == "take":
            found = cache.take(place(at))
            passed = [kept for kept in before if kept <= at]
            assert found == (snapshot(passed[-1]) if passed else None)
            assert [kept for _, kept in cache.kept()] == before[len(passed) :]
        else:
            cache.add(snapshot(at), at)
            added = sorted({*before, at})
            kept = [one for _, one in cache.kept()]
            assert len(cache) == len(kept) == min(len(added), most)
            assert set(kept) <= set(added) and kept == sorted(kept)
            if len(added) > most:  # the removed one left the smallest gap
                (gone,) = set(added) - set(kept)
                gaps = {added[n]: added[n + 1] - added[n - 1] for n in range(1, len(added) - 1)}
                assert gaps[gone] == min(gaps.values())
        assert cache.first == (cache.kept()[0][0] if len(cache) else None)


def test_a_million_snapshots_in_ten_thousand_places() -> None:
    """As many as a topic takes in twelve days, scaled down to a tenth; ``bench/snapshots`` measures all of them."""
    chosen = random.Random(33)
    distances = [chosen.randint(1, 1000) for _ in range(100_000)]
    cache = filled(1000, distances)
    gap, average = widest(cache)
    assert gap <= 2 * average
    kept = [at for _, at in cache.kept()]
    for _ in range(1000):
        mark_delete = chosen.randint(kept[0], kept[-1] + 1000)
        found = kept[bisect_right(kept, mark_delete) - 1]
        assert mark_delete - found <= max(2 * average, 1000)
    mark_delete = chosen.choice(range(kept[0], kept[-1]))
    assert cache.take(place(mark_delete)) == snapshot(kept[bisect_right(kept, mark_delete) - 1])
    assert cache.take(LATEST) == snapshot(kept[-1]) and len(cache) == 0


@pytest.mark.parametrize("most", [LEAST, 30])
def test_what_the_cache_keeps_beside_the_snapshots_is_bounded(most: int) -> None:
    cache = SnapshotCache(most)
    for at in range(0, 10_000, 2):
        cache.add(snapshot(at), at)
        cache.add(snapshot(at - 1), at - 1)
        if at % 3 == 0:
            cache.take(place(at - 10))
        assert len(cache._ranks) <= 4 * most + 3
    assert len(cache) <= most


def test_a_cache_needs_room_for_three() -> None:
    assert len(filled(0, [1] * 10)) == LEAST
