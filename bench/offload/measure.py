# SPDX-License-Identifier: Apache-2.0
"""Cost of offloading a sealed ledger to an S3 server, and of reading it back, in the process of a broker.

The server and, where they can run, three bookies are started for the run, all on this machine. Processor time is that
of this process alone, with the threads of its S3 client; the rates also depend on the machine's load and disk. Memory
is the growth of the resident set.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import resource
import secrets
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import uvloop
from meridian_broker.engines.bookkeeper.store import BookKeeperLedgerStore
from meridian_broker.engines.local.store import LocalLedgerStore
from meridian_broker.engines.s3.objects import S3Objects
from meridian_broker.engines.sqlite.metadata import SqliteMetadataStore
from meridian_broker.ledgers.offloaded.cache import BlockCache
from meridian_broker.ledgers.offloaded.copies import Copies
from meridian_broker.ledgers.offloaded.offloading import Offloading
from meridian_broker.ledgers.offloaded.storage import OffloadedLedgers
from meridian_broker.ledgers.offloaded.table import OffloadTable
from meridian_broker.ledgers.storage import LedgerStorage
from meridian_broker.ledgers.store import LedgerError
from meridian_broker.server.bookie_process import JARS, BookieProcesses, missing
from meridian_broker.server.etcd_process import EtcdProcess
from meridian_broker.server.loop import LoopScheduler
from meridian_broker.server.settings_offload import OffloadSettings
from support.brokers.s3_server import CREDENTIALS, S3Server, s3_missing

SIZES = (1 << 10, 64 << 10)
"""Bytes of an entry."""
READ_BYTES = 1 << 20
"""Entries read at a time, as dispatch does."""
PENDING_MAX = 8 << 20
SAMPLE_SECONDS = 0.01
GB, MB = 1e9, 1e6


@dataclass(slots=True)
class Result:
    """One line of the table."""

    name: str
    mb_per_second: float
    cpu_seconds_per_gb: float
    memory_mib: float
    """Growth of the process."""


def resident() -> int:
    """Resident bytes of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@contextlib.asynccontextmanager
async def watched() -> AsyncIterator[Callable[[], float]]:
    """Maximum growth of the process, in MiB."""
    before = most = resident()

    async def look() -> None:
        nonlocal most
        while True:
            most = max(most, resident())
            await asyncio.sleep(SAMPLE_SECONDS)

    looking = asyncio.create_task(look())
    try:
        yield lambda: (max(most, resident()) - before) / (1 << 20)
    finally:
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)


class Bench:
    def __init__(self, directory: Path, server: S3Server, total: int) -> None:
        """:param total: bytes of a ledger's entries."""
        self._directory = directory
        self._server = server
        self._total = total
        self.results: list[Result] = []
        self._ledger = time.time_ns() // 1_000_000

    async def timed(self, name: str, work: Callable[[], Awaitable[None]]) -> Result:
        async with watched() as grown:
            cpu, wall = time.process_time(), time.monotonic()
            await work()
            cpu, wall = time.process_time() - cpu, time.monotonic() - wall
            result = Result(name, self._total / wall / MB, cpu / self._total * GB, grown())
        self.results.append(result)
        print(
            f"{name:50} {result.mb_per_second:8.1f} MB/s {result.cpu_seconds_per_gb:8.2f} CPU s/GB "
            f"{result.memory_mib:8.1f} MiB more",
            flush=True,
        )
        return result

    async def engine(self, name: str, near: LedgerStorage) -> None:
        """All cases with one engine's ledgers."""
        scheduler, settings = LoopScheduler(), OffloadSettings()
        metadata = await SqliteMetadataStore.open(self._directory / f"{name}.sqlite")
        table = OffloadTable(metadata)
        await table.load()
        chunk = settings.s3_managed_ledger_offload_max_block_size_in_bytes
        block = settings.s3_managed_ledger_offload_read_buffer_size_in_bytes
        copies = Copies(S3Objects(self._server.place), "bench", block, chunk)
        offloading = Offloading(table, copies, near, scheduler, lambda: secrets.token_hex(8))
        cache = BlockCache(settings.offload_read_cache_size_mb << 20, scheduler.answer)
        store = OffloadedLedgers(near, offloading, cache, scheduler, prefers_copies=False, outside="{}")
        try:
            for size in SIZES:
                await self._case(f"{name}, entries of {size >> 10} KiB", store, offloading, size)
        finally:
            await store.close()
            await metadata.close()
            await scheduler.close()

    async def _case(self, name: str, store: OffloadedLedgers, offloading: Offloading, size: int) -> None:
        self._ledger += 1
        ledger, count = self._ledger, self._total // size
        await write(store, ledger, size, count)
        await self.timed(f"{name}: read before", lambda: read(store, ledger, count))
        await self.timed(f"{name}: copied", lambda: offloading.copy(ledger, 1))
        await offloading.leave(ledger)
        await self.timed(f"{name}: read back", lambda: read(store, ledger, count))
        await store.delete(ledger)
        await offloading.clear()


