# SPDX-License-Identifier: Apache-2.0
"""How long a topic with a long progress log blocks a starting broker.

A broker writes a progress log of many acknowledgements, more than it would keep (``ROLL_RECORDS``), and stops. The next
broker, in its own process, opens the topic, while a task measures the CPU time and wall time of each turn of the loop.
Then one more acknowledgement rolls the log over, which writes a snapshot.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import uvloop
from meridian_broker.ledgers.scheduling import next_turn
from meridian_broker.positions import ZERO, Position
from meridian_broker.positions.position import EARLIEST
from meridian_broker.server import running
from meridian_broker.server.broker import BrokerProcess
from meridian_broker.server.settings import Settings
from meridian_broker.topics.journal import progress_log
from meridian_broker.topics.journal.changes import Kind
from meridian_broker.topics.topic import Topic
from meridian_broker.wire.pulsar.topic_name import parse
from support.brokers.free_ports import free_port

RECORDS, QUICK_RECORDS = 700_000, 100_000
BLOCK_CPU_MS = 20.0
NAME = "persistent://public/default/orders"
LEDGER = 890_951_159_236_224
"""Ledger of the acknowledged entries: another region's, so that no entry must be stored."""
PENDING = 20_000
"""Records in flight while the log is written."""


@dataclass(frozen=True)
class Shape:
    """The pattern of acknowledgements to write."""

    name: str
    subscriptions: int = 1
    replicated: bool = False
    shuffled: bool = False


SHAPES = (
    Shape("one subscription, in order"),
    Shape("one subscription, replicated, in any order", replicated=True, shuffled=True),
    Shape("1,000 subscriptions, replicated, in any order", 1000, replicated=True, shuffled=True),
)


@dataclass
class Opened:
    """Measurements of the next broker. Times are of the loop's thread."""

    open_longest_block_cpu_ms: float
    open_longest_block_wall_ms: float
    open_cpu_seconds: float
    open_wall_seconds: float
    roll_over_longest_block_cpu_ms: float
    roll_over_longest_block_wall_ms: float
    start_memory_mib: float
    opened_memory_mib: float
    """Peak resident memory until then."""


class Turns:
    """Measures each turn of the loop until the end of the block."""

    def __init__(self) -> None:
        self.cpu_ms = self.wall_ms = 0.0

    async def __aenter__(self) -> Turns:
        self._over = False
        self._began = (time.thread_time(), time.perf_counter())
        self._noting = asyncio.ensure_future(self._note())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cpu_seconds = time.thread_time() - self._began[0]
        self.wall_seconds = time.perf_counter() - self._began[1]
        self._over = True
        await self._noting

    async def _note(self) -> None:
        cpu, wall = self._began
        while not self._over:
            await asyncio.sleep(0)
            cpu_now, wall_now = time.thread_time(), time.perf_counter()
            self.cpu_ms = max(self.cpu_ms, 1000 * (cpu_now - cpu))
            self.wall_ms = max(self.wall_ms, 1000 * (wall_now - wall))
            cpu, wall = cpu_now, wall_now


def settings(directory: Path) -> Settings:
    ports = (free_port(), free_port())
    names = ("clusterName", "dataDirectory", "brokerServicePort", "webServicePort")
    return Settings.of(dict(zip(names, ("us", str(directory), *map(str, ports)), strict=True)))


