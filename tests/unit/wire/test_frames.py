# SPDX-License-Identifier: Apache-2.0
"""The frame decoder against protobuf: same commands however the bytes arrive, and only ``FrameError`` for bad ones."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st
from meridian_broker.bounds.clients import FRAME_BYTES
from meridian_broker.positions.position import Position
from meridian_broker.wire.proto import peer_pb2
from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar import encode, frames, metadata
from meridian_broker.wire.pulsar.frames import (
    Ack,
    Command,
    Flow,
    FrameDecoder,
    FrameError,
    FrameMalformed,
    FrameTooLarge,
    FrameTruncated,
    Message,
    Send,
)
from meridian_broker.wire.pulsar.parsing import parse
from meridian_broker.wire.pulsar.varints import varint

THOROUGH = settings(max_examples=500, deadline=None)

# Numbers around the limits of varint lengths, where hand-written parsers go wrong.
EDGES = [0, 1, 127, 128, 16383, 16384, (1 << 21) - 1, 1 << 21, (1 << 28) - 1, 1 << 28, 1 << 50, (1 << 63) - 1]
u64 = st.one_of(st.sampled_from([*EDGES, (1 << 64) - 1]), st.integers(0, (1 << 64) - 1))
u32 = st.one_of(st.sampled_from([n for n in EDGES if n < 1 << 32]), st.integers(0, (1 << 32) - 1))
i32 = st.one_of(st.sampled_from([0, 1, 127, 128, 16384, -1]), st.integers(-(1 << 31), (1 << 31) - 1))
maybe = st.booleans()
sixth, tenth = st.integers(0, 5), st.integers(0, 9)  # made once: a strategy costs more than what is drawn from it
payloads, texts, later = st.binary(max_size=40), st.text(max_size=8), st.integers(69, 999)


def frame(base: bytes, payload: bytes = b"") -> bytes:
    return struct.pack(">II", len(base) + 4 + len(payload), len(base)) + base + payload


def only(encoded: bytes) -> Any:
    """The single command in these bytes."""
    (command,) = FrameDecoder().feed(encoded)
    return command


def body(payload: bytes = b"hello", **fields: Any) -> bytes:
    view = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=2, **fields)
    return metadata.build_body(view.SerializeToString(), payload)


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    return body(draw(payloads))


@st.composite
def sends(draw: st.DrawFn) -> pb.CommandSend:
    send = pb.CommandSend(producer_id=draw(u64), sequence_id=draw(u64))
    if draw(maybe):
        send.num_messages = draw(i32)
    if draw(maybe):
        send.highest_sequence_id = draw(u64)
    if draw(maybe):
        send.is_chunk = draw(maybe)
    if draw(maybe):
        send.marker = draw(maybe)
    if draw(tenth) == 0:
        send.message_id.ledgerId, send.message_id.entryId = draw(u64), draw(u64)
    if draw(tenth) == 0:
        send.origin.region, send.origin.ledger, send.origin.prev_entry = "west", draw(u32), -1
    if draw(tenth) == 0:
        send.txnid_most_bits = draw(u64)
    return send


ack_types = st.sampled_from([pb.CommandAck.Individual, pb.CommandAck.Cumulative])
one_or_two_ledgers = st.lists(u64, min_size=1, max_size=2)
numbers_of_ids = st.sampled_from([0, 1, 1, 2, 7, 60, 1000])
some_of = {count: st.lists(st.integers(0, count - 1), min_size=1, max_size=4) for count in (1, 2, 7, 60, 1000)}


@st.composite
def acks(draw: st.DrawFn) -> pb.CommandAck:
    ack = pb.CommandAck(consumer_id=draw(u64), ack_type=draw(ack_types))
    ledgers = draw(one_or_two_ledgers)
    count = draw(numbers_of_ids)
    for number in range(count):
        ack.message_id.add(ledgerId=ledgers[number % len(ledgers)], entryId=number * 97)
    if count and draw(sixth) == 0:
        for number in draw(some_of[count]):
            ack.message_id[number].partition = draw(i32)
    if count and draw(sixth) == 0:
        for number in draw(some_of[count]):
            ack.message_id[number].ack_set[:] = [-1, 5]
            ack.message_id[number].batch_size = 70
    if draw(sixth) == 0 and ack.message_id:
        ack.message_id[0].entryId = draw(u64)
    if draw(maybe):
        ack.request_id = draw(u64)
    if draw(tenth) == 0:
        ack.validation_error = ack.ChecksumMismatch
    if draw(tenth) == 0:
        ack.txnid_least_bits = draw(u64)
    if draw(tenth) == 0:
        ack.properties.add(key="k", value=1)
    return ack


kinds = st.sampled_from(["send", "ack", "flow", "ping", "subscribe", "message", "unknown", "barrier"])


@st.composite
def commands(draw: st.DrawFn) -> tuple[pb.BaseCommand, bytes]:
    """A command and its payload, as a client would send it."""
    base = pb.BaseCommand()
    kind = draw(kinds)
    payload = b""
    if kind == "send":
        base.type = base.SEND
        base.send.CopyFrom(draw(sends()))
        payload = draw(bodies())
    elif kind == "ack":
        base.type = base.ACK
        base.ack.CopyFrom(draw(acks()))
    elif kind == "flow":
        base.type = base.FLOW
        base.flow.consumer_id, base.flow.messagePermits = draw(u64), draw(u32)
    elif kind == "ping":
        base.type = base.PING
        base.ping.SetInParent()
    elif kind == "subscribe":
        base.type = base.SUBSCRIBE
        base.subscribe.topic, base.subscribe.subscription = draw(texts), "s"
        base.subscribe.subType = base.subscribe.Shared
        base.subscribe.consumer_id, base.subscribe.request_id = draw(u64), draw(u64)
    elif kind == "message":
        base.type = base.MESSAGE
        base.message.consumer_id = draw(u64)
        base.message.message_id.ledgerId, base.message.message_id.entryId = draw(u64), draw(u64)
        payload = draw(bodies())
    elif kind == "barrier":
        base.type = base.BARRIER
        base.barrier.number = draw(u64)
    else:
        base.type = draw(later)
    return base, payload


def expected(base: pb.BaseCommand, payload: bytes) -> Any:
    """What the decoder must return, derived from the protobuf message alone."""
    if base.type == base.SEND:
        send = base.send
        return Send(
            6,
            send.producer_id,
            send.sequence_id,
            send.highest_sequence_id if send.HasField("highest_sequence_id") else None,
            send.num_messages,
            send.is_chunk,
            send.marker,
            send.message_id if send.HasField("message_id") else None,
            send.origin if send.HasField("origin") else None,
            send.HasField("txnid_most_bits") or send.HasField("txnid_least_bits"),
            True,
            payload,
        )
    if base.type == base.ACK:
        ack = base.ack
        plain = pb.CommandAck(consumer_id=ack.consumer_id, ack_type=ack.ack_type)
        plain.message_id.extend(pb.MessageIdData(ledgerId=one.ledgerId, entryId=one.entryId) for one in ack.message_id)
        if ack.HasField("request_id"):
            plain.request_id = ack.request_id
        without_partition = pb.CommandAck()
        without_partition.CopyFrom(ack)
        without_partition.DiscardUnknownFields()
        for one in without_partition.message_id:
            one.ClearField("partition")
            one.ClearField("batch_index")
        return Ack(
            10,
            ack.consumer_id,
            ack.ack_type,
            [Position(one.ledgerId, one.entryId) for one in ack.message_id],
            ack.request_id if ack.HasField("request_id") else None,
            None if without_partition == plain else ack,
        )
    if base.type == base.FLOW:
        return Flow(11, base.flow.consumer_id, base.flow.messagePermits)
    if base.type == base.MESSAGE:
        return Message(9, base.message, True, payload, None)
    field = base.DESCRIPTOR.fields_by_number.get(base.type)
    return Command(base.type, base if field is None else getattr(base, field.name))


@THOROUGH
@given(commands())
def test_every_command_is_parsed_as_protobuf_parses_it(command: tuple[pb.BaseCommand, bytes]) -> None:
    base, payload = command
    assert FrameDecoder().feed(frame(base.SerializeToString(), payload)) == [expected(base, payload)]


def test_acknowledgements_of_many_consumers_are_parsed_as_those_of_one() -> None:
    decoder, places = FrameDecoder(), [(1 << 50, number) for number in (3, 200, 70_000)]

    def acked(*consumers: int) -> list[Any]:
        sent = [(one, place) for one in consumers for place in places]
        data = b"".join(encode.ack(one, 0, (place,)) for one, place in sent)
        assert decoder.feed(data) == [Ack(10, one, 0, [Position(*place)], None, None) for one, place in sent]
        return [*(decoder._acked or ())]

    assert not acked(0) and not acked(0), "a lone consumer acknowledges every entry once: there is nothing to remember"
    assert len(acked(1)) == 3
    assert len(acked(2, 300, 20_000, 0)) == 3


@THOROUGH
@given(st.lists(commands(), max_size=6), st.data())
def test_any_split_gives_the_same_commands(stream: list[tuple[pb.BaseCommand, bytes]], data: st.DataObject) -> None:
    encoded = b"".join(frame(base.SerializeToString(), payload) for base, payload in stream)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(encoded)), max_size=12)))
    decoder = FrameDecoder()
    seen: list[Any] = []
    for begin, end in zip([0, *cuts], [*cuts, len(encoded)], strict=True):
        seen += decoder.feed(encoded[begin:end])
    assert seen == [expected(base, payload) for base, payload in stream]
    assert decoder._have == 0


def test_byte_by_byte() -> None:
    stream = b"".join(encode.send(3, 700, body(b"x" * 300), num_messages=9)) + encode.ack(1, 0, [(1 << 50, 9)])
    decoder = FrameDecoder()
    seen = [command for at in range(len(stream)) for command in decoder.feed(stream[at : at + 1])]
    assert [command[0] for command in seen] == [6, 10]
    assert seen == FrameDecoder().feed(stream)


def raw_varint(number: int, extra: int = 0) -> bytes:
    """A varint with ``extra`` needless bytes: legal protobuf that no client writes."""
    encoded = bytearray(varint(number))
    for _ in range(min(extra, 10 - len(encoded))):
        encoded[-1] |= 0x80
        encoded.append(0)
    return bytes(encoded)


def odd_fields(tags: list[int]) -> st.SearchStrategy[bytes]:
    """Fields of the given varint tags in any order, repeated, padded, with unknown ones between them."""
    field = st.builds(
        lambda tag, number, extra: raw_varint(tag) + raw_varint(number, extra),
        st.sampled_from([*tags, 15 << 3, 200 << 3]),
        st.sampled_from(EDGES),
        st.integers(0, 1),
    )
    return st.lists(field, max_size=5).map(b"".join)


@THOROUGH
@given(u64, u64, odd_fields([8, 16, 24, 48, 56, 64]), st.integers(0, 2), maybe)
def test_odd_sends_agree_with_protobuf(producer: int, sequence: int, tail: bytes, extra: int, swapped: bool) -> None:
    first, second = b"\x08" + raw_varint(producer, extra % 2), b"\x10" + raw_varint(sequence, extra)
    inner = (second + first if swapped else first + second) + tail
    command = b"\x08\x06\x32" + raw_varint(len(inner), extra // 2) + inner
    base = pb.BaseCommand.FromString(command)
    payload = body()
    assert FrameDecoder().feed(frame(command, payload)) == [expected(base, payload)]


@THOROUGH
@given(u64, u64, odd_fields([8, 16]), st.integers(0, 2))
def test_odd_flows_agree_with_protobuf(consumer: int, permits: int, tail: bytes, extra: int) -> None:
    inner = b"\x08" + raw_varint(consumer, extra % 2) + b"\x10" + raw_varint(permits, extra) + tail
    command = b"\x08\x0b\x5a" + raw_varint(len(inner)) + inner
    assert FrameDecoder().feed(frame(command)) == [expected(pb.BaseCommand.FromString(command), b"")]


@THOROUGH
@given(st.lists(st.tuples(u64, u64, st.integers(0, 2), maybe, odd_fields([24, 32])), max_size=5), u64, odd_fields([64]))
def test_odd_acks_agree_with_protobuf(ids: list[tuple[int, int, int, bool, bytes]], consumer: int, tail: bytes) -> None:
    inner = b"\x08" + raw_varint(consumer) + b"\x10\x00"
    for ledger, entry, extra, swapped, rest in ids:
        first, second = b"\x08" + raw_varint(ledger, extra % 2), b"\x10" + raw_varint(entry, extra)
        one = (second + first if swapped else first + second) + rest
        inner += b"\x1a" + raw_varint(len(one)) + one
    inner += tail
    command = b"\x08\x0a\x52" + raw_varint(len(inner)) + inner
    decoder = FrameDecoder()
    wanted = [expected(pb.BaseCommand.FromString(command), b"")]
    assert decoder.feed(frame(command)) == wanted
    assert decoder.feed(frame(command)) == wanted  # again, with the ledgers remembered


edge_ids = st.lists(st.tuples(st.sampled_from(EDGES), st.sampled_from(EDGES)), min_size=1, max_size=2)
few, fourth, any_byte = st.integers(2, 8), st.integers(0, 3), st.integers(0, 255)
mostly_no_request, mostly_individual = st.sampled_from([None, None, None, 7]), st.sampled_from([0, 0, 0, 1])


@st.composite
def similar_acks(draw: st.DrawFn) -> list[bytes]:
    """Equal or nearly equal commands of many consumers: ids of few entries, some bytes changed."""
    ids = draw(edge_ids)
    one_or_two = st.lists(st.sampled_from(ids), min_size=1, max_size=2)
    found = []
    for _ in range(draw(few)):
        some, request_id = draw(one_or_two), draw(mostly_no_request)
        command = bytearray(encode.ack(draw(u64), draw(mostly_individual), some, request_id)[8:])
        if draw(fourth) == 0:
            command[draw(st.integers(3, len(command) - 1))] = draw(any_byte)
        found.append(bytes(command))
    return found


@THOROUGH
@given(similar_acks())
def test_equal_acks_are_parsed_as_each_would_be_alone(stream: list[bytes]) -> None:
    alone: list[Any] = []
    for command in stream:
        try:
            alone.append(parse(command, None))
        except FrameError as refusal:
            alone.append(type(refusal))
            break
    decoder, together = FrameDecoder(), list[Any]()
    for command in stream:
        try:
            together += decoder.feed(frame(command))
        except FrameError as refusal:
            together.append(type(refusal))
            break
    assert together == alone
    lists = [id(command.ids) for command in together if isinstance(command, Ack)]
    assert len(set(lists)) == len(lists), "no shared list"


def test_commands_that_clients_write_take_the_fast_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fast path must not silently degrade to the slow one."""

    def slow(*_: object) -> None:
        raise AssertionError("the parser was asked")

    monkeypatch.setattr(frames, "parse", slow)
    ledger = 750_000_000_000_123
    stream = b"".join(
        [
            *encode.send(0, 0, body()),
            *encode.send(127, 1 << 27, body(), num_messages=1000),
            *encode.send(999, 5, body(), num_messages=2, highest_sequence_id=6),
            encode.ack(0, 0, [(ledger, n * 1000) for n in range(1000)], request_id=70_000),
            encode.ack(4000, 1, [(3, 4)]),
            encode.flow(9999, 1000),
            encode.flow(1, 1),
        ]
    )
    assert len(FrameDecoder().feed(stream)) == 7


