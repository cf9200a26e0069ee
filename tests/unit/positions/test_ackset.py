# SPDX-License-Identifier: Apache-2.0
"""The algebra of ``AckSet`` against a plain set of positions, in a universe small enough to enumerate."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from meridian_broker.positions.ackset import FLOOR, AckSet
from meridian_broker.positions.position import EARLIEST, LATEST, Position
from support.worlds.ready_made import one_of_kinds
from support.worlds.set_laws import check_within_and_minus

LEDGERS, ENTRIES = 4, 5
UNIVERSE = [EARLIEST] + [Position(ledger, entry) for ledger in range(LEDGERS) for entry in range(-1, ENTRIES + 2)]
"""The last two entries of each ledger are never claimed singly: they show whether the ledger's rest is claimed."""
ACKABLE = [position for position in UNIVERSE if 0 <= position.entry < ENTRIES]
SIZE = 3

INTERVALS = [(after, upto) for after in UNIVERSE for upto in ACKABLE if after < upto]
positions = st.sampled_from(ACKABLE)

Model = frozenset[Any]
"""Claimed positions, and ``(position, index)`` for single messages of batches."""


def interval(after: Position, upto: Position) -> set[Any]:
    return {position for position in UNIVERSE if after < position <= upto}


# Drawing one of many ready-made operations is ten times as fast as composing each from draws.
operations = one_of_kinds(
    [("claim", *interval) for interval in INTERVALS],
    [("point", position) for position in ACKABLE],
    [("floor", position) for position in UNIVERSE],
    [("batch", upto, bits, after) for after, upto in INTERVALS for bits in range(1, 1 << SIZE)],
    [("batch", upto, bits, None) for upto in ACKABLE for bits in range(1, 1 << SIZE)],
)


def apply(acks: AckSet, operation: tuple[Any, ...]) -> bool:
    match operation:
        case ("claim", after, upto):
            return acks.claim(after, upto)
        case ("point", position):
            return acks.claim_point(position)
        case ("floor", position):
            return acks.raise_floor(position)
        case ("batch", position, bits, after):
            return acks.claim_batch(position, SIZE, bits, after)
    raise AssertionError(operation)


def build(plan: list[tuple[Any, ...]]) -> AckSet:
    acks = AckSet()
    for operation in plan:
        apply(acks, operation)
    return acks


class NaiveModel:
    """The specification: plain sets, and a fixpoint for batches."""

    def __init__(self) -> None:
        self.claimed: set[Position] = {EARLIEST}
        self.messages: dict[Position, int] = {}
        self.befores: dict[Position, Position] = {}

    def apply(self, operation: tuple[Any, ...]) -> None:
        match operation:
            case ("claim", after, upto):
                self.claimed |= interval(after, upto)
            case ("point", position):
                self.claimed.add(position)
            case ("floor", position):
                self.claimed |= {other for other in UNIVERSE if other <= position}
            case ("batch", position, bits, after):
                self.messages[position] = self.messages.get(position, 0) | bits
                if after is not None:
                    self.befores[position] = min(after, self.befores.get(position, after))
        self.normalise()

    def join(self, other: NaiveModel) -> None:
        self.claimed |= other.claimed
        for position, bits in other.messages.items():
            self.messages[position] = self.messages.get(position, 0) | bits
        for position, after in other.befores.items():
            self.befores[position] = min(after, self.befores.get(position, after))
        self.normalise()

    def normalise(self) -> None:
        before = -1
        while before != len(self.claimed):
            before = len(self.claimed)
            self.claimed |= {position for position, bits in self.messages.items() if bits == (1 << SIZE) - 1}
            for position, after in self.befores.items():
                if position in self.claimed:
                    self.claimed |= interval(after, position)

    def state(self) -> tuple[Any, ...]:
        open_batches = {position: bits for position, bits in self.messages.items() if position not in self.claimed}
        befores = {position: after for position, after in self.befores.items() if position in open_batches}
        return frozenset(self.claimed), open_batches, befores


