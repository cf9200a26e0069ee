# SPDX-License-Identifier: Apache-2.0
"""The stored form of an entry: a small header, then the bytes exactly as they go to a client.

The *body* is what follows the command in a Pulsar payload frame: ``0x0e01 | crc32c | metadata size | metadata |
payload``. It is stored as received, so publishing and dispatching copy it once and never re-encode it. Everything the
broker needs at dispatch, for filters, for replication and after a restart is in the header, so none
of these paths parses protobuf.

Layout, big-endian (``HEADER``), followed by the origin's region name for entries that came from elsewhere and by
optional fields (type u8, length u16, bytes)::

    u8 version | u8 flags | u16 offset of the body | u32 messages | u32 key hash | u32 origin checksum
    u64 publish time ms | u64 stored time ms | i64 prev ledger | i64 prev entry
    [FOREIGN: i64 origin ledger | i64 origin entry | u8 length | region name]  [extras ...]  body

``origin checksum`` is the CRC32C of ``metadata size | metadata | payload`` as the origin stored it: replication appends
fields to the metadata, and this checksum proves that everything else is unchanged (R7, R60).
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from meridian_broker.bounds.clients import LATEST_TIME_MS
from meridian_broker.positions.claims import BATCH_LIMIT
from meridian_broker.positions.formats import unreadable
from meridian_broker.positions.position import EARLIEST, Position

FORMAT_VERSION: Final = 1

MARKER: Final = 0x01
"""Never shown to clients (PIP-33)."""
FOREIGN: Final = 0x02
"""First stored in another region; its origin follows the fixed part of the header."""
BATCH: Final = 0x04
"""The body is a client's batch: its messages share one entry."""
CHUNK: Final = 0x08
"""One piece of a message larger than the limit."""
NO_ORIGIN: Final = 0x10
"""From a peer that stamps no source position: takes no part in exact mode (R2)."""

DAMAGED: Final = 0x20
"""Never stored: read, with ``MARKER``, in place of an entry that the disk damaged (``damage.py``)."""

UNCHAINED: Final = 0x40
"""With ``FOREIGN``: its origin is a region of Apache Pulsar, which reports no chain. What lies between two of its
entries is unknown, so acknowledging one claims that entry alone: its ``prev`` is ``before`` it (R3)."""

EXTRA_REPLICATE_TO: Final = 1
"""Comma-joined names of the regions this entry may go to; absent: all."""
EXTRA_DELIVER_AT: Final = 2
"""u64 milliseconds since 1970: not delivered before this time."""
EXTRA_KEPT: Final = 3
"""In a compacted view, for a batch that lost messages: the bits of those left, least significant byte first."""

EXTRA_CAME_FROM: Final = 5
"""i64 ledger, i64 entry, region name: the Apache Pulsar region that a message without a common origin (R2) came from,
and its position there; -1: unknown."""
EXTRA_REPLACES: Final = 4
"""i64 ledger, i64 entry: a marker whose body is the entry that the disk damaged there, in its stored form."""

HEADER: Final = struct.Struct(">BBHIIIQQqq")
_HEADER_BYTES: Final = HEADER.size
_BARE: Final = bytes((0, 0, 0, 4))
_FOREIGN: Final = struct.Struct(">qqB")
_EXTRA: Final = struct.Struct(">BH")
_U64: Final = struct.Struct(">Q")
_PLACE: Final = struct.Struct(">qq")
_U32: Final = struct.Struct(">I")
_MESSAGES: Final = 4
"""Offset in the header."""
_PUBLISH_TIME: Final = 16
"""Offset in the header."""
_MAX_OFFSET: Final = (1 << 16) - 1


def before(origin: Position) -> Position:
    """The ``prev`` of an entry without a chain: that entry alone follows it. The same in every region."""
    return Position(origin.ledger, origin.entry - 1)


class EntryFormatError(ValueError):
    """The bytes are not an entry that this version can read."""


def sound_count(messages: int) -> int:
    """The number of messages that an entry counts as, whatever its metadata says.

    Versions before 0.1 stored the number that a client sent, and peers may still send one. A number that no batch can
    have counts as 1: as the width of a bit set or a number of permits it would harm other clients.
    """
    return messages if 0 < messages <= BATCH_LIMIT else 1


