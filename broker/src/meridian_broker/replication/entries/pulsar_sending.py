# SPDX-License-Identifier: Apache-2.0
"""Converts a stored entry of this region to the SEND that carries it to a region of Apache Pulsar.

As ``sending.py``, without what only Meridian understands. A client that copies a message copies its properties, also
the source position of a message that was replicated before. A region that deduplicates by it would take the copy for a
repeat and lose it, so a position that a message has already is removed.
"""

from __future__ import annotations

import struct
from typing import Final

from crc32c import crc32c

from meridian_broker.ledgers.entry import CHUNK, MARKER
from meridian_broker.replication.entries.sending import SendWriter, Stamp
from meridian_broker.wire.pulsar import metadata
from meridian_broker.wire.pulsar.varints import varint

_HEAD: Final = struct.Struct(">II")
_U32: Final = struct.Struct(">I")
_SIZE_AT: Final = 6
_METADATA_AT: Final = 10
_SOURCE: Final = metadata.SOURCE_POSITION_PROPERTY.encode()


class PulsarSendWriter(SendWriter):
    """Writes the SENDs of one region's entries."""

    __slots__ = ()

    def send(
        self,
        producer_id: int,
        sequence: int,
        stamp: Stamp,
        stored: bytes,
        offset: int,
        schema_version: bytes | None = None,
    ) -> tuple[bytes, bytes]:
        """As in ``SendWriter``."""
        (size,) = _U32.unpack_from(stored, offset + _SIZE_AT)
        start = offset + _METADATA_AT
        payload = stored[start + size :]
        said = stored[start : start + size]
        if _SOURCE in said:
            said = _without_source(stored[offset:])
        said += self._appended(stamp.position, schema_version)
        covered = _U32.pack(len(said)) + said
        checksum = crc32c(payload, crc32c(covered))
        inner = b"\x08" + varint(producer_id) + b"\x10" + varint(sequence)
        if stamp.messages != 1:
            inner += b"\x18" + varint(stamp.messages)
        if stamp.flags & CHUNK:
            inner += b"\x38\x01"
        if stamp.flags & MARKER:
            inner += b"\x40\x01"
        command = b"\x08\x06\x32" + varint(len(inner)) + inner
        body_size = 6 + len(covered) + len(payload)
        head = _HEAD.pack(len(command) + 4 + body_size, len(command))
        return b"".join((head, command, b"\x0e\x01", _U32.pack(checksum), covered)), payload


def _without_source(body: bytes) -> bytes:
    """The encoded metadata of a body without source positions."""
    said = metadata.parse(body)
    kept = [pair for pair in said.properties if pair.key != metadata.SOURCE_POSITION_PROPERTY]
    del said.properties[:]
    said.properties.extend(kept)
    return said.SerializeToString()
