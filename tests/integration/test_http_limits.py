# SPDX-License-Identifier: Apache-2.0
"""What an unauthenticated connection to the HTTP port may use: time, bytes, a connection slot."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from meridian_broker.admin.http import connections
from meridian_broker.admin.http.connections import HttpConnection
from meridian_broker.bounds.http import BODY_BYTES, HEADER_BYTES, HEADERS
from meridian_broker.gateway.places import Hall, Places
from meridian_broker.server.broker import BrokerProcess
from meridian_broker.server.descriptors import RESERVE_MAX, connection_limits, limit
from meridian_broker.topics.service import creation
from meridian_broker.wire.pulsar.topic_name import parse
from support.brokers.broker_inside import broker_inside
from support.brokers.free_ports import free_port

HALF = b"GET /admin/v2/clusters HTTP/1.1\r\nHost: localhost\r\nX-Slow: "
READY = b"GET /admin/v2/brokers/ready HTTP/1.1\r\nHost: localhost\r\n"
PATIENCE = 60.0
PLACES = 8


@dataclass
class Line:
    """One connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def say(self, data: bytes) -> None:
        self.writer.write(data)

    async def status(self) -> int:
        """Status of the next answer, whose body is read too."""
        async with asyncio.timeout(PATIENCE):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode().lower()
            length = next(line for line in head.splitlines() if line.startswith("content-length:"))
            await self.reader.readexactly(int(length.partition(":")[2]))
        return int(head.split()[1])

    async def closed(self) -> bytes:
        """Everything received before the connection closes."""
        async with asyncio.timeout(PATIENCE):
            with contextlib.suppress(ConnectionError):
                return await self.reader.read()
        return b""


@contextlib.asynccontextmanager
async def lines(port: int, count: int = 1) -> AsyncIterator[list[Line]]:
    opened = [Line(*await asyncio.open_connection("127.0.0.1", port)) for _ in range(count)]
    yield opened
    for line in opened:
        line.writer.close()


@pytest.fixture
async def inside(tmp_path: Path) -> AsyncIterator[BrokerProcess]:
    places = {"maxHttpServerConnections": PLACES, "maxHttpServerConnectionsPerIp": PLACES}
    async with broker_inside(tmp_path, probeServicePort=free_port(), **places) as broker:
        yield broker


def http(broker: BrokerProcess) -> int:
    return broker.settings.network.web_service_port


async def test_half_sent_requests_keep_no_newcomer_out(inside: BrokerProcess) -> None:
    async with lines(http(inside), PLACES) as held:
        for line in held:
            line.say(HALF)
        for _ in range(3):
            async with lines(http(inside)) as (probe,):
                probe.say(READY + b"\r\n")
                assert await probe.status() == 200
        assert await held[0].closed() == b""
        held[-1].say(b"x\r\n\r\n")
        assert await held[-1].status() == 200


