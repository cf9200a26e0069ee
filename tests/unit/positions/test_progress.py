# SPDX-License-Identifier: Apache-2.0
"""The algebra of ``Progress``: layers by epoch, against a model that examines every single entry."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from meridian_broker.positions import EARLIEST, ZERO, Beginning, Position, Progress, Stamp
from support.worlds.progress_model import (
    ACKABLE,
    LEDGERS,
    PLACES,
    REGIONS,
    RUNS,
    SIZE,
    NaiveModel,
    build,
    histories,
    many,
    plans,
    publish_time,
    reads,
    run,
    steps,
)
from support.worlds.set_laws import check_within_and_minus


@many
@given(plans, histories)
def test_agrees_with_the_model_on_every_entry(plan: list[tuple[Any, ...]], history: tuple[Any, ...]) -> None:
    progress, model = build(plan, history)
    assert reads(progress) == model.reads()


@many
@given(plans, plans, histories)
def test_join_is_commutative_and_reads_as_the_union(
    one: list[tuple[Any, ...]], two: list[tuple[Any, ...]], history: tuple[Any, ...]
) -> None:
    (ab, model), (ba, other) = build(one, history), build(two, history)
    a, b = ab.copy(), ba.copy()
    model.join(other)
    changed = ab.join(b)
    assert changed == (ab != a)
    ba.join(a)
    assert ab == ba
    assert ab.encode() == ba.encode()
    assert reads(ab) == model.reads()


@many
@given(plans, plans, plans, histories)
def test_join_is_associative(
    one: list[tuple[Any, ...]], two: list[tuple[Any, ...]], three: list[tuple[Any, ...]], history: tuple[Any, ...]
) -> None:
    a, b, c = (build(plan, history)[0] for plan in (one, two, three))
    left = a.copy()
    left.join(b)
    left.join(c)
    tail = b.copy()
    tail.join(c)
    right = a.copy()
    right.join(tail)
    assert left == right
    assert left.encode() == right.encode()
    assert left.digests() == right.digests()


@many
@given(plans, histories)
def test_join_is_idempotent(plan: list[tuple[Any, ...]], history: tuple[Any, ...]) -> None:
    progress, _ = build(plan, history)
    before = progress.encode()
    assert not progress.join(progress.copy())
    assert not progress.join(Progress())
    assert progress.encode() == before


@many
@given(plans, plans, histories)
def test_within_and_minus(one: list[tuple[Any, ...]], two: list[tuple[Any, ...]], history: tuple[Any, ...]) -> None:
    check_within_and_minus(build(one, history)[0], build(two, history)[0])


@many
@given(plans, histories)
def test_encoding_round_trip_and_digests(plan: list[tuple[Any, ...]], history: tuple[Any, ...]) -> None:
    progress, _ = build(plan, history)
    back = Progress.decode(progress.encode())
    assert back == progress
    assert back.encode() == progress.encode()
    assert back.digests() == progress.digests()
    assert all(progress.digest(key) == digest for key, digest in progress.digests().items())


@many
@given(plans, plans, histories)
def test_exchanging_what_differs_by_digest_makes_both_equal(
    one: list[tuple[Any, ...]], two: list[tuple[Any, ...]], history: tuple[Any, ...]
) -> None:
    a, b = build(one, history)[0], build(two, history)[0]
    union = a.copy()
    union.join(b)
    ours, theirs = a.digests(), b.digests()
    differ = {key for key in ours.keys() | theirs.keys() if ours.get(key) != theirs.get(key)}
    from_a, from_b = a.extract(differ), b.extract(differ)
    assert from_a.within(a)
    a.join(from_b)
    b.join(from_a)
    assert a == b == union


@many
@given(plans, plans, histories)
def test_a_delta_contains_what_its_acks_claim(
    one: list[tuple[Any, ...]], two: list[tuple[Any, ...]], history: tuple[Any, ...]
) -> None:
    at_once, _ = build(one, history)
    by_delta = at_once.copy()
    delta = at_once.empty_delta()
    for step in two:
        if step[0] != "rewind":
            run(at_once, step, history)
            run(delta, step, history)
    by_delta.join(Progress.decode(delta.encode()))
    assert by_delta == at_once


@many
@given(plans, histories)
def test_without_the_publish_time_only_certain_acks_count(
    plan: list[tuple[Any, ...]], history: tuple[Any, ...]
) -> None:
    progress, _ = build(plan, history)
    for region in REGIONS:
        for place in ACKABLE:
            time = publish_time(region, place)
            left, really = progress.remaining(region, place, SIZE), progress.remaining(region, place, SIZE, time)
            assert (left == 0) == progress.is_acked(region, place)
            if progress.depends_on_time(region, place):
                assert progress.moments()
                assert left is None or (really is not None and left & really == really)
            else:
                assert left == really


@many
@given(plans, histories, st.sampled_from(REGIONS), st.sampled_from(RUNS))
def test_all_acked_holds_for_any_entries_there(
    plan: list[tuple[Any, ...]], history: tuple[Any, ...], region: str, bounds: tuple[Position, Position]
) -> None:
    progress, _ = build(plan, history)
    after, upto = bounds
    if progress.all_acked(region, after, upto):
        for place in ACKABLE:
            if after < place <= upto:
                assert all(progress.is_acked(region, place, time) for time in range(9))
    progress.ack(progress.epoch, region, EARLIEST, Position(LEDGERS, 0))
    assert progress.all_acked(region, after, upto) or progress.epoch != ZERO
    progress.rewind(Stamp(9, 0, "a"), {region: (after, upto)}, {})
    assert not progress.all_acked(region, after, upto)


def done_in(progress: Progress) -> dict[str, Position]:
    """Per origin, the end of what is acked without a hole, each entry judged by its own publish time."""
    found = {}
    for region in REGIONS:
        for place in ACKABLE:
            if not progress.is_acked(region, place, publish_time(region, place)):
                break
            found[region] = place
    return found


def merged(progress: Progress, done: dict[str, Position]) -> Progress:
    result = progress.copy()
    delta = progress.merge_rewinds(done)
    if delta is not None:
        assert result.join(Progress.decode(delta.encode()))
        assert result.count_rewinds() < progress.count_rewinds()
        assert result.epoch == progress.epoch
    return result


all_acks = st.sampled_from([(region, EARLIEST, upto) for region in REGIONS for upto in ACKABLE])


@many
@given(plans, st.lists(all_acks, max_size=3), plans, plans, histories, st.integers(0, 7))
def test_merged_rewinds_read_as_before_and_regions_agree(
    plan: list[tuple[Any, ...]],
    acked: list[tuple[Any, ...]],
    here: list[tuple[Any, ...]],
    there: list[tuple[Any, ...]],
    history: tuple[Any, ...],
    part: int,
) -> None:
    """R12, R13: one region merges rewinds, another merges others or none; both go on in the newest epoch, then meet.

    Consumers of older epochs were disconnected, so nothing is acknowledged in those any more.
    """
    progress, _ = build(plan, history)
    newest = progress.epoch
    for run_of_acks in acked:
        progress.ack(newest, *run_of_acks)
    done = done_in(progress)
    one, two = merged(progress, done), progress
    if part:
        two = merged(progress, {region: end for n, (region, end) in enumerate(done.items()) if part & 1 << n})
    assert reads(one) == reads(two) == reads(progress)
    plain = progress.copy()
    for changes, region_progress in ((here, one), (there, two)):
        for step in changes:
            if step[0] == "ack":
                plain.ack(newest, *step[2:])
                region_progress.ack(newest, *step[2:])
    left, right = one.copy(), two.copy()
    assert left.join(two) or one == left
    right.join(one)
    assert left == right
    assert left.digests() == right.digests()
    assert left.encode() == right.encode()
    assert reads(left) == reads(plain)
    late = plain.copy()
    late.join(one)
    late.join(two)
    left.join(late)
    assert left == late, "a region that never merged ends where the others are"
    assert reads(left) == reads(plain)


@pytest.mark.parametrize("by_time", [False, True])
def test_hourly_rewinds_do_not_pile_up(by_time: bool) -> None:
    progress = Progress()
    for hour in range(300):
        end, place = Position(1, 10 * hour + 9), Position(1, max(10 * hour - 5, 0))
        progress.ack(progress.epoch, "us", Position(1, 10 * hour - 1) if hour else EARLIEST, end)
        epoch = Stamp(1000 + hour, 0, "us")
        if by_time:
            progress.rewind(epoch, {}, publish_time_ms=place.entry + 2)
        else:
            progress.rewind(epoch, {"us": (place, end)})
        assert not progress.is_acked("us", end, end.entry + 1)
        progress.ack(epoch, "us", place, end)
        delta = progress.merge_rewinds({"us": end})
        if delta is not None:
            progress.join(delta)
        assert progress.count_rewinds() <= 2
        assert all(progress.is_acked("us", Position(1, n), n + 1) for n in range(end.entry))
        assert not progress.is_acked("us", Position(1, end.entry + 1), end.entry + 2)


@many
@given(plans, histories)
def test_floors_are_floors(plan: list[tuple[Any, ...]], history: tuple[Any, ...]) -> None:
    progress, _ = build(plan, history)
    for region, floor in progress.floors().items():
        for place in ACKABLE:
            assert place > floor or progress.is_acked(region, place, publish_time(region, place))
        if progress.epoch == ZERO or all(time is None for _, _, time in progress.rewinds()):
            following = [place for place in PLACES if place > floor]
            entries = [place for place in following if place.entry >= 0]
            # Something unacked follows the floor, unless only a position without an entry separates two runs.
            if entries and following[0] == entries[0] and floor.entry >= 0:
                assert not progress.is_acked(region, entries[0], publish_time(region, entries[0]))


@many
@given(plans, histories, st.sampled_from(REGIONS), st.sampled_from(ACKABLE))
def test_raising_a_floor_acks_all_below(
    plan: list[tuple[Any, ...]], history: tuple[Any, ...], region: str, floor: Position
) -> None:
    progress, _ = build(plan, history)
    before = reads(progress)
    progress.raise_floor(region, floor)
    for key, acked in reads(progress).items():
        assert acked == ((1 << SIZE) - 1 if key[0] == region and key[1] <= floor else before[key])
    assert progress.floors().get(region, EARLIEST) >= floor
    assert not progress.raise_floor(region, floor)


@settings(max_examples=500, deadline=None)
@given(st.tuples(st.sampled_from([b"\x01", b"\x02", b"\x03", b"\x04"]), st.binary(max_size=60)).map(b"".join))
def test_garbage_is_refused_with_value_error(data: bytes) -> None:
    try:
        progress = Progress.decode(data)
    except ValueError:
        return
    assert Progress.decode(progress.encode()) == progress


@settings(max_examples=500, deadline=None)
@given(plans, histories, st.data())
def test_damaged_encodings_are_refused_with_value_error(
    plan: list[tuple[Any, ...]], history: tuple[Any, ...], data: st.DataObject
) -> None:
    good = bytearray(build(plan, history)[0].encode())
    for _ in range(data.draw(st.integers(1, 3))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    for damaged in (bytes(good), bytes(good[: data.draw(st.integers(0, len(good)))])):
        try:
            progress = Progress.decode(damaged)
        except ValueError:
            continue
        assert Progress.decode(progress.encode()) == progress


class Regions(RuleBasedStateMachine):
    """Three regions ack, rewind and exchange progress, in any order and in every way."""

    def __init__(self) -> None:
        super().__init__()
        self.all = [(Progress(), NaiveModel()) for _ in range(3)]
        self.history: tuple[Any, ...] = ()

    @initialize(history=histories)
    def begin(self, history: tuple[Any, ...]) -> None:
        self.history = history

    @rule(which=st.integers(0, 2), step=steps)
    def change(self, which: int, step: tuple[Any, ...]) -> None:
        progress, model = self.all[which]
        run(progress, step, self.history)
        model.run(step, self.history)

    @rule(source=st.integers(0, 2), hearer=st.integers(0, 2), how=st.sampled_from(["all", "minus", "digests"]))
    def tell(self, source: int, hearer: int, how: str) -> None:
        (told, told_model), (progress, model) = self.all[source], self.all[hearer]
        if how == "minus":
            told = told.minus(progress)
        elif how == "digests":
            have = progress.digests()
            told = told.extract([key for key, digest in told.digests().items() if have.get(key) != digest])
        progress.join(Progress.decode(told.encode()))
        model.join(told_model)

    @invariant()
    def read_the_same(self) -> None:
        for progress, model in self.all:
            assert reads(progress) == model.reads()


TestRegions = Regions.TestCase
TestRegions.settings = settings(max_examples=500, stateful_step_count=12, deadline=None)


# -- never over-claims -------------------------------------------------------------------------------------------------


Own = tuple[Position, Position, bool]
"""``prev``, position, withheld."""


def stream(ledgers: list[str]) -> list[Own]:
    """An origin's own entries. Per ledger, ``o``: own; ``w``: own but withheld; ``f``: foreign, or a marker."""
    own: list[Own] = []
    prev = EARLIEST
    for number, kinds in enumerate(ledgers):
        for entry, kind in enumerate(kinds):
            if kind != "f":
                place = Position(3 + number * 1000, entry)
                own.append((prev, place, kind == "w"))
                prev = place
    return own


