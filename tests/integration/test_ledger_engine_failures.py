# SPDX-License-Identifier: Apache-2.0
"""Disks that refuse, lie or rot: every waiting append learns of it, and damage does not spread."""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from crc32c import crc32c
from meridian_broker.engines.local import upkeep
from meridian_broker.engines.local.checkpoint import assemble
from meridian_broker.engines.local.segment import RECORD_BYTES, SEGMENT_HEADER_BYTES, SegmentFormatError
from meridian_broker.engines.local.store import LocalLedgerStore, LocalWriter
from meridian_broker.ledgers.store import (
    LedgerCorrupt,
    LedgerError,
    LedgerInfo,
    LedgerNotFound,
    LedgerWriteFailed,
)
from support.brokers import full_volume
from support.brokers.broker_regions import until
from support.brokers.full_volume import SEGMENT_BYTES, fill_and_empty
from support.contracts.ledger_contract import append_all, append_one, read_all
from support.contracts.ledger_disks import ColdDisk, RecordingDisk, RefusingDisk, SmallDisk


async def start(disk: RecordingDisk) -> LocalLedgerStore:
    return await LocalLedgerStore.start(
        "unused", files=disk, segment_bytes=1 << 16, checkpoint_bytes=1 << 17, compaction_bytes_per_second=1 << 40
    )


def queue(writer: LocalWriter, count: int, heard: list[int | LedgerError]) -> None:
    for number in range(count):
        writer.append(b"%d" % number * 50, heard.append)


# -- a disk that refuses -------------------------------------------------------------------------------------------


async def _refused(disk: RefusingDisk, store: LocalLedgerStore) -> tuple[LocalWriter, LocalWriter]:
    """Fill a ledger until the disk refuses; returns its writer and a writer that had nothing queued."""
    writer, idle = await store.create(1, fence=1), await store.create(2, fence=1)
    await append_all(writer, [b"good"] * 10)
    heard: list[int | LedgerError] = []
    disk.room = 700
    queue(writer, 100, heard)
    assert isinstance(await append_one(writer, b"in the same turn"), LedgerWriteFailed)
    assert len(heard) == 100
    assert all(isinstance(result, LedgerWriteFailed) for result in heard)
    assert isinstance(await append_one(writer, b"later"), LedgerWriteFailed)
    assert store.pending_bytes == 0
    return writer, idle


@pytest.mark.parametrize("cut_fails", [False, True])
async def test_a_full_disk_fails_every_waiting_append(cut_fails: bool) -> None:
    disk = RefusingDisk()
    store = await start(disk)
    disk.cut_fails = cut_fails
    writer, idle = await _refused(disk, store)
    with pytest.raises(LedgerWriteFailed):
        await store.create(3, fence=1)
    disk.room = None
    assert isinstance(await append_one(writer, b"after the repair"), LedgerWriteFailed)
    assert await append_one(idle, b"fine") == 0
    assert await writer.seal() == LedgerInfo(1, 10, 40, True)
    assert await read_all(store, 1) == [b"good"] * 10
    await append_all(await store.create(4, fence=1), [b"new"])
    disk.cut_fails = False
    await store.close()
    store = await start(RecordingDisk(disk.content()))
    assert store.damages == ()
    assert await read_all(store, 1) == [b"good"] * 10
    assert await read_all(store, 2) == [b"fine"]
    assert await read_all(store, 4) == [b"new"]
    await store.close()


async def test_a_failing_sync_fails_the_appends_it_was_for() -> None:
    disk = RefusingDisk()
    store = await start(disk)
    writer = await store.create(1, fence=1)
    await append_all(writer, [b"good"])
    disk.sync_fails = True
    assert isinstance(await append_one(writer, b"bad"), LedgerWriteFailed)
    disk.sync_fails = False
    assert await store.recover(1, fence=2) == LedgerInfo(1, 1, 4, True)
    await store.close()
    store = await start(RecordingDisk(disk.content()))
    assert await store.list() == [LedgerInfo(1, 1, 4, True)]
    await store.close()


async def test_a_store_on_a_dead_disk_closes() -> None:
    disk = RefusingDisk()
    store = await start(disk)
    writer = await store.create(1, fence=1)
    disk.room = 0
    disk.sync_fails = True
    heard: list[int | LedgerError] = []
    queue(writer, 3, heard)
    await store.close()
    assert len(heard) == 3
    assert all(isinstance(result, LedgerWriteFailed) for result in heard)
    assert isinstance(await append_one(writer, b"closed"), LedgerError)