def reset_peak() -> float:
    """Resident now, in MiB; ``peak_mib`` counts from here."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return peak_mib()


def peak_mib() -> float:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024


def acknowledged(shape: Shape, records: int) -> Iterator[tuple[str, int]]:
    """Subscription and entry of each record."""
    entries = list(range(records))
    if shape.shuffled:
        random.Random(17).shuffle(entries)
    for at, entry in enumerate(entries):
        yield f"sub-{at % shape.subscriptions}", entry


async def write(directory: Path, shape: Shape, records: int) -> None:
    progress_log.ROLL_BYTES = progress_log.ROLL_RECORDS = sys.maxsize  # type: ignore[misc]
    async with AsyncExitStack() as stack:
        process = await BrokerProcess.start(settings(directory), stack)
        topic = await process.service.opener.topic(parse(NAME), create=True)
        for number in range(shape.subscriptions):
            topic.subscribing.create_subscription(f"sub-{number}", EARLIEST, replicated=shape.replicated)
        await _append(topic, shape, records)
        await process.drain()


async def _append(topic: Topic, shape: Shape, records: int) -> None:
    for at, (name, entry) in enumerate(acknowledged(shape, records)):
        delta = topic.subscriptions[name].cursor.progress.empty_delta()
        delta.ack(ZERO, "eu", Position(LEDGER, entry - 1), Position(LEDGER, entry))
        topic.progress_log.append(Kind.ACKED, name, delta.encode())
        if not at % PENDING:
            await topic.scheduler.answer(topic.progress_log.when_durable)
    await topic.scheduler.answer(topic.progress_log.when_durable)


async def read(directory: Path, shape: Shape, records: int) -> Opened:
    async with AsyncExitStack() as stack:
        process = await BrokerProcess.start(settings(directory), stack)
        gc.collect()
        gc.freeze()
        gc.set_threshold(*running.GC_THRESHOLD)
        start_mib = reset_peak()
        async with Turns() as opening:
            topic = await process.service.opener.topic(parse(NAME), create=False)
        opened_mib = peak_mib()
        for name, entry in acknowledged(shape, records):
            assert topic.subscriptions[name].cursor.progress.is_acked("eu", Position(LEDGER, entry)), f"{name}: {entry}"
        async with Turns() as rolling:
            await _roll_over(topic)
        await process.drain()
    return Opened(
        *(opening.cpu_ms, opening.wall_ms, opening.cpu_seconds, opening.wall_seconds),
        *(rolling.cpu_ms, rolling.wall_ms, start_mib, opened_mib),
    )


async def _roll_over(topic: Topic) -> None:
    """One more acknowledgement: a broker never appends to a ledger that it finds."""
    old, subscription = topic.progress_log.ledgers, next(iter(topic.subscriptions.values()))
    delta = subscription.cursor.progress.empty_delta()
    delta.ack(ZERO, "eu", Position(LEDGER + 1, -1), Position(LEDGER + 1, 0))
    subscription.cursor.progress.join(delta)
    subscription.cursor.make_known(delta)
    while set(old) & set(topic.progress_log.ledgers):
        await next_turn(topic.scheduler)


def in_a_process(step: str, directory: Path, shape: int, records: int) -> str:
    options = (f"--step={step}", f"--in={directory}", f"--shape={shape}", f"--records={records}")
    command = (sys.executable, __file__, *options)
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def measure(directory: Path, number: int, records: int) -> Opened:
    with tempfile.TemporaryDirectory(prefix="bench-recovery-", dir=directory) as volume:
        in_a_process("write", Path(volume), number, records)
        return Opened(**json.loads(in_a_process("read", Path(volume), number, records)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_RECORDS:,} records instead of {RECORDS:,}")
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    parser.add_argument("--directory", type=Path, default=Path(), help="where to write; it must be on a real disk")
    parser.add_argument("--step", choices=("write", "read"), help=argparse.SUPPRESS)
    parser.add_argument("--in", dest="volume", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--shape", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--records", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.directory.mkdir(parents=True, exist_ok=True)
    if options.step is not None:
        logging.disable(logging.WARNING)
    if options.step == "write":
        uvloop.run(write(options.volume, SHAPES[options.shape], options.records))
        return 0
    if options.step == "read":
        opened = uvloop.run(read(options.volume, SHAPES[options.shape], options.records))
        print(json.dumps(asdict(opened)))
        return 0
    return report(options.directory.resolve(), QUICK_RECORDS if options.quick else RECORDS, as_json=options.json)


def report(directory: Path, records: int, *, as_json: bool) -> int:
    load_before = os.getloadavg()[0]
    figures, targets = [], {}
    print(
        f"{records:,} acknowledgements of single messages; longest block of the loop in ms, of CPU and by the clock,\n"
        "while the topic is opened, with the CPU time and the memory that this takes, and while its log rolls over"
    )
    print(f"{'':48}{'opening':>16}{'CPU s':>8}{'MiB':>6}{'rolling over':>18}")
    for number, shape in enumerate(SHAPES):
        opened = measure(directory, number, records)
        memory = opened.opened_memory_mib - opened.start_memory_mib
        figures.append({"records": records, "shape": shape.name, **asdict(opened)})
        print(
            f"{shape.name:<48}{opened.open_longest_block_cpu_ms:>8.1f}{opened.open_longest_block_wall_ms:>8.1f}"
            f"{opened.open_cpu_seconds:>8.1f}{memory:>6.0f}"
            f"{opened.roll_over_longest_block_cpu_ms:>10.1f}{opened.roll_over_longest_block_wall_ms:>8.1f}",
            flush=True,
        )
        for step in ("open", "roll_over"):
            value = getattr(opened, f"{step}_longest_block_cpu_ms")
            name = f"{shape.name}: {step}_longest_block_cpu_ms"
            targets[name] = {"value": value, "limit": BLOCK_CPU_MS, "met": value <= BLOCK_CPU_MS}
    missed = [name for name, target in targets.items() if not target["met"]]
    print(f"target: blocks of at most {BLOCK_CPU_MS:.0f} ms of CPU; missed: {', '.join(missed) or 'none'}")
    if as_json:
        machine = {"cores": os.cpu_count(), "load_before": load_before, "load_after": os.getloadavg()[0]}
        print(json.dumps({"targets": targets, "figures": figures, "machine": machine}))
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
