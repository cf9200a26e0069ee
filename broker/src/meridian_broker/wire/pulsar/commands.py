# SPDX-License-Identifier: Apache-2.0
"""The decoder's results: one tuple per command, and the errors for invalid bytes.

Every tuple begins with the command's type, so a table of handlers can be indexed by ``command[0]``.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from meridian_broker.positions.position import Position
from meridian_broker.wire.proto import pulsar_pb2 as pb

SEND: Final = 6
MESSAGE: Final = 9
ACK: Final = 10
FLOW: Final = 11
ACK_OF_MANY: Final = -ACK
FLOW_OF_MANY: Final = -FLOW
"""No types of the protocol: what a decoder says of many such commands in a row."""

INDIVIDUAL: Final = 0
CUMULATIVE: Final = 1


class Send(NamedTuple):
    """A published entry. ``body`` is ``0x0e01 | crc32c | metadata size | metadata | payload``, ready to store."""

    type: int
    producer_id: int
    sequence_id: int
    highest_sequence_id: int | None
    """For a batch: the sequence id of its last message; None when the client did not send it."""
    num_messages: int
    is_chunk: bool
    marker: bool
    message_id: pb.MessageIdData | None
    """Only replicators of shadow topics send it (R7)."""
    origin: Any
    """``peer_pb2.OriginStamp`` of a replicated entry, or None."""
    transactional: bool
    checksum_ok: bool
    """False: the payload does not match its checksum. Also True if the client sent none; then one was added."""
    body: bytes | memoryview
    """A large body is a view of the buffer that was read, not a copy."""


class Ack(NamedTuple):
    """The acknowledgements of one command, which belong together (R18)."""

    type: int
    consumer_id: int
    ack_type: int
    """``INDIVIDUAL`` or ``CUMULATIVE``."""
    ids: list[Position]
    request_id: int | None
    """If present, the client waits for an ACK_RESPONSE."""
    detail: pb.CommandAck | None
    """The whole command, if it contains more than entries: batch indexes, a validation error, a transaction."""


class Flow(NamedTuple):
    """The consumer can accept this many more messages."""

    type: int
    consumer_id: int
    permits: int


class AckOfMany(NamedTuple):
    """Each of these consumers acknowledges this entry, by itself, without waiting for an answer."""

    type: int
    consumer_ids: list[int]
    position: Position


class FlowOfMany(NamedTuple):
    """Each of these consumers can accept this many more messages."""

    type: int
    consumer_ids: list[int]
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


AnyCommand = Send | Ack | Flow | AckOfMany | FlowOfMany | Message | Command


class FrameError(ValueError):
    """The bytes are not Pulsar frames: the peer's fault, and the end of the connection."""

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
    """The command is not a protobuf message of its type."""
