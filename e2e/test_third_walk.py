# SPDX-License-Identifier: Apache-2.0
"""A third walk: a region on BookKeeper, with several brokers and three bookies, under traffic all the time.

The fixture installs it; each test disturbs it, and the last one checks the messages.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pulsar
import pytest
from clusters import Cluster, empty
from imaging import Images
from policies import Policies
from traffic import Traffic, auditing, drain, working

REGION = "us-east"
TOPIC = "persistent://public/default/shared"
SHADOW = f"{TOPIC}-view"
PORT = 30650
PARTITIONS = 4
IMAGES = ("broker", "etcd", "bookkeeper")
ARRIVED_SECONDS = 0.5
"""Acknowledgements this old have reached the broker: official clients batch them for 100 ms."""
VALUES = {
    "region.name": REGION,
    "region.storage": "bookkeeper",
    "external.enabled": "true",
    "external.port": str(PORT),
    "broker.resources.requests.cpu": "50m",
    "broker.config.brokerDeduplicationEnabled": "true",
    "etcd.volume.size": "1Gi",
    "bookies.replicas": "3",
    "bookies.memory.heap": "128Mi",
    "bookies.memory.direct": "192Mi",
    "bookies.resources.requests.cpu": "50m",
    "bookies.resources.requests.memory": "256Mi",
    "bookies.resources.limits.memory": "768Mi",
    "bookies.journal.size": "1Gi",
    "bookies.volume.size": "1Gi",
    "bookies.config.journalMaxSizeMB": "64",
    "bookies.config.journalPreAllocSizeMB": "4",
    "bookies.config.diskUsageThreshold": "0.99",
    "bookies.config.diskUsageWarnThreshold": "0.99",
}
KILL = """
import os, sys
pod = b"HOSTNAME=" + sys.argv[1].encode()
for process in filter(str.isdecimal, os.listdir("/proc")):
    try:
        with open(f"/proc/{process}/environ", "rb") as file:
            found = pod in file.read().split(bytes(1))
        if found:
            os.kill(int(process), 9)
            print(process)
    except OSError:
        pass
