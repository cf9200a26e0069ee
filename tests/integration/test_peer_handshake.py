# SPDX-License-Identifier: Apache-2.0
"""Regions that prove to each other who they are, over real sockets: what a false region learns, and who is refused."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web
from meridian_broker.gateway.client import PulsarClientConnection
from meridian_broker.gateway.client_errors import ConnectFailed
from meridian_broker.gateway.client_options import PEER_AUTH_METHOD, peer_options
from meridian_broker.gateway.peer_identity import PeerIdentity
from meridian_broker.gateway.region_calls import CallFailed
from meridian_broker.wire.peer_proof import pack
from meridian_broker.wire.peer_requests import PROOF_HEADER, SCHEME, Call, Caller
from meridian_broker.wire.proto import peer_pb2
from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar import encode
from meridian_broker.wire.pulsar.frames import FrameDecoder
from support.brokers.broker_process import BrokerProcess, HttpAnswer, http, wait_until
from support.brokers.free_ports import free_port
from support.brokers.peers import SECRET, as_region, calls_as, identity, now_ms
from support.protocol.raw_connection import RawConnection, T


class FalseRegion:
    """Listens at a region's address, and answers CONNECT as the test says."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.heard = b""
        self.connects: asyncio.Queue[pb.CommandConnect] = asyncio.Queue()
        self.answers: list[bytes] = []
        self.writers: list[asyncio.StreamWriter] = []
        self.more: asyncio.Queue[Any] = asyncio.Queue()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        decoder = FrameDecoder()
        self.writers.append(writer)
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                self.heard += data
                commands: list[Any] = decoder.feed(data)
                for command in commands:
                    if command[0] == T.CONNECT:
                        self.connects.put_nowait(command.message)
                        writer.write(b"".join(self.answers))
                    else:
                        self.more.put_nowait(command)
        writer.close()


@pytest.fixture(scope="module")
def east(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker configured with the test's listener as region ``false``."""
    directory = tmp_path_factory.mktemp("handshake")
    port, admin, false, false_admin = (free_port() for _ in range(4))
    listed = [
        {"name": name, "service_url": f"pulsar://127.0.0.1:{one}", "admin_url": f"http://127.0.0.1:{two}"}
        for name, one, two in (("east", port, admin), ("false", false, false_admin))
    ]
    (directory / "regions.json").write_text(json.dumps({"regions": listed}))
    (directory / "secret").write_bytes(SECRET)
    broker = BrokerProcess(
        *("east", directory / "east"),
        port=port,
        http_port=admin,
        regions_file=directory / "regions.json",
        peer_token_file=directory / "secret",
    )
    with broker:
        yield broker


@pytest_asyncio.fixture
async def false(east: BrokerProcess) -> AsyncIterator[FalseRegion]:
    listed = json.loads((east.data_dir.parent / "regions.json").read_text())["regions"]
    region = FalseRegion(int(listed[1]["service_url"].rpartition(":")[2]))
    server = await asyncio.start_server(region.serve, "127.0.0.1", region.port)
    yield region
    server.close()
    for writer in region.writers:
        writer.close()


def said(kind: int, message: Any) -> bytes:
    return bytes(encode.simple(kind, message))


CONNECTED = said(
    T.CONNECTED,
    pb.CommandConnected(server_version="x", feature_flags=pb.FeatureFlags(peer_protocol_version=4)),
)
FORGED = said(
    T.AUTH_CHALLENGE,
    pb.CommandAuthChallenge(
        challenge=pb.AuthData(auth_method_name=PEER_AUTH_METHOD, auth_data=pack(bytes(8), bytes(32), bytes(32)))
    ),
)
DELTA = said(1001, peer_pb2.Delta(number=1))


@pytest.mark.parametrize(
    "answers",
    [[], [CONNECTED], [FORGED], [FORGED, CONNECTED], [DELTA]],
    ids=["mute", "at once", "forged", "both", "delta"],
)
async def test_a_false_region_learns_nothing(east: BrokerProcess, false: FalseRegion, answers: list[bytes]) -> None:
    false.answers = answers
    connect = await asyncio.wait_for(false.connects.get(), 60)
    assert connect.auth_method_name == PEER_AUTH_METHOD
    again = await asyncio.wait_for(false.connects.get(), 60)
    assert connect.auth_data != again.auth_data, "each handshake has its own nonce"
    assert SECRET not in false.heard
    assert false.more.empty(), "nothing follows the first message"
    status = {one["name"]: one for one in east.http("GET", "/meridian/v1/regions").json["regions"]}
    assert status["false"]["progress"]["connected"] is False


async def test_a_replayed_handshake_is_refused(east: BrokerProcess) -> None:
    """Everything a peer sent is sent again, byte for byte."""
    recorded: list[bytes] = []

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_reader, to_writer = await asyncio.open_connection("127.0.0.1", east.port)

        async def back() -> None:
            while data := await to_reader.read(65536):
                writer.write(data)
            writer.close()

        answering = asyncio.create_task(back())
        while data := await reader.read(65536):
            recorded.append(data)
            to_writer.write(data)
        to_writer.close()
        await answering

    server = await asyncio.start_server(forward, "127.0.0.1", 0)
    url = f"pulsar://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    connection = await PulsarClientConnection.connect(url, as_region("south", "east"))
    assert connection.is_proven
    await connection.close()
    server.close()
    heard: list[Any] = [command for part in recorded[:2] for command in FrameDecoder().feed(part)]
    connect, response = heard
    raw = RawConnection(*await asyncio.open_connection("127.0.0.1", east.port))
    raw.say(T.CONNECT, connect.message)
    assert SECRET not in (await raw.hear(T.AUTH_CHALLENGE)).challenge.auth_data
    raw.say(T.AUTH_RESPONSE, response.message)
    assert "the proof is wrong" in (await raw.hear(T.ERROR)).message
    assert await raw.ended()
    await raw.close()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (as_region("south", "east", b"another secret, just as long as it"), "different peer secrets"),
        (as_region("south", "west"), "this is region east, not 'west'"),
        (as_region("east", "east"), "this is region east itself"),
        (as_region("south", "east").towards("ea\nst"), r"not 'ea\\nst'"),
    ],
)
async def test_who_is_refused(east: BrokerProcess, options: Any, why: str) -> None:
    with pytest.raises(ConnectFailed, match=why):
        await PulsarClientConnection.connect(east.service_url, options)


