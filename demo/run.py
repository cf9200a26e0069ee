#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The main use case, end to end: three regions, real clients, a region dies, nothing is lost or repeated.

`make demo` runs this. It publishes 336,776 flights in three regions at full speed, consumes them in one of them, kills
that region without warning, continues in the second, brings the first one back, switches to the third as planned, and
lets Spark verify from outside that every region has the same progress.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import flights
import page
from judge import Export, Stage, Switch, judge, judge_receipts
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from worker import RECORD

HERE = Path(__file__).resolve().parent
TOPIC = "persistent://public/default/flights"
SUBSCRIPTION = "departures"
MERIDIAN = [sys.executable, "-m", "meridian_broker.server.main"]
"""The command `meridian`, of the very environment this runs in."""
KEEP_EVERYTHING = ("defaultRetentionTimeInMinutes=-1", "defaultRetentionSizeInMB=-1")
"""Each delivery is looked up by its place at the end: on a slow machine acknowledged messages would be trimmed by
then."""
CONSUMERS = 4
KILL_SHARE = (0.15, 0.35)
"""Between these fractions of all flights, counted as processed, the region is killed."""
BACK_SHARE = 0.12
"""The region comes back when this fraction more has been processed."""
SWITCH_SHARE = 0.20
"""The planned switch comes after this fraction more."""
LIMIT_SECONDS = 220


def free_block(count: int, first: int) -> int:
    """A port from ``first`` on so that it and every tenth one after it are free."""
    for base in range(first, first + 5000, 100):
        ports = [base + 10 * i for i in range(count)]
        try:
            for port in ports:
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        return base
    raise SystemExit(f"demo: no free ports between {first} and {first + 5000}; end what listens there")


