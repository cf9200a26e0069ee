# SPDX-License-Identifier: Apache-2.0
"""Bytes in, commands out: the decoder of Pulsar frames, for the broker's and the client's side alike.

A frame is ``u32 total | u32 command size | BaseCommand [| payload part]``, big-endian. ``FrameDecoder.feed`` takes
whatever a socket gave and returns the commands that became complete, in order. It does no I/O and keeps at most one
incomplete frame.

Three commands are nearly all of the traffic a broker gets: SEND, ACK and FLOW. They are taken apart by hand in the
scanning loop when they look exactly as clients write them, that is known fields, in order, once, shortest varints;
in every other case the protobuf parser reads them, with the same result. Each result is a tuple that begins with the
command's type, so a table of handlers can be indexed by ``command[0]``::

    Send | Ack | Flow | Message | Command(type, message)

An unknown command is no error: it comes as ``Command(number, BaseCommand)``. Bytes that cannot be a frame raise a
``FrameError``; nothing after them can be read, so the connection is over. Commands that were complete before the bad
frame are in ``error.before``.
"""

from __future__ import annotations

import struct
from typing import Any, Final, NamedTuple

from crc32c import crc32c
from google.protobuf.message import DecodeError

from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar.limits import MAX_FRAME_BYTES

SEND: Final = 6
MESSAGE: Final = 9
ACK: Final = 10
FLOW: Final = 11

MAGIC: Final = b"\x0e\x01"
"""Stands before the checksum of a payload."""
BROKER_ENTRY_MAGIC: Final = b"\x0e\x02"
"""Stands before the broker's own metadata of an entry."""

INDIVIDUAL: Final = 0
CUMULATIVE: Final = 1


class Send(NamedTuple):
    """A published entry. ``body`` is ``0x0e01 | crc32c | metadata size | metadata | payload``, ready to store."""

    type: int
    producer_id: int
    sequence_id: int
    highest_sequence_id: int | None
    """Of a batch: the sequence id of its last message; None when the client did not say."""
    num_messages: int
    is_chunk: bool
    marker: bool
    message_id: pb.MessageIdData | None
    """Only replicators of shadow topics send it (R7)."""
    origin: Any
    """``peer_pb2.OriginStamp`` of a replicated entry, or None."""
    transactional: bool
    checksum_ok: bool
    """False: the payload is not what its checksum says. True also when the client sent none; then it was added."""
    body: bytes


class Ack(NamedTuple):
    """Acknowledgements of one command; they belong together (R18)."""

    type: int
    consumer_id: int
    ack_type: int
    """``INDIVIDUAL`` or ``CUMULATIVE``."""
    ids: list[tuple[int, int]]
    """(ledger, entry) of each."""
    request_id: int | None
    """Given: the client waits for an ACK_RESPONSE."""
    detail: pb.CommandAck | None
    """The whole command, when it holds more than entries: batch indexes, a validation error, a transaction."""


class Flow(NamedTuple):
    """The consumer has room for so many more messages."""

    type: int
    consumer_id: int
    permits: int


class Message(NamedTuple):
    """A delivered entry (client's side)."""

    type: int
    command: pb.CommandMessage
    checksum_ok: bool
    body: bytes
    """As ``Send.body``."""
    broker_entry: bytes | None
    """The encoded ``BrokerEntryMetadata``, when the broker added one."""


class Command(NamedTuple):
    """Any other command: the message in the field of its type, or the whole ``BaseCommand`` of an unknown type."""

    type: int
    message: Any


AnyCommand = Send | Ack | Flow | Message | Command