def test_a_body_without_checksum_gets_one() -> None:
    covered = body()[6:]
    send = only(frame(b"\x08\x06\x32\x04\x08\x01\x10\x02", covered))
    assert send.checksum_ok
    assert send.body == b"\x0e\x01" + struct.pack(">I", crc32c(covered)) + covered == body()


@pytest.mark.parametrize("at", [2, 6, 12, -1])
def test_a_wrong_checksum_is_reported_not_raised(at: int) -> None:
    spoilt = bytearray(body())
    spoilt[at] ^= 1
    send = only(b"".join(encode.send(1, 2, bytes(spoilt))))
    assert not send.checksum_ok
    message = only(b"".join(encode.message(1, 2, 3, bytes(spoilt))))
    assert not message.checksum_ok


def test_the_brokers_entry_metadata_is_removed() -> None:
    entry = pb.BrokerEntryMetadata(broker_timestamp=5, index=6).SerializeToString()
    payload = b"\x0e\x02" + struct.pack(">I", len(entry)) + entry + body()
    base = pb.BaseCommand(type=9, message=pb.CommandMessage(consumer_id=1, message_id={"ledgerId": 1, "entryId": 2}))
    message = only(frame(base.SerializeToString(), payload))
    assert (message.body, message.broker_entry, message.checksum_ok) == (body(), entry, True)


