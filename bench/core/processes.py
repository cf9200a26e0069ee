# SPDX-License-Identifier: Apache-2.0
"""The bench's processes: a broker, three regions, a generator; and their resource usage from the kernel."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PROGRAM: tuple[str, ...] = (sys.executable, "-P", "-m", "meridian_broker.server.main")
TICKS = os.sysconf("SC_CLK_TCK")
START_SECONDS = 60.0
PORTS = range(30_001, 32_700)
_given: set[int] = set()
"""Ports already handed out, in use or not."""


def wait(condition: Callable[[], bool], what: str, seconds: float = START_SECONDS) -> None:
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            raise SystemExit(f"bench: waited {seconds:.0f} s for {what}, in vain")
        time.sleep(0.01)


def free_ports(count: int) -> list[int]:
    """Below the kernel's ephemeral ports, so that no client takes the port of a broker that is briefly down."""
    found: list[int] = []
    first = random.randrange(PORTS.start, PORTS.stop)
    if len(_given) > len(PORTS) // 2:  # processes that got the oldest ports have ended
        _given.clear()
    for port in (*range(first, PORTS.stop), *range(PORTS.start, first)):
        if port in _given:
            continue
        with suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            found.append(port)
            _given.add(port)
        if len(found) == count:
            return found
    raise SystemExit(f"bench: no {count} ports of {PORTS} are free")


def free_base(count: int, first: int) -> int:
    """A port from ``first`` on such that it and every tenth one after it are free."""
    for base in range(first, first + 5000, 100):
        try:
            for port in range(base, base + 10 * count, 10):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        return base
    raise SystemExit(f"bench: no free ports between {first} and {first + 5000}")


def is_healthy(admin_port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{admin_port}/admin/v2/brokers/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def cpu_seconds(pid: int) -> float:
    """Processor time that all threads of a process have used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def rss_bytes(pid: int) -> int:
    """Resident memory."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Broker:
    """One broker of one region, embedded metadata, fdatasync on (there is no switch for it)."""

    def __init__(self, directory: Path, region: str = "one", **settings: object) -> None:
        """:param settings: further settings, by key."""
        self.directory = directory
        self.region = region
        self.settings = settings
        self.program = PROGRAM
        """Command line of the program, without the word "broker"."""
        self.port, self.admin_port = free_ports(2)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Broker:
        process = self.spawn()
        wait(lambda: process.poll() is not None or is_healthy(self.admin_port), "the broker to start")
        if process.poll() is not None:
            raise SystemExit(f"bench: the broker ended with {process.returncode}; its log: {self.directory / 'log'}")
        return self

    def spawn(self) -> subprocess.Popen[bytes]:
        """Start it without waiting."""
        self.directory.mkdir(parents=True, exist_ok=True)
        settings = {
            "clusterName": self.region,
            "dataDirectory": self.directory / "data",
            "brokerServicePort": self.port,
            "webServicePort": self.admin_port,
            **self.settings,
        }
        command = [*self.program, "broker"]
        for key, value in settings.items():
            command += ["--set", f"{key}={value}"]
        with (self.directory / "log").open("ab") as log:
            process = self._process = subprocess.Popen(command, stdout=log, stderr=log)
        return process

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(60)
            except subprocess.TimeoutExpired:
                self.kill()

    def kill_if_running(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()

    def __enter__(self) -> Broker:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


class Regions:
    """``meridian up``."""

    def __init__(self, directory: Path, *names: str, metadata: str = "embedded") -> None:
        self.directory = directory
        self.names = names
        self._metadata = metadata
        self._again: dict[str, subprocess.Popen[bytes]] = {}
        self.listed: dict[str, dict[str, Any]] = {}

    def __enter__(self) -> Regions:
        count = len(self.names)
        command = [*PROGRAM, "up", "--regions", ",".join(self.names), "--data-dir", str(self.directory)]
        command += ["--metadata", self._metadata]
        command += ["--base-port", str(free_base(count, 21650)), "--base-http-port", str(free_base(count, 27080))]
        self.directory.mkdir(parents=True, exist_ok=True)
        log_path = self.directory.with_suffix(".log")
        with log_path.open("wb") as log:
            self._up = subprocess.Popen(command, stdout=log, stderr=log)
        wait(
            lambda: self._up.poll() is not None or b"All regions are up" in log_path.read_bytes(),
            "the regions to start",
        )
        if self._up.poll() is not None:
            raise SystemExit(f"bench: meridian up failed:\n{log_path.read_text()}")
        for region in json.loads((self.directory / "regions.json").read_text())["regions"]:
            self.listed[region["name"]] = region
        return self

    def port(self, name: str) -> int:
        return int(self.listed[name]["service_url"].rpartition(":")[2])

    def pid(self, name: str) -> int:
        return self._again[name].pid if name in self._again else int(self.listed[name]["pid"])

    def ledgers(self, name: str) -> Path:
        """Where a region's log is."""
        return self.directory / name / "data" / "ledgers"

    def kill(self, name: str) -> int:
        """SIGKILL; returns when it was sent, in milliseconds since 1970."""
        os.kill(self.pid(name), signal.SIGKILL)
        now = time.time_ns() // 1_000_000
        if name in self._again:
            self._again[name].wait()
        return now

    def bring_back(self, name: str) -> None:
        """Start a killed region's broker again on its own disk."""
        with (self.directory / f"{name}-again.log").open("ab") as log:
            command = [*PROGRAM, "broker", "--config", self.listed[name]["config"]]
            self._again[name] = subprocess.Popen(command, stdout=log, stderr=log)
        port = int(self.listed[name]["admin_url"].rpartition(":")[2])
        wait(lambda: is_healthy(port), f"{name} to come back")

    def __exit__(self, *_: object) -> None:
        for process in self._again.values():
            process.terminate()
        self._up.terminate()
        for process in (*self._again.values(), self._up):
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class Generator:
    """The load's process. It is started and connected first, so that only the load is measured."""

    def __init__(self, what: str, **options: Any) -> None:
        command = [sys.executable, str(HERE / "generator.py"), what, *(f"{k}={v}" for k, v in options.items())]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._what = what

    def ready(self) -> Generator:
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "ready\n":
            raise SystemExit(f"bench: the generator ({self._what}) did not get ready")
        return self

    def stop(self) -> None:
        """SIGTERM, for generators that work until they are stopped."""
        if self._process.poll() is None:
            self._process.terminate()

    def result(self) -> dict[str, Any]:
        """Let it work (if it waits) and wait until it ends."""
        output, _ = self._process.communicate("go\n")
        if self._process.returncode:
            raise SystemExit(f"bench: the generator ({self._what}) failed")
        answer: dict[str, Any] = json.loads(output.splitlines()[-1])
        return answer


def run(what: str, **options: Any) -> dict[str, Any]:
    """A generator that runs without waiting."""
    return Generator(what, **options).result()
