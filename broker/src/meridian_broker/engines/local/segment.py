# SPDX-License-Identifier: Apache-2.0
"""Segment files: the bytes of the log. Building records, and reading them back from a disk that may have lost some.

A segment is a header followed by records, until it is full; then the next one begins. All numbers are big-endian::

    header   8s magic | u16 format | u16 zero | i64 number | i64 number of the previous one | i64 its length | u32 crc
    record   u32 length of the data | u32 crc | u8 kind | i64 ledger | i64 entry | data

The record's CRC32C covers its data and starts from a value computed from the other four fields (`record_seed`), so one
call checks everything: for the same data, a different start always gives a different sum.

Bytes after the last finished fdatasync may be torn anywhere, and recovery must distinguish that from damage to durable
bytes. Two things record what *was* durable:

* the next segment's header states the previous one's length, and is written only after all of it was synced;
* each batch starts with a ``BATCH`` record that states how much of its own segment was durable when it was built. When
  the log falls idle, an empty batch states it for the last group.

A broken record that such a mark covers is damage: it is reported, and its neighbours survive. One that no mark covers
is the torn tail, and the log ends there.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

from crc32c import crc32c

from meridian_broker.ledgers.store import LedgerError
from meridian_broker.positions.formats import unreadable

SEGMENT_PREFIX: Final = "segment-"
SEGMENT_SUFFIX: Final = ".log"
FORMAT_VERSION: Final = 2
"""Version 1 had no labels: its ``STATE`` records are shorter."""
_MAGIC: Final = b"MDNLOG\r\n"
_HEADER: Final = struct.Struct(">8sHHqqq")
_CRC: Final = struct.Struct(">I")
SEGMENT_HEADER_BYTES: Final = _HEADER.size + _CRC.size

RECORD: Final = struct.Struct(">IIBqq")
RECORD_BYTES: Final = RECORD.size
MAX_DATA_BYTES: Final = 256 << 20
"""A length above this is damage, never an entry: Pulsar clients send 5 MiB at most by default."""

ENTRY: Final = 1
"""One entry of a ledger."""
STATE: Final = 2
"""A ledger was created, fenced or sealed. The data is a `LedgerState`; the latest one counts."""
DELETED: Final = 3
"""A ledger was deleted."""
MOVED: Final = 4
"""A copy of an entry, made to empty an old segment; valid once its ``MOVE_DONE`` follows."""
MOVE_DONE: Final = 5
"""The entries from ``entry`` on, as many as the data says, must be read from their copies."""
BATCH: Final = 6
"""Starts a batch; ``ledger`` is the segment's number, ``entry`` the record's own offset, see `batch_record`."""

_BATCH_DATA: Final = struct.Struct(">8sq")
_BATCH_MAGIC: Final = b"MDNBATCH"
BATCH_BYTES: Final = RECORD_BYTES + _BATCH_DATA.size
_STATE_DATA: Final = struct.Struct(">qqB")
_COUNT: Final = struct.Struct(">q")

SCAN_CHUNK_BYTES: Final = 4 << 20
"""Bytes of a segment in memory at a time while it is scanned."""

PRIME: Final = 4294967291
ENTRY_FACTOR: Final = 2654435761
LENGTH_FACTOR: Final = 2246822519
_LEDGER: Final = struct.Struct(">Bq")


class SegmentFormatError(LedgerError):
    """A file was written in a format this version does not read."""


def segment_name(number: int) -> str:
    return f"{SEGMENT_PREFIX}{number:012d}{SEGMENT_SUFFIX}"


def segment_number(name: str) -> int | None:
    """The number in a segment's file name; None for other files."""
    digits = name.removeprefix(SEGMENT_PREFIX).removesuffix(SEGMENT_SUFFIX)
    return int(digits) if digits.isdigit() and segment_name(int(digits)) == name else None


class SegmentHeader(NamedTuple):
    """The header of a segment: facts about it and the one before it."""

    number: int
    previous: int
    """Number of the previous segment; -1: none."""
    previous_length: int
    """How many bytes of that segment are valid; all of them were durable when this header was written."""


class LedgerState(NamedTuple):
    """The data of a ``STATE`` record."""

    fence: int
    entries: int
    """Number of entries if sealed, else -1."""
    sealed: bool
    label: bytes = b""
    """The ledger's label: the rest of the record. Every record repeats it, because the first one may be gone."""


