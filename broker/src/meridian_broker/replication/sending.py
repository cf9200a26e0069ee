# SPDX-License-Identifier: Apache-2.0
"""A stored entry of this region -> the SEND frame that carries it to another one.

This runs once per entry and remote, so nothing is parsed: the stamp comes from the stored entry's header, the body
gets its two fields appended (``wire.pulsar.metadata.append_replication`` says what and why), and the only look into the
metadata is a search for the two bytes with which a schema version begins.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from meridian_broker.ledgers.entry import CHUNK
from meridian_broker.wire.proto import peer_pb2
from meridian_broker.wire.pulsar import encode, metadata

if TYPE_CHECKING:
    from meridian_broker.positions.position import Position

_SCHEMA_VERSION_TAG: Final = b"\x82\x01"
_METADATA_SIZE: Final = struct.Struct(">I")
_METADATA_SIZE_AT: Final = 6
_METADATA_AT: Final = 10


class Stamp(NamedTuple):
    """What the stored header says of an own entry, and its place in the chain to this remote."""

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
    (size,) = _METADATA_SIZE.unpack_from(stored, offset + _METADATA_SIZE_AT)
    if stored.find(_SCHEMA_VERSION_TAG, start, start + size) < 0:
        return None  # the usual case, settled without parsing
    return metadata.scan(stored[offset:]).schema_version or None


def send_frame(
    producer_id: int, sequence: int, region: str, stamp: Stamp, body: bytes, schema_version: bytes | None
) -> bytes:
    """One complete SEND frame.

    :param schema_version: the remote's number of the entry's schema, when it is another than ours (R41).
    """
    position = stamp.position
    body, appended = metadata.append_replication(body, region, position.ledger, position.entry, schema_version)
    origin = peer_pb2.OriginStamp(
        region=region,
        ledger=position.ledger,
        entry=position.entry,
        prev_ledger=stamp.prev.ledger,
        prev_entry=stamp.prev.entry,
        sent_prev_ledger=stamp.sent_prev.ledger,
        sent_prev_entry=stamp.sent_prev.entry,
        checksum=stamp.checksum,
        appended_metadata_bytes=appended,
        messages=stamp.messages,
        key_hash=stamp.key_hash,
        publish_time_ms=stamp.publish_time_ms,
        stored_time_ms=stamp.stored_time_ms,
        flags=stamp.flags,
    )
    header = encode.send_header(
        producer_id,
        sequence,
        len(body),
        num_messages=stamp.messages,
        is_chunk=bool(stamp.flags & CHUNK),
        origin=origin,
    )
    return header + body
