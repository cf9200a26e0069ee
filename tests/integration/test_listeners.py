# SPDX-License-Identifier: Apache-2.0
"""Named listeners: clients of different networks are sent to different addresses of one broker."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest
from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar.errors import ServerError
from support.brokers.broker_process import BrokerProcess, http
from support.brokers.forked_meridian import meridian_text
from support.brokers.free_ports import free_port
from support.protocol.raw_connection import RawConnection

T = pb.BaseCommand
TOPIC = "persistent://public/default/somewhere"
LOOKUP = "/lookup/v2/topic/persistent/public/default/somewhere"


@pytest.fixture(scope="module")
def inside() -> int:
    return free_port()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, inside: int) -> Iterator[BrokerProcess]:
    """Brokers reach it at its own port, clients inside at another port, and listener "far" is an address elsewhere."""
    port = free_port()
    settings = {
        "advertisedListeners": (
            f"near:pulsar://127.0.0.1:{port},inside:pulsar://localhost:{inside},"
            "far:pulsar://far.example:6650,far:pulsar+ssl://far.example:6651,far:https://far.example:443"
        ),
        "bindAddresses": f"inside:pulsar://127.0.0.1:{inside}",
    }
    with BrokerProcess("one", tmp_path_factory.mktemp("broker"), port=port, settings=settings) as process:
        yield process


async def looked_up(port: int, listener: str = "") -> pb.CommandLookupTopicResponse:
    connection = await RawConnection.open(port)
    asked = pb.CommandLookupTopic(topic=TOPIC, request_id=1, advertised_listener_name=listener or None)
    connection.say(T.LOOKUP, asked)
    answer: pb.CommandLookupTopicResponse = await connection.hear(T.LOOKUP_RESPONSE)
    await connection.close()
    return answer


async def test_a_lookup_names_the_listener(broker: BrokerProcess, inside: int) -> None:
    assert (await looked_up(broker.port)).brokerServiceUrl == broker.service_url, "the first one is the internal one"
    assert (await looked_up(broker.port, "inside")).brokerServiceUrl == f"pulsar://localhost:{inside}"
    far = await looked_up(broker.port, "far")
    assert (far.brokerServiceUrl, far.brokerServiceUrlTls) == (
        "pulsar://far.example:6650",
        "pulsar+ssl://far.example:6651",
    )


async def test_a_client_of_a_bind_address_is_given_its_listener(broker: BrokerProcess, inside: int) -> None:
    assert (await looked_up(inside)).brokerServiceUrl == f"pulsar://localhost:{inside}"
    assert (await looked_up(inside, "near")).brokerServiceUrl == broker.service_url


async def test_an_unknown_listener(broker: BrokerProcess) -> None:
    answer = await looked_up(broker.port, "nowhere")
    assert answer.response == pb.CommandLookupTopicResponse.Failed
    assert answer.error == ServerError.SERVICE_NOT_READY
    assert "'nowhere'" in answer.message


def test_lookup_over_http(broker: BrokerProcess, inside: int) -> None:
    assert broker.http("GET", LOOKUP).json["brokerUrl"] == broker.service_url
    asked = broker.http("GET", f"{LOOKUP}?listenerName=inside").json
    assert (asked["brokerUrl"], asked["httpUrl"]) == (f"pulsar://localhost:{inside}", broker.admin_url)
    headers = {"X-Pulsar-ListenerName": "far"}
    assert http("GET", broker.admin_url + LOOKUP, headers=headers).json == {
        "brokerUrl": "pulsar://far.example:6650",
        "brokerUrlTls": "pulsar+ssl://far.example:6651",
        "httpUrl": None,
        "httpUrlTls": "https://far.example:443",
        "nativeUrl": "pulsar://far.example:6650",
    }
    refused = broker.http("GET", f"{LOOKUP}?listenerName=nowhere")
    assert (refused.status, "'nowhere'" in refused.reason) == (503, True)


def test_the_client_names_its_listener(broker: BrokerProcess) -> None:
    def client(listener: str, seconds: int) -> pulsar.Client:
        options = {"listener_name": listener, "operation_timeout_seconds": seconds}
        return pulsar.Client(broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error), **options)

    good = client("inside", 60)
    good.create_producer(TOPIC).send(b"hello")
    good.close()
    for listener in ("nowhere", "far"):
        lost = client(listener, 2)
        with pytest.raises(pulsar.PulsarException):
            lost.create_producer(TOPIC)
        lost.close()


def test_an_advertised_address(tmp_path: Path) -> None:
    with BrokerProcess("two", tmp_path / "data", settings={"advertisedAddress": "localhost"}) as broker:
        assert broker.http("GET", LOOKUP).json["brokerUrl"] == f"pulsar://localhost:{broker.port}"
        assert broker.http("GET", "/admin/v2/clusters/two").json["serviceUrl"] == f"http://localhost:{broker.http_port}"


def test_the_command_line_asks_for_a_listener(broker: BrokerProcess) -> None:
    def produce(listener: str) -> subprocess.CompletedProcess[str]:
        return meridian_text(*("produce", "named", "-m", "x", "--url", broker.service_url, "--listener-name", listener))

    assert produce("inside").returncode == 0
    refused = produce("nowhere")
    assert refused.returncode != 0
    assert "'nowhere'" in refused.stderr
