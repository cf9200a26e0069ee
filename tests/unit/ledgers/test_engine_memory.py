# SPDX-License-Identifier: Apache-2.0
"""The memory engine: the contract, and a crash that forgets what was not synced."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from meridian_broker.engines.memory.ledgers import MemoryLedgerStore
from meridian_broker.ledgers.store import LedgerError, LedgerWriteFailed
from support.contracts.ledger_contract import LedgerContract, append_all, append_one, read_all


class MemoryWorld:
    def __init__(self) -> None:
        self.store = self._start()

    def _start(self) -> MemoryLedgerStore:
        disk = self.store.disk if hasattr(self, "store") else None
        return MemoryLedgerStore(disk, schedule=asyncio.get_running_loop().call_soon)

    async def reopen(self) -> MemoryLedgerStore:
        await self.store.close()
        self.store = self._start()
        return self.store

    def fail(self, is_failing: bool) -> None:
        if is_failing:
            self.store.fail_writes("full")
        else:
            self.store.repair()


@pytest.fixture
async def ledgers() -> AsyncIterator[MemoryWorld]:
    world = MemoryWorld()
    yield world
    await world.store.close()


class TestContract(LedgerContract):
    pass


async def test_a_crash_forgets_what_was_not_synced() -> None:
    store = MemoryLedgerStore()
    making = asyncio.ensure_future(store.create(1, fence=1))
    await asyncio.sleep(0)
    assert store.sync() == 1
    writer = await making
    heard: list[int | LedgerError] = []
    for number in range(5):
        writer.append(b"%d" % number, heard.append)
    assert store.sync(3) == 3
    assert store.pending_bytes == 2
    after = MemoryLedgerStore(store.crash())
    store.sync()
    assert heard == [0, 1, 2]
    assert await read_all(after, 1) == [b"0", b"1", b"2"]


async def test_a_failing_disk_fails_the_writer_for_good() -> None:
    store = MemoryLedgerStore(schedule=asyncio.get_running_loop().call_soon)
    writer = await store.create(1, fence=1)
    idle = await store.create(2, fence=1)
    await append_all(writer, [b"good"])
    heard: list[int | LedgerError] = []
    writer.append(b"queued", heard.append)
    store.fail_writes("full")
    assert isinstance(await append_one(writer, b"later"), LedgerWriteFailed)
    assert isinstance(heard[0], LedgerWriteFailed)
    store.repair()
    assert isinstance(await append_one(writer, b"after the repair"), LedgerWriteFailed)
    assert await append_one(idle, b"fine") == 0
    assert (await writer.seal()).entries == 1
