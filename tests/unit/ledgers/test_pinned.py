# SPDX-License-Identifier: Apache-2.0
"""Ledgers are not deleted while they are being read, and are deleted afterwards."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from crc32c import crc32c
from meridian_broker.engines.memory.ledgers import MemoryDisk, MemoryLedgerStore
from meridian_broker.engines.pinned import PinnedLedgers
from meridian_broker.ledgers.store import LedgerNotFound
from meridian_broker.server.loop import LoopScheduler


@pytest.fixture
async def scheduler() -> AsyncIterator[LoopScheduler]:
    made = LoopScheduler()
    yield made
    await made.close()


async def store_of(disk: MemoryDisk, note: Path, scheduler: LoopScheduler) -> PinnedLedgers:
    loop = asyncio.get_running_loop()
    held = PinnedLedgers(MemoryLedgerStore(disk, schedule=loop.call_soon), note, scheduler)
    await held.finish_deletions()
    return held


def noted(*ledgers: int) -> str:
    """The content of the note for these ledgers."""
    return "".join(f"{ledger} {crc32c(str(ledger).encode()):08x}\n" for ledger in ledgers)


async def test_a_deletion_waits_for_the_last_hold(tmp_path: Path, scheduler: LoopScheduler) -> None:
    disk, note = MemoryDisk(), tmp_path / "note"
    held = await store_of(disk, note, scheduler)
    for ledger in (1, 2, 3):
        await (await held.create(ledger, 1)).seal()
    held.hold([1, 2])
    held.hold([2])
    for ledger in (1, 2, 3):
        await held.delete(ledger)
    assert sorted(disk.ledgers) == [1, 2]
    assert await held.list() == []
    held.release([1, 2])
    await scheduler.tasks_ended()
    assert sorted(disk.ledgers) == [2]
    assert (await held.open(2)).last_confirmed() == -1
    held.release([2])
    await scheduler.tasks_ended()
    assert not disk.ledgers
    assert not note.exists()
    with pytest.raises(LedgerNotFound):
        await held.open(2)


async def test_releasing_what_nobody_deleted_deletes_nothing(tmp_path: Path, scheduler: LoopScheduler) -> None:
    disk = MemoryDisk()
    held = await store_of(disk, tmp_path / "note", scheduler)
    await (await held.create(1, 1)).seal()
    held.hold([1])
    held.release([1])
    await scheduler.tasks_ended()
    assert sorted(disk.ledgers) == [1]


async def test_a_ledger_still_held_at_the_end_is_deleted_at_the_next_start(
    tmp_path: Path, scheduler: LoopScheduler
) -> None:
    disk, note = MemoryDisk(), tmp_path / "note"
    before = await store_of(disk, note, scheduler)
    for ledger in (1, 2):
        await (await before.create(ledger, 1)).seal()
    before.hold([1])
    await before.delete(1)
    assert sorted(disk.ledgers) == [1, 2]
    await store_of(disk, note, scheduler)
    assert sorted(disk.ledgers) == [2]
    assert not note.exists()


async def test_a_damaged_note_costs_space_and_nothing_else(tmp_path: Path, scheduler: LoopScheduler) -> None:
    disk, note = MemoryDisk(), tmp_path / "note"
    held = await store_of(disk, note, scheduler)
    for ledger in range(10, 30):
        await (await held.create(ledger, 1)).seal()
    held.hold([12])
    await held.delete(12)
    written = note.read_bytes()
    for place in range(8 * len(written)):
        damaged = bytearray(written)
        damaged[place // 8] ^= 1 << place % 8
        for found in (bytes(damaged), written[: place // 8], written + damaged):
            note.write_bytes(found)
            copy = MemoryDisk(dict(disk.ledgers), set(disk.used))
            await store_of(copy, note, scheduler)
            assert disk.ledgers.keys() - copy.ledgers.keys() <= {12}, "only the ledger that was to be deleted"
            assert not note.exists()


async def test_a_deletion_that_the_disk_refuses_is_done_later(tmp_path: Path, scheduler: LoopScheduler) -> None:
    disk, note = MemoryDisk(), tmp_path / "note"
    store = MemoryLedgerStore(disk, schedule=asyncio.get_running_loop().call_soon)
    held = PinnedLedgers(store, note, scheduler)
    for ledger in (1, 2, 3):
        await (await held.create(ledger, 1)).seal()
    store.fail_writes("no space")
    await held.delete(1)
    await held.delete(2)
    await held.retry_deletions()
    assert (sorted(disk.ledgers), note.read_text()) == ([1, 2, 3], noted(1, 2))
    store.repair()
    await held.retry_deletions()
    assert sorted(disk.ledgers) == [3]
    assert not note.exists()


async def test_a_refused_deletion_is_done_at_the_next_start(tmp_path: Path, scheduler: LoopScheduler) -> None:
    disk, note = MemoryDisk(), tmp_path / "note"
    store = MemoryLedgerStore(disk, schedule=asyncio.get_running_loop().call_soon)
    before = PinnedLedgers(store, note, scheduler)
    await (await before.create(1, 1)).seal()
    store.fail_writes("no space")
    await before.delete(1)
    store.crash()
    await store_of(disk, note, scheduler)
    assert not disk.ledgers
    assert not note.exists()


async def test_an_unwritable_note_prevents_no_deletion(
    tmp_path: Path, scheduler: LoopScheduler, caplog: pytest.LogCaptureFixture
) -> None:
    disk, note = MemoryDisk(), tmp_path / "note"
    caplog.set_level(logging.WARNING, "meridian_broker")
    note.mkdir()  # reading, writing and removing it fail
    held = await store_of(disk, note, scheduler)
    for ledger in (1, 2, 3):
        await (await held.create(ledger, 1)).seal()
    held.hold([2])
    for ledger in (1, 2, 3):
        await held.delete(ledger)
    assert sorted(disk.ledgers) == [2]
    await asyncio.sleep(0)  # notes are written once a turn
    await asyncio.sleep(0)
    assert len([record for record in caplog.records if "cannot be written" in record.message]) == 1
    note.rmdir()
    held.release([2])
    await scheduler.tasks_ended()
    assert not disk.ledgers
