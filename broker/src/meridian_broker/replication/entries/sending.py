# SPDX-License-Identifier: Apache-2.0
"""Converts a stored entry of this region to the SEND that carries it to another one.

This runs once per entry and remote, so nothing is parsed and the payload is copied once. The stamp comes from the
stored entry's header and is encoded by hand, as ``wire.pulsar.encode`` does with frequent frames. Fields are appended
to the body's metadata as ``wire.pulsar.origin_fields.append_replication`` describes (a test compares the two), and the
only access to the metadata is a search for the two bytes with which a schema version begins.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from crc32c import crc32c

from meridian_broker.ledgers.entry import CHUNK
from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.wire.pulsar import metadata
from meridian_broker.wire.pulsar.varints import varint

_SCHEMA_VERSION_TAG: Final = b"\x82\x01"
_ORIGIN_TAG: Final = b"\xc2\x3e"
_HEAD: Final = struct.Struct(">II")
_U32: Final = struct.Struct(">I")
_CHECKSUM: Final = struct.Struct("<I")
_SIZE_AT: Final = 6
_METADATA_AT: Final = 10


class Stamp(NamedTuple):
    """The stored header's facts about an own entry, and its place in the chain to this remote."""

    position: Position
    prev: Position
    sent_prev: Position
    checksum: int
    messages: int
    key_hash: int
    publish_time_ms: int
    stored_time_ms: int
    flags: int


def schema_version_of(stored: bytes, offset: int) -> bytes | None:
    """The schema version a stored entry names, or None.

    :param offset: where the body begins in ``stored``.
    """
    start = offset + _METADATA_AT
    (size,) = _U32.unpack_from(stored, offset + _SIZE_AT)
    if stored.find(_SCHEMA_VERSION_TAG, start, start + size) < 0:
        return None  # the usual case, decided without parsing
    return metadata.scan(stored[offset:]).schema_version or None


class SendWriter:
    """Writes the SENDs of one region's entries. Remembers the encodings that hardly ever change."""

    __slots__ = (
        "_following",
        "_ledger",
        "_ledger_bytes",
        "_ledger_text",
        "_position",
        "_published",
        "_published_field",
        "_region_field",
        "_replicated_from",
        "_stored",
        "_stored_field",
    )

    def __init__(self, region: str) -> None:
        name = region.encode()
        self._region_field = b"\x0a" + varint(len(name)) + name
        self._replicated_from = b"\x2a" + varint(len(name)) + name
        self._ledger = -1
        self._ledger_bytes = b""
        self._ledger_text = b""
        self._position = EARLIEST  # the last entry sent, and how the next one refers to it
        self._following = b""
        self._published = self._stored = -1
        self._published_field = self._stored_field = b""

    def send(
        self,
        producer_id: int,
        sequence: int,
        stamp: Stamp,
        stored: bytes,
        offset: int,
        schema_version: bytes | None = None,
    ) -> tuple[bytes, bytes]:
        """One SEND as two buffers: everything before the payload, and the payload.

        :param stored: the stored entry; its body begins at ``offset``.
        :param schema_version: the remote's number of the entry's schema, when it is another than ours (R41).
        """
        (size,) = _U32.unpack_from(stored, offset + _SIZE_AT)
        start = offset + _METADATA_AT
        payload = stored[start + size :]
        added = self._appended(stamp.position, schema_version)
        covered = _U32.pack(size + len(added)) + stored[start : start + size] + added
        checksum = crc32c(payload, crc32c(covered))

        origin = self._origin(stamp, len(added))
        inner = b"\x08" + varint(producer_id) + b"\x10" + varint(sequence)
        if stamp.messages != 1:
            inner += b"\x18" + varint(stamp.messages)
        if stamp.flags & CHUNK:
            inner += b"\x38\x01"
        inner += _ORIGIN_TAG + varint(len(origin)) + origin
        length = varint(len(inner))
        command = b"\x08\x06\x32" + length + inner
        body_size = 6 + len(covered) + len(payload)
        head = _HEAD.pack(len(command) + 4 + body_size, len(command))
        return b"".join((head, command, b"\x0e\x01", _U32.pack(checksum), covered)), payload

    def _ledger_of(self, ledger: int) -> bytes:
        if ledger != self._ledger:
            self._ledger, self._ledger_bytes = ledger, varint(ledger)
            self._ledger_text = str(ledger).encode()
        return self._ledger_bytes

    def _origin(self, stamp: Stamp, appended: int) -> bytes:
        """An encoded ``OriginStamp``. Most of its numbers are those of the entry before, and not encoded again."""
        position, prev, sent_prev, checksum, messages, key_hash, published, stored, flags = stamp
        ledger = self._ledger_of(position[0])
        if prev is self._position and sent_prev is prev:
            before = self._following
        else:
            before = _pair(b"\x20", b"\x28", prev) + _pair(b"\x30", b"\x38", sent_prev)
        entry = varint(position[1])
        self._position = position
        self._following = b"".join((b"\x20", ledger, b"\x28", entry, b"\x30", ledger, b"\x38", entry))
        if published != self._published:
            self._published, self._published_field = published, b"\x60" + varint(published)
        if stored != self._stored:
            self._stored, self._stored_field = stored, b"\x70" + varint(stored)
        return b"".join(
            (
                *(self._region_field, b"\x10", ledger, b"\x18", entry, before),
                *(b"\x45", _CHECKSUM.pack(checksum), b"\x48", varint(appended), b"\x50", varint(messages)),
                *(b"\x58", varint(key_hash), self._published_field, b"\x68", varint(flags), self._stored_field),
            )
        )

    def _appended(self, position: Position, schema_version: bytes | None) -> bytes:
        """The bytes appended to the metadata: the entry's origin, for us and for Pulsar's own consumers."""
        self._ledger_of(position.ledger)
        text = self._ledger_text + b":%d" % position.entry
        pair = _SOURCE_KEY + varint(len(text)) + text
        added = self._replicated_from + b"\x22" + varint(len(pair)) + pair
        if schema_version is not None:
            added += _SCHEMA_VERSION_TAG + varint(len(schema_version)) + schema_version
        return added


def _pair(ledger_tag: bytes, entry_tag: bytes, position: Position) -> bytes:
    """A position as two fields; -1, their default, is left out."""
    if position == EARLIEST:
        return b""
    if position.entry < 0:  # the start of a ledger
        return ledger_tag + varint(position.ledger)
    return ledger_tag + varint(position.ledger) + entry_tag + varint(position.entry)


_KEY: Final = metadata.SOURCE_POSITION_PROPERTY.encode()
_SOURCE_KEY: Final = b"\x0a" + varint(len(_KEY)) + _KEY + b"\x12"
