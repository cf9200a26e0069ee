# SPDX-License-Identifier: Apache-2.0
"""A region's volume: what is durable on it, what a power cut takes, and what rots.

A sync covers what was written before it began; what comes meanwhile is the next sync's. A crash keeps some prefix of
what was not synced, in order, as a torn tail does: the engine cuts the rest at its next start.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from meridian_broker.engines.memory.ledgers import (
    MemoryDisk,
    MemoryLedgerStore,
    MemoryReader,
    MemoryWriter,
    StoredLedger,
    _Handle,
    _Write,
)
from meridian_broker.ledgers.store import LedgerCorrupt, LedgerError, LedgerInfo
from simulation.loop import Future, Loop, Owner


@dataclass
class Volume:
    """The disk of a region. It outlives the broker."""

    disk: MemoryDisk = field(default_factory=MemoryDisk)
    rotten: set[tuple[int, int]] = field(default_factory=set)
    """Entries whose bytes changed by themselves."""

    def copy(self) -> Volume:
        ledgers = {
            number: StoredLedger(one.fence, list(one.entries), one.sealed) for number, one in self.disk.ledgers.items()
        }
        return Volume(MemoryDisk(ledgers, set(self.disk.used)))

    def start(
        self,
        loop: Loop,
        owner: Owner,
        sync_us: Callable[[], int],
        on_create: Callable[[int], None],
        on_delete: Callable[[int], None],
    ) -> SimStore:
        """The store of a broker that begins."""
        return SimStore(self, loop, owner, sync_us, on_create, on_delete)

    def rot(self, ledger: int, entry: int) -> None:
        self.rotten.add((ledger, entry))

    def mend(self) -> None:
        self.rotten.clear()

    def power_cut(self, random: Random | None) -> str:
        """The store saw to it."""
        del random
        return ""

    def holds(self, ledger: int, entry: int) -> bool:
        stored = self.disk.ledgers.get(ledger)
        return stored is not None and entry < len(stored.entries)


class RottingReader(MemoryReader):
    """Refuses what is rotten, as the engine's checksums do."""

    def __init__(self, handle: _Handle, rotten: set[tuple[int, int]]) -> None:
        super().__init__(handle)
        self._rotten = rotten

    async def read(self, first: int, last: int, max_bytes: int) -> list[bytes]:
        found = await super().read(first, last, max_bytes)
        if self._rotten:
            for number in range(first, first + len(found)):
                if (self.ledger_id, number) in self._rotten:
                    if number > first:
                        return found[: number - first]
                    raise LedgerCorrupt(f"entry {self.ledger_id}:{number} fails its checksum")
        return found


class SimStore(MemoryLedgerStore):
    """`ledgers.store.LedgerStore` over a volume, for the life of one broker."""

    def __init__(
        self,
        volume: Volume,
        loop: Loop,
        owner: Owner,
        sync_us: Callable[[], int],
        on_create: Callable[[int], None],
        on_delete: Callable[[int], None],
    ) -> None:
        super().__init__(volume.disk, schedule=self._begin)
        self._volume = volume
        self._loop = loop
        self._owner = owner
        self._sync_us = sync_us
        self._on_create = on_create
        self._on_delete = on_delete

    def _begin(self, _: Callable[[], None]) -> None:
        self._loop.soon(self._owner, self._begun)

    def _begun(self) -> None:
        covered = len(self._queue)
        self._loop.after(self._sync_us(), self._owner, lambda: self._synced(covered))

    def _synced(self, covered: int) -> None:
        try:
            self.sync(covered)
        finally:
            if self._queue and not self._due:
                self._due = True
                self._begun()

    def power_cut(self, random: Random | None) -> None:
        """Some of what was on its way reached the disk; nobody is told anything more."""
        kept = random.randint(0, len(self._queue)) if random is not None and self._queue else 0
        for write in self._queue[:kept]:
            if write.refusal is None and self._failure is None:
                write.apply()
        self.crash()

    async def _write(self, apply: Callable[[], None]) -> None:
        heard: Future[None] = Future()

        def tell(error: LedgerError | None) -> None:
            if error is None:
                heard.settle(None)
            else:
                heard.fail(error)

        self._add(_Write(apply, tell, 0))
        await heard

    async def create(self, ledger_id: int, fence: int) -> MemoryWriter:
        self._on_create(ledger_id)
        return await super().create(ledger_id, fence)

    async def open(self, ledger_id: int) -> MemoryReader:
        return RottingReader(self._find(ledger_id), self._volume.rotten)

    async def delete(self, ledger_id: int) -> None:
        if ledger_id in self._handles:
            self._on_delete(ledger_id)
        await super().delete(ledger_id)

    async def recover(self, ledger_id: int, fence: int) -> LedgerInfo:
        return await super().recover(ledger_id, fence)