def test_commands_before_a_bad_frame_are_kept() -> None:
    decoder = FrameDecoder()
    with pytest.raises(FrameTooLarge, match=f"{FRAME_BYTES + 1} bytes; the limit is {FRAME_BYTES}") as caught:
        decoder.feed(encode.flow(1, 2) + struct.pack(">II", FRAME_BYTES + 1, 5) + b"\x08\x12")
    assert caught.value.before == [Flow(11, 1, 2)]
    with pytest.raises(FrameTooLarge):
        decoder.feed(encode.PING)


@pytest.mark.parametrize(
    ("encoded", "error", "words"),
    [
        (struct.pack(">II", 10, 7) + bytes(6), FrameTruncated, "a command of 7 bytes in a frame of 10"),
        (struct.pack(">II", 0, 0), FrameTruncated, "in a frame of 0"),
        (frame(b""), FrameMalformed, "without a type"),
        (frame(b"\x08"), FrameMalformed, "not a protobuf message"),
        (frame(b"\x08\x06\x32\x7f\x08"), FrameMalformed, "not a protobuf message"),
        (frame(b"\x08\x06\x32\x02\x08\x01", body()), FrameMalformed, "sequence_id"),
        (frame(b"\x08\x06"), FrameMalformed, "type 6 without its field send"),
        (frame(b"\x08\x06\x32\x04\x08\x01\x10\x02"), FrameTruncated, "SEND without payload"),
        (frame(b"\x08\x06\x32\x04\x08\x01\x10\x02", b"\x0e\x01abc"), FrameTruncated, "payload of 5 bytes"),
        (frame(b"\x08\x06\x32\x04\x08\x01\x10\x02", b"abc"), FrameTruncated, "payload of 3 bytes"),
        (frame(b"\x08\x06\x32\x04\x08\x01\x10\x02", b"\x0e\x02\0\0\1\0ab"), FrameTruncated, "ends at byte 262"),
        (frame(b"\x08\x22\x92\x02\x06\x08\x01\x12\x02\xff\xfe"), FrameMalformed, "CommandGetSchema.topic is not UTF-8"),
        (frame(b"\x08\x0a\x52\x04\x08\x01\x10\x07"), FrameMalformed, "ack_type"),
    ],
)
def test_bad_frames_say_what_is_wrong(encoded: bytes, error: type[FrameError], words: str) -> None:
    with pytest.raises(error, match=words):
        FrameDecoder().feed(encoded)


