# SPDX-License-Identifier: Apache-2.0
"""The local `LedgerStore`: composes log, committer, index and files, and enforces the rules of ledgers.

    open -> recover the index -> start the committer ...... append -> batch -> writev + fdatasync -> done
                                                            read  <- index <- pread

One store owns its directory, by a lock. All methods run on the event loop's thread.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from meridian_broker.engines.local.committer import Committer, answering
from meridian_broker.engines.local.files import FilePort, OsFiles, unreadable
from meridian_broker.engines.local.index import Ledger
from meridian_broker.engines.local.log import Log
from meridian_broker.engines.local.places import INDEX_ENTRIES, Places
from meridian_broker.engines.local.reading import EntryReads
from meridian_broker.engines.local.recovery import recover
from meridian_broker.engines.local.replay import State, remember_deleted
from meridian_broker.engines.local.segment import (
    DELETED,
    ENTRY,
    LedgerState,
    ledger_seed,
    record,
    segment_name,
    state_record,
)
from meridian_broker.engines.local.stats import EngineStats
from meridian_broker.engines.local.upkeep import Upkeep, UpkeepSettings
from meridian_broker.ledgers.periodic import PeriodicWork
from meridian_broker.ledgers.storage import OldLedger, StorageFigures
from meridian_broker.ledgers.store import (
    LABEL_BYTES_MAX,
    AppendDone,
    LedgerDeleted,
    LedgerError,
    LedgerFenced,
    LedgerInfo,
    LedgerNotFound,
)

SEGMENT_BYTES: Final = 64 << 20
"""Default size of a segment: small enough that space is freed soon, large enough that thousands hold terabytes."""
CHECKPOINT_BYTES: Final = 128 << 20
"""Default: with two segments on top, a start reads 256 MiB of log at most."""
COMPACTION_BYTES_PER_SECOND: Final = 32 << 20
"""Default: a fraction of a disk's bandwidth, so that appends are not slowed down."""


class LocalWriter:
    """The appender of one ledger of this store."""

    __slots__ = ("_ledger", "_store")

    def __init__(self, store: LocalLedgerStore, ledger: Ledger) -> None:
        self._store = store
        self._ledger = ledger

    @property
    def ledger_id(self) -> int:
        return self._ledger.ledger_id

    @property
    def next_entry(self) -> int:
        return self._ledger.appended

    @property
    def size(self) -> int:
        return self._ledger.size

    def append(self, buffer: bytes, done: AppendDone) -> int:
        return self._store.log.append(self._ledger, buffer, done)

    def append_many(self, buffers: Sequence[bytes], done: AppendDone) -> int:
        return self._store.log.append_many(self._ledger, buffers, done)

    async def seal(self) -> LedgerInfo:
        return await self._store.seal(self._ledger)


class LocalReader:
    """Reads one ledger of this store."""

    __slots__ = ("_ledger", "_reads")

    def __init__(self, ledger: Ledger, reads: EntryReads) -> None:
        self._ledger = ledger
        self._reads = reads

    @property
    def ledger_id(self) -> int:
        return self._ledger.ledger_id

    def last_confirmed(self) -> int:
        return self._ledger.confirmed - 1

    async def read(self, first: int, last: int, max_bytes: int) -> list[bytes]:
        if self._ledger.deleted:
            raise LedgerNotFound(f"ledger {self.ledger_id} was deleted")
        if first < 0:
            raise ValueError(f"entry ids start at 0, not {first}")
        return await self._reads.read(self._ledger, first, min(last, self._ledger.confirmed - 1), max_bytes)


