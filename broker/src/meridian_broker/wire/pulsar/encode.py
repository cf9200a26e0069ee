# SPDX-License-Identifier: Apache-2.0
"""Commands in, bytes out.

Frames that a broker sends millions of times (receipts, message headers) or that a replicator sends (SEND, ACK, FLOW)
are encoded by hand; everything else goes through protobuf by ``simple``. All functions return complete frames as
``bytes``, except ``message_header`` and ``send_header``: the body follows those on the socket. It is never copied here
and is shared between all subscriptions it goes to.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from meridian_broker.wire.proto import peer_pb2
from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar.varints import SHORT, VARINT_CACHE_ENTRIES, varint

if TYPE_CHECKING:
    from google.protobuf.message import Message as ProtoMessage

    from meridian_broker.wire.pulsar.frames import Send

_SHORT_END: Final = len(SHORT)
_U64: Final = (1 << 64) - 1
_HEAD: Final = struct.Struct(">II")
COPIED_BYTES: Final = 512
"""Up to this size, copying a body behind each header costs less than another buffer to write."""
BROADCAST_ENTRIES: Final = 64
"""Messages of a broadcast that are remembered, and ..."""
BROADCAST_BYTES: Final = 16 << 10
"""... their size; of larger ones, only the last."""
NOTED: Final = 4096
"""After this many entries in a row sent only once, topics have one subscription each, and noting saves nothing."""
SAMPLED: Final = 16
"""From then on one entry in this many is noted, to see when that changes."""

_ledger_fields: dict[int, bytes] = {}


def _ledger_field(ledger: int) -> bytes:
    """Field 1 of a message id. Ledger ids are eight bytes of varint and few at a time, hence remembered."""
    field = _ledger_fields.get(ledger)
    if field is None:
        if len(_ledger_fields) >= VARINT_CACHE_ENTRIES:
            _ledger_fields.clear()
        field = _ledger_fields[ledger] = b"\x08" + varint(ledger)
    return field


# ------------------------------------------------------------------------------------------------ any command

_FIELD_OF: Final[dict[int, tuple[str, bytes, bytes]]] = {
    field.number: (field.name, b"\x08" + varint(field.number), varint(field.number << 3 | 2))
    for field in pb.BaseCommand.DESCRIPTOR.fields
    if field.message_type is not None
}


def simple(kind: int, message: ProtoMessage) -> bytes:
    """The frame of a command without payload: ``kind`` is a ``BaseCommand.Type``, ``message`` goes in its field.

    :raises KeyError: no such type.
    :raises google.protobuf.message.EncodeError: a required field is missing.
    """
    _, type_field, tag = _FIELD_OF[kind]
    inner = message.SerializeToString()
    size = varint(len(inner))
    length = len(type_field) + len(tag) + len(size) + len(inner)
    return b"".join((_HEAD.pack(length + 4, length), type_field, tag, size, inner))


def command(base: pb.BaseCommand) -> bytes:
    """The frame of a whole ``BaseCommand`` without payload."""
    encoded = base.SerializeToString()
    return _HEAD.pack(len(encoded) + 4, len(encoded)) + encoded


PING: Final = simple(pb.BaseCommand.PING, pb.CommandPing())
PONG: Final = simple(pb.BaseCommand.PONG, pb.CommandPong())


def success(request_id: int) -> bytes:
    """SUCCESS."""
    return simple(pb.BaseCommand.SUCCESS, pb.CommandSuccess(request_id=request_id))


def error(request_id: int, code: int, message: str) -> bytes:
    """ERROR; -1 as ``request_id`` belongs to no request (handshake)."""
    return simple(pb.BaseCommand.ERROR, pb.CommandError(request_id=request_id & _U64, error=code, message=message))


def send_error(producer_id: int, sequence_id: int, code: int, message: str) -> bytes:
    """SEND_ERROR."""
    return simple(
        pb.BaseCommand.SEND_ERROR,
        pb.CommandSendError(producer_id=producer_id, sequence_id=sequence_id, error=code, message=message),
    )


# ------------------------------------------------------------------------------------------------ broker's side


def message_id(ledger: int, entry: int, partition: int = -1) -> bytes:
    """An encoded ``MessageIdData``, to share between the headers of one entry. -1 is the default partition."""
    number = SHORT[entry] if 0 <= entry < _SHORT_END else varint(entry)
    if partition < 0:
        return _ledger_field(ledger) + b"\x10" + number
    return b"".join((_ledger_field(ledger), b"\x10", number, b"\x18", varint(partition)))


def send_receipt(
    producer_id: int, sequence_id: int, ledger: int, entry: int, highest_sequence_id: int | None = None
) -> bytes:
    """SEND_RECEIPT. ``ledger`` and ``entry`` of -1 say: this was a duplicate."""
    place = _ledger_field(ledger) + b"\x10" + varint(entry)
    inner = b"\x08" + varint(producer_id) + b"\x10" + varint(sequence_id) + b"\x1a" + SHORT[len(place)] + place
    if highest_sequence_id is not None:
        inner += b"\x20" + varint(highest_sequence_id)
    return _RECEIPT_HEADS[len(inner)] + inner


def send_receipts(producer_id: int, sends: Iterable[Send], ledger: int, first_entry: int) -> bytes:
    """SEND_RECEIPTs of consecutive entries: like ``send_receipt`` for each, but cheaper."""
    start = b"\x08" + varint(producer_id) + b"\x10"
    ledger_field = _ledger_field(ledger) + b"\x10"
    receipts: list[bytes] = []
    for entry, send in enumerate(sends, first_entry):
        sequence_id, highest = send[2], send[3]
        number = SHORT[sequence_id] if sequence_id < _SHORT_END else varint(sequence_id)
        place = ledger_field + (SHORT[entry] if entry < _SHORT_END else varint(entry))
        inner = b"".join((start, number, b"\x1a", SHORT[len(place)], place))
        if highest is not None:
            inner += b"\x20" + varint(highest)
        receipts.append(_RECEIPT_HEADS[len(inner)] + inner)
    return b"".join(receipts)


def _heads(kind: int) -> list[bytes]:
    """Everything before the inner message, by the inner message's length (below 128)."""
    _, type_field, tag = _FIELD_OF[kind]
    before = len(type_field) + len(tag) + 1
    return [_HEAD.pack(n + before + 4, n + before) + type_field + tag + SHORT[n] for n in range(0x80)]


