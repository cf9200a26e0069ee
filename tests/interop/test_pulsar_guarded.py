# SPDX-License-Identifier: Apache-2.0
"""A real Apache Pulsar and Meridian, each of which demands a token and TLS of the other.

It needs Java 17 and the jars that `scripts/pulsar` fetches.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pulsar
import pytest
from support.brokers.broker_process import BrokerProcess, HttpAnswer, http, wait_until
from support.brokers.certificates import Authority, Pair, served
from support.brokers.free_ports import free_port
from support.brokers.guarded_regions import tokens_command
from support.brokers.pulsar_process import PulsarProcess, pulsar_missing
from support.brokers.region_clients import PATIENCE_MS
from support.brokers.two_kinds import NAMESPACE, numbered

SECONDS = 600
THEIRS, OURS = "brokers-of-apache", "brokers-of-meridian"
NOWHERE = {"serviceUrl": "http://127.0.0.1:1", "brokerServiceUrl": "pulsar://127.0.0.1:1"}
"""Plain-text addresses that lead nowhere: whatever arrives came over TLS."""
TOKENS = "org.apache.pulsar.client.impl.auth.AuthenticationToken"


@dataclass
class Guarded:
    """The two sides, and the credentials for them."""

    directory: Path
    apache: PulsarProcess
    meridian: BrokerProcess
    shown: Path
    """The file with the token that Meridian shows to Pulsar."""

    def token(self, role: str) -> str:
        return token_of(self.directory / "first.key", role)

    def client(self, side: PulsarProcess | BrokerProcess) -> pulsar.Client:
        shown = pulsar.AuthenticationToken(self.token("admin"))
        quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        return pulsar.Client(
            side.service_url, authentication=shown, logger=quiet, operation_timeout_seconds=PATIENCE_MS // 1000
        )

    def ask(self, method: str, path: str, body: Any = ...) -> HttpAnswer:
        """Meridian's admin API."""
        headers = {"Authorization": f"Bearer {self.token('admin')}"}
        return http(method, self.meridian.admin_url + path, body, headers=headers)

    def link(self, topic: str) -> Any:
        return self.ask("GET", f"/admin/v2/{topic.replace('://', '/')}/stats").json["replication"]["apache"]


def token_of(key: Path, role: str) -> str:
    return tokens_command("create", "--secret-key", str(key), "--subject", role).strip()


def for_java(pair: Pair) -> Path:
    """The key in the only format that Java reads."""
    converted = pair.key.with_suffix(".pkcs8")
    command = ["openssl", "pkcs8", "-topk8", "-nocrypt", "-in", str(pair.key), "-out", str(converted)]
    subprocess.run(command, check=True, capture_output=True)
    return converted


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    if reason := pulsar_missing():
        pytest.skip(reason)
    directory = tmp_path_factory.mktemp("guarded")
    key, shown, theirs = directory / "first.key", directory / "shown", directory / "theirs"
    tokens_command("create-secret-key", str(key))
    tokens_command("create-secret-key", str(directory / "foreign.key"))
    shown.write_text(token_of(directory / "foreign.key", OURS))
    theirs.write_text(token_of(key, THEIRS))
    authority = Authority(directory)
    pair = authority.issue("both")
    ports = [free_port() for _ in range(4)]
    settings = {
        "authenticationEnabled": "true",
        "authenticationProviders": "org.apache.pulsar.broker.authentication.AuthenticationProviderToken",
        "tokenSecretKey": f"file://{key}",
        "authorizationEnabled": "true",
        "superUserRoles": f"admin,{THEIRS}",
        "brokerClientAuthenticationPlugin": TOKENS,
        "brokerClientAuthenticationParameters": f"file://{theirs}",
        "brokerServicePortTls": str(ports[0]),
        "webServicePortTls": str(ports[1]),
        "tlsCertificateFilePath": str(pair.certificate),
        "tlsKeyFilePath": str(for_java(pair)),
        "tlsTrustCertsFilePath": str(authority.trusted),
        "brokerClientTlsEnabled": "true",
        "brokerClientTrustCertsFilePath": str(authority.trusted),
    }
    ours = {
        "authenticationEnabled": "true",
        "tokenSecretKey": f"file://{key}",
        "superUserRoles": "admin",
        "brokerClientTlsEnabled": "true",
        "brokerClientTrustCertsFilePath": str(authority.trusted),
        "brokerClientAuthenticationParameters": f"file://{shown}",
    }
    meridian = BrokerProcess("meridian", directory / "meridian", settings=ours | served(pair, ports[2], ports[3]))
    apache = PulsarProcess("apache", directory / "apache", settings=settings, token=token_of(key, "admin"))
    with apache, meridian:
        made = Guarded(directory, apache, meridian, shown)
        introduce(made, authority.trusted, *ports)
        try:
            yield made
        finally:
            print(meridian.log()[-4000:])


