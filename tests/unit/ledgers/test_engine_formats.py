# SPDX-License-Identifier: Apache-2.0
"""The bytes of the log and of its checkpoints: written, read back, flipped, torn."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from meridian_broker.engines.local import checkpoint, segment
from meridian_broker.engines.local.index import Ledger, Run
from meridian_broker.engines.local.segment import (
    BATCH_BYTES,
    ENTRY,
    RECORD_BYTES,
    SEGMENT_HEADER_BYTES,
    Damage,
    LedgerState,
    Record,
    Scanner,
    SegmentHeader,
    TornTail,
)

NUMBER = 5
i64 = st.integers(0, (1 << 63) - 1)
datas = st.lists(st.binary(max_size=60), min_size=1, max_size=12)


def log_of(entries: list[bytes], *, marks: bool = False) -> tuple[bytes, list[int]]:
    """A segment with the entries of ledger 9, and each entry's offset; ``marks`` puts a batch mark before each."""
    content = segment.segment_header(SegmentHeader(NUMBER, NUMBER - 1, 1000))
    places = []
    for entry, data in enumerate(entries):
        if marks:
            content += segment.batch_record(NUMBER, len(content), len(content))
        places.append(len(content))
        content += segment.record(ENTRY, 9, entry, data)
    return content, places


def scan(content: bytes, *, attested: bool = False) -> list[Record | Damage | TornTail]:
    scanner = Scanner(lambda at, size: content[at : at + size], NUMBER, len(content), attested=attested)
    return list(scanner.scan())


def entries_in(found: list[Record | Damage | TornTail], content: bytes) -> dict[int, bytes]:
    return {
        item.entry: content[item.offset + RECORD_BYTES : item.offset + RECORD_BYTES + item.length]
        for item in found
        if isinstance(item, Record) and item.kind == ENTRY
    }


@settings(max_examples=500, deadline=None)
@given(datas)
def test_written_records_are_scanned(entries: list[bytes]) -> None:
    content, places = log_of(entries)
    found = scan(content)
    assert entries_in(found, content) == dict(enumerate(entries))
    assert [item.offset for item in found] == places


@settings(max_examples=500, deadline=None)
@given(datas, st.data())
def test_a_torn_log_ends_at_the_last_whole_record(entries: list[bytes], data: st.DataObject) -> None:
    content, places = log_of(entries)
    cut = data.draw(st.integers(SEGMENT_HEADER_BYTES, len(content)))
    ends = [*places[1:], len(content)]
    whole = [entry for entry, end in enumerate(ends) if end <= cut]
    found = scan(content[:cut])
    assert list(entries_in(found, content)) == whole
    last = ends[whole[-1]] if whole else SEGMENT_HEADER_BYTES
    if cut > last:
        assert found[-1] == TornTail(last)


@settings(max_examples=500, deadline=None)
@given(datas, st.data())
def test_a_flipped_bit_hides_one_record_of_an_attested_log(entries: list[bytes], data: st.DataObject) -> None:
    content, _ = log_of(entries, marks=True)
    at = data.draw(st.integers(SEGMENT_HEADER_BYTES, len(content) - 1))
    flipped = bytearray(content)
    flipped[at] ^= 1 << data.draw(st.integers(0, 7))
    found = scan(bytes(flipped), attested=True)
    survivors = entries_in(found, bytes(flipped))
    assert survivors.items() <= dict(enumerate(entries)).items()
    assert len(survivors) >= len(entries) - 1
    assert sum(isinstance(item, Damage) for item in found) == 1
    assert not any(isinstance(item, TornTail) for item in found)


def test_a_broken_length_that_ends_where_a_later_record_begins_hides_one_record() -> None:
    entries = [bytes(8), bytes(8), bytes(8), bytes(9), b""]
    content, _ = log_of(entries, marks=True)
    broken = bytearray(content)
    broken[SEGMENT_HEADER_BYTES + 2] ^= 1
    assert list(entries_in(scan(bytes(broken), attested=True), bytes(broken))) == [1, 2, 3, 4]


def test_a_broken_record_is_damage_only_below_a_mark() -> None:
    entries = [b"a" * 40, b"b" * 40, b"c" * 40]
    content, places = log_of(entries, marks=True)
    broken = bytearray(content)
    broken[places[1] + RECORD_BYTES] ^= 1
    found = scan(bytes(broken))
    assert [type(item) for item in found] == [Record, Record, Record, Damage, Record, Record]
    assert found[3] == Damage(places[1], places[2] - BATCH_BYTES, (ENTRY, 9, 1, 40))
    broken = bytearray(content)
    broken[places[2] + RECORD_BYTES] ^= 1
    assert scan(bytes(broken))[-1] == TornTail(places[2])


def test_a_mark_in_the_torn_group_proves_nothing() -> None:
    """Two batches of one group: the second says what was durable when it was built, which is less than the first."""
    content = segment.segment_header(SegmentHeader(NUMBER, -1, 0))
    start = len(content)
    content += segment.batch_record(NUMBER, start, start)
    first = len(content)
    content += segment.record(ENTRY, 9, 0, b"first" * 10)
    content += segment.batch_record(NUMBER, len(content), start)
    content += segment.record(ENTRY, 9, 1, b"second" * 10)
    torn = content[:first] + bytes(RECORD_BYTES + 50) + content[first + RECORD_BYTES + 50 :]
    assert entries_in(scan(torn), torn) == {}
    assert scan(torn)[-1] == TornTail(first)


