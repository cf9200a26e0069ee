# SPDX-License-Identifier: Apache-2.0
"""Reads a message's own metadata: to build the header of an entry, and where the header alone is not enough."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from meridian_broker.bounds.clients import LATEST_TIME_MS, REPLICATE_TO_BYTES
from meridian_broker.ledgers.entry import BATCH, MARKER, UNCHAINED, EntryHeader, before, pack_extras, sound_count
from meridian_broker.ledgers.pending import OwnEntry
from meridian_broker.positions.position import Position
from meridian_broker.wire.pulsar import metadata
from meridian_broker.wire.pulsar.metadata import MetadataView

if TYPE_CHECKING:
    from meridian_broker.wire.proto.peer_pb2 import OriginStamp
    from meridian_broker.wire.pulsar.frames import Send

_SIZE: Final = struct.Struct(">I")
_FLAG_BITS: Final = 0xFF
"""Bits for the flags in an entry's header."""
_SIZE_AT: Final = 6
_HEAD_BYTES: Final = 10


def view(entry: bytes) -> MetadataView:
    """The metadata; the payload is not copied.

    :raises BodyError: the body is not valid.
    """
    offset = entry[2] << 8 | entry[3]
    (size,) = _SIZE.unpack_from(entry, offset + _SIZE_AT)
    return metadata.scan(entry[offset : offset + _HEAD_BYTES + size])


def own_entry(
    flags: int, view: MetadataView, body: bytes | memoryview, came_from: tuple[str, Position] | None = None
) -> OwnEntry:
    """An entry whose metadata was read and checked by ``validation.message``.

    :param came_from: see ``EntryHeader``.
    """
    extras, key_hash = b"", 0
    if view.replicate_to or view.deliver_at_ms is not None:
        extras = pack_extras(view.replicate_to, view.deliver_at_ms, came_from)
    if view.partition_key is not None or view.ordering_key is not None:
        key_hash = metadata.key_hash(view)
    checksum = metadata.body_checksum(body)
    flags = flags | BATCH if view.is_batch else flags
    return (flags, view.num_messages, key_hash, checksum, view.publish_time_ms, extras, body)


def marker_entry(body: bytes, publish_time_ms: int, only_to: str | None) -> OwnEntry:
    """The entry of a marker (``wire.pulsar.markers.marker_body``)."""
    extras = pack_extras(None if only_to is None else (only_to,), None)
    return (MARKER, 1, 0, metadata.body_checksum(body), publish_time_ms, extras, body)


def foreign_header(send: Send, stamp: OriginStamp, prev: Position, origin: Position, now_ms: int) -> EntryHeader:
    """The header of an entry of another region, which keeps its origin.

    It was accepted there, perhaps by an older version, and must be stored so that later ones can follow (R4). So
    values that ``validation.message`` would refuse are clamped to the limits.
    """
    said = metadata.scan(send.body)
    return EntryHeader(
        stamp.flags & _FLAG_BITS & ~UNCHAINED,
        0,
        sound_count(stamp.messages),
        stamp.key_hash,
        stamp.checksum,
        min(stamp.publish_time_ms, LATEST_TIME_MS),
        now_ms,
        prev,
        stamp.region,
        origin,
        None if said.replicate_to is None else _as_many_as_fit(said.replicate_to),
        None if said.deliver_at_ms is None else min(said.deliver_at_ms, LATEST_TIME_MS),
    )


def unchained_header(
    flags: int, view: MetadataView, body: bytes | memoryview, region: str, origin: Position, now_ms: int
) -> EntryHeader:
    """The header of a message of a region of Apache Pulsar, which has the position ``origin`` there.

    :param view: what its metadata says, with values that are within the limits.
    """
    has_key = view.partition_key is not None or view.ordering_key is not None
    return EntryHeader(
        flags | UNCHAINED | (BATCH if view.is_batch else 0),
        0,
        view.num_messages,
        metadata.key_hash(view) if has_key else 0,
        metadata.checksum_everywhere(body, view),
        view.publish_time_ms,
        now_ms,
        before(origin),
        region,
        origin,
        None if view.replicate_to is None else _as_many_as_fit(view.replicate_to),
        view.deliver_at_ms,
    )


def _as_many_as_fit(names: tuple[str, ...]) -> tuple[str, ...]:
    """The first of these region names that fit into the header together; nearly always all."""
    left, fitting = REPLICATE_TO_BYTES, 0
    for name in names:
        left -= len(name.encode()) + 1
        if left < 0:
            break
        fitting += 1
    return names[:fitting]