_RECEIPT_HEADS: Final = _heads(7)


class BroadcastMessage:
    """The part of a MESSAGE that is the same for every consumer: its place and its body. Made once per entry, when
    thousands of subscriptions are sent it one after the other.
    """

    __slots__ = ("_after", "_before", "_inner_length", "body", "entry", "length", "position")

    def __init__(self, entry: bytes, position: tuple[int, int], partition: int, offset: int) -> None:
        """:param offset: where the body begins in the entry."""
        self.entry = entry
        self.position = position
        self.length = len(entry) - offset
        place = message_id(*position, partition)
        self._after = b"\x12" + SHORT[len(place)] + place
        self._inner_length = 1 + len(self._after)  # without the number: of at most 30 bytes
        self._before: dict[int, bytes] = {}
        """By the size of the consumer's number."""
        self.body: memoryview | None = memoryview(entry)[offset:]
        """Written after the header; None: it is part of the header."""
        if self.length <= COPIED_BYTES:
            self._after += self.body
            self.body = None

    def header(self, consumer_id: int) -> bytes:
        """Like ``message_header`` for a message sent whole and for the first time; a small body is appended."""
        number = SHORT[consumer_id] if 0 <= consumer_id < _SHORT_END else varint(consumer_id)
        before = self._before.get(len(number))
        if before is None:
            inner_length = self._inner_length + len(number)
            head = _HEAD.pack(inner_length + 8 + self.length, inner_length + 4)
            before = b"".join((head, b"\x08\x09\x4a", SHORT[inner_length], b"\x08"))
            self._before[len(number)] = before
        return before + number + self._after


class BroadcastMessages:
    """Those that were sent last: a consumer that is sent several entries at once is followed by others that are sent
    the same. The first time an entry is only noted: to most, there is one subscription. While no entry is sent twice,
    only a sample of them is noted."""

    __slots__ = ("_known", "_noted", "last")

    def __init__(self) -> None:
        self.last = BroadcastMessage(b"", (-1, -1), -1, 0)
        """To be looked at before ``of``: it is nearly always the one, and a look costs less than a call."""
        self._known: dict[tuple[int, int], BroadcastMessage | bytes] = {}
        """Entries sent once so far are stored as they are."""
        self._noted = 0
        """Entries noted since the last one that was sent twice."""

    def of(self, entry: bytes, position: tuple[int, int], partition: int, offset: int) -> BroadcastMessage | None:
        """Parameters as of ``BroadcastMessage``. None: the entry was not sent lately, and this consumer may be the only
        one, for which ``message_header`` costs half as much."""
        if self._noted >= NOTED and position[1] % SAMPLED:
            return None
        known = self._known
        found = known.get(position)
        if found is entry:
            found = known[position] = BroadcastMessage(entry, position, partition, offset)
        if isinstance(found, BroadcastMessage) and found.entry is entry:
            self.last = found
            self._noted = 0
            return found
        self._noted += 1
        if len(entry) <= BROADCAST_BYTES:
            if len(known) >= BROADCAST_ENTRIES:
                known.clear()
            known[position] = entry
        return None


