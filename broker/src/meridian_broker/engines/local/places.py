# SPDX-License-Identifier: Apache-2.0
"""Bounds the memory of the index: the places of runs not used for long are dropped, and loaded again on demand.

Only places that are also in an index file may be dropped. If the file is broken or unreadable when they are needed
again, they are rebuilt from the segment itself.
"""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections import OrderedDict
from typing import Final

from meridian_broker.engines.local.checkpoint import (
    INDEX_HEADER_BYTES,
    block_bytes,
    index_is_readable,
    index_name,
    unpack_block,
)
from meridian_broker.engines.local.files import FilePort
from meridian_broker.engines.local.index import Ledger, Run, Segment
from meridian_broker.engines.local.segment import ENTRY, MOVED, Damage, Record, Scanner, segment_name
from meridian_broker.engines.local.stats import EngineStats

_log = logging.getLogger(__name__)

INDEX_ENTRIES: Final = 1 << 20
"""Default number of places kept for closed segments: 8 MiB, the newest million entries of 1 KiB."""


class Places:
    """Keeps a bounded number of places of closed segments' runs; the least recently used are dropped first."""

    def __init__(self, files: FilePort, segments: dict[int, Segment], stats: EngineStats, limit: int) -> None:
        self._files = files
        self._segments = segments
        self._stats = stats
        self._limit = limit
        self._kept: OrderedDict[Run, int] = OrderedDict()
        self.count = 0
        """Places kept now, without those of growing segments."""

    def at_once(self, run: Run) -> array[int] | None:
        """The places, if they are in memory; else None."""
        if run in self._kept:
            self._kept.move_to_end(run)
        return run.places

    async def get(self, ledger: Ledger, run: Run) -> array[int]:
        """The places, from wherever they are. :raises OSError: neither the index file nor the segment can be read."""
        places = self.at_once(run)
        if places is not None:
            return places
        loop = asyncio.get_running_loop()
        self._stats.index_loads += 1
        places = self._from_cached_index(ledger.ledger_id, run)
        if places is None:
            places = await loop.run_in_executor(None, self._from_index, ledger.ledger_id, run)
        if places is None:
            _log.error("%s cannot be used: rebuilding it from its segment", index_name(run.segment))
            places = await loop.run_in_executor(None, self._from_segment, ledger.ledger_id, run)
            segment = self._segments.get(run.segment)
            if segment is not None:
                segment.indexed = False
                run.block = -1
        if run.places is not None:
            return run.places
        run.places = places
        self.keep(run)
        return places

    def keep(self, run: Run) -> None:
        """A run's places are in memory and, unless its block is lost, also in an index file, so they may be dropped."""
        if run.block < 0 or run.places is None or run in self._kept:
            return
        self._kept[run] = len(run.places)
        self.count += len(run.places)
        while self.count > self._limit and len(self._kept) > 1:
            oldest, count = self._kept.popitem(last=False)
            oldest.places = None
            self.count -= count

    def forget(self, run: Run) -> None:
        """The run is dead."""
        self.count -= self._kept.pop(run, 0)

    def _from_cached_index(self, ledger: int, run: Run) -> array[int] | None:
        """The places, if the page cache has them; else None."""
        header, block = bytearray(INDEX_HEADER_BYTES), bytearray(block_bytes(run.stored_count))
        try:
            file = self._files.open(index_name(run.segment))
            try:
                found = file.read_cached(memoryview(header), 0) and file.read_cached(memoryview(block), run.block)
            finally:
                file.close()
        except OSError:
            return None
        if not found or not index_is_readable(header, run.segment):
            return None
        return unpack_block(block, ledger, run.first, run.stored_count)

    def _from_index(self, ledger: int, run: Run) -> array[int] | None:
        try:
            file = self._files.open(index_name(run.segment))
            try:
                header = file.pread(INDEX_HEADER_BYTES, 0)
                data = file.pread(block_bytes(run.stored_count), run.block)
            finally:
                file.close()
        except OSError as error:
            _log.warning("%s cannot be read: %s", index_name(run.segment), error)
            return None
        if not index_is_readable(header, run.segment):
            return None
        return unpack_block(data, ledger, run.first, run.stored_count)

    def _from_segment(self, ledger: int, run: Run) -> array[int]:
        file = self._files.open(segment_name(run.segment))
        found: dict[int, int] = {}
        try:
            scanner = Scanner(
                lambda offset, length: file.pread(length, offset), run.segment, file.size(), attested=True
            )
            for item in scanner.scan():
                if isinstance(item, Record):
                    if item.kind in (ENTRY, MOVED) and item.ledger == ledger:
                        found[item.entry] = item.offset << 32 | item.length
                elif isinstance(item, Damage) and item.record is not None:
                    kind, owner, entry, length = item.record
                    if kind in (ENTRY, MOVED) and owner == ledger:
                        found.setdefault(entry, item.offset << 32 | length)
        finally:
            file.close()
        # A lost entry gets a place that no entry can have: reading it reports the loss, its neighbours stay readable.
        return array("Q", [found.get(entry, 0) for entry in range(run.first, run.first + run.stored_count)])
