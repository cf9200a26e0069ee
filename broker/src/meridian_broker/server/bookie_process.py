# SPDX-License-Identifier: Apache-2.0
"""Starts and stops a region's bookies on this machine: for ``meridian up --storage bookkeeper`` and tests.

A bookie is a Java process of Apache BookKeeper. Its jars are fetched by ``scripts/bookkeeper``, which checks them
against pinned checksums; elsewhere ``--bookkeeper-jars`` names their directory. Bookies are registered in the region's
etcd by Pulsar's metadata driver, because BookKeeper's own for etcd does not survive an outage of etcd.

These bookies are small: caches and journals of a few MiB, 256 MiB of heap. Production regions run bookies as a service
of their own; this module is not for them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self

from meridian_broker.server import lifeline

READY_SECONDS: Final = 300.0
"""How long all bookies may take until they are registered. Without the archive of classes a Java start is slow, and a
bookie waits until its previous registration has expired."""
STOP_SECONDS: Final = 20.0
"""How long they may take to end after SIGTERM. The first one may write the archive of classes then."""
JAVA_MIN: Final = 17
JARS: Final = Path(sys.prefix) / "libexec" / "bookkeeper"
"""Where ``scripts/bookkeeper`` puts them."""
UNREGISTERED: Final = "Couldn't register bookie"
"""In the log of a bookie whose lease ended before it was used: it keeps running without ever being registered."""

_POLL_SECONDS: Final = 0.1
_LOG_LINES: Final = 8
_MAIN: Final = "org.apache.bookkeeper.server.Main"
_DRIVER: Final = "org.apache.pulsar.metadata.bookkeeper.PulsarMetadata{}Driver"
_OPENED: Final = (
    *("java.base/java.nio", "java.base/jdk.internal.misc", "java.base/java.lang"),
    *("java.base/java.util.zip", "java.base/sun.net"),
)


class BookiesFailed(Exception):
    """Bookies could not be found or started. The message says why and what to do."""


def missing(jars: Path) -> str | None:
    """Why no bookie can be started here, and what to do; None: one can."""
    if not any(jars.glob("bookkeeper-server-*.jar")):
        return (
            f"there are no BookKeeper jars in {jars}. In a checkout, `scripts/bookkeeper` fetches them (with Maven, "
            "123 MB). Elsewhere, name their directory with --bookkeeper-jars"
        )
    if shutil.which("java") is None:
        return (
            f"there is no Java on this machine: bookies need Java {JAVA_MIN} (Debian: openjdk-{JAVA_MIN}-jre-headless)"
        )
    said = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(\d+)', said)
    if version is None or int(version[1]) < JAVA_MIN:
        return f"the Java on this machine is too old for bookies, which need Java {JAVA_MIN}: {said.strip()}"
    return None


def java(jars: Path, *, leaves_archive: bool = False) -> list[str]:
    """The command of a Java program of BookKeeper, but for its class and arguments.

    :param leaves_archive: write an archive of the classes it loaded when it stops, for those that start later.
    """
    archive = jars / "bookie.jsa"
    option = [f"-XX:ArchiveClassesAtExit={archive}"] if leaves_archive and os.access(jars, os.W_OK) else []
    if archive.exists():
        option = [f"-XX:SharedArchiveFile={archive}"]
    return [
        *("java", *option, "-Xlog:disable", "-Xlog:all=off"),
        *("-Xms32m", "-Xmx256m", "-XX:MaxDirectMemorySize=192m", "-XX:+UseSerialGC", "-Xss512k"),
        *("-XX:+PerfDisableSharedMem", "-Dio.netty.tryReflectionSetAccessible=true", "-Dlog4j2.disable.jmx=true"),
        "-Dbookkeeper.metadata.bookie.drivers=" + _DRIVER.format("Bookie"),
        "-Dbookkeeper.metadata.client.drivers=" + _DRIVER.format("Client"),
        *(part for opened in _OPENED for part in ("--add-opens", f"{opened}=ALL-UNNAMED")),
        *("-cp", f"{jars}/*"),
    ]


def bookie(jars: Path, configuration: Path, *, leaves_archive: bool = False) -> list[str]:
    """The command of a bookie."""
    return [*java(jars, leaves_archive=leaves_archive), _MAIN, "--conf", str(configuration)]


def configure(file: Path, data: Path, etcd: str, port: int, more: Mapping[str, object] | None = None) -> None:
    """Write a bookie's configuration.

    :param data: its directory; made if missing.
    :param etcd: URL of the region's etcd, without TLS or password.
    """
    values: dict[str, object] = {
        "metadataServiceUri": f"metadata-store:etcd:{etcd}",
        "bookiePort": port,
        "advertisedAddress": "127.0.0.1",
        "listeningInterface": "lo",
        "allowLoopback": "true",
        "journalDirectories": data / "journal",
        "ledgerDirectories": data / "ledgers",
        "enableStatistics": "false",
        "httpServerEnabled": "false",
        "extraServerComponents": "",
        "diskUsageThreshold": 0.99,
        "diskUsageWarnThreshold": 0.99,
        "journalMaxGroupWaitMSec": 1,
        "journalPreAllocSizeMB": 4,
        "journalMaxMemorySizeMb": 16,
        "journalMaxBackups": 0,
        "numAddWorkerThreads": 1,
        "numReadWorkerThreads": 2,
        "numHighPriorityWorkerThreads": 2,
        "serverNumIOThreads": 2,
        "allocatorPoolingConcurrency": 2,
        "nettyMaxFrameSizeBytes": 5_253_120,
        "gcWaitTime": 10_000,
        "verifyMetadataOnGC": "true",
        "zkTimeout": 10_000,
        "ledgerStorageClass": "org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage",
        "dbStorage_writeCacheMaxSizeMb": 24,
        "dbStorage_readAheadCacheMaxSizeMb": 16,
        "dbStorage_rocksDB_blockCacheSize": 4_194_304,
        "dbStorage_rocksDB_writeBufferSizeMB": 4,
        "digestType": "CRC32C",
        **(more or {}),
    }
    data.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f"{key}={value}\n" for key, value in values.items()))


class BookieProcesses:
    """A region's bookies. The caller has to ``stop`` them; their data stays for the next start."""

    def __init__(self, directory: Path, etcd: str, jars: Path) -> None:
        self._directory = directory
        self._etcd = etcd
        self._jars = jars
        self._processes: dict[int, asyncio.subprocess.Process] = {}
        self._ports: dict[int, int] = {}

    @classmethod
    async def start(cls, directory: Path, etcd: str, count: int, jars: Path = JARS) -> Self:
        """Start them on loopback, on free ports, and wait until each is registered. Prints nothing.

        :param etcd: URL of the region's etcd, which needs no password. Bookies belong to one etcd for life.
        :raises BookiesFailed: there is no Java, there are no jars, or one does not come up; with the end of its log.
        """
        if (why := await asyncio.to_thread(missing, jars)) is not None:
            raise BookiesFailed(why)
        directory.mkdir(parents=True, exist_ok=True)
        bookies = cls(directory, etcd, jars)
        try:
            await bookies._begin(count)
        except BaseException:
            await bookies.stop()
            raise
        return bookies

    async def _begin(self, count: int) -> None:
        from meridian_broker.engines.bookkeeper.registered import Registrations  # gRPC: only where etcd is used

        registrations = Registrations(self._etcd)
        try:
            await registrations.make_root()
            for number in range(1, count + 1):
                await self._spawn(number)
            deadline = time.monotonic() + READY_SECONDS
            while waiting := self._missing(await registrations.writable()):
                for number, process in list(self._processes.items()):
                    await self._look_after(number, process)
                if time.monotonic() > deadline:
                    why = f"bookie {waiting[0]} is not registered after {READY_SECONDS:.0f} s"
                    raise BookiesFailed(f"{why}\n{self._log_end(waiting[0])}")
                await asyncio.sleep(_POLL_SECONDS)
        finally:
            await registrations.close()

    def _missing(self, registered: set[str]) -> list[int]:
        """Bookies that are not up yet. A registration may be left over from an earlier process, so each must listen,
        too."""
        return [
            number for number in self._processes if _id(number) not in registered or not _listens(self._ports[number])
        ]

    async def _spawn(self, number: int) -> None:
        self._ports[number] = _free_port()
        file = self._directory / f"bookie-{number}.conf"
        configure(
            file, self._directory / f"bookie-{number}", self._etcd, self._ports[number], {"bookieId": _id(number)}
        )
        program = bookie(self._jars, file, leaves_archive=number == 1)
        with self._log(number).open("wb") as log:
            self._processes[number] = await asyncio.create_subprocess_exec(
                *lifeline.command(os.getpid(), program),
                cwd=self._directory,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    async def _look_after(self, number: int, process: asyncio.subprocess.Process) -> None:
        """Fail if the process has ended; restart it if it gave up its registration."""
        if process.returncode is not None:
            raise BookiesFailed(f"bookie {number} exited with code {process.returncode}\n{self._log_end(number)}")
        if UNREGISTERED in await asyncio.to_thread(self._log(number).read_text, errors="replace"):
            process.kill()
            await process.wait()
            await self._spawn(number)

    def pid(self, number: int) -> int:
        """:param number: from 1 on."""
        return self._processes[number].pid

    async def stop(self) -> None:
        """Stop all of them, after ``STOP_SECONDS`` by force."""
        for process in self._processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
        await asyncio.gather(*map(_ended, self._processes.values()))

    def _log(self, number: int) -> Path:
        return self._directory / f"bookie-{number}.log"

    def _log_end(self, number: int) -> str:
        lines = self._log(number).read_text(errors="replace").splitlines()[-_LOG_LINES:]
        return "\n".join([f"the end of {self._log(number)}:", *(f"    {line}" for line in lines)])


async def _ended(process: asyncio.subprocess.Process) -> None:
    try:
        await asyncio.wait_for(process.wait(), STOP_SECONDS)
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def _id(number: int) -> str:
    """It stays the same when the port changes, so that a bookie finds its data again."""
    return f"bookie-{number}"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True