def message_header(
    consumer_id: int,
    place: bytes,
    body_length: int,
    redelivery_count: int = 0,
    ack_set: Sequence[int] = (),
    consumer_epoch: int | None = None,
) -> bytes:
    """The part of a MESSAGE before the body.

    :param place: from ``message_id``; one per entry, shared by all subscriptions.
    :param body_length: of the body (magic included) that is written after this.
    :param ack_set: for a partly acknowledged batch, as on the wire: set bits are still wanted. Signed or unsigned.
    """
    number = SHORT[consumer_id] if 0 <= consumer_id < _SHORT_END else varint(consumer_id)
    inner = b"".join((b"\x08", number, b"\x12", SHORT[len(place)], place))
    if redelivery_count:
        inner += b"\x18" + varint(redelivery_count)
    for word in ack_set:
        inner += b"\x20" + varint(word)
    if consumer_epoch is not None:
        inner += b"\x28" + varint(consumer_epoch)
    inner_length = len(inner)
    size = SHORT[inner_length] if inner_length < _SHORT_END else varint(inner_length)
    length = 3 + len(size) + inner_length
    return b"".join((_HEAD.pack(length + 4 + body_length, length), b"\x08\x09\x4a", size, inner))


def message(
    consumer_id: int,
    ledger: int,
    entry: int,
    body: bytes,
    partition: int = -1,
    redelivery_count: int = 0,
    ack_set: Sequence[int] = (),
    consumer_epoch: int | None = None,
) -> list[bytes]:
    """A MESSAGE as two buffers, header and body, for ``writelines``."""
    place = message_id(ledger, entry, partition)
    return [message_header(consumer_id, place, len(body), redelivery_count, ack_set, consumer_epoch), body]


# ------------------------------------------------------------------------------------------------ client's side


def send_header(
    producer_id: int,
    sequence_id: int,
    body_length: int,
    num_messages: int = 1,
    highest_sequence_id: int | None = None,
    is_chunk: bool = False,
    marker: bool = False,
    shadow_message_id: bytes | None = None,
    origin: peer_pb2.OriginStamp | None = None,
) -> bytes:
    """The part of a SEND before the body.

    :param shadow_message_id: from ``message_id``: the entry is to be stored under this id (shadow topics).
    :param origin: the stamp of a replicated entry; only to peers that speak the peer protocol.
    """
    inner = b"\x08" + varint(producer_id) + b"\x10" + varint(sequence_id)
    if num_messages != 1:
        inner += b"\x18" + varint(num_messages)
    if highest_sequence_id is not None:
        inner += b"\x30" + varint(highest_sequence_id)
    if is_chunk:
        inner += b"\x38\x01"
    if marker:
        inner += b"\x40\x01"
    if shadow_message_id is not None:
        inner += b"\x4a" + varint(len(shadow_message_id)) + shadow_message_id
    if origin is not None:
        stamp = origin.SerializeToString()
        inner += b"\xc2\x3e" + varint(len(stamp)) + stamp
    size = varint(len(inner))
    length = 3 + len(size) + len(inner)
    return _HEAD.pack(length + 4 + body_length, length) + b"\x08\x06\x32" + size + inner


def send(
    producer_id: int,
    sequence_id: int,
    body: bytes,
    num_messages: int = 1,
    highest_sequence_id: int | None = None,
    is_chunk: bool = False,
    marker: bool = False,
    shadow_message_id: bytes | None = None,
    origin: peer_pb2.OriginStamp | None = None,
) -> list[bytes]:
    """A SEND as two buffers, header and body, for ``writelines``."""
    header = send_header(
        producer_id,
        sequence_id,
        len(body),
        num_messages,
        highest_sequence_id,
        is_chunk,
        marker,
        shadow_message_id,
        origin,
    )
    return [header, body]


def ack(consumer_id: int, ack_type: int, ids: Iterable[tuple[int, int]], request_id: int | None = None) -> bytes:
    """ACK of whole entries, ``ids`` as (ledger, entry)."""
    inner = b"\x08" + varint(consumer_id) + b"\x10" + varint(ack_type)
    for ledger, entry in ids:
        place = _ledger_field(ledger) + b"\x10" + varint(entry)
        inner += b"\x1a" + SHORT[len(place)] + place
    if request_id is not None:
        inner += b"\x40" + varint(request_id)
    size = varint(len(inner))
    length = 3 + len(size) + len(inner)
    return _HEAD.pack(length + 4, length) + b"\x08\x0a\x52" + size + inner


def flow(consumer_id: int, permits: int) -> bytes:
    """FLOW."""
    inner = b"\x08" + varint(consumer_id) + b"\x10" + varint(permits)
    return _FLOW_HEADS[len(inner)] + inner


_FLOW_HEADS: Final = _heads(11)
