# SPDX-License-Identifier: Apache-2.0
"""The local engine in the simulator: its real log, recovery, checkpoints and compaction, on files in memory.

Only what has a thread or a clock is replaced: the committer's thread (`SimCommitter` writes and syncs a group when the
world says that the disk is done) and asyncio's loop (`EngineLoop`, the few parts that the engine uses). A power cut
leaves what `ledger_disks.RecordingDisk` says a disk may hold then: finished syncs, and anything from none to all of the
rest, torn at any byte or with holes.

Beside the files is a *mirror*: what the engine has reported durable. After a power cut the files are recovered and must
hold all of it, byte by byte.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Coroutine, Sequence
from random import Random
from typing import Any, Final, TypeVar

from meridian_broker.engines.local.committer import Committer
from meridian_broker.engines.local.files import FilePort
from meridian_broker.engines.local.index import LENGTH_MASK, Ledger
from meridian_broker.engines.local.log import Batch
from meridian_broker.engines.local.reading import EntryReads
from meridian_broker.engines.local.recovery import recover
from meridian_broker.engines.local.segment import RECORD_BYTES, segment_name
from meridian_broker.engines.local.stats import EngineStats
from meridian_broker.engines.local.store import LocalLedgerStore, LocalReader, LocalWriter
from meridian_broker.engines.local.upkeep import UpkeepSettings
from meridian_broker.engines.memory.ledgers import MemoryDisk, StoredLedger
from meridian_broker.ledgers.store import AppendDone, LedgerCorrupt, LedgerError, LedgerInfo
from simulation.disks import Around
from simulation.engine_files import SimFiles
from simulation.engine_loop import EngineLoop
from simulation.loop import Loop, Owner, Timer
from support.contracts.ledger_disks import READS, FaultyDisk, Loss

T = TypeVar("T")

SEGMENT_BYTES: Final = 4096
"""The smallest size allowed: worlds of a minute fill many."""
CHECKPOINT_BYTES: Final = 3 * SEGMENT_BYTES
COMPACTION_BYTES_PER_SECOND: Final = 1 << 20


class EngineVolume:
    """The disk of a region, in the local engine's files. It outlives the broker."""

    def __init__(self, files: SimFiles | None = None, mirror: MemoryDisk | None = None) -> None:
        self.files = files or SimFiles()
        self.disk = mirror or MemoryDisk()
        """What is known to be durable."""
        self.deleting: set[int] = set()
        """Ledgers being deleted: after a crash they may exist or not."""
        self.store: EngineStore | None = None
        self._rot: list[Callable[[], None]] = []
        self._lasting: dict[tuple[int, int], int] = {}
        """Rotten entries that a power cut does not mend, and which byte of each is wrong."""
        self._rotten_checkpoints: list[int] = []
        """Age of each checkpoint that rots before the next start: how many newer ones there are."""

    def start(self, around: Around) -> EngineStore:
        """The store of a starting broker.

        :raises OSError, LedgerError: the disk fails while the engine recovers.
        """
        disk = FaultyDisk(self.files)

        def fault(operation: str, name: str) -> OSError | None:
            fails = around.faults.fails("read" if operation in READS else "write")
            return OSError(errno.EIO, "as drawn", name) if fails else None

        disk.fault = fault
        with EngineLoop(around.loop).running():
            self.store = store = EngineStore.on(disk)
        store.begin(self, around)
        for (ledger, entry), byte in self._lasting.items():
            self._flip(ledger, entry, byte)
        return store

    def copy(self) -> EngineVolume:
        """What a backup of the running machine's disk holds: what is durable."""
        return EngineVolume(self.files.after_power_cut(Loss.ALL, Random(0)), _copy(self.disk))

    def newest_fence(self) -> int:
        return 0 if self.store is None else self.store.newest_fence()

    def holds(self, ledger: int, entry: int) -> bool:
        stored = self.disk.ledgers.get(ledger)
        return stored is not None and entry < len(stored.entries)

    def rot(self, ledger: int, entry: int, byte: int = -1, *, lasting: bool = False) -> None:
        """A byte of an entry changes by itself.

        :param lasting: a power cut does not mend it. The engine does not read it when it recovers.
        """
        if lasting:
            self._lasting[ledger, entry] = byte
        self._flip(ledger, entry, byte)

    def rot_checkpoint(self, age: int) -> None:
        """With the next power cut a checkpoint is damaged for good, see `SimFiles`. :param age: how many are newer."""
        self._rotten_checkpoints.append(age)

    def _flip(self, ledger: int, entry: int, byte: int) -> None:
        found = self.store._ledgers.get(ledger) if self.store is not None else None
        run = found.run_of(entry) if found is not None and entry < found.confirmed else None
        if run is not None and run.places is not None:
            place = run.places[entry - run.first]
            offset = (place >> 32) + RECORD_BYTES + byte % (place & LENGTH_MASK)
            self._rot.append(self.files.flip(segment_name(run.segment), offset))

    @property
    def is_rotten(self) -> bool:
        return bool(self._rot)

    def mend(self) -> None:
        self._lasting.clear()
        self._rotten_checkpoints.clear()
        self._flip_back()

    def _flip_back(self) -> None:
        while self._rot:
            self._rot.pop()()

    def power_cut(self, random: Random | None) -> str:
        """Let the disk lose power. Returns what is wrong with it afterwards; empty: nothing."""
        self._flip_back()
        random = random or Random(0)
        loss = random.choice(list(Loss)) if random.random() < 0.9 else Loss.ALL
        self.files = self.files.after_power_cut(loss, random, self._rotten_checkpoints)
        self._rotten_checkpoints.clear()
        deleting, self.deleting = self.deleting, set()
        self.store = None
        try:
            with EngineLoop(Loop()).running():
                found = _contents(self.files)
        except Exception as error:
            return f"the engine does not start after a power cut ({loss.name}): {error!r}"
        for number, stored in self.disk.ledgers.items():
            left = found.ledgers.get(number)
            if left is None and number in deleting:
                continue
            if left is None:
                return f"ledger {number} is gone after a power cut ({loss.name})"
            if left.entries[: len(stored.entries)] != stored.entries:
                return f"ledger {number} lost entries in a power cut ({loss.name})"
            if left.label != stored.label:
                return f"ledger {number} lost its label in a power cut ({loss.name})"
            if stored.sealed and (not left.sealed or len(left.entries) != len(stored.entries)):
                return f"ledger {number} was sealed, but changed in a power cut ({loss.name})"
        found.used |= self.disk.used
        self.disk = found
        return ""


