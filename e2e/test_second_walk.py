# SPDX-License-Identifier: Apache-2.0
"""Another walk, with TLS: an earlier version, upgraded region by region under traffic; then another authority.

The commands are those of docs/operations.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import pulsar
import pytest
import trustme
from clusters import NAMESPACES, Cluster, empty
from earlier import TAG, Earlier, quickstart, with_tls
from imaging import Images
from printed import printed
from rotating import REGIONS, Newcomers
from traffic import Traffic, auditing, drain, working

TOPIC = "persistent://public/default/orders"
PORTS = {"us-east": 30650, "us-west": 30651, "eu-central": 30652}
REPEATED = 20
"""What a client acknowledges within a tenth of a second may be redelivered after each of three restarts."""


@dataclass
class Deployment:
    """Three regions that serve TLS, and their clients."""

    cluster: Cluster
    host: str
    token: str
    since: str
    """The commit installed first."""
    authorities: dict[str, trustme.CA] = field(default_factory=dict)

    def connect(self, region: str, token: str | Callable[[], str], trusted: str = "clients.crt") -> pulsar.Client:
        """A client that trusts the authorities in the file."""
        return pulsar.Client(
            f"pulsar+ssl://{self.host}:{PORTS[region]}",
            listener_name="external",
            authentication=pulsar.AuthenticationToken(token),
            tls_trust_certs_file_path=str(self.cluster.directory / trusted),
            tls_validate_hostname=True,
            operation_timeout_seconds=30,
            logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
        )

    def authority(self, name: str) -> None:
        """Create an authority, ``ca.NAME``, and its certificate for each region: ``REGION.crt`` and ``REGION.key``."""
        made = self.authorities[name] = trustme.CA()
        made.cert_pem.write_to_path(str(self.cluster.directory / f"ca.{name}"))
        for region in REGIONS:
            issued = made.issue_cert(f"meridian-broker.{region}.svc", self.host)
            issued.private_key_pem.write_to_path(str(self.cluster.directory / f"{region}.key"))
            chain = b"".join(blob.bytes() for blob in issued.cert_chain_pems)
            (self.cluster.directory / f"{region}.crt").write_bytes(chain)

    def trust(self, *names: str) -> None:
        """Make clients that connect from now on trust these authorities."""
        both = b"".join((self.cluster.directory / f"ca.{name}").read_bytes() for name in names)
        new = self.cluster.directory / "clients.new"
        new.write_bytes(both)
        new.rename(self.cluster.directory / "clients.crt")

    def sync(self) -> None:
        """Make the kubelet update the pods' Secrets now. Otherwise it does so about once a minute."""
        for namespace in (*REGIONS, "meridian-system"):
            self.cluster.run(f'kubectl -n {namespace} annotate --overwrite pod --all looked-at="$(date +%s%N)"')

    def until_silent(self, command: str, what: str) -> None:
        """Run a command until it prints nothing."""
        self.cluster.wait(lambda: not self.cluster.run(f"{{ {command.strip()}; }} 2>&1 || true"), what)


@pytest.fixture(scope="module")
def deployment(cluster: Cluster, images: Images, earlier: Earlier | None) -> Iterator[Deployment]:
    """An earlier version's quickstart, with TLS."""
    if earlier is None:
        pytest.skip("this clone has no earlier version: fetch more of its history, or set E2E_FROM")
    images.build(earlier.cluster, earlier.images, earlier.tag)
    empty(cluster)
    images.load(earlier.cluster, earlier.images, earlier.tag)
    images.load(cluster, ("broker", "operator", "etcd"))
    with_tls(earlier.cluster)
    _, keys, namespaces, regions, operator, objects, *_ = quickstart(earlier.cluster)
    earlier.cluster.run(keys)
    earlier.cluster.run(f"for one in {' '.join(NAMESPACES)}; do kubectl create namespace $one; done")
    earlier.cluster.run(namespaces.replace("kubectl create namespace", "kubectl get namespace"))
    cluster.run("kubectl -n us-east get secret meridian-tokens -o jsonpath='{.data.secret\\.key}' | base64 -d > a.key")
    cluster.run(".venv/bin/meridian tokens create --secret-key a.key --subject admin --expires 1d --to a.jwt")
    token = (cluster.directory / "a.jwt").read_text().strip()
    made = Deployment(cluster, cluster.run("e2e/cluster host").strip(), token, earlier.since)
    made.authority("old")
    made.trust("old")
    for region in REGIONS:
        files = f"--from-file=ca.crt=ca.old --from-file=tls.crt={region}.crt --from-file=tls.key={region}.key"
        cluster.run(f"kubectl -n {region} create secret generic regions-tls {files}")
    cluster.run("kubectl -n meridian-system create secret generic regions-ca --from-file=ca.crt=ca.old")
    soon = "helm/meridian-region --set broker.config.tlsCertRefreshCheckDurationSec=1"
    for command in (regions.replace("helm/meridian-region", soon), operator, objects):
        earlier.cluster.run(command, seconds=600)
    yield made


