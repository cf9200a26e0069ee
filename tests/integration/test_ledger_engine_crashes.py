# SPDX-License-Identifier: Apache-2.0
"""The power fails at every operation of the disk, and nothing that was promised is missing afterwards.

A random workload (appends to many ledgers, seals, take-overs, deletions, checkpoints, compaction, restarts) runs once
per seed on a disk that journals every operation. Each promise of the store is noted with the number of operations done
by then. Then the disk is rebuilt as a crash would have left it, at many moments and with several kinds
of loss, and a new store has to find everything promised up to that moment, and nothing that was never appended.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field

import pytest
from meridian_broker.engines.local.store import LocalLedgerStore, LocalWriter
from meridian_broker.ledgers.store import LedgerError
from support.contracts.ledger_contract import append_all, read_all
from support.contracts.ledger_disks import Loss, RecordingDisk, RefusingDisk

NEVER = 1 << 60


@dataclass(slots=True)
class Story:
    """What was done with one ledger, and the disk operation count at each promise."""

    appended: list[bytes] = field(default_factory=list)
    confirmed_at: list[int] = field(default_factory=list)
    created_at: int = NEVER
    sealed_at: int = NEVER
    fence: int = 1
    fenced_at: int = NEVER
    delete_asked_at: int = NEVER
    deleted_at: int = NEVER


def label_of(number: int) -> bytes:
    """A ledger's label: none for every fourth ledger, up to some hundred bytes for the others."""
    return b"%d of a topic " % number * (number % 4 * 7)


class Workload:
    """Random use of a store on a journalling disk."""

    def __init__(self, seed: int, disk: RecordingDisk, stories: dict[int, Story]) -> None:
        self.rng = random.Random(seed)
        self.disk = disk
        self.stories = stories
        self.writers: dict[int, LocalWriter] = {}
        self.next_id = max(stories, default=0) + 1

    def now(self) -> int:
        return len(self.disk.journal)

    async def start(self) -> None:
        self.store = await start(self.disk)

    async def run(self, steps: int) -> None:
        await self.start()
        for _ in range(steps):
            await self.step()
        await self.store.close()

    async def step(self) -> None:
        choice = self.rng.random()
        alive = [number for number, story in self.stories.items() if story.delete_asked_at == NEVER]
        if choice < 0.15 or not self.writers:
            await self.create()
        elif choice < 0.70:
            await asyncio.gather(*(self.append() for _ in range(self.rng.randint(1, 4))))
        elif choice < 0.78:
            await self.seal(self.rng.choice(list(self.writers)))
        elif choice < 0.82:
            await self.recover(self.rng.choice(alive))
        elif choice < 0.88:
            await self.delete(self.rng.choice(alive))
        elif choice < 0.97:
            await self.store.tidy()
        else:
            await self.store.close()
            self.writers.clear()
            await self.start()

    async def create(self) -> None:
        number, self.next_id = self.next_id, self.next_id + 1
        story = self.stories[number] = Story()
        self.writers[number] = await self.store.create(number, fence=1, label=label_of(number))
        story.created_at = self.now()

    async def append(self) -> None:
        number = self.rng.choice(list(self.writers))
        writer, story = self.writers[number], self.stories[number]
        heard: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        burst = self.rng.choice((1, 1, 3, 20))

        def done(result: int | LedgerError) -> None:
            assert not isinstance(result, LedgerError)
            assert result == len(story.confirmed_at)
            story.confirmed_at.append(self.now())
            if not heard.done():
                heard.set_result(None)

        for _ in range(burst):
            size = self.rng.choice((0, 5, 60, 300, 3000))
            entry = self.rng.randbytes(size)
            assert writer.append(entry, done) == len(story.appended)
            story.appended.append(entry)
        await heard

    async def seal(self, number: int) -> None:
        await self.writers.pop(number).seal()
        self.stories[number].sealed_at = self.now()

    async def recover(self, number: int) -> None:
        story = self.stories[number]
        self.writers.pop(number, None)
        story.fence += 1
        was_sealed = story.sealed_at != NEVER
        await self.store.recover(number, fence=story.fence)
        story.sealed_at = min(story.sealed_at, self.now())
        if not was_sealed:
            story.fenced_at = self.now()

    async def delete(self, number: int) -> None:
        self.writers.pop(number, None)
        self.stories[number].delete_asked_at = self.now()
        await self.store.delete(number)
        self.stories[number].deleted_at = self.now()


async def start(disk: RecordingDisk) -> LocalLedgerStore:
    return await LocalLedgerStore.start(
        "unused",
        files=disk,
        segment_bytes=8192,
        checkpoint_bytes=20_000,
        index_entries=50,
        compaction_bytes_per_second=1 << 40,
    )


