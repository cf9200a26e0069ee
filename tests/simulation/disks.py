# SPDX-License-Identifier: Apache-2.0
"""A region's volume: what is durable on it, what a power cut loses, and what rots.

A sync covers what was written before it began; later writes are left to the next sync. A crash keeps some prefix of the
unsynced writes, in order, like a torn tail: the engine truncates the rest at its next start.

Two brokers may use a volume at once, as with shared storage: each has a store, and once one fences a ledger the other
can no longer write to it, not even writes already queued.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

from meridian_broker.engines.memory.ledgers import (
    Handle,
    MemoryDisk,
    MemoryLedgerStore,
    MemoryReader,
    MemoryWriter,
    StoredLedger,
    Write,
)
from meridian_broker.ledgers.store import AppendDone, LedgerCorrupt, LedgerError, LedgerUnreadable, LedgerWriteFailed
from simulation.disk_faults import DiskFaults
from simulation.loop import Future, Loop, Owner

if TYPE_CHECKING:
    from simulation.metadata import SimMetadata


@dataclass(frozen=True, slots=True)
class Around:
    """What a store of the simulator works with, for one run of a broker."""

    loop: Loop
    owner: Owner
    name: str
    """The broker's name among several of the region."""
    metadata: SimMetadata
    """The region's metadata store, as this broker reaches it."""
    sync_us: Callable[[], int]
    """How long the next sync takes."""
    on_create: Callable[[int], None]
    on_delete: Callable[[int], None]
    on_rot: Callable[[int, int], None]
    """Called with ledger and number of each rotten entry that is read."""
    faults: DiskFaults


@dataclass
class Volume:
    """The disk of a region. It outlives the broker."""

    disk: MemoryDisk = field(default_factory=MemoryDisk)
    rotten: dict[tuple[int, int], int] = field(default_factory=dict)
    """Rotten entries, and which byte of each is wrong."""
    stores: list[SimStore] = field(default_factory=list)
    """Stores of the brokers that use the volume now."""
    followers: list[Callable[[], None]] = field(default_factory=list)
    """Called when more is durable."""

    def copy(self) -> Volume:
        ledgers = {
            number: StoredLedger(one.fence, list(one.entries), one.sealed, one.label)
            for number, one in self.disk.ledgers.items()
        }
        return Volume(MemoryDisk(ledgers, set(self.disk.used)))

    def start(self, around: Around) -> SimStore:
        """The store of a starting broker."""
        store = SimStore(self, around)
        if self.stores:
            store._handles = self.stores[0]._handles
        self.stores.append(store)
        return store

    def rot(self, ledger: int, entry: int, byte: int = -1, *, lasting: bool = False) -> None:
        """Rot lasts until it is repaired here."""
        del lasting
        self.rotten[ledger, entry] = byte

    def rot_checkpoint(self, age: int) -> None:
        """This disk has no checkpoints."""

    @property
    def is_rotten(self) -> bool:
        return bool(self.rotten)

    def mend(self) -> None:
        self.rotten.clear()

    def power_cut(self, random: Random | None) -> str:
        """The store has already lost what it loses."""
        del random
        return ""

    def newest_fence(self) -> int:
        return max((one.fence for one in self.disk.ledgers.values()), default=0)

    def holds(self, ledger: int, entry: int) -> bool:
        stored = self.disk.ledgers.get(ledger)
        return stored is not None and entry < len(stored.entries)


class RottingReader(MemoryReader):
    """Refuses rotten entries, like the engine's checksums."""

    def __init__(
        self,
        handle: Handle,
        rotten: dict[tuple[int, int], int],
        on_rot: Callable[[int, int], None],
        faults: DiskFaults,
        follow: Callable[[Callable[[], None]], Callable[[], None]],
    ) -> None:
        super().__init__(handle)
        self._follow = follow
        self._rotten = rotten
        self._on_rot = on_rot
        self._faults = faults

    def follow(self, grown: Callable[[], None]) -> Callable[[], None]:
        return self._follow(grown)

    async def read(self, first: int, last: int, max_bytes: int) -> list[bytes]:
        if self._faults.fails("read"):
            raise LedgerUnreadable(f"the disk cannot read ledger {self.ledger_id}")
        found = await super().read(first, last, max_bytes)
        if self._rotten:
            for number in range(first, first + len(found)):
                if (self.ledger_id, number) in self._rotten:
                    if number > first:
                        return found[: number - first]
                    remains = bytearray(found[0])
                    remains[self._rotten[self.ledger_id, number]] ^= 0x40
                    self._on_rot(self.ledger_id, number)
                    raise LedgerCorrupt(f"entry {self.ledger_id}:{number} fails its checksum", bytes(remains))
        return found