async def write(store: OffloadedLedgers, ledger: int, size: int, count: int) -> None:
    """A sealed ledger."""
    writer = await store.create(ledger, 1)
    data, pending, heard = os.urandom(size), 0, asyncio.Event()
    failures: list[LedgerError] = []

    def told(outcome: int | LedgerError) -> None:
        nonlocal pending
        pending -= size
        heard.set()
        if isinstance(outcome, LedgerError):
            failures.append(outcome)

    for _ in range(count):
        pending += size
        writer.append(data, told)
        while pending > PENDING_MAX:
            heard.clear()
            await heard.wait()
    await writer.seal()
    if failures:
        raise failures[0]


async def read(store: OffloadedLedgers, ledger: int, count: int) -> None:
    """All of it, in order."""
    reader, at = await store.open(ledger), 0
    while at < count:
        at += len(await reader.read(at, count - 1, READ_BYTES))


async def on_bookies(bench: Bench, directory: Path, jars: Path) -> None:
    etcd = await EtcdProcess.start(directory / "etcd")
    try:
        bookies = await BookieProcesses.start(directory / "bookies", etcd.url, 3, jars)
        try:
            await bench.engine("BookKeeper", await BookKeeperLedgerStore.start(etcd.url, "bench"))
        finally:
            await bookies.stop()
    finally:
        await etcd.stop()


def judged(results: list[Result]) -> dict[str, dict[str, float | bool]]:
    """Targets: the cost of a copy, and memory for a few objects of 16 MiB beside the cache of 64 MiB."""
    targets: dict[str, dict[str, float | bool]] = {}
    for one in results:
        cpu_max = 15.0 if "of 1 KiB" in one.name else 5.0
        limits = {"CPU seconds per GB": (one.cpu_seconds_per_gb, cpu_max), "MiB more": (one.memory_mib, 128.0)}
        if one.name.endswith(("copied", "read back")):
            for what, (value, limit) in limits.items():
                met = value <= limit
                targets[f"{one.name}: {what}"] = {"value": round(value, 2), "limit": limit, "met": met}
    return targets


async def measure(arguments: argparse.Namespace) -> int:
    if (why := s3_missing()) is not None:
        print(f"not measured: {why}")
        return 0
    os.environ |= CREDENTIALS
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="meridian-bench-") as made:
        directory = Path(made)
        with S3Server(directory / "s3") as server:
            bench = Bench(directory, server, (16 if arguments.quick else 512) << 20)
            await bench.engine("local engine", await LocalLedgerStore.start(directory / "ledgers"))
            if (why := missing(arguments.jars)) is None:
                await on_bookies(bench, directory, arguments.jars)
            else:
                print(f"BookKeeper is not measured: {why}")
    targets = judged(bench.results)
    for name, target in targets.items():
        print(
            f"{name:70} {target['value']:8.2f}   target <= {target['limit']:g}: {'met' if target['met'] else 'MISSED'}"
        )
    if arguments.json:
        machine = {"cores": os.cpu_count(), "load_before": before, "load_after": os.getloadavg()[0]}
        print(json.dumps({"results": list(map(asdict, bench.results)), "targets": targets, "machine": machine}))
    return 0 if all(target["met"] for target in targets.values()) else 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--jars", type=Path, default=JARS, help="BookKeeper's jars, if scripts/bookkeeper put them elsewhere"
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    sys.exit(uvloop.run(measure(parser.parse_args())))


if __name__ == "__main__":
    main()