def model_of(plan: list[tuple[Any, ...]]) -> NaiveModel:
    model = NaiveModel()
    for operation in plan:
        model.apply(operation)
    return model


def state_of(acks: AckSet) -> tuple[Any, ...]:
    """The content of an ``AckSet`` in the model's form."""
    claimed = frozenset(position for position in UNIVERSE if acks.contains(position))
    partial = dict(acks.partials())
    return (
        claimed,
        {position: batch.acked for position, batch in partial.items()},
        {position: batch.after for position, batch in partial.items() if batch.after is not None},
    )


plans = st.lists(operations, max_size=10)
many = settings(max_examples=500, deadline=None)


@many
@given(plans)
def test_agrees_with_a_set_of_positions(plan: list[tuple[Any, ...]]) -> None:
    acks, model = AckSet(), NaiveModel()
    for operation in plan:
        before = model.state()
        model.apply(operation)
        assert apply(acks, operation) == (model.state() != before)
        assert state_of(acks) == model.state()


@many
@given(plans, plans)
def test_equal_exactly_if_the_sets_are(one: list[tuple[Any, ...]], two: list[tuple[Any, ...]]) -> None:
    a, b = build(one), build(two)
    same = model_of(one).state() == model_of(two).state()
    assert (a == b) == same
    assert (a.encode() == b.encode()) == same
    assert (a.digests() == b.digests()) == same


@many
@given(plans, st.integers(0, 1 << 30))
def test_the_order_of_acks_does_not_matter(plan: list[tuple[Any, ...]], seed: int) -> None:
    shuffled = list(plan)
    Random(seed).shuffle(shuffled)
    a, b = build(plan), build(shuffled + shuffled[:3])
    assert a == b
    assert a.encode() == b.encode()
    assert list(a.runs()) == list(b.runs())


@many
@given(plans, plans)
def test_join_is_commutative_and_is_union(one: list[tuple[Any, ...]], two: list[tuple[Any, ...]]) -> None:
    ab, ba, model = build(one), build(two), model_of(one)
    before = model.state()
    model.join(model_of(two))
    assert ab.join(build(two)) == (model.state() != before)
    ba.join(build(one))
    assert ab == ba
    assert state_of(ab) == model.state()


@many
@given(plans, plans, plans)
def test_join_is_associative(
    one: list[tuple[Any, ...]], two: list[tuple[Any, ...]], three: list[tuple[Any, ...]]
) -> None:
    left = build(one)
    left.join(build(two))
    left.join(build(three))
    tail = build(two)
    tail.join(build(three))
    right = build(one)
    right.join(tail)
    assert left == right


@many
@given(plans)
def test_join_is_idempotent(plan: list[tuple[Any, ...]]) -> None:
    acks = build(plan)
    before = acks.encode()
    assert not acks.join(build(plan))
    assert not acks.join(acks.copy())
    assert acks.encode() == before


@many
@given(plans, plans)
def test_within_and_minus(one: list[tuple[Any, ...]], two: list[tuple[Any, ...]]) -> None:
    check_within_and_minus(build(one), build(two))


@many
@given(plans)
def test_encoding_round_trip(plan: list[tuple[Any, ...]]) -> None:
    acks = build(plan)
    back = AckSet.decode(acks.encode())
    assert back == acks
    assert back.encode() == acks.encode()
    assert state_of(back) == state_of(acks)
    assert back.digests() == acks.digests()


@many
@given(plans)
def test_parts_by_digest_make_the_whole(plan: list[tuple[Any, ...]]) -> None:
    acks = build(plan)
    whole = AckSet()
    for key, digest in acks.digests().items():
        part = acks.extract({key})
        assert part.within(acks)
        assert digest == acks.digest(key) != 0
        whole.join(part)
    assert whole == acks


