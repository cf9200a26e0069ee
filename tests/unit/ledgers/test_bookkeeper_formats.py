# SPDX-License-Identifier: Apache-2.0
"""Bytes of BookKeeper's formats: this client reads what it writes, and refuses what is damaged or hostile."""

from __future__ import annotations

import struct

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st
from meridian_broker.engines.bookkeeper.entries import (
    OVERHEAD,
    EntryDamaged,
    entry_header,
    explicit_lac,
    parse_entry,
    parse_explicit_lac,
)
from meridian_broker.engines.bookkeeper.ledger_metadata import (
    BadMetadata,
    LedgerMetadata,
    LedgerState,
    Segment,
    bookie_address,
    decode,
    encode,
    ledger_key,
    ledger_of,
)
from meridian_broker.engines.bookkeeper.packets import (
    Answer,
    BadFrame,
    Code,
    Flags,
    Operation,
    add_request,
    batch_read_request,
    master_key,
    parse_answer,
    read_request,
)
from meridian_broker.wire.proto.bookkeeper_pb2 import BookieRegistration, LedgerMetadataFormat

many = settings(max_examples=500)
ids = st.integers(0, 2**63 - 1)
codes = st.sampled_from([code for code in Code if code >= 0])
names = st.text("abc0-9.:", min_size=1, max_size=8)


def answer_frame(operation: int, code: int, ledger: int, entry: int, rest: bytes = b"", version: int = 2) -> bytes:
    return struct.pack(">IIqq", version << 24 | operation << 16, code, ledger, entry) + rest


# -- packets ---------------------------------------------------------------------------------------------------------


def test_requests_have_the_documented_bytes() -> None:
    key = master_key(b"")
    assert key.hex() == "850bf1071c5e3d8c24235676f8816ae0cbe2f14f"
    assert add_request(b"k" * 20, 3).hex() == "0000001b" + "02010000" + "6b" * 20
    assert add_request(b"k" * 20, 0, Flags.RECOVERY | Flags.HIGH_PRIORITY)[4:8].hex() == "02010006"
    assert read_request(1, -1, b"k" * 20).hex() == "00000014" + "02020000" + "00" * 7 + "01" + "ff" * 8
    fencing = read_request(1, 2, b"k" * 20, Flags.FENCE)
    assert fencing.hex() == "00000028" + "02020001" + "00" * 7 + "01" + "00" * 7 + "02" + "6b" * 20
    batch = batch_read_request(1, 2, 3, 4, 5)
    assert batch.hex() == "00000028" + "02070000" + "".join(f"{n:016x}" for n in (1, 2, 3)) + "00000004" + f"{5:016x}"


@many
@given(codes, ids, st.integers(-1, 2**63 - 1), st.binary(max_size=100))
def test_answers_are_parsed(code: Code, ledger: int, entry: int, body: bytes) -> None:
    assert parse_answer(answer_frame(Operation.ADD, code, ledger, entry, bytes(8))) == Answer(
        Operation.ADD, code, ledger, entry, -1, []
    )
    found = [body] if code == Code.OK else []
    assert parse_answer(answer_frame(Operation.READ, code, ledger, entry, body)) == Answer(
        Operation.READ, code, ledger, entry, -1, found
    )


@many
@given(st.lists(st.binary(max_size=50), max_size=8), ids)
def test_a_batch_is_parsed(bodies: list[bytes], request: int) -> None:
    rest = struct.pack(">q", request) + b"".join(struct.pack(">I", len(body)) + body for body in bodies)
    answer = parse_answer(memoryview(answer_frame(Operation.BATCH_READ, 0, 1, 2, rest)))
    assert answer == Answer(Operation.BATCH_READ, Code.OK, 1, 2, request, bodies)
    if bodies:
        with pytest.raises(BadFrame):
            parse_answer(answer_frame(Operation.BATCH_READ, 0, 1, 2, rest[:-1] if bodies[-1] else rest[:-2]))


@many
@given(st.binary(max_size=64))
def test_any_bytes_are_parsed_as_an_answer_or_refused(frame: bytes) -> None:
    try:
        parse_answer(frame)
    except BadFrame:
        pass


