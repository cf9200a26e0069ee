# SPDX-License-Identifier: Apache-2.0
"""A bookie that answers the request for TLS wrongly is not used, and nothing is sent to it unencrypted."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import Callable
from pathlib import Path
from struct import pack
from typing import cast

import pytest
import uvloop
from meridian_broker.engines.bookkeeper.certificates import BookieTls
from meridian_broker.engines.bookkeeper.description import described, login_of, tls_of
from meridian_broker.engines.bookkeeper.entries import explicit_lac
from meridian_broker.engines.bookkeeper.lac import READ_LAC, exchange, last_confirmed, read_request
from meridian_broker.engines.bookkeeper.securing import START_TLS, connect_tcp, encrypted
from meridian_broker.engines.etcd.address import ANONYMOUS, Login
from meridian_broker.wire.proto.bookkeeper_pb2 import Answer, Request
from support.brokers.certificates import Authority

TLS_HANDSHAKE = b"\x16\x03"


def framed(body: bytes) -> bytes:
    return pack(">I", len(body)) + body


def refused(status: int) -> bytes:
    answer = Answer(status=status)
    answer.header.operation = 9
    return framed(answer.SerializeToString())


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (refused(502), "does not serve TLS"),
        (framed(b"\xff" * 40), "does not serve TLS"),
        (pack(">I", 1 << 31) + b"x", "does not serve TLS"),
        (b"\x00\x00", "closed the connection"),
        (b"", "closed the connection"),
        (refused(0) + b"no handshake", "^"),
    ],
)
async def test_a_bookie_that_refuses_encryption_is_not_used(tmp_path: Path, said: bytes, error: str) -> None:
    heard: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(int.from_bytes(await reader.readexactly(4)))
        for byte in said:
            writer.write(bytes([byte]))
        writer.write_eof()
        received = b""
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                received += data
        writer.close()
        heard.set_result(received)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    connect = encrypted(BookieTls(Authority(tmp_path).trusted))
    with pytest.raises(OSError, match=error):
        await connect(asyncio.Protocol, "127.0.0.1", server.sockets[0].getsockname()[1])
    received = await heard
    assert not received or received.startswith(TLS_HANDSHAKE)
    server.close()
    await server.wait_closed()


async def test_certificates_that_cannot_be_read_are_reported(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        await encrypted(BookieTls(tmp_path / "absent"))(asyncio.Protocol, "127.0.0.1", 1)


class Bookie:
    """Answers START_TLS and READ_LAC, and echoes every version 2 frame."""

    def __init__(self, server: ssl.SSLContext) -> None:
        self._context = server
        self.connections: set[asyncio.Task[None] | None] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections.add(asyncio.current_task())
        with contextlib.suppress(EOFError, OSError):
            while True:
                body = await reader.readexactly(int.from_bytes(await reader.readexactly(4)))
                if body[0] == 2:
                    writer.write(framed(body))
                    continue
                request = Request.FromString(body)
                answer = Answer(status=0)
                answer.header.operation = request.header.operation
                answer.header.request = request.header.request
                if request.header.operation == READ_LAC:
                    answer.read_lac.explicit_body = explicit_lac(7, 41)
                writer.write(framed(answer.SerializeToString()))
                if request.header.operation == START_TLS:
                    await writer.drain()
                    await writer.start_tls(self._context)
        writer.close()


class Echoed(asyncio.BufferedProtocol):
    """Sends a frame, as connections to bookies do, and receives its echo."""

    def __init__(self) -> None:
        self.heard: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._buffer = bytearray(100)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast("asyncio.WriteTransport", transport).writelines([b"\x00\x00\x00\x03", b"\x02ab"])

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.heard.set_result(bytes(self._buffer[:nbytes]))


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_both_event_loops_speak_with_and_without_encryption(tmp_path: Path, run: Callable[..., None]) -> None:
    """Brokers run on uvloop, whose transports are not asyncio's classes."""
    authority = Authority(tmp_path)
    pair = authority.issue("bookie")
    server_context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server_context.load_cert_chain(pair.certificate, pair.key)

    async def speak() -> None:
        bookie = Bookie(server_context)
        server = await asyncio.start_server(bookie.serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        for connect in (connect_tcp, encrypted(BookieTls(authority.trusted))):
            made: list[Echoed] = []
            transport = await connect(lambda made=made: made.append(Echoed()) or made[0], "127.0.0.1", port)  # type: ignore[misc]
            assert await made[0].heard == b"\x00\x00\x00\x03\x02ab"
            transport.close()
            answers = await exchange(
                lambda protocol, connect=connect: connect(protocol, "127.0.0.1", port),  # type: ignore[misc]
                [read_request(7), read_request(7)],
                10.0,
            )
            assert [last_confirmed(7, answer) for answer in answers] == [41, 41]
        await asyncio.wait([task for task in bookie.connections if task is not None])
        server.close()
        await server.wait_closed()

    run(speak())


def test_another_process_is_told_where_the_files_are() -> None:
    login = Login("me", Path("password"), Path("ca"), None, None)
    tls = BookieTls(Path("bookies-ca"), Path("certificate"), Path("key"))
    storage = json.loads(described("http://h:1", "us", login, tls))
    assert (storage["etcd"], storage["region"]) == ("http://h:1", "us")
    assert (login_of(storage), tls_of(storage)) == (login, tls)
    plain = json.loads(described("http://h:1", "us", ANONYMOUS, None))
    assert (login_of(plain), tls_of(plain)) == (ANONYMOUS, None)
