# SPDX-License-Identifier: Apache-2.0
"""An etcd addressed by name: it is found again when the name gets another address, as with a new pod."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
from meridian_broker.engines.etcd.address import Endpoint
from meridian_broker.engines.etcd.connection import Connection

A_RECORD = 1


class Names(asyncio.DatagramProtocol):
    """A DNS server that answers every name with one IPv4 address."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        question = data[12 : data.index(b"\0", 12) + 5]
        is_asked = int.from_bytes(question[-4:-2]) == A_RECORD
        answer = b"\xc0\x0c\0\1\0\1\0\0\0\0\0\4" + socket.inet_aton(self.address) if is_asked else b""
        counts = b"\0\1" + (b"\0\1" if is_asked else b"\0\0") + b"\0\0\0\0"
        self._transport.sendto(data[:2] + b"\x81\x80" + counts + question + answer, addr)


class Asked(Endpoint):
    """An endpoint whose name is resolved by the test's DNS server."""

    @property
    def target(self) -> str:
        return f"dns://{self.host}/etcd.test:{self.port}"


@asynccontextmanager
async def named(address: str) -> AsyncIterator[tuple[Names, Connection]]:
    """An etcd member on loopback, and a connection to its name, which resolves to this address."""
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    loop = asyncio.get_running_loop()
    transport, names = await loop.create_datagram_endpoint(lambda: Names(address), local_addr=("127.0.0.1", 0))
    resolver = f"127.0.0.1:{transport.get_extra_info('sockname')[1]}"
    connection = Connection(Asked(resolver, port, is_tls=False), (None, None, None))
    try:
        yield names, connection
    finally:
        await connection.channel.close()
        transport.close()
        await server.stop(0)


async def test_a_name_with_another_address_is_looked_up_again_within_seconds() -> None:
    async with named("127.0.0.2") as (names, connection):
        assert not await connection.stands_within(10), "nothing listens there"
        names.address = "127.0.0.1"
        async with asyncio.timeout(10):
            await connection.channel.channel_ready()