def test_text_within_messages_is_checked_too() -> None:
    inner = b"\x0a\x01t\x12\x01s\x18\x01\x20\x01\x28\x01\x52\x06\x0a\x01k\x12\x01\xff"
    with pytest.raises(FrameMalformed, match=r"KeyValue.value is not UTF-8"):
        FrameDecoder().feed(frame(b"\x08\x04\x22" + bytes([len(inner)]) + inner))


@pytest.mark.parametrize("pieces", [1000, 3])
def test_an_incomplete_frame_is_bounded(pieces: int) -> None:
    decoder = FrameDecoder(max_frame_bytes=2048)
    decoder.feed(struct.pack(">II", 2048, 4)[:7])
    for _ in range(1000):
        decoder.feed(b"x")
    assert decoder._have == sum(map(len, decoder._parts)) == 1007
    big = b"".join(encode.send(1, 1, body(b"z" * 1900)))
    decoder = FrameDecoder(max_frame_bytes=2048)
    step = len(big) // pieces + 1
    got: list[Any] = [c for at in range(0, len(big), step) for c in decoder.feed(big[at : at + step])]
    assert [c.body for c in got] == [body(b"z" * 1900)]


def test_an_origin_stamp_is_transmitted() -> None:
    stamp = peer_pb2.OriginStamp(region="west", ledger=5, entry=6, prev_ledger=-1, checksum=0xFFFFFFFF)
    send = only(b"".join(encode.send(1, 2, body(), marker=True, origin=stamp)))
    assert send.origin == stamp
    assert send.marker
