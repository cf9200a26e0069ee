# SPDX-License-Identifier: Apache-2.0
"""Many rewinds of one subscription: regions that were cut off have more together than each may make, and
the cost of an acknowledgement does not grow with them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from meridian_broker.positions import EARLIEST, ZERO, Position, Progress, Stamp
from meridian_broker.positions.layer import Layer
from meridian_broker.positions.layers import LAYERS_MAX, Layers
from meridian_broker.positions.runset import RunSet
from support.worlds.progress_model import RUNS

ENTRIES = 40
REWINDS = 2 * LAYERS_MAX
FIRST = 1000
US = "us"
Step = tuple[str, int, int]


def place(entry: int) -> Position:
    return Position(1, entry)


def published(entry: int) -> int:
    """Published in order, one each millisecond."""
    return entry + 1


def rule_of(number: int) -> tuple[dict[str, tuple[Position, Position]], int | None]:
    """The ranges and the time of each rewind. Later times rule less, so no rewind rules all that an older one does."""
    if number % 4 == 3:
        return {}, published(number // 2)
    low = 7 * number % ENTRIES
    return {US: (place(low - 1), place(low + number % 4))}, None


def rules(number: int, entry: int) -> bool:
    ranges, time_ms = rule_of(number)
    if time_ms is not None:
        return published(entry) >= time_ms
    low, high = ranges[US]
    return low < place(entry) <= high


def stamp(number: int) -> Stamp:
    return Stamp(FIRST + number, 0, US)


RULED = [sum(1 << number for number in range(REWINDS) if rules(number, entry)) for entry in range(ENTRIES)]
"""For each entry, the rewinds that rule it, as bits."""


class Model:
    """Every rewind, and the layer in which each entry was acknowledged; -1 is the base layer."""

    def __init__(self) -> None:
        self.rewinds = 0
        self.acks: set[tuple[int, int]] = set()

    def ruling(self, entry: int, upto: int = REWINDS) -> int:
        """The newest rewind that rules an entry and is not newer than the given one."""
        return (self.rewinds & RULED[entry] & ((1 << upto + 1) - 1)).bit_length() - 1

    def ack(self, epoch: int, entry: int) -> None:
        self.acks.add((self.ruling(entry, epoch), entry))

    def reads(self) -> list[bool]:
        return [(self.ruling(entry), entry) in self.acks for entry in range(ENTRIES)]


def play(story: list[Step]) -> tuple[Progress, Model]:
    progress, model = Progress(), Model()
    for what, first, second in story:
        if what == "rewinds":
            numbers = range(first, min(first + second, REWINDS))
            made = Progress()
            made._layers = Layers(Layer(stamp(number), *rule_of(number)) for number in numbers)
            progress.join(made)
            model.rewinds |= sum(1 << number for number in numbers)
        else:
            known = [-1, *(epoch.time_ms - FIRST for epoch, _, _ in progress.rewinds())]
            epoch = known[-1 - first % len(known)]
            delta = progress.empty_delta()
            time_ms = published(second) if first % 2 else 0
            delta.ack(ZERO if epoch < 0 else stamp(epoch), US, place(second - 1), place(second), time_ms)
            progress.join(Progress.decode(delta.encode()))
            model.ack(epoch, second)
    return progress, model


def reads(progress: Progress) -> list[bool]:
    return [progress.is_acked(US, place(entry), published(entry)) for entry in range(ENTRIES)]


steps = st.lists(
    st.tuples(st.just("rewinds"), st.integers(0, REWINDS - 1), st.integers(1, LAYERS_MAX))
    | st.tuples(st.just("ack"), st.integers(0, 9) | st.integers(0, REWINDS), st.integers(0, ENTRIES - 1)),
    max_size=5,
).map(lambda drawn: [("ack", 0, 5), ("rewinds", 0, 8), *drawn])


stretches = st.tuples(st.integers(-1, ENTRIES - 1), st.integers(1, 9))


@settings(max_examples=500, deadline=None)
@given(steps, st.integers(0, ENTRIES - 1), st.lists(stretches, max_size=4))
def test_acks_that_count_whenever_their_entries_were_published(
    story: list[Step], last: int, drawn: list[tuple[int, int]]
) -> None:
    """Up to an entry, without some ranges: what reads as acked even if its publish time is not known."""
    progress, _ = play(story)
    apart = [(place(after), place(after + count)) for after, count in drawn]
    found = progress.acked_whenever(US, place(last), apart)
    for entry in range(ENTRIES):
        is_apart = any(after < place(entry) <= upto for after, upto in apart)
        is_found = entry <= last and not is_apart and progress.is_acked(US, place(entry))
        assert found.contains(place(entry)) == is_found


@settings(max_examples=500, deadline=None)
@given(st.lists(steps, min_size=3, max_size=3), st.permutations(range(3)))
def test_regions_that_were_cut_off_agree_in_whatever_order_they_meet_again(
    drawn: list[list[Step]], order: list[int]
) -> None:
    regions, union = [], Model()
    for story in drawn:
        progress, model = play(story)
        assert reads(progress) == model.reads()
        regions.append(progress)
        union.rewinds |= model.rewinds
        union.acks |= model.acks
    one, two, three = (regions[at].copy() for at in order)
    first, second = one.copy(), three.copy()
    before = first.copy()
    assert first.join(two) == (first != before)
    first.join(three)
    second.join(two)
    assert not second.join(two), "idempotent"
    second.join(one)
    tail = two.copy()
    tail.join(three)
    one.join(tail)
    assert first == second == one
    assert first.encode() == second.encode() == one.encode()
    assert Progress.decode(first.encode()) == first
    assert reads(first) == union.reads()
    assert all(part.within(first) for part in regions)


def full(by_time: bool, count: int) -> Progress:
    """A subscription with that many rewinds, built as if read from disk."""
    progress = Progress()
    progress.ack(ZERO, US, EARLIEST, place(0))
    if by_time:
        made = (Layer(stamp(number), {}, 10 + number) for number in range(count))
    else:
        made = (Layer(stamp(number), {US: (place(2 * number), place(2 * number + 1))}, None) for number in range(count))
    progress._layers = Layers(made)
    return progress


def test_progress_of_two_separated_regions_can_be_written_and_read() -> None:
    one, two = full(False, LAYERS_MAX), full(True, 2 * LAYERS_MAX)
    assert one.join(two)
    assert one.count_rewinds() == 2 * LAYERS_MAX, "equal stamps are one rewind"
    assert Progress.decode(one.encode()) == one


@pytest.mark.parametrize("by_time", [False, True])
def test_records_of_earlier_versions_with_thousands_of_rewinds_are_read(by_time: bool) -> None:
    many = full(by_time, 8192)
    back = Progress.decode(many.encode())
    assert back == many
    assert back.count_rewinds() == 8192


def test_an_acknowledgement_does_not_grow_with_the_rewinds(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = set[int]()
    looked = 0
    may_rule = Layer.may_rule

    def counted(layer: Layer, *about: Any) -> bool:
        nonlocal looked
        looked += 1
        return may_rule(layer, *about)

    monkeypatch.setattr(Layer, "may_rule", counted)
    for count in (1, 100, 4000):
        progress = full(False, count)
        monkeypatch.setattr(Layers, "not_overruled", lambda _: pytest.fail("no rewind is new"))
        for entry in (3 * count, 1):  # ruled by none, and by the first
            delta = progress.empty_delta()
            looked = 0
            delta.ack(progress.epoch, US, place(entry - 1), place(entry))
            assert looked <= 1
            assert progress.join(delta)
            assert progress.is_acked(US, place(entry))
            assert delta.count_rewinds() == (entry == 1)
        sizes.add(len(delta.encode()))
        monkeypatch.undo()
        monkeypatch.setattr(Layer, "may_rule", counted)
    assert len(sizes) == 1


def test_an_acknowledgement_is_noted_once_for_all_seeks_by_time(monkeypatch: pytest.MonkeyPatch) -> None:
    noted = 0
    claim = RunSet.claim

    def counted(acks: RunSet, after: Position, upto: Position) -> bool:
        nonlocal noted
        noted += 1
        return claim(acks, after, upto)

    monkeypatch.setattr(RunSet, "claim", counted)
    costs = set[int]()
    for count in (2, 64, 4000):
        progress, first_hand = full(True, count), full(True, count)
        noted = 0
        for entry in (7, 3, 5):
            delta = progress.empty_delta()
            delta.ack(progress.epoch, US, place(entry - 1), place(entry))
            told = Progress.decode(delta.encode())
            assert progress.join(delta)
            assert not progress.join(told), "nothing in it is new"
            assert first_hand.join(told)
            assert progress.is_acked(US, place(entry), 10 + count // 2)
            assert progress.is_acked(US, place(entry))
        costs.add(noted)
        later = progress.heads()
        later.rewind(stamp(count), {}, {}, 10 + count // 2)
        assert progress.join(later)
        assert progress.is_acked(US, place(5), 9 + count // 2)
        assert not progress.is_acked(US, place(5), 10 + count // 2), "a later seek counts"
    assert max(costs) < 40


runs = st.lists(st.sampled_from(RUNS), max_size=3)


def acked_in_parts(by_seek: list[tuple[Position, Position]], once: list[tuple[Position, Position]]) -> Progress:
    """After two seeks by time: acks already noted in both, and acks noted once for both."""
    progress = full(True, 2)
    for after, upto in by_seek:
        progress.ack(progress.epoch, US, after, upto)
    progress.digests()
    for after, upto in once:
        before = progress.copy()
        assert progress.ack(progress.epoch, US, after, upto) == (progress.copy() != before)
    return progress


@settings(max_examples=500, deadline=None)
@given(runs, runs, runs, runs, st.booleans())
def test_acks_noted_in_parts_are_not_new(
    by_seek: list[tuple[Position, Position]],
    once: list[tuple[Position, Position]],
    theirs_by_seek: list[tuple[Position, Position]],
    theirs_once: list[tuple[Position, Position]],
    is_delta: bool,
) -> None:
    """However two regions divide acks between the seeks and what is noted once, even in a run across two ledgers."""
    progress, other = acked_in_parts(by_seek, once), acked_in_parts(theirs_by_seek, theirs_once)
    if is_delta:
        delta = other.empty_delta()
        for after, upto in theirs_once:
            delta.ack(delta.epoch, US, after, upto)
        other = Progress.decode(delta.encode())
    before = progress.copy()
    assert progress.join(other) == (progress.copy() != before)


def test_a_delta_that_names_no_seeks_by_time_is_refused() -> None:
    progress = full(True, 3)
    delta = progress.empty_delta()
    delta.ack(progress.epoch, US, place(6), place(7))
    whole = delta.encode()
    assert whole[0] == 5
    assert Progress.decode(whole).encode() == whole
    assert Progress.decode(whole) == delta
    nested = bytes((5, *whole[1 : 2 + whole[1]])) + b"\x00" + whole
    for damaged in (nested, *(whole[:end] for end in range(len(whole)))):
        with pytest.raises(ValueError):
            Progress.decode(damaged)
    with pytest.raises(ValueError, match="record of several seeks by time is empty"):
        Progress.decode(b"\x05\x01\x00\x00\x01\x00\x00")


def test_a_delta_may_go_back_and_then_acknowledge() -> None:
    """As a seek does: what it claims after its own rewind counts there, and says nothing about other rewinds."""
    progress = full(False, 5)
    delta = progress.empty_delta()
    epoch = stamp(50)
    delta.rewind(epoch, {US: (EARLIEST, place(20))})
    delta.ack(epoch, US, place(3), place(4))
    assert delta.rewinds() == [(epoch, {US: (EARLIEST, place(20))}, None)]
    progress.join(Progress.decode(delta.encode()))
    assert progress.rewinds() == delta.rewinds()
    assert [entry for entry in range(20) if progress.is_acked(US, place(entry))] == [4]
    heads = full(False, 5)
    assert heads.heads().rewinds() == heads.rewinds()
    assert heads.heads().count_detail() == 0


def test_a_rewind_that_is_overruled_already_is_not_new() -> None:
    """Brokers of an earlier version send all rewinds with each acknowledgement."""
    progress, late = full(False, 1), full(False, 1)
    progress.rewind(stamp(50), {US: (EARLIEST, place(20))})
    layers = progress.layers
    assert not progress.join(late.heads())
    assert progress.layers is layers
