# SPDX-License-Identifier: Apache-2.0
"""Two clusters of Apache Pulsar, two regions of Meridian, and namespaces that pairs of them replicate to each other."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clusters import Cluster
from processes import Regions
from support.brokers.pulsar_process import PulsarProcess

TENANT = "pairs"
PULSAR, MERIDIAN = "pulsar", "meridian"
NAMES = {PULSAR: ("apache-a", "apache-b"), MERIDIAN: ("meridian-a", "meridian-b")}
RECORD_SECONDS = 30.0


@dataclass(frozen=True)
class Pair:
    """The cluster that a consumer leaves and the one where it continues."""

    name: str
    source: str
    target: str
    mode: str = "snapshot"
    """Two Meridian regions support both modes."""

    @property
    def kinds(self) -> tuple[str, str]:
        return self.source, self.target

    @property
    def clusters(self) -> tuple[str, str]:
        """Names of the two: the second of a kind is needed only beside the first."""
        return NAMES[self.source][0], NAMES[self.target][self.source == self.target]

    @property
    def namespace(self) -> str:
        return f"{TENANT}/{self.name}"


PAIRS = {
    pair.name: pair
    for pair in (
        Pair("pulsar-pulsar", PULSAR, PULSAR),
        Pair("meridian-pulsar", MERIDIAN, PULSAR),
        Pair("pulsar-meridian", PULSAR, MERIDIAN),
        Pair("meridian-meridian", MERIDIAN, MERIDIAN),
        Pair("meridian-meridian-exact", MERIDIAN, MERIDIAN, mode="exact"),
    )
}


class Clusters:
    """The running clusters that some pairs need, each pair's namespace in both of its clusters. A context manager."""

    def __init__(self, directory: Path, pairs: Iterable[Pair]) -> None:
        self._directory = directory
        self._pairs = list(pairs)
        self._stack = ExitStack()
        self._clusters: dict[str, Cluster] = {}

    def __enter__(self) -> Clusters:
        with ExitStack() as stack:
            needed = sorted({name for pair in self._pairs for name in pair.clusters})
            for name in needed:
                if name in NAMES[PULSAR]:
                    self._clusters[name] = _pulsar(stack.enter_context(PulsarProcess(name, self._directory / name)))
            if any(name in NAMES[MERIDIAN] for name in needed):
                regions = stack.enter_context(Regions(self._directory / "meridian", *NAMES[MERIDIAN]))
                self._clusters |= {name: _meridian(regions, name) for name in NAMES[MERIDIAN]}
            self._introduce()
            for pair in self._pairs:
                self._link(pair)
            self._stack = stack.pop_all()
        return self

    def of(self, pair: Pair) -> tuple[Cluster, Cluster]:
        """The one that is left, and the one that goes on."""
        source, target = pair.clusters
        return self._clusters[source], self._clusters[target]

    def _introduce(self) -> None:
        """Tell each how to reach those with which it shares a pair; Meridian regions know each other."""
        neighbours: dict[str, set[str]] = {name: {name} for name in self._clusters}
        for pair in self._pairs:
            for name in pair.clusters:
                neighbours[name] |= set(pair.clusters)
        for name, others in neighbours.items():
            here = self._clusters[name]
            for other in sorted(others - {name}):
                there, kind = self._clusters[other], PULSAR if other in NAMES[PULSAR] else MERIDIAN
                if name in NAMES[MERIDIAN] and kind == MERIDIAN:
                    continue
                record = {"serviceUrl": there.admin_url, "brokerServiceUrl": there.service_url}
                known = {} if name in NAMES[PULSAR] else {"kind": kind}
                ask(here, "PUT", f"clusters/{other}", record | known)
            ask(here, "PUT", f"tenants/{TENANT}", {"allowedClusters": sorted(others)})

    def _link(self, pair: Pair) -> None:
        for name in pair.clusters:
            here = self._clusters[name]
            space = f"namespaces/{pair.namespace}"
            ask(here, "PUT", space, {"replication_clusters": sorted(set(pair.clusters))})
            here.keep_everything(pair.namespace)
            if name in NAMES[PULSAR]:
                ask(here, "POST", f"{space}/deduplication", True)
            elif pair.kinds == (MERIDIAN, MERIDIAN):
                ask(here, "POST", f"{space}/subscriptionSync", pair.mode)

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def ask(cluster: Cluster, method: str, path: str, body: Any) -> None:
    """One request to ``/admin/v2``; what exists already is as well. Regions of Meridian share some of what is set in
    one of them, and may learn it late: 404 is asked again.

    :raises SystemExit: it is refused.
    """
    until = time.monotonic() + RECORD_SECONDS
    while True:
        request = urllib.request.Request(
            f"{cluster.admin_url}/admin/v2/{path}",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
            method=method,
        )
        try:
            with urllib.request.urlopen(request, timeout=30):
                return
        except urllib.error.HTTPError as refused:
            said = refused.read().decode(errors="replace")
            if refused.code == 409:
                return
            if refused.code != 404 or time.monotonic() > until:
                raise SystemExit(f"bench: {cluster.name} refused {method} {path}: {refused.code} {said}") from None
        time.sleep(0.1)


def _pulsar(process: PulsarProcess) -> Cluster:
    def bring_back() -> None:
        process.start()

    return Cluster(process.cluster, process.service_url, process.admin_url, process.kill, bring_back)


def _meridian(regions: Regions, name: str) -> Cluster:
    listed = regions.listed[name]

    def kill() -> None:
        regions.kill(name)

    return Cluster(name, listed["service_url"], listed["admin_url"], kill, lambda: regions.bring_back(name))
