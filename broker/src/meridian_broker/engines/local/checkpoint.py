# SPDX-License-Identifier: Apache-2.0
"""The two kinds of files that save a start from reading the whole log.

*Index file*, one per closed segment: the places of each run, as they are laid out in memory. It is a cache: if it is
lost or broken, it is rebuilt from its segment. Places are little-endian, everything else in these files is big-endian::

    8s magic | u16 format | u16 zero | i64 segment | u32 crc      then blocks:
    i64 ledger | i64 first entry | u32 count | u32 crc | count times u64 place

*Checkpoint*: every ledger, with its runs in segments up to number ``covered``. A start reads the log after that::

    8s magic | u16 format | u16 zero | i64 number | i64 covered | u32 segments | u32 ledgers | u32 deleted
    segment: i64 number | i64 length
    ledger:  i64 id | i64 fence | i64 entries | u8 sealed | u32 runs | u16 bytes of the label | label
             run: i64 segment | i64 first | i64 data bytes | i64 block | u32 count
    deleted: i64 id                                               and at the end u32 crc of everything before

In format 1, ledgers have no label. A checkpoint may be gathered while the log grows: replaying the tail over a ledger
that already has part of it changes nothing. Both kinds are written under another name, synced and renamed, so a torn
one is never seen.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from crc32c import crc32c

from meridian_broker.engines.local.files import FilePort
from meridian_broker.engines.local.index import Ledger, Run
from meridian_broker.engines.local.segment import SegmentFormatError
from meridian_broker.positions.formats import unreadable

INDEX_FORMAT: Final = 1
CHECKPOINT_FORMAT: Final = 2
CHECKPOINT_PREFIX: Final = "checkpoint-"
TEMPORARY_SUFFIX: Final = ".new"

_INDEX_MAGIC: Final = b"MDNIDX\r\n"
_INDEX_HEADER: Final = struct.Struct(">8sHHqI")
_BLOCK: Final = struct.Struct(">qqII")
_CHECKPOINT_MAGIC: Final = b"MDNCHK\r\n"
_CHECKPOINT_HEADER: Final = struct.Struct(">8sHHqqIII")
_SEGMENT: Final = struct.Struct(">qq")
_LEDGER: Final = struct.Struct(">qqqBI")
_LABEL: Final = struct.Struct(">H")
_RUN: Final = struct.Struct(">qqqqI")
_DELETED: Final = struct.Struct(">q")
_CRC: Final = struct.Struct(">I")


def index_name(segment: int) -> str:
    return f"segment-{segment:012d}.index"


def index_number(name: str) -> int | None:
    """The segment's number in an index file's name; None for other files."""
    digits = name.removeprefix("segment-").removesuffix(".index")
    return int(digits) if digits.isdigit() and index_name(int(digits)) == name else None


def checkpoint_name(number: int) -> str:
    return f"{CHECKPOINT_PREFIX}{number:012d}"


def checkpoint_number(name: str) -> int | None:
    """The number in a checkpoint's file name; None for other files."""
    digits = name.removeprefix(CHECKPOINT_PREFIX)
    return int(digits) if name.startswith(CHECKPOINT_PREFIX) and digits.isdigit() else None


def index_header(segment: int) -> bytes:
    fixed = _INDEX_HEADER.pack(_INDEX_MAGIC, INDEX_FORMAT, 0, segment, 0)[: -_CRC.size]
    return fixed + _CRC.pack(crc32c(fixed))


INDEX_HEADER_BYTES: Final = _INDEX_HEADER.size


def index_is_readable(data: bytes | bytearray, segment: int) -> bool:
    """Whether an index file's header is intact, in a known format, and for this segment."""
    return data == index_header(segment)


def block_bytes(count: int) -> int:
    """Size of a run's block."""
    return _BLOCK.size + count * 8


def pack_block(ledger: int, first: int, places: array[int]) -> bytes:
    data = _little(places).tobytes()
    crc = crc32c(data, crc32c(_BLOCK.pack(ledger, first, len(places), 0)))
    return _BLOCK.pack(ledger, first, len(places), crc) + data


def unpack_block(data: bytes | bytearray, ledger: int, first: int, count: int) -> array[int] | None:
    """The places of a run; None: the block is broken, or another run's."""
    if len(data) != block_bytes(count):
        return None
    owner, start, length, crc = _BLOCK.unpack_from(data)
    body = memoryview(data)[_BLOCK.size :]
    if (owner, start, length) != (ledger, first, count):
        return None
    if crc32c(body, crc32c(_BLOCK.pack(ledger, first, count, 0))) != crc:
        return None
    places = array("Q")
    places.frombytes(body)
    return _little(places)