async def test_maintenance_on_a_full_disk_is_retried() -> None:
    disk = RefusingDisk()
    store = await start(disk)
    writer = await store.create(1, fence=1)
    await append_all(writer, [b"x" * 1000] * 300)
    disk.room = 10
    await store.tidy()
    disk.room = None
    await store.tidy()
    assert store.stats().checkpoints > 0
    assert await read_all(store, 1) == [b"x" * 1000] * 300
    await store.close()


async def test_maintenance_with_nothing_to_do_counts_as_success(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "IDLE_SECONDS", 0.01)
    monkeypatch.setattr(upkeep, "PAUSE_SECONDS", 0.01)
    store = await start(RefusingDisk())
    await until(lambda: store.upkeep.state().turns > 3)
    assert store.upkeep.state().seconds_since_success < 5
    await store.close()


@pytest.mark.logs_error("refused a write")
async def test_a_full_volume_still_takes_acknowledgements_and_deletions() -> None:
    store = await LocalLedgerStore.start(
        "memory", files=SmallDisk(16 << 20), segment_bytes=SEGMENT_BYTES, checkpoint_bytes=2 * SEGMENT_BYTES
    )
    await fill_and_empty(store)
    await store.close()


def test_a_full_kernel_volume_still_takes_acknowledgements_and_deletions(tmp_path: Path) -> None:
    """A small in-memory volume, visible to this test only."""
    alone = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size=24m none "$0" && exec "$@"', str(tmp_path)]
    if shutil.which("unshare") is None or subprocess.run([*alone, "true"], check=False, capture_output=True).returncode:
        pytest.skip("no volume can be mounted here")
    program = [sys.executable, "-m", full_volume.__name__, str(tmp_path / "ledgers")]
    tests = Path(full_volume.__file__).parents[2]
    ended = subprocess.run([*alone, *program], cwd=tests, check=False, capture_output=True, text=True, timeout=120)
    assert ended.stdout == "went well\n", ended.stderr


async def test_the_real_file_port_reports_a_refused_write(tmp_path: Path) -> None:
    """A limit on file sizes stands in for the full disk: the kernel writes part of the data and refuses the rest."""
    store = await LocalLedgerStore.start(tmp_path, segment_bytes=1 << 20)
    writer = await store.create(1, fence=1)
    await append_all(writer, [b"x" * 1000] * 50)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (70_000, hard))
    try:
        heard: list[int | LedgerError] = []
        queue(writer, 2000, heard)
        assert isinstance(await append_one(writer, b"last"), LedgerWriteFailed)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert isinstance(heard[0], LedgerWriteFailed)
    await writer.seal()
    await store.close()
    store = await LocalLedgerStore.start(tmp_path)
    assert await read_all(store, 1) == [b"x" * 1000] * 50
    await store.close()


# -- a disk that rots ----------------------------------------------------------------------------------------------


async def _written(entries: int = 20) -> dict[str, bytes]:
    """A cleanly closed log with entries of 100 bytes in ledgers 1 and 2, one group each."""
    disk = RecordingDisk()
    store = await start(disk)
    first, second = await store.create(1, fence=1), await store.create(2, fence=1)
    for number in range(entries):
        await append_all(first, [b"%04d" % number * 25])
        await append_all(second, [b"%04d" % number * 25])
    await store.close()
    return disk.content()


def flip(files: dict[str, bytes], name: str, at: int, bit: int = 0) -> dict[str, bytes]:
    content = bytearray(files[name])
    content[at] ^= 1 << bit
    return {**files, name: bytes(content)}


def log_name(files: dict[str, bytes]) -> str:
    (name,) = [name for name in files if name.endswith(".log")]
    return name


