# SPDX-License-Identifier: Apache-2.0
"""A region that goes back to an older copy of its volumes, by the commands of docs/operations.md and under traffic.

Test clusters rarely have a storage driver that takes snapshots, so this module stands in for one: it copies volumes
while their pods are stopped, and fills the claims that the printed commands create.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Final

import pulsar
from clusters import Cluster
from printed import printed
from traffic import Traffic, auditing, drain, working

TOPIC: Final = "persistent://public/default/restored"
REGION: Final = "us-east"
AUDITED: Final = ("us-east", "eu-central")
READY: Final = (
    f"kubectl -n {REGION} exec -i meridian-broker-0 -c broker -- sh -c 'cat >/tmp/jwt && meridian regions wait --ready "
    "--timeout 300 --url http://127.0.0.1:8080 --token-file /tmp/jwt' < tokens/admin.jwt"
)
SNAPSHOT_KIND: Final = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {
        "name": "volumesnapshots.snapshot.storage.k8s.io",
        "annotations": {"api-approved.kubernetes.io": "unapproved, stands in for the real one"},
    },
    "spec": {
        "group": "snapshot.storage.k8s.io",
        "scope": "Namespaced",
        "names": {"kind": "VolumeSnapshot", "plural": "volumesnapshots"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}
SIZES: Final = {"broker": "20Gi", "etcd": "2Gi"}
COPIES: Final = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": "copies", "namespace": REGION},
    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
}


class Snapshots:
    """Stands in for the storage driver: keeps copies of both volumes in its own claim."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        has_kind = "kubectl get crd volumesnapshots.snapshot.storage.k8s.io -o name 2>/dev/null || true"
        self._made_kind = not cluster.run(has_kind)
        if self._made_kind:
            self._apply(SNAPSHOT_KIND)
            cluster.run(
                "kubectl wait --for=condition=Established --timeout=300s crd/volumesnapshots.snapshot.storage.k8s.io"
            )
        self._apply(COPIES)

    def close(self) -> None:
        """Remove the kind from the cluster, if it was not there before."""
        if self._made_kind:
            self._cluster.run("kubectl delete crd volumesnapshots.snapshot.storage.k8s.io")

    def take(self) -> None:
        """Copy both volumes. Their pods are stopped meanwhile: otherwise the copies would not be of one moment."""
        for part in ("broker", "etcd"):
            self._cluster.run(f"kubectl -n {REGION} scale statefulset meridian-{part} --replicas=0")
            self._cluster.run(f"kubectl -n {REGION} wait --for=delete pod/meridian-{part}-0 --timeout=300s")
        self._copy("copied", ("broker", "etcd"), "cp -a /volumes/$part/. /copies/$part/")
        for part in ("etcd", "broker"):
            self._cluster.run(f"kubectl -n {REGION} scale statefulset meridian-{part} --replicas=1")
            self._cluster.run(f"kubectl -n {REGION} rollout status statefulset/meridian-{part} --timeout=300s")

    def fill(self, parts: Sequence[str]) -> None:
        """Do what a driver does for a claim created from a snapshot."""
        self._copy("filled", parts, 'test -z "$(ls -A /volumes/$part)"; cp -a /copies/$part/* /volumes/$part/')

    def _copy(self, name: str, parts: Sequence[str], command: str) -> None:
        claims = {"/copies": "copies"} | {f"/volumes/{part}": f"data-meridian-{part}-0" for part in parts}
        script = f"for part in {' '.join(parts)}; do mkdir -p /copies/$part; {command}; done"
        container = {
            "name": "copy",
            "image": "meridian-broker:0.1.0",
            "command": ["sh", "-euxc", script],
            "volumeMounts": [{"name": claim, "mountPath": path} for path, claim in claims.items()],
            "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        }
        spec = {
            "restartPolicy": "Never",
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 10001,
                "runAsGroup": 10001,
                "fsGroup": 10001,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [container],
            "volumes": [{"name": claim, "persistentVolumeClaim": {"claimName": claim}} for claim in claims.values()],
        }
        self._apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": REGION}, "spec": spec})
        done = "--for=jsonpath='{.status.phase}'=Succeeded"
        self._cluster.run(f"kubectl -n {REGION} wait {done} --timeout=300s pod/{name}")
        self._cluster.run(f"kubectl -n {REGION} delete pod {name}")

    def _apply(self, manifest: Mapping[str, object]) -> None:
        (self._cluster.directory / "manifest.json").write_text(json.dumps(manifest))
        self._cluster.run("kubectl apply -f manifest.json")


class Backup:
    """A backup of one region, by the printed commands."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._snapshots = Snapshots(cluster)
        self._save, self._restore, self._apply, self._install = printed("Backup and restore")
        cluster.run(self._save)
        self._day = f"day={datetime.now(UTC).date()}"
        self._snapshots.take()

    def close(self) -> None:
        """Forget the snapshots."""
        self._snapshots.close()

    def restore(self, parts: Sequence[str]) -> None:
        """Go back to the copies of these parts."""
        script = self._restore.replace("day=2026-11-23", self._day)
        for whole, kept in (
            ("data-meridian-broker-0 data-meridian-etcd-0", [f"data-meridian-{part}-0" for part in parts]),
            ("broker:20Gi etcd:2Gi", [f"{part}:{size}" for part, size in SIZES.items() if part in parts]),
        ):
            assert whole in script
            script = script.replace(whole, " ".join(kept))
        start = "kubectl -n us-east scale statefulset meridian-etcd --replicas=1"
        before, start, after = script.partition(start)
        assert start
        self._cluster.run(before)
        self._snapshots.fill(parts)
        self._cluster.run(start + after, seconds=700)

    def restore_secrets(self) -> None:
        """Lose Secrets and ConfigMaps, and restore their copies; the pods start again with these."""
        self._cluster.run(f"kubectl -n {REGION} delete secret,configmap -l app.kubernetes.io/instance=meridian")
        self._cluster.run(f"kubectl -n {REGION} delete secret meridian-tokens")
        self._cluster.run(self._apply)
        self._cluster.run(f"kubectl -n {REGION} delete pod meridian-etcd-0 meridian-broker-0")
        for part in ("etcd", "broker"):
            self._cluster.run(f"kubectl -n {REGION} rollout status statefulset/meridian-{part} --timeout=300s")

    def install_again(self) -> None:
        """Lose the namespace with everything in it."""
        self._cluster.run(f"kubectl delete namespace {REGION} --timeout=300s")
        self._cluster.run(self._install, seconds=700)


RESTORES: Final[dict[str, Callable[[Backup], None]]] = {
    "its volume": partial(Backup.restore, parts=("broker",)),
    "etcd": partial(Backup.restore, parts=("etcd",)),
    "both": partial(Backup.restore, parts=("broker", "etcd")),
    "its Secrets": Backup.restore_secrets,
    "its namespace": Backup.install_again,
}


class Restoring:
    """One region with traffic goes back to one backup, again and again; nothing is lost or redelivered."""

    def __init__(self, cluster: Cluster, clients: Mapping[str, pulsar.Client]) -> None:
        self._cluster = cluster
        self._clients = clients
        self._published = 0
        self._stored: set[int] = set()
        self._seen: dict[str, set[int]] = {region: set() for region in AUDITED}
        for region in AUDITED:
            auditing(clients[region], TOPIC).close()
        working(clients[REGION], TOPIC).close()
        self._one_period(lambda: None)
        self._backup = Backup(cluster)

    def close(self) -> None:
        """Forget the backup."""
        self._backup.close()

    def go_back(self, restore: Callable[[Backup], None]) -> None:
        """Restore something while messages are published and acknowledged."""
        self._one_period(lambda: restore(self._backup))

    def _one_period(self, what: Callable[[], None]) -> None:
        """Restore with traffic before, during and after it. Then check what every region has and still delivers."""
        traffic = Traffic(self._clients, TOPIC, (REGION, "us-west"), consumer="us-west", begin=self._published)
        try:
            self._cluster.wait(lambda: len(traffic.acked) > 50, "messages to flow")
            what()
            before = len(traffic.stored[REGION])
            self._cluster.wait(lambda: len(traffic.stored[REGION]) > before + 20, f"{REGION} to store messages again")
            self._cluster.run(READY)
        finally:
            traffic.stop()
        assert not traffic.refused
        assert not traffic.repeated, "acknowledged, and delivered again"
        self._published = traffic.published
        self._stored |= set.union(*traffic.stored.values())
        for region in AUDITED:
            consumer = auditing(self._clients[region], TOPIC)
            self._seen[region] |= set(drain(consumer, self._stored - self._seen[region]))
            consumer.close()
            assert self._stored <= self._seen[region], f"{region} lost {sorted(self._stored - self._seen[region])}"
        consumer = working(self._clients[REGION], TOPIC)
        owed = set(range(traffic.begin, traffic.published)) - traffic.acked
        came = drain(consumer, owed)
        consumer.close()
        assert sorted(came) == sorted(owed), "what nobody has acknowledged, once each"