"""


@dataclass
class Disturbance:
    """At its begin: what was acknowledged and had reached the broker, since when, and how many were redelivered."""

    began: float
    arrived: dict[int, float]
    repeated: int

    def told(self, traffic: Traffic) -> str:
        """Messages that it caused to be redelivered, with seconds from its begin to acknowledgement and redelivery."""
        later = zip(traffic.repeated[self.repeated :], traffic.repeated_at[self.repeated :], strict=True)
        return ", ".join(
            f"{number} (acknowledged at {self.arrived[number] - self.began:+.2f} s, again at {at - self.began:+.2f} s)"
            for number, at in later
            if number in self.arrived
        )


@dataclass
class Region:
    """The region, and traffic in it that continues from test to test."""

    cluster: Cluster
    client: pulsar.Client
    traffic: Traffic
    disturbances: dict[str, Disturbance] = field(default_factory=dict)

    def disturb(self, what: str, disturbance: Callable[[], None]) -> None:
        """Cause a disturbance. What was published before is stored in the end, and consumption continues.

        Returns once the consumer has received something later from every partition, and with it everything redelivered
        because of the disturbance. A client waits longer from attempt to attempt: it may reach one partition's new
        owner seconds after the others', and redeliveries then would be blamed on the next disturbance.
        """
        began = time.monotonic()
        arrived = {number: at for number, at in self.traffic.acked_at.copy().items() if at < began - ARRIVED_SECONDS}
        self.disturbances[what] = Disturbance(began, arrived, len(self.traffic.repeated))
        disturbance()
        published = self.traffic.published
        later = range(published, published + 10 * PARTITIONS)
        self.cluster.wait(
            lambda: (
                self.traffic.stored[REGION].issuperset(range(later.stop)) and self.traffic.received.issuperset(later)
            ),
            f"messages to flow after: {what}",
        )

    def scale(self, brokers: int) -> None:
        """Change the number of brokers, and wait until all of them are ready."""
        self.cluster.run(
            f"helm upgrade meridian helm/meridian-region -n {REGION} --reuse-values "
            f"--set broker.replicas={brokers} --wait --timeout 300s"
        )
        pods = f"kubectl -n {REGION} get pods -l app.kubernetes.io/component=broker -o name"
        self.cluster.wait(lambda: len(self.cluster.run(pods).split()) == brokers, f"{brokers} broker pods to exist")

    def kill(self, pod: str) -> None:
        """SIGKILL all of a pod's processes, by a pod that sees the node's processes and runs as the same user."""
        name = f"kill-{pod}"
        container = {
            "name": "kill",
            "image": "meridian-broker:0.1.0",
            "command": ["/opt/meridian/bin/python", "-c", KILL, pod],
            "securityContext": {"runAsUser": 10001, "runAsGroup": 10001},
        }
        spec = {"hostPID": True, "restartPolicy": "Never", "containers": [container]}
        manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": REGION}, "spec": spec}
        (self.cluster.directory / "kill.json").write_text(json.dumps(manifest))
        counts = f"kubectl -n {REGION} get pod {pod} -o jsonpath='{{.status.containerStatuses[*].restartCount}}'"

        def restarts() -> int:
            return sum(map(int, self.cluster.run(counts).split()))

        before = restarts()
        self.cluster.run("kubectl apply -f kill.json")
        ended = "--for=jsonpath='{.status.phase}'=Succeeded"
        self.cluster.run(f"kubectl -n {REGION} wait {ended} --timeout=300s pod/{name}")
        assert self.cluster.run(f"kubectl -n {REGION} logs {name}").split(), f"no process of {pod} was found"
        self.cluster.wait(lambda: restarts() > before, f"{pod} to be restarted")
        self.cluster.run(f"kubectl -n {REGION} wait --for=condition=Ready --timeout=300s pod/{pod}")


def meridian(cluster: Cluster, command: str) -> str:
    """The output of a ``meridian`` command in a broker's container."""
    command = f"cat >/tmp/jwt && meridian {command} --url http://127.0.0.1:8080 --token-file /tmp/jwt"
    inside = f"kubectl -n {REGION} exec -i meridian-broker-0 -c broker -- sh -c '{command}'"
    return cluster.run(f"{inside} <shared-tokens/admin.jwt")


@pytest.fixture(scope="module")
def region(cluster: Cluster, images: Images) -> Iterator[Region]:
    images.build(cluster, IMAGES)
    empty(cluster)
    images.load(cluster, IMAGES)
    cluster.run(f".venv/bin/meridian tokens manifest --directory shared-tokens --region {REGION}")
    cluster.run(f"kubectl create namespace {REGION} && kubectl -n {REGION} apply -f shared-tokens/regions.json")
    host = cluster.run("e2e/cluster host").strip()
    values = " ".join(f"--set {key}={value}" for key, value in {**VALUES, "external.host": host}.items())
    cluster.run(
        f"helm install meridian helm/meridian-region -n {REGION} -f examples/kubernetes/without-registry.yaml "
        f"{values} --wait --timeout 600s",
        seconds=620,
    )
    token = (cluster.directory / "shared-tokens/admin.jwt").read_text().strip()
    client = pulsar.Client(
        f"pulsar://{host}:{PORT}",
        listener_name="external",
        authentication=pulsar.AuthenticationToken(token),
        operation_timeout_seconds=60,
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
    )
    meridian(cluster, f"topics create {TOPIC} --partitions {PARTITIONS}")
    traffic = Traffic({REGION: client}, TOPIC, (REGION,), consumer=REGION)
    try:
        cluster.wait(lambda: len(traffic.acked) > 50, "messages to flow")
        yield Region(cluster, client, traffic)
    finally:
        traffic.stop()
        client.close()


