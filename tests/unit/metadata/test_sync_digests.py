# SPDX-License-Identifier: Apache-2.0
"""Two regions find exactly the paths in which they differ, and read little else."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from meridian_broker.metadata.sync.digests import DigestTree, Place, compare, forgotten, place_of, summary_of
from meridian_broker.metadata.sync.stamped import BEGINNING, Stamped, moment
from meridian_broker.positions.clock import Stamp

many = settings(max_examples=500, deadline=None)
stamps = st.builds(Stamp, st.integers(1, 3), st.integers(0, 1), st.sampled_from(["eu", "us"]))
states = st.builds(Stamped, stamps, st.none() | st.sampled_from([b"1", b"2"]), st.integers(0, 1))
known = st.dictionaries(st.sampled_from([f"/p{n}" for n in range(6)]), states, max_size=4)


def tree_of(some: dict[str, Stamped]) -> DigestTree:
    tree = DigestTree()
    for path, state in some.items():
        tree.set(path, state)
    return tree


def differing(one: DigestTree, two: DigestTree) -> set[str]:
    """The paths in the ranges that differ."""
    places = [
        Place(bucket, part)
        for bucket in one.differing(two.buckets)
        for part, (mine, theirs) in enumerate(zip(one.parts(bucket), two.parts(bucket), strict=True))
        if mine != theirs
    ]
    return set(one.listing(places)) | set(two.listing(places))


def live(some: dict[str, Stamped]) -> dict[str, Stamped]:
    return {path: state for path, state in some.items() if state.value is not None}


@many
@given(known, known)
def test_digests_are_equal_exactly_if_values_are_and_follow_changes(
    one: dict[str, Stamped], two: dict[str, Stamped]
) -> None:
    here, there = tree_of(one), tree_of(two)
    assert (here.number == there.number) == (live(one) == live(two))
    wanted = {path for path in one.keys() | two.keys() if live(one).get(path) != live(two).get(path)}
    assert wanted <= differing(here, there)
    for path in one.keys() | two.keys():
        here.set(path, two.get(path))
    assert here.buckets == there.buckets
    places = [place_of(path) for path in one.keys() | two.keys()]
    assert here.listing(places) == {path: summary_of(state) for path, state in two.items()}


@many
@given(known, known, st.tuples(st.integers(0, 4), st.integers(0, 1)), st.tuples(st.integers(0, 4), st.integers(0, 1)))
def test_each_takes_what_is_newer_or_deleted(
    one: dict[str, Stamped], two: dict[str, Stamped], horizon: tuple[int, int], heard: tuple[int, int]
) -> None:
    here = {path: summary_of(state) for path, state in one.items()}
    there = {path: summary_of(state) for path, state in two.items()}
    taken = one | {path: two[path] for path in compare(here, there, BEGINNING).wanted}
    given_back = two | {path: one[path] for path in compare(there, here, BEGINNING).wanted}
    assert taken == given_back
    assert not any(some[path].beats(state) for some in (one, two) for path, state in taken.items() if path in some)
    for path in compare(here, there, horizon, heard).gone:
        assert BEGINNING < heard < horizon, "it knows every deletion itself, or never had what was deleted"
        assert path not in two
        assert one[path].value is not None
        assert moment(one[path].stamp) <= horizon
        assert forgotten(horizon).beats(one[path])


def test_ten_of_many_paths_cost_little() -> None:
    some = {f"/geo/tenants/t{n}": Stamped(Stamp(1, n, "us"), b"{}") for n in range(3000)}
    mine, theirs = tree_of(some), tree_of(some)
    for n in range(10):
        theirs.set(f"/geo/tenants/t{n}", Stamped(Stamp(2, n, "eu"), b"{}"))
    assert len(mine.differing(theirs.buckets)) <= 10
    assert len(differing(mine, theirs)) <= 20
