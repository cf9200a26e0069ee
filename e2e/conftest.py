# SPDX-License-Identifier: Apache-2.0
"""A real Kubernetes cluster, with nothing of ours in it when the tests begin.

Which cluster: see ``e2e/cluster``. Set ``E2E_KEEP=1`` to look around after a failure.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes import config
from kubernetes.dynamic import DynamicClient
from kubernetes.dynamic.exceptions import NotFoundError

ROOT = Path(__file__).parent.parent
NAMESPACES = ("us-east", "us-west", "eu-central", "meridian-system", "meridian-verifier")
KINDS = {
    "geotopic": ("meridian.dev/v1alpha1", "GeoTopic"),
    "replicatedsubscription": ("meridian.dev/v1alpha1", "ReplicatedSubscription"),
    "metadatasyncpolicy": ("meridian.dev/v1alpha1", "MetadataSyncPolicy"),
    "configmap": ("v1", "ConfigMap"),
    "job": ("batch/v1", "Job"),
}
NO_CLUSTER = 2
MEASURED = pytest.StashKey[list[str]]()


class Cluster:
    """kubectl and helm, pointed at the cluster."""

    def __init__(self, environment: dict[str, str], directory: Path) -> None:
        self.environment = environment
        self.directory = directory
        """Where commands run: a copy of the checkout's surface, so that what they write does not land in it."""
        config_file = environment["KUBECONFIG"]
        self._api = DynamicClient(config.new_client_from_config(config_file))  # type: ignore[no-untyped-call]

    def run(self, command: str, seconds: float = 300) -> str:
        """A line of shell, as a person would type it. A failure shows what it said."""
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command],
            cwd=self.directory,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=seconds,
        )
        assert done.returncode == 0, f"{command}\nexit {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        return done.stdout

    def get(self, what: str, namespace: str = "default") -> Any:
        """One object, ``kind/name``, as a mapping; None when there is none."""
        kind, name = what.split("/")
        version, kind = KINDS[kind]
        try:
            return self._api.resources.get(api_version=version, kind=kind).get(name=name, namespace=namespace).to_dict()
        except NotFoundError:
            return None

    def condition(self, what: str, kind: str, namespace: str = "default") -> dict[str, Any]:
        """A condition of an object; empty when it has none."""
        found = self.get(what, namespace) or {}
        conditions = found.get("status", {}).get("conditions", [])
        return next((one for one in conditions if one["type"] == kind), {})

    def wait(self, condition: Callable[[], Any], what: str, seconds: float = 120) -> Any:
        """The first true value of ``condition()``."""
        until = time.monotonic() + seconds
        while not (value := condition()):
            assert time.monotonic() < until, f"waited {seconds:.0f} s in vain for {what}\n{self.diagnosis()}"
            time.sleep(1)
        return value

    def diagnosis(self) -> str:
        """What somebody would look at first."""
        told = []
        for command in (
            "kubectl get pods -A",
            "kubectl get meridian -A -o wide",
            "kubectl -n meridian-system logs deploy/operator --tail=30",
            "kubectl -n us-west logs statefulset/meridian-broker --tail=30",
            "kubectl -n us-east logs -l app.kubernetes.io/component=broker -c broker --prefix --tail=30",
        ):
            done = subprocess.run(["bash", "-c", command], env=self.environment, capture_output=True, text=True)
            told.append(f"$ {command}\n{done.stdout}{done.stderr}")
        return "\n".join(told)[-12_000:]


def pytest_sessionstart() -> None:
    """Without a cluster there is nothing to test, and that is no success."""
    told = subprocess.run([ROOT / "e2e/cluster", "provider"], capture_output=True, text=True)
    if told.returncode:
        print(told.stderr, file=sys.stderr, end="")
        pytest.exit(told.stderr.strip(), returncode=NO_CLUSTER)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    was_up = subprocess.run([ROOT / "e2e/cluster", "running"]).returncode == 0
    subprocess.run([ROOT / "e2e/cluster", "up"], check=True, stdout=subprocess.DEVNULL, timeout=900)
    exported = subprocess.run(
        ["bash", "-c", f'eval "$({ROOT}/e2e/cluster env)"; env -0'], check=True, capture_output=True, text=True
    )
    environment = dict(pair.split("=", 1) for pair in exported.stdout.split("\0") if "=" in pair)
    directory = tmp_path_factory.mktemp("checkout")
    for name in (".venv", "e2e", "helm", "examples", "images", "crds", "broker", "operator", "verifier", "scripts"):
        (directory / name).symlink_to(ROOT / name)
    for name in ("Makefile", "requirements.lock", ".dockerignore", "LICENSE", "NOTICE"):
        (directory / name).symlink_to(ROOT / name)
    found = Cluster(environment, directory)
    empty(found)
    yield found
    if os.environ.get("E2E_KEEP"):
        return
    if was_up:
        empty(found)
    else:
        subprocess.run([ROOT / "e2e/cluster", "down"], check=True, timeout=120)


def empty(cluster: Cluster) -> None:
    """Take away what an earlier run, perhaps one that was cut off, has left."""
    kinds = "geotopics shadowtopics replicatedsubscriptions metadatasyncpolicies"
    cluster.run(
        f"for kind in {kinds}; do kubectl get crd $kind.meridian.dev >/dev/null 2>&1 || continue; "
        "kubectl delete $kind --all --all-namespaces --wait=false >/dev/null; "
        "kubectl get $kind -o name | xargs -r -n1 kubectl patch --type=merge "
        """-p '{"metadata":{"finalizers":null}}' || true; done"""  # an operator that still runs may be quicker
    )
    cluster.run(
        "helm list -A -q -f '^(meridian|operator|verifier)$' >/dev/null; "
        f"for namespace in {' '.join(NAMESPACES)}; do for release in $(helm list -q -n $namespace 2>/dev/null); do "
        "helm uninstall $release -n $namespace --wait=false >/dev/null; done; done",
    )
    cluster.run(
        f"kubectl delete namespace {' '.join(NAMESPACES)} team-x stranger --ignore-not-found --timeout=240s",
        seconds=300,
    )
    cluster.run("kubectl get crd -o name | { grep meridian.dev || true; } | xargs -r kubectl delete")


@pytest.fixture
def measured(pytestconfig: pytest.Config) -> Callable[[str], None]:
    """Takes a sentence with a figure, which the run shows at its end."""
    return pytestconfig.stash.setdefault(MEASURED, []).append


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """What was measured, one sentence a line."""
    for line in config.stash.get(MEASURED, []):
        terminalreporter.write_line(f"measured: {line}")
