# SPDX-License-Identifier: Apache-2.0
"""Bytes in, commands out: the decoder of Pulsar frames, for the broker's and the client's side alike.

A frame is ``u32 total | u32 command size | BaseCommand [| payload part]``, big-endian. ``FrameDecoder.feed`` takes
the bytes of a socket read and returns the commands that became complete, in order. It does no I/O and keeps at most one
incomplete frame.

Three commands make up nearly all of a broker's traffic: SEND, ACK and FLOW. The scanning loop decodes them by hand
if they are encoded exactly as clients do it: known fields, in order, once, shortest varints.
In every other case the protobuf parser reads them, with the same result. Each result is a tuple that begins with the
command's type, so a table of handlers can be indexed by ``command[0]``::

    Send | Ack | Flow | Message | Command(type, message)

A broker's decoder joins ACKs and FLOWs of many consumers in a row that say the same (``alike.py``).

An unknown command is not an error: it is returned as ``Command(number, BaseCommand)``. Bytes that cannot be a frame
raise ``FrameError``; nothing after them can be read, so the connection is over. Commands that were complete before the
bad frame are in ``error.before``.
"""

from __future__ import annotations

import struct
from typing import Final

from crc32c import crc32c

from meridian_broker.bounds.clients import ACK_IDS, FRAME_BYTES
from meridian_broker.positions.position import Position
from meridian_broker.wire.pulsar import alike
from meridian_broker.wire.pulsar.commands import (
    ACK,
    ACK_OF_MANY,
    CUMULATIVE,
    FLOW,
    FLOW_OF_MANY,
    INDIVIDUAL,
    MESSAGE,
    SEND,
    Ack,
    AckOfMany,
    AnyCommand,
    Command,
    Flow,
    FlowOfMany,
    FrameError,
    FrameMalformed,
    FrameTooLarge,
    FrameTruncated,
    Message,
    Send,
)
from meridian_broker.wire.pulsar.parsing import parse
from meridian_broker.wire.pulsar.varints import VARINT_CACHE_ENTRIES, read_varint

__all__ = [
    "ACK",
    "ACK_OF_MANY",
    "CUMULATIVE",
    "FLOW",
    "FLOW_OF_MANY",
    "INDIVIDUAL",
    "MESSAGE",
    "SEND",
    "Ack",
    "AckOfMany",
    "AnyCommand",
    "Command",
    "Flow",
    "FlowOfMany",
    "FrameDecoder",
    "FrameError",
    "FrameMalformed",
    "FrameTooLarge",
    "FrameTruncated",
    "Message",
    "Send",
]

_START: Final = struct.Struct(">IIHBBBBBBBBBB")
"""Both sizes, the type with its tag, then ten bytes of command: enough to recognise most commands."""
_START_BYTES: Final = _START.size
_PADDING: Final = bytes(_START_BYTES)
_PAYLOAD_HEAD: Final = struct.Struct(">HI")
_MAGIC_NUMBER: Final = 0x0E01
_SMALLEST_BODY: Final = 10
_SIZES_BYTES: Final = 8
LARGE_BYTES: Final = 16 << 10
"""From this size on, copying a body costs more than referring to it in the buffer."""
_INT32_MAX: Final = (1 << 31) - 1
_PARTS_MAX: Final = 64
"""Pieces of one incomplete frame kept apart; a sender of single bytes must not cost an object for each."""
ACKED_ALIKE: Final = 64
"""ACKs of one entry that a decoder remembers: consumers of one connection may acknowledge several entries in turns."""
RUN_TRIES: Final = 2
"""So often in one read, a run of what many consumers say alike is looked for and not found."""
_PLAIN_ACK_BYTES: Final = 6 * ACK_IDS
"""An id takes six bytes at least."""
_TYPE_TAG: Final = 0x0800
"""Field 1 as varint, then the type in the low byte: the first two bytes of nearly every command."""
_SEND_START: Final = _TYPE_TAG | SEND
_ACK_START: Final = _TYPE_TAG | ACK
_FLOW_START: Final = _TYPE_TAG | FLOW
_SEND_FIELD: Final = SEND << 3 | 2
_ACK_FIELD: Final = ACK << 3 | 2
_FLOW_FIELD: Final = FLOW << 3 | 2

_new: Final = tuple.__new__
"""Half the cost of calling a ``NamedTuple`` class."""


