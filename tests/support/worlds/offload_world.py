# SPDX-License-Identifier: Apache-2.0
"""Ledgers and a bucket in memory, and a broker that offloads ledgers to the bucket and can be killed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import count

from meridian_broker.engines.memory.ledgers import MemoryDisk, MemoryLedgerStore
from meridian_broker.engines.memory.objects import MemoryObjects
from meridian_broker.ledgers.labels import Belonging, Kind, Label
from meridian_broker.ledgers.offloaded.cache import BlockCache
from meridian_broker.ledgers.offloaded.copies import Copies
from meridian_broker.ledgers.offloaded.offloading import Offloading
from meridian_broker.ledgers.offloaded.storage import OffloadedLedgers
from meridian_broker.ledgers.offloaded.table import OffloadTable
from meridian_broker.ledgers.periodic import PeriodicWork
from meridian_broker.ledgers.storage import OldLedger, StorageFigures
from meridian_broker.metadata.store import ABSENT, Record, VersionConflict
from support.contracts.ledger_contract import append_all
from support.worlds.topic_of_one_region import Clocked

LABEL = Label(Kind.MESSAGES, Belonging("persistent://public/default/t", "")).encode()
BLOCK, CHUNK = 200, 1000
FOLDER = "us"


class Killed(BaseException):
    """The process is killed here."""


class MemoryStorage(MemoryLedgerStore):
    """A ledger store, with what its process asks of it, as far as tests need that."""

    is_apart = True
    full = None
    damages: tuple[str, ...] = ()
    works: tuple[PeriodicWork, ...] = ()
    outside = "{}"

    def newest_fence(self) -> int:
        return 0

    async def older_than(self, age_ms: int, /) -> list[OldLedger]:
        return []

    def figures(self) -> StorageFigures:
        return StorageFigures({}, {})


class MemoryMetadata:
    """The part of a metadata store that the table of offloaded ledgers uses."""

    def __init__(self, records: dict[str, Record], step: Callable[[], None]) -> None:
        """:param step: called before each write and after it, when it is executed but not answered."""
        self._records = records
        self._step = step

    async def get(self, path: str) -> Record | None:
        return self._records.get(path)

    async def scan(self, prefix: str) -> list[tuple[str, Record]]:
        return [(path, record) for path, record in sorted(self._records.items()) if path.startswith(prefix)]

    async def put(self, path: str, value: bytes, *, expected: int) -> int:
        self._check(path, expected)
        record = Record(value, expected + 1)
        self._records[path] = record
        self._step()
        return record.version

    async def delete(self, path: str, *, expected: int) -> bool:
        self._check(path, expected)
        del self._records[path]
        self._step()
        return True

    def _check(self, path: str, expected: int) -> None:
        self._step()
        found = self._records.get(path)
        if (ABSENT if found is None else found.version) != expected:
            raise VersionConflict(f"{path} has a different version")


class OffloadWorld:
    """See the module's text. ``await start()`` before use, and after a kill."""

    def __init__(self) -> None:
        self.disk = MemoryDisk()
        self.bucket: dict[str, bytes] = {}
        self.scheduler = Clocked()
        self.fence = 0
        self._names = count(1)
        self.records: dict[str, Record] = {}
        """The metadata."""
        self.steps = 0
        self.killed_at = -1
        """The step at which the process is killed; -1: none."""

    async def start(self, *, prefers_copies: bool = False, cache_bytes: int = 10_000) -> OffloadedLedgers:
        """Start the next process on the same disk, bucket and metadata."""
        self.fence += 1
        self.steps, self.killed_at = 0, -1
        self.near = MemoryStorage(self.disk, schedule=asyncio.get_running_loop().call_soon)
        self.objects = MemoryObjects(self.bucket)
        self.objects.fault = lambda _operation, _key: self._step()
        self.table = OffloadTable(MemoryMetadata(self.records, self._step))  # type: ignore[arg-type]
        await self.table.load()
        self.offloading = Offloading(
            *(self.table, Copies(self.objects, FOLDER, BLOCK, CHUNK), self.near, self.scheduler),
            new_name=lambda: f"copy{next(self._names)}",
        )
        self.cache = BlockCache(cache_bytes, self.scheduler.answer)
        self.store = OffloadedLedgers(
            *(self.near, self.offloading, self.cache, self.scheduler), prefers_copies=prefers_copies, outside="{}"
        )
        return self.store

    def _step(self) -> None:
        self.steps += 1
        if self.steps == self.killed_at:
            raise Killed

    async def close(self) -> None:
        await self.store.close()
        await self.scheduler.close()

    async def sealed(self, ledger_id: int, entries: Sequence[bytes]) -> None:
        """Create a sealed ledger with these entries."""
        writer = await self.store.create(ledger_id, self.fence, LABEL)
        await append_all(writer, list(entries))
        await writer.seal()

    async def away(self, ledger_id: int, entries: Sequence[bytes]) -> None:
        """Create a ledger of which only the copy is left."""
        await self.sealed(ledger_id, entries)
        await self.offloading.copy(ledger_id, self.fence)
        await self.offloading.leave(ledger_id)
        assert ledger_id not in self.disk.ledgers
