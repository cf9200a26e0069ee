# SPDX-License-Identifier: Apache-2.0
"""A real etcd for tests, usable from fixtures of any scope.

``EtcdProcess`` belongs to an event loop, and every test has its own; so the server lives on a loop in a thread.
"""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Self, TypeVar

from meridian_broker.engines.etcd.address import Login
from meridian_broker.server import etcd_process
from meridian_broker.server.etcd_process import EtcdProcess, find_etcd
from support.brokers.broker_process import wait_until
from support.brokers.certificates import Pair
from support.brokers.free_ports import free_port

T = TypeVar("T")


@functools.cache
def etcd_missing() -> str | None:
    """Why tests with etcd cannot run here; None when they can."""
    if asyncio.run(find_etcd()) is None:
        return "there is no etcd on this machine: scripts/etcd builds one"
    return None


class EtcdServer:
    """etcd on a data directory. Its data and address survive ``kill`` and ``start``."""

    def __init__(self, data_dir: Path, *, secured: bool = False) -> None:
        self._data_dir = data_dir
        self._secured = secured
        self._port = free_port()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="etcd-server", daemon=True)
        self._thread.start()
        self._process: EtcdProcess | None = None
        self.url = ""
        self.start()

    def start(self) -> None:
        """Start it, on the address it had before."""
        self._process = self._run(EtcdProcess.start(self._data_dir, client_port=self._port, secured=self._secured))
        self.url = self._process.url

    def kill(self) -> None:
        """SIGKILL."""
        assert self._process is not None
        self._run(self._process.kill())

    def pause(self) -> None:
        """SIGSTOP until it is killed: its connections stay open, but nothing answers."""
        assert self._process is not None
        pid = self._process.pid
        os.kill(pid, signal.SIGSTOP)

        def stopped() -> bool:
            """Whether every thread has stopped: a thread that waits for the disk stops only afterwards."""
            stats = [task.read_text() for task in Path(f"/proc/{pid}/task").glob("*/stat")]
            return all(stat.rpartition(")")[2].split()[0] == "T" for stat in stats)

        wait_until(stopped, "etcd to stop")

    def close(self) -> None:
        """Stop it permanently."""
        assert self._process is not None
        self._run(self._process.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def login(self) -> Login:
        """The credentials of its clients."""
        assert self._process is not None
        return self._process.login

    @property
    def binary(self) -> str:
        assert self._process is not None
        return str(self._process.binary)

    def _run(self, doing: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(doing, self._loop).result(60)


class EtcdOfTest:
    """etcd with options of the test's own, on an event loop of its own."""

    def __init__(self, port: int, url: str, process: asyncio.subprocess.Process) -> None:
        self.port = port
        self.url = url
        self._process = process

    @classmethod
    async def start(cls, data_dir: Path, *options: str, scheme: str = "http", port: int = 0) -> Self:
        binary = await find_etcd()
        assert binary is not None
        data_dir.mkdir(exist_ok=True)
        port = port or free_port()
        url = f"{scheme}://127.0.0.1:{port}"
        process = await asyncio.create_subprocess_exec(
            *etcd_process.command(binary, data_dir, url), "--log-level=error", *options, cwd=data_dir
        )
        return cls(port, url, process)

    async def stop(self) -> None:
        self._process.terminate()
        await self._process.wait()


async def tls_etcd(data_dir: Path, pair: Pair, clients: Path | None = None, port: int = 0) -> EtcdOfTest:
    """
    :param clients: the authority that issues client certificates; None: clients need no certificate.
    """
    of_clients = [] if clients is None else ["--client-cert-auth", f"--trusted-ca-file={clients}"]
    files = [f"--cert-file={pair.certificate}", f"--key-file={pair.key}"]
    return await EtcdOfTest.start(data_dir, *files, *of_clients, scheme="https", port=port)
