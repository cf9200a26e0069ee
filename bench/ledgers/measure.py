# SPDX-License-Identifier: Apache-2.0
"""Cost of the local ledger engine per entry, in processor time of the whole process, best of several rounds.

Each way of appending is shown beside its floor: the same bytes through bare writev and fdatasync, measured in the same
run, because only the ratio is meaningful on a shared machine. Writes go to their own directory under --directory
(default: the current one), since a memory file system would sync at no cost.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import uvloop
from meridian_broker.engines.local.store import LocalLedgerStore, LocalWriter
from meridian_broker.ledgers.store import LedgerError

PENDING_MAX = 8 << 20
"""Maximum queued, as in a gateway."""
BURST_BYTES = 1 << 20


@dataclass(slots=True)
class Result:
    """One line of the table."""

    name: str
    cpu_us: float
    """Processor time per operation."""
    wall_us: float
    floor: float | None = None
    """Multiple of the processor time of the bare system calls."""


def ignore(_: int | LedgerError) -> None:
    """A receipt callback that does nothing."""


async def appending(store: LocalLedgerStore, writers: list[LocalWriter], size: int, burst: int, count: int) -> None:
    """Append ``burst`` entries per turn of the loop, to the writers in turn, until all are durable."""
    data = os.urandom(size)
    progress = asyncio.Event()

    def told(_: int | LedgerError) -> None:
        progress.set()

    done = 0
    while done < count:
        for number in range(done, done + burst - 1):
            writers[number % len(writers)].append(data, ignore)
        writers[done % len(writers)].append(data, told)
        done += burst
        await asyncio.sleep(0)
        while store.pending_bytes > (PENDING_MAX if done < count else 0):
            progress.clear()
            await progress.wait()


async def bare(directory: Path, size: int, burst: int, count: int) -> None:
    """The floor: a head and the data of each entry, one writev and fdatasync per megabyte or burst."""
    data, head = os.urandom(size), bytes(25)
    group = max(burst, BURST_BYTES // size)
    fd = os.open(directory / "bare", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_TRUNC)
    try:
        for _ in range(0, count, group):
            buffers = [head, data] * group
            for start in range(0, len(buffers), 1024):
                os.writev(fd, buffers[start : start + 1024])
            os.fdatasync(fd)
            await asyncio.sleep(0)
    finally:
        os.close(fd)
        os.unlink(directory / "bare")


async def reading(store: LocalLedgerStore, ledger: int, step_bytes: int) -> int:
    reader = await store.open(ledger)
    last = reader.last_confirmed()
    at = 0
    while at <= last:
        at += len(await reader.read(at, last, step_bytes))
    return at


async def best(rounds: int, run: Callable[[], Awaitable[object]], count: int) -> tuple[float, float]:
    results = []
    for _ in range(rounds):
        cpu, wall = time.process_time(), time.monotonic()
        await run()
        results.append(((time.process_time() - cpu) / count * 1e6, (time.monotonic() - wall) / count * 1e6))
    return min(cpu for cpu, _ in results), min(wall for _, wall in results)


class Bench:
    """Runs the cases in one store and collects the lines."""

    def __init__(self, directory: Path, quick: bool, show: Callable[[Result], None]) -> None:
        self.directory = directory
        self.rounds = 2 if quick else 5
        self.scale = 1 if quick else 4
        self.show = show
        self.results: list[Result] = []
        self.next_ledger = 1

    def add(self, result: Result) -> None:
        self.results.append(result)
        self.show(result)

    async def run(self) -> None:
        self.store = await LocalLedgerStore.start(self.directory / "log")
        for size, burst, ledgers, count in (
            (100, 1000, 1, 40_000),
            (1024, 1000, 1, 20_000),
            (1024, 1000, 100, 20_000),
            (1024, 10, 1, 10_000),
            (1024, 1, 1, 5_000),
            (65536, 16, 1, 800),
        ):
            await self.append_case(size, burst, ledgers, count * self.scale)
        await self.latency_case(400 * self.scale)
        await self.read_cases()
        await self.store.close()
        await self.recovery_case()

    async def writers(self, count: int) -> list[LocalWriter]:
        ids = range(self.next_ledger, self.next_ledger + count)
        self.next_ledger += count
        return list(await asyncio.gather(*(self.store.create(number, fence=1) for number in ids)))

    async def append_case(self, size: int, burst: int, ledgers: int, count: int) -> None:
        floor, _ = await best(self.rounds, lambda: bare(self.directory, size, burst, count), count)
        writers = await self.writers(ledgers)
        cpu, wall = await best(self.rounds, lambda: appending(self.store, writers, size, burst, count), count)
        name = f"append {size} B, {burst} per turn, {ledgers} ledger{'s' if ledgers > 1 else ''}"
        self.add(Result(name, cpu, wall, cpu / floor))
        for writer in writers:
            await self.store.delete(writer.ledger_id)

    async def latency_case(self, count: int) -> None:
        """One append at a time on an idle log."""
        (writer,) = await self.writers(1)
        data = os.urandom(1024)
        waits: list[float] = []
        cpu = time.process_time()
        for _ in range(count):
            heard: asyncio.Future[int | LedgerError] = asyncio.get_running_loop().create_future()
            begin = time.monotonic()
            writer.append(data, heard.set_result)
            await heard
            waits.append(time.monotonic() - begin)
        used = (time.process_time() - cpu) / count * 1e6
        waits.sort()
        self.add(Result("lone append 1024 B, p50", used, waits[count // 2] * 1e6))
        self.add(Result("lone append 1024 B, p99", used, waits[count * 99 // 100] * 1e6))

    async def read_cases(self) -> None:
        for size, count in ((100, 100_000), (1024, 50_000), (65536, 800)):
            (writer,) = await self.writers(1)
            await appending(self.store, [writer], size, 1000 if size < 65536 else 16, count)
            ledger = writer.ledger_id
            cpu, wall = await best(self.rounds, partial(reading, self.store, ledger, 1 << 20), count)
            self.add(Result(f"read {size} B from the page cache", cpu, wall))
            await self.store.delete(ledger)

    async def recovery_case(self) -> None:
        """A start with as much log after the checkpoint as there may be."""
        directory = self.directory / "tail"
        store = await LocalLedgerStore.start(directory, checkpoint_bytes=1 << 30)
        writer = await store.create(1, fence=1)
        count = 190_000 if self.scale > 1 else 40_000
        await appending(store, [writer], 1024, 1000, count)
        await store.close()
        cpu, wall = time.process_time(), time.monotonic()
        store = await LocalLedgerStore.start(directory, checkpoint_bytes=1 << 30)
        seconds = time.monotonic() - wall
        used = time.process_time() - cpu
        read = store.stats().recovered_bytes >> 20
        self.add(Result(f"start with {read} MiB of log, per entry", used / count * 1e6, seconds / count * 1e6))
        await store.close()


def show(result: Result) -> None:
    floor = f"{result.floor:8.2f}" if result.floor is not None else " " * 8
    rate = 1e6 / result.cpu_us if result.cpu_us else 0.0
    print(f"{result.name:44} {result.cpu_us:10.2f} {result.wall_us:10.2f} {floor} {rate:12,.0f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a small part of the work: numbers are rough")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    parser.add_argument("--directory", type=Path, default=Path(), help="where to write; it must be on a real disk")
    options = parser.parse_args()
    options.directory.mkdir(parents=True, exist_ok=True)
    if not options.json:
        print(f"{'':44} {'us of CPU':>10} {'us of wall':>10} {'x floor':>8} {'per CPU-s':>12}")
    with tempfile.TemporaryDirectory(prefix="bench-ledgers-", dir=options.directory) as directory:
        bench = Bench(Path(directory), options.quick, (lambda _: None) if options.json else show)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(bench.run())
    if options.json:
        json.dump({"unit": "microseconds per operation", "results": list(map(asdict, bench.results))}, sys.stdout)
        print()


if __name__ == "__main__":
    main()
