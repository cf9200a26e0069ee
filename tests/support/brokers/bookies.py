# SPDX-License-Identifier: Apache-2.0
"""Real bookies with an etcd of their own, for tests. `scripts/bookkeeper` fetches them."""

from __future__ import annotations

import base64
import json
import os
import signal
import socket
import subprocess
import urllib.request
import uuid
from pathlib import Path
from typing import Any, Final

from meridian_broker.engines.bookkeeper.certificates import BookieTls
from meridian_broker.server.bookie_process import JARS, UNREGISTERED, bookie, configure, java, missing
from support.brokers.broker_process import wait_until
from support.brokers.certificates import Authority
from support.brokers.etcd_server import EtcdServer, etcd_missing
from support.brokers.free_ports import free_port

START_SECONDS: Final = 300.0
SERVING: Final = "Started component bookie-server"
"""In the log of a bookie that serves."""
SHELL: Final = "org.apache.bookkeeper.bookie.BookieShell"


def jars() -> Path:
    """Where BookKeeper's jars are, or would be; MERIDIAN_BOOKKEEPER overrides it."""
    return Path(os.environ.get("MERIDIAN_BOOKKEEPER") or JARS)


def java_compiler_missing() -> str | None:
    """Why Java sources cannot be run here; None when they can."""
    modules = subprocess.run(["java", "--list-modules"], capture_output=True, text=True, check=False).stdout
    return None if "jdk.compiler" in modules else "this Java has no compiler"


def bookies_missing() -> str | None:
    """Why tests with bookies cannot run here; None when they can."""
    return missing(jars()) or etcd_missing()


