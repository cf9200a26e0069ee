# SPDX-License-Identifier: Apache-2.0
"""Emptying old segments: their live entries are copied to the end of the log, then the files can be removed.

A segment is chosen when more than half of it is dead and this frees a quarter of a full segment, or when many small
ones have accumulated (each start of a broker leaves one). The copies of a run are ``MOVED`` records. Readers, and
recovery, use the originals until the ``MOVE_DONE`` after the last copy is durable. A kill in between leaves dead copies
and nothing else.

A segment that the disk cannot read completely is left alone: for good when an entry is damaged, for growing intervals
when the disk reports an error, which may be temporary. Copying it over and over would fill the disk with dead copies.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from meridian_broker.engines.local.committer import answering
from meridian_broker.engines.local.index import LENGTH_MASK, Ledger, Run, Segment
from meridian_broker.engines.local.log import Log
from meridian_broker.engines.local.places import Places
from meridian_broker.engines.local.reading import EntryReads
from meridian_broker.engines.local.segment import MOVED, move_done_record, record
from meridian_broker.engines.local.stats import EngineStats
from meridian_broker.ledgers.store import LedgerCorrupt, LedgerError, LedgerNotFound, LedgerUnreadable

_log = logging.getLogger(__name__)

CHUNK_BYTES: Final = 256 << 10
"""Bytes copied at once: too few to delay the appends queued behind them noticeably."""
SMALL_SEGMENTS_MAX: Final = 8
"""If more segments than this are less than half full, they are combined."""
AVOID_SECONDS: Final = 60.0
"""How long a segment that could not be read is left alone; doubled with each failure."""
AVOID_SECONDS_MAX: Final = 3600.0


class Compaction:
    """Copies live runs out of segments that are mostly dead."""

    def __init__(
        self,
        log: Log,
        places: Places,
        reads: EntryReads,
        stats: EngineStats,
        segment_bytes: int,
        bytes_per_second: int,
        stopping: Callable[[], bool],
        clock: Callable[[], float],
    ) -> None:
        self._log = log
        self._places = places
        self._reads = reads
        self._stats = stats
        self._segment_bytes = segment_bytes
        self._bytes_per_second = bytes_per_second
        self._stopping = stopping
        self._clock = clock
        self._given_up: set[int] = set()
        self._avoided: dict[int, tuple[float, float]] = {}
        """Segments that could not be read: until when each is left alone, and the length of that pause."""

    async def step(self, segments: list[Segment]) -> bool:
        """Empty the chosen segments among those whose originals may be removed. False: there are none."""
        victims = self._victims(segments)
        for segment in victims:
            for run, ledger in list(segment.runs.items()):
                if self._stopping():
                    return False
                try:
                    await self._move(ledger, run)
                except LedgerNotFound:
                    # Deleted while its entries were being read: nothing is left to move.
                    continue
                except LedgerCorrupt as error:
                    # The damaged entry stays where it is, as evidence; so does its segment.
                    _log.error(
                        "segment %d is damaged, so it is kept as it is, and no space of it is freed: %s",
                        segment.number,
                        error,
                    )
                    self._given_up.add(segment.number)
                    break
                except LedgerUnreadable as error:
                    seconds = self._avoid(segment.number)
                    _log.error(
                        "segment %d was not compacted, trying again in %.0f s: %s", segment.number, seconds, error
                    )
                    break
        return bool(victims)

    def _avoid(self, number: int) -> float:
        """Leave a segment alone for a while; returns for how many seconds."""
        _, before = self._avoided.get(number, (0.0, 0.0))
        seconds = min(max(2 * before, AVOID_SECONDS), AVOID_SECONDS_MAX)
        self._avoided[number] = self._clock() + seconds, seconds
        return seconds

    def _may_try(self, number: int) -> bool:
        return number not in self._given_up and self._avoided.get(number, (0.0, 0.0))[0] <= self._clock()

    def _victims(self, segments: list[Segment]) -> list[Segment]:
        self._given_up &= self._log.segments.keys()
        for number in self._avoided.keys() - self._log.segments.keys():
            del self._avoided[number]
        candidates = [each for each in segments if each.runs and self._may_try(each.number)]
        mostly_dead = [
            each
            for each in candidates
            if each.live_bytes * 2 < each.length and (each.length - each.live_bytes) * 4 >= self._segment_bytes
        ]
        if mostly_dead:
            return [min(mostly_dead, key=lambda each: each.live_bytes / each.length)]
        small = [each for each in candidates if each.length * 2 < self._segment_bytes]
        return small if len(small) > SMALL_SEGMENTS_MAX else []

    async def _move(self, ledger: Ledger, run: Run) -> None:
        copies: list[Run] = []
        is_copied = False
        try:
            is_copied = await self._copy(ledger, run, copies)
        finally:
            if not is_copied:  # also on an error: unused copies must not keep their segments
                self._drop(copies)
        if is_copied:
            await self._finish(ledger, run, copies)

    async def _copy(self, ledger: Ledger, run: Run, copies: list[Run]) -> bool:
        """Write the copies. False: the run died meanwhile, or the broker is stopping."""
        count = run.count
        done = 0
        while done < count:
            if self._stopping() or not _alive(ledger, run):
                return False
            first = run.first + done
            entries = await self._reads.read(ledger, first, run.end - 1, CHUNK_BYTES)
            if not _alive(ledger, run):
                return False
            heard: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            for entry, data in enumerate(entries, first):
                last = entry == first + len(entries) - 1
                self._put(ledger, entry, data, copies, answering(heard) if last else _ignore)
            await heard
            done += len(entries)
            size = sum(map(len, entries))
            self._stats.moved_bytes += size
            await asyncio.sleep(size / self._bytes_per_second)
        return True

    def _put(
        self, ledger: Ledger, entry: int, data: bytes, copies: list[Run], done: Callable[[int | LedgerError], None]
    ) -> None:
        number, offset = self._log.put(record(MOVED, ledger.ledger_id, entry, data), done)
        copy = copies[-1] if copies else None
        if copy is None or copy.segment != number:
            copy = Run(number, entry)
            copies.append(copy)
            # Alive from the start, so that the segment's index file contains it and the segment is not unlinked.
            self._log.segments[number].runs[copy] = ledger
        assert copy.places is not None
        copy.places.append(offset << 32 | len(data) & LENGTH_MASK)

    async def _finish(self, ledger: Ledger, run: Run, copies: list[Run]) -> None:
        heard: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        tell = answering(heard)

        def done(result: int | LedgerError) -> None:
            if not isinstance(result, LedgerError) and _alive(ledger, run):
                for copy in copies:
                    ledger.place_run(copy)
                self._log.segments[run.segment].drop(run)
                self._places.forget(run)
            else:
                self._drop(copies)
            tell(result)

        self._log.put(move_done_record(ledger.ledger_id, run.first, run.count), done)
        await heard

    def _drop(self, copies: list[Run]) -> None:
        for copy in copies:
            segment = self._log.segments.get(copy.segment)
            if segment is not None:
                segment.drop(copy)


def _alive(ledger: Ledger, run: Run) -> bool:
    return not ledger.deleted and ledger.run_of(run.first) is run


def _ignore(_: int | LedgerError) -> None:
    """The last record of the chunk reports for all of them."""