@many
@given(plans)
def test_runs_are_maximal_and_complete(plan: list[tuple[Any, ...]]) -> None:
    acks = build(plan)
    again = AckSet()
    last = None
    for after, upto in acks.runs():
        assert after < upto
        assert last is None or last < after
        assert acks.covers(after, upto)
        if after != EARLIEST:
            assert not acks.contains(after)
            assert acks.reach(after) == upto
        last = upto
        again.claim(after, upto) if upto.entry >= 0 else again.raise_floor(upto)
    assert again.floor == acks.floor
    assert all(again.contains(position) == acks.contains(position) for position in UNIVERSE)


@many
@given(plans, st.sampled_from(UNIVERSE), positions)
def test_covers_and_reach(plan: list[tuple[Any, ...]], after: Position, upto: Position) -> None:
    acks = build(plan)
    if after < upto:
        assert acks.covers(after, upto) == all(acks.contains(position) for position in interval(after, upto))
        assert acks.meets(after, upto) == any(acks.contains(position) for position in interval(after, upto))
        in_part = any(after < position <= upto for position, _ in acks.partials())
        assert acks.touches(after, upto) == (acks.meets(after, upto) or in_part)
    end = acks.reach(after)
    assert end >= after
    assert all(acks.contains(position) for position in interval(after, end))


@settings(max_examples=500, deadline=None)
@given(st.binary(max_size=60))
def test_garbage_is_refused_with_value_error(data: bytes) -> None:
    try:
        acks = AckSet.decode(data)
    except ValueError:
        return
    assert AckSet.decode(acks.encode()) == acks


@settings(max_examples=500, deadline=None)
@given(plans, st.data())
def test_damaged_encodings_are_refused_with_value_error(plan: list[tuple[Any, ...]], data: st.DataObject) -> None:
    good = bytearray(build(plan).encode())
    for _ in range(data.draw(st.integers(1, 3))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(good)))
    for damaged in (bytes(good), bytes(good[:cut])):
        try:
            acks = AckSet.decode(damaged)
        except ValueError:
            continue
        assert AckSet.decode(acks.encode()) == acks


def test_an_encoded_ledger_without_claims_is_refused() -> None:
    """If accepted, it would fail when joined."""
    acks = AckSet()
    acks.claim(Position(7, 1), Position(7, 2))
    good = acks.encode()
    assert good[-3:] == bytes((1, 2, 0)), "one run of one entry"
    with pytest.raises(ValueError, match="a list of entry ids is empty"):
        AckSet.decode(good[:-3] + bytes((0,)))


class AgainstTheModel(RuleBasedStateMachine):
    """Two sets that change, merge and are sent over the wire for a long time."""

    def __init__(self) -> None:
        super().__init__()
        self.sets = [AckSet(), AckSet()]
        self.models = [NaiveModel(), NaiveModel()]

    @rule(which=st.integers(0, 1), operation=operations)
    def change(self, which: int, operation: tuple[Any, ...]) -> None:
        apply(self.sets[which], operation)
        self.models[which].apply(operation)

    @rule(which=st.integers(0, 1))
    def merge(self, which: int) -> None:
        self.sets[which].join(self.sets[1 - which])
        self.models[which].join(self.models[1 - which])

    @rule(which=st.integers(0, 1))
    def merge_what_lacks(self, which: int) -> None:
        self.sets[which].join(self.sets[1 - which].minus(self.sets[which]))
        self.models[which].join(self.models[1 - which])

    @rule(which=st.integers(0, 1))
    def travel(self, which: int) -> None:
        self.sets[which] = AckSet.decode(self.sets[which].encode())

    @rule(which=st.integers(0, 1))
    def start_again(self, which: int) -> None:
        self.sets[which], self.models[which] = AckSet(), NaiveModel()

    @invariant()
    def same(self) -> None:
        for acks, model in zip(self.sets, self.models, strict=True):
            assert state_of(acks) == model.state()


TestAgainstTheModel = AgainstTheModel.TestCase
TestAgainstTheModel.settings = settings(max_examples=500, stateful_step_count=15, deadline=None)


