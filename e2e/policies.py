# SPDX-License-Identifier: Apache-2.0
"""Who reaches which port of our pods, tried from inside pods: ours, and a stranger's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import pytest
from clusters import Cluster

STRANGER: Final = "stranger"
OURS: Final = ("us-east", "us-west", "eu-central", "meridian-system", "meridian-verifier")
PYTHON: Final = "/opt/meridian/bin/python"
"""The interpreter in the images of the broker and the operator."""

CONNECT: Final = """
import socket, sys
from concurrent.futures import ThreadPoolExecutor

def is_open(place):
    host, _, port = place.rpartition(":")
    try:
        socket.create_connection((host, int(port)), 3).close()
        return True
    except OSError:
        return False

with ThreadPoolExecutor(16) as pool:
    print(*[place for place, found in zip(sys.argv[1:], pool.map(is_open, sys.argv[1:])) if found])
"""

LOGINS: Final = """
import asyncio
from dataclasses import replace
from pathlib import Path
from meridian_broker.engines.etcd.address import ANONYMOUS
from meridian_broker.engines.etcd.metadata import EtcdMetadataStore
from meridian_broker.metadata.store import MetadataError
from meridian_broker.server.settings import load

async def enter(urls, region, login):
    try:
        await (await EtcdMetadataStore.connect(urls, "meridian/" + region, login=login)).close()
        return True
    except MetadataError:
        return False

async def main():
    settings = load(Path("/etc/meridian/config/broker.conf"), (), {})
    login, mine = settings.metadata.login, settings.metadata_store_url.removeprefix("etcd:")
    east = mine.replace("us-west", "us-east")
    unknown = replace(login, user="", password_file=None)
    print(await enter(mine, "us-west", login), *[
        await enter(*attempt) for attempt in (
            (mine, "us-west", unknown),
            (mine, "us-west", replace(ANONYMOUS, ca_file=login.ca_file)),
            (mine.replace("https", "http"), "us-west", ANONYMOUS),
            (east, "us-east", login),
        )
    ])

asyncio.run(main())
"""
"""Prints with which credentials the etcds of us-west and us-east let this broker in: its own, and incomplete ones."""


class Policies:
    """Finds out what pods reach."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        (cluster.directory / "connect.py").write_text(CONNECT)

    def reached(self, namespace: str, pod: str, places: list[str]) -> set[str]:
        """Those of the places, each an address with a port, that accept a connection.

        :param pod: as for ``kubectl exec``, with its container.
        """
        inside = f"kubectl -n {namespace} exec -i {pod} -- {PYTHON} -"
        return set(self.cluster.run(f"{inside} {' '.join(places)} < connect.py").split())

    def from_stranger(self, places: list[str]) -> set[str]:
        return self.reached(STRANGER, "visitor", places)

    def places(self, namespace: str, labels: str, *ports: int) -> list[str]:
        """Addresses, with these ports, of the running pods with these labels."""
        addresses = self.cluster.run(
            f"kubectl -n {namespace} get pods -l '{labels}' --field-selector status.phase=Running "
            "-o jsonpath='{.items[*].status.podIP}'"
        ).split()
        assert addresses, f"{namespace} has no pod {labels}"
        return [f"{address}:{port}" for address in addresses for port in ports]

    def apply(self, *objects: dict[str, Any]) -> None:
        made = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        (self.cluster.directory / "policies.json").write_text(json.dumps(made))
        self.cluster.run("kubectl apply -f policies.json")

    @contextmanager
    def stranger(self) -> Iterator[None]:
        """A namespace that is not ours, with a pod that visits others and one that is visited.

        Skips the test if the cluster does not enforce policies, found by one that allows nothing.
        """
        try:
            self.cluster.run("e2e/cluster enforce on", seconds=1800)
            self.cluster.run(f"kubectl create namespace {STRANGER}")
            account = f"kubectl -n {STRANGER} get serviceaccount default -o name --ignore-not-found"
            self.cluster.wait(lambda: self.cluster.run(account), "the namespace to have the account that its pods need")
            self.apply(_pod("visitor", "sleep infinity"), _pod("visited", f"exec {PYTHON} -m http.server 8000"))
            self.cluster.run(f"kubectl -n {STRANGER} wait --for=condition=Ready --timeout=300s pod/visitor pod/visited")
            [visited] = self.places(STRANGER, "name=visited", 8000)
            self.cluster.wait(lambda: self.from_stranger([visited]), "the visited pod to answer")
            self.apply(_deny_all())
            try:
                self.cluster.wait(
                    lambda: not self.from_stranger([visited]), "network policies to be in force", seconds=60
                )
            except AssertionError:
                pytest.skip("this cluster's network plug-in does not enforce NetworkPolicies")
            yield
        finally:
            self.cluster.run(f"kubectl delete namespace {STRANGER} --ignore-not-found --timeout=300s")
            self.cluster.run("e2e/cluster enforce off")

    def until_out(self, places: list[str]) -> None:
        """Wait until the stranger reaches none of these."""
        self.cluster.wait(lambda: not self.from_stranger(places), f"{places} to be closed to strangers")

    def until_reached(self, namespace: str, pod: str, places: list[str]) -> None:
        """Wait until a pod of ours reaches all of these."""
        found = partial(self.reached, namespace, pod, places)
        self.cluster.wait(lambda: found() == set(places), f"{pod} in {namespace} to reach {places}")


def only_ours() -> list[dict[str, Any]]:
    """Values of ``networkPolicy.clients`` and ``.admins``: pods in our namespaces and no others."""
    expression = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": list(OURS)}
    return [{"namespaceSelector": {"matchExpressions": [expression]}}]


def _pod(name: str, command: str) -> dict[str, Any]:
    container = {"name": name, "image": "meridian-broker:0.1.0", "command": ["sh", "-c", command]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": STRANGER, "labels": {"name": name}},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 0, "automountServiceAccountToken": False},
    }


def _deny_all() -> dict[str, Any]:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "deny-all", "namespace": STRANGER},
        "spec": {"podSelector": {"matchLabels": {"name": "visited"}}, "policyTypes": ["Ingress"]},
    }