def _little(places: array[int]) -> array[int]:
    if sys.byteorder == "big":
        places = places[:]
        places.byteswap()
    return places


@dataclass(slots=True)
class LedgerImage:
    """A ledger as a checkpoint has it."""

    ledger_id: int
    fence: int
    entries: int
    """Number of entries if sealed, else -1."""
    sealed: bool
    runs: list[Run]
    label: bytes


@dataclass(slots=True)
class Checkpoint:
    """A checkpoint as read from its file."""

    number: int
    covered: int
    segments: dict[int, int] = field(default_factory=dict)
    """Length of each segment, by number."""
    ledgers: list[LedgerImage] = field(default_factory=list)
    deleted: list[int] = field(default_factory=list)
    """Ids of recently deleted ledgers: they must not be used again (R1)."""


def pack_ledger(ledger: Ledger, covered: int) -> bytes:
    """One ledger of a checkpoint, without its runs after ``covered``."""
    runs = [run for run in ledger.runs if run.segment <= covered]
    head = _LEDGER.pack(
        ledger.ledger_id, ledger.fence, ledger.confirmed if ledger.sealed else -1, ledger.sealed, len(runs)
    )
    return b"".join((head, _LABEL.pack(len(ledger.label)), ledger.label)) + b"".join(
        _RUN.pack(run.segment, run.first, run.stored_bytes, run.block, run.stored_count) for run in runs
    )


def assemble(
    number: int, covered: int, segments: dict[int, int], ledgers: list[bytes], deleted: list[int]
) -> list[bytes]:
    """The buffers of a checkpoint file."""
    head = _CHECKPOINT_HEADER.pack(
        _CHECKPOINT_MAGIC, CHECKPOINT_FORMAT, 0, number, covered, len(segments), len(ledgers), len(deleted)
    )
    buffers = [
        head,
        b"".join(_SEGMENT.pack(segment, length) for segment, length in segments.items()),
        b"".join(ledgers),
        b"".join(_DELETED.pack(ledger) for ledger in deleted),
    ]
    crc = 0
    for buffer in buffers:
        crc = crc32c(buffer, crc)
    return [*buffers, _CRC.pack(crc)]


def unpack_checkpoint(data: bytes, name: str) -> Checkpoint | None:
    """The checkpoint; None: it is damaged.

    :raises SegmentFormatError: it is intact and in a newer format.
    """
    if len(data) < _CHECKPOINT_HEADER.size + _CRC.size:
        return None
    body = memoryview(data)[: -_CRC.size]
    if _CRC.unpack_from(data, len(body))[0] != crc32c(body):
        return None
    magic, version, _, number, covered, segments, ledgers, deleted = _CHECKPOINT_HEADER.unpack_from(body)
    if magic != _CHECKPOINT_MAGIC:
        return None
    if not 1 <= version <= CHECKPOINT_FORMAT:
        raise SegmentFormatError(unreadable(name, version, CHECKPOINT_FORMAT, form="checkpoint format"))
    checkpoint = Checkpoint(number, covered)
    at = _CHECKPOINT_HEADER.size
    for segment, length in _SEGMENT.iter_unpack(body[at : at + segments * _SEGMENT.size]):
        checkpoint.segments[segment] = length
    at += segments * _SEGMENT.size
    for _ in range(ledgers):
        ledger_id, fence, entries, sealed, runs = _LEDGER.unpack_from(body, at)
        at += _LEDGER.size
        label = b""
        if version > 1:
            (length,) = _LABEL.unpack_from(body, at)
            at += _LABEL.size + length
            label = bytes(body[at - length : at])
        end = at + runs * _RUN.size
        checkpoint.ledgers.append(
            LedgerImage(ledger_id, fence, entries, bool(sealed), list(_runs(body[at:end])), label)
        )
        at = end
    checkpoint.deleted = [ledger for (ledger,) in _DELETED.iter_unpack(body[at : at + deleted * _DELETED.size])]
    return checkpoint


def _runs(data: memoryview) -> Iterator[Run]:
    for segment, first, size, block, count in _RUN.iter_unpack(data):
        run = Run(segment, first)
        run.places = None
        run.block = block
        run.stored_count = count
        run.stored_bytes = size
        yield run


def write_whole(files: FilePort, name: str, buffers: list[bytes]) -> None:
    """Write a file so that it exists completely or not at all."""
    temporary = name + TEMPORARY_SUFFIX
    if temporary in files.names():
        files.unlink(temporary)
    file = files.create(temporary)
    try:
        file.write(buffers)
        file.sync()
    finally:
        file.close()
    files.rename(temporary, name)
    files.sync_directory()


def read_whole(files: FilePort, name: str) -> bytes:
    file = files.open(name)
    try:
        return file.pread(file.size(), 0)
    finally:
        file.close()
