# SPDX-License-Identifier: Apache-2.0
"""Reads any command with the protobuf parser: complete and slow, for all that ``frames`` does not read by hand."""

from __future__ import annotations

import struct
from typing import Any, Final, NamedTuple

from crc32c import crc32c
from google.protobuf.message import DecodeError

from meridian_broker.bounds.clients import ACK_IDS
from meridian_broker.positions.position import Position
from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar.commands import (
    ACK,
    FLOW,
    MESSAGE,
    SEND,
    Ack,
    AnyCommand,
    Command,
    Flow,
    FrameMalformed,
    FrameTooLarge,
    FrameTruncated,
    Message,
    Send,
)

MAGIC: Final = b"\x0e\x01"
"""Precedes the checksum of a payload."""
BROKER_ENTRY_MAGIC: Final = b"\x0e\x02"
"""Precedes the broker's own metadata of an entry."""
_U32: Final = struct.Struct(">I")
_FIELDS: Final[dict[int, str]] = {
    field.number: field.name for field in pb.BaseCommand.DESCRIPTOR.fields if field.message_type is not None
}


def _plan(descriptor: Any, above: tuple[Any, ...] = ()) -> _Plan:
    """The string fields of a message type, and the nested message types that have some."""
    strings = tuple(field.name for field in descriptor.fields if field.type == field.TYPE_STRING)
    inside = []
    for field in descriptor.fields:
        if field.message_type is not None and field.message_type not in (*above, descriptor):
            plan = _plan(field.message_type, (*above, descriptor))
            if plan.strings or plan.inside:
                inside.append((field.name, field.default_value == [], plan))
    return _Plan(strings, tuple(inside))


class _Plan(NamedTuple):
    strings: tuple[str, ...]
    inside: tuple[tuple[str, bool, Any], ...]


_PLANS: Final[dict[int, _Plan]] = {
    field.number: _plan(field.message_type)
    for field in pb.BaseCommand.DESCRIPTOR.fields
    if field.message_type is not None
}


def _check_text(message: Any, plan: _Plan) -> None:
    """The parser returns ``bytes`` for a string that is not UTF-8. Reject it here: the code above expects ``str``.

    :raises FrameMalformed: a string is not UTF-8.
    """
    for name in plan.strings:
        value = getattr(message, name)
        if not isinstance(value, str) and (isinstance(value, bytes) or any(isinstance(one, bytes) for one in value)):
            raise FrameMalformed(f"{message.DESCRIPTOR.name}.{name} is not UTF-8 text")
    for name, repeated, below in plan.inside:
        if repeated:
            for one in getattr(message, name):
                _check_text(one, below)
        elif message.HasField(name):
            _check_text(getattr(message, name), below)


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


def parse(command: bytes, payload: bytes | None) -> AnyCommand:
    """One command: ``command`` is an encoded ``BaseCommand``, ``payload`` what followed it in the frame.

    :raises FrameError: it is not a valid command, or lacks a required field.
    """
    try:
        base = pb.BaseCommand.FromString(command)
    except DecodeError as error:
        raise FrameMalformed(f"a command of {len(command)} bytes is not a protobuf message: {error}") from None
    kind = base.type
    name = _FIELDS.get(kind)
    if name is None:
        if not base.HasField("type"):
            raise FrameMalformed("a command without a type")
        return Command(kind, base)
    if not base.HasField(name):
        if kind in (18, 19):  # PING and PONG have no content
            return Command(kind, getattr(base, name))
        raise FrameMalformed(f"a command of type {kind} without its field {name}")
    message: Any = getattr(base, name)
    if not message.IsInitialized():
        raise FrameMalformed(f"{name} lacks required fields: {', '.join(message.FindInitializationErrors())}")
    if kind == SEND:
        return _send(message, payload)
    plan = _PLANS[kind]
    if plan.strings or plan.inside:
        _check_text(message, plan)
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
    if message.HasField("origin") and not isinstance(message.origin.region, str):
        raise FrameMalformed("OriginStamp.region is not UTF-8 text")
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
    """:raises FrameTooLarge: more ids than can be processed without delaying other connections."""
    if len(message.message_id) > ACK_IDS:
        raise FrameTooLarge(f"an ACK of {len(message.message_id)} message ids; the limit is {ACK_IDS}")
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
        [Position(one.ledgerId, one.entryId) for one in message.message_id],
        message.request_id if message.HasField("request_id") else None,
        message if unusual else None,
    )