@pytest.mark.parametrize(("ledgers", "entries"), [(3, 2), (2, 3)])
def test_all_sequences_of_three_claims(ledgers: int, entries: int) -> None:
    """Exhaustive, where random tests only sample: sets and encodings correspond one to one."""
    places = [place for place in UNIVERSE if place.ledger < ledgers and place.entry < entries]
    claims = [(after, upto) for after in places for upto in places if after < upto and upto.entry >= 0]
    covered = {claim: interval(*claim) for claim in claims}
    by_set: dict[Model, bytes] = {}
    for first in claims:
        start = AckSet()
        start.claim(*first)
        for second in claims:
            middle = start.copy()
            middle.claim(*second)
            for third in claims:
                acks, delta = middle.copy(), AckSet()
                acks.claim(*third)
                delta.claim(*third)
                joined = middle.copy()
                joined.join(delta)
                assert joined == acks
                claimed = frozenset(covered[first] | covered[second] | covered[third])
                assert by_set.setdefault(claimed, acks.encode()) == acks.encode()
    for claimed, data in by_set.items():
        acks = AckSet.decode(data)
        assert {place for place in UNIVERSE[1:] if acks.contains(place)} == claimed
    assert len(set(by_set.values())) == len(by_set)


def test_many_short_histories_in_a_small_world() -> None:
    """Without a search strategy's overhead: tens of thousands of histories that combine everything with everything."""
    random = Random(20)
    small = [place for place in UNIVERSE if place.ledger < 3 and place.entry < 2]
    intervals = [(after, upto) for after in small for upto in small if after < upto and upto.entry >= 0]
    world: list[tuple[Any, ...]] = [("claim", *both) for both in intervals]
    world += [("floor", place) for place in small]
    world += [("batch", upto, bits, before) for after, upto in intervals for bits in (1, 6) for before in (after, None)]
    encodings: dict[Any, bytes] = {}
    for _ in range(20_000):
        acks, model = AckSet(), NaiveModel()
        for operation in random.choices(world, k=7):
            if random.random() < 0.5:
                acks.join(build([operation]))
            else:
                apply(acks, operation)
            model.apply(operation)
        claimed, messages, known = state = model.state()
        assert state_of(acks) == state
        key = claimed, frozenset(messages.items()), frozenset(known.items())
        assert encodings.setdefault(key, acks.encode()) == acks.encode()
    assert len(set(encodings.values())) == len(encodings) > 3000


# -- by example --------------------------------------------------------------------------------------------------------


def test_acks_in_order_leave_only_a_floor() -> None:
    acks = AckSet()
    last = EARLIEST
    for ledger, entries in ((7, (0, 3, 4)), (9, (2, 5)), (12, (0,))):
        for entry in entries:
            position = Position(ledger, entry)
            assert acks.claim(last, position)
            assert acks.count_detail() == 0
            last = position
    assert acks == AckSet(Position(12, 0))


def test_the_floor_rises_across_ledgers_when_the_hole_is_filled() -> None:
    acks = AckSet(Position(7, 3))
    acks.claim(Position(7, 5), Position(9, 2))
    acks.claim(Position(9, 2), Position(12, 0))
    assert acks.floor == Position(7, 3)
    assert list(acks.runs())[1:] == [(Position(7, 5), Position(12, 0))]
    acks.claim(Position(7, 3), Position(7, 5))
    assert acks == AckSet(Position(12, 0))


def test_a_withheld_entry_is_not_claimed_by_its_neighbours() -> None:
    acks = AckSet(Position(7, 3))
    acks.claim(Position(7, 5), Position(7, 6))
    assert not acks.contains(Position(7, 4))
    assert not acks.contains(Position(7, 5))
    assert acks.floor == Position(7, 3)


def test_acks_of_all_batch_messages_join_to_the_whole_entry() -> None:
    one, two = AckSet(Position(7, 3)), AckSet(Position(7, 3))
    entry = Position(7, 5)
    assert one.claim_batch(entry, 3, 0b101, Position(7, 3))
    assert two.claim_batch(entry, 3, 0b010, None)
    assert one.remaining(entry, 3) == 0b010
    assert two.remaining(entry, 3) == 0b101
    assert one.remaining(Position(7, 6), 3) is None
    assert not one.claim_batch(entry, 3, 0b001, None)
    assert two.join(one)
    assert two == AckSet(entry)
    assert two.remaining(entry, 3) == 0