async def test_a_flipped_bit_in_an_entry_costs_that_entry_only() -> None:
    files = await _written()
    name = log_name(files)
    at = files[name].index(b"0007" * 25) + 50
    store = await start(RecordingDisk(flip(files, name, at)))
    assert len(store.damages) == 1
    assert name in store.damages[0]
    reader = await store.open(1)
    assert reader.last_confirmed() == 19
    assert len(await reader.read(0, 19, 1 << 20)) == 7
    with pytest.raises(LedgerCorrupt, match=f"entry 7 of ledger 1 .*{name}"):
        await reader.read(7, 19, 1 << 20)
    assert len(await reader.read(8, 19, 1 << 20)) == 12
    assert len(await read_all(store, 2)) == 20
    assert await store.recover(1, fence=2) == LedgerInfo(1, 20, 2000, True)
    assert store.stats().damaged_entries == 1
    await store.close()


async def test_any_flipped_bit_in_the_log_harms_one_record_at_most() -> None:
    """Flips each byte of the log once: whatever is returned is right, and at most one record is missing."""
    files = await _written(entries=4)
    name = log_name(files)
    original = [b"%04d" % number * 25 for number in range(4)]
    for at in range(len(files[name])):
        store = await start(RecordingDisk(flip(files, name, at, at % 8)))
        missing = 0
        for info in await store.list():
            reader = await store.open(info.ledger_id)
            for number in range(4):
                try:
                    found = await reader.read(number, number, 1 << 20)
                except LedgerCorrupt:
                    found = []
                assert found in ([original[number]], []), at
                missing += not found
        in_trailer = at >= len(files[name]) - 41
        known = {info.ledger_id for info in await store.list()}
        assert missing <= 1, at
        assert known == {1, 2}, at
        assert store.damages or in_trailer, at
        await store.close()


async def test_damage_while_the_broker_runs_is_reported_to_the_reader(tmp_path: Path) -> None:
    store = await LocalLedgerStore.start(tmp_path)
    writer = await store.create(1, fence=1)
    await append_all(writer, [b"entry %d" % number for number in range(10)])
    (path,) = tmp_path.glob("*.log")
    content = path.read_bytes()
    with path.open("r+b") as file:
        file.seek(content.index(b"entry 5"))
        file.write(b"Entry 5")
    reader = await store.open(1)
    assert len(await reader.read(0, 9, 1 << 20)) == 5
    with pytest.raises(LedgerCorrupt, match=f"entry 5 of ledger 1 .*{path.name}"):
        await reader.read(5, 9, 1 << 20)
    await store.close()


async def _checkpointed() -> tuple[dict[str, bytes], list[bytes]]:
    disk = RecordingDisk()
    store = await start(disk)
    writer = await store.create(1, fence=7)
    entries = [os.urandom(1000) for _ in range(600)]
    await append_all(writer, entries[:300])
    await store.tidy()
    await append_all(writer, entries[300:])
    await (await store.create(2, fence=1)).seal()
    await store.tidy()
    await store.close()
    return disk.content(), entries


async def test_a_broken_checkpoint_falls_back_to_the_one_before() -> None:
    files, entries = await _checkpointed()
    checkpoints = sorted(name for name in files if name.startswith("checkpoint"))
    assert len(checkpoints) == 2
    store = await start(RecordingDisk(flip(files, checkpoints[1], 60)))
    assert checkpoints[1] in store.damages[0]
    assert await read_all(store, 1) == entries
    assert {info.ledger_id: info.sealed for info in await store.list()} == {1: False, 2: True}
    await store.close()


async def test_a_broken_checkpoint_older_than_an_intact_one_is_reported_once_and_removed() -> None:
    files, entries = await _checkpointed()
    older, newer = sorted(name for name in files if name.startswith("checkpoint"))
    disk = RecordingDisk(flip(files, older, 60))
    store = await start(disk)
    assert store.damages == (f"{older} is damaged but not needed: a newer one is intact",)
    assert await read_all(store, 1) == entries
    await store.tidy()
    await store.close()
    assert older not in disk.content()
    assert newer in disk.content()
    store = await start(RecordingDisk(disk.content()))
    assert store.damages == ()
    assert await read_all(store, 1) == entries
    await store.close()


async def test_the_older_checkpoint_finds_all_its_files_after_space_was_freed() -> None:
    disk = RecordingDisk()
    store = await start(disk)
    kept = await store.create(1, fence=1)
    for number in range(2, 8):
        await append_all(await store.create(number, fence=1), [b"x" * 1000] * 100)
        await append_all(kept, [b"kept %d" % number])
    for number in range(2, 8):
        await store.delete(number)
        await store.tidy()
    assert store.stats().segments_removed > 3
    entries = await read_all(store, 1)
    await store.close()
    files = disk.content()
    newest = max(name for name in files if name.startswith("checkpoint"))
    store = await start(RecordingDisk(flip(files, newest, 60)))
    assert len(store.damages) == 1
    assert await read_all(store, 1) == entries
    assert [info.ledger_id for info in await store.list()] == [1]
    await store.close()


