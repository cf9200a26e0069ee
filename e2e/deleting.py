# SPDX-License-Identifier: Apache-2.0
"""What happens to topics when their objects are deleted: each case as a function, on three running regions."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from clusters import Cluster

REGIONS: Final = ("us-east", "us-west", "eu-central")
TEAM: Final = "team-x"
Call = Callable[..., Any]
"""Region, method, path and body of a call of a region's admin API."""


class Topics:
    """GeoTopics and the topics that they stand for."""

    def __init__(self, cluster: Cluster, call: Call) -> None:
        self.cluster = cluster
        self.call = call

    def make(self, name: str, policy: str, topic: str = "", namespace: str = "default") -> None:
        """Create an object, and wait until it is Ready or refused."""
        spec = {
            "topic": f"persistent://public/default/{topic or name}",
            "regions": list(REGIONS),
            "deletionPolicy": policy,
        }
        made = {
            "apiVersion": "meridian.dev/v1alpha1",
            "kind": "GeoTopic",
            "metadata": {"name": name, "namespace": namespace},
            "spec": spec,
        }
        (self.cluster.directory / "made.json").write_text(json.dumps(made))
        self.cluster.run("kubectl apply -f made.json")
        if not topic:
            self.cluster.run(f"kubectl wait -n {namespace} --for=condition=Ready --timeout=300s geotopic/{name}")
            self.call("us-east", "PUT", f"/admin/v2/persistent/public/default/{name}/properties", {"made": "once"})

    def because(self, name: str, reason: str) -> str:
        """Wait until Ready has the reason. Returns the message."""

        def message() -> str | None:
            told = self.cluster.condition(f"geotopic/{name}", "Ready")
            return told["message"] if told.get("reason") == reason else None

        return str(self.cluster.wait(message, f"{name} to be {reason}"))

    def delete(self, name: str) -> None:
        """Delete the object without waiting for the end."""
        self.cluster.run(f"kubectl delete geotopic/{name} --wait=false")

    def gone(self, name: str, namespace: str = "default") -> None:
        """Wait until the object is gone."""
        self.cluster.wait(lambda: self.cluster.get(f"geotopic/{name}", namespace) is None, f"{name} to be gone")

    def no_pods(self, namespace: str, label: str) -> None:
        """Wait until the pods with this label are gone."""
        pods = f"kubectl -n {namespace} get pods -l {label} -o name"
        self.cluster.wait(lambda: not self.cluster.run(pods).strip(), f"the pods {label} to be gone")

    def is_untouched(self, name: str) -> bool:
        """Is it the original topic, not a recreated one?"""
        found = self.call("us-east", "GET", f"/admin/v2/persistent/public/default/{name}/properties")
        return bool(found == {"made": "once"})

    def holding(self, name: str, regions: tuple[str, ...] = REGIONS) -> list[str]:
        """The regions that have the topic."""
        topic = f"persistent://public/default/{name}"
        return [one for one in regions if topic in self.call(one, "GET", "/admin/v2/persistent/public/default")]


def a_loser_of_a_conflict(topics: Topics, policy: str) -> None:
    """The deletion of an object without control touches nothing."""
    name = f"fought-over-{policy.lower()}"
    topics.make(name, "Delete")
    topics.make(f"{name}-loser", policy, topic=name)
    topics.because(f"{name}-loser", "ConflictingResource")
    topics.delete(f"{name}-loser")
    topics.gone(f"{name}-loser")
    assert topics.is_untouched(name)
    topics.delete(name)
    topics.gone(name)
    assert not topics.holding(name)


def a_paused_object(topics: Topics) -> None:
    """A paused object's deletion waits until it is no longer paused."""
    topics.make("held", "Delete")
    topics.cluster.run("kubectl annotate geotopic/held meridian.dev/paused=true")
    topics.because("held", "Paused")
    topics.delete("held")
    assert "meridian.dev/paused" in topics.because("held", "DeletionBlocked")
    assert topics.is_untouched("held")
    topics.cluster.run("kubectl annotate geotopic/held meridian.dev/paused-")
    topics.gone("held")
    assert not topics.holding("held")


def a_region_that_is_down(topics: Topics) -> None:
    """The deletion reports the region that is down and waits for it; then the topic is gone from all regions."""
    topics.make("split", "Delete")
    topics.cluster.run("kubectl -n eu-central scale statefulset meridian-broker --replicas=0")
    topics.no_pods("eu-central", "statefulset.kubernetes.io/pod-name=meridian-broker-0")
    topics.delete("split")
    assert "eu-central" in topics.because("split", "DeletionBlocked")
    assert topics.is_untouched("split")
    topics.cluster.run("kubectl -n eu-central scale statefulset meridian-broker --replicas=1")
    topics.cluster.run("kubectl -n eu-central rollout status statefulset/meridian-broker --timeout=300s")
    topics.gone("split")
    assert not topics.holding("split")


def no_operator(topics: Topics) -> None:
    """Without an operator: policy Retain needs none; policy Delete waits for one."""
    topics.make("kept", "Retain")
    topics.make("doomed", "Delete")
    topics.cluster.run("kubectl -n meridian-system scale deployment/operator --replicas=0")
    topics.no_pods("meridian-system", "app.kubernetes.io/name=meridian-operator")
    topics.delete("doomed")
    topics.cluster.run("kubectl delete geotopic/kept --timeout=300s")
    assert topics.is_untouched("kept") and topics.is_untouched("doomed")
    assert topics.cluster.get("geotopic/doomed") is not None
    topics.cluster.run("kubectl -n meridian-system scale deployment/operator --replicas=2")
    topics.gone("doomed")
    assert not topics.holding("doomed")
    assert topics.is_untouched("kept")


def a_namespace(topics: Topics) -> None:
    """A namespace ends once its objects have, and takes their topics with it."""
    topics.cluster.run(f"kubectl create namespace {TEAM}")
    topics.cluster.run(
        "helm upgrade operator helm/meridian-operator -n meridian-system --reuse-values "
        f"--set 'tenantsByNamespace.{TEAM}={{public}}' --wait --timeout 300s"
    )
    topics.make("of-the-team", "Delete", namespace=TEAM)
    topics.cluster.run(f"kubectl delete namespace {TEAM} --timeout=300s")
    assert not topics.holding("of-the-team")


CASES: Final[dict[str, Callable[[Topics], None]]] = {
    "a loser of a conflict, policy Delete": partial(a_loser_of_a_conflict, policy="Delete"),
    "a loser of a conflict, policy Retain": partial(a_loser_of_a_conflict, policy="Retain"),
    "a paused object": a_paused_object,
    "a region that is down": a_region_that_is_down,
    "no operator": no_operator,
    "a namespace": a_namespace,
}
