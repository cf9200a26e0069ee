# SPDX-License-Identifier: Apache-2.0
"""What dispatch wants to know of a stored entry's own metadata, for the few entries whose header does not say it."""

from __future__ import annotations

import struct
from typing import Final

from meridian_broker.topics.key_ranges import slot_of
from meridian_broker.wire.pulsar import metadata
from meridian_broker.wire.pulsar.metadata import BodyError, MetadataView

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