def test_a_batch_with_an_unknown_prev_stands_alone_until_it_is_known() -> None:
    acks = AckSet(Position(7, 3))
    acks.claim_batch(Position(7, 5), 2, 0b01, None)
    acks.claim_batch(Position(7, 5), 2, 0b10, None)
    assert acks.contains(Position(7, 5))
    assert acks.floor == Position(7, 3)
    assert acks.claim(Position(7, 3), Position(7, 5))
    assert acks == AckSet(Position(7, 5))


@pytest.mark.parametrize(
    ("after", "upto"),
    [
        (EARLIEST, Position(1, 1 << 32)),
        (Position(5, 3), Position(5, 1 << 32)),
        (Position(5, (1 << 32) - 1), Position(5, 1 << 32)),
        (Position(5, 4), Position(5, 3)),
        (Position(5, 4), Position(6, -1)),
        (Position(5, -2), Position(5, -1)),
    ],
)
def test_invalid_intervals_are_refused(after: Position, upto: Position) -> None:
    for acks in (AckSet(), AckSet(Position(0, 7))):
        acks.claim(Position(5, 0), Position(5, 1))
        with pytest.raises(ValueError, match="cannot be claimed"):
            acks.claim(after, upto)


@pytest.mark.parametrize(("size", "acked"), [(0, 0), (3, 8), (3, -1), (1 << 21, 1)])
def test_bits_beyond_a_batch_are_refused(size: int, acked: int) -> None:
    with pytest.raises(ValueError, match="do not fit a batch"):
        AckSet().claim_batch(Position(1, 1), size, acked, None)


def test_a_floor_may_be_at_any_position() -> None:
    acks = AckSet()
    acks.claim(Position(3, 4), Position(3, 5))
    assert acks.raise_floor(Position(3, -1))
    assert not acks.contains(Position(3, 0))
    assert acks.raise_floor(LATEST)
    assert acks == AckSet.decode(AckSet(LATEST).encode())
    assert acks.digests().keys() == {FLOOR}
    with pytest.raises(ValueError, match="cannot be claimed"):
        acks.raise_floor(Position(1 << 63, 0))


def test_the_last_entry_ids_work() -> None:
    top = (1 << 32) - 1
    acks = AckSet()
    acks.claim(Position(1, top - 2), Position(1, top - 1))
    acks.claim(Position(1, top - 1), Position(1, top))
    acks.claim(Position(1, top), Position(2, 0))
    assert list(acks.runs()) == [(Position(1, top - 2), Position(2, 0))]
    assert AckSet.decode(acks.encode()) == acks
    acks.claim(EARLIEST, Position(1, top - 2))
    assert acks == AckSet(Position(2, 0))


def test_a_delta_of_several_bits_lifts_the_floor_it_touches() -> None:
    acks = AckSet(Position(7, 3))
    acks.claim(Position(7, 8), Position(7, 9))
    delta = AckSet()
    delta.claim(Position(7, 3), Position(7, 4))
    delta.claim(Position(7, 5), Position(7, 6))
    assert acks.join(delta)
    assert list(acks.runs()) == [
        (EARLIEST, Position(7, 4)),
        (Position(7, 5), Position(7, 6)),
        (Position(7, 8), Position(7, 9)),
    ]


def test_a_non_canonical_encoding_is_read_into_canonical_form() -> None:
    # Floor 7:3, then in ledger 7 the run of entries 4 and 5, which continues it.
    assert AckSet.decode(bytes.fromhex("080401070100010401")) == AckSet(Position(7, 5))
    # No floor; in ledger 7 a link to the very beginning, and entries 0 and 1.
    assert AckSet.decode(bytes.fromhex("0000010703070000010001")) == AckSet(Position(7, 1))