origins = st.lists(st.text("ooowf", max_size=8), min_size=1, max_size=4).map(stream)
streams = st.fixed_dictionaries({"us-east": origins, "us-west": origins, "eu-central": origins})


@settings(max_examples=500, deadline=None)
@given(streams, st.lists(st.integers(0, 1 << 20), max_size=30))
def test_never_claims_what_nobody_acked(streams: dict[str, list[Own]], moves: list[int]) -> None:
    replicas = [Progress() for _ in range(3)]
    acked: list[set[tuple[str, Position]]] = [set() for _ in replicas]
    sendable = [(region, *entry) for region, entries in streams.items() for entry in entries if not entry[2]]
    for move in moves:
        which, other, action, index = move % 3, move // 3 % 3, move // 9 % 5, move // 45
        if not action:
            replicas[which].join(Progress.decode(replicas[other].encode()))
            acked[which] |= acked[other]
        elif sendable:
            region, prev, place, _ = sendable[index % len(sendable)]
            if action < 4:
                replicas[which].ack(ZERO, region, prev, place)
                acked[which].add((region, place))
            else:
                replicas[which].ack_batch(ZERO, region, place, 2, 0b01, prev)
    for progress, mine in zip(replicas, acked, strict=True):
        for region, entries in streams.items():
            for _, place, withheld in entries:
                assert progress.is_acked(region, place) == ((region, place) in mine)
                assert not (withheld and progress.is_acked(region, place))


