# SPDX-License-Identifier: Apache-2.0
"""Encrypted connections: the real client, HTTPS, the command line, links between regions, and who is turned away."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pulsar
import pytest
from meridian_broker.gateway.client import PulsarClientConnection
from meridian_broker.gateway.client_errors import ConnectFailed
from meridian_broker.gateway.client_options import ClientOptions
from meridian_broker.gateway.region_calls import CallFailed
from meridian_broker.gateway.tls import TlsFiles, client_context
from support.brokers.broker_process import BrokerProcess, wait_until
from support.brokers.certificates import Authority, served
from support.brokers.forked_meridian import meridian_text
from support.brokers.free_ports import free_port
from support.brokers.peers import as_region, calls_as
from support.brokers.region_clients import PATIENCE_MS

ASKED = ("east", "GET", "/admin/v2/persistent/public/default/nowhere/stats")
REGIONS = ("east", "west")


class Secure:
    """Two regions that serve TLS and use nothing else between them."""

    def __init__(self, directory: Path) -> None:
        self.authority = Authority(directory)
        self.stranger = Authority(directory, "stranger")
        self.ports = {name: (free_port(), free_port(), free_port(), free_port()) for name in REGIONS}
        regions_file, self.secret_file = directory / "regions.json", directory / "token"
        self.secret = b"only the brokers of these regions know this"
        self.secret_file.write_bytes(self.secret)
        listed = [
            {
                "name": name,
                "service_url": "pulsar://127.0.0.1:1",  # nothing listens there
                "admin_url": "http://127.0.0.1:1",
                "service_url_tls": f"pulsar+ssl://127.0.0.1:{tls}",
                "admin_url_tls": f"https://127.0.0.1:{https}",
            }
            for name, (_, _, tls, https) in self.ports.items()
        ]
        regions_file.write_text(json.dumps({"regions": listed}))
        self.brokers = {
            name: BrokerProcess(
                name,
                directory / name,
                port=plain,
                http_port=http,
                regions_file=regions_file,
                peer_token_file=self.secret_file,
                settings={
                    **served(self.authority.issue(name), tls, https),
                    "tlsTrustCertsFilePath": str(self.authority.trusted),
                    "brokerClientTlsEnabled": "true",
                    "brokerClientTrustCertsFilePath": str(self.authority.trusted),
                },
            )
            for name, (plain, http, tls, https) in self.ports.items()
        }

    def service_url(self, region: str) -> str:
        return f"pulsar+ssl://127.0.0.1:{self.ports[region][2]}"

    def admin_url(self, region: str) -> str:
        return f"https://127.0.0.1:{self.ports[region][3]}"

    def client(self, url: str, trusted: Path | None = None, **options: Any) -> pulsar.Client:
        return pulsar.Client(
            url,
            tls_trust_certs_file_path=str(trusted or self.authority.trusted),
            tls_validate_hostname=True,
            logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
            operation_timeout_seconds=options.pop("patience", 60),
            **options,
        )

    def context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.authority.trusted))

    def shown(self, region: str) -> bytes:
        """The certificate that the broker presents now."""
        with (
            socket.create_connection(("127.0.0.1", self.ports[region][2]), 10) as plain,
            self.context().wrap_socket(plain, server_hostname="127.0.0.1") as tls,
        ):
            certificate = tls.getpeercert(binary_form=True)
            assert certificate is not None
            return certificate


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    made = Secure(tmp_path_factory.mktemp("tls"))
    with contextlib.ExitStack() as stack:
        for broker in made.brokers.values():
            broker.start(wait=False)
            stack.enter_context(broker)
        for broker in made.brokers.values():
            broker.wait_healthy()
        yield made


@pytest.mark.parametrize("scheme", ["pulsar+ssl", "https"])
def test_the_client_publishes_and_consumes_over_tls(secure: Secure, scheme: str) -> None:
    url = secure.service_url("east") if scheme == "pulsar+ssl" else secure.admin_url("east")
    client = secure.client(url)
    topic = f"persistent://public/default/secret-{scheme.replace('+', '-')}"
    consumer = client.subscribe(topic, "all")
    producer = client.create_producer(topic)
    large = bytes(range(256)) * 8000  # many TLS records
    producer.send(large)
    message = consumer.receive(PATIENCE_MS)
    assert message.data() == large
    consumer.acknowledge(message)
    client.close()


def test_lookups_give_both_addresses(secure: Secure) -> None:
    answer = secure.brokers["east"].http("GET", "/lookup/v2/topic/persistent/public/default/any").json
    plain, http, *_ = secure.ports["east"]
    assert answer == {
        "brokerUrl": f"pulsar://127.0.0.1:{plain}",
        "brokerUrlTls": secure.service_url("east"),
        "httpUrl": f"http://127.0.0.1:{http}",
        "httpUrlTls": secure.admin_url("east"),
        "nativeUrl": f"pulsar://127.0.0.1:{plain}",
    }


def test_a_client_that_trusts_another_authority_does_not_connect(secure: Secure) -> None:
    client = secure.client(secure.service_url("east"), secure.stranger.trusted, patience=2)
    with pytest.raises(pulsar.PulsarException):
        client.create_producer("never")
    client.close()


def test_old_tls_is_refused(secure: Secure) -> None:
    context = secure.context()
    context.set_ciphers("DEFAULT:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning):
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    with (
        socket.create_connection(("127.0.0.1", secure.ports["east"][2]), 10) as plain,
        pytest.raises((ssl.SSLError, ConnectionError)),
    ):
        context.wrap_socket(plain, server_hostname="127.0.0.1")


@pytest.mark.parametrize("port", [2, 3])
def test_unencrypted_bytes_on_a_tls_port_do_no_harm(secure: Secure, port: int) -> None:
    for noise in (b"GET / HTTP/1.1\r\n\r\n", bytes(5000), b"\x00\x00\x00\x10\x00\x00\x00\x0c\x08\x02" + bytes(10)):
        with socket.create_connection(("127.0.0.1", secure.ports["east"][port]), 10) as plain:
            plain.sendall(noise)
            with contextlib.suppress(ConnectionError):
                while plain.recv(4096):  # an alert perhaps, then the end
                    pass
    assert secure.shown("east")
    assert "Traceback" not in secure.brokers["east"].log()


def test_a_renewed_certificate_is_presented_without_a_restart(secure: Secure) -> None:
    before = secure.shown("west")
    client = secure.client(secure.service_url("west"))
    producer = client.create_producer("renewed")
    files = secure.authority.issue("west")
    after = secure.shown("west")
    assert after != before
    producer.send(b"on the connection of before")
    files.certificate.write_text("half a certifi")
    assert secure.shown("west") == after, "an unusable certificate changes nothing"
    assert "The files read before stay in use" in secure.brokers["west"].log()
    secure.authority.issue("west")
    assert secure.shown("west") not in (before, after)
    client.close()


def test_a_client_certificate_must_be_trusted(secure: Secure) -> None:
    """Clients are asked for a certificate: none is fine, one of an unknown authority is not."""
    for authority, welcome in ((secure.authority, True), (secure.stranger, False)):
        context = secure.context()
        pair = authority.issue("somebody", "somebody.example")
        context.load_cert_chain(pair.certificate, pair.key)
        with socket.create_connection(("127.0.0.1", secure.ports["east"][3]), 10) as plain:
            try:
                with context.wrap_socket(plain, server_hostname="127.0.0.1") as tls:
                    tls.sendall(b"GET /admin/v2/brokers/health HTTP/1.0\r\n\r\n")
                    let_in = tls.recv(4096).startswith(b"HTTP/1.0 200")
            except (ssl.SSLError, ConnectionError):
                let_in = False
        assert let_in is welcome


def test_regions_use_nothing_but_tls(secure: Secure) -> None:
    """Entries, progress and the remote's admin API: a partitioned topic needs all three."""
    topic = "persistent://public/default/across"
    path = "/admin/v2/persistent/public/default/across/partitions"
    east, west = secure.brokers["east"], secure.brokers["west"]
    assert east.http("PUT", path, 2).status == 204
    wait_until(lambda: west.http("GET", path).json.get("partitions") == 2, "west to have both partitions")
    here, there = (secure.client(secure.service_url(region)) for region in REGIONS)
    consumer = there.subscribe(topic, "all", initial_position=pulsar.InitialPosition.Earliest)
    producer = here.create_producer(topic, batching_enabled=False)
    for number in range(4):
        producer.send(b"%d" % number)
    assert {consumer.receive(PATIENCE_MS).data() for _ in range(4)} == {b"0", b"1", b"2", b"3"}
    for client in (here, there):
        client.close()