def _copy(disk: MemoryDisk) -> MemoryDisk:
    ledgers = {
        number: StoredLedger(one.fence, list(one.entries), one.sealed, one.label)
        for number, one in disk.ledgers.items()
    }
    return MemoryDisk(ledgers, set(disk.used))


class SimCommitter(Committer):
    """The committer without its thread: a group is written and synced when the disk is done with the previous one."""

    def __init__(self, store: EngineStore, owner: Owner, loop: Loop, sync_us: Callable[[], int]) -> None:
        super().__init__(store.log, store._files, _Turns(loop, owner), store._stats, segment_name)  # type: ignore[arg-type]
        self._disk = store.volume.files
        self._owner = owner
        self._world_loop = loop
        self._sync_us = sync_us
        self._under_way: list[Batch] | None = None

    def _flush(self) -> None:
        super()._flush()
        self._begin()

    def _begin(self) -> None:
        if self._under_way is None and not self._queue.empty():
            group: list[Batch] = []
            while not self._queue.empty():
                group += self._queue.get_nowait() or []
            self._under_way = group
            self._world_loop.after(self._sync_us(), self._owner, self._finish)

    def _finish(self) -> None:
        group, self._under_way = self._under_way, None
        assert group is not None
        self._commit(group)
        self._begin()

    def power_cut(self) -> None:
        """Everything in the group was handed to the disk, and no sync of it has completed."""
        self._disk.power = False
        if self._under_way is not None:
            self._commit(self._under_way)


class _Turns:
    """The loop, for the committer."""

    def __init__(self, loop: Loop, owner: Owner) -> None:
        self._loop = loop
        self._owner = owner

    def call_soon(self, callback: Callable[..., None], *arguments: Any) -> None:
        self._loop.soon(self._owner, lambda: callback(*arguments))

    call_soon_threadsafe = call_soon

    def call_later(self, seconds: float, callback: Callable[..., None], *arguments: Any) -> Timer:
        return self._loop.after(round(seconds * 1_000_000), self._owner, lambda: callback(*arguments))


