# SPDX-License-Identifier: Apache-2.0
"""The bytes of a ledger's copy in an object store.

A copy is a number of *chunks* and an *index*, each an object of its own. Chunks are consecutive blocks; a *block* is
what is read at once: a table of lengths and checksums, then a few entries. The index says where each block is. It is
written last, so a copy that has one is whole.

A checksum also covers the ids of ledger and entry, so that an entry in another one's place is noticed.

Block, big-endian: ``u32 entries | entries times (u32 length, u32 CRC-32C) | u32 CRC-32C of all that | the entries``.

Index: ``8 bytes magic | u64 ledger | u32 entries | u64 their bytes | u16 length of the label | label | u32 chunks |
chunks times u64 length | u32 blocks | blocks times (u32 first entry, u32 chunk, u64 offset, u32 length) |
u32 CRC-32C of all that``.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from crc32c import crc32c

MAGIC: Final = b"MRDNOFF1"
"""The last digit is the format."""
_COUNT: Final = struct.Struct(">I")
_ENTRY: Final = struct.Struct(">II")
_PLACE: Final = struct.Struct(">QI")
_HEAD: Final = struct.Struct(">8sQIQH")
_SIZE: Final = struct.Struct(">Q")
_BLOCK: Final = struct.Struct(">IIQI")


class CopyDamaged(ValueError):
    """The bytes are not what was written."""


class CopyNewer(ValueError):
    """A newer broker wrote it in a format that this one does not know. It is not damaged."""


class Block(NamedTuple):
    """Where some consecutive entries are."""

    first: int
    """The first entry."""
    chunk: int
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class CopyIndex:
    """See the module's text."""

    ledger_id: int
    entries: int
    size: int
    """Sum of the entries' sizes in bytes."""
    label: bytes
    chunks: tuple[int, ...]
    """The length of each."""
    blocks: tuple[Block, ...]

    def block_of(self, entry: int) -> int:
        """The number of the block with this entry, which must exist."""
        return bisect_right(self.blocks, entry, key=_first) - 1

    def end_of(self, block: int) -> int:
        """The entry after a block's last one."""
        return self.blocks[block + 1].first if block + 1 < len(self.blocks) else self.entries

    def encode(self) -> bytes:
        """The index object."""
        parts = [
            _HEAD.pack(MAGIC, self.ledger_id, self.entries, self.size, len(self.label)),
            self.label,
            _COUNT.pack(len(self.chunks)),
            *map(_SIZE.pack, self.chunks),
            _COUNT.pack(len(self.blocks)),
            *(_BLOCK.pack(*block) for block in self.blocks),
        ]
        data = b"".join(parts)
        return data + _COUNT.pack(crc32c(data))

    @classmethod
    def decode(cls, data: bytes, ledger_id: int) -> CopyIndex:
        """
        :raises CopyDamaged: it is not the index of this ledger, or is incomplete.
        :raises CopyNewer: this version does not read its format.
        """
        body = data[: -_COUNT.size]
        if len(data) < _HEAD.size + _COUNT.size or data[-_COUNT.size :] != _COUNT.pack(crc32c(body)):
            raise CopyDamaged(f"the index of ledger {ledger_id}, {len(data)} bytes, fails its checksum")
        magic, found, entries, size, length = _HEAD.unpack_from(body)
        if magic[:-1] == MAGIC[:-1] and magic > MAGIC:
            raise CopyNewer(
                f"the index of ledger {ledger_id} was written by a newer version of Meridian (format "
                f"{magic[-1:].decode(errors='replace')}, this one reads up to {MAGIC[-1:].decode()}); "
                "upgrade this broker"
            )
        if magic != MAGIC:
            raise CopyDamaged(f"the index of ledger {ledger_id} begins with {magic!r}: this broker reads {MAGIC!r}")
        if found != ledger_id:
            raise CopyDamaged(f"the index of ledger {ledger_id} belongs to ledger {found}")
        at = _HEAD.size + length
        label = body[_HEAD.size : at]
        chunks, at = _table(body, at, _SIZE)
        blocks, at = _table(body, at, _BLOCK)
        lengths = tuple(length for (length,) in chunks)
        return cls(ledger_id, entries, size, label, lengths, tuple(Block(*one) for one in blocks))


