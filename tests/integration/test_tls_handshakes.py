# SPDX-License-Identifier: Apache-2.0
"""TLS handshakes that never end: bounded in number and time, while honest clients connect."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from meridian_broker.gateway import tls_listeners
from meridian_broker.server.broker import BrokerProcess
from meridian_broker.server.descriptors import connection_limits
from meridian_broker.wire.proto import pulsar_pb2 as pb
from support.brokers.broker_inside import broker_inside
from support.brokers.certificates import Authority, served
from support.brokers.free_ports import free_port
from support.protocol.raw_connection import RawConnection, T

FILES = 2048
"""The limit of open files that the broker assumes: low enough to reach quickly."""
HALF_OPEN = 150
"""Connections to each of two ports: several times as many as there are places."""
HELLO = bytes.fromhex("160301020001000100")
"""The beginning of a ClientHello that announces more bytes than follow."""
PATIENCE = 60.0


class Secure:
    """A broker that serves TLS."""

    def __init__(self, broker: BrokerProcess, authority: Authority, ports: tuple[int, int]) -> None:
        self.broker = broker
        self.port, self.https = ports
        self._context = ssl.create_default_context(cafile=str(authority.trusted))

    async def connect(self) -> RawConnection:
        line = RawConnection(*await asyncio.open_connection("127.0.0.1", self.port, ssl=self._context))
        line.say(T.CONNECT, pb.CommandConnect(client_version="raw", protocol_version=21))
        await line.hear(T.CONNECTED)
        return line

    async def ask(self) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.https, ssl=self._context)
        writer.write(b"GET /admin/v2/clusters HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        answer = await reader.read()
        writer.close()
        return answer


@pytest.fixture
async def secure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Secure]:
    monkeypatch.setattr("meridian_broker.server.broker.limit", lambda: FILES)
    authority, ports = Authority(tmp_path), (free_port(), free_port())
    async with broker_inside(tmp_path / "data", **served(authority.issue("secure"), *ports)) as broker:
        yield Secure(broker, authority, ports)


Line = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def half_open(port: int, said: bytes) -> Line:
    line = await asyncio.open_connection("127.0.0.1", port)
    line[1].write(said)
    return line


async def ended(line: Line) -> None:
    async with asyncio.timeout(PATIENCE):
        with contextlib.suppress(ConnectionError):
            await line[0].read()


async def test_handshakes_that_never_end_keep_no_honest_client_out(
    secure: Secure, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Silent connections and half ClientHellos, at both ports: the oldest make room long before their deadline."""
    monkeypatch.setattr(tls_listeners, "HANDSHAKE_SECONDS", 3600.0)
    ports = (secure.port, secure.https)
    held = [await half_open(port, said) for _ in range(HALF_OPEN // 2) for said in (b"", HELLO) for port in ports]
    async with asyncio.timeout(PATIENCE):
        line = await secure.connect()
        assert (await secure.ask()).startswith(b"HTTP/1.1 200")
    places = (connection_limits(FILES, 2048).handshakes + 1) // 2  # all of them come from one address
    for one in held[: len(held) - places]:
        await ended(one)
    assert not any(reader.at_eof() for reader, _ in held[len(held) - places + 2 :])
    await line.producer("persistent://public/default/held")
    await line.close()
    for _, writer in held:
        writer.close()


async def test_a_handshake_has_a_deadline(secure: Secure, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls_listeners, "HANDSHAKE_SECONDS", 0.05)
    for said in (b"", HELLO):
        for port in (secure.port, secure.https):
            line = await half_open(port, said)
            await ended(line)
            line[1].close()


async def test_clients_that_leave_during_the_handshake_leave_nothing_behind(
    secure: Secure, caplog: pytest.LogCaptureFixture
) -> None:
    """They close their half of the connection, or reset it, before and after their first bytes."""
    for said in (b"", HELLO, b"GET / HTTP/1.1\r\n\r\n"):
        for breaks in (False, True):
            reader, writer = await half_open(secure.port, said)
            if breaks:
                plain = writer.get_extra_info("socket")
                plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            else:
                writer.write_eof()
                await ended((reader, writer))
            writer.close()
    await (await secure.connect()).close()
    assert not [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]


async def test_bytes_that_arrive_with_the_end_of_the_handshake_are_read(secure: Secure) -> None:
    """A client may send its request in the packet that completes its handshake."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    client = context.wrap_bio(incoming, outgoing)
    reader, writer = await asyncio.open_connection("127.0.0.1", secure.https)
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                client.do_handshake()
                break
            except ssl.SSLWantReadError:
                writer.write(outgoing.read())
                incoming.write(await reader.read(1 << 16))
        client.write(b"GET /admin/v2/clusters HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        writer.write(outgoing.read())
        said = b""
        while b"inside" not in said:
            incoming.write(await reader.read(1 << 16))
            with contextlib.suppress(ssl.SSLWantReadError):
                said += client.read()
    assert said.startswith(b"HTTP/1.1 200")
    writer.close()