def test_a_region_with_an_untrusted_certificate_is_not_contacted(secure: Secure, tmp_path: Path) -> None:
    alone = BrokerProcess(
        "south",
        tmp_path / "south",
        peer_token_file=secure.secret_file,
        settings={
            "brokerClientTlsEnabled": "true",
            "brokerClientTrustCertsFilePath": str(secure.stranger.trusted),
        },
    )
    with alone:
        east = {
            "brokerServiceUrl": f"pulsar://127.0.0.1:{secure.ports['east'][0]}",
            "brokerServiceUrlTls": secure.service_url("east"),
        }
        assert alone.http("PUT", "/admin/v2/clusters/east", east).status == 204
        del east["brokerServiceUrlTls"]
        assert alone.http("PUT", "/admin/v2/clusters/plain", east).status == 204
        wait_until(lambda: "certificate verify failed" in alone.log(), "the wrong certificate to be noticed")
        wait_until(
            lambda: "region plain has no brokerServiceUrlTls" in alone.log(), "the missing address to be noticed"
        )


async def test_a_man_in_the_middle_between_two_regions_is_detected(secure: Secure) -> None:
    """It has a certificate that both trust, and relays every byte; but then there are two TLS connections."""
    files = TlsFiles(trusted=secure.authority.trusted)
    options = as_region("south", "east", secure.secret, ClientOptions(tls=client_context(files)))
    direct = await PulsarClientConnection.connect(secure.service_url("east"), options)
    assert direct.is_proven
    await direct.close()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
        writer.close()

    async def relay(
        port: int, context: ssl.SSLContext | None, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        there = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        await asyncio.gather(copy(reader, there[1]), copy(there[0], writer))

    pair = secure.authority.issue("between")
    served_context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    served_context.load_cert_chain(pair.certificate, pair.key)
    for port, context in ((secure.ports["east"][2], secure.context()), (secure.ports["east"][0], None)):
        server = await asyncio.start_server(partial(relay, port, context), "127.0.0.1", 0, ssl=served_context)
        url = f"pulsar+ssl://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(ConnectFailed, match="did not prove that it is region east"):
            await PulsarClientConnection.connect(url, options)
        server.close()

    assert (await calls_as("south", secure.admin_url("east"), secure.secret, options.tls).ask(*ASKED, seconds=30))[
        0
    ] == 404
    for port, context in ((secure.ports["east"][3], secure.context()), (secure.ports["east"][1], None)):
        server = await asyncio.start_server(partial(relay, port, context), "127.0.0.1", 0, ssl=served_context)
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(CallFailed, match="did not prove that it is region east"):
            await calls_as("south", url, secure.secret, options.tls).ask(*ASKED, seconds=30)
        server.close()


def test_the_command_line_over_tls(secure: Secure) -> None:
    trust = ("--tls-trust-certs", str(secure.authority.trusted))

    sent = meridian_text("produce", "typed", "-m", "hello", "--url", secure.service_url("east"), *trust)
    assert sent.returncode == 0, sent.stderr
    url = ("--url", secure.service_url("east"))
    taken = meridian_text("consume", "typed", "-s", "all", "--count", "1", *url, *trust)
    assert (taken.returncode, taken.stdout) == (0, "hello\n"), taken.stderr
    listed = meridian_text("topics", "list", "--url", secure.admin_url("east"), *trust)
    assert "persistent://public/default/typed" in listed.stdout, listed.stderr
    for untrusting in (("consume", "typed", "-s", "all", *url), ("topics", "list", "--url", secure.admin_url("east"))):
        refused = meridian_text(*untrusting)
        assert refused.returncode == 2
        assert "certificate" in refused.stderr.lower()


def test_a_broker_that_requires_client_certificates(secure: Secure, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    ports = free_port(), free_port()
    settings = served(authority.issue("strict"), *ports) | {
        "tlsTrustCertsFilePath": str(authority.trusted),
        "tlsRequireTrustedClientCertOnConnect": "true",
    }
    context = ssl.create_default_context(cafile=str(authority.trusted))
    url = f"https://127.0.0.1:{ports[1]}/admin/v2/brokers/health"
    with BrokerProcess("strict", tmp_path / "data", settings=settings):
        with pytest.raises(OSError, match=r"certificate required|reset|closed"):
            urllib.request.urlopen(url, context=context, timeout=60)
        pair = authority.issue("client", "client.example")
        context.load_cert_chain(pair.certificate, pair.key)
        with urllib.request.urlopen(url, context=context, timeout=60) as answer:
            assert answer.status == 200