@pytest.mark.parametrize(
    "words", [(T.AUTH_RESPONSE,), (T.CONNECT, T.CONNECT), (T.CONNECT, T.AUTH_RESPONSE, T.PRODUCER)]
)
async def test_handshakes_out_of_order_end_the_connection(east: BrokerProcess, words: tuple[int, ...]) -> None:
    options = as_region("south", "east")
    assert options.peer is not None
    opening = options.peer.dial("east", b"").opening()
    messages: dict[int, Any] = {
        T.CONNECT: pb.CommandConnect(client_version="raw", auth_method_name=PEER_AUTH_METHOD, auth_data=opening),
        T.AUTH_RESPONSE: pb.CommandAuthResponse(response=pb.AuthData(auth_data=bytes(32))),
        T.PRODUCER: pb.CommandProducer(topic="t", producer_id=1, request_id=1),
    }
    raw = RawConnection(*await asyncio.open_connection("127.0.0.1", east.port))
    for word in words:
        raw.say(word, messages[word])
    heard = []
    with contextlib.suppress(AssertionError):
        while True:
            heard.append((await raw.hear_any())[0])
    assert T.CONNECTED not in heard
    assert T.PRODUCER_SUCCESS not in heard
    await raw.close()


async def test_a_region_speaks_for_itself_alone(east: BrokerProcess) -> None:
    source = peer_pb2.ReplicationSource(region="west", incarnation="")
    wanted = peer_pb2.EntriesWanted(region="west", topic="t", origin="east", request_id=1)
    hello = peer_pb2.ProgressHello(region="west", protocol_version=4, next_delta=1)
    for kind, message in ((T.PROGRESS_HELLO, hello), (T.ENTRIES_WANTED, wanted)):
        connection = await PulsarClientConnection.connect(east.service_url, as_region("south", "east"))
        connection.write([encode.simple(kind, message)])
        async with asyncio.timeout(60):
            assert "closed the connection" in await connection.wait_lost()
    connection = await PulsarClientConnection.connect(east.service_url, as_region("south", "east"))
    producer = pb.CommandProducer(topic="t", producer_name="pulsar.repl.west", replication_source=source)
    with pytest.raises(Exception, match="south may replicate its own messages"):
        await connection.open_producer(producer, Deaf())
    await connection.close()


class Deaf:
    """A producer that receives nothing."""

    def receipt(self, receipt: pb.CommandSendReceipt) -> None: ...

    def send_error(self, error: pb.CommandSendError) -> None: ...

    def producer_closed(self, reason: str) -> None: ...


TOPIC = "/admin/v2/persistent/public/default/asked"