@settings(max_examples=500, deadline=None)
@given(streams, st.integers(0, 1 << 30))
def test_when_everything_is_acked_only_floors_are_left(streams: dict[str, list[Own]], seed: int) -> None:
    progress = Progress()
    entries = [(region, prev, place) for region, own in streams.items() for prev, place, _ in own]
    Random(seed).shuffle(entries)
    for region, prev, place in entries:
        progress.ack(ZERO, region, prev, place)
    assert progress.count_detail() == 0
    assert progress.floors() == {region: own[-1][1] for region, own in streams.items() if own}


# -- by example --------------------------------------------------------------------------------------------------------


def test_a_rewind_forgets_only_what_it_rules() -> None:
    progress = Progress()
    progress.ack(ZERO, "us-east", EARLIEST, Position(5, 9))
    progress.ack(ZERO, "us-west", EARLIEST, Position(6, 9))
    epoch = Stamp(100, 0, "us-east")
    assert progress.rewind(epoch, {"us-east": (Position(5, 3), Position(5, 9))})
    assert progress.epoch == epoch
    assert progress.is_acked("us-east", Position(5, 3))
    assert not progress.is_acked("us-east", Position(5, 4))
    assert progress.is_acked("us-west", Position(6, 9))
    assert progress.floors() == {"us-east": Position(5, 3), "us-west": Position(6, 9)}
    # Acks of what was dispatched before the rewind have no effect; those dispatched after it count (R13).
    progress.ack(ZERO, "us-east", Position(5, 3), Position(5, 4))
    assert not progress.is_acked("us-east", Position(5, 4))
    progress.ack(epoch, "us-east", Position(5, 3), Position(5, 4))
    assert progress.is_acked("us-east", Position(5, 4))
    progress.ack(epoch, "us-east", Position(5, 4), Position(5, 12))
    assert progress.floors()["us-east"] == Position(5, 12)