def _table(data: bytes, at: int, row: struct.Struct) -> tuple[list[tuple[int, ...]], int]:
    """A table behind its count, and where it ends."""
    (count,) = _COUNT.unpack_from(data, at)
    at += _COUNT.size
    end = at + count * row.size
    return list(row.iter_unpack(data[at:end])), end


def _first(block: Block) -> int:
    return block.first


def _checksum(ledger_id: int, number: int, entry: bytes) -> int:
    found: int = crc32c(entry, crc32c(_PLACE.pack(ledger_id, number)))
    return found


def pack_block(ledger_id: int, first: int, entries: Sequence[bytes]) -> bytes:
    """Consecutive entries from ``first`` on."""
    head = _COUNT.pack(len(entries)) + b"".join(
        _ENTRY.pack(len(entry), _checksum(ledger_id, number, entry)) for number, entry in enumerate(entries, first)
    )
    return b"".join((head, _COUNT.pack(crc32c(head)), *entries))


class BlockContent(NamedTuple):
    """A block that was read."""

    entries: tuple[bytes | None, ...]
    """None in place of an entry that fails its checksum."""
    remains: dict[int, bytes]
    """The bytes found in place of each such entry, by its number in the block."""

    @property
    def is_whole(self) -> bool:
        return not self.remains

    @property
    def size(self) -> int:
        return sum(map(len, filter(None, self.entries)))


def unpack_block(ledger_id: int, first: int, count: int, data: bytes) -> BlockContent:
    """The intact entries of a block.

    :param count: the number of entries according to the index.
    """
    end = _COUNT.size + count * _ENTRY.size
    head = data[:end]
    sums = data[end : end + _COUNT.size]
    if sums != _COUNT.pack(crc32c(head)) or head[: _COUNT.size] != _COUNT.pack(count):
        return BlockContent((None,) * count, dict.fromkeys(range(count), b""))
    found: list[bytes | None] = []
    remains: dict[int, bytes] = {}
    at = end + _COUNT.size
    for number, (length, checksum) in enumerate(_ENTRY.iter_unpack(head[_COUNT.size :])):
        entry = data[at : at + length]
        at += length
        if len(entry) == length and _checksum(ledger_id, first + number, entry) == checksum:
            found.append(entry)
        else:
            found.append(None)
            remains[number] = entry
    return BlockContent(tuple(found), remains)


class Packer:
    """Packs the entries of one ledger into chunks; at most one chunk is in memory. Pure."""

    def __init__(self, ledger_id: int, block_bytes: int, chunk_bytes: int) -> None:
        """
        :param block_bytes: a block is closed once its entries have this many; one entry may have more.
        :param chunk_bytes: likewise for a chunk and its blocks.
        """
        self._ledger_id = ledger_id
        self._block_bytes = block_bytes
        self._chunk_bytes = chunk_bytes
        self._entries: list[bytes] = []
        self._entries_bytes = 0
        self._next = 0
        self._chunk: list[bytes] = []
        self._chunk_length = 0
        self._chunks: list[int] = []
        self._blocks: list[Block] = []
        self._size = 0

    @property
    def next_entry(self) -> int:
        """The id of the entry that ``add`` expects next."""
        return self._next

    def add(self, entry: bytes) -> bytes | None:
        """Add the ledger's next entry. Returns a chunk when it is full; chunks are numbered from 0."""
        self._entries.append(entry)
        self._entries_bytes += len(entry)
        self._next += 1
        self._size += len(entry)
        if self._entries_bytes >= self._block_bytes:
            self._close_block()
        return self._close_chunk() if self._chunk_length >= self._chunk_bytes else None

    def finish(self, label: bytes) -> tuple[bytes | None, CopyIndex]:
        """The last chunk, if there is one, and the index."""
        if self._entries:
            self._close_block()
        last = self._close_chunk() if self._chunk else None
        return last, CopyIndex(self._ledger_id, self._next, self._size, label, tuple(self._chunks), tuple(self._blocks))

    def _close_block(self) -> None:
        first = self._next - len(self._entries)
        data = pack_block(self._ledger_id, first, self._entries)
        self._blocks.append(Block(first, len(self._chunks), self._chunk_length, len(data)))
        self._chunk.append(data)
        self._chunk_length += len(data)
        self._entries, self._entries_bytes = [], 0

    def _close_chunk(self) -> bytes:
        data = b"".join(self._chunk)
        self._chunks.append(len(data))
        self._chunk, self._chunk_length = [], 0
        return data