async def test_without_any_checkpoint_everything_is_recovered_from_the_log() -> None:
    files, entries = await _checkpointed()
    for name in [name for name in files if name.startswith("checkpoint")]:
        files = flip(files, name, 60)
    store = await start(RecordingDisk(files))
    assert "no checkpoint is intact" in store.damages[-1]
    assert await read_all(store, 1) == entries
    assert {info.ledger_id: info.sealed for info in await store.list()} == {1: False, 2: True}
    await store.close()


async def test_a_missing_segment_is_reported_and_the_rest_is_read() -> None:
    files, entries = await _checkpointed()
    names = sorted(name for name in files if name.endswith(".log"))
    del files[names[2]]
    store = await start(RecordingDisk(files))
    assert "missing" in store.damages[0]
    reader = await store.open(1)
    assert await reader.read(0, 0, 1) == entries[:1]
    assert await reader.read(599, 599, 1) == entries[599:]
    lost = 0
    for number in range(600):
        try:
            assert await reader.read(number, number, 1) == [entries[number]]
        except LedgerCorrupt:
            lost += 1
    assert 50 < lost < 70
    await store.close()


async def test_a_segment_cut_short_is_reported() -> None:
    disk = RecordingDisk()
    store = await start(disk)
    await append_all(await store.create(1, fence=1), [b"x" * 1000] * 100)
    await store.close()
    files = disk.content()
    first = min(name for name in files if name.endswith(".log"))
    files = {name: content for name, content in files.items() if name.endswith(".log")}
    files[first] = files[first][:40_000]
    store = await start(RecordingDisk(files))
    assert "its end is lost" in store.damages[0]
    reader = await store.open(1)
    assert await reader.read(99, 99, 1) == [b"x" * 1000]
    with pytest.raises(LedgerCorrupt, match="entry 50"):
        await reader.read(50, 50, 1)
    await store.close()


async def test_files_of_a_newer_format_are_refused() -> None:
    files = await _written(entries=1)
    name = log_name(files)
    content = bytearray(files[name])
    content[8:10] = (99).to_bytes(2, "big")
    content[SEGMENT_HEADER_BYTES - 4 : SEGMENT_HEADER_BYTES] = crc32c(
        bytes(content[: SEGMENT_HEADER_BYTES - 4])
    ).to_bytes(4, "big")
    with pytest.raises(SegmentFormatError, match="log format 99"):
        await start(RecordingDisk({name: bytes(content)}))
    whole = bytearray(b"".join(assemble(1, 0, {}, [], [])))
    whole[8:10] = (99).to_bytes(2, "big")
    whole[-4:] = crc32c(bytes(whole[:-4])).to_bytes(4, "big")
    with pytest.raises(SegmentFormatError, match="checkpoint format 99"):
        await start(RecordingDisk({"checkpoint-000000000001": bytes(whole)}))


async def test_a_torn_tail_is_cut() -> None:
    files = await _written(entries=3)
    name = log_name(files)
    # The clean-close mark and the last group are cut off: only what was confirmed before counts as durable.
    whole = files[name].index(b"0002" * 25)
    for cut in (whole, whole + 50, whole - RECORD_BYTES + 3):
        disk = RecordingDisk({name: files[name][:cut]})
        store = await start(disk)
        assert store.damages == ()
        assert len(await read_all(store, 1)) == 2
        await store.close()
        assert len(disk.content()[name]) < cut


# -- a disk that is slow --------------------------------------------------------------------------------------------


