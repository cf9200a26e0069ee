# SPDX-License-Identifier: Apache-2.0
"""Background work of the engine: index files, checkpoints, and freeing space.

One task does all of it, step by step, so that no step sees another one half done:

1. every closed segment gets its index file;
2. when the log after the last checkpoint is long enough, or space is waiting to be freed, a checkpoint is written;
3. a segment that held nothing alive when the checkpoint *before* the newest was written is unlinked. So for either of
   the two checkpoints kept, every file that it names exists, and the log after the older one is complete;
4. the segment that frees the most is compacted: its live entries are copied to the end of the log (`compaction`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from meridian_broker.engines.local.checkpoint import (
    INDEX_HEADER_BYTES,
    assemble,
    checkpoint_name,
    index_header,
    index_name,
    pack_block,
    pack_ledger,
    write_whole,
)
from meridian_broker.engines.local.compaction import Compaction
from meridian_broker.engines.local.files import FilePort
from meridian_broker.engines.local.index import Run, Segment
from meridian_broker.engines.local.log import Log
from meridian_broker.engines.local.places import Places
from meridian_broker.engines.local.reading import EntryReads
from meridian_broker.engines.local.replay import State
from meridian_broker.engines.local.segment import segment_name
from meridian_broker.engines.local.stats import EngineStats
from meridian_broker.ledgers.periodic import PeriodicWork
from meridian_broker.ledgers.store import LedgerError

YIELD_EVERY: Final = 256
"""Ledgers or runs handled before the loop gets its turn: well under a millisecond."""
PAUSE_SECONDS: Final = 1.0
"""Pause between two rounds, so that many small deletions share a checkpoint."""
IDLE_SECONDS: Final = 30.0
"""A turn runs at least this often: it retries segments that were left alone, and shows that the work is alive."""
ROUNDS_MAX: Final = 64
"""A call of `tidy` stops after this many rounds; the next one continues."""


@dataclass(frozen=True, slots=True)
class UpkeepSettings:
    """When upkeep does each kind of work."""

    checkpoint_bytes: int
    """A checkpoint is due when the log after the last one is this long. A start reads at most this, plus two segments.
    """
    compaction_bytes_per_second: int
    """Rate at which old segments are compacted: a fraction of a disk's bandwidth, so that appends are not slowed
    down."""


class Upkeep:
    """The background work of one store."""

    def __init__(
        self,
        files: FilePort,
        log: Log,
        state: State,
        places: Places,
        reads: EntryReads,
        stats: EngineStats,
        settings: UpkeepSettings,
        segment_bytes: int,
        clock: Callable[[], float],
    ) -> None:
        self._files = files
        self._log = log
        self._ledgers = state.ledgers
        self._deleted = state.deleted
        self._places = places
        self._reads = reads
        self._stats = stats
        self._settings = settings
        self._checkpoints = sorted(state.checkpoints)
        self._covered = state.covered
        self._dead_before: set[int] = set()
        self._leaving = list(state.unneeded)
        """Files that are no longer needed and not unlinked yet."""
        self._compaction = Compaction(
            *(log, places, reads, stats, segment_bytes, settings.compaction_bytes_per_second),
            stopping=lambda: self._stopping,
            clock=clock,
        )
        self.work = PeriodicWork(
            "maintain the ledger files",
            f"space in {files.place} is not freed and the next start takes longer",
            self._rounds,
            PAUSE_SECONDS,
            clock=clock,
            sleep=self._sleep,
        )
        """How the background task is doing."""
        self._wanted = asyncio.Event()
        self._stopping = False
        self._busy = asyncio.Lock()
        log.on_closed = self._closed
        if self._behind() >= settings.checkpoint_bytes or state.segments:
            self._wanted.set()

    def kick(self) -> None:
        """Wake the task: there may be something to do."""
        self._wanted.set()

    def stop(self) -> None:
        """End after the current step."""
        self._stopping = True
        self._wanted.set()

    async def run(self) -> None:
        """Work until `stop`; failures are reported and retried after a pause."""
        while not self._stopping:
            idle = asyncio.get_running_loop().call_later(IDLE_SECONDS, self._wanted.set)
            try:
                await self._wanted.wait()
            finally:
                idle.cancel()
            self._wanted.clear()
            await self.tidy()
            await self._sleep(self.work.pause)

    async def tidy(self) -> None:
        """Do everything that is due now. Failures are reported and retried later."""
        async with self._busy:
            if not await self.work.attempt():
                self._wanted.set()

    async def _rounds(self) -> None:
        try:
            for _ in range(ROUNDS_MAX):
                if self._stopping or not await self._round():
                    return
        except OSError as error:
            raise LedgerError(f"the disk of {self._files.place} reports an error ({error}): check it") from error

    async def _sleep(self, seconds: float) -> None:
        """Sleep; `stop` cuts it short."""
        while seconds > 0 and not self._stopping:
            await asyncio.sleep(min(seconds, PAUSE_SECONDS / 10))
            seconds -= PAUSE_SECONDS / 10

    def _closed(self, _: Segment) -> None:
        self._wanted.set()

    async def _round(self) -> bool:
        """One step of each kind. False: nothing is left to do."""
        if self._leaving:
            await self._unlink()
        for segment in [each for each in self._log.segments.values() if each.closed and not each.indexed]:
            await self._write_index(segment)
        if self._behind() >= self._settings.checkpoint_bytes or self._dead():
            await self._checkpoint()
            return True
        return await self._compaction.step(self._covered_segments())

    def _behind(self) -> int:
        """Bytes of log that a start would read now."""
        return sum(segment.length for segment in self._log.segments.values() if segment.number > self._covered)

    def _dead(self) -> set[int]:
        """Closed segments that hold nothing alive."""
        return {each.number for each in self._log.segments.values() if each.closed and not each.runs}

    def _covered_segments(self) -> list[Segment]:
        return [each for each in self._log.segments.values() if each.closed and each.indexed]

    # -- index files ---------------------------------------------------------------------------------------------

    async def _write_index(self, segment: Segment) -> None:
        buffers = [index_header(segment.number)]
        offset = INDEX_HEADER_BYTES
        blocks: list[tuple[Run, int]] = []
        for at, (run, ledger) in enumerate(list(segment.runs.items())):
            if at % YIELD_EVERY == YIELD_EVERY - 1:
                await asyncio.sleep(0)
            places = self._places.at_once(run) or await self._places.get(ledger, run)
            block = pack_block(ledger.ledger_id, run.first, places)
            buffers.append(block)
            blocks.append((run, offset))
            offset += len(block)
        if blocks:
            await self._in_thread(lambda: write_whole(self._files, index_name(segment.number), buffers))
        segment.indexed = True
        for run, block_offset in blocks:
            run.block = block_offset
            if run in segment.runs:
                self._places.keep(run)

    # -- checkpoints ---------------------------------------------------------------------------------------------

    async def _checkpoint(self) -> None:
        segments: dict[int, int] = {}
        for segment in sorted(self._log.segments.values(), key=lambda each: each.number):
            if not segment.indexed:
                break
            segments[segment.number] = segment.length
        covered = max(segments, default=self._covered)
        if covered < self._covered:
            # An index file was just found broken: the next round rewrites it first.
            return
        dead = self._dead() & segments.keys()
        ledgers: list[bytes] = []
        for at, ledger in enumerate(list(self._ledgers.values())):
            if at % YIELD_EVERY == YIELD_EVERY - 1:
                await asyncio.sleep(0)
            if not ledger.deleted:
                ledgers.append(pack_ledger(ledger, covered))
        number = self._checkpoints[-1] + 1 if self._checkpoints else 1
        buffers = assemble(number, covered, segments, ledgers, list(self._deleted))
        await self._in_thread(lambda: write_whole(self._files, checkpoint_name(number), buffers))
        self._covered = covered
        self._checkpoints.append(number)
        self._stats.checkpoints += 1
        await self._release(dead & self._dead_before)
        self._dead_before = dead

    async def _release(self, numbers: set[int]) -> None:
        """Unlink these segments, and all checkpoints but the newest two."""
        self._leaving += [checkpoint_name(number) for number in self._checkpoints[:-2]]
        del self._checkpoints[:-2]
        for number in numbers:
            self._reads.files.forget(number)
            del self._log.segments[number]
            self._leaving += [segment_name(number), index_name(number)]
        self._stats.segments_removed += len(numbers)
        await self._unlink()

    async def _unlink(self) -> None:
        """Unlink files; those that the disk refuses to unlink are retried in the next round."""
        await self._in_thread(lambda: _unlink(self._files, self._leaving))
        self._leaving = []

    @staticmethod
    async def _in_thread(work: Callable[[], None]) -> None:
        await asyncio.get_running_loop().run_in_executor(None, work)


def _unlink(files: FilePort, names: list[str]) -> None:
    present = set(files.names())
    for name in names:
        if name in present:
            files.unlink(name)
    files.sync_directory()
