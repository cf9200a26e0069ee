# SPDX-License-Identifier: Apache-2.0
"""Group commit: one thread writes batches and syncs them, and calls back to the loop once per group.

At the end of each turn of the loop the queued batch is passed to the thread. While one fdatasync runs, batches of later
turns accumulate; the thread takes all of them as the next group, so groups grow with the load and a lone append waits
for no other. The thread only calls `writev` and `fdatasync`, which release the interpreter lock. Headers and checksums
are computed on the loop's thread, because whenever the writer thread needs the lock back, it may have to wait for the
loop.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Final

from meridian_broker.engines.local.files import AppendFile, FilePort, unwritable
from meridian_broker.engines.local.log import Batch, Log
from meridian_broker.engines.local.room import Room
from meridian_broker.engines.local.segment import SEGMENT_HEADER_BYTES
from meridian_broker.engines.local.stats import EngineStats
from meridian_broker.ledgers.store import AppendDone, LedgerError, LedgerStorageFull, LedgerWriteFailed

_log = logging.getLogger(__name__)

MAX_GROUP_BYTES: Final = 16 << 20
"""Limit of one group, and so of the time that its first append waits for its last."""
IDLE_SECONDS: Final = 0.25
"""After this time without writes, a mark records that the last group is durable (`Log.mark`). In a busy log, each
group records it for the previous one, so marks cost one small write and sync at the end of each busy period."""


class Committer:
    """Carries batches of a `Log` to the disk. The log itself is only touched on the loop's thread."""

    def __init__(
        self,
        log: Log,
        files: FilePort,
        loop: asyncio.AbstractEventLoop,
        stats: EngineStats,
        segment_name: Callable[[int], str],
    ) -> None:
        """:raises OSError: the volume does not say how large it is."""
        self._room = Room(files)
        self._log = log
        log.look_for_room = self._room.refusal
        self._files = files
        self._loop = loop
        self._stats = stats
        self._segment_name = segment_name
        self._queue: SimpleQueue[list[Batch] | None] = SimpleQueue()
        self._flush_due = False
        self._stopped = False
        self._file: AppendFile | None = None
        self._segment = -1
        self._synced = 0
        self._written = 0
        self._failed_generation = -1
        self._idle: asyncio.TimerHandle | None = None
        self._reports = 0
        self._failures = 0
        """Groups that failed since one was written."""
        self._thread = threading.Thread(target=self._run, name="meridian-ledger-log", daemon=True)
        log.wake = self._wake

    def start(self) -> None:
        self._thread.start()

    async def stop(self) -> None:
        """Write everything queued, then end the thread."""
        if self._idle is not None:
            self._idle.cancel()
        self._flush()
        self._queue.put(None)
        await self._loop.run_in_executor(None, self._thread.join)
        # The thread posted its last report before it ended: one turn later, only appends that came too late are left.
        await asyncio.sleep(0)
        self._stopped = True
        self._flush()

    # -- on the loop's thread ------------------------------------------------------------------------------------

    def _wake(self) -> None:
        if self._flush_due:
            ready = self._log.take(all_of_it=False)
            if ready:
                self._queue.put(ready)
        else:
            self._flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        batches = self._log.take()
        if not batches:
            return
        if self._stopped:
            self._log.fail(LedgerWriteFailed(f"the ledgers in {self._files.place} were closed"))
        else:
            self._queue.put(batches)

    def _report(
        self,
        durable: Sequence[Batch],
        error: Exception | None,
        seconds: Sequence[float],
        full: LedgerStorageFull | None,
    ) -> None:
        """A group was written, or failed: run its callbacks in order."""
        stats = self._stats
        if (full is None) != (self._log.full is None):
            _log.warning("%s", full or f"the volume of {self._files.place} has room for messages again")
        self._log.full = full
        for each in seconds:
            stats.synced(each)
        for batch in durable:
            stats.appends += batch.entries
            stats.append_bytes += batch.data_bytes
            stats.written_bytes += batch.ends - batch.begins
        self._log.complete(len(durable))
        if error is not None:
            stats.write_failures += 1
            failure = unwritable(self._files.place, error)
            failure.__cause__ = error
            self._failures += 1
            if self._failures == 1:
                _log.error("%s; further failures are counted but not logged until a write succeeds", failure)
            self._log.fail(failure)
        elif durable and self._failures:
            _log.warning("the disk of %s accepts writes again after %d failures", self._files.place, self._failures)
            self._failures = 0
        self._reports += 1
        if self._idle is None and self._log.is_unmarked and not self._stopped:
            self._idle = self._loop.call_later(IDLE_SECONDS, self._look_idle, self._reports)

    def _look_idle(self, reports: int) -> None:
        """Mark the last group. If others came meanwhile, look again later instead."""
        self._idle = None
        if not self._log.is_unmarked or self._stopped:
            return
        if reports == self._reports and self._log.idle:
            self._log.mark()
        else:
            self._idle = self._loop.call_later(IDLE_SECONDS, self._look_idle, self._reports)

    # -- on the writer's thread ----------------------------------------------------------------------------------

    def _run(self) -> None:
        stop = False
        while not stop:
            group: list[Batch] = []
            waiting: list[Batch] | None = self._queue.get()
            size = 0
            while True:
                if waiting is None:
                    stop = True
                    break
                group += waiting
                size += sum(batch.data_bytes for batch in waiting)
                if size >= MAX_GROUP_BYTES:
                    break
                try:
                    waiting = self._queue.get_nowait()
                except Empty:
                    break
            if group:
                self._commit(group)
        if self._file is not None:
            self._file.close()

    def _commit(self, group: list[Batch]) -> None:
        """Write and sync a group. Batches queued before a failure became known are dropped: they failed already."""
        group = [batch for batch in group if batch.generation != self._failed_generation]
        seconds: list[float] = []
        durable = 0
        error: Exception | None = None
        try:
            for at, batch in enumerate(group):
                if batch.header is not None:
                    self._sync(seconds)
                    durable = at
                    self._roll(batch)
                if batch.buffers:
                    assert self._file is not None
                    self._file.write(batch.buffers)
                    self._written = batch.ends
            self._sync(seconds)
            durable = len(group)
        except Exception as caught:
            error = caught
            self._failed_generation = group[0].generation
            self._abandon()
        if group:
            self._loop.call_soon_threadsafe(self._report, group[:durable], error, seconds, self._room.refusal())

    def _sync(self, seconds: list[float]) -> None:
        if self._file is None or self._written == self._synced:
            return
        start = time.monotonic()
        self._file.sync()
        seconds.append(time.monotonic() - start)
        if self._synced == 0:
            # The name of a new segment must survive as well as its bytes.
            self._files.sync_directory()
        self._synced = self._written

    def _roll(self, batch: Batch) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        self._segment, self._synced, self._written = batch.segment, 0, 0
        self._file = self._files.create(self._segment_name(batch.segment))
        assert batch.header is not None
        self._file.write([batch.header])
        self._written = SEGMENT_HEADER_BYTES

    def _abandon(self) -> None:
        """Leave a segment after a failed write; cut off unsynced bytes to free their space."""
        name = self._segment_name(self._segment)
        try:
            if self._file is not None:
                self._file.close()
            if self._synced == 0:
                self._files.unlink(name)
            else:
                self._files.truncate(name, self._synced)
        except Exception as error:
            # Harmless: the next segment's header says how much of this one is valid. The thread must go on in any
            # case, because all appends wait for it.
            if not self._failures:
                _log.warning(
                    "could not truncate %s after a failed write; the next segment says where it ends: %s", name, error
                )
        self._file = None


def answering(heard: asyncio.Future[None]) -> AppendDone:
    """Resolves ``heard`` when a record is durable or has failed, unless the waiting task was cancelled."""

    def done(result: int | LedgerError) -> None:
        if heard.done():
            return
        if isinstance(result, LedgerError):
            heard.set_exception(result)
        else:
            heard.set_result(None)

    return done