@pytest.fixture(scope="module")
def clients(deployment: Deployment) -> Iterator[dict[str, pulsar.Client]]:
    made = {region: deployment.connect(region, deployment.token) for region in REGIONS}
    yield made
    for client in made.values():
        client.close()


def running(cluster: Cluster) -> set[str]:
    """The images of the first containers of all our pods."""
    shown = "-o jsonpath='{range .items[*]}{.spec.containers[0].image}{\"\\n\"}{end}'"
    label = "app.kubernetes.io/name in (meridian,meridian-operator),app.kubernetes.io/component notin (etcd,test)"
    return set(cluster.run(f"kubectl get pods -A -l '{label}' {shown}").split())


def everything_is_everywhere(clients: dict[str, pulsar.Client], traffic: Traffic) -> None:
    """Each region has what was stored in any; what nobody has acknowledged is delivered in another region."""
    stored = set.union(*traffic.stored.values())
    for region in REGIONS:
        consumer = auditing(clients[region], TOPIC)
        lost = stored - set(drain(consumer, stored))
        consumer.close()
        assert not lost, f"{region} lacks {sorted(lost)}"
    consumer = working(clients["eu-central"], TOPIC)
    owed = stored - traffic.acked
    came = drain(consumer, owed)
    consumer.close()
    assert owed <= set(came)
    assert len(came) - len(owed) <= len(REGIONS) * REPEATED


def test_regions_are_upgraded_one_by_one_and_lose_nothing(
    deployment: Deployment, clients: dict[str, pulsar.Client], measured: Callable[[str], None]
) -> None:
    cluster = deployment.cluster
    assert running(cluster) == {f"meridian-broker:{TAG}", f"meridian-operator:{TAG}"}
    region_by_region, operator = (
        block.replace("tag=0.2.0", "tag=0.1.0") for block in printed("Upgrading to a new version")
    )
    traffic = Traffic(clients, TOPIC, REGIONS, consumer="us-west")
    try:
        cluster.wait(lambda: len(traffic.acked) > 50, "messages to flow")
        for region in REGIONS:
            cluster.run(region_by_region.replace("us-east", region), seconds=900)
        cluster.run(operator)
        cluster.run(
            "kubectl wait --for=condition=Ready --timeout=300s geotopic/orders replicatedsubscription/orders-billing"
        )
    finally:
        traffic.stop()
    measured(
        f"upgrade from {deployment.since[:12]} region by region: {traffic.published} messages, "
        f"{len(traffic.refused)} refused, {len(traffic.repeated)} came again after their acknowledgement"
    )
    this_version = {"meridian-broker:0.1.0", "meridian-operator:0.1.0"}
    cluster.wait(lambda: running(cluster) == this_version, "the last pods of the earlier version to be gone")
    assert not traffic.refused
    assert len(traffic.repeated) <= len(REGIONS) * REPEATED
    everything_is_everywhere(clients, traffic)


def test_the_authority_is_replaced_and_no_client_is_refused(
    deployment: Deployment, clients: dict[str, pulsar.Client], measured: Callable[[str], None]
) -> None:
    cluster = deployment.cluster
    both, have_both, certificates, have_certificates, alone = printed("Replacing certificates")
    deployment.authority("new")
    traffic = Traffic(clients, TOPIC, REGIONS, consumer="us-west")
    try:
        with Newcomers(deployment.connect, deployment.token) as newcomers:
            cluster.run(both)
            deployment.trust("old", "new")
            deployment.sync()
            deployment.until_silent(have_both, "every pod to have both authorities")
            cluster.run(certificates)
            deployment.sync()
            deployment.until_silent(have_certificates, "every broker to have its new certificate")
            new_only = partial(deployment.connect, trusted="ca.new")
            for region in REGIONS:
                is_served = partial(believed, new_only, region, deployment.token)
                cluster.wait(is_served, f"{region} to show its new certificate")
            cluster.run(alone)
            deployment.trust("new")
            deployment.sync()
            came = newcomers.came
            cluster.wait(
                lambda: newcomers.came > came + 2 * len(REGIONS),
                "clients that trust the new authority alone to connect",
            )
        cluster.run("kubectl -n us-west delete pod meridian-broker-0")  # all its links connect again
        cluster.run("kubectl -n us-west rollout status statefulset/meridian-broker --timeout=300s")
        cluster.wait(
            lambda: cluster.condition("geotopic/orders", "Replicating").get("status") == "True",
            "the region's links to be up",
        )
    finally:
        traffic.stop()
    assert not traffic.refused and not newcomers.refused
    assert not believed(partial(deployment.connect, trusted="ca.old"), "us-east", deployment.token)
    measured(f"while the authority was replaced, {newcomers.came} clients connected and none was refused")
    everything_is_everywhere(clients, traffic)


def believed(connect: Callable[[str, str], pulsar.Client], region: str, token: str) -> bool:
    """Can such a client publish there?"""
    client = connect(region, token)
    try:
        client.create_producer(f"{TOPIC}-believed").send(b"hello")
    except pulsar.PulsarException:
        return False
    finally:
        client.close()
    return True