class Bookies:
    """An etcd, and bookies numbered from 1, with certificates and small caches and journals (a few MiB)."""

    def __init__(self, directory: Path, count: int, role: str = "") -> None:
        """:param role: bookies accept only clients whose certificates have it, and no plain text."""
        self._directory = directory
        self._ports: dict[int, int] = {}
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        authority = Authority(directory, "bookies")
        server, client = authority.issue("bookie"), authority.issue("client", unit=f"0:{role}" if role else None)
        self.tls = BookieTls(authority.trusted, client.certificate, client.key)
        """For clients that want encryption; unless there is a role, the bookies accept clients without it, too."""
        self._certificates = {
            "tlsProviderFactoryClass": "org.apache.bookkeeper.tls.TLSContextFactory",
            "tlsProvider": "OpenSSL",
            "tlsClientAuthentication": "true",
            "tlsKeyStoreType": "PEM",
            "tlsKeyStore": server.key,
            "tlsCertificatePath": server.certificate,
            "tlsTrustStoreType": "PEM",
            "tlsTrustStore": authority.trusted,
        }
        if role:
            self._certificates |= {
                "bookieAuthProviderFactoryClass": "org.apache.bookkeeper.tls.BookieAuthZFactory",
                "authorizedRoles": role,
            }
        self.authority = authority
        (directory / "etcd").mkdir(parents=True)
        self.etcd = EtcdServer(directory / "etcd")
        self.url = self.etcd.url
        try:
            self._format()
            for number in range(1, count + 1):
                self.start(number, wait=False)
            self.until_registered()
        except BaseException:
            self.close()
            raise

    def _format(self) -> None:
        """Write the keys that the first bookie expects in etcd."""
        for key, value in (("/ledgers", ""), ("/ledgers/INSTANCEID", str(uuid.uuid4()))):
            self._etcd("put", key=_base64(key), value=_base64(value))

    def start(self, number: int, *, wait: bool = True) -> None:
        """Start a bookie, on the data and the port that it had before."""
        self._ports.setdefault(number, free_port())
        with (self._directory / f"bookie-{number}.log").open("wb") as log:
            self._processes[number] = subprocess.Popen(
                bookie(jars(), self._configuration(number), leaves_archive=number == 1 and _is_first_process()),
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self._directory,
            )
        if wait:
            self._await(number)

    def kill(self, number: int) -> None:
        """SIGKILL."""
        self._processes[number].kill()
        self._processes[number].wait()

    def pause(self, number: int) -> None:
        """SIGSTOP: connections stay open, and nothing answers."""
        self._processes[number].send_signal(signal.SIGSTOP)

    def resume(self, number: int) -> None:
        self._processes[number].send_signal(signal.SIGCONT)

    def until_registered(self) -> None:
        """Wait until all bookies are usable; after an outage of etcd they register again."""
        for number in self._ports:
            self._await(number)

    def name(self, number: int) -> str:
        """The bookie's id in etcd."""
        return f"127.0.0.1:{self._ports[number]}"

    def number(self, name: str) -> int:
        return next(number for number in self._ports if self.name(number) == name)

    def keys(self, prefix: str) -> int:
        """How many keys in etcd have this prefix."""
        end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
        return int(self._etcd("range", key=_base64(prefix), range_end=_base64(end)).get("count", 0))

    def delete_key(self, end: str) -> None:
        """Delete the key in etcd that ends with this."""
        every = self._etcd("range", key=_base64("\0"), range_end=_base64("\0"), keys_only=True)["kvs"]
        (found,) = [one["key"] for one in every if base64.b64decode(one["key"]).decode().endswith(end)]
        self._etcd("deleterange", key=found)

    def ledgers(self) -> int:
        """How many ledgers there are."""
        return sum(self.keys(f"/ledgers/{digit}") for digit in range(10))

    def shell(self, *arguments: str) -> str:
        """Run BookKeeper's own shell, and return what it prints."""
        command = [*java(jars()), SHELL, "-conf", str(self._configuration(1)), *arguments]
        ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=self._directory)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    def java_writer(self, entries: int) -> list[int]:
        """Ledgers that BookKeeper's own client wrote: see `JavaWriter.java`."""
        source = Path(__file__).with_name("JavaWriter.java")
        command = [*java(jars()), str(source), f"metadata-store:etcd:{self.url}", str(entries)]
        ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=self._directory)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return [int(line.split()[1]) for line in ended.stdout.splitlines() if line.startswith("ledger ")]

    def close(self) -> None:
        for number, process in self._processes.items():
            process.send_signal(signal.SIGCONT)
            if number == 1 and _is_first_process() and not _archive().exists():
                process.terminate()  # it writes the archive
            else:
                process.kill()
            process.wait()
        self.etcd.close()

    def _await(self, number: int) -> None:
        """Wait until it listens and is registered. The registration of its previous run may still exist."""

        def is_up() -> bool:
            log = (self._directory / f"bookie-{number}.log").read_text()
            assert self._processes[number].poll() is None, log
            if UNREGISTERED in log:
                self.kill(number)
                self.start(number, wait=False)
            if SERVING not in log:
                return False  # it closes earlier connections
            try:
                socket.create_connection(("127.0.0.1", self._ports[number]), 1).close()
            except OSError:
                return False
            found = self._etcd("range", key=_base64(f"/ledgers/available/{self.name(number)}"))
            return found.get("count") == "1"

        wait_until(is_up, f"bookie {number} to start", START_SECONDS)

    def _etcd(self, verb: str, **request: str | bool) -> dict[str, Any]:
        """Call etcd over HTTP, because gRPC wants one event loop for the whole process."""
        asked = urllib.request.Request(f"{self.url}/v3/kv/{verb}", json.dumps(request).encode())
        with urllib.request.urlopen(asked, timeout=10) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def _configuration(self, number: int) -> Path:
        path = self._directory / f"bookie-{number}.conf"
        configure(path, self._directory / f"bookie-{number}", self.url, self._ports[number], self._certificates)
        return path


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _is_first_process() -> bool:
    """Whether this is the first test process: two would write the archive at the same time."""
    return os.environ.get("PYTEST_XDIST_WORKER", "gw0") == "gw0"


def _archive() -> Path:
    """The archive of parsed classes: bookies start three times as fast. The first one writes it when it stops."""
    return jars() / "bookie.jsa"