def test_an_older_rewind_that_arrives_later_changes_nothing_ruled_by_a_newer_one() -> None:
    old, new = Stamp(100, 0, "us-east"), Stamp(101, 0, "us-west")
    one, two = Progress(), Progress()
    one.rewind(new, {"us-east": (EARLIEST, Position(5, 9))})
    one.ack(new, "us-east", EARLIEST, Position(5, 2))
    two.rewind(old, {"us-east": (EARLIEST, Position(5, 9))})
    assert not two.within(Progress())
    assert not one.join(two)
    assert two.join(one)
    assert one == two
    assert one.is_acked("us-east", Position(5, 2))


def test_a_seek_by_time_rules_entries_that_arrive_later() -> None:
    progress = Progress()
    epoch = Stamp(100, 0, "us-east")
    progress.rewind(epoch, {}, publish_time_ms=50)
    progress.ack(ZERO, "us-east", EARLIEST, Position(5, 1), 49)
    progress.ack(ZERO, "us-east", Position(5, 1), Position(5, 2), 51)
    assert progress.is_acked("us-east", Position(5, 1), 49)
    assert not progress.is_acked("us-east", Position(5, 2), 51)
    progress.ack(epoch, "us-east", Position(5, 1), Position(5, 2), 51)
    assert progress.is_acked("us-east", Position(5, 2), 51)