class FrameError(ValueError):
    """The bytes are no Pulsar frames (any more): the peer's fault, and the end of the connection."""

    before: list[AnyCommand]
    """Commands of the same ``feed`` that were complete before the bad frame."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.before = []


class FrameTooLarge(FrameError):
    """The announced size is above the limit."""


class FrameTruncated(FrameError):
    """A size inside the frame points past its end."""


class FrameMalformed(FrameError):
    """The command is no protobuf message of its type."""


_START: Final = struct.Struct(">IIH")
_U32: Final = struct.Struct(">I")
_FIELDS: Final[dict[int, str]] = {
    field.number: field.name for field in pb.BaseCommand.DESCRIPTOR.fields if field.message_type is not None
}


def _body_of(payload: bytes) -> tuple[bytes, bool, bytes | None]:
    """Payload part of a frame -> (body, checksum ok, broker entry metadata)."""
    broker_entry = None
    if payload[:2] == BROKER_ENTRY_MAGIC:
        if len(payload) < 6:
            raise FrameTruncated("the broker's entry metadata is cut off before its size")
        end = 6 + _U32.unpack_from(payload, 2)[0]
        if end > len(payload):
            raise FrameTruncated(f"the broker's entry metadata ends at byte {end} of a payload of {len(payload)}")
        broker_entry = payload[6:end]
        payload = payload[end:]
    if payload[:2] == MAGIC:
        if len(payload) < 10:
            raise FrameTruncated(f"a payload of {len(payload)} bytes cannot hold a checksum and a metadata size")
        return payload, crc32c(memoryview(payload)[6:]) == _U32.unpack_from(payload, 2)[0], broker_entry
    if len(payload) < 4:
        raise FrameTruncated(f"a payload of {len(payload)} bytes cannot hold a metadata size")
    return MAGIC + _U32.pack(crc32c(payload)) + payload, True, broker_entry


def _parse(command: bytes, payload: bytes | None) -> AnyCommand:
    """One command through the protobuf parser: slow, complete."""
    try:
        base = pb.BaseCommand.FromString(command)
    except DecodeError as error:
        raise FrameMalformed(f"a command of {len(command)} bytes is no protobuf message: {error}") from None
    kind = base.type
    name = _FIELDS.get(kind)
    if name is None:
        if not base.HasField("type"):
            raise FrameMalformed("a command without a type")
        return Command(kind, base)
    if not base.HasField(name):
        if kind in (18, 19):  # PING and PONG have nothing to say
            return Command(kind, getattr(base, name))
        raise FrameMalformed(f"a command of type {kind} without its field {name}")
    message: Any = getattr(base, name)
    if not message.IsInitialized():
        raise FrameMalformed(f"{name} lacks required fields: {', '.join(message.FindInitializationErrors())}")
    if kind == SEND:
        return _send(message, payload)
    if kind == ACK:
        return _ack(message)
    if kind == FLOW:
        return Flow(FLOW, message.consumer_id, message.messagePermits)
    if kind == MESSAGE:
        if payload is None:
            raise FrameTruncated("a MESSAGE without payload")
        body, checksum_ok, broker_entry = _body_of(payload)
        return Message(MESSAGE, message, checksum_ok, body, broker_entry)
    return Command(kind, message)


def _send(message: pb.CommandSend, payload: bytes | None) -> Send:
    if payload is None:
        raise FrameTruncated("a SEND without payload")
    body, checksum_ok, _ = _body_of(payload)
    return Send(
        SEND,
        message.producer_id,
        message.sequence_id,
        message.highest_sequence_id if message.HasField("highest_sequence_id") else None,
        message.num_messages,
        message.is_chunk,
        message.marker,
        message.message_id if message.HasField("message_id") else None,
        message.origin if message.HasField("origin") else None,
        message.HasField("txnid_most_bits") or message.HasField("txnid_least_bits"),
        checksum_ok,
        body,
    )


def _ack(message: pb.CommandAck) -> Ack:
    unusual = (
        message.HasField("validation_error")
        or message.HasField("txnid_most_bits")
        or message.HasField("txnid_least_bits")
        or bool(message.properties)
        or any(one.ack_set or one.batch_size or one.HasField("first_chunk_message_id") for one in message.message_id)
    )
    return Ack(
        ACK,
        message.consumer_id,
        message.ack_type,
        [(one.ledgerId, one.entryId) for one in message.message_id],
        message.request_id if message.HasField("request_id") else None,
        message if unusual else None,
    )


class FrameDecoder:
    """Turns a stream of bytes into commands. One per connection and direction.

    :param max_frame_bytes: the largest ``total`` accepted.
    """

    __slots__ = ("_failure", "_have", "_need", "_parts", "max_frame_bytes")

    def __init__(self, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self.max_frame_bytes = max_frame_bytes
        self._parts: list[bytes] = []
        self._have = 0
        self._need = 8
        self._failure: FrameError | None = None

    @property
    def buffered_bytes(self) -> int:
        """Bytes of the incomplete frame; at most ``max_frame_bytes`` + 4."""
        return self._have

    def feed(self, data: bytes) -> list[AnyCommand]:
        """The commands that ``data`` completes, oldest first; often none, often many.

        :raises FrameError: no frames; the decoder refuses everything from then on.
        """
        if self._failure is not None:
            raise self._failure
        if self._parts:
            self._parts.append(data)
            self._have += len(data)
            if self._have < self._need:
                return []
            data = b"".join(self._parts)
            self._parts = []
        commands: list[AnyCommand] = []
        try:
            position = self._scan(data, commands)
        except FrameError as error:
            error.before = commands
            self._failure = error
            self._have = 0
            raise
        if position < len(data):
            self._parts = [data[position:] if position else data]
        self._have = len(data) - position
        return commands

    def _scan(self, data: bytes, commands: list[AnyCommand]) -> int:
        """Append the complete commands of ``data``, return where the incomplete rest begins."""
        size = len(data)
        position = 0
        start = _START.unpack_from
        while position + 10 <= size:
            total, length, _tag = start(data, position)
            if total > self.max_frame_bytes:
                raise FrameTooLarge(f"a frame of {total} bytes; the limit is {self.max_frame_bytes}")
            if length + 4 > total:
                raise FrameTruncated(f"a command of {length} bytes in a frame of {total}")
            end = position + 4 + total
            if end > size:
                self._need = 4 + total
                return position
            command_end = position + 8 + length
            command = data[position + 8 : command_end]
            payload = data[command_end:end] if command_end < end else None
            commands.append(_parse(command, payload))
            position = end
        self._need = 10
        return position
