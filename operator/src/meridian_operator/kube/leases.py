# SPDX-License-Identifier: Apache-2.0
"""Reads and writes a Kubernetes Lease with its resource version."""

from __future__ import annotations

from typing import Any, Final

from meridian_operator.kube.client import Gone, KubeClient
from meridian_operator.plan.lease import LEASE_SECONDS, Lease

API: Final = "coordination.k8s.io/v1"


class LeaseObject:
    """A Lease object, which may not exist yet."""

    def __init__(self, kube: KubeClient, namespace: str, name: str) -> None:
        self._kube = kube
        self._all = f"/apis/{API}/namespaces/{namespace}/leases"
        self._meta = {"namespace": namespace, "name": name}

    async def read(self) -> tuple[Lease | None, str]:
        """The Lease and its version; None if it does not exist.

        :raises KubeError: the API server refused or did not answer.
        """
        try:
            found = await self._kube.send("GET", f"{self._all}/{self._meta['name']}")
        except Gone:
            return None, ""
        return _parsed(found.get("spec") or {}), str(found["metadata"]["resourceVersion"])

    async def write(self, lease: Lease, version: str) -> None:
        """Replace the Lease that was read at ``version``; with an empty version, create it.

        :raises Conflict: another replica wrote it first.
        :raises KubeError: the write failed or got no answer.
        """
        body = {
            "apiVersion": API,
            "kind": "Lease",
            "metadata": self._meta | ({"resourceVersion": version} if version else {}),
            "spec": {
                "holderIdentity": lease.holder,
                "leaseDurationSeconds": lease.seconds,
                "acquireTime": lease.acquired,
                "renewTime": lease.renewed,
                "leaseTransitions": lease.transitions,
            },
        }
        if version:
            await self._kube.send("PUT", f"{self._all}/{self._meta['name']}", body)
        else:
            await self._kube.send("POST", self._all, body)


def _parsed(spec: dict[str, Any]) -> Lease:
    return Lease(
        holder=str(spec.get("holderIdentity") or ""),
        acquired=str(spec.get("acquireTime") or ""),
        renewed=str(spec.get("renewTime") or ""),
        transitions=int(spec.get("leaseTransitions") or 0),
        seconds=int(spec.get("leaseDurationSeconds") or LEASE_SECONDS),
    )
