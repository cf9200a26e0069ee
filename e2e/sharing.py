# SPDX-License-Identifier: Apache-2.0
"""Metadata that three regions share, as described by a Kubernetes object."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from clusters import Cluster

REGIONS: Final = ("us-east", "us-west", "eu-central")
POLICY: Final = "metadatasyncpolicy/all"
NAMESPACE: Final = "shop/orders"
BROKER: Final = "meridian-broker"
TTL: Final = f"/admin/v2/namespaces/{NAMESPACE}/messageTTL"
Call = Callable[..., Any]
"""Region, method, path and body of a call of a region's admin API."""


class Sharing:
    """The policy, and the metadata of regions."""

    def __init__(self, cluster: Cluster, call: Call) -> None:
        self.cluster = cluster
        self.call = call

    def permit(self) -> None:
        """A policy concerns every tenant, so its namespace must be allowed all."""
        self.cluster.run(
            "helm upgrade operator helm/meridian-operator -n meridian-system --reuse-values "
            "--set 'tenantsByNamespace.default={public,*}' --wait --timeout 300s"
        )

    def apply(self, *, suspend: bool) -> None:
        """Create or change the policy, and wait until it is applied."""
        spec = {"regions": list(REGIONS), "suspend": suspend, "deletionPolicy": "Delete"}
        made = {
            "apiVersion": "meridian.dev/v1alpha1",
            "kind": "MetadataSyncPolicy",
            "metadata": {"name": "all", "namespace": "default"},
            "spec": spec,
        }
        (self.cluster.directory / "policy.json").write_text(json.dumps(made))
        self.cluster.run("kubectl apply -f policy.json")

        def is_done() -> bool:
            status = (self.cluster.get(POLICY) or {}).get("status", {})
            enabled = [one.get("enabled", False) for one in status.get("regions", [])]
            return enabled == [not suspend] * len(REGIONS)

        self.cluster.wait(is_done, f"synchronization to be {'off' if suspend else 'on'} in all regions")

    def until_synced(self) -> None:
        self.cluster.wait(
            lambda: self.cluster.condition(POLICY, "Synced").get("status") == "True", "the regions to be in step", 180
        )

    def until_all_have(self, tenant: str) -> None:
        for region in REGIONS:
            self.cluster.wait(partial(self._has, region, tenant), f"{region} to have {tenant}")

    def until_all_say(self, path: str, value: Any) -> None:
        for region in REGIONS:
            self.cluster.wait(partial(self._says, region, path, value), f"{path} to be {value} in {region}")

    def _has(self, region: str, tenant: str) -> bool:
        return tenant in self.call(region, "GET", "/admin/v2/tenants")

    def _says(self, region: str, path: str, value: Any) -> bool:
        return bool(self.call(region, "GET", path) == value)

    def leave_alone(self, region: str) -> None:
        """While inside, no broker of another region runs, so this region neither receives nor sends changes."""
        others = [one for one in REGIONS if one != region]
        for one in others:
            self.cluster.run(f"kubectl -n {one} scale statefulset {BROKER} --replicas=0")
        for one in others:
            self.cluster.wait(partial(self._has_no_broker, one), f"{one} to have no broker")
        self.bring_back(region)

    def bring_back(self, *regions: str) -> None:
        for one in regions:
            self.cluster.run(f"kubectl -n {one} scale statefulset {BROKER} --replicas=1")
        for one in regions:
            self.cluster.run(f"kubectl -n {one} rollout status statefulset/{BROKER} --timeout=300s")

    def _has_no_broker(self, region: str) -> bool:
        pods = f"kubectl -n {region} get pods -l statefulset.kubernetes.io/pod-name={BROKER}-0 -o name"
        return not self.cluster.run(pods).strip()

    def conflict(self) -> str:
        """The Event that reports the conflict, once the object counts one."""
        counted = self.cluster.wait(
            lambda: (self.cluster.get(POLICY) or {})["status"].get("conflicts"), "the object to count the conflict"
        )
        assert counted == 1
        (shown,) = (self.cluster.get(POLICY) or {})["status"]["latestConflicts"]
        assert (shown["winner"], shown["won"], shown["loser"], shown["lost"]) == ("us-west", "80", "us-east", "70")
        events = "kubectl get events --field-selector reason=MetadataConflict -o jsonpath='{.items[*].message}'"

        def told() -> str:
            """Another region that heard of both values may be the first to report the conflict."""
            text = self.cluster.run(events).strip()
            return text if f"{shown['loser']} has" in text else ""

        return str(self.cluster.wait(told, "the Event to be recorded"))

    def delete(self) -> None:
        """Delete the policy, which also switches synchronization off."""
        self.cluster.run(f"kubectl delete {POLICY} --timeout=300s")
        for region in REGIONS:
            assert not self.call(region, "GET", "/meridian/v1/metadata/status")["enabled"]