def messages(entry: bytes) -> int:
    """The number of messages of a stored entry, without reading the rest."""
    (count,) = _U32.unpack_from(entry, _MESSAGES)
    return count if 0 < count <= BATCH_LIMIT else 1


def publish_time_ms(entry: bytes) -> int:
    """The publish time of a stored entry, without reading the rest; never 0, which means "unknown".

    At most ``LATEST_TIME_MS``, for the same reason as in ``sound_count``.
    """
    return min(_U64.unpack_from(entry, _PUBLISH_TIME)[0], LATEST_TIME_MS) or 1


def head_of(entry: bytes) -> bytes | None:
    """The header alone, which ``unpack`` accepts in place of the entry; None: not an entry of this version."""
    if len(entry) < HEADER.size or entry[0] != FORMAT_VERSION:
        return None
    return entry[: entry[2] << 8 | entry[3]]


class EntryHeader(NamedTuple):
    """The header, unpacked."""

    flags: int
    body_offset: int
    messages: int
    key_hash: int
    origin_checksum: int
    publish_time_ms: int
    stored_time_ms: int
    prev: Position
    """The origin's previous own entry of this partition (R3); ``EARLIEST`` for its first."""
    region: str | None
    """The origin's region; None: this entry was first stored here."""
    origin: Position | None
    """The origin's position; None: the entry's own position is its origin."""
    replicate_to: tuple[str, ...] | None
    deliver_at_ms: int | None
    kept: int | None = None
    """Bits of the messages that compaction left in the batch; None: all."""
    replaces: Position | None = None
    """The damaged entry that the body replaces."""
    came_from: tuple[str, Position] | None = None
    """The region of Apache Pulsar that sent it, and its position there (``EARLIEST``: unknown); None: not from one.
    """

    @property
    def is_marker(self) -> bool:
        return bool(self.flags & MARKER)


def pack_own(
    flags: int,
    messages: int,
    key_hash: int,
    origin_checksum: int,
    publish_time_ms: int,
    stored_time_ms: int,
    prev_ledger: int,
    prev_entry: int,
    extras: bytes = b"",
    body: bytes | memoryview = b"",
) -> bytes:
    """The header of an entry first stored here, and the body. Flat arguments: this runs once per published entry."""
    return (
        HEADER.pack(
            FORMAT_VERSION,
            flags,
            _HEADER_BYTES + len(extras),
            messages,
            key_hash,
            origin_checksum,
            publish_time_ms,
            stored_time_ms,
            prev_ledger,
            prev_entry,
        )
        + extras
        + body
    )


def pack_bare(body: bytes | memoryview) -> bytes:
    """An entry that is delivered and never stored: its header says only where the body begins."""
    return _BARE + body


def pack_foreign(header: EntryHeader) -> bytes:
    """The header of an entry from another region; ``body_offset`` is computed here."""
    if header.region is None or header.origin is None:
        raise ValueError("a foreign entry has a region and an origin")
    name = header.region.encode()
    tail = _FOREIGN.pack(header.origin.ledger, header.origin.entry, len(name)) + name
    tail += pack_extras(header.replicate_to, header.deliver_at_ms)
    return (
        HEADER.pack(
            FORMAT_VERSION,
            header.flags | FOREIGN,
            HEADER.size + len(tail),
            header.messages,
            header.key_hash,
            header.origin_checksum,
            header.publish_time_ms,
            header.stored_time_ms,
            header.prev.ledger,
            header.prev.entry,
        )
        + tail
    )


def pack_extras(
    replicate_to: tuple[str, ...] | None,
    deliver_at_ms: int | None,
    came_from: tuple[str, Position] | None = None,
) -> bytes:
    """The optional fields; empty for nearly every entry."""
    extras = b""
    if came_from is not None:
        told = _PLACE.pack(*came_from[1]) + came_from[0].encode()
        extras += _EXTRA.pack(EXTRA_CAME_FROM, len(told)) + told
    if replicate_to is not None:
        joined = ",".join(replicate_to).encode()
        extras += _EXTRA.pack(EXTRA_REPLICATE_TO, len(joined)) + joined
    if deliver_at_ms is not None:
        extras += _EXTRA.pack(EXTRA_DELIVER_AT, 8) + _U64.pack(deliver_at_ms)
    return extras


