# SPDX-License-Identifier: Apache-2.0
"""Connections to bookies, encrypted if the region's bookies have certificates.

A bookie serves TLS on its ordinary port. A client asks for it with one version 3 request; after the answer, both begin
the handshake, and then either protocol version can be spoken. The bookie's certificate must name the host that it is
registered with. Certificates are read again for each connection, so they can be replaced at any time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from struct import Struct
from typing import Final, cast

from google.protobuf.message import DecodeError

from meridian_broker.engines.bookkeeper.certificates import BookieTls
from meridian_broker.wire.proto.bookkeeper_pb2 import Answer, Request

VERSION: Final = 3
START_TLS: Final = 9
ANSWER_BYTES_MAX: Final = 1 << 16

_LENGTH = Struct(">I")

Connect = Callable[[Callable[[], asyncio.BaseProtocol], str, int], Awaitable[asyncio.BaseTransport]]
"""Connects a protocol to host and port, or raises OSError."""


async def connect_tcp(protocol: Callable[[], asyncio.BaseProtocol], host: str, port: int) -> asyncio.BaseTransport:
    """``Connect`` without encryption."""
    transport, _ = await asyncio.get_running_loop().create_connection(protocol, host, port)
    return transport


def encrypted(tls: BookieTls) -> Connect:
    """``Connect`` with these certificates."""
    return partial(_connect_tls, tls)


async def _connect_tls(
    tls: BookieTls, protocol: Callable[[], asyncio.BaseProtocol], host: str, port: int
) -> asyncio.BaseTransport:
    loop = asyncio.get_running_loop()
    context = await loop.run_in_executor(None, tls.context)
    plain, asking = await loop.create_connection(_Asking, host, port)
    try:
        await asking.answered
        made = protocol()
        secured = await loop.start_tls(plain, made, context, server_hostname=host)
        if secured is None:
            raise ConnectionResetError("the connection ended during the TLS handshake")
    except BaseException:
        plain.abort()
        raise
    made.connection_made(secured)
    return secured


class _Asking(asyncio.Protocol):
    """Asks a bookie for TLS. ``answered`` ends once the handshake may begin, or with an OSError."""

    def __init__(self) -> None:
        self.answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        request = Request()
        request.header.version = VERSION
        request.header.operation = START_TLS
        request.header.request = 0
        request.start_tls.SetInParent()
        frame = request.SerializeToString()
        cast("asyncio.WriteTransport", transport).write(
            _LENGTH.pack(len(frame)) + frame
        )  # uvloop's transport has another class

    def data_received(self, data: bytes) -> None:
        self._received += data
        if self.answered.done() or len(self._received) < _LENGTH.size:
            return
        (length,) = _LENGTH.unpack_from(self._received)
        if len(self._received) >= _LENGTH.size + length or length > ANSWER_BYTES_MAX:
            self._take(self._received[_LENGTH.size : _LENGTH.size + length])

    def _take(self, body: bytes) -> None:
        try:
            answer = Answer.FromString(body)
        except DecodeError:
            answer = Answer(status=-1)
        if answer.status == 0:
            self.answered.set_result(None)
        else:
            self.answered.set_exception(
                ConnectionRefusedError(
                    f"the bookie does not serve TLS (status {answer.status}): give it a certificate, or leave "
                    "bookkeeperTLSTrustCertsFilePath empty"
                )
            )

    def connection_lost(self, error: Exception | None) -> None:
        if not self.answered.done():
            self.answered.set_exception(error or ConnectionResetError("the bookie closed the connection"))