def test_other_versions_and_unknown_codes() -> None:
    with pytest.raises(BadFrame, match="version 3"):
        parse_answer(answer_frame(Operation.ADD, 0, 1, 2, version=3))
    assert parse_answer(answer_frame(Operation.ADD, 999, 1, 2)).code == Code.UNKNOWN


# -- entries ---------------------------------------------------------------------------------------------------------


@many
@given(ids, st.integers(0, 2**62), st.data(), st.binary(max_size=200))
def test_an_entry_is_read_back_and_every_flipped_bit_is_detected(
    ledger: int, entry: int, drawn: st.DataObject, data: bytes
) -> None:
    last_confirmed = drawn.draw(st.integers(-1, entry - 1))
    body = entry_header(ledger, entry, last_confirmed, 12345, data) + data
    assert len(body) == OVERHEAD + len(data)
    assert parse_entry(ledger, body, entry) == (entry, last_confirmed, 12345, data)
    assert parse_entry(ledger, body).entry == entry
    bit = drawn.draw(st.integers(0, len(body) * 8 - 1))
    damaged = bytearray(body)
    damaged[bit // 8] ^= 1 << bit % 8
    for wrong, number in ((bytes(damaged), entry), (body[:-1], entry), (body, entry + 1)):
        with pytest.raises(EntryDamaged):
            parse_entry(ledger, wrong, number)
    with pytest.raises(EntryDamaged):
        parse_entry(ledger ^ 1, body, entry)


def test_an_entry_that_confirms_itself_is_refused() -> None:
    header = struct.pack(">qqqq", 1, 5, 5, 0)
    with pytest.raises(EntryDamaged, match="contradicts"):
        parse_entry(1, header + struct.pack(">I", crc32c(header)), 5)


@many
@given(ids, st.integers(-1, 2**62))
def test_an_explicit_last_confirmed_is_read_back(ledger: int, last: int) -> None:
    body = explicit_lac(ledger, last)
    assert parse_explicit_lac(ledger, body) == last
    for wrong in (body[:-1], body[:8] + b"\x7f" + body[9:], b""):
        with pytest.raises(EntryDamaged):
            parse_explicit_lac(ledger, wrong)


# -- metadata --------------------------------------------------------------------------------------------------------


@st.composite
def metadata(draw: st.DrawFn) -> LedgerMetadata:
    size = draw(st.integers(1, 4))
    write_quorum = draw(st.integers(1, size))
    firsts = sorted({0, *draw(st.lists(st.integers(1, 1000), max_size=4))})
    ensembles = st.lists(names, min_size=size, max_size=size).map(tuple)
    state = draw(st.sampled_from(LedgerState))
    return LedgerMetadata(
        write_quorum,
        draw(st.integers(1, write_quorum)),
        tuple(Segment(first, draw(ensembles)) for first in firsts),
        state,
        draw(st.integers(-1, 2000)) if state is LedgerState.CLOSED else -1,
        draw(st.integers(0, 2**40)),
        draw(st.binary(max_size=8)),
        created_ms=draw(ids),
        custom=tuple(draw(st.dictionaries(st.text(max_size=5), st.binary(max_size=9), max_size=3)).items()),
    )


@many
@given(metadata(), st.binary(max_size=20))
def test_metadata_is_read_back_with_what_newer_versions_added(one: LedgerMetadata, added: bytes) -> None:
    assert decode(encode(one)) == one
    message = LedgerMetadataFormat.FromString(_body(encode(one)))
    field_99 = b"\x9a\x06" + bytes([len(added)]) + added
    newer = decode(_framed(message.SerializeToString() + field_99))
    changed = newer.with_custom("k", b"v").closed(5, 6)
    assert field_99 in encode(changed)
    assert decode(encode(changed)) == changed


def _body(value: bytes) -> bytes:
    """Metadata without its version line and length."""
    at = value.index(b"\n") + 1
    while value[at] & 0x80:
        at += 1
    return value[at + 1 :]


def _framed(body: bytes) -> bytes:
    sizes = []
    size = len(body)
    while size >= 0x80:
        sizes.append(size & 0x7F | 0x80)
        size >>= 7
    return b"BookieMetadataFormatVersion\t3\n" + bytes([*sizes, size]) + body


@many
@given(metadata(), st.data())
def test_damaged_metadata_is_refused_or_parsed(one: LedgerMetadata, drawn: st.DataObject) -> None:
    value = bytearray(encode(one))
    value[drawn.draw(st.integers(0, len(value) - 1))] ^= 1 << drawn.draw(st.integers(0, 7))
    for wrong in (bytes(value), encode(one)[: drawn.draw(st.integers(0, len(value) - 1))]):
        try:
            decode(wrong)
        except BadMetadata:
            pass


@pytest.mark.parametrize(
    "value", [b"", b"BookieMetadataFormatVersion\t2\nquorumSize: 2\n", b"BookieMetadataFormatVersion"]
)
def test_other_formats_are_refused(value: bytes) -> None:
    with pytest.raises(BadMetadata, match="only format version 3"):
        decode(value)


def test_contradictory_metadata_is_refused() -> None:
    good = LedgerMetadata(2, 2, (Segment(0, ("a", "b")),))
    for segments in ((Segment(1, ("a", "b")),), (Segment(0, ("a", "b")), Segment(5, ("a",))), ()):
        message = LedgerMetadataFormat.FromString(_body(encode(good)))
        del message.segment[:]
        for segment in segments:
            message.segment.add(first_entry=segment.first, bookie=segment.ensemble)
        with pytest.raises(BadMetadata, match="contradict"):
            decode(_framed(message.SerializeToString()))
    message = LedgerMetadataFormat.FromString(_body(encode(good)))
    message.ack_quorum = 3
    with pytest.raises(BadMetadata, match="contradict"):
        decode(_framed(message.SerializeToString()))


def test_changes_of_metadata() -> None:
    one = LedgerMetadata(2, 2, (Segment(0, ("a", "b")),))
    two = one.with_ensemble(5, ("a", "c"))
    assert two.segments == (Segment(0, ("a", "b")), Segment(5, ("a", "c")))
    assert two.with_ensemble(5, ("d", "c")).segments[1] == Segment(5, ("d", "c"))
    with pytest.raises(ValueError, match="before the last one"):
        two.with_ensemble(4, ("a", "b"))
    assert two.bookies_of(4) == ("a", "b") and two.bookies_of(5) == ("a", "c")
    assert two.closed(4, 9).segments == one.segments
    assert two.closed(5, 9).segments == two.segments
    assert one.closed(-1, 0).segments == one.segments
    assert one.in_recovery(7).fence == 7 and one.fence is None
    striped = LedgerMetadata(2, 1, (Segment(0, ("a", "b", "c")),))
    assert [striped.bookies_of(entry) for entry in range(3)] == [("a", "b"), ("b", "c"), ("c", "a")]


@many
@given(ids)
def test_a_ledgers_key_is_read_back(ledger: int) -> None:
    assert ledger_of(ledger_key(ledger)) == ledger


def test_keys_are_bookkeepers() -> None:
    assert ledger_key(7) == b"/ledgers/00/0000/L0007"
    assert ledger_key(2**31 - 2) == b"/ledgers/21/4748/L3646"
    assert ledger_key(2**31 - 1) == b"/ledgers/000/0000/0021/4748/L3647"
    assert ledger_key(2**63 - 1) == b"/ledgers/922/3372/0368/5477/L5807"
    for other in (b"/ledgers/available/a:1", b"/ledgers/00/0000", b"/ledgers/00/0000/0007", b"/ledgers/idgen/ID-1"):
        assert ledger_of(other) is None
    for wrong in (-1, 2**63):
        with pytest.raises(ValueError, match="ledger ids"):
            ledger_key(wrong)


def test_a_bookies_address() -> None:
    registration = BookieRegistration()
    registration.endpoint.add(id="x", port=1, host="other", protocol="http")
    assert bookie_address(registration.SerializeToString(), "host:3181") == ("host", 3181)
    registration.endpoint.add(id="bookie", port=3182, host="10.0.0.1", protocol="bookie-rpc")
    assert bookie_address(registration.SerializeToString(), "bookie-1") == ("10.0.0.1", 3182)
    for value in (b"", b"\xff\xff"):
        with pytest.raises(BadMetadata, match="bookie-1"):
            bookie_address(value, "bookie-1")