class FrameDecoder:
    """Turns a stream of bytes into commands. One per connection and direction.

    :param max_frame_bytes: the largest ``total`` accepted.
    :param joins: what many consumers say alike becomes one ``AckOfMany`` or ``FlowOfMany``.
    """

    __slots__ = ("_acked", "_acker", "_failure", "_have", "_joins", "_ledgers", "_need", "_parts", "max_frame_bytes")

    def __init__(self, max_frame_bytes: int = FRAME_BYTES, *, joins: bool = False) -> None:
        self.max_frame_bytes = max_frame_bytes
        self._joins = joins
        self._parts: list[bytes | bytearray] = []
        self._have = 0
        self._need = _SIZES_BYTES
        self._failure: FrameError | None = None
        self._ledgers: dict[bytes, int] = {}
        self._acker = -1
        """The consumer that sent the first ACK."""
        self._acked: dict[bytes, Position] | None = None
        """Entries of the last ACKs of one entry each, by what follows the consumer in them: thousands may say the same.
        None until a second consumer acknowledges: for one alone, remembering costs more than it saves.
        """

    def feed(self, data: bytes) -> list[AnyCommand]:
        """The commands that ``data`` completes, oldest first; often none, often many.

        :raises FrameError: the bytes are not frames; the decoder refuses everything from then on.
        """
        if self._failure is not None:
            raise self._failure
        commands: list[AnyCommand] = []
        position = 0
        try:
            if self._have:
                position = self._finish(data, commands)
            if position < len(data):
                position = self._scan(data, position, commands)
                self._have = len(data) - position
                if self._have:
                    self._parts = [data[position:] if position else data]
        except FrameError as error:
            error.before = commands
            self._failure = error
            self._have = 0
            raise
        return commands

    def _finish(self, data: bytes, commands: list[AnyCommand]) -> int:
        """Complete the frame begun earlier; returns where in ``data`` the next one begins.

        Only the missing bytes are joined to it: a read contains many frames, and copying them all costs more than
        decoding them.
        """
        position = 0
        while self._have and position < len(data):
            lacking = self._need - self._have
            self._keep(data[position : position + lacking])
            position = min(position + lacking, len(data))
            if self._have == self._need:
                begun = b"".join(self._parts)
                left = len(begun) - self._scan(begun, 0, commands)
                self._parts = [begun] if left else []
                self._have = left
        return position

    def _keep(self, data: bytes) -> None:
        """One more piece of an incomplete frame."""
        parts = self._parts
        self._have += len(data)
        if len(parts) < _PARTS_MAX and not isinstance(parts[0], bytearray):
            parts.append(data)
            return
        if not isinstance(parts[0], bytearray):
            self._parts = parts = [bytearray().join(parts)]
        parts[0] += data

    def _scan(self, data: bytes, position: int, commands: list[AnyCommand]) -> int:
        """Append the complete commands of ``data`` from ``position`` on, return where the incomplete rest begins.

        The one loop everything passes. It is long on purpose: a call costs a tenth of a command.
        """
        size = len(data)
        limit = self.max_frame_bytes
        unpack, acked = _START.unpack_from, self._acked
        tries = RUN_TRIES if self._joins else 0
        view = memoryview(data)
        while True:
            if size - position >= _START_BYTES:
                total, length, start, field, inner, one, first, two, b0, b1, b2, b3, b4 = unpack(data, position)
            elif size - position >= _SIZES_BYTES:
                tail = data[position:] + _PADDING
                total, length, start, field, inner, one, first, two, b0, b1, b2, b3, b4 = unpack(tail)
            else:
                self._need = _SIZES_BYTES
                return position
            if total > limit:
                raise FrameTooLarge(f"a frame of {total} bytes; the limit is {limit}")
            if length + 4 > total:
                raise FrameTruncated(f"a command of {length} bytes in a frame of {total}")
            end = position + 4 + total
            if end > size:
                self._need = 4 + total
                return position
            at = position + 8
            command_end = at + length
            position = end

            if start == _ACK_START:
                if acked and field == _ACK_FIELD and one == 8 and inner == length - 4 and inner < 0x80:
                    if first < 0x80:
                        place = acked.get(data[at + 6 : command_end])
                    else:
                        place = acked.get(data[at + 7 : command_end])
                        first = first & 0x7F | two << 7
                    if place is not None and first < 0x4000:
                        if tries:
                            position = alike.take(data, at - 8, acked, commands)
                            if position >= end:
                                continue
                            position, tries = end, tries - 1
                        commands.append(_new(Ack, (ACK, first, INDIVIDUAL, [place], None, None)))
                        continue
                ack = self._plain_ack(data, at + 2, command_end)
                if ack is not None:
                    commands.append(ack)
                    continue
            elif one == 8 and inner == length - 4 and inner < 0x80:
                # A short command whose first field is the producer or consumer and whose second may be a number.
                rest = length - 7
                if first >= 0x80 and two < 0x80:
                    first, two, b0, b1, b2, b3 = first & 0x7F | two << 7, b0, b1, b2, b3, b4
                    rest -= 1
                if two == 0x10:
                    if b0 < 0x80:
                        number = b0
                        rest -= 1
                    elif b1 < 0x80:
                        number = b0 & 0x7F | b1 << 7
                        rest -= 2
                    elif b2 < 0x80:
                        number = b0 & 0x7F | (b1 & 0x7F) << 7 | b2 << 14
                        rest -= 3
                    elif b3 < 0x80:
                        number = b0 & 0x7F | (b1 & 0x7F) << 7 | (b2 & 0x7F) << 14 | b3 << 21
                        rest -= 4
                    else:
                        rest = -1
                    if (
                        start == _SEND_START
                        and field == _SEND_FIELD
                        and rest >= 0
                        and end - command_end >= _SMALLEST_BODY
                    ):
                        options = _send_options(data, command_end - rest, command_end) if rest else _NO_OPTIONS
                        magic, stored = _PAYLOAD_HEAD.unpack_from(data, command_end)
                        if options is not None and magic == _MAGIC_NUMBER:
                            messages, highest, chunk, marker = options
                            ok = crc32c(view[command_end + 6 : end]) == stored
                            body = data[command_end:end] if total < LARGE_BYTES else view[command_end:end]
                            sent = SEND, first, number, highest, messages, chunk, marker, None, None, False, ok, body
                            commands.append(_new(Send, sent))
                            continue
                    elif start == _FLOW_START and field == _FLOW_FIELD and rest == 0:
                        commands.append(_new(Flow, (FLOW, first, number)))
                        continue
            payload = data[command_end:end] if command_end < end else None
            commands.append(parse(data[at:command_end], payload))

    def _plain_ack(self, data: bytes, at: int, end: int) -> Ack | None:
        """The ACK whose field begins at ``at``, if it only acknowledges whole entries."""
        try:
            if data[at] != _ACK_FIELD:
                return None
            inner = data[at + 1]
            at += 2
            if inner >= 0x80:
                inner, at = read_varint(data, at - 1)
                if inner > _PLAIN_ACK_BYTES:  # perhaps more ids than allowed: the parser counts them first
                    return None
            if at + inner != end or data[at] != 8:
                return None
            consumer_id = data[at + 1]
            at += 2
            if consumer_id >= 0x80:
                consumer_id, at = read_varint(data, at - 1)
            words = at
            ack_type = data[at + 1]
            if data[at] != 0x10 or ack_type > CUMULATIVE:
                return None
            at += 2
            ids: list[Position] = []
            ledgers = self._ledgers
            while at < end and data[at] == 0x1A:
                stop = at + 2 + data[at + 1]
                ledger = ledgers.get(data[at + 3 : at + 11])
                if ledger is not None and data[at + 2] == 8 and data[at + 11] == 0x10:
                    at += 12
                else:
                    begin = at + 3
                    ledger, at = read_varint(data, begin)
                    if data[begin - 1] != 8 or data[at] != 0x10:
                        return None
                    if at - begin == 8:
                        if len(ledgers) >= VARINT_CACHE_ENTRIES:
                            ledgers.clear()
                        ledgers[data[begin:at]] = ledger
                    at += 1
                entry = data[at]
                at += 1
                if entry >= 0x80:
                    second = data[at]
                    if second < 0x80:
                        entry = entry & 0x7F | second << 7
                        at += 1
                    else:
                        entry, at = read_varint(data, at - 1)
                if at != stop:
                    return None
                ids.append(_new(Position, (ledger, entry)))
            request_id = None
            if at < end and data[at] == 0x40:
                request_id, at = read_varint(data, at + 1)
            if at != end:
                return None
            if consumer_id != self._acker and self._acked is None:
                self._acker, self._acked = consumer_id, None if self._acker < 0 else {}
            acked = self._acked
            if acked is not None and len(ids) == 1 and ack_type == INDIVIDUAL and request_id is None:
                if len(acked) >= ACKED_ALIKE:
                    acked.clear()
                acked[data[words:end]] = ids[0]
            return _new(Ack, (ACK, consumer_id, ack_type, ids, request_id, None))
        except IndexError:  # the command announces more bytes than there are: the parser raises the error
            return None


_NO_OPTIONS: Final = (1, None, False, False)


def _send_options(data: bytes, at: int, end: int) -> tuple[int, int | None, bool, bool] | None:
    """The fields after the sequence id of a SEND, if it has only these, in this order:

    number of messages, highest sequence id, chunk, marker.
    """
    messages, highest = 1, None
    chunk = marker = False
    try:
        if data[at] == 0x18:
            if at + 2 == end and data[at + 1] < 0x80:  # a small batch: the most common form
                return data[at + 1], None, False, False
            messages, at = read_varint(data, at + 1)
        if at < end and data[at] == 0x30:
            highest, at = read_varint(data, at + 1)
        if at < end and data[at] == 0x38 and data[at + 1] <= 1:
            chunk = data[at + 1] == 1
            at += 2
        if at < end and data[at] == 0x40 and data[at + 1] <= 1:
            marker = data[at + 1] == 1
            at += 2
    except IndexError:
        return None
    if at != end or messages > _INT32_MAX:
        return None
    return messages, highest, chunk, marker