@pytest.mark.parametrize("status", [200, 401, 404])
async def test_a_false_region_that_is_called_learns_nothing_and_is_not_believed(
    east: BrokerProcess, status: int
) -> None:
    """A deletion first asks the other regions who uses the topic there."""
    asked: list[tuple[str, str, bytes]] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append((request.method, str(request.raw_headers), await request.read()))
        headers = {
            "WWW-Authenticate": SCHEME + base64.b64encode(pack(bytes(32), bytes(8), bytes(8), bytes(32))).decode()
        }
        return web.json_response({"reason": "be\nlieve", "subscriptions": {}}, status=status, headers=headers)

    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    listed = json.loads((east.data_dir.parent / "regions.json").read_text())["regions"]
    await web.TCPSite(runner, "127.0.0.1", int(listed[1]["admin_url"].rpartition(":")[2])).start()
    assert (await asyncio.to_thread(east.http, "PUT", TOPIC)).status in (204, 409)
    refused = await asyncio.to_thread(east.http, "DELETE", TOPIC)
    await runner.cleanup()
    assert refused.status == 412
    assert "false cannot be asked" in refused.reason
    assert "\n" not in refused.reason
    assert asked
    for method, headers, body in asked:
        assert (method, body) == ("GET", b"")
        assert SECRET.decode() not in headers


async def test_a_call_is_accepted_once_and_only_unaltered(east: BrokerProcess) -> None:
    one = identity("south")
    caller = Caller(one.region, "east", one.secrets, one.random)
    path = f"{TOPIC}/stats"

    def say(header: str, path: str = path) -> HttpAnswer:
        return http("GET", east.admin_url + path, headers={"Authorization": header})

    header, nonce = caller.greeting()
    challenge = say(header)
    assert challenge.status == 401
    caller.challenged(challenge.headers["WWW-Authenticate"], nonce, b"", now_ms())
    signed = caller.sign(Call("GET", path, b""), b"", now_ms())
    assert "changed in transit" in say(signed.header, "/admin/v2/persistent/public/default/other/stats").reason
    answer = say(signed.header)
    assert answer.status in (200, 404)
    caller.check(signed, answer.status, answer.body, answer.headers[PROOF_HEADER])
    again = say(signed.header)
    assert (again.status, again.reason) == (401, "this request was received before")
    for noise in ("Meridian-Peer x", "Meridian-Peer " + "A" * 4000, "Meridian-Peer AAAAAA=="):
        assert say(noise).status == 401


async def test_a_call_survives_a_restart_of_the_called_region(east: BrokerProcess) -> None:
    calls = calls_as("south", east.admin_url)
    for _ in range(2):
        status, _ = await calls.ask("east", "GET", "/admin/v2/persistent/public/default/none/stats", seconds=30)
        assert status == 404
        await asyncio.to_thread(east.kill)
        await asyncio.to_thread(east.start)


async def test_a_call_with_another_secret_is_refused(east: BrokerProcess) -> None:
    with pytest.raises(CallFailed, match=r"answered 401.*different peer secrets"):
        await calls_as("south", east.admin_url, b"another secret, just as long as it").ask(
            "east", "GET", TOPIC, seconds=30
        )


async def test_a_link_ends_when_the_secret_it_used_is_removed(east: BrokerProcess) -> None:
    secrets = [b"the secret that is about to come" * 2, SECRET]
    options = peer_options(PeerIdentity("north", lambda: tuple(secrets), os.urandom)).towards("east")
    connection = await PulsarClientConnection.connect(east.service_url, replace(options, keep_alive=0.05))
    assert connection.is_proven
    secrets.remove(SECRET)
    assert "the peer secret that" in await asyncio.wait_for(connection.wait_lost(), 60)
    await connection.close()


def test_regions_with_different_secrets_report_it(tmp_path: Path) -> None:
    ports = {name: (free_port(), free_port()) for name in ("left", "right")}
    listed = [
        {"name": name, "service_url": f"pulsar://127.0.0.1:{port}", "admin_url": f"http://127.0.0.1:{admin}"}
        for name, (port, admin) in ports.items()
    ]
    (tmp_path / "regions.json").write_text(json.dumps({"regions": listed}))
    with contextlib.ExitStack() as stack:
        for number, (name, (port, admin)) in enumerate(ports.items()):
            (tmp_path / f"{name}.secret").write_text(str(number) * 32)
            broker = BrokerProcess(
                *(name, tmp_path / name),
                port=port,
                http_port=admin,
                regions_file=tmp_path / "regions.json",
                peer_token_file=tmp_path / f"{name}.secret",
            )
            stack.enter_context(broker.start(wait=False))
        broker.wait_healthy()

        def problem() -> str:
            listed = broker.http("GET", "/meridian/v1/regions").json["regions"]
            left = next(one for one in listed if one["name"] == "left")
            return str(left.get("progress", {}).get("problem") or "")

        wait_until(lambda: "different peer secrets" in problem(), "the status to say why")
        assert "progress link to left is down" in broker.log()
        assert "all regions need the same one (peerTokenFile)" in broker.log()
