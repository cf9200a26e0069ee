# SPDX-License-Identifier: Apache-2.0
"""Format of the ledger of a compacted view.

First the deleted keys (``TOMBSTONES``, on replicated topics only), then what readers see, in the order of the log
(``ENTRY``), then for each ledger of the log which of its entries the view has (``INDEX``): with these bits in
memory any entry is found without reading. The topic's record has the position of the first entry and their number.

Layout, big-endian: ``u8 version | u8 kind``, then::

    TOMBSTONES  repeated: 16 bytes of the key's digest | u64 publish time | i64 ledger | i64 entry | u32 index
                          | u8 length | region name
    ENTRY       i64 ledger | i64 entry | stored entry (``ledgers/entry.py``)
    INDEX       i64 ledger | a roaring bitmap of entry ids
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import Final

from pyroaring import BitMap

from meridian_broker.ledgers.entry import EntryHeader
from meridian_broker.positions.position import Position
from meridian_broker.topics.compaction.latest_by_key import DIGEST_BYTES, Rank, Tombstone

FORMAT_VERSION: Final = 1
_HEAD: Final = struct.Struct(">BB")
_PLACE: Final = struct.Struct(">qq")
_LEDGER: Final = struct.Struct(">q")
_TOMBSTONE: Final = struct.Struct(f">{DIGEST_BYTES}sQqqIB")
_ENTRY_AT: Final = _HEAD.size + _PLACE.size


class Kind(IntEnum):
    """The kind of a view's record."""

    TOMBSTONES = 1
    ENTRY = 2
    INDEX = 3


class ViewFormatError(ValueError):
    """A record that this version cannot read."""


def check(record: bytes, kind: Kind) -> None:
    """:raises ViewFormatError: it is of another kind, or of a newer format."""
    if record[:2] != bytes((FORMAT_VERSION, kind)):
        raise ViewFormatError(
            f"a compacted view holds {record[:2]!r} where {kind.name} of format {FORMAT_VERSION} is expected: "
            "it was written by a newer version of Meridian, or is damaged; compact the topic again"
        )


def kind_of(record: bytes) -> Kind:
    """:raises ViewFormatError: its kind or format is unknown to this version."""
    kind = next((kind for kind in Kind if record[1:2] == bytes((kind,))), Kind.ENTRY)
    check(record, kind)
    return kind


def pack_entry(position: Position, entry: bytes) -> bytes:
    """Encode an entry that readers see."""
    return _HEAD.pack(FORMAT_VERSION, Kind.ENTRY) + _PLACE.pack(*position) + entry


def unpack_entry(record: bytes) -> tuple[Position, bytes]:
    """:raises ViewFormatError: as ``check``."""
    check(record, Kind.ENTRY)
    return Position(*_PLACE.unpack_from(record, _HEAD.size)), record[_ENTRY_AT:]


def pack_index(ledger: int, entries: BitMap) -> bytes:
    """Encode which entries of a ledger the view has."""
    return _HEAD.pack(FORMAT_VERSION, Kind.INDEX) + _LEDGER.pack(ledger) + entries.serialize()


def unpack_index(record: bytes) -> tuple[int, BitMap]:
    """:raises ViewFormatError: as ``check``."""
    check(record, Kind.INDEX)
    return _LEDGER.unpack_from(record, _HEAD.size)[0], BitMap.deserialize(record[_HEAD.size + _LEDGER.size :])


def pack_tombstones(tombstones: Iterable[Tombstone]) -> bytes:
    """Encode deleted keys."""
    parts = [_HEAD.pack(FORMAT_VERSION, Kind.TOMBSTONES)]
    for digest, rank in tombstones:
        region = rank.region.encode()
        parts += (
            _TOMBSTONE.pack(digest, rank.publish_time_ms, rank.ledger, rank.entry, rank.batch_index, len(region)),
            region,
        )
    return b"".join(parts)


def unpack_tombstones(record: bytes) -> Iterator[Tombstone]:
    """:raises ViewFormatError: as ``check``."""
    check(record, Kind.TOMBSTONES)
    at = _HEAD.size
    while at < len(record):
        digest, publish_time_ms, ledger, entry, index, length = _TOMBSTONE.unpack_from(record, at)
        at += _TOMBSTONE.size
        region = str(record[at : at + length], "utf-8")
        at += length
        yield Tombstone(digest, Rank(publish_time_ms, region, ledger, entry, index))


def rank_of(header: EntryHeader, position: Position, region: str, *, by_time: bool) -> Rank:
    """The rank of an entry's first message (R50). ``region``: the region of this log."""
    if not by_time:
        return Rank(0, "", *position, 0)
    origin = position if header.origin is None else header.origin
    return Rank(header.publish_time_ms, header.region or region, *origin, 0)
