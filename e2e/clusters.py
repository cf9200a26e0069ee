# SPDX-License-Identifier: Apache-2.0
"""A Kubernetes cluster as the tests use it: kubectl and helm, what they print, and how long each took."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from kubernetes import config
from kubernetes.dynamic import DynamicClient
from kubernetes.dynamic.exceptions import NotFoundError

ROOT: Final = Path(__file__).parent.parent
NAMESPACES: Final = ("us-east", "us-west", "eu-central", "meridian-system", "meridian-verifier")
KINDS: Final = {
    "geotopic": ("meridian.dev/v1alpha1", "GeoTopic"),
    "replicatedsubscription": ("meridian.dev/v1alpha1", "ReplicatedSubscription"),
    "metadatasyncpolicy": ("meridian.dev/v1alpha1", "MetadataSyncPolicy"),
    "configmap": ("v1", "ConfigMap"),
    "job": ("batch/v1", "Job"),
}
POLL_SECONDS: Final = 0.5
"""A check costs 0.1 to 0.2 s of processor time, which the thing that is waited for may need."""
PATIENCE_SECONDS: Final = 300
"""How long to wait for what must come. Part of it may be a minute and a half until the kubelet looks at a Secret again,
and two attempts of a client, which waits up to a minute between them."""
TOOK: Final[list[tuple[float, str]]] = []
"""Each command and wait so far, with its seconds."""


@contextmanager
def timed(what: str) -> Iterator[None]:
    """Record how long something takes."""
    began = time.monotonic()
    try:
        yield
    finally:
        TOOK.append((time.monotonic() - began, what))


class Cluster:
    """kubectl and helm, pointed at the cluster."""

    def __init__(self, environment: dict[str, str], directory: Path) -> None:
        self.environment = environment
        self.directory = directory
        """Where commands run: a copy of the checkout's top level, so that they do not write into the checkout."""
        config_file = environment["KUBECONFIG"]
        self._api = DynamicClient(config.new_client_from_config(config_file))  # type: ignore[no-untyped-call]

    def run(self, command: str, seconds: float = PATIENCE_SECONDS + 30) -> str:
        """Run a line of shell, as a person would type it. A failure shows its output."""
        with timed(f"$ {command}"):
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

    def wait(self, condition: Callable[[], Any], what: str, seconds: float = PATIENCE_SECONDS) -> Any:
        """Wait for the first true value of ``condition()``, and return it.

        :param seconds: shorter than the default only where the bound itself says something.
        """
        until = time.monotonic() + seconds
        with timed(f"waited for {what}"):
            while not (value := condition()):
                assert time.monotonic() < until, f"waited {seconds:.0f} s in vain for {what}\n{self.diagnosis()}"
                time.sleep(POLL_SECONDS)
        return value

    def diagnosis(self) -> str:
        """What a person would look at first."""
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


def empty(cluster: Cluster) -> None:
    """Remove what an earlier, perhaps interrupted, run left behind."""
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
    cluster.run(f"kubectl delete namespace {' '.join(NAMESPACES)} team-x stranger --ignore-not-found --timeout=300s")
    cluster.run("kubectl get crd -o name | { grep meridian.dev || true; } | xargs -r kubectl delete")