async def test_a_read_that_misses_the_page_cache_is_waited_for() -> None:
    disk = ColdDisk()
    store = await LocalLedgerStore.start("unused", files=disk, segment_bytes=1 << 16, index_entries=10)
    writer = await store.create(1, fence=1)
    await append_all(writer, [b"%04d" % number * 250 for number in range(200)])
    await store.tidy()
    assert await read_all(store, 1) == [b"%04d" % number * 250 for number in range(200)]
    reader = await store.open(1)
    reading = asyncio.ensure_future(reader.read(0, 199, 1 << 20))
    await asyncio.sleep(0)
    await store.delete(1)
    try:
        # Either the read finished before, or it learns that the ledger is gone: never wrong bytes.
        assert (await reading)[0] == b"0000" * 250
    except LedgerNotFound:
        pass
    with pytest.raises(LedgerNotFound):
        await reader.read(0, 0, 1)
    await store.close()


async def test_ledgers_deleted_while_they_move_leave_nothing_behind() -> None:
    disk = ColdDisk()
    store = await start(disk)
    writers = [await store.create(number, fence=1) for number in range(12)]
    for number in range(100):
        await asyncio.gather(*(append_one(writer, b"%04d" % number * 100) for writer in writers))
    for number in range(0, 12, 2):
        await store.delete(number)
    tidying = asyncio.ensure_future(store.tidy())
    for number in range(1, 12, 2):
        while store.stats().moved_bytes < 3000 * number and not tidying.done():  # noqa: ASYNC110 - a race is wanted
            await asyncio.sleep(0)
        await store.delete(number)
    await tidying
    await append_all(await store.create(100, fence=1), [b"x" * 1000] * 100)
    await store.tidy()
    assert store.stats().live_bytes < 100 * 1030
    assert store.stats().log_bytes < 3 * (1 << 16)
    await store.close()
    store = await start(RecordingDisk(disk.content()))
    assert [info.ledger_id for info in await store.list()] == [100]
    await store.close()


# -- a process that is killed --------------------------------------------------------------------------------------

CHILD = """
import asyncio, os, sys
from meridian_broker.engines.local import upkeep
from meridian_broker.engines.local.store import LocalLedgerStore

async def main():
    store = await LocalLedgerStore.start(sys.argv[1], segment_bytes=1 << 20, checkpoint_bytes=1 << 20)
    ledger = int(sys.argv[2])
    writers = [await store.create(ledger + number, fence=1) for number in range(4)]
    while True:
        for writer in writers:
            for _ in range(25):
                number = writer.ledger_id
                writer.append(b"%d/%d " % (number, writer.next_entry) * 100,
                    lambda entry, number=number: os.write(1, b"%d %d\\n" % (number, entry)))
        await asyncio.sleep(0)
        while store.pending_bytes > 1 << 18:
            await asyncio.sleep(0)

asyncio.run(main())
"""


def _run_and_kill(directory: Path, first_ledger: int, receipts: int) -> list[bytes]:
    """Kill the child in the middle of its work, after that many receipts; returns all receipts it gave."""
    command = [sys.executable, "-c", CHILD, str(directory), str(first_ledger)]
    lines: list[bytes] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        for line in child.stdout:
            lines.append(line)
            if len(lines) == receipts:
                child.send_signal(signal.SIGKILL)
    assert child.returncode == -signal.SIGKILL
    return lines


async def test_kill_9_loses_nothing_that_was_promised(tmp_path: Path) -> None:
    promised: dict[int, int] = {}
    for round_number in range(5):
        lines = await asyncio.to_thread(_run_and_kill, tmp_path, 10 + 10 * round_number, 500 + 700 * round_number)
        for line in lines:
            if line.endswith(b"\n"):
                number, entry = map(int, line.split())
                assert entry == promised.get(number, -1) + 1
                promised[number] = entry
        store = await LocalLedgerStore.start(tmp_path, segment_bytes=1 << 20, checkpoint_bytes=1 << 20)
        assert store.damages == ()
        for number, last in promised.items():
            info = await store.recover(number, fence=2)
            assert info.entries > last
            assert await read_all(store, number) == [b"%d/%d " % (number, entry) * 100 for entry in range(info.entries)]
        await store.close()


async def test_appends_from_many_loop_turns_share_groups(tmp_path: Path) -> None:
    store = await LocalLedgerStore.start(tmp_path)
    writer = await store.create(1, fence=1)
    heard: list[int | LedgerError] = []
    for number in range(200):
        writer.append(b"%d" % number, heard.append)
        await asyncio.sleep(0)
    await append_one(writer, b"last")
    assert heard == list(range(200))
    assert store.stats().syncs < 150
    await store.close()