def test_an_ack_of_an_unknown_epoch_is_refused() -> None:
    progress = Progress()
    with pytest.raises(ValueError, match="empty_delta"):
        progress.ack(Stamp(1, 0, "us-east"), "us-east", EARLIEST, Position(1, 0))
    progress.rewind(Stamp(1, 0, "us-east"), {})
    with pytest.raises(ValueError, match="empty_delta"):
        progress.ack_batch(Stamp(1, 1, "us-east"), "us-east", Position(1, 0), 2, 1, None)


def test_impossible_rewinds_are_refused() -> None:
    with pytest.raises(ValueError, match="later than"):
        Progress().rewind(ZERO, {})
    with pytest.raises(ValueError, match="empty"):
        Progress().rewind(Stamp(1, 0, "a"), {"us-east": (Position(1, 1), Position(1, 1))})


def test_two_rewinds_with_one_stamp_both_count_though_no_clock_makes_them() -> None:
    epoch = Stamp(100, 0, "us-east")
    one, two = Progress(), Progress()
    one.rewind(epoch, {"us-east": (Position(5, 3), Position(5, 6))})
    two.rewind(epoch, {"us-east": (Position(5, 5), Position(5, 9))}, publish_time_ms=50)
    assert not one.within(two)
    assert not two.within(one)
    both, again = one.copy(), two.copy()
    assert both.join(two)
    assert again.join(one)
    assert both == again
    assert both.rewinds() == [(epoch, {"us-east": (Position(5, 3), Position(5, 9))}, 50)]
    assert one.within(both)
    assert two.minus(one).within(both)


def test_a_newer_format_of_progress_is_refused_with_an_explanation() -> None:
    with pytest.raises(ValueError, match=r"newer version of Meridian \(format 6, this one reads up to 5\)"):
        Progress.decode(b"\x06")