class EngineWriter(LocalWriter):
    """Reports to the mirror what became durable."""

    def append(self, buffer: bytes, done: AppendDone) -> int:
        return self.append_many((buffer,), done)

    def append_many(self, buffers: Sequence[bytes], done: AppendDone) -> int:
        store, ledger = self._store, self._ledger
        assert isinstance(store, EngineStore)
        mirror, first = store.volume.disk, ledger.appended
        buffers = tuple(buffers)  # the caller may shorten its list before they are durable

        def heard(result: int | LedgerError) -> None:
            if isinstance(result, int):
                entries = mirror.ledgers[ledger.ledger_id].entries
                reported = buffers[len(entries) - first : result + 1 - first]
                assert reported and first <= len(entries), "appends were reported out of order"
                entries.extend(map(bytes, reported))
            done(result)

        return store.log.append_many(ledger, buffers, heard)


class EngineReader(LocalReader):
    """Reports damaged entries."""

    __slots__ = ("_on_rot",)

    def __init__(self, ledger: Ledger, reads: EntryReads, on_rot: Callable[[int, int], None]) -> None:
        super().__init__(ledger, reads)
        self._on_rot = on_rot

    async def read(self, first: int, last: int, max_bytes: int) -> list[bytes]:
        try:
            return await super().read(first, last, max_bytes)
        except LedgerCorrupt:
            self._on_rot(self.ledger_id, first)
            raise


class EngineStore(LocalLedgerStore):
    """`ledgers.store.LedgerStore` over a volume, for one run of a broker."""

    volume: EngineVolume

    _sim: SimCommitter
    _around: Around

    def begin(self, volume: EngineVolume, around: Around) -> None:
        """Start working, in place of the thread."""
        self.volume = volume
        self._around = around
        self._committer = self._sim = SimCommitter(self, around.owner, around.loop, around.sync_us)
        around.loop.spawn(around.owner, self._upkeep.run(), "ledger upkeep")

    @classmethod
    def on(cls, files: FilePort) -> EngineStore:
        state = recover(files, repair=True)
        upkeep = UpkeepSettings(CHECKPOINT_BYTES, COMPACTION_BYTES_PER_SECOND)
        return cls(files, state, EngineStats(), segment_bytes=SEGMENT_BYTES, index_entries=64, upkeep=upkeep)

    async def create(self, ledger_id: int, fence: int, label: bytes = b"") -> LocalWriter:
        self._around.on_create(ledger_id)
        mirror = self.volume.disk
        await super().create(ledger_id, fence, label)
        mirror.used.add(ledger_id)
        mirror.ledgers[ledger_id] = StoredLedger(fence, label=label)
        return EngineWriter(self, self._ledgers[ledger_id])

    async def open(self, ledger_id: int) -> LocalReader:
        return EngineReader(self._find(ledger_id), self._reads, self._around.on_rot)

    async def recover(self, ledger_id: int, fence: int) -> LedgerInfo:
        info = await super().recover(ledger_id, fence)
        self._sealed(self._ledgers[ledger_id])
        return info

    async def seal(self, ledger: Ledger) -> LedgerInfo:
        info = await super().seal(ledger)
        self._sealed(ledger)
        return info

    def _sealed(self, ledger: Ledger) -> None:
        stored = self.volume.disk.ledgers.get(ledger.ledger_id)
        if stored is not None and ledger.sealed:
            stored.sealed, stored.fence = True, ledger.fence

    async def delete(self, ledger_id: int) -> None:
        if ledger_id in self._ledgers:
            self._around.on_delete(ledger_id)
            self.volume.deleting.add(ledger_id)
        await super().delete(ledger_id)
        self.volume.disk.ledgers.pop(ledger_id, None)

    # -- what the world does to it

    def power_cut(self, _: Random | None) -> None:
        self._sim.power_cut()

    def fail_writes(self, reason: str) -> None:
        self.volume.files.refusal = reason

    def repair(self) -> None:
        self.volume.files.refusal = None


def _contents(files: SimFiles) -> MemoryDisk:
    """Everything that a recovery finds, read through the engine."""
    store = EngineStore.on(files)
    found = MemoryDisk()
    for number, ledger in store._ledgers.items():
        reader = _now(LocalLedgerStore.open(store, number))
        entries: list[bytes] = []
        while len(entries) < ledger.confirmed:
            entries += _now(reader.read(len(entries), ledger.confirmed - 1, 1 << 30))
        found.ledgers[number] = StoredLedger(ledger.fence, entries, ledger.sealed, ledger.label)
        found.used.add(number)
    return found


def _now(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that waits for nothing; return its result."""
    try:
        work.send(None)
    except StopIteration as ended:
        result: T = ended.value
        return result
    raise AssertionError("reading from memory waits for something")
