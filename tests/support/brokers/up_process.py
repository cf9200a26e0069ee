# SPDX-License-Identifier: Apache-2.0
"""``meridian up`` as a user starts it: a supervisor with one broker for each region."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from support.brokers.broker_process import (
    START_SECONDS,
    STOP_SECONDS,
    Program,
    RegionsProcess,
    is_healthy,
    started_afresh,
    wait_until,
)


def kill_etcds(data_dir: Path) -> None:
    """They outlive a killed supervisor: draining brokers need them until the end."""
    for file in data_dir.glob("*/etcd/etcd.pid"):
        pid = int(file.read_text())
        with contextlib.suppress(OSError):
            if str(data_dir) in Path(f"/proc/{pid}/cmdline").read_text():
                os.kill(pid, signal.SIGKILL)


def kill_bookies(data_dir: Path) -> None:
    """Brokers are told to stop when their supervisor is killed; without an etcd, that takes them minutes."""
    for file in data_dir.glob("*/bookies/bookie-*.conf"):
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if os.fsencode(file) in (process / "cmdline").read_bytes().split(b"\x00"):
                    os.kill(int(process.name), signal.SIGKILL)


class UpProcess(RegionsProcess):
    """One ``meridian up``. A broker that a test restarts is not a child of its supervisor."""

    def __init__(
        self,
        regions: tuple[str, ...],
        data_dir: Path,
        *,
        metadata: str = "embedded",
        settings: Mapping[str, str] | None = None,
        brokers: int = 1,
        options: Sequence[str] = (),
        start_seconds: float = START_SECONDS,
    ) -> None:
        """
        :param brokers: per region.
        :param options: additional ones, as on the command line.
        """
        super().__init__(regions, data_dir, settings=settings, brokers=brokers)
        self._brokers_of_each = brokers
        self.log_file = data_dir.parent / f"{data_dir.name}-up.log"
        self._metadata = metadata
        self._options = options
        self._start_seconds = start_seconds
        self._process: Program | None = None

    def start(self) -> Self:
        assert self._process is None, "the regions are already running"
        self.data_dir.parent.mkdir(parents=True, exist_ok=True)
        assignments = [part for assignment in self._assignments for part in ("--set", assignment)]
        command = [
            *("up", "--regions", ",".join(self.regions), "--data-dir", str(self.data_dir)),
            *("--brokers", str(self._brokers_of_each)),
            *("--metadata", self._metadata, "--base-port", str(self._base_port)),
            *("--base-http-port", str(self._base_http_port), *self._options, *assignments),
        ]
        said = len(self.log())
        self._process = started_afresh(command, self.log_file)

        def up() -> bool:
            assert self._process is not None
            assert self._process.poll() is None, f"the regions did not start:\n{self.log()}"
            return "All regions are up" in self.log()[said:]

        wait_until(up, "the regions to start", self._start_seconds)
        return self

    def pid(self, region: str) -> int:
        return super().pid(region) if region in self._brokers else int(self.record(region)["pid"])

    def stop_region(self, region: str) -> None:
        if region in self._brokers:
            super().stop_region(region)
            return
        said = len(self.log(region))
        os.kill(self.pid(region), signal.SIGTERM)
        wait_until(lambda: self.log(region)[said:].rstrip().endswith("stopped"), f"{region} to stop", STOP_SECONDS)

    def kill_region(self, region: str) -> None:
        if region in self._brokers:
            super().kill_region(region)
            return
        os.kill(self.pid(region), signal.SIGKILL)
        wait_until(lambda: not is_healthy(self.admin_url(region)), f"{region} to stop answering")

    def stop(self) -> None:
        """SIGTERM, and wait for the drain; fails if it did not exit cleanly, unless a broker was killed before."""
        assert self._process is not None
        killed = bool(self._brokers)
        self._process.send_signal(signal.SIGTERM)
        super().stop()
        code = self._process.wait(STOP_SECONDS)
        self._process = None
        assert killed or code == 0, f"exit code {code}:\n{self.log()}"

    def kill(self) -> None:
        """Kill everything; brokers do not outlive their supervisor."""
        for region in list(self._brokers):
            super().kill_region(region)
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._process = None
        kill_bookies(self.data_dir)
        kill_etcds(self.data_dir)

    def log(self, region: str | None = None) -> str:
        """What ``meridian up`` printed, or what one region's broker logged."""
        if region is not None:
            return super().log(region)
        return self.log_file.read_text(encoding="utf-8", errors="replace") if self.log_file.exists() else ""
