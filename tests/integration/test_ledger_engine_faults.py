# SPDX-License-Identifier: Apache-2.0
"""Disks that fail for a while: nothing with a receipt is lost, no space leaks, and the work goes on."""

from __future__ import annotations

import asyncio
import errno
import itertools
import random
from contextlib import suppress
from pathlib import Path

import pytest
from meridian_broker.engines.local import committer, files
from meridian_broker.engines.local.segment import segment_name
from meridian_broker.engines.local.store import LocalLedgerStore
from meridian_broker.ledgers.store import LedgerCorrupt, LedgerError, LedgerUnreadable
from support.brokers.broker_regions import until
from support.contracts.ledger_contract import append_all, append_one, read_all
from support.contracts.ledger_disks import READS, WRITES, BadSector, ColdDisk, Fault, FaultyDisk, RecordingDisk, broken


async def test_one_unreadable_sector_does_not_fill_the_disk() -> None:
    """Compaction copies the segment's live entries up to the sector, in vain; it must not do so over and over."""
    disk = FaultyDisk(RecordingDisk())
    store = await LocalLedgerStore.start(
        "unused", files=disk, segment_bytes=1 << 16, checkpoint_bytes=1 << 40, compaction_bytes_per_second=1 << 40
    )
    keep, gone = await store.create(1, fence=1), await store.create(2, fence=1)
    kept = [b"%04d" % number * 250 for number in range(12)]
    for entry in kept:
        await append_all(keep, [entry])
        await append_all(gone, [b"x" * 4000])
    while store.stats().segments < 3:
        await append_all(gone, [b"x" * 4000])
    await store.delete(2)
    log_bytes = store.stats().log_bytes
    disk.fault = broken(frozenset(("read",)), names="01.log")
    for _ in range(5):
        await store.tidy()
    assert store.stats().moved_bytes == 0
    assert store.stats().log_bytes < log_bytes + 1000
    disk.fault = None
    assert await read_all(store, 1) == kept
    await store.close()


async def test_space_of_copies_made_up_to_an_unreadable_sector_is_freed() -> None:
    """The copies made before the sector are not used, and do not keep the segments that they were written to."""
    disk = BadSector()
    store = await LocalLedgerStore.start(
        "unused", files=disk, segment_bytes=1 << 16, checkpoint_bytes=1 << 40, compaction_bytes_per_second=1 << 40
    )
    keep, gone, later = [await store.create(number, fence=1) for number in (1, 2, 3)]
    kept = [b"%04d" % number * 250 for number in range(12)]
    for entry in kept:
        await append_all(keep, [entry])
        await append_all(gone, [b"x" * 4000])
    while store.stats().segments < 2:
        await append_all(gone, [b"x" * 4000])
    at = disk.content()[segment_name(1)].index(kept[7])
    disk.bad = at, at + 100
    await store.delete(2)
    await store.tidy()
    copied = store.stats().moved_bytes
    assert copied == sum(map(len, kept[:7]))
    while store.stats().segments < 5:
        await append_all(later, [b"y" * 4000])
    await store.delete(3)
    await store.tidy()
    assert store.stats().moved_bytes == copied
    assert store.stats().segments == 2  # the segment with the sector, and the one being written
    disk.bad = None
    assert await read_all(store, 1) == kept
    await store.close()


async def test_entries_before_and_after_an_unreadable_sector_are_read() -> None:
    disk = BadSector()
    store = await LocalLedgerStore.start("unused", files=disk)
    writer = await store.create(1, fence=1)
    entries = [b"%04d" % number * 100 for number in range(10)]
    await append_all(writer, entries)
    (name,) = [name for name in disk.names() if name.endswith(".log")]
    at = disk.content()[name].index(b"0007" * 100)
    disk.bad = at, at + 100
    reader = await store.open(1)
    assert await reader.read(0, 9, 1 << 20) == entries[:7]
    with pytest.raises(LedgerUnreadable):
        await reader.read(7, 9, 1 << 20)
    assert await reader.read(8, 9, 1 << 20) == entries[8:]
    disk.bad = None
    assert await reader.read(0, 9, 1 << 20) == entries
    await store.close()


async def test_locations_come_from_the_segment_while_the_index_file_is_unreadable() -> None:
    disk = FaultyDisk(ColdDisk())
    store = await LocalLedgerStore.start(
        "unused", files=disk, segment_bytes=1 << 13, checkpoint_bytes=1 << 14, index_entries=1
    )
    entries = [b"%04d" % number * 100 for number in range(200)]
    await append_all(await store.create(1, fence=1), entries)
    await store.tidy()
    disk.fault = broken(READS, names=".index")
    assert await read_all(store, 1) == entries
    disk.fault = None
    assert await read_all(store, 1) == entries
    await store.close()


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("operations", [READS, WRITES, READS | WRITES], ids=["reads", "writes", "everything"])
async def test_whenever_the_disk_fails_receipts_hold_and_the_work_goes_on(
    operations: frozenset[str], code: int
) -> None:
    """15 moments at which the disk begins to fail, each time for a random number of operations."""
    whole = FaultyDisk(RecordingDisk())
    await _busy_while_it_fails(whole)
    rng = random.Random(code)
    for begins in sorted(rng.sample(range(whole.operations), 15)):
        disk = FaultyDisk(RecordingDisk())
        ends = begins + rng.choice((1, 5, 60, 1000))
        disk.fault = during(disk, begins, ends, broken(operations, code))
        await _busy_while_it_fails(disk)


def during(disk: FaultyDisk, begins: int, ends: int, fault: Fault) -> Fault:
    """A fault that lasts from one disk operation to another."""
    return lambda operation, name: fault(operation, name) if begins <= disk.operations < ends else None