async def check(files: dict[str, bytes], stories: dict[int, Story], moment: int) -> RecordingDisk:
    """Start on what the crash left, and check every promise made before ``moment``."""
    disk = RecordingDisk(files)
    store = await start(disk)
    assert store.damages == ()
    found = {info.ledger_id: info for info in await store.list()}
    assert found.keys() <= stories.keys()
    for number, story in stories.items():
        info = found.get(number)
        if story.deleted_at <= moment:
            assert info is None, f"deleted ledger {number} came back"
        if info is None:
            assert story.created_at > moment or story.delete_asked_at <= moment, f"ledger {number} is lost"
            continue
        assert info.label == label_of(number)
        entries = await read_all(store, number)
        assert len(entries) == info.entries
        assert info.size == sum(map(len, entries))
        assert entries == story.appended[: len(entries)], f"ledger {number} holds what was not appended"
        confirmed = sum(1 for at in story.confirmed_at if at <= moment)
        assert len(entries) >= confirmed, f"ledger {number} lost entries {len(entries)} to {confirmed - 1}"
        if story.sealed_at <= moment:
            assert info.sealed
            assert len(entries) == len(story.appended)
    await store.close()
    return disk


def points(operations: int, wanted: int, rng: random.Random) -> list[int]:
    return sorted(rng.sample(range(operations + 1), min(wanted, operations + 1)))


@pytest.mark.parametrize("seed", range(6))
async def test_no_promise_is_broken_by_a_crash(seed: int) -> None:
    """6 seeds x 50 moments x 4 kinds of loss = 1200 crashes."""
    disk = RecordingDisk()
    work = Workload(seed, disk, {})
    await work.run(steps=120)
    rng = random.Random(seed)
    assert len(disk.journal) > 300
    for moment in points(len(disk.journal), 50, rng):
        for loss in Loss:
            await check(disk.crashed(moment, loss, rng), work.stories, moment)


@pytest.mark.parametrize("seed", range(100, 104))
async def test_what_was_recovered_survives_the_next_crash(seed: int) -> None:
    """A crash, a recovery with more use, and a second crash, at any operation of either."""
    disk = RecordingDisk()
    work = Workload(seed, disk, {})
    await work.run(steps=60)
    rng = random.Random(seed)
    for moment in points(len(disk.journal), 6, rng):
        first = disk.crashed(moment, rng.choice(list(Loss)), rng)
        second = RecordingDisk(first)
        store = await start(second)
        shown = {info.ledger_id: await read_all(store, info.ledger_id) for info in await store.list()}
        await store.close()
        stories = {
            number: Story(appended=entries, confirmed_at=[0] * len(entries), created_at=0)
            for number, entries in shown.items()
        }
        for again in points(len(second.journal), 8, rng):
            left = second.crashed(again, rng.choice(list(Loss)), rng)
            await check(left, work.stories, moment)
        more = RecordingDisk(second.content())
        next_work = Workload(seed, more, stories)
        next_work.next_id = work.next_id
        await next_work.run(steps=15)
        for again in points(len(more.journal), 10, rng):
            await check(more.crashed(again, rng.choice(list(Loss)), rng), stories, again)


@pytest.mark.parametrize("seed", range(200, 203))
async def test_what_was_shown_after_a_kill_survives_a_power_cut(seed: int) -> None:
    """After a kill the page cache holds more than the disk. Data that a reader has seen must not vanish any more."""
    disk = RecordingDisk()
    work = Workload(seed, disk, {})
    await work.run(steps=60)
    rng = random.Random(seed)
    for moment in points(len(disk.journal), 40, rng):
        killed = disk.killed(moment)
        store = await start(killed)
        shown_at = len(killed.journal)
        stories = {}
        for info in await store.list():
            entries = await read_all(store, info.ledger_id)
            stories[info.ledger_id] = Story(appended=entries, confirmed_at=[0] * len(entries), created_at=0)
            if info.sealed:
                stories[info.ledger_id].sealed_at = 0
        await store.close()
        for again in (shown_at, rng.randint(shown_at, len(killed.journal))):
            await check(killed.crashed(again, rng.choice(list(Loss)), rng), stories, again)


@pytest.mark.parametrize("durable", [0, 3])
async def test_what_was_shown_after_a_failed_sync_survives_a_power_cut(durable: int) -> None:
    """The kernel drops what a failed sync could not write, goes on showing it, and calls the next sync a success."""
    disk = RefusingDisk()
    store = await start(disk)
    if durable:
        await append_all(await store.create(1, fence=1), [b"durable"] * durable)
    disk.sync_fails = disk.cut_fails = True
    with pytest.raises(LedgerError):
        await store.create(2, fence=1)
    killed = disk.killed(len(disk.journal))
    await store.close()
    store = await start(killed)
    shown = {info.ledger_id: await read_all(store, info.ledger_id) for info in await store.list()}
    shown_at = len(killed.journal)
    await store.close()
    assert shown == ({1: [b"durable"] * durable} if durable else {}) | {2: []}
    store = await start(RecordingDisk(killed.crashed(shown_at, Loss.ALL, random.Random(0))))
    assert {info.ledger_id: await read_all(store, info.ledger_id) for info in await store.list()} == shown
    assert store.damages == ()
    await store.close()


async def test_a_disk_that_reorders_cannot_fake_an_entry() -> None:
    """Old bytes of a longer file, after a cut, never come back as entries."""
    disk = RecordingDisk()
    store = await start(disk)
    await append_all(await store.create(1, fence=1), [b"one"] * 5)
    await store.close()
    files = disk.content()
    name = next(name for name in files if name.endswith(".log"))
    files[name] += files[name][60:]
    again = RecordingDisk(files)
    store = await start(again)
    assert await read_all(store, 1) == [b"one"] * 5
    await store.close()
