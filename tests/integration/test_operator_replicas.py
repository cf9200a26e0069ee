# SPDX-License-Identifier: Apache-2.0
"""Two processes of the operator on one Kubernetes API: one acts, and the other takes over when it dies or hangs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.brokers.broker_process import http, wait_until
from support.brokers.free_ports import free_port
from support.kubernetes.kube_api import KubeApi

TAKEOVER_SECONDS = 20.0
"""From the death of the replica that acts to the first write of the other one."""


class Replica:
    """One process, known to the API server by its token."""

    def __init__(self, name: str, api: KubeApi, directory: Path) -> None:
        self.name = name
        self._api = api
        self._config = directory / f"{name}.kubeconfig"
        self._config.write_text(json.dumps(_kubeconfig(api.port, name)))
        self._log = directory / f"{name}.log"
        self._port = free_port()
        self.process = self._started()

    def _started(self) -> subprocess.Popen[bytes]:
        module = (sys.executable, "-P", "-m", "meridian_operator.main")
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [*module, "--lease=meridian-system/operator", f"--port={self._port}"],
                env=os.environ | {"KUBECONFIG": str(self._config)},
                stdout=log,
                stderr=log,
            )

    def again(self) -> None:
        """Start it after it ended."""
        self.process = self._started()

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def log(self) -> str:
        return self._log.read_text()

    def measures(self, line: str) -> bool:
        """Is this among its metrics? Waits for the port to be open."""
        try:
            return line in http("GET", f"http://127.0.0.1:{self._port}/metrics").text.splitlines()
        except OSError:
            return False

    @property
    def writes(self) -> list[float]:
        """When it wrote something other than the Lease."""
        return [when for token, _, when in list(self._api.writes) if token == f"Bearer {self.name}"]


def _kubeconfig(port: int, token: str) -> dict[str, Any]:
    return {
        "current-context": "it",
        "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
        "clusters": [{"name": "it", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "it", "user": {"token": token}}],
    }


@contextmanager
def replicas(api: KubeApi, directory: Path) -> Iterator[tuple[Replica, Replica]]:
    """Two; the first holds the Lease."""
    first = Replica("first", api, directory)
    try:
        wait_until(lambda: holder(api), "the first replica to hold the Lease")
        second = Replica("second", api, directory)
        try:
            wait_until(lambda: second.measures("meridian_operator_acting 0.0"), "the second replica to stand by")
            yield first, second
        finally:
            second.end()
    finally:
        first.end()


def holder(api: KubeApi) -> str:
    lease = api.get("leases", "operator", "meridian-system") or {"spec": {}}
    return str(lease["spec"].get("holderIdentity", ""))


def topic(api: KubeApi, name: str) -> None:
    """An object that leads to a write: it has no say over its topic."""
    api.create("geotopics", name, spec={"topic": f"persistent://public/default/{name}", "regions": ["east", "west"]})


def told(api: KubeApi, name: str) -> None:
    """Wait for somebody to write its status."""
    wait_until(lambda: api.condition("geotopics", name), f"{name} to have a status", TAKEOVER_SECONDS + 10)


@pytest.mark.timeout(180)
def test_one_replica_acts_and_another_takes_over(tmp_path: Path) -> None:
    with KubeApi() as api, replicas(api, tmp_path) as (first, second):
        topic(api, "one")
        told(api, "one")
        wait_until(lambda: first.measures("meridian_operator_acting 1.0"), "the first replica to say that it acts")
        assert first.writes and not second.writes

        # It hangs, as in a machine that is suspended: the other acts, and this one does not when it goes on.
        first.process.send_signal(signal.SIGSTOP)
        topic(api, "two")
        told(api, "two")
        assert second.writes
        before = len(first.writes)
        first.process.send_signal(signal.SIGCONT)
        assert first.process.wait(30) == 1, "Kubernetes starts it again"
        assert "the Lease is lost" in first.log()
        assert len(first.writes) == before
        assert max(first.writes) < min(second.writes), "never both"

        first.again()
        wait_until(lambda: first.measures("meridian_operator_acting 0.0"), "the first replica to stand by")
        second.process.kill()
        killed = time.monotonic()
        topic(api, "three")
        told(api, "three")
        assert min(when for when in first.writes if when > killed) - killed < TAKEOVER_SECONDS
        assert first.measures('meridian_operator_objects{kind="GeoTopic",ready="False",reason="TenantNotAllowed"} 3.0')

        first.process.terminate()
        wait_until(lambda: holder(api) == "", "the Lease to be free: the next one need not wait")
        assert first.process.wait(30) == 0
        assert "lost" not in first.log().rpartition("standing by")[2]