class Demo:
    def __init__(self, arguments: argparse.Namespace, console: Console, directory: Path) -> None:
        self.seed = arguments.seed
        self.console = console
        self.directory = directory
        self.data = directory / "regions"
        self.random = random.Random(self.seed)
        self.children: list[subprocess.Popen[bytes]] = []
        self.regions: dict[str, dict[str, Any]] = {}
        self.stages: list[Stage] = []
        self.tailed: dict[Path, tuple[int, int]] = {}
        self.broker: subprocess.Popen[bytes] | None = None
        self.killed_ms = 0
        self.started = 0.0
        self.report = Path(arguments.report_dir).resolve()
        self.story: list[tuple[float, str]] = []
        """Events of the demo, by seconds since the start."""
        self.receipts = {region: directory / f"receipts-{region}.journal" for region in flights.AIRPORT_OF_REGION}
        self.clients_log = (directory / "clients.log").open("wb")
        """The client library's log, for example that a dead region does not answer."""

    # -- the regions

    def start_regions(self) -> None:
        base, web = free_block(3, 20650), free_block(3, 26080)
        command = [
            *MERIDIAN, "up", "--regions", ",".join(flights.AIRPORT_OF_REGION),
            "--data-dir", str(self.data), "--metadata", "etcd", "--base-port", str(base), "--base-http-port", str(web),
            *(part for setting in KEEP_EVERYTHING for part in ("--set", setting)),
        ]  # fmt: skip
        self.up_log = (self.directory / "up.log").open("wb")
        self.spawn(command, stdout=self.up_log, stderr=subprocess.STDOUT)
        up = self.children[-1]
        listing = self.data / "regions.json"
        self.wait(lambda: b"All regions are up" in (self.directory / "up.log").read_bytes(), up, "the regions to start")
        for region in json.loads(listing.read_text())["regions"]:
            self.regions[region["name"]] = region

    def spawn(self, command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        child = subprocess.Popen(command, **options)
        self.children.append(child)
        return child

    def wait(self, condition: Any, child: subprocess.Popen[bytes] | None, what: str, seconds: float = 90) -> None:
        until = time.monotonic() + seconds
        while not condition():
            if child is not None and child.poll() not in (None, 0):
                log = (self.directory / "up.log").read_text(errors="replace")
                raise SystemExit(f"demo: gave up waiting for {what}: a process ended with {child.returncode}\n{log}")
            if time.monotonic() > until:
                raise SystemExit(f"demo: waited {seconds:.0f} s for {what}, in vain; logs are in {self.directory}")
            time.sleep(0.02)

    def kill_region(self, name: str) -> None:
        os.kill(self.regions[name]["pid"], signal.SIGKILL)
        self.killed_ms = time.time_ns() // 1_000_000

    def bring_back(self, name: str) -> None:
        """Start the dead region's broker again on its own disk, as its service manager would."""
        log = (self.directory / f"{name}-again.log").open("wb")
        command = [*MERIDIAN, "broker", "--config", self.regions[name]["config"]]
        self.broker = self.spawn(command, stdout=log, stderr=subprocess.STDOUT)

    # -- the clients

    def start_publishers(self) -> dict[str, Path]:
        files = {}
        for region, airport in flights.AIRPORT_OF_REGION.items():
            files[region] = self.directory / f"published-{airport}"
            files[region].write_text("0")
            self.spawn(
                [sys.executable, str(HERE / "worker.py"), "publish", self.regions[region]["service_url"], TOPIC,
                 airport, str(files[region])],
                stdout=self.clients_log,
            )  # fmt: skip
        return files

    def stand_by(self, region: str) -> subprocess.Popen[bytes]:
        """Consumers for a region, started but not yet subscribed."""
        path = self.journal(region)
        path.touch()
        return self.spawn(
            [sys.executable, str(HERE / "worker.py"), "consume", self.regions[region]["service_url"], TOPIC,
             SUBSCRIPTION, str(CONSUMERS), str(path), str(self.seed + len(self.children))],
            stdin=subprocess.PIPE,
            stdout=self.clients_log,
        )  # fmt: skip

    def stand_by_with_receipts(self, region: str) -> subprocess.Popen[bytes]:
        """The consumer that asks for receipts, started but not yet subscribed."""
        self.receipts[region].touch()
        return self.spawn(
            [sys.executable, str(HERE / "receipts.py"), self.regions[region]["service_url"], TOPIC,
             str(self.receipts[region]), str(self.seed)],
            stdin=subprocess.PIPE,
            stdout=self.clients_log,
        )  # fmt: skip

    def journal(self, region: str) -> Path:
        return self.directory / f"consumers-{region}.journal"

    def go(self, consumers: subprocess.Popen[bytes], region: str, kind: str, began_ms: int) -> None:
        """Let stand-by consumers subscribe."""
        self.stages.append(Stage(region, self.journal(region), kind, began_ms))
        for one in (consumers, self.confirming[region]):
            assert one.stdin is not None
            one.stdin.write(b"go\n")
            one.stdin.close()

    def close(self, consumers: subprocess.Popen[bytes], region: str) -> None:
        """A region's consumers end as they should."""
        both = (consumers, self.confirming[region])
        for one in both:
            one.send_signal(signal.SIGTERM)
        self.wait(lambda: all(one.poll() is not None for one in both), None, f"the consumers in {region} to close")

    def processed(self) -> int:
        """Flights processed so far; a running count from the journals, each flight once."""
        for stage in self.stages:
            offset, _ = self.tailed.get(stage.journal, (0, 0))
            with stage.journal.open("rb") as file:
                file.seek(offset)
                data = file.read()
            usable = len(data) - len(data) % RECORD.size
            for kind, _l, _e, _i, flight, _t in RECORD.iter_unpack(data[:usable]):
                if kind == b"D":
                    self.seen.add(flight)
                    self.unacked.setdefault((_l, _e, _i), None)
                else:
                    self.unacked.pop((_l, _e, _i), None)
            self.tailed[stage.journal] = (offset + usable, 0)
        return len(self.seen)

    confirming: dict[str, subprocess.Popen[bytes]]
    seen: set[int]
    unacked: dict[tuple[int, int, int], None]

    # -- the story

    def run(self) -> dict[str, Any]:
        expected: dict[str, int] = {}
        for _, airport, _ in flights.read():
            expected[airport] = expected.get(airport, 0) + 1
        total = sum(expected[airport] for airport in flights.AIRPORT_OF_REGION.values())
        kill_at = int(total * self.random.uniform(*KILL_SHARE))
        self.say(f"{total:,} flights, seed {self.seed}: us-east will be killed when {kill_at:,} are processed")
        self.say("starting three regions, each with its own etcd ...")
        self.start_regions()
        self.seen, self.unacked = set(), {}
        columns = (TextColumn("{task.description:<34}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=self.console, disable=not self.console.is_terminal) as bars:
            self.bars = bars
            self.started = time.monotonic()
            consumers, west, central = (self.stand_by(region) for region in flights.AIRPORT_OF_REGION)
            self.confirming = {region: self.stand_by_with_receipts(region) for region in flights.AIRPORT_OF_REGION}
            self.go(consumers, "us-east", "first", _now_ms())
            self.tell("consumers subscribe in us-east, publishers start in every region")
            files = self.start_publishers()
            self.publishing = {
                region: (files[region], bars.add_task(f"published {airport} in {region}", total=expected[airport]))
                for region, airport in flights.AIRPORT_OF_REGION.items()
            }
            self.task = bars.add_task("processed in us-east", total=total)
            self.until(lambda n: n >= kill_at and bool(self.unacked), "the moment of the kill")
            held = len(self.unacked)
            self.kill_region("us-east")
            consumers.send_signal(signal.SIGUSR1)
            self.tell(
                f"us-east is killed with SIGKILL at {len(self.seen):,} flights; {held:,} messages are not acknowledged"
            )
            bars.update(self.task, description="processed, now in us-west")
            self.go(west, "us-west", "sigkill", self.killed_ms)
            self.tell("the consumers continue in us-west")
            consumers = west
            at = len(self.seen)
            self.until(lambda n: n >= at + int(total * BACK_SHARE) or self.idle(), "us-west to go on")
            self.bring_back("us-east")
            self.tell("us-east comes back with its disk")
            at = len(self.seen)
            self.until(lambda n: n >= at + int(total * SWITCH_SHARE) or n >= total * 0.9, "the planned switch")
            self.close(consumers, "us-west")
            self.tell("planned switch: the consumers in us-west are closed, new ones subscribe in eu-central")
            bars.update(self.task, description="processed, now in eu-central")
            self.go(central, "eu-central", "planned", _now_ms())
            consumers = central
            self.until(lambda n: n >= total, "every flight to be processed")
            self.close(consumers, "eu-central")
            self.tell("every flight is processed, the consumers are closed")
        published = sum(int(path.read_text()) for path, _ in self.publishing.values())
        return self.conclude(total, published)

    def idle(self) -> bool:
        """Nothing was processed for two seconds: all that us-west can have is done."""
        count = len(self.seen)
        if count != self.last_count:
            self.last_count, self.last_change = count, time.monotonic()
        return time.monotonic() - self.last_change > 2

    last_count, last_change = -1, 0.0

    def until(self, condition: Any, what: str) -> None:
        while True:
            count = self.processed()
            self.bars.update(self.task, completed=count)
            for path, task in self.publishing.values():
                self.bars.update(task, completed=int(path.read_text() or 0))
            if condition(count):
                return
            if time.monotonic() - self.started > LIMIT_SECONDS:
                raise SystemExit(
                    f"demo: waited {LIMIT_SECONDS} s in vain for {what} ({count:,} flights processed); "
                    f"logs are in {self.directory}"
                )
            time.sleep(0.05)

    def conclude(self, total: int, published: int) -> dict[str, Any]:
        self.say("Spark compares the regions ...")
        verdict, verified = self.verify()
        seconds = time.monotonic() - self.started
        exports = {name: Export(region["admin_url"], TOPIC) for name, region in self.regions.items()}
        processed, switches = judge(self.stages, exports, SUBSCRIPTION, self.killed_ms)
        confirmed, repeated = judge_receipts(self.receipts, "us-east", exports)
        result = {
            "published": published,
            "processed": len(processed),
            "lost": total - len(processed),
            "redelivered_acked": sum(switch.redelivered_acked for switch in switches),
            "switches": [switch.as_json() for switch in switches],
            "receipts": {"batches": confirmed, "redelivered": repeated},
            "aligned": verified == 0,
            "seconds": round(seconds, 1),
            "seed": self.seed,
            "report": str(self.report),
            "spark_report": max((one.name for one in self.report.glob("verify-*.html")), default=None),
        }
        self.show(result, switches, verdict)
        return result

    def verify(self) -> tuple[str, int]:
        command = [
            *MERIDIAN, "verify", "--regions-file",
            str(self.data / "regions.json"), "--topics", TOPIC, "--report-dir", str(self.report),
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode not in (0, 1):
            self.say(done.stdout[-4000:] + done.stderr[-4000:])
        return done.stdout, done.returncode

    def show(self, result: dict[str, Any], switches: list[Switch], told: str) -> None:
        self.console.print(told, highlight=False)
        for title, heads, rows in page.tables(result, switches):
            table = Table(title=title, title_justify="left")
            for head in heads:
                table.add_column(head, justify="right")
            for row in rows:
                table.add_row(*row)
            self.console.print(table)
        self.say(page.EXPLAINED)
        self.report.mkdir(parents=True, exist_ok=True)
        (self.report / "index.html").write_text(page.page(result, switches, self.story), encoding="utf-8")
        self.console.print(
            f"Spark's verdict: {'aligned' if result['aligned'] else 'NOT aligned'}; report: {self.report}/index.html"
        )

    def say(self, text: str) -> None:
        self.console.print(text, highlight=False)

    def tell(self, text: str) -> None:
        """A turn of the story."""
        self.story.append((time.monotonic() - self.started, text))
        self.say(text)

    def end(self) -> None:
        for child in reversed(self.children):
            if child.poll() is None:
                child.terminate()
        for child in self.children:
            try:
                child.wait(30)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=None, help="decides the moment of the kill; printed at the start")
    parser.add_argument("--json", action="store_true", help="the result as one JSON object on the last line")
    parser.add_argument("--report-dir", default="reports/demo", help="where Spark's report goes (%(default)s)")
    parser.add_argument("--keep", action="store_true", help="keep the regions' data and the journals")
    arguments = parser.parse_args()
    if arguments.seed is None:
        arguments.seed = random.SystemRandom().randrange(1, 1_000_000)
    console = Console(width=None if sys.stdout.isatty() else 120)
    directory = Path(tempfile.mkdtemp(prefix="meridian-demo-"))
    demo = Demo(arguments, console, directory)
    good = False
    try:
        result = demo.run()
        good = result["lost"] == 0 and result["redelivered_acked"] == 0 and result["aligned"]
    finally:
        demo.end()
        if arguments.keep or not good:
            console.print(f"data, journals and logs are kept in {directory}")
        else:
            shutil.rmtree(directory, ignore_errors=True)
    if arguments.json:
        sys.stdout.write(json.dumps(result) + "\n")
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
