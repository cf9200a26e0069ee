# SPDX-License-Identifier: Apache-2.0
"""Stamps are totally ordered, and the smaller region wins a tie; clocks only go forward."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import example, given, settings
from hypothesis import strategies as st
from meridian_broker.positions import ZERO, HybridClock, Stamp

stamps = st.builds(Stamp, st.integers(0, 3), st.integers(0, 3), st.sampled_from(["", "a", "b", "eu-central", "ä"]))
many = settings(max_examples=500, deadline=None)


@many
@given(stamps, stamps, stamps)
def test_the_order_is_total(one: Stamp, two: Stamp, three: Stamp) -> None:
    assert one.beats(two) + two.beats(one) + (one == two) == 1
    if one.beats(two) and two.beats(three):
        assert one.beats(three)
    assert (one > two, one < two, one >= two, one <= two) == (
        one.beats(two),
        two.beats(one),
        not two.beats(one),
        not one.beats(two),
    )


@many
@given(st.lists(stamps, min_size=1))
def test_sorting_and_max_follow_it(some: list[Stamp]) -> None:
    assert all(not early.beats(late) for early, late in pairwise(sorted(some)))
    assert not any(stamp.beats(max(some)) for stamp in some)


def test_the_later_time_wins_then_the_counter_then_the_smaller_region() -> None:
    assert Stamp(2, 0, "b").beats(Stamp(1, 9, "a"))
    assert Stamp(1, 1, "b").beats(Stamp(1, 0, "a"))
    assert Stamp(1, 1, "a").beats(Stamp(1, 1, "b"))
    assert not Stamp(1, 1, "a").beats(Stamp(1, 1, "a"))
    assert Stamp(1, 0, "zz") > ZERO


@many
@given(stamps)
def test_encoding_round_trip(stamp: Stamp) -> None:
    assert Stamp.decode(stamp.encode()) == stamp


whole = st.builds(Stamp, st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1), st.text("ab@.-ä", min_size=1))


@many
@example(Stamp(2**64 - 1, 2**64 - 1, "a"))
@given(whole)
def test_printed_stamps_are_read_back(stamp: Stamp) -> None:
    assert Stamp.parse(str(stamp)) == stamp


@many
@given(st.binary(max_size=30))
def test_garbage_is_refused_with_value_error(data: bytes) -> None:
    try:
        stamp = Stamp.decode(data)
    except ValueError:
        return
    assert stamp.encode() == data


@many
@given(st.lists(st.tuples(st.integers(0, 50), st.none() | stamps, st.booleans()), max_size=20))
def test_stamps_only_grow(moves: list[tuple[int, Stamp | None, bool]]) -> None:
    now = 0
    clock = HybridClock(lambda: now, "a")
    last = ZERO
    for time, stamp, observe in moves:
        now = time  # the wall clock may be set back
        if observe and stamp is not None:
            clock.observe(stamp, 1000)
            continue
        given = clock.next(stamp)
        assert stamp is None or given > stamp
        assert given.time_ms >= now
        if stamp is None or stamp.time_ms <= now:
            assert given > last
            last = given


def test_the_clock_follows_the_wall_clock_and_counts_on_while_that_stands_still() -> None:
    now = 1000
    clock = HybridClock(lambda: now, "a")
    assert clock.next() == Stamp(1000, 0, "a")
    assert clock.next() == Stamp(1000, 1, "a")
    now = 900
    assert clock.next() == Stamp(1000, 2, "a")
    now = 1001
    assert clock.next() == Stamp(1001, 0, "a")


def test_after_a_restart_it_continues_after_the_last_stamp() -> None:
    clock = HybridClock(lambda: 900, "a", Stamp(1000, 4, "a"))
    assert clock.next() == Stamp(1000, 5, "a")


def test_a_timestamp_in_the_future_to_come_after_does_not_advance_the_clock() -> None:
    clock = HybridClock(lambda: 1000, "a")
    future = Stamp(9_000_000, 3, "b")
    assert clock.next(future) == Stamp(9_000_000, 4, "a")
    assert clock.next() == Stamp(1000, 1, "a")


def test_a_stamp_too_far_ahead_is_ignored() -> None:
    clock = HybridClock(lambda: 1000, "a")
    assert not clock.observe(Stamp(1501, 0, "b"), 500)
    assert clock.next() == Stamp(1000, 0, "a")
    assert clock.observe(Stamp(1500, 7, "b"), 500)
    assert clock.next() == Stamp(1500, 8, "a")
    assert clock.observe(Stamp(3, 0, "b"), 500)
    assert clock.next() == Stamp(1500, 9, "a")