def test_the_format_stays() -> None:
    progress = Progress()
    progress.ack(ZERO, "us-east", EARLIEST, Position(7, 3))
    progress.ack(ZERO, "us-east", Position(7, 5), Position(9, 2))
    progress.ack_batch(ZERO, "us-west", Position(8, 1), 3, 0b101, Position(8, 0))
    progress.rewind(Stamp(1000, 1, "us-west"), {"us-east": (Position(7, 1), Position(7, 2))}, publish_time_ms=5)
    assert progress.encode().hex() == (
        "01020775732d6561737408040109030106000100020775732d77657374000001080401010305010101"
        "e807010775732d7765737406010775732d656173740802080300"
    )
    # A beginning is written only where it is known, so that older brokers can read all else.
    progress.begin(Beginning(Stamp(900, 0, "us-west"), Stamp(999, 2, "us-east"), {"us-east": Position(7, 3)}))
    progress.ack(ZERO, "us-east", Position(7, 5), Position(7, 6))
    assert progress.encode().hex() == (
        "028407000775732d77657374e707020775732d65617374010775732d656173740804010775732d6561737400000107010001060000"
    )


def test_rewinds_by_time_alone_have_a_format_that_older_brokers_refuse() -> None:
    progress = Progress()
    progress.ack(ZERO, "us-east", EARLIEST, Position(7, 3))
    progress.rewind(Stamp(1000, 1, "us-west"), {}, publish_time_ms=5)
    assert progress.encode().hex() == "03000000000000000" + "10775732d6561737408040001e807010775732d77657374060000"
    assert Progress.decode(progress.encode()) == progress
    assert progress.heads().encode()[0] == 3
    delta = progress.empty_delta()
    delta.ack(progress.epoch, "us-east", EARLIEST, Position(7, 4))
    assert delta.encode()[0] == 3
    with pytest.raises(ValueError, match="no rewind applies by time alone"):
        Progress.decode(bytes.fromhex("03000000000000000" + "10775732d65617374080400" + "00"))


def test_the_position_of_a_later_creation_is_withdrawn_and_its_acks_are_kept() -> None:
    early = Beginning(ZERO, Stamp(100, 0, "us-east"), {"us-east": Position(5, 1)})
    late = Beginning(ZERO, Stamp(101, 0, "us-west"), {"us-east": Position(5, 6), "us-west": Position(6, 0)})
    progress = Progress()
    progress.begin(late)
    progress.ack(ZERO, "us-east", Position(5, 7), Position(5, 8))
    progress.ack(ZERO, "us-east", Position(5, 3), Position(5, 4))
    assert progress.floors() == {"us-east": Position(5, 6), "us-west": Position(6, 0)}
    assert progress.begin(early)
    assert not progress.begin(late)
    assert progress.floors() == {"us-east": Position(5, 1)}
    assert [entry for entry in range(10) if progress.is_acked("us-east", Position(5, entry))] == [0, 1, 4, 8]
    assert not progress.is_acked("us-west", Position(6, 0))


def test_a_recreated_subscription_has_nothing_acked() -> None:
    progress = Progress()
    progress.begin(Beginning(ZERO, Stamp(100, 0, "us-east"), {}))
    progress.ack(ZERO, "us-east", EARLIEST, Position(5, 8))
    old = progress.copy()
    stale = progress.empty_delta()
    stale.ack(ZERO, "us-east", Position(5, 8), Position(5, 9))
    deleted = Stamp(150, 0, "us-west")
    assert progress.begin(Beginning(deleted, ZERO, {}))
    assert not progress.is_acked("us-east", Position(5, 8))
    assert not progress.join(stale)
    assert not progress.join(old)
    assert old.join(progress)
    assert old == progress


@pytest.mark.parametrize("time_ms", [-1, 1 << 63, (1 << 64) - 1])
def test_a_rewind_to_a_time_that_could_not_be_read_back_is_refused(time_ms: int) -> None:
    progress = Progress()
    with pytest.raises(ValueError, match="cannot be stored"):
        progress.rewind(Stamp(1, 0, "us"), {}, publish_time_ms=time_ms)
    assert progress.count_rewinds() == 0
