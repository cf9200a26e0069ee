# SPDX-License-Identifier: Apache-2.0
"""Drops are kept by cause, merge by union, and cannot become acks (R14)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from meridian_broker.positions import EARLIEST, Cause, Dropped, Position, Progress

PLACES = [EARLIEST] + [Position(ledger, entry) for ledger in range(2) for entry in range(-1, 4)]
DROPS = [
    (cause, region, after, upto)
    for cause in Cause
    for region in ("us-east", "us-west")
    for after in PLACES
    for upto in PLACES
    if after < upto and upto.entry >= 0
]
bounds = st.sampled_from([place for place in PLACES if place.entry >= 0 or place == EARLIEST])
"""Bounds of a rewind are entries of the chain."""
plans = st.lists(st.sampled_from(DROPS), max_size=8)
many = settings(max_examples=500, deadline=None)


def build(plan: list[tuple[Any, ...]]) -> Dropped:
    dropped = Dropped()
    for drop in plan:
        dropped.add(*drop)
    return dropped


@many
@given(plans)
def test_agrees_with_the_list_of_drops(plan: list[tuple[Any, ...]]) -> None:
    dropped = build(plan)
    for region in ("us-east", "us-west"):
        for place in PLACES[1:]:
            causes = {cause for cause, where, after, upto in plan if where == region and after < place <= upto}
            assert dropped.cause(region, place) == min(causes, default=None)
            assert dropped.contains(region, place) == bool(causes)
    assert build(list(dropped.runs())) == dropped


@many
@given(plans, plans, plans)
def test_join(one: list[tuple[Any, ...]], two: list[tuple[Any, ...]], three: list[tuple[Any, ...]]) -> None:
    left = build(one)
    changed = left.join(build(two))
    assert changed == (left != build(one))
    assert not left.join(build(one))
    left.join(build(three))
    tail = build(three)
    tail.join(build(two))
    tail.join(build(one))
    assert left == tail == build([*two, *three, *one])
    assert left.encode() == tail.encode()


@many
@given(plans)
def test_encoding_round_trip(plan: list[tuple[Any, ...]]) -> None:
    dropped = build(plan)
    assert Dropped.decode(dropped.encode()) == dropped


@many
@given(plans, st.binary(max_size=20), st.integers(0, 1 << 16))
def test_garbage_is_refused_with_value_error(plan: list[tuple[Any, ...]], data: bytes, at: int) -> None:
    good = build(plan).encode()
    at %= len(good) + 1
    for damaged in (b"\x01" + data, good[:at], good[:at] + data + good[at:], good[:at] + data):
        try:
            dropped = Dropped.decode(damaged)
        except ValueError:
            continue
        assert Dropped.decode(dropped.encode()) == dropped


@many
@given(plans, bounds, bounds, plans)
def test_a_rewind_undoes_the_drops_it_rules_and_nothing_else(
    plan: list[tuple[Any, ...]], one: Position, two: Position, later: list[tuple[Any, ...]]
) -> None:
    low, high = sorted((one, two))
    dropped, before = build(plan), build(plan)
    changed = dropped.take_back({"us-west": (low, high)})
    places = [place for place in PLACES if place.entry >= 0]
    for place in places:
        assert dropped.cause("us-east", place) == before.cause("us-east", place)
        ruled = low < place <= high
        assert dropped.cause("us-west", place) == (None if ruled else before.cause("us-west", place))
        assert dropped.contains("us-west", place) == (dropped.cause("us-west", place) is not None)
    if any(low < place <= high and before.contains("us-west", place) for place in places):
        assert changed
    assert Dropped.decode(dropped.encode()) == dropped
    dropped.join(build(later))
    for place in places:
        assert dropped.contains("us-west", place) == (dropped.cause("us-west", place) is not None)


def test_drops_cannot_be_merged_as_acks() -> None:
    dropped = Dropped()
    dropped.add(Cause.TTL, "us-east", EARLIEST, Position(1, 1))
    progress = Progress()
    with pytest.raises(AttributeError):
        progress.join(dropped)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"format|broken"):
        Progress.decode(b"\x01" + dropped.encode())


def test_a_newer_format_of_drops_is_refused_with_an_explanation() -> None:
    with pytest.raises(ValueError, match=r"newer version of Meridian \(format 2, this one reads up to 1\)"):
        Dropped.decode(b"\x02")


def test_the_format_is_unchanged() -> None:
    dropped = Dropped()
    dropped.add(Cause.LOST, "us-east", EARLIEST, Position(7, 3))
    dropped.add(Cause.TTL, "us-east", Position(7, 5), Position(7, 9))
    assert dropped.encode().hex() == "01020775732d656173740100000107010001060307" + "75732d656173740408040" + "0"
