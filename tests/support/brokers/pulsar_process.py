# SPDX-License-Identifier: Apache-2.0
"""A real Apache Pulsar on loopback, for tests: broker, bookie and metadata store in one process. `scripts/pulsar`
fetches it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Self

from support.brokers.broker_process import HttpAnswer, KilledAtExit, http, wait_until
from support.brokers.free_ports import free_port

START_SECONDS: Final = 180.0
PULSAR: Final = Path(__file__).parents[2] / "interop" / "apache"
"""Its pom.xml, the checksums of its jars, and how it logs."""
JARS: Final = Path(sys.prefix) / "libexec" / "pulsar"
_OPENED: Final = (
    "java.base/java.lang",
    "java.base/java.nio",
    "java.base/java.util.zip",
    "java.base/jdk.internal.misc",
    "java.base/jdk.internal.platform",
    "java.base/sun.net",
    "java.management/sun.management",
    "jdk.management/com.sun.management.internal",
)
"""Packages that Pulsar accesses by reflection."""
_SMALL: Final = {
    "metadataStoreUrl": "",
    "configurationMetadataStoreUrl": "",
    "managedLedgerDefaultEnsembleSize": "1",
    "managedLedgerDefaultWriteQuorum": "1",
    "managedLedgerDefaultAckQuorum": "1",
    "managedLedgerCacheSizeMB": "32",
    "dbStorage_writeCacheMaxSizeMb": "32",
    "dbStorage_readAheadCacheMaxSizeMb": "16",
    "nettyMaxFrameSizeBytes": "5253120",
    "diskUsageThreshold": "0.99",
    "diskUsageWarnThreshold": "0.99",
    "allowLoopback": "true",
    "loadBalancerEnabled": "false",
    "loadManagerClassName": "org.apache.pulsar.broker.loadbalance.NoopLoadManager",
    "defaultNumberOfNamespaceBundles": "4",
    "transactionCoordinatorEnabled": "false",
    "webSocketServiceEnabled": "false",
    "brokerDeleteInactiveTopicsEnabled": "false",
    "enableReplicatedSubscriptions": "true",
}


def jars() -> Path:
    """Where Pulsar's jars are, or would be; MERIDIAN_PULSAR overrides it."""
    return Path(os.environ.get("MERIDIAN_PULSAR") or JARS)


def pulsar_missing() -> str | None:
    """Why Pulsar cannot run here; None when it can."""
    if shutil.which("java") is None:
        return "java is not installed"
    return None if any(jars().glob("pulsar-broker-*.jar")) else f"Pulsar is not in {jars()}: run scripts/pulsar"


def java(*options: str) -> list[str]:
    """The command that runs one of its programs, without the class and its arguments."""
    options = ("-Xms256m", "-Xmx512m", "-XX:MaxDirectMemorySize=512m", "-Xshare:auto", *options)
    opened = [f"--add-opens={package}=ALL-UNNAMED" for package in _OPENED]
    logs = ["-Dlog4j2.disable.jmx=true", f"-Dlog4j2.configurationFile={PULSAR / 'log4j2.xml'}"]
    return ["java", *options, *opened, *logs, "-cp", f"{jars()}/*"]


class PulsarProcess(KilledAtExit):
    """One cluster, whose ports and data survive restarts. Use it as a context manager."""

    def __init__(
        self, cluster: str, directory: Path, *, settings: Mapping[str, str] | None = None, token: str | None = None
    ) -> None:
        """
        :param settings: additional ones, by key.
        :param token: sent with requests to its admin port.
        """
        self.cluster = cluster
        self.port, self.http_port, self._bookie_port = free_port(), free_port(), free_port()
        self.service_url = f"pulsar://127.0.0.1:{self.port}"
        self.admin_url = f"http://127.0.0.1:{self.http_port}"
        self._directory = directory
        self._settings = dict(settings or {})
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        """Start it, and wait until it answers."""
        assert self._process is None, f"{self.cluster} is already running"
        self._directory.mkdir(parents=True, exist_ok=True)
        chosen = {
            "clusterName": self.cluster,
            "brokerServicePort": str(self.port),
            "webServicePort": str(self.http_port),
            "bindAddress": "127.0.0.1",
            "advertisedAddress": "127.0.0.1",
        }
        config = self._directory / "standalone.conf"
        lines = (_SMALL | chosen | self._settings).items()
        config.write_text("".join(f"{key}={value}\n" for key, value in lines), encoding="utf-8")
        places = ["--metadata-dir", str(self._directory / "metadata")]
        places += ["--bookkeeper-dir", str(self._directory / "bookkeeper")]
        places += ["--bookkeeper-port", str(self._bookie_port)]
        main = ["org.apache.pulsar.PulsarStandaloneStarter", "-c", str(config), "-nfw", "-nss", "-a", "127.0.0.1"]
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*java("-XX:TieredStopAtLevel=1"), *main, *places],
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self._directory,
            )
        wait_until(self._answers, f"{self.cluster} to answer", START_SECONDS)
        return self

    def _answers(self) -> bool:
        assert self._process is not None
        code = self._process.poll()
        assert code is None, f"{self.cluster} ended with {code}:\n{self.log()[-8000:]}"
        try:
            return self.http("GET", "/admin/v2/namespaces/public/default").status == 200
        except OSError:
            return False

    def kill(self) -> None:
        """SIGKILL."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    @contextlib.contextmanager
    def hanging(self) -> Iterator[None]:
        """SIGSTOP: its connections stay open, but nothing answers."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def http(self, method: str, path: str, body: Any = ...) -> HttpAnswer:
        """One request to its admin port."""
        return http(method, self.admin_url + path, body, headers=self._headers)

    def log(self) -> str:
        """Its log so far, over all starts."""
        file = self._directory / "log"
        return file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""