def introduce(guarded: Guarded, trusted: Path, theirs: int, their_web: int, ours: int, our_web: int) -> None:
    """Each knows the other as a cluster, and the namespace is in both."""

    def secure(port: int, web_port: int) -> dict[str, Any]:
        there = {
            "serviceUrlTls": f"https://127.0.0.1:{web_port}",
            "brokerServiceUrlTls": f"pulsar+ssl://127.0.0.1:{port}",
        }
        return NOWHERE | there

    meridian = secure(ours, our_web) | {"brokerClientTlsEnabled": True, "brokerClientTrustCertsFilePath": str(trusted)}
    apache = secure(theirs, their_web) | {"kind": "pulsar", "replicatorRole": THEIRS}
    both, space = ["apache", "meridian"], f"namespaces/{NAMESPACE}"
    for ask, method, path, body in (
        (guarded.apache.http, "PUT", "clusters/meridian", meridian),
        (guarded.ask, "PUT", "clusters/apache", apache),
        (guarded.ask, "PUT", "tenants/shop", {"allowedClusters": both}),
        (guarded.apache.http, "PUT", "tenants/shop", {"allowedClusters": both, "adminRoles": [OURS]}),
        (guarded.ask, "PUT", space, {"replication_clusters": both}),
        (guarded.apache.http, "PUT", space, {}),
        (guarded.apache.http, "POST", f"{space}/deduplication", True),
        (guarded.apache.http, "POST", f"{space}/replication", both),
    ):
        answer = ask(method, f"/admin/v2/{path}", body)
        assert answer.status in (200, 204), (path, answer.text)


@pytest.mark.timeout(SECONDS)
def test_messages_go_both_ways_once_the_token_is_right(guarded: Guarded) -> None:
    topic = f"persistent://{NAMESPACE}/guarded"
    here, there = guarded.client(guarded.meridian), guarded.client(guarded.apache)
    try:
        producers = {"m": here.create_producer(topic), "p": there.create_producer(topic)}
        for message in numbered("m", 20):
            producers["m"].send(message)
        wait_until(lambda: guarded.link(topic)["lastError"], "the refusal to be shown")
        assert guarded.link(topic)["replicationBacklog"] == 20 and not guarded.link(topic)["connected"]
        guarded.shown.write_text(guarded.token(OURS))  # the file is read again for each connection
        for message in numbered("p", 20):
            producers["p"].send(message)
        for client in (here, there):
            consumer = client.subscribe(topic, "reader", initial_position=pulsar.InitialPosition.Earliest)
            found = {consumer.receive(60_000).data() for _ in range(40)}
            assert found == {*numbered("m", 20), *numbered("p", 20)}
        assert guarded.link(topic)["warning"] == "", "it is allowed to ask whether Pulsar stores repeats"
    finally:
        here.close()
        there.close()


@pytest.mark.timeout(SECONDS)
def test_chunks_of_the_full_size_go_both_ways(guarded: Guarded) -> None:
    """Pulsar silently drops a message that becomes too large by what it adds. Its brokers, known by their role, may
    send that much more."""
    guarded.shown.write_text(guarded.token(OURS))
    here, there = guarded.client(guarded.meridian), guarded.client(guarded.apache)
    try:
        for name, one, other in (("m", here, there), ("p", there, here)):
            topic, large = f"persistent://{NAMESPACE}/chunks-of-{name}", os.urandom(12 << 20)
            producer = one.create_producer(topic, chunking_enabled=True, batching_enabled=False)
            producer.send(b"first")
            producer.send(large)
            consumer = other.subscribe(topic, "reader", initial_position=pulsar.InitialPosition.Earliest)
            assert consumer.receive(60_000).data() == b"first"
            assert consumer.receive(60_000).data() == large
    finally:
        here.close()
        there.close()