class LocalLedgerStore:
    """See `meridian_broker.ledgers.store.LedgerStore`. Made by `start`."""

    def __init__(
        self,
        files: FilePort,
        state: State,
        stats: EngineStats,
        *,
        segment_bytes: int,
        index_entries: int,
        upkeep: UpkeepSettings,
    ) -> None:
        self._files = files
        self._stats = stats
        self._ledgers = state.ledgers
        self._deleted = state.deleted
        self._making: set[int] = set()
        self._closed = False
        self.damages: tuple[str, ...] = tuple(state.damages)
        """Sentences about files that recovery found damaged."""
        self.log = Log(
            state.segments,
            next_segment=state.next_segment,
            previous=state.previous,
            segment_bytes=segment_bytes,
        )
        self._places = Places(files, state.segments, stats, index_entries)
        self._reads = EntryReads(files, self._places, stats)
        self._loop = asyncio.get_running_loop()
        self._committer = Committer(self.log, files, self._loop, stats, segment_name)
        self._upkeep = Upkeep(
            *(files, self.log, state, self._places, self._reads, stats, upkeep),
            segment_bytes=segment_bytes,
            clock=self._loop.time,
        )
        self._upkeep_task: asyncio.Task[None] | None = None

    @classmethod
    async def start(
        cls,
        directory: Path | str,
        *,
        files: FilePort | None = None,
        segment_bytes: int = SEGMENT_BYTES,
        checkpoint_bytes: int = CHECKPOINT_BYTES,
        index_entries: int = INDEX_ENTRIES,
        compaction_bytes_per_second: int = COMPACTION_BYTES_PER_SECOND,
    ) -> LocalLedgerStore:
        """Lock the directory, recover its content, and start.

        :param files: the file port; the operating system's own when None.
        :param segment_bytes: size of a segment file.
        :param checkpoint_bytes: a start reads at most this much log, plus two segments.
        :param index_entries: how many places of entries in closed segments stay in memory, 8 bytes each.
        :param compaction_bytes_per_second: rate at which mostly dead segments are compacted.
        :raises LedgerError: another process uses the directory, its files have a newer format, or the disk fails.
        """
        try:
            port = files if files is not None else OsFiles(Path(directory), make=True)
            port.lock()
        except OSError as error:
            raise unreadable(str(directory), error) from error
        try:
            start = time.monotonic()
            state = await asyncio.get_running_loop().run_in_executor(None, partial(recover, port, repair=True))
            stats = EngineStats(recovered_bytes=state.scanned_bytes, recovery_seconds=time.monotonic() - start)
            store = cls(
                port,
                state,
                stats,
                segment_bytes=segment_bytes,
                index_entries=index_entries,
                upkeep=UpkeepSettings(checkpoint_bytes, compaction_bytes_per_second),
            )
        except OSError as error:
            port.unlock()
            raise unreadable(port.place, error) from error
        except BaseException:
            port.unlock()
            raise
        store._committer.start()
        store._upkeep_task = asyncio.create_task(store._upkeep.run(), name=store.upkeep.name)
        return store

    async def close(self) -> None:
        """Write everything queued, then release the directory. Later appends fail."""
        if self._closed:
            return
        self._closed = True
        for ledger in self._ledgers.values():
            if ledger.refusal is None:
                ledger.refusal = LedgerError(f"the ledgers in {self._files.place} were closed")
        self._upkeep.stop()
        if self._upkeep_task is not None:
            await self._upkeep_task
        await self._drain()
        self.log.mark()
        await self._committer.stop()
        self._reads.files.close()
        self._files.unlock()

    @property
    def pending_bytes(self) -> int:
        """Bytes of entries queued and not durable yet. The caller of ``append`` bounds it by reading less."""
        return self.log.pending_bytes

    def stats(self) -> EngineStats:
        """Counters and gauges; the same object each time, brought up to date."""
        stats = self._stats
        stats.pending_bytes = self.log.pending_bytes
        stats.ledgers = len(self._ledgers)
        stats.segments = len(self.log.segments)
        stats.log_bytes = sum(segment.length for segment in self.log.segments.values())
        stats.index_entries = self._places.count
        stats.live_bytes = sum(segment.live_bytes for segment in self.log.segments.values())
        return stats

    def figures(self) -> StorageFigures:
        """See `meridian_broker.ledgers.storage.LedgerStorage`, also for the next three."""
        return self.stats().figures()

    @property
    def works(self) -> tuple[PeriodicWork, ...]:
        return (self.upkeep,)

    @property
    def outside(self) -> str:
        return json.dumps({"directory": self._files.place})

    @property
    def full(self) -> str | None:
        """Why no messages can be stored now: the volume is full except for its reserve. None: there is room."""
        if self.log.full is not None:
            self.log.full = self.log.look_for_room()
        return None if self.log.full is None else str(self.log.full)

    @property
    def upkeep(self) -> PeriodicWork:
        """How the background work on the files is doing."""
        return self._upkeep.work

    async def tidy(self) -> None:
        """Do now what upkeep does in the background: write a due checkpoint, free space."""
        await self._upkeep.tidy()

    # -- the port ------------------------------------------------------------------------------------------------

    async def create(self, ledger_id: int, fence: int, label: bytes = b"") -> LocalWriter:
        self._check_open()
        if len(label) > LABEL_BYTES_MAX:
            raise LedgerError(f"a label of {len(label)} bytes is too long: the limit is {LABEL_BYTES_MAX}")
        if ledger_id < 0 or ledger_id in self._ledgers or ledger_id in self._making or ledger_id in self._deleted:
            raise LedgerError(f"ledger id {ledger_id} was used before: take a new one from the metadata store")
        ledger = Ledger(ledger_id, fence, ledger_seed(ENTRY, ledger_id), label)
        if self.log.full is not None and ledger.is_of_messages:
            self.log.full = self.log.look_for_room()
            if self.log.full is not None:
                raise self.log.full
        self._making.add(ledger_id)

        def made() -> None:
            self._ledgers[ledger_id] = ledger

        try:
            await self._put(state_record(ledger_id, LedgerState(fence, -1, False, label)), made)
        finally:
            self._making.discard(ledger_id)
        return LocalWriter(self, ledger)

    async def open(self, ledger_id: int) -> LocalReader:
        return LocalReader(self._find(ledger_id), self._reads)

    async def recover(self, ledger_id: int, fence: int) -> LedgerInfo:
        self._check_open()
        ledger = self._find(ledger_id)
        if fence < ledger.fence:
            raise LedgerFenced(
                f"ledger {ledger_id} belongs to owner epoch {ledger.fence}, and {fence} is older: close the topic"
            )
        ledger.fence = fence
        if not ledger.sealed:
            ledger.refusal = LedgerFenced(
                f"ledger {ledger_id} was taken over by owner epoch {fence}: this writer must close its topic"
            )
            await self._seal(ledger)
        return ledger.info()

    async def delete(self, ledger_id: int) -> None:
        self._check_open()
        ledger = self._ledgers.get(ledger_id)
        if ledger is None:
            return
        if not ledger.sealed and (ledger.refusal is None or not isinstance(ledger.refusal, LedgerNotFound)):
            ledger.refusal = LedgerNotFound(f"ledger {ledger_id} was deleted")

        def gone() -> None:
            if self._ledgers.pop(ledger_id, None) is not None:
                ledger.deleted = True
                remember_deleted(self._deleted, ledger_id)
                for run in ledger.runs:
                    self.log.segments[run.segment].drop(run)
                    self._places.forget(run)
                self._upkeep.kick()

        await self._put(record(DELETED, ledger_id, 0, b""), gone)

    @property
    def is_apart(self) -> bool:
        """True: the volume can be restored without the metadata, and the metadata without the volume."""
        return True

    async def older_than(self, _age_ms: int, /) -> list[OldLedger]:
        """None: opening a topic finds those of its ledgers that its metadata does not name."""
        return []

    def newest_fence(self) -> int:
        """The highest owner epoch of any ledger; 0: there is none."""
        return max((ledger.fence for ledger in self._ledgers.values()), default=0)

    async def list(self) -> list[LedgerInfo]:
        return [ledger.info() for ledger in self._ledgers.values()]

    # -- for the writer ------------------------------------------------------------------------------------------

    async def seal(self, ledger: Ledger) -> LedgerInfo:
        """As `Writer.seal`."""
        self._check_open()
        if isinstance(ledger.refusal, LedgerFenced | LedgerNotFound):
            raise ledger.refusal
        if not ledger.sealed:
            ledger.refusal = LedgerError(f"ledger {ledger.ledger_id} is sealed: open a new one")
            await self._seal(ledger)
        return ledger.info()

    # -- inside --------------------------------------------------------------------------------------------------

    async def _seal(self, ledger: Ledger) -> None:
        # Queued entries lie before this record, so they are durable when the record is. If the write fails, they
        # fail with it, and a later attempt seals the rest.
        def sealed() -> None:
            ledger.sealed = True

        state = LedgerState(ledger.fence, ledger.appended, True, ledger.label)
        await self._put(state_record(ledger.ledger_id, state), sealed)

    async def _put(self, data: bytes, apply: Callable[[], None]) -> None:
        """Log a record; ``apply`` runs when it is durable, whether the caller still waits or was cancelled."""
        heard: asyncio.Future[None] = self._loop.create_future()
        answer = answering(heard)

        def done(result: int | LedgerError) -> None:
            if not isinstance(result, LedgerError):
                apply()
            answer(result)

        self.log.put(data, done)
        await heard

    async def _drain(self) -> None:
        """Wait until everything queued so far has been reported."""
        heard: asyncio.Future[None] = self._loop.create_future()
        self.log.tell(lambda _: heard.set_result(None), LedgerError("drained"))
        await heard

    def _find(self, ledger_id: int) -> Ledger:
        ledger = self._ledgers.get(ledger_id)
        if ledger is None and ledger_id in self._deleted:
            raise LedgerDeleted(f"ledger {ledger_id} in {self._files.place} was deleted")
        if ledger is None:
            raise LedgerNotFound(
                f"there is no ledger {ledger_id} in {self._files.place}: it was deleted or never created"
            )
        return ledger

    def _check_open(self) -> None:
        if self._closed:
            raise LedgerError(f"the ledgers in {self._files.place} were closed")
