# SPDX-License-Identifier: Apache-2.0
"""Two processes of the operator on one Kubernetes API: one acts, and the other takes over when it dies or hangs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.brokers.broker_process import http, wait_until
from support.brokers.free_ports import free_port
from support.kubernetes.kube_api import KubeApi


class Replica:
    """One process, known to the API server by its token."""

    def __init__(self, name: str, api: KubeApi, directory: Path) -> None:
        self.name = name
        self._api = api
        directory.mkdir(exist_ok=True)
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

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def log(self) -> str:
        return self._log.read_text()

    def measures(self, line: str) -> bool:
        """Whether its metrics include this. Waits for the port to be open."""
        try:
            return line in http("GET", f"http://127.0.0.1:{self._port}/metrics").text.splitlines()
        except OSError:
            return False

    @property
    def writes(self) -> list[float]:
        """Times at which it wrote something other than the Lease."""
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
    """Two replicas; the first holds the Lease."""
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
    """An object that causes a write: it may not rule its topic, and its status says so."""
    api.create("geotopics", name, spec={"topic": f"persistent://public/default/{name}", "regions": ["east", "west"]})


def told(api: KubeApi, name: str) -> None:
    """Wait until a replica has written its status."""
    wait_until(lambda: api.condition("geotopics", name), f"{name} to have a status", 120)


@pytest.mark.timeout(300)
def test_another_replica_takes_over_from_one_that_hangs_and_from_one_that_dies(tmp_path: Path) -> None:
    """In two clusters at once, because it takes until a Lease has expired."""
    with (
        KubeApi() as one,
        KubeApi() as other,
        replicas(one, tmp_path / "hangs") as (hanging, second),
        replicas(other, tmp_path / "dies") as (dying, heir),
    ):
        for api, acting, standing_by in ((one, hanging, second), (other, dying, heir)):
            topic(api, "before")
            told(api, "before")
            wait_until(
                lambda acting=acting: acting.measures("meridian_operator_acting 1.0"),
                "the replica to report that it acts",
            )
            assert acting.writes and not standing_by.writes
        hanging.process.send_signal(signal.SIGSTOP)
        dying.process.kill()
        for api, standing_by in ((one, second), (other, heir)):
            topic(api, "after")
            told(api, "after")
            assert standing_by.writes
        objects = 'meridian_operator_objects{kind="GeoTopic",ready="False",reason="TenantNotAllowed"} 2.0'
        wait_until(lambda: heir.measures(objects), "the metrics to know both objects")

        # Like a suspended machine that resumes.
        before = len(hanging.writes)
        hanging.process.send_signal(signal.SIGCONT)
        assert hanging.process.wait(60) == 1, "Kubernetes restarts it"
        assert "lost the Lease" in hanging.log()
        assert len(hanging.writes) == before
        assert max(hanging.writes) < min(second.writes), "the two never act together"

        heir.process.terminate()
        wait_until(lambda: holder(other) == "", "the Lease to be released, so that the next replica need not wait")
        assert heir.process.wait(60) == 0
        assert "lost" not in heir.log()
