# SPDX-License-Identifier: Apache-2.0
"""``meridian standalone`` is like Pulsar's standalone to clients and to scripts that set it up over plain HTTP."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest
from support.brokers.broker_process import http, is_healthy, wait_until
from support.brokers.certificates import Authority
from support.brokers.forked_meridian import MERIDIAN
from support.brokers.free_ports import free_port
from support.brokers.region_clients import PATIENCE_MS, connect


class Standalone:
    """The program, with certificates."""

    def __init__(self, directory: Path) -> None:
        self.data = directory / "data"
        self.data.mkdir()
        self.data.chmod(0o755)
        self.authority = Authority(directory)
        pair = self.authority.issue("broker")
        self.port, self.http_port, self.port_tls, self.http_port_tls = (free_port() for _ in range(4))
        config = directory / "standalone.conf"
        config.write_text(
            "# as a script would write it\n"
            f"brokerServicePort={self.port}\nwebServicePort={self.http_port}\n"
            f"brokerServicePortTls={self.port_tls}\nwebServicePortTls={self.http_port_tls}\n"
            f"tlsCertificateFilePath={pair.certificate}\ntlsKeyFilePath={pair.key}\n"
        )
        self._command = [*MERIDIAN, "standalone", "--data-dir", str(self.data), "--config", str(config)]
        self.url = f"http://127.0.0.1:{self.http_port}"
        self.process = self.start()

    def start(self) -> subprocess.Popen[bytes]:
        self.process = subprocess.Popen(self._command, umask=0)  # the loosest umask that a user may have
        wait_until(lambda: is_healthy(self.url), "standalone to be healthy")
        return self.process

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    running = Standalone(tmp_path_factory.mktemp("standalone"))
    yield running
    running.process.kill()
    running.process.wait()


@pytest.fixture(scope="module")
def set_up(standalone: Standalone) -> Standalone:
    """Set it up as the service script of a client library's tests does."""

    def put(path: str, body: object = ..., method: str = "PUT") -> None:
        answer = http(method, f"{standalone.url}/admin/v2/{path}", body)
        assert answer.status == 204, (path, answer.status, answer.body)

    cluster = {"serviceUrl": "http://localhost:8080", "brokerServiceUrl": "pulsar://localhost:6650"}
    assert http("PUT", f"{standalone.url}/admin/v2/clusters/standalone", cluster).status == 409, "the cluster exists"
    put("tenants/private", {"adminRoles": [], "allowedClusters": ["standalone"]})
    put("namespaces/private/auth")
    put("namespaces/public/test-backlog-quotas", {"replication_clusters": ["standalone"]})
    put("namespaces/private/auth/replication", ["standalone"], "POST")
    put("namespaces/private/auth/retention", {"retentionTimeInMinutes": 60, "retentionSizeInMB": 10}, "POST")
    put("namespaces/public/default/deduplication", True, "POST")
    put("persistent/private/auth/parts/partitions", 3)
    put("persistent/public/default/plain")
    put("persistent/public/default/plain/subscription/early", {"ledgerId": -1, "entryId": -1})
    return standalone


def test_defaults_exist_from_the_start(standalone: Standalone) -> None:
    def get(path: str) -> object:
        return http("GET", f"{standalone.url}/admin/v2/{path}").json

    assert get("clusters") == ["standalone"]
    assert "public" in get("tenants")  # type: ignore[operator]
    assert "public/default" in get("namespaces/public")  # type: ignore[operator]
    assert get("clusters/standalone") == {
        "serviceUrl": standalone.url,
        "serviceUrlTls": f"https://127.0.0.1:{standalone.http_port_tls}",
        "brokerServiceUrl": f"pulsar://127.0.0.1:{standalone.port}",
        "brokerServiceUrlTls": f"pulsar+ssl://127.0.0.1:{standalone.port_tls}",
    }


def test_files_are_for_its_own_user_alone(set_up: Standalone) -> None:
    assert http("POST", f"{set_up.url}/meridian/v1/export", {}).status == 200
    stored = [set_up.data, *set_up.data.rglob("*")]
    assert {"metadata.sqlite", "export"} <= {path.name for path in stored}
    assert {path: oct(path.stat().st_mode) for path in stored if path.stat().st_mode & 0o077} == {}
    status = Path(f"/proc/{set_up.process.pid}/status").read_text().splitlines()
    assert "Umask:\t0077" in status, "files created by libraries get no mode of ours"


@pytest.mark.parametrize("scheme", ["pulsar", "pulsar+ssl", "http", "https"])
def test_a_client_by_any_address(set_up: Standalone, scheme: str) -> None:
    ports = {
        "pulsar": set_up.port,
        "pulsar+ssl": set_up.port_tls,
        "http": set_up.http_port,
        "https": set_up.http_port_tls,
    }
    client = pulsar.Client(
        f"{scheme}://127.0.0.1:{ports[scheme]}",
        tls_trust_certs_file_path=str(set_up.authority.trusted),
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
        operation_timeout_seconds=60,
    )
    consumer = client.subscribe("persistent://private/auth/parts", f"by-{scheme.replace('+', '-')}")
    producer = client.create_producer("persistent://private/auth/parts")
    for number in range(6):
        producer.send(b"%d" % number)
    assert sorted(consumer.receive(PATIENCE_MS).data() for _ in range(6)) == [b"%d" % number for number in range(6)]
    client.close()


def test_it_resumes_where_it_stopped(set_up: Standalone) -> None:
    before = connect(f"pulsar://127.0.0.1:{set_up.port}")
    before.create_producer("plain").send(b"kept")
    before.close()
    began = time.monotonic()
    assert set_up.stop() == 0
    assert time.monotonic() - began < 60
    set_up.start()
    after = connect(f"pulsar://127.0.0.1:{set_up.port}")
    assert after.subscribe("plain", "early").receive(PATIENCE_MS).data() == b"kept"
    after.close()
    assert http("GET", f"{set_up.url}/admin/v2/persistent/private/auth/parts/partitions").json["partitions"] == 3
