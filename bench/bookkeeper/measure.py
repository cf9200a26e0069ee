# SPDX-License-Identifier: Apache-2.0
"""Cost of the BookKeeper engine per entry, in processor time of the client's process; the latency of a lone entry; and
how long a dead owner's ledgers and a dead bookie cause delays. Beside it BookKeeper's own client, in Java, on the same
bookies in the same run.

Three bookies and an etcd are started for the run, unless ``--etcd`` names running ones. Every ledger is created with
the usual ensemble, and deleted at the end. Wall time, unlike processor time, depends on the bookies' disks as much as
on the client.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import uvloop
from meridian_broker.engines.bookkeeper.handles import BookKeeperWriter
from meridian_broker.engines.bookkeeper.store import BookKeeperLedgerStore
from meridian_broker.ledgers.store import LedgerError, LedgerInfo
from meridian_broker.server.bookie_process import JARS, BookieProcesses, java, missing
from meridian_broker.server.etcd_process import EtcdProcess

JAVA = Path(__file__).with_name("JavaClient.java")
COMPARED = ((1024, 20_000), (65536, 400))
"""Sizes and numbers of entries that both clients add."""
PENDING_MAX = 8 << 20
"""Maximum queued, as in a gateway."""
OWNED = 1_000
"""Open ledgers of an owner that died."""
AT_ONCE = 64
"""Concurrent recoveries."""
PACE_SECONDS = 0.002
"""Interval between entries while a bookie is killed."""
LEDGER_1_KIB, LEDGER_64_KIB = "append 1024 B, 1000 per turn, 1 ledger", "append 65536 B, 16 per turn, 1 ledger"
LONE_1_KIB = "append 1024 B, one at a time"


@dataclass(slots=True)
class Result:
    """One line of the table."""

    name: str
    cpu_us: float
    """Processor time per entry, best of several rounds."""
    wall_us: float
    p50_ms: float | None = None
    p99_ms: float | None = None


@dataclass(slots=True)
class Target:
    value: float
    limit: float
    met: bool


class Bench:
    def __init__(self, store: BookKeeperLedgerStore, quick: bool) -> None:
        self.store = store
        self.targets: dict[str, Target] = {}
        self.rounds = 2 if quick else 5
        self.scale = 1 if quick else 4
        self.results: list[Result] = []
        self._next = time.time_ns() // 1_000_000

    def add(self, result: Result) -> None:
        self.results.append(result)
        latency = "" if result.p50_ms is None else f"   p50 {result.p50_ms:.2f} ms, p99 {result.p99_ms:.2f} ms"
        print(f"{result.name:44} {result.cpu_us:8.2f} us CPU {result.wall_us:9.2f} us wall{latency}", flush=True)

    def at_most(self, name: str, value: float, limit: float) -> None:
        self._target(name, value, limit, value <= limit, "<=")

    def at_least(self, name: str, value: float, limit: float) -> None:
        self._target(name, value, limit, value >= limit, ">=")

    def _target(self, name: str, value: float, limit: float, met: bool, sign: str) -> None:
        self.targets[name] = Target(round(value, 3), limit, met)
        print(f"{name:60} {value:8.2f}   target {sign} {limit:g}: {'met' if met else 'MISSED'}", flush=True)

    def result(self, name: str) -> Result:
        return next(result for result in self.results if result.name == name)

    async def run(self) -> None:
        for size, burst, ledgers, count in (
            (100, 1000, 1, 20_000),
            (1024, 1000, 1, 20_000),
            (1024, 1000, 100, 20_000),
            (1024, 10, 1, 5_000),
            (65536, 16, 1, 400),
        ):
            await self.append_case(size, burst, ledgers, count * self.scale)
        for size in (1024, 65536):
            await self.lone_case(size, 100 * self.scale)
        await self.read_case(1024, 10_000 * self.scale)
        await self.read_case(65536, 200 * self.scale)
        await self.create_case(50 * self.scale)
        self.at_most("CPU seconds per 100,000 entries of 1 KiB", self.result(LEDGER_1_KIB).cpu_us / 10, 0.38)
        self.at_most("CPU microseconds per entry of 64 KiB", self.result(LEDGER_64_KIB).cpu_us, 102)
        self.at_most("a lone entry of 1 KiB, p50 in ms", self.result(LONE_1_KIB).p50_ms or 0, 3.3)

    @asynccontextmanager
    async def writers(self, count: int) -> AsyncIterator[list[BookKeeperWriter]]:
        ids = range(self._next, self._next + count)
        self._next += count
        made = list(await asyncio.gather(*(self.store.create(number, fence=1) for number in ids)))
        yield made
        await asyncio.gather(*(writer.seal() for writer in made))
        await asyncio.gather(*(self.store.delete(number) for number in ids))

    async def append_case(self, size: int, burst: int, ledgers: int, count: int) -> None:
        costs = []
        for _ in range(self.rounds):
            async with self.writers(ledgers) as writers:
                cpu, wall = time.process_time(), time.monotonic()
                await self.append(writers, size, burst, count)
                costs.append(((time.process_time() - cpu) / count * 1e6, (time.monotonic() - wall) / count * 1e6))
        name = f"append {size} B, {burst} per turn, {ledgers} ledger{'s' if ledgers > 1 else ''}"
        self.add(Result(name, min(cpu for cpu, _ in costs), min(wall for _, wall in costs)))

    async def append(self, writers: list[BookKeeperWriter], size: int, burst: int, count: int) -> None:
        """Append ``burst`` entries per turn of the loop, to the writers in turn, until all are confirmed."""
        data = os.urandom(size)
        progress = asyncio.Event()
        pending = 0
        failure: LedgerError | None = None

        def told(result: int | LedgerError) -> None:
            nonlocal pending, failure
            if isinstance(result, LedgerError):
                failure = result
            pending -= size
            progress.set()

        done = 0
        while done < count:
            for number in range(done, done + burst):
                pending += size
                writers[number % len(writers)].append(data, told)
            done += burst
            await asyncio.sleep(0)
            while pending > (PENDING_MAX if done < count else 0):
                progress.clear()
                await progress.wait()
            if failure is not None:
                raise failure

    async def lone_case(self, size: int, count: int) -> None:
        async with self.writers(1) as (writer,):
            times = []
            cpu, start = time.process_time(), time.monotonic()
            for _ in range(count):
                before = time.monotonic()
                await self.append([writer], size, 1, 1)
                times.append((time.monotonic() - before) * 1000)
            cpu_us = (time.process_time() - cpu) / count * 1e6
            wall_us = (time.monotonic() - start) / count * 1e6
        times.sort()
        p50, p99 = times[count // 2], times[count * 99 // 100]
        self.add(Result(f"append {size} B, one at a time", cpu_us, wall_us, p50, p99))

    async def read_case(self, size: int, count: int) -> None:
        async with self.writers(1) as (writer,):
            await self.append([writer], size, 100, count)
            costs = []
            for _ in range(self.rounds):
                reader = await self.store.open(writer.ledger_id)
                cpu, wall, at = time.process_time(), time.monotonic(), 0
                while at < count:
                    at += len(await reader.read(at, count - 1, 1 << 20))
                costs.append(((time.process_time() - cpu) / count * 1e6, (time.monotonic() - wall) / count * 1e6))
        self.add(Result(f"read {size} B, 1 MiB a time", min(cpu for cpu, _ in costs), min(wall for _, wall in costs)))

    async def create_case(self, count: int) -> None:
        cpu, wall = time.process_time(), time.monotonic()
        async with self.writers(count):
            cpu_us = (time.process_time() - cpu) / count * 1e6
            wall_us = (time.monotonic() - wall) / count * 1e6
        self.add(Result(f"create {count} ledgers at once", cpu_us, wall_us))

    async def dead_owner_case(self, etcd: str) -> None:
        """Another broker takes over the ledgers that one left open, each with confirmed entries."""
        ids = range(self._next, self._next + OWNED)
        self._next += OWNED
        owner = await BookKeeperLedgerStore.start(etcd, "bench")
        writers = [await owner.create(number, fence=1) for number in ids]
        await self.append(writers, 1024, 100, OWNED * 2)
        room = asyncio.Semaphore(AT_ONCE)

        async def recover(number: int) -> LedgerInfo:
            async with room:
                return await self.store.recover(number, fence=2)

        cpu, wall = time.process_time(), time.monotonic()
        ended = await asyncio.gather(*map(recover, ids))
        seconds = time.monotonic() - wall
        assert all(info.entries == 2 for info in ended)
        self.add(Result(f"recover {OWNED} ledgers", (time.process_time() - cpu) / OWNED * 1e6, seconds / OWNED * 1e6))
        self.at_most(f"{OWNED:,} open ledgers of a dead owner, seconds", seconds, 5)
        await asyncio.gather(*(self.store.delete(number) for number in ids))
        await owner.close()

    async def dead_bookie_case(self, kill: Callable[[], None]) -> None:
        """The longest time without a confirmation once a bookie is killed. There is no spare to replace it."""
        async with self.writers(1) as (writer,):
            heard = [time.monotonic()]

            def told(result: int | LedgerError) -> None:
                assert isinstance(result, int), result
                heard.append(time.monotonic())

            for number in range(1_500):
                if number == 500:
                    heard[:] = [time.monotonic()]
                    kill()
                writer.append(b"x" * 1024, told)
                await asyncio.sleep(PACE_SECONDS)
        longest = max(after - before for before, after in pairwise(heard))
        self.at_most("longest silence after a bookie's SIGKILL, ms", longest * 1000, 136)


async def compare(bench: Bench, etcd: str, jars: Path) -> None:
    """Run the Java client, and report how the two differ."""
    work = [str(number) for size, count in COMPARED for number in (size, count * bench.scale)]
    command = [*java(jars), str(JAVA), f"metadata-store:etcd:{etcd}", str(bench.rounds), *work]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    if process.returncode != 0:
        print("BookKeeper's own client is left out: it needs a Java with a compiler, and this one has none")
        return
    for line in output.decode().splitlines():
        if not line.startswith("measured "):
            continue  # its log
        _, size, cpu_us, wall_us, p50_ms, p99_ms = line.split()
        lone = float(p50_ms), float(p99_ms)
        bench.add(Result(f"Java: append {size} B, 1 ledger; lone ones", float(cpu_us), float(wall_us), *lone))
        ours = bench.result(LEDGER_1_KIB if size == "1024" else LEDGER_64_KIB)
        bench.at_least(f"{size} B: entries per CPU second, Java's = 1", float(cpu_us) / ours.cpu_us, 0.7)


@asynccontextmanager
async def running(etcd: str | None, jars: Path) -> AsyncIterator[tuple[str, Callable[[], None] | None]]:
    """The URL of an etcd with bookies, and a function that kills one of them if they are ours."""
    if etcd is not None:
        yield etcd, None
        return
    with tempfile.TemporaryDirectory(prefix="meridian-bench-") as directory:
        started = await EtcdProcess.start(Path(directory) / "etcd")
        try:
            bookies = await BookieProcesses.start(Path(directory) / "bookies", started.url, 3, jars)
            try:
                yield started.url, lambda: os.kill(bookies.pid(1), signal.SIGKILL)
            finally:
                await bookies.stop()
        finally:
            await started.stop()


async def measure(arguments: argparse.Namespace) -> int:
    if (why := missing(arguments.jars)) is not None:
        print(f"not measured: {why}")
        return 0
    before = os.getloadavg()[0]
    async with running(arguments.etcd, arguments.jars) as (etcd, kill):
        store = await BookKeeperLedgerStore.start(etcd, "bench")
        try:
            bench = Bench(store, arguments.quick)
            await bench.run()
            await bench.dead_owner_case(etcd)
            await compare(bench, etcd, arguments.jars)
            if kill is not None:
                await bench.dead_bookie_case(kill)
        finally:
            await store.close()
    if arguments.json:
        targets = {name: asdict(target) for name, target in bench.targets.items()}
        machine = {"cores": os.cpu_count(), "load_before": before, "load_after": os.getloadavg()[0]}
        print(json.dumps({"results": list(map(asdict, bench.results)), "targets": targets, "machine": machine}))
    return 0 if all(target.met for target in bench.targets.values()) else 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--etcd", help="URL of the etcd where running bookies are registered")
    parser.add_argument(
        "--jars", type=Path, default=JARS, help="BookKeeper's jars, if scripts/bookkeeper put them elsewhere"
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    sys.exit(uvloop.run(measure(parser.parse_args())))


if __name__ == "__main__":
    main()