async def test_headers_and_bodies_that_do_not_arrive_end_their_connection(
    inside: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with lines(http(inside), 3) as (half, second, body):
        second.say(READY + b"\r\n")
        assert await second.status() == 200
        monkeypatch.setattr(connections, "HEADER_SECONDS", 0.05)
        monkeypatch.setattr(connections, "BODY_SECONDS", 0.05)
        half.say(HALF)
        second.say(HALF)
        body.say(b"PUT /admin/v2/tenants/t HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
        async with lines(http(inside)) as (silent,):
            for line in (silent, half, second, body):
                assert b" 408 " in await line.closed()


async def test_headers_are_limited_in_total_size_and_in_number(inside: BrokerProcess) -> None:
    async with lines(http(inside), 2) as (large, many):
        for number in range(HEADER_BYTES // 8000 + 1):
            large.say(b"%sX-%d: %s\r\n" % (READY * (not number), number, b"a" * 8000))
        assert b" 431 " in await large.closed()
        many.say(READY + b"".join(b"X-%d: a\r\n" % number for number in range(HEADERS)) + b"\r\n")
        assert await many.status() == 400
        assert await many.closed() == b""


async def test_answers_that_a_client_does_not_read_end_its_connection(
    inside: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    size, count = 200_000, 100
    await creation.create_plain(inside.service.opener, parse("persistent://public/default/t"), {"k": "v" * size})
    monkeypatch.setattr(connections, "STALLED_SECONDS", 0.05)
    stalled, abort = asyncio.Event(), HttpConnection._abort

    def noted(connection: HttpConnection) -> None:
        abort(connection)
        stalled.set()

    monkeypatch.setattr(HttpConnection, "_abort", noted)
    small = socket.socket()
    small.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    small.setblocking(False)
    await asyncio.get_running_loop().sock_connect(small, ("127.0.0.1", http(inside)))
    line = Line(*await asyncio.open_connection(sock=small))
    line.say(b"GET /admin/v2/persistent/public/default/t/properties HTTP/1.1\r\nHost: localhost\r\n\r\n" * count)
    async with asyncio.timeout(PATIENCE):
        await stalled.wait()
    assert len(await line.closed()) < size * count
    line.writer.close()


async def test_a_body_is_read_up_to_the_limit_of_its_request(inside: BrokerProcess) -> None:
    async with lines(http(inside), 2) as (large, chunked):
        for line, framing in (
            (large, b"Content-Length: %d" % (BODY_BYTES + 1)),
            (chunked, b"Transfer-Encoding: chunked"),
        ):
            line.say(b"PUT /admin/v2/tenants/t HTTP/1.1\r\nHost: localhost\r\n" + framing + b"\r\n\r\n")
        large.say(b"[" * (BODY_BYTES + 1))
        chunked.say(b"%x\r\n" % (BODY_BYTES + 1) + b"[" * (BODY_BYTES + 1))
        assert await large.status() == 413
        assert await chunked.status() == 413


async def test_a_compressed_body_is_refused_and_not_decompressed(inside: BrokerProcess) -> None:
    bomb = gzip.compress(bytes(10_000_000), 1)
    async with lines(http(inside)) as (line,):
        line.say(
            b"PUT /admin/v2/tenants/t HTTP/1.1\r\nHost: localhost\r\nContent-Encoding: gzip\r\n"
            b"Content-Length: %d\r\n\r\n" % len(bomb)
        )
        line.say(bomb)
        assert await line.status() == 415


async def test_clients_that_leave_before_100_continue_are_not_logged(
    inside: BrokerProcess, caplog: pytest.LogCaptureFixture
) -> None:
    async with lines(http(inside), PLACES - 1) as gone:
        for line in gone:
            line.say(b"PUT /admin/v2/tenants/t HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n\r\n")
            line.writer.write_eof()
        for line in gone:
            await line.closed()
    assert "Traceback" not in caplog.text


async def test_an_expectation_that_is_not_text_is_refused(
    inside: BrokerProcess, caplog: pytest.LogCaptureFixture
) -> None:
    async with lines(http(inside)) as (line,):
        line.say(b"GET /nowhere HTTP/1.1\r\nHost: localhost\r\nExpect: \xe9i\x8b\r\n\r\n")
        assert await line.status() == 400
    assert "Traceback" not in caplog.text


async def test_probes_have_a_port_that_nobody_else_can_fill(inside: BrokerProcess) -> None:
    port = inside.settings.network.probe_service_port
    async with lines(http(inside), PLACES), lines(port) as (probe,):
        for path, expected in (("ready", 200), ("live", 200), ("admin/v2/clusters", 404)):
            probe.say(b"GET /%s HTTP/1.1\r\nHost: 10.0.0.1\r\n\r\n" % path.encode())
            assert await probe.status() == expected
        inside.gateway.draining = True
        for path, expected in (("ready", 503), ("live", 200)):
            probe.say(b"GET /%s HTTP/1.1\r\nHost: 10.0.0.1\r\n\r\n" % path.encode())
            assert await probe.status() == expected


class Stood(HttpConnection):
    """A connection without a transport."""

    def __init__(self, address: str) -> None:  # aiohttp's part is omitted
        self.address = address
        self.has_place = True
        self.gave_way = False

    def give_way(self) -> None:
        self.gave_way = True


def test_connections_are_counted_in_total_and_by_address() -> None:
    now = 0.0
    hall = Hall(Places(total=3, per_address=2), lambda: now, "connections")
    one, two = Stood("a"), Stood("a")
    assert hall.enter(one) is None and hall.enter(two) is None
    third = Stood("a")
    assert hall.enter(third) is None
    assert (one.gave_way, two.gave_way) == (True, False)
    hall.leave(one)  # it was removed already
    hall.busy(two)
    hall.busy(third)
    assert "a has reached the limit of 2 active connections" in str(hall.enter(Stood("a")))
    other, last = Stood("b"), Stood("c")
    assert hall.enter(other) is None
    assert hall.enter(last) is None
    assert other.gave_way
    hall.busy(last)
    assert "3 active connections" in str(hall.enter(Stood("d")))
    hall.idle(two)
    assert hall.enter(Stood("d")) is None
    assert two.gave_way
    assert hall.count == 3


def test_some_file_descriptors_are_reserved_for_clients() -> None:
    for files in [*range(1, 3000, 7), 65_536, 1 << 20]:
        for http_most in (8, 2048, 1_000_000):
            parts = connection_limits(files, http_most)
            assert files - sum(parts) >= min(files // 2, RESERVE_MAX)
            assert min(parts) >= 0
            assert parts.http <= http_most
    assert connection_limits(20_000, 2048).clients > 10_000, "the descriptors denied to HTTP are for clients"
    assert limit() > 0