class Record(NamedTuple):
    """An intact record."""

    kind: int
    ledger: int
    entry: int
    offset: int
    length: int
    data: bytes
    """Empty for ``ENTRY`` and ``MOVED``: a scan needs only their places."""


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes that were once durable and cannot be read now."""

    offset: int
    end: int
    record: tuple[int, int, int, int] | None
    """(kind, ledger, entry, length) from its head, if that leads to an intact record; else None."""


@dataclass(frozen=True, slots=True)
class TornTail:
    """The end of the log: what follows was never synced."""

    offset: int


@lru_cache(maxsize=1024)
def ledger_seed(kind: int, ledger: int) -> int:
    """The part of `record_seed` that a writer computes once."""
    return int(crc32c(_LEDGER.pack(kind, ledger)))


def record_seed(seed: int, entry: int, length: int) -> int:
    """Where the CRC of a record starts. Modulo a prime, so that no single flipped bit of ``entry`` cancels out."""
    return seed ^ ((entry * ENTRY_FACTOR + length * LENGTH_FACTOR) % PRIME)


def record_head(kind: int, ledger: int, entry: int, data: bytes) -> bytes:
    """The bytes before ``data``. The append path has this inlined (`log.Log.append`)."""
    length = len(data)
    crc = crc32c(data, record_seed(ledger_seed(kind, ledger), entry, length))
    return RECORD.pack(length, crc, kind, ledger, entry)


def record(kind: int, ledger: int, entry: int, data: bytes) -> bytes:
    """A complete small record."""
    return record_head(kind, ledger, entry, data) + data


def state_record(ledger: int, state: LedgerState) -> bytes:
    return record(STATE, ledger, 0, _STATE_DATA.pack(state.fence, state.entries, state.sealed) + state.label)


def unpack_state(data: bytes) -> LedgerState:
    fence, entries, sealed = _STATE_DATA.unpack_from(data)
    return LedgerState(fence, entries, bool(sealed), data[_STATE_DATA.size :])


def move_done_record(ledger: int, first: int, count: int) -> bytes:
    return record(MOVE_DONE, ledger, first, _COUNT.pack(count))


def unpack_count(data: bytes) -> int:
    return int(_COUNT.unpack(data)[0])


def batch_record(number: int, offset: int, durable: int) -> bytes:
    """Starts a batch at ``offset`` of segment ``number``, whose first ``durable`` bytes are known to be synced.

    It names its own place, so that a search after damage cannot mistake a copy for it.
    """
    return record(BATCH, number, offset, _BATCH_DATA.pack(_BATCH_MAGIC, durable))


def unpack_durable(data: bytes) -> int:
    """How much of its segment a ``BATCH`` record says is durable."""
    return int(_BATCH_DATA.unpack(data)[1])


def segment_header(header: SegmentHeader) -> bytes:
    fixed = _HEADER.pack(_MAGIC, FORMAT_VERSION, 0, header.number, header.previous, header.previous_length)
    return fixed + _CRC.pack(crc32c(fixed))


def unpack_segment_header(data: bytes, name: str) -> SegmentHeader | None:
    """The header; None: it is not intact.

    :raises SegmentFormatError: it is intact and in a newer format.
    """
    if len(data) < SEGMENT_HEADER_BYTES:
        return None
    magic, version, _, number, previous, previous_length = _HEADER.unpack_from(data)
    if magic != _MAGIC or _CRC.unpack_from(data, _HEADER.size)[0] != crc32c(data[: _HEADER.size]):
        return None
    if not 1 <= version <= FORMAT_VERSION:
        raise SegmentFormatError(unreadable(name, version, FORMAT_VERSION, form="log format"))
    return SegmentHeader(number, previous, previous_length)


class Scanner:
    """Walks the records of one segment.

    :param read: ``read(offset, length)`` of the file.
    :param end: how many bytes are valid.
    :param attested: all of them are known to have been durable, because the next segment says so.
    """

    def __init__(self, read: Callable[[int, int], bytes], number: int, end: int, *, attested: bool) -> None:
        self._read = read
        self._number = number
        self._end = end
        self._attested = attested
        self._base = 0
        self._chunk = b""

    def scan(self, start: int = SEGMENT_HEADER_BYTES) -> Iterator[Record | Damage | TornTail]:
        """Everything from ``start`` on; a `TornTail`, if there is one, comes last."""
        offset = start
        while offset < self._end:
            offset = yield from self._whole_records(offset)
            if offset >= self._end:
                return
            resume = self._durable_behind(offset)
            if resume is None:
                yield TornTail(offset)
                return
            head = self._head(offset)
            if head is not None:
                after = offset + RECORD_BYTES + head[3]
                if after < self._end and after <= resume and self._is_whole(after):  # no mark lies inside a record
                    resume = after
                elif after != resume:
                    head = None
            yield Damage(offset, resume, head)
            offset = resume

    def durable(self) -> int:
        """How much of the file its own ``BATCH`` records say was synced."""
        return max((durable for _, durable in self._marks(SEGMENT_HEADER_BYTES)), default=0)

    def _whole_records(self, offset: int) -> Generator[Record, None, int]:
        """Yield records until one is broken or the end is reached; return that offset."""
        end = self._end
        unpack = RECORD.unpack_from
        seeds: dict[tuple[int, int], int] = {}
        while offset < end:
            self._fill(offset, RECORD_BYTES)
            head = self._head(offset)
            if head is None:
                return offset
            kind, ledger, entry, length = head
            self._fill(offset, RECORD_BYTES + length)
            at = offset - self._base
            crc = unpack(self._chunk, at)[1]
            body = memoryview(self._chunk)[at + RECORD_BYTES : at + RECORD_BYTES + length]
            seed = seeds.get((kind, ledger))
            if seed is None:
                seed = seeds[kind, ledger] = ledger_seed(kind, ledger)
            if crc32c(body, record_seed(seed, entry, length)) != crc:
                return offset
            yield Record(kind, ledger, entry, offset, length, b"" if kind in (ENTRY, MOVED) else bytes(body))
            offset += RECORD_BYTES + length
        return offset

    def _is_whole(self, offset: int) -> bool:
        for _ in self._whole_records(offset):
            return True
        return False

    def _fill(self, offset: int, length: int) -> None:
        """Load ``length`` bytes from ``offset`` into the chunk, as far as the file goes."""
        if offset < self._base or offset + length > self._base + len(self._chunk):
            wanted = min(max(length, SCAN_CHUNK_BYTES), self._end - offset)
            self._base, self._chunk = offset, self._read(offset, wanted)

    def _head(self, offset: int) -> tuple[int, int, int, int] | None:
        """(kind, ledger, entry, length) if they are plausible; else None."""
        self._fill(offset, RECORD_BYTES)
        at = offset - self._base
        if at + RECORD_BYTES > len(self._chunk):
            return None
        length, _, kind, ledger, entry = RECORD.unpack_from(self._chunk, at)
        if not ENTRY <= kind <= BATCH or length > MAX_DATA_BYTES or offset + RECORD_BYTES + length > self._end:
            return None
        return kind, ledger, entry, length

    def _durable_behind(self, broken: int) -> int | None:
        """Where to resume after a broken record that was once durable; None: nothing says that it was."""
        first: int | None = None
        durable = self._end if self._attested else 0
        for offset, mark in self._marks(broken + 1):
            if first is None:
                first = offset
            durable = max(durable, mark)
            if durable > broken:
                return first
        return self._end if durable > broken else None

    def _marks(self, start: int) -> Iterator[tuple[int, int]]:
        """Every intact ``BATCH`` record from ``start`` on: its offset, and how much it says was durable."""
        overlap = BATCH_BYTES
        while start < self._end:
            data = self._read(start, min(SCAN_CHUNK_BYTES, self._end - start))
            found = data.find(_BATCH_MAGIC, RECORD_BYTES)
            while found >= 0:
                offset = start + found - RECORD_BYTES
                candidate = data[found - RECORD_BYTES : found - RECORD_BYTES + BATCH_BYTES]
                if len(candidate) == BATCH_BYTES:
                    durable = _BATCH_DATA.unpack_from(candidate, RECORD_BYTES)[1]
                    if candidate == batch_record(self._number, offset, durable):
                        yield offset, durable
                found = data.find(_BATCH_MAGIC, found + 1)
            if start + len(data) >= self._end or len(data) <= overlap:
                return
            start += len(data) - overlap
