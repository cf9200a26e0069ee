# SPDX-License-Identifier: Apache-2.0
"""Hostile byte streams for the frame decoder, and their invariants; shared by the unit tests and the fuzzer."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st
from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar import encode, frames, metadata, origin_fields
from meridian_broker.wire.pulsar.frames import FrameDecoder, FrameError
from meridian_broker.wire.pulsar.metadata import BodyError
from meridian_broker.wire.pulsar.parsing import parse
from meridian_broker.wire.pulsar.varints import varint

MAX_FRAME = 4096
_SIZES = struct.Struct(">II")


def _body(draw: st.DrawFn) -> bytes:
    view = pb.MessageMetadata(producer_name="meridian-0-1", sequence_id=9, publish_time=1_790_000_000_000)
    view.num_messages_in_batch = draw(st.sampled_from([1, 100, 70_000]))
    if draw(st.booleans()):
        view.partition_key = "key"
        view.properties.add(key="a", value="b")
    return metadata.build_body(view.SerializeToString(), draw(st.binary(max_size=30)))


@st.composite
def frames_of_clients(draw: st.DrawFn) -> bytes:
    """One well-formed frame."""
    number = draw(st.sampled_from([0, 1, 127, 128, 300, 16384, 1 << 21, 1 << 28, 750_000_000_000_123]))
    kind = draw(st.sampled_from(["send", "bare", "ack", "acks", "flow", "message", "ping", "subscribe", "later"]))
    if kind == "send":
        return b"".join(encode.send(number, number + 1, _body(draw), draw(st.sampled_from([1, 2, 300]))))
    if kind == "bare":
        body = _body(draw)[6:]
        return encode.send_header(number, 5, len(body), highest_sequence_id=9, is_chunk=True) + body
    if kind == "ack":
        return encode.ack(number, 0, [(750_000_000_000_123, number)])
    if kind == "acks":
        return encode.ack(2, 1, [(number, n) for n in range(30)], request_id=number)
    if kind == "flow":
        return encode.flow(number, 1000)
    if kind == "message":
        return b"".join(encode.message(number, number, 1, _body(draw), 3, 1, [-1], 2))
    if kind == "subscribe":
        ask = pb.CommandSubscribe(topic="t", subscription="s", consumer_id=number, request_id=1)
        ask.subType = ask.Key_Shared
        ask.metadata.add(key="k", value="v")
        return encode.simple(pb.BaseCommand.SUBSCRIBE, ask)
    if kind == "later":
        return _SIZES.pack(11, 7) + b"\x08\x63\x9a\x06\x02\x08\x01"
    return encode.PING


@st.composite
def mutated_streams(draw: st.DrawFn) -> bytes:
    """A sequence of frames with a few bytes changed, removed or inserted; sometimes only noise."""
    if draw(st.integers(0, 19)) == 0:
        return draw(st.binary(max_size=200))
    stream = bytearray(b"".join(draw(st.lists(frames_of_clients(), min_size=1, max_size=4))))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, max(0, len(stream) - 1)))
        how = draw(st.sampled_from(["change", "change", "flip", "cut", "insert"]))
        if how == "insert":
            stream[at:at] = draw(st.binary(max_size=4))
        elif how == "cut":
            del stream[at : at + draw(st.integers(1, 9))]
        elif stream:
            stream[at] = draw(st.integers(0, 255)) if how == "change" else stream[at] ^ 1 << draw(st.integers(0, 7))
    return bytes(stream)


TELLING = bytes.fromhex(
    "00 01 02 06 08 09 0a 0b 10 11 12 18 1a 20 22 2a 30 32 38 40 48 52 58 5a 60 7f 80 81 82 88 92 c0 ff"
)
"""Tags, small numbers and ends of varints: bytes on which a parser branches."""


def _edited(draw: st.DrawFn, encoded: bytes) -> bytes:
    """One to three bytes of ``encoded`` removed, or replaced or joined by ``TELLING`` bytes."""
    out = bytearray(encoded)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(out)))
        how = draw(st.sampled_from(["change", "insert", "cut"]))
        if how != "insert":
            del out[at : at + 1]
        if how != "cut":
            out.insert(at, draw(st.sampled_from(TELLING)))
    return bytes(out)


def _fields(draw: st.DrawFn, tags: Sequence[int]) -> bytes:
    """Varint fields with unusual numbers: needlessly long, made of tags."""
    out = b""
    for tag in draw(st.lists(st.sampled_from(tags), max_size=3)):
        number = bytes(one | 0x80 for one in draw(st.lists(st.sampled_from(TELLING), max_size=4)))
        out += varint(tag) + number + bytes((draw(st.sampled_from(TELLING)) & 0x7F,))
    return out


@st.composite
def near_frames(draw: st.DrawFn) -> bytes:
    """A frame with correct sizes around a command that is almost what clients write."""
    number = draw(st.sampled_from([0, 1, 127, 128, 300, 16384, 1 << 21, 750_000_000_000_123]))
    kind = draw(st.sampled_from([frames.SEND, frames.ACK, frames.FLOW]))
    if kind == frames.ACK:
        ids = [(750_000_000_000_123, n * number) for n in range(draw(st.integers(0, 3)))]
        command = encode.ack(number, 0, ids)[8:]
    else:
        first = _fields(draw, [8]) if draw(st.booleans()) else b"\x08" + varint(number)
        inner = first + b"\x10" + varint(number) + _fields(draw, [24, 48, 56, 64, 16, 120])
        command = bytes((8, kind, kind << 3 | 2)) + varint(len(inner)) + inner
    if draw(st.integers(0, 2)):
        command = _edited(draw, command)
    if len(command) > 4 and draw(st.booleans()):  # otherwise, the length alone gives the edit away
        command = command[:3] + bytes((len(command) - 4 & 0x7F,)) + command[4:]
    if draw(st.integers(0, 3)) == 0:  # fields of the envelope, after those of the command
        command += _fields(draw, [24, 48, 56, 64, 16])
    payload = _body(draw) if kind == frames.SEND else b""
    return _SIZES.pack(4 + len(command) + len(payload), len(command)) + command + payload


@st.composite
def near_metadata(draw: st.DrawFn) -> bytes:
    """A body around metadata that is almost what clients write."""
    view = pb.MessageMetadata(producer_name=draw(st.sampled_from(["p", "meridian-0-1", "n" * 130])))
    view.sequence_id, view.publish_time = 300, draw(st.sampled_from([1, 1_790_000_000_000, 1_790_000_000_000 << 7]))
    if draw(st.booleans()):
        view.properties.add(key="key", value="b")
    encoded = view.SerializeToString() + _fields(draw, [64, 72, 88, 96, 136, 192, 200, 16, 24])
    if draw(st.integers(0, 3)):
        encoded = _edited(draw, encoded)
    return metadata.build_body(encoded, b"payload")


def by_the_parser(stream: bytes) -> tuple[list[Any], type[FrameError] | None]:
    """The commands as the protobuf parser reads them, without the hand-written paths."""
    seen: list[Any] = []
    at = 0
    while len(stream) - at >= _SIZES.size:
        total, length = _SIZES.unpack_from(stream, at)
        if total > MAX_FRAME:
            return seen, frames.FrameTooLarge
        if length + 4 > total:
            return seen, frames.FrameTruncated
        end, command_end = at + 4 + total, at + 8 + length
        if end > len(stream):
            break
        try:
            payload = stream[command_end:end] if command_end < end else None
            seen.append(parse(stream[at + 8 : command_end], payload))
        except FrameError as error:
            return seen, type(error)
        at = end
    return seen, None


def decoded(pieces: list[bytes]) -> tuple[list[Any], type[FrameError] | None]:
    """What the decoder makes of these pieces. Any error but a ``FrameError`` reaches the test."""
    decoder = FrameDecoder(MAX_FRAME)
    seen: list[Any] = []
    for piece in pieces:
        try:
            seen += decoder.feed(piece)
        except FrameError as error:
            return seen + error.before, type(error)
        assert decoder._have < MAX_FRAME + 4
    return seen, None


def pieces_of(stream: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted(cut % (len(stream) + 1) for cut in cuts)
    return [stream[begin:end] for begin, end in zip([0, *places], [*places, len(stream)], strict=True)]


def check_stream(stream: bytes, cuts: list[int]) -> None:
    """The hand-written paths, the parser and every split agree; bodies are parsed correctly or refused."""
    wanted = by_the_parser(stream)
    assert decoded([stream]) == wanted
    assert decoded(pieces_of(stream, cuts)) == wanted
    for command in wanted[0]:
        if command[0] in (frames.SEND, frames.MESSAGE):
            check_body(command.body)


def check_body(body: bytes) -> None:
    try:
        wanted = metadata._view(metadata.parse(body), metadata.metadata_bounds(body)[1])
    except BodyError:
        wanted = None
    try:
        view = metadata.scan(body)
    except BodyError:
        assert wanted is None
        return
    assert view == wanted
    assert metadata.key_hash(view) >= 0
    extended, appended = origin_fields.append_replication(body, "west", 1, 2)
    assert origin_fields.strip_appended(extended, appended)[6:] == body[6:]