def _nothing() -> None:
    """It is on the disk already."""


class SimStore(MemoryLedgerStore):
    """`ledgers.store.LedgerStore` over a volume, for one run of a broker."""

    def __init__(self, volume: Volume, around: Around) -> None:
        super().__init__(volume.disk, schedule=self._begin)
        self._volume = volume
        self._around = around
        self._target: Handle | None = None
        self._targets: list[Handle | None] = []
        """The ledger that each queued write appends to."""

    def _begin(self, _: Callable[[], None]) -> None:
        self._around.loop.soon(self._around.owner, self._begun)

    def _begun(self) -> None:
        covered = len(self._queue)
        self._around.loop.after(self._around.sync_us(), self._around.owner, lambda: self._synced(covered))

    def _synced(self, covered: int) -> None:
        try:
            self.sync(covered)
        finally:
            if self._queue and not self._due:
                self._due = True
                self._begun()

    def arrive(self, random: Random | None) -> None:
        """Some writes in flight reach the disk now. Their broker learns of it only at the next sync."""
        for write in self._queue[: 0 if random is None or not self._queue else random.randint(0, len(self._queue))]:
            if write.refusal is None:
                write.apply()
                write.apply = _nothing

    def power_cut(self, random: Random | None) -> None:
        """Some writes in flight reached the disk; no more callbacks are called."""
        kept = random.randint(0, len(self._queue)) if random is not None and self._queue else 0
        for write in self._queue[:kept]:
            if write.refusal is None and self._failure is None:
                write.apply()
        self.crash()
        self._volume.stores.remove(self)

    # -- two owners

    def append(self, handle: Handle, buffer: bytes, done: AppendDone) -> int:
        self._target = handle
        entry = super().append(handle, buffer, done)
        self._target = None
        return entry

    def _add(self, write: Write) -> None:
        self._targets.append(self._target)
        super()._add(write)

    def sync(self, writes: int | None = None) -> int:
        for number in range(len(self._queue) if writes is None else min(writes, len(self._queue))):
            if self._queue[number].refusal is None and self._around.faults.fails("write"):
                self._refuse_write(number)
        count = super().sync(writes)
        del self._targets[:count]
        for tell in list(self._volume.followers):
            tell()
        return count

    def _refuse_write(self, number: int) -> None:
        """One queued write fails. After a failed append, all later ones of its ledger's writer fail too."""
        failed, target = LedgerWriteFailed("the disk refuses a write"), self._targets[number]
        self._queue[number].refusal = failed
        if target is not None:
            target.refusal = target.refusal or failed
            self._refuse(target)

    def _refuse(self, handle: Handle) -> None:
        """The ledger was taken over: writes queued for it are dropped."""
        for target, write in zip(self._targets, self._queue, strict=True):
            if target is handle and write.refusal is None:
                write.refusal = handle.refusal

    async def _write(self, apply: Callable[[], None]) -> None:
        heard: Future[None] = Future()

        def tell(error: LedgerError | None) -> None:
            if error is None:
                heard.resolve(None)
            else:
                heard.fail(error)

        self._add(Write(apply, tell, 0))
        await heard

    async def create(self, ledger_id: int, fence: int, label: bytes = b"") -> MemoryWriter:
        self._around.on_create(ledger_id)
        return await super().create(ledger_id, fence, label)

    async def open(self, ledger_id: int) -> MemoryReader:
        handle, around = self._find(ledger_id), self._around
        return RottingReader(handle, self._volume.rotten, around.on_rot, around.faults, self._follow)

    def _follow(self, grown: Callable[[], None]) -> Callable[[], None]:
        """Notified of what any broker of the region has synced, on its own broker's loop."""
        loop, owner, volume = self._around.loop, self._around.owner, self._volume

        def tell() -> None:
            loop.soon(owner, grown)

        volume.followers.append(tell)
        return lambda: volume.followers.remove(tell) if tell in volume.followers else None

    async def delete(self, ledger_id: int) -> None:
        if ledger_id in self._handles:
            self._around.on_delete(ledger_id)
        await super().delete(ledger_id)

    async def _seal(self, handle: Handle) -> None:
        for store in self._volume.stores:
            if store is not self:
                store._refuse(handle)
        await super()._seal(handle)
