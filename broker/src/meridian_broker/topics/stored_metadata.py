# SPDX-License-Identifier: Apache-2.0
"""What a message's own metadata says: to make the header of an entry, and for the few whose header says too little."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from meridian_broker.ledgers.entry import BATCH, EntryHeader, pack_extras
from meridian_broker.ledgers.pending import OwnEntry
from meridian_broker.positions.position import Position
from meridian_broker.topics.errors import NOT_FROM_CLIENTS, NotAllowed
from meridian_broker.topics.key_ranges import slot_of
from meridian_broker.wire.pulsar import metadata
from meridian_broker.wire.pulsar.metadata import BodyError, MetadataView

if TYPE_CHECKING:
    from meridian_broker.wire.proto.peer_pb2 import OriginStamp
    from meridian_broker.wire.pulsar.frames import Send

_KEY_HASH: Final = struct.Struct(">I")
_KEY_HASH_AT: Final = 8
_SIZE_AT: Final = 6
_HEAD_BYTES: Final = 10


def view(entry: bytes) -> MetadataView:
    """The metadata; the payload is not copied.

    :raises BodyError: the body is none.
    """
    offset = entry[2] << 8 | entry[3]
    (size,) = _KEY_HASH.unpack_from(entry, offset + _SIZE_AT)
    return metadata.scan(entry[offset : offset + _HEAD_BYTES + size])


def slot(entry: bytes) -> int:
    """The Key_Shared slot. A message without a key counts by its producer's name and sequence id, so they spread."""
    (key_hash,) = _KEY_HASH.unpack_from(entry, _KEY_HASH_AT)
    if key_hash == 0:
        try:
            key_hash = metadata.key_hash(view(entry))
        except (BodyError, struct.error):
            return 1  # it was let in once, so somebody may have it
    return slot_of(key_hash)


def own_entry(flags: int, messages: int, body: bytes | memoryview, longest_delay: int) -> OwnEntry:
    """An entry whose metadata says more than every message's does.

    A source position is no reason to refuse it: clients that copy a message to a dead-letter or retry topic copy its
    properties, and one that came from another region has this one. Nothing is read from it: origins are peers' (R7).
    """
    view = metadata.scan(body)
    if view.marker_type is not None or view.replicated_from is not None:
        raise NotAllowed(NOT_FROM_CLIENTS)
    if view.deliver_at_ms is not None and view.deliver_at_ms - view.publish_time_ms > longest_delay:
        raise NotAllowed(f"it asks to be delivered more than {longest_delay} ms after it was published")
    extras, key_hash = b"", 0
    if view.replicate_to or view.deliver_at_ms is not None:
        extras = pack_extras(view.replicate_to, view.deliver_at_ms)
    if view.partition_key is not None or view.ordering_key is not None:
        key_hash = metadata.key_hash(view)
    checksum = metadata.body_checksum(body)
    return (flags | BATCH if view.is_batch else flags, messages, key_hash, checksum, view.publish_time_ms, extras, body)


def foreign_header(send: Send, stamp: OriginStamp, prev: Position, origin: Position, now_ms: int) -> EntryHeader:
    """Of an entry of another region, which keeps its origin."""
    said = metadata.scan(send.body)
    return EntryHeader(
        stamp.flags,
        0,
        stamp.messages,
        stamp.key_hash,
        stamp.checksum,
        stamp.publish_time_ms,
        now_ms,
        prev,
        stamp.region,
        origin,
        said.replicate_to,
        said.deliver_at_ms,
    )
