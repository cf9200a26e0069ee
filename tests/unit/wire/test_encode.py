# SPDX-License-Identifier: Apache-2.0
"""The hand-written encoders against protobuf: what they write means the same."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from google.protobuf.message import EncodeError
from hypothesis import given, settings
from hypothesis import strategies as st
from meridian_broker.wire.proto import peer_pb2
from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar import encode
from meridian_broker.wire.pulsar.errors import ServerError
from meridian_broker.wire.pulsar.frames import Send
from meridian_broker.wire.pulsar.varints import read_varint, varint

THOROUGH = settings(max_examples=500, deadline=None)
EDGES = [0, 1, 127, 128, 16383, 16384, (1 << 28) - 1, 1 << 28, 1 << 50, (1 << 63) - 1, (1 << 64) - 1]
u64 = st.one_of(st.sampled_from(EDGES), st.integers(0, (1 << 64) - 1))
u32 = st.one_of(st.sampled_from([n for n in EDGES if n < 1 << 32]), st.integers(0, (1 << 32) - 1))
i32 = st.integers(0, (1 << 31) - 1)
body = st.binary(max_size=30)


def opened(frame: bytes, body_length: int = 0) -> pb.BaseCommand:
    """The command of a frame, checked for correct sizes and the shortest encoding."""
    total, length = struct.unpack_from(">II", frame)
    assert total == len(frame) - 4 + body_length
    assert length == len(frame) - 8
    base = pb.BaseCommand.FromString(frame[8:])
    assert base.SerializeToString() == frame[8:]
    return base


def whole(kind: str, message: Any) -> pb.BaseCommand:
    base = pb.BaseCommand(type=pb.BaseCommand.DESCRIPTOR.fields_by_name[kind].number)
    getattr(base, kind).CopyFrom(message)
    return base


def place(ledger: int, entry: int, partition: int = -1) -> pb.MessageIdData:
    made = pb.MessageIdData(ledgerId=ledger, entryId=entry)
    if partition >= 0:
        made.partition = partition
    return made


@THOROUGH
@given(u64)
def test_varints(number: int) -> None:
    wanted = pb.CommandCloseProducer(producer_id=number, request_id=0).SerializeToString()[1:-2]
    assert varint(number) == wanted
    assert varint(number - (1 << 64)) == wanted or number < 1 << 63
    if number < 1 << 63:
        assert read_varint(b"??" + wanted + b"!", 2) == (number, 2 + len(wanted))
        with pytest.raises(IndexError):
            read_varint(wanted[:-1], 0)
    else:
        with pytest.raises(IndexError):
            read_varint(wanted, 0)


@THOROUGH
@given(u64, u64, u64, u64, st.one_of(st.none(), u64))
def test_send_receipt(producer: int, sequence: int, ledger: int, entry: int, highest: int | None) -> None:
    receipt = pb.CommandSendReceipt(producer_id=producer, sequence_id=sequence, message_id=place(ledger, entry))
    if highest is not None:
        receipt.highest_sequence_id = highest
    got = opened(encode.send_receipt(producer, sequence, ledger, entry, highest))
    assert got == whole("send_receipt", receipt)


def test_a_duplicates_receipt_has_no_position() -> None:
    got = opened(encode.send_receipt(1, 2, -1, -1, 2)).send_receipt.message_id
    assert (got.ledgerId, got.entryId) == ((1 << 64) - 1, (1 << 64) - 1)


@THOROUGH
@given(
    u64,
    u64,
    u64,
    body,
    st.one_of(st.just(-1), i32),
    u32,
    st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=70),
    st.one_of(st.none(), u64),
)
def test_message(
    consumer: int,
    ledger: int,
    entry: int,
    payload: bytes,
    partition: int,
    redelivered: int,
    ack_set: list[int],
    epoch: int | None,
) -> None:
    wanted = pb.CommandMessage(consumer_id=consumer, message_id=place(ledger, entry, partition), ack_set=ack_set)
    if redelivered:
        wanted.redelivery_count = redelivered
    if epoch is not None:
        wanted.consumer_epoch = epoch
    header, same = encode.message(consumer, ledger, entry, payload, partition, redelivered, ack_set, epoch)
    assert same is payload
    assert opened(header, len(payload)) == whole("message", wanted)


@THOROUGH
@given(u64, u64, body, i32, st.one_of(st.none(), u64), st.booleans(), st.booleans(), st.booleans(), st.booleans())
def test_send(
    producer: int,
    sequence: int,
    payload: bytes,
    messages: int,
    highest: int | None,
    chunk: bool,
    marker: bool,
    shadow: bool,
    replicated: bool,
) -> None:
    wanted = pb.CommandSend(producer_id=producer, sequence_id=sequence)
    stamp = peer_pb2.OriginStamp(region="west", ledger=1, entry=-1, checksum=7) if replicated else None
    if messages != 1:
        wanted.num_messages = messages
    if highest is not None:
        wanted.highest_sequence_id = highest
    if chunk:
        wanted.is_chunk = True
    if marker:
        wanted.marker = True
    if shadow:
        wanted.message_id.CopyFrom(place(5, 6))
    if stamp is not None:
        wanted.origin.CopyFrom(stamp)
    at = encode.message_id(5, 6) if shadow else None
    header, same = encode.send(producer, sequence, payload, messages, highest, chunk, marker, at, stamp)
    assert same is payload
    assert opened(header, len(payload)) == whole("send", wanted)


@THOROUGH
@given(u64, st.integers(0, 1), st.lists(st.tuples(u64, u64), max_size=40), st.one_of(st.none(), u64))
def test_ack(consumer: int, kind: Any, ids: list[tuple[int, int]], request: int | None) -> None:
    wanted = pb.CommandAck(consumer_id=consumer, ack_type=kind, message_id=[place(*one) for one in ids])
    if request is not None:
        wanted.request_id = request
    assert opened(encode.ack(consumer, kind, ids, request)) == whole("ack", wanted)


@THOROUGH
@given(u64, u32)
def test_flow(consumer: int, permits: int) -> None:
    got = opened(encode.flow(consumer, permits))
    assert got == whole("flow", pb.CommandFlow(consumer_id=consumer, messagePermits=permits))


@THOROUGH
@given(
    u64,
    u64,
    st.integers(0, 1 << 62),
    st.integers(0, 1 << 40),
    st.integers(-1, 10_000),
    st.one_of(st.binary(max_size=50), st.integers(500, 530).map(bytes)),
)
def test_a_broadcast_message_equals_what_each_consumer_would_be_sent_alone(
    consumer: int, other: int, ledger: int, number: int, partition: int, body: bytes
) -> None:
    broadcast = encode.BroadcastMessage(b"head" + body, (ledger, number), partition, 4)
    place = encode.message_id(ledger, number, partition)
    for one in (consumer, other):
        frame = broadcast.header(one) + (broadcast.body or b"")
        assert frame == encode.message_header(one, place, len(body)) + body


def test_entries_sent_in_turn_are_encoded_once_each() -> None:
    broadcast, entries = encode.BroadcastMessages(), [b"head" + bytes(size) for size in range(5)]
    assert [broadcast.of(one, (7, number), -1, 4) for number, one in enumerate(entries)] == [None] * 5
    first = [broadcast.of(one, (7, number), -1, 4) for number, one in enumerate(entries)]
    assert [one.entry for one in first if one is not None] == entries
    for _ in range(3):
        assert [broadcast.of(one, (7, number), -1, 4) for number, one in enumerate(entries)] == first
    other = b"head" + bytearray(3)  # of another topic with the same position, or read again
    assert other == entries[3] and broadcast.of(other, (7, 3), -1, 4) is None
    again = broadcast.of(other, (7, 3), -1, 4)
    assert again is not None and again.entry is other
    for number in range(3 * encode.BROADCAST_ENTRIES):
        broadcast.of(other, (8, number), -1, 4)
        broadcast.of(bytes(encode.BROADCAST_BYTES + 1), (9, number), -1, 4)
    assert len(broadcast._known) <= encode.BROADCAST_ENTRIES
    assert not [position for position in broadcast._known if position[0] == 9], "large entries are not kept"


def test_while_no_entry_is_sent_twice_only_a_sample_is_noted() -> None:
    broadcast, stored = encode.BroadcastMessages(), b"head"
    for number in range(encode.NOTED):
        assert broadcast.of(stored, (7, number), -1, 4) is None
    unsampled, sampled = (8, 2 * encode.SAMPLED + 1), (8, 2 * encode.SAMPLED)
    assert [broadcast.of(stored, unsampled, -1, 4) for _ in range(3)] == [None] * 3
    assert broadcast.of(stored, sampled, -1, 4) is None
    assert broadcast.of(stored, sampled, -1, 4) is not None, "a second subscription"
    assert broadcast.of(stored, unsampled, -1, 4) is None
    assert broadcast.of(stored, unsampled, -1, 4) is not None, "every entry is noted again"


@THOROUGH
@given(u64, st.sampled_from(list(ServerError)), st.text(max_size=20))
def test_answers(request: int, code: ServerError, text: str) -> None:
    assert opened(encode.success(request)) == whole("success", pb.CommandSuccess(request_id=request))
    wanted = pb.CommandError(request_id=request, error=code, message=text)
    assert opened(encode.error(request, code, text)) == whole("error", wanted)
    refused = pb.CommandSendError(producer_id=request, sequence_id=3, error=code, message=text)
    assert opened(encode.send_error(request, 3, code, text)) == whole("send_error", refused)


def test_no_request_is_minus_one() -> None:
    assert opened(encode.error(-1, ServerError.AUTHENTICATION, "no")).error.request_id == (1 << 64) - 1


def test_ping_and_pong() -> None:
    assert opened(encode.PING) == whole("ping", pb.CommandPing())
    assert opened(encode.PONG) == whole("pong", pb.CommandPong())


def test_every_command_has_the_field_of_its_type() -> None:
    fields = {f.number: f for f in pb.BaseCommand.DESCRIPTOR.fields if f.message_type is not None}
    assert set(fields) == set(pb.BaseCommand.Type.values())
    for kind, field in fields.items():
        base = pb.BaseCommand(type=kind)
        getattr(base, field.name).SetInParent()
        empty = getattr(base, field.name)
        if empty.IsInitialized():
            assert encode.simple(kind, empty) == encode.command(base)
        else:
            with pytest.raises(EncodeError):
                encode.simple(kind, empty)
    with pytest.raises(KeyError):
        encode.simple(69, pb.CommandPing())


def test_error_codes_are_those_of_the_protocol() -> None:
    assert {error.value for error in ServerError} == set(range(26)) == set(pb.ServerError.values())


@settings(max_examples=500, deadline=None)
@given(
    st.integers(0, (1 << 64) - 1),
    st.lists(st.tuples(st.integers(0, (1 << 64) - 1), st.one_of(st.none(), st.integers(0, (1 << 64) - 1))), max_size=5),
    st.integers(0, (1 << 62)),
    st.one_of(st.integers(0, 1 << 40), st.integers(16380, 16390)),
)
def test_receipts_of_a_group_equal_single_receipts(
    producer_id: int, numbers: list[tuple[int, int | None]], ledger: int, first: int
) -> None:
    sends = [
        Send(6, producer_id, sequence, highest, 1, False, False, None, None, False, True, b"")
        for sequence, highest in numbers
    ]
    each = [
        encode.send_receipt(producer_id, sequence, ledger, first + at, highest)
        for at, (sequence, highest) in enumerate(numbers)
    ]
    assert encode.send_receipts(producer_id, sends, ledger, first) == b"".join(each)
