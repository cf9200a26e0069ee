# SPDX-License-Identifier: Apache-2.0
"""The local engine on real files: the contract, the lock, a second process's view, freed space, memory bounds."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from meridian_broker.engines.local.files import FilePort, OsFiles
from meridian_broker.engines.local.readonly import LocalLedgerReader
from meridian_broker.engines.local.store import LocalLedgerStore
from meridian_broker.ledgers.store import LedgerError, LedgerNotFound, LedgerUnreadable
from support.contracts.ledger_contract import EVERYTHING, LedgerContract, append_all, append_one, read_all
from support.contracts.ledger_disks import READS, WRITES, FaultyDisk, broken

SEGMENT = 1 << 16
"""64 KiB segments: a few hundred entries go through everything that a large log does."""


async def start(directory: Path, *, index_entries: int = 1 << 20, files: FilePort | None = None) -> LocalLedgerStore:
    return await LocalLedgerStore.start(
        directory,
        files=files,
        segment_bytes=SEGMENT,
        checkpoint_bytes=2 * SEGMENT,
        index_entries=index_entries,
        compaction_bytes_per_second=1 << 40,
    )


class LocalWorld:
    def __init__(self, directory: Path, disk: FaultyDisk, store: LocalLedgerStore) -> None:
        self.directory = directory
        self.disk = disk
        self.store = store

    async def reopen(self) -> LocalLedgerStore:
        await self.store.close()
        self.store = await start(self.directory, files=self.disk)
        return self.store

    def fail(self, is_failing: bool) -> None:
        self.disk.fault = broken(READS | WRITES) if is_failing else None


@pytest.fixture
async def ledgers(tmp_path: Path) -> AsyncIterator[LocalWorld]:
    directory = tmp_path / "made" / "when" / "absent"
    disk = FaultyDisk(OsFiles(directory, make=True))
    world = LocalWorld(directory, disk, await start(directory, files=disk))
    yield world
    await world.store.close()


class TestContract(LedgerContract):
    pass


def sample(ledger: int, count: int, size: int = 1000) -> list[bytes]:
    return [(b"%d/%d " % (ledger, entry) * size)[:size] for entry in range(count)]


def log_files(directory: Path) -> list[str]:
    return sorted(name for name in os.listdir(directory) if name.endswith(".log"))


async def test_a_second_opener_is_refused(ledgers: LocalWorld) -> None:
    with pytest.raises(LedgerError, match="in use by another broker"):
        await LocalLedgerStore.start(ledgers.directory)
    await ledgers.reopen()


async def test_a_closed_store_refuses(ledgers: LocalWorld) -> None:
    writer = await ledgers.store.create(1, fence=1)
    heard: list[int | LedgerError] = []
    writer.append(b"queued", heard.append)
    await ledgers.store.close()
    assert heard == [0]
    with pytest.raises(LedgerError, match="closed"):
        await ledgers.store.create(2, fence=1)


async def test_one_sync_serves_many_ledgers(ledgers: LocalWorld) -> None:
    writers = [await ledgers.store.create(number, fence=1) for number in range(100)]
    before = ledgers.store.stats().syncs
    await asyncio.gather(*(append_all(writer, [b"x"]) for writer in writers))
    stats = ledgers.store.stats()
    assert stats.syncs - before <= 2
    assert stats.appends == 100
    assert sum(stats.sync_buckets) == stats.syncs
    assert stats.pending_bytes == 0


async def test_pending_bytes_rise_and_fall(ledgers: LocalWorld) -> None:
    writer = await ledgers.store.create(1, fence=1)
    heard: list[int | LedgerError] = []
    for _ in range(10):
        writer.append(b"x" * 100, heard.append)
    assert ledgers.store.pending_bytes == 1000
    await append_one(writer, b"")
    assert ledgers.store.pending_bytes == 0


async def test_every_start_opens_a_new_segment(ledgers: LocalWorld) -> None:
    for number in range(3):
        await append_all(await ledgers.store.create(number, fence=1), [b"x"])
        await ledgers.reopen()
    assert len(log_files(ledgers.directory)) == 3


async def test_the_space_of_deleted_ledgers_comes_back(ledgers: LocalWorld) -> None:
    store = ledgers.store
    for number in range(8):
        await append_all(await store.create(number, fence=1), sample(number, 100))
    await store.tidy()
    full = store.stats().log_bytes
    for number in range(8):
        await store.delete(number)
    await append_all(await store.create(100, fence=1), sample(100, 1))
    await store.tidy()
    assert full > 8 * SEGMENT
    assert store.stats().log_bytes <= 2 * SEGMENT
    assert len(log_files(ledgers.directory)) <= 2
    store = await ledgers.reopen()
    assert await read_all(store, 100) == sample(100, 1)
    assert store.damages == ()


async def test_compaction_keeps_live_entries(ledgers: LocalWorld) -> None:
    store = ledgers.store
    writers = [await store.create(number, fence=1) for number in range(10)]
    for entry in range(200):
        await asyncio.gather(*(append_one(writer, sample(writer.ledger_id, 200)[entry]) for writer in writers))
    readers = [await store.open(number) for number in (3, 7)]
    for number in range(10):
        if number not in (3, 7):
            await store.delete(number)
    for _ in range(3):
        await store.tidy()
    assert store.stats().moved_bytes > 0
    assert store.stats().log_bytes < 12 * SEGMENT
    for reader in readers:
        assert await reader.read(0, 199, EVERYTHING) == sample(reader.ledger_id, 200)
    assert await append_one(writers[3], b"goes on") == 200
    store = await ledgers.reopen()
    assert await read_all(store, 3) == [*sample(3, 200), b"goes on"]
    assert await read_all(store, 7) == sample(7, 200)
    await store.tidy()
    store = await ledgers.reopen()
    assert await read_all(store, 7) == sample(7, 200)
    assert store.damages == ()


async def test_many_small_segments_are_merged(ledgers: LocalWorld) -> None:
    for number in range(12):
        await append_all(await ledgers.store.create(number, fence=1), sample(number, 2))
        await ledgers.reopen()
    await ledgers.store.tidy()
    assert len(log_files(ledgers.directory)) <= 9
    store = await ledgers.reopen()
    for number in range(12):
        assert await read_all(store, number) == sample(number, 2)


async def test_a_start_reads_only_the_tail(ledgers: LocalWorld) -> None:
    writer = await ledgers.store.create(1, fence=1)
    await append_all(writer, sample(1, 1000))
    await ledgers.store.tidy()
    assert ledgers.store.stats().log_bytes > 900_000
    store = await ledgers.reopen()
    assert store.stats().recovered_bytes < 2 * SEGMENT + 2 * SEGMENT
    assert await read_all(store, 1) == sample(1, 1000)


async def test_entry_locations_leave_memory_and_come_back(tmp_path: Path) -> None:
    store = await start(tmp_path, index_entries=100)
    writer = await store.create(1, fence=1)
    await append_all(writer, sample(1, 1000))
    await store.tidy()
    assert store.stats().index_entries <= 100
    for _ in range(2):
        assert await read_all(store, 1) == sample(1, 1000)
    assert store.stats().index_loads > 0
    assert store.stats().index_entries <= 100
    for name in os.listdir(tmp_path):
        if name.endswith(".index"):
            (tmp_path / name).write_bytes(b"broken")
    assert await read_all(store, 1) == sample(1, 1000)
    await store.tidy()
    assert await read_all(store, 1) == sample(1, 1000)
    await store.close()
    store = await start(tmp_path)
    assert await read_all(store, 1) == sample(1, 1000)
    await store.close()


async def test_another_process_reads_while_the_broker_writes(ledgers: LocalWorld) -> None:
    writer = await ledgers.store.create(1, fence=1)
    await append_all(writer, sample(1, 300))
    await (await ledgers.store.create(2, fence=1)).seal()
    other = await LocalLedgerReader.open_readonly(ledgers.directory)
    assert await read_all(other, 1) == sample(1, 300)
    assert {info.ledger_id: info.sealed for info in await other.list()} == {1: False, 2: True}
    with pytest.raises(LedgerNotFound):
        await other.open(3)
    heard: list[int | LedgerError] = []
    for entry in sample(1, 500)[300:]:
        writer.append(entry, heard.append)
    await append_one(writer, b"last")
    await other.refresh()
    assert await read_all(other, 1) == [*sample(1, 500), b"last"]
    await ledgers.store.delete(1)
    await ledgers.store.tidy()
    await other.refresh()
    with pytest.raises(LedgerNotFound):
        await other.open(1)
    await other.close()


async def test_another_process_follows_entries_that_move(ledgers: LocalWorld) -> None:
    store = ledgers.store
    writers = [await store.create(number, fence=1) for number in range(10)]
    for entry in range(100):
        await asyncio.gather(*(append_one(writer, sample(writer.ledger_id, 100)[entry]) for writer in writers))
    other = await LocalLedgerReader.open_readonly(ledgers.directory)
    reader = await other.open(3)
    for number in range(10):
        if number != 3:
            await store.delete(number)
    names = log_files(ledgers.directory)
    for _ in range(3):
        await store.tidy()
    assert names[0] not in log_files(ledgers.directory)
    assert await reader.read(0, 99, EVERYTHING) == sample(3, 100)
    await other.close()


async def test_read_only_access_needs_an_existing_directory(tmp_path: Path) -> None:
    with pytest.raises(LedgerUnreadable, match="No such file"):
        await LocalLedgerReader.open_readonly(tmp_path / "absent")
    assert not (tmp_path / "absent").exists()


async def test_locations_of_many_ledgers_in_one_segment(ledgers: LocalWorld) -> None:
    store = ledgers.store
    writers = [await store.create(number, fence=1) for number in range(300)]
    await asyncio.gather(*(append_all(writer, [b"%d" % writer.ledger_id] * 5) for writer in writers))
    await append_all(writers[0], sample(0, 150))
    await store.tidy()
    store = await ledgers.reopen()
    for number in range(1, 300):
        assert await read_all(store, number) == [b"%d" % number] * 5
