# SPDX-License-Identifier: Apache-2.0
"""Last sequence ids: what counts as a repeat, what is remembered, and how it is written."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.topics.publishing.sequence_ids import (
    LARGEST,
    NONE,
    RECORD_NAMES,
    Outcome,
    Record,
    SequenceIds,
    SequencesError,
    SequenceState,
    decode,
    encode,
    last_id,
)

Rows = list[tuple[str, int, int]]
ids = st.integers(0, LARGEST)
times = st.integers(0, 2**50)
rows = st.lists(st.tuples(st.text(max_size=12), ids, times), max_size=8)
rows_of_few = st.lists(st.tuples(st.sampled_from("abcd"), ids, times), max_size=8)
"""Records that repeat the same producers."""
positions = st.builds(Position, st.integers(-1, 2**62), st.integers(-1, 2**62))
records = st.builds(Record, st.integers(0, 3), positions, rows)


def nobody(_name: str) -> bool:
    return False


@settings(max_examples=500)
@given(records)
def test_records_are_read_back(record: Record) -> None:
    assert decode(encode(record)) == record


@settings(max_examples=500)
@given(records, st.data())
def test_a_torn_record_is_refused_or_shorter_by_whole_names(record: Record, data: st.DataObject) -> None:
    whole = encode(record)
    torn = whole[: data.draw(st.integers(0, len(whole) - 1))]
    try:
        found = decode(torn)
    except SequencesError:
        return
    assert found.names == record.names[: len(found.names)]


def test_a_newer_format_is_refused_with_a_sentence() -> None:
    with pytest.raises(SequencesError, match=r"newer version of Meridian \(format 2,"):
        decode(b"\x02" + encode(Record(0, EARLIEST, []))[1:])
    with pytest.raises(SequencesError, match="the record of sequence ids is damaged: it has format 0"):
        decode(b"\x00" + encode(Record(0, EARLIEST, []))[1:])


@settings(max_examples=500)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 20)), max_size=30))
def test_an_id_above_all_is_new_and_a_durable_one_is_a_repeat(steps: list[tuple[bool, int]]) -> None:
    """Messages enter the log, and become durable, in any order of ids."""
    known, given_ids, durable = SequenceState(), [NONE], [NONE]
    for becomes_durable, number in steps:
        outcome = known.judge(number)
        if number > max(given_ids):
            assert outcome is Outcome.NEW
        else:
            assert outcome is (Outcome.REPEAT if number <= max(durable) else Outcome.UNKNOWN)
        if outcome is Outcome.NEW:
            known.pushed = number
            given_ids.append(number)
        if becomes_durable:
            known.raise_to(known.pushed)
            durable.append(max(given_ids))


def test_the_last_id_of_a_batch_is_the_clients_or_counted() -> None:
    assert last_id(5, 0, 1) == 5
    assert last_id(5, 0, 10) == 14
    assert last_id(5, 20, 10) == 20
    assert last_id(5, 3, -7) == 5
    assert last_id(2**64 - 1, 0, 100) == LARGEST


@settings(max_examples=500)
@given(st.lists(rows_of_few, max_size=5), st.randoms(use_true_random=False))
def test_records_are_joined_in_any_order_any_number_of_times(found: list[Rows], chance: object) -> None:
    one, other = SequenceIds(1000, nobody), SequenceIds(1000, nobody)
    shuffled = [*found, *found]
    chance.shuffle(shuffled)  # type: ignore[attr-defined]
    for names in found:
        one.join(names)
    for names in shuffled:
        other.join(names)
    known = {name for names in found for name, _, _ in names}
    assert {name: one.last(name) for name in known} == {name: other.last(name) for name in known}


def test_beyond_the_limit_the_longest_unused_are_forgotten_and_the_connected_stay() -> None:
    sequences = SequenceIds(20, lambda name: name == "0")
    for number in range(20):
        sequences.known(str(number), number).raise_to(number)
    sequences.known("new", 100)
    assert len(sequences) == 19
    assert [sequences.last(name) for name in ("0", "1", "2", "3")] == [0, NONE, NONE, 3]


def test_if_all_are_connected_none_is_forgotten() -> None:
    sequences = SequenceIds(2, lambda _name: True)
    for name in "abc":
        sequences.known(name, 1).raise_to(7)
    assert [sequences.last(name) for name in "abc"] == [7, 7, 7]


def test_names_unused_for_long_are_forgotten() -> None:
    sequences = SequenceIds(10, lambda name: name == "connected")
    for name, time_ms in (("old", 10), ("connected", 10), ("young", 20)):
        sequences.known(name, time_ms).raise_to(1)
    sequences.forget_unused_since(20)
    assert [sequences.last(name) for name in ("old", "connected", "young")] == [NONE, 1, 1]


def test_many_names_are_several_records_and_the_last_names_the_position() -> None:
    sequences = SequenceIds(10_000, nobody)
    for number in range(2 * RECORD_NAMES + 1):
        sequences.known(str(number), number).raise_to(number)
    sequences.known("under way", 1)
    made = list(sequences.records(None, Position(3, 4)))
    assert [(record.upto, len(record.names)) for record in made] == [
        (EARLIEST, RECORD_NAMES),
        (EARLIEST, RECORD_NAMES),
        (Position(3, 4), 1),
    ]
    (some,) = sequences.records(["7", "under way", "unknown"], Position(3, 4))
    assert some.names == [("7", 7, 7)]