def pack_replaces(position: Position) -> bytes:
    """The optional field of a marker that replaces a damaged entry."""
    return _EXTRA.pack(EXTRA_REPLACES, _PLACE.size) + _PLACE.pack(*position)


def unpack(entry: bytes) -> EntryHeader:
    """Read the header of a stored entry.

    :raises EntryFormatError: a newer format, or bytes that are not a valid entry.
    """
    try:
        version, flags, offset, count, key_hash, checksum, published, stored, prev_ledger, prev_entry = (
            HEADER.unpack_from(entry)
        )
        if version != FORMAT_VERSION:
            raise EntryFormatError(unreadable("the entry", version, FORMAT_VERSION))
        region = origin = replicate_to = deliver_at = kept = replaces = came_from = None
        at = HEADER.size
        if flags & FOREIGN:
            ledger, number, length = _FOREIGN.unpack_from(entry, at)
            at += _FOREIGN.size
            region, origin = str(entry[at : at + length], "utf-8"), Position(ledger, number)
            at += length
        while at < offset:
            kind, length = _EXTRA.unpack_from(entry, at)
            at += _EXTRA.size
            if kind == EXTRA_REPLICATE_TO:
                replicate_to = tuple(name for name in str(entry[at : at + length], "utf-8").split(",") if name)
            elif kind == EXTRA_DELIVER_AT:
                deliver_at = min(_U64.unpack_from(entry, at)[0], LATEST_TIME_MS)
            elif kind == EXTRA_KEPT:
                kept = int.from_bytes(entry[at : at + length], "little")
            elif kind == EXTRA_REPLACES:
                replaces = Position(*_PLACE.unpack_from(entry, at))
            elif kind == EXTRA_CAME_FROM:
                source = Position(*_PLACE.unpack_from(entry, at))
                came_from = str(entry[at + _PLACE.size : at + length], "utf-8"), source
            at += length
    except (struct.error, UnicodeDecodeError) as error:
        raise EntryFormatError(f"{len(entry)} bytes are not a stored entry: {error}") from error
    return EntryHeader(
        flags,
        offset,
        sound_count(count),
        key_hash,
        checksum,
        min(published, LATEST_TIME_MS),
        stored,
        Position(prev_ledger, prev_entry) if prev_ledger >= 0 else EARLIEST,
        region,
        origin,
        replicate_to,
        deliver_at,
        kept,
        replaces,
        came_from,
    )


def with_kept(entry: bytes, kept: int, body: bytes) -> bytes:
    """The entry with another body: its batch after compaction, which left the messages with these bits.

    :raises EntryFormatError: too many messages for their bits to fit in the header.
    """
    bits = kept.to_bytes((kept.bit_length() + 7) // 8 or 1, "little")
    head = _without_kept(entry) + _EXTRA.pack(EXTRA_KEPT, len(bits)) + bits
    if len(head) > _MAX_OFFSET:
        raise EntryFormatError(f"the bits of {kept.bit_length()} messages do not fit an entry's header")
    return head[:2] + len(head).to_bytes(2, "big") + head[4:] + body


def _without_kept(entry: bytes) -> bytes:
    at, offset = HEADER.size, entry[2] << 8 | entry[3]
    if entry[1] & FOREIGN:
        at += _FOREIGN.size + entry[at + _FOREIGN.size - 1]
    head = entry[:at]
    while at < offset:
        kind, length = _EXTRA.unpack_from(entry, at)
        end = at + _EXTRA.size + length
        if kind != EXTRA_KEPT:
            head += entry[at:end]
        at = end
    return head


def deliver_at_ms(entry: bytes) -> int:
    """Delivery time, milliseconds since 1970; 0: at once. For nearly every entry this reads only two bytes."""
    at, offset = HEADER.size, entry[2] << 8 | entry[3]
    if offset == at:
        return 0
    if entry[1] & FOREIGN:
        at += _FOREIGN.size + entry[at + _FOREIGN.size - 1]
    while at < offset:
        kind, length = _EXTRA.unpack_from(entry, at)
        at += _EXTRA.size
        if kind == EXTRA_DELIVER_AT:
            deliver_at: int = _U64.unpack_from(entry, at)[0]
            return min(deliver_at, LATEST_TIME_MS)
        at += length
    return 0
