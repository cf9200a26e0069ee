# SPDX-License-Identifier: Apache-2.0
"""Reading entries: from places to bytes, adjacent ones in one read, every checksum verified.

Data in the page cache is read inline, because handing over to a thread costs more than the read. A thread is used only
if the kernel reports that the read has to wait for a disk.
"""

from __future__ import annotations

import asyncio
from array import array
from collections import OrderedDict
from typing import Final, NoReturn

from crc32c import crc32c

from meridian_broker.engines.local.files import FilePort, ReadFile, unreadable
from meridian_broker.engines.local.index import LENGTH_MASK, Ledger, Run
from meridian_broker.engines.local.places import Places
from meridian_broker.engines.local.segment import (
    ENTRY,
    MOVED,
    RECORD,
    RECORD_BYTES,
    ledger_seed,
    record_seed,
    segment_name,
)
from meridian_broker.engines.local.stats import EngineStats
from meridian_broker.ledgers.store import LedgerCorrupt, LedgerNotFound

GAP_BYTES: Final = 4096
"""A gap of other ledgers' records up to this size is read along: another system call would cost as much."""
BLOCK_BYTES: Final = 512 << 10
"""Adjacent entries are read together up to this size."""
OPEN_FILES_MAX: Final = 64
"""Segment files kept open for reading."""


class SegmentFiles:
    """Segment files open for reading, the least recently used closed first."""

    def __init__(self, files: FilePort) -> None:
        self._files = files
        self._open: OrderedDict[int, ReadFile] = OrderedDict()

    def get(self, number: int) -> ReadFile:
        file = self._open.get(number)
        if file is None:
            file = self._open[number] = self._files.open(segment_name(number))
            if len(self._open) > OPEN_FILES_MAX:
                self._open.popitem(last=False)[1].close()
        else:
            self._open.move_to_end(number)
        return file

    def wait_for(self, number: int, length: int, offset: int) -> bytes:
        """Read in a thread, through a file of its own: the shared one may be closed meanwhile."""
        file = self._files.open(segment_name(number))
        try:
            return file.pread(length, offset)
        finally:
            file.close()

    def forget(self, number: int) -> None:
        """Close the file of a segment that is about to be removed."""
        file = self._open.pop(number, None)
        if file is not None:
            file.close()

    def close(self) -> None:
        while self._open:
            self._open.popitem()[1].close()


class EntryReads:
    """Reads entries of any ledger of one directory."""

    def __init__(self, files: FilePort, places: Places, stats: EngineStats) -> None:
        self.files = SegmentFiles(files)
        self._buffer = memoryview(bytearray(BLOCK_BYTES))
        self._places = places
        self._place = files.place
        self._stats = stats

    async def read(self, ledger: Ledger, first: int, last: int, max_bytes: int) -> list[bytes]:
        """As `Reader.read`; ``last`` is at most the last confirmed entry."""
        entries: list[bytes] = []
        left = max_bytes
        alone = -1
        """An entry to be read alone, so that a block that the disk cannot read still yields the entries before the
        bad sector."""
        while first <= last and (left > 0 or not entries):
            # Looked up again for each block: while this waits for the disk, entries may move to another segment.
            run = ledger.run_of(first)
            if run is None:
                if not entries:
                    self._lost(ledger, first)
                break
            try:
                places = self._places.at_once(run)
                if places is None:
                    await self._places.get(ledger, run)
                    if ledger.deleted:
                        raise LedgerNotFound(f"ledger {ledger.ledger_id} was deleted")
                    continue
                lower = first - run.first
                stop = lower + 1 if first == alone else min(last + 1 - run.first, len(places))
                upper, reach = _reach(places, lower, stop, left, bool(entries))
                if upper == lower:
                    break
                block, remains = await self._block(ledger, run, places, lower, upper)
            except OSError as error:
                if isinstance(error, FileNotFoundError) and ledger.run_of(first) is not run:
                    continue
                if first != alone:
                    alone = first
                    continue
                if entries:
                    break
                raise unreadable(self._place, error) from error
            left = reach
            if not block and not entries:
                self._corrupt(ledger, run, first, places[lower] >> 32, remains)
            entries += block
            first += len(block)
            if len(block) < upper - lower:
                # The next entry is broken: return the intact ones; the next read starts with it, and reports it.
                break
        self._stats.reads += 1
        self._stats.read_entries += len(entries)
        self._stats.read_bytes += sum(map(len, entries))
        return entries

    async def _block(
        self, ledger: Ledger, run: Run, places: array[int], lower: int, upper: int
    ) -> tuple[list[bytes], bytes]:
        """Entries ``lower`` to ``upper - 1`` of a run in one read, up to the first damaged one; and the bytes of that
        one."""
        base = places[lower] >> 32
        end = places[upper - 1]
        length = (end >> 32) + RECORD_BYTES + (end & LENGTH_MASK) - base
        # One buffer serves all reads that need no wait: a new one each time would be mapped, zeroed and unmapped.
        data = self._buffer[:length] if length <= BLOCK_BYTES else memoryview(bytearray(length))
        if not self.files.get(run.segment).read_cached(data, base):
            loop = asyncio.get_running_loop()
            data = memoryview(await loop.run_in_executor(None, self.files.wait_for, run.segment, length, base))
            if ledger.deleted:
                raise LedgerNotFound(f"ledger {ledger.ledger_id} was deleted")
        number = ledger.ledger_id
        seed = ledger.entry_seed
        unpack = RECORD.unpack_from
        entries: list[bytes] = []
        entry = run.first + lower
        for place in places[lower:upper]:
            size = place & LENGTH_MASK
            at = (place >> 32) - base + RECORD_BYTES
            if at + size > len(data):
                return entries, b""
            body = bytes(data[at : at + size])
            stored, crc, kind, owner, named = unpack(data, at - RECORD_BYTES)
            start = record_seed(seed if kind == ENTRY else ledger_seed(MOVED, number), entry, size)
            if stored != size or owner != number or named != entry or crc32c(body, start) != crc:
                return entries, body
            entries.append(body)
            entry += 1
        return entries, b""

    def _lost(self, ledger: Ledger, entry: int) -> NoReturn:
        self._stats.damaged_entries += 1
        raise LedgerCorrupt(
            f"entry {entry} of ledger {ledger.ledger_id} is in no file of {self._place}: it was lost to damage that "
            "the broker reported when it started"
        )

    def _corrupt(self, ledger: Ledger, run: Run, entry: int, offset: int, remains: bytes) -> NoReturn:
        self._stats.damaged_entries += 1
        raise LedgerCorrupt(
            f"entry {entry} of ledger {ledger.ledger_id} fails its checksum in {self._place}/"
            f"{segment_name(run.segment)} at byte {offset}: the disk damaged it",
            remains,
        )


def _reach(places: array[int], lower: int, stop: int, left: int, have_some: bool) -> tuple[int, int]:
    """How far one read goes: until ``left`` bytes are used up (at least one entry unless there are some already), the
    block is large enough, or the next entry is too far away. Returns (index after the last, bytes left)."""
    base = end = places[lower] >> 32
    for at in range(lower, stop):
        place = places[at]
        size = place & LENGTH_MASK
        offset = place >> 32
        after = offset + RECORD_BYTES + size
        if size > left and (have_some or at > lower):
            return at, 0
        if at > lower and (not 0 <= offset - end <= GAP_BYTES or after - base > BLOCK_BYTES):
            return at, left
        left -= size
        end = after
    return stop, left