def serves(region: Region, number: int) -> bool:
    """Did that broker ever own topics?"""
    log = region.cluster.run(f"kubectl -n {REGION} logs meridian-broker-{number} -c broker")
    return ": owns public/default/" in log


def test_nothing_was_restarted_because_something_else_took_longer(region: Region) -> None:
    """Except AutoRecovery, which exits whenever its lease in etcd expires, also on a slow machine."""
    served = "app.kubernetes.io/component in (broker,bookie,etcd)"
    pods = json.loads(region.cluster.run(f"kubectl -n {REGION} get pods -l '{served}' -o json"))["items"]
    restarts = {
        f"{pod['metadata']['name']}/{container['name']}": container["restartCount"]
        for pod in pods
        for container in pod["status"]["containerStatuses"]
    }
    assert restarts and not any(restarts.values()), restarts


def test_brokers_are_added_under_traffic(region: Region) -> None:
    region.disturb("1 broker, then 3", lambda: region.scale(3))
    for number in (1, 2):
        region.cluster.wait(partial(serves, region, number), f"broker {number} to serve topics")


def test_shadows_are_told_by_whichever_brokers_serve_their_source(region: Region) -> None:
    """Whatever the three brokers own, one of the shadow's partitions is at another broker than its source's."""
    meridian(region.cluster, f"topics shadow create {TOPIC} {SHADOW}")

    def connected() -> list[dict[str, Any]]:
        """How each partition is told, once all are."""
        shown = json.loads(meridian(region.cluster, f"topics stats {TOPIC} --json")).get("shadowReplication", {})
        told = [one for one in shown.values() if one["connected"]]
        return told if len(told) == len(shown) == PARTITIONS else []

    told = region.cluster.wait(connected, "all partitions to be told")
    assert any("broker" in one.get("meridian", {}) for one in told), "some by another broker"


def test_a_client_inside_the_cluster_is_sent_from_the_service_to_the_pod(region: Region) -> None:
    region.cluster.run(f"helm test meridian -n {REGION}")


def test_strangers_do_not_reach_bookies(region: Region) -> None:
    """Bookies require no secret: only the NetworkPolicy protects them."""
    policies = Policies(region.cluster)
    bookies = policies.places(REGION, "app.kubernetes.io/component=bookie", 3181)
    with policies.stranger():
        policies.until_out(bookies)
        policies.until_reached(REGION, "meridian-broker-0 -c broker", bookies)


def test_a_bookie_is_killed(region: Region) -> None:
    region.disturb("a bookie killed", lambda: region.kill("meridian-bookie-1"))


def test_a_broker_is_killed(region: Region) -> None:
    region.disturb("a broker killed", lambda: region.kill("meridian-broker-1"))


def test_a_broker_is_removed_under_traffic(region: Region) -> None:
    region.disturb("3 brokers, then 2", lambda: region.scale(2))


def test_nothing_is_lost_and_nothing_acknowledged_comes_again(region: Region, measured: Callable[[str], None]) -> None:
    traffic = region.traffic
    traffic.stop()
    measured(
        f"a region on BookKeeper, disturbed by {', '.join(region.disturbances)}: {traffic.published} messages, "
        f"{len(traffic.refused)} refused, {len(traffic.repeated)} came again"
    )
    assert not traffic.refused
    stored = traffic.stored[REGION]
    assert stored == set(range(traffic.published))
    for what, before in region.disturbances.items():
        again = before.told(traffic)
        assert not again, f"{what}: acknowledged before, and delivered again: {again}"
    consumer = auditing(region.client, TOPIC)
    assert sorted(drain(consumer, stored)) == sorted(stored), "each message is stored once"
    consumer.close()
    consumer = auditing(region.client, SHADOW)
    assert sorted(drain(consumer, stored)) == sorted(stored), "and is in the shadow once"
    consumer.close()
    consumer = working(region.client, TOPIC)
    owed = stored - traffic.acked
    assert sorted(drain(consumer, owed)) == sorted(owed), "what nobody has acknowledged, once each"
    consumer.close()
