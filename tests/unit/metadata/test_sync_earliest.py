# SPDX-License-Identifier: Apache-2.0
"""The earliest of many states are found without reading the others."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from meridian_broker.metadata.sync import earliest
from meridian_broker.metadata.sync.earliest import Earliest

moments = st.tuples(st.integers(0, 5), st.integers(0, 2))
steps = st.lists(st.tuples(st.sampled_from("abcdef"), st.none() | moments), max_size=60)


@given(steps, moments, st.integers(1, 7))
def test_it_behaves_like_a_sorted_list(
    taken: list[tuple[str, tuple[int, int] | None]], until: tuple[int, int], most: int
) -> None:
    found, wanted = Earliest(), dict[str, tuple[int, int]]()
    for path, at in taken:
        found.set(path, at)
        if at is None:
            wanted.pop(path, None)
        else:
            wanted[path] = at
        ordered = sorted((at, path) for path, at in wanted.items())
        assert len(found) == len(ordered)
        assert found.first() == (ordered[0][0] if ordered else None)
        due = [path for at, path in ordered if at <= until][:most]
        assert found.upto(until, most) == due
        assert found.upto(until, most) == due


def test_a_path_with_a_repeated_moment_is_found_once() -> None:
    found = Earliest()
    for at in ((1, 0), (2, 0), (1, 0)):
        found.set("one", at)
    assert found.upto((9, 0), 9) == ["one"]


def test_past_moments_take_no_room() -> None:
    found = Earliest()
    for number in range(10 * earliest.SLACK):
        found.set("one", (number, 0))
    assert len(found._heap) <= earliest.SLACK + 2
