# SPDX-License-Identifier: Apache-2.0
"""A bookie that does not answer the request for TLS as it should is not used, and nothing is sent to it unencrypted."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path
from struct import pack

import pytest
from meridian_broker.engines.bookkeeper.certificates import BookieTls
from meridian_broker.engines.bookkeeper.description import described, login_of, tls_of
from meridian_broker.engines.bookkeeper.securing import encrypted
from meridian_broker.engines.etcd.address import ANONYMOUS, Login
from meridian_broker.wire.proto.bookkeeper_pb2 import Answer
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


async def test_certificates_that_cannot_be_read_are_told(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        await encrypted(BookieTls(tmp_path / "absent"))(asyncio.Protocol, "127.0.0.1", 1)


def test_another_process_is_told_where_the_files_are() -> None:
    login = Login("me", Path("password"), Path("ca"), None, None)
    tls = BookieTls(Path("bookies-ca"), Path("certificate"), Path("key"))
    storage = json.loads(described("http://h:1", "us", login, tls))
    assert (storage["etcd"], storage["region"]) == ("http://h:1", "us")
    assert (login_of(storage), tls_of(storage)) == (login, tls)
    plain = json.loads(described("http://h:1", "us", ANONYMOUS, None))
    assert (login_of(plain), tls_of(plain)) == (ANONYMOUS, None)