async def _busy_while_it_fails(disk: FaultyDisk) -> None:
    """Writes, reads, seals and deletes ledgers; in the end everything with a receipt is there."""
    fault, disk.fault = disk.fault, None
    store = await LocalLedgerStore.start(
        "unused", files=disk, segment_bytes=8192, checkpoint_bytes=8192, index_entries=20,
        compaction_bytes_per_second=1 << 40,
    )  # fmt: skip
    disk.fault = fault
    stored: dict[int, list[bytes]] = {}
    for number in range(12):
        try:
            writer = await store.create(number, fence=1)
        except LedgerError:
            continue
        stored[number] = []
        for entry in (b"%d/%d " % (number, entry) * 40 for entry in range(12)):
            if isinstance(await append_one(writer, entry), int):
                stored[number].append(entry)
        with suppress(LedgerError):
            await writer.seal()
        with suppress(LedgerError):
            assert await read_all(store, number) == stored[number]
        if number % 3 == 0:
            with suppress(LedgerError):
                await store.delete(number)
                del stored[number]
        await store.tidy()
    disk.fault = None
    await store.tidy()
    assert store.upkeep.state().problem is None
    for number, entries in stored.items():
        assert await read_all(store, number) == entries
    assert await append_all(await store.create(100, fence=1), [b"well again"]) == [0]
    await store.close()
    store = await LocalLedgerStore.start("unused", files=disk, segment_bytes=8192)
    assert store.damages == ()
    for number, entries in stored.items():
        assert await read_all(store, number) == entries
    await store.close()


async def test_a_disk_that_refuses_many_writes_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    disk = FaultyDisk(RecordingDisk())
    store, ids = await LocalLedgerStore.start("unused", files=disk), itertools.count(1)
    for _ in range(2):
        caplog.clear()
        disk.fault = broken(WRITES)
        for _ in range(20):
            with pytest.raises(LedgerError):
                await store.create(next(ids), fence=1)
        assert [one.levelname for one in caplog.records if one.name.endswith(".committer")].count("ERROR") == 1
        assert len(caplog.records) < 5
        disk.fault = None
        await append_all(await store.create(next(ids), fence=1), [b"well"])
        assert "accepts writes again" in caplog.text
    await store.close()


@pytest.mark.logs_error("MemoryError")
async def test_maintenance_survives_any_error_and_reports_it(caplog: pytest.LogCaptureFixture) -> None:
    disk = FaultyDisk(RecordingDisk())
    store = await LocalLedgerStore.start("unused", files=disk, segment_bytes=8192, checkpoint_bytes=8192)

    def out_of_memory(operation: str, name: str) -> OSError | None:
        if operation == "create" and name.endswith(".new"):
            raise MemoryError
        return None

    disk.fault = out_of_memory
    writer = await store.create(1, fence=1)
    while store.upkeep.state().failures == 0:
        await append_all(writer, [b"x" * 1000] * 10)
        await asyncio.sleep(0)
    assert "failed to maintain the ledger files: MemoryError()" in caplog.text
    disk.fault = None
    await store.tidy()
    assert store.upkeep.state().problem is None
    assert store.stats().checkpoints > 0
    await store.close()


async def test_damage_to_the_last_group_is_told_from_a_torn_tail_once_the_log_is_idle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing may follow that group for hours, so a separate mark says that it was durable."""
    monkeypatch.setattr(committer, "IDLE_SECONDS", 0.01)
    disk = RecordingDisk()
    store = await LocalLedgerStore.start("unused", files=disk)
    writer = await store.create(1, fence=1)
    entries = [b"%04d" % number * 25 for number in range(100)]
    await append_all(writer, entries)
    syncs = store.stats().syncs
    await until(lambda: store.stats().syncs > syncs)
    before = store.stats().syncs, store.stats().written_bytes
    for _ in range(5):  # one mark is enough
        await asyncio.sleep(0.01)
    assert (store.stats().syncs, store.stats().written_bytes) == before
    killed = disk.killed(len(disk.journal)).content()
    await store.close()
    (name,) = [name for name in killed if name.endswith(".log")]
    content = bytearray(killed[name])
    content[content.index(entries[10]) + 3] ^= 1
    store = await LocalLedgerStore.start("unused", files=RecordingDisk({**killed, name: bytes(content)}))
    assert any("entry 10 of ledger 1" in sentence for sentence in store.damages)
    reader = await store.open(1)
    assert await reader.read(0, 99, 1 << 20) == entries[:10]
    with pytest.raises(LedgerCorrupt):
        await reader.read(10, 99, 1 << 20)
    assert await reader.read(11, 99, 1 << 20) == entries[11:]
    await store.close()


async def test_a_busy_log_is_not_marked_between_its_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committer, "IDLE_SECONDS", 60.0)
    store = await LocalLedgerStore.start("unused", files=RecordingDisk())
    writer = await store.create(1, fence=1)
    before = store.stats().syncs
    for number in range(20):
        await append_all(writer, [b"%d" % number])
    assert store.stats().syncs == before + 20
    await store.close()


def test_the_name_of_a_new_directory_is_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(files, "_sync_path", synced.append)
    files.make_directory(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    assert synced == [tmp_path, tmp_path / "a"]


@pytest.mark.parametrize("start", [0, 1, files.COPY_BYTES, 2 * files.COPY_BYTES + 5])
def test_writing_a_file_again_keeps_its_content(tmp_path: Path, start: int) -> None:
    content = random.Random(start).randbytes(2 * files.COPY_BYTES + 5)
    (tmp_path / "file").write_bytes(content)
    files.OsFiles(tmp_path, make=False).write_again("file", start)
    assert (tmp_path / "file").read_bytes() == content