def test_a_copied_mark_is_not_a_mark() -> None:
    """An entry that contains the bytes of a mark does not turn a torn tail into damage."""
    content, places = log_of([b"x", segment.batch_record(NUMBER, 77, 1 << 20)])
    broken = bytearray(content)
    broken[places[0] + RECORD_BYTES] ^= 1
    assert scan(bytes(broken)) == [TornTail(places[0])]


@settings(max_examples=500, deadline=None)
@given(st.integers(1, 6), i64, i64, st.binary(max_size=40), st.integers(0, 63))
def test_every_bit_of_a_head_counts(kind: int, ledger: int, entry: int, data: bytes, bit: int) -> None:
    def crc(kind: int, ledger: int, entry: int) -> int:
        return int.from_bytes(segment.record_head(kind, ledger, entry, data)[4:8], "big")

    there = crc(kind, ledger, entry)
    if bit < 63:
        assert crc(kind, ledger ^ 1 << bit, entry) != there
        assert crc(kind, ledger, entry ^ 1 << bit) != there
    if bit < 8:
        assert crc(kind ^ 1 << bit, ledger, entry) != there


def test_states_and_headers_are_read_back() -> None:
    for label in (b"", b"whose it is"):
        state = LedgerState(1 << 40, 17, True, label)
        packed = segment.state_record(9, state)
        assert segment.unpack_state(packed[RECORD_BYTES:]) == state
    header = SegmentHeader(3, 2, 1 << 33)
    packed = segment.segment_header(header)
    assert segment.unpack_segment_header(packed, "x") == header
    assert segment.unpack_segment_header(packed[:-1], "x") is None
    for at in range(len(packed)):
        flipped = bytearray(packed)
        flipped[at] ^= 4
        assert segment.unpack_segment_header(bytes(flipped), "x") is None


@settings(max_examples=500, deadline=None)
@given(i64, i64, st.lists(st.integers(0, (1 << 64) - 1), max_size=20), st.data())
def test_index_blocks(ledger: int, first: int, places: list[int], data: st.DataObject) -> None:
    packed = checkpoint.pack_block(ledger, first, array("Q", places))
    assert len(packed) == checkpoint.block_bytes(len(places))
    assert checkpoint.unpack_block(packed, ledger, first, len(places)) == array("Q", places)
    flipped = bytearray(packed)
    flipped[data.draw(st.integers(0, len(packed) - 1))] ^= 16
    assert checkpoint.unpack_block(bytes(flipped), ledger, first, len(places)) is None
    assert checkpoint.unpack_block(packed, ledger, first + 1, len(places)) is None


@st.composite
def ledgers(draw: st.DrawFn) -> list[Ledger]:
    found = []
    for number in draw(st.lists(i64, unique=True, max_size=5)):
        ledger = Ledger(number, draw(i64), 0, draw(st.binary(max_size=40)))
        ledger.sealed = draw(st.booleans())
        ledger.confirmed = draw(i64)
        first = 0
        for place in draw(st.lists(st.integers(1, 9), max_size=4)):
            run = Run(place, first)
            run.places = array("Q", range(place))
            run.fix(draw(st.integers(0, 1 << 40)))
            run.block = draw(i64)
            ledger.runs.append(run)
            first = run.end
        found.append(ledger)
    return found


@settings(max_examples=500, deadline=None)
@given(ledgers(), st.integers(0, 9), st.dictionaries(i64, i64, max_size=4), st.lists(i64, max_size=4), st.data())
def test_checkpoints(
    ledgers: list[Ledger], covered: int, segments: dict[int, int], deleted: list[int], data: st.DataObject
) -> None:
    packed = b"".join(
        checkpoint.assemble(7, covered, segments, [checkpoint.pack_ledger(each, covered) for each in ledgers], deleted)
    )
    found = checkpoint.unpack_checkpoint(packed, "x")
    assert found is not None
    assert (found.number, found.covered, found.segments, found.deleted) == (7, covered, segments, deleted)
    for image, ledger in zip(found.ledgers, ledgers, strict=True):
        assert (image.ledger_id, image.fence, image.sealed) == (ledger.ledger_id, ledger.fence, ledger.sealed)
        assert image.label == ledger.label
        assert image.entries == (ledger.confirmed if ledger.sealed else -1)
        kept = [run for run in ledger.runs if run.segment <= covered]
        assert [(run.segment, run.first, run.count, run.stored_bytes, run.block) for run in image.runs] == [
            (run.segment, run.first, run.count, run.stored_bytes, run.block) for run in kept
        ]
    flipped = bytearray(packed)
    flipped[data.draw(st.integers(0, len(packed) - 1))] ^= 16
    assert checkpoint.unpack_checkpoint(bytes(flipped), "x") is None
    assert checkpoint.unpack_checkpoint(packed[:-1], "x") is None


@pytest.mark.parametrize("name", ["segment-000000000012.log", "checkpoint-000000000012", "segment-000000000012.index"])
def test_file_names_are_distinguished(name: str) -> None:
    from meridian_broker.engines.local.segment import segment_number

    readers = (segment_number, checkpoint.checkpoint_number, checkpoint.index_number)
    assert [reader(name) for reader in readers].count(12) == 1
    for other in (name + ".new", "x" + name, name.replace("12", "1x"), "LOCK"):
        assert [reader(other) for reader in readers] == [None, None, None]
