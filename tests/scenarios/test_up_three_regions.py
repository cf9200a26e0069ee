# SPDX-License-Identifier: Apache-2.0
"""``meridian up`` with real brokers, the command line and the real client: what is stored stays."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest
from broker_process import MERIDIAN, kill_etcds
from free_ports import free_base_port

REGIONS = ("us-east", "us-west", "eu-central")
SECONDS_MAX = 60.0

pytestmark = pytest.mark.timeout(180)


class Regions:
    """Three regions on one directory, started and stopped as often as a test likes."""

    def __init__(self, directory: Path, metadata: str) -> None:
        self._directory = directory
        self._metadata = metadata
        self._ports = (free_base_port(3), free_base_port(3))
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        port, http_port = map(str, self._ports)
        self._process = subprocess.Popen(
            [
                *(*MERIDIAN, "up", "--regions", ",".join(REGIONS), "--data-dir", str(self._directory)),
                *("--metadata", self._metadata, "--base-port", port, "--base-http-port", http_port),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert self._process.stdout is not None
        said = []
        for line in self._process.stdout:
            said.append(line)
            if "All regions are up" in line:
                return
        raise AssertionError(f"the regions did not start:\n{''.join(said)}")

    def stop(self) -> str:
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        output, _ = self._process.communicate(timeout=SECONDS_MAX)
        assert self._process.returncode == 0, output
        self._process = None
        return output

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
        kill_etcds(self._directory)

    def record(self, region: str) -> dict[str, Any]:
        document = json.loads((self._directory / "regions.json").read_text(encoding="utf-8"))
        found: dict[str, Any] = {entry["name"]: entry for entry in document["regions"]}[region]
        return found

    def client(self, region: str) -> pulsar.Client:
        logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        return pulsar.Client(self.record(region)["service_url"], logger=logger, operation_timeout_seconds=30)

    def ask(self, region: str, *arguments: str) -> Any:
        """What the command line answers, as JSON."""
        url = self.record(region)["admin_url"]
        done = subprocess.run(
            [*MERIDIAN, *arguments, "--url", url, "--json"], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.fixture(params=["embedded", "etcd"])
def regions(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Regions]:
    up = Regions(tmp_path / "data", request.param)
    up.start()
    yield up
    up.kill()


def receive_all(consumer: pulsar.Consumer, count: int) -> list[bytes]:
    found = []
    for _ in range(count):
        message = consumer.receive(timeout_millis=int(SECONDS_MAX * 1000))
        found.append(message.data())
        consumer.acknowledge(message)
    return found


def test_what_is_stored_survives_a_restart_in_every_region(regions: Regions) -> None:
    sent = [f"message {number}".encode() for number in range(100)]
    client = regions.client("us-east")
    producer = client.create_producer("kept")
    for data in sent:
        producer.send(data)
    client.close()
    # The other regions hold the messages before the restart, or the restart would prove nothing for them.
    for region in REGIONS:
        client = regions.client(region)
        reader = client.create_reader("kept", pulsar.MessageId.earliest)
        assert [reader.read_next(timeout_millis=int(SECONDS_MAX * 1000)).data() for _ in sent] == sent, region
        client.close()
    said = regions.stop()
    assert all(re.search(rf"{region} stopped in", said) for region in REGIONS)
    regions.start()
    for region in REGIONS:
        client = regions.client(region)
        consumer = client.subscribe("kept", f"later-{region}", initial_position=pulsar.InitialPosition.Earliest)
        assert receive_all(consumer, len(sent)) == sent, region
        client.close()


def test_the_command_line_sets_up_and_sees(regions: Regions) -> None:
    for region in REGIONS:
        assert {row["name"] for row in regions.ask(region, "regions", "list")} == set(REGIONS)
    assert "public" in regions.ask("us-west", "tenants", "list")
    regions.ask("us-east", "tenants", "create", "shop")
    regions.ask("us-east", "namespaces", "create", "shop/orders", "--cluster", "us-east")
    assert regions.ask("us-east", "namespaces", "list", "shop") == ["shop/orders"]
    regions.ask("us-east", "topics", "create", "shop/orders/paid", "--partitions", "3")
    assert regions.ask("us-east", "topics", "partitions", "shop/orders/paid") == 3
    regions.ask("us-east", "topics", "create", "shop/orders/open")
    regions.ask("us-east", "subscriptions", "create", "shop/orders/open", "billing", "--from", "earliest")
    assert regions.ask("us-east", "subscriptions", "list", "shop/orders/open") == ["billing"]
    stats = regions.ask("us-east", "topics", "stats", "shop/orders/open")
    assert stats["subscriptions"]["billing"]["msgBacklog"] == 0
    regions.ask("us-east", "subscriptions", "delete", "shop/orders/open", "billing")
    regions.ask("us-east", "topics", "delete", "shop/orders/open")
    deadline = time.monotonic() + SECONDS_MAX
    while "persistent://shop/orders/open" in regions.ask("us-east", "topics", "list", "shop/orders"):
        assert time.monotonic() < deadline
