# SPDX-License-Identifier: Apache-2.0
"""A region's volume grows as in docs/operations.md: its claim, then the release, while the broker's pod keeps running.

Volumes of test clusters are directories: Kubernetes lets their claims grow if the storage class says so, but nothing is
enlarged. So this tests what Kubernetes and Helm admit, in their order. Whether the volume then grows is up to storage.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from clusters import Cluster
from printed import printed

NAMESPACE = "us-east"
CLAIM = "data-meridian-broker-0"


class Growing:
    """The volume of the broker in us-east."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        (commands,) = printed("Letting a volume grow")
        self.patch, self.take_away, self.upgrade = commands.splitlines()

    def shown(self, what: str, path: str) -> str:
        return self.cluster.run(f"kubectl -n {NAMESPACE} get {what} -o jsonpath='{{{path}}}'").strip()

    def sizes(self) -> tuple[str, str]:
        """The size of the claim, and the size with which the StatefulSet would create another."""
        template = ".spec.volumeClaimTemplates[0].spec.resources.requests.storage"
        return (
            self.shown(f"pvc/{CLAIM}", ".spec.resources.requests.storage"),
            self.shown("statefulset/meridian-broker", template),
        )

    def pod(self) -> tuple[str, str]:
        """The pod's identity, and how often its broker was restarted."""
        return (
            self.shown("pod/meridian-broker-0", ".metadata.uid"),
            self.shown("pod/meridian-broker-0", '.status.containerStatuses[?(@.name=="broker")].restartCount'),
        )

    def grow(self) -> None:
        """Run the printed commands. Without the first two, the third names them and changes nothing."""
        before, size = self.pod(), self.sizes()
        assert size[0] == size[1] != "40Gi"
        with self._class_allows_it():
            told = self.cluster.run(f"! {self.upgrade} 2>&1")
            for command in (self.patch, self.take_away):
                assert command in told, told
            assert (self.pod(), self.sizes()) == (before, size)
            for command in (self.patch, self.take_away, f"{self.upgrade} --wait --timeout 300s"):
                self.cluster.run(command)
        assert self.sizes() == ("40Gi", "40Gi")
        assert self.pod() == before, "it went on, and the new StatefulSet has taken it over"
        (owner,) = json.loads(self.shown("pod/meridian-broker-0", ".metadata.ownerReferences"))
        assert owner["uid"] == self.shown("statefulset/meridian-broker", ".metadata.uid")

    @contextmanager
    def _class_allows_it(self) -> Iterator[None]:
        """While inside, the claim's storage class lets claims grow."""
        name = self.shown(f"pvc/{CLAIM}", ".spec.storageClassName")
        allowed = self.cluster.run(f"kubectl get storageclass/{name} -o jsonpath='{{.allowVolumeExpansion}}'").strip()
        self._allow(name, True)
        try:
            yield
        finally:
            if allowed != "true":
                self._allow(name, None)

    def _allow(self, name: str, value: Any) -> None:
        self.cluster.run(f"kubectl patch storageclass/{name} -p '{json.dumps({'allowVolumeExpansion': value})}'")
