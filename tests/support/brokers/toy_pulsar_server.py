# SPDX-License-Identifier: Apache-2.0
"""A server that speaks just enough Pulsar for the tests of our client, and misbehaves on demand.

``answers`` maps a command's type to a function ``(connection, command) -> None``; commands without one are collected in
``received``. Tests replace or remove entries to inject faults.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

from meridian_broker.wire.peer_proof import unpack
from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar import encode
from meridian_broker.wire.pulsar.frames import FrameDecoder
from support.brokers.peers import identity

T = pb.BaseCommand


class ToyConnection(asyncio.Protocol):
    def __init__(self, server: ToyServer) -> None:
        self.server = server
        self.decoder = FrameDecoder()
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.server.connections.append(self)
        self.server.accepted += 1
        self.server.changed.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.server.connections.remove(self)
        self.server.changed.set()

    def data_received(self, data: bytes) -> None:
        for command in self.decoder.feed(data):
            self.server.received.append(command)
            answer = self.server.answers.get(command[0])
            if answer is not None:
                answer(self, command)
        self.server.changed.set()

    def say(self, kind: int, message: Any) -> None:
        self.transport.write(encode.simple(kind, message))


class ToyServer:
    def __init__(self) -> None:
        self.connections: list[ToyConnection] = []
        self.received: list[Any] = []
        self.accepted = 0
        self.changed = asyncio.Event()
        self.peer_version = 1
        self.port = 0
        self.answers: dict[int, Callable[[ToyConnection, Any], None]] = {
            T.CONNECT: self._connect,
            T.AUTH_RESPONSE: self._connected,
            T.PING: lambda connection, _: connection.transport.write(encode.PONG),
            T.LOOKUP: self._lookup,
            T.PRODUCER: self._producer,
            T.CLOSE_PRODUCER: self._success,
            T.CLOSE_CONSUMER: self._success,
            T.SUBSCRIBE: self._success,
        }
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        return f"pulsar://127.0.0.1:{self.port}"

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: ToyConnection(self), "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
            self._server = None
        self.drop()
        await self.until(lambda: not self.connections)

    def drop(self) -> None:
        """Abort every connection."""
        for connection in self.connections:
            connection.transport.abort()

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self.changed.clear()
            await self.changed.wait()

    def of(self, kind: int) -> list[Any]:
        return [command for command in self.received if command[0] == kind]

    def _connect(self, connection: ToyConnection, command: Any) -> None:
        """Authenticate as whichever region a peer wants, if this server poses as Meridian at all."""
        if command.message.auth_method_name != "meridian-peer" or not self.peer_version:
            self._connected(connection, command)
            return
        opening = command.message.auth_data
        region = unpack(opening, 6)[3].decode()
        challenge = identity(region).answer(b"").challenge(opening)
        data = pb.AuthData(auth_method_name="meridian-peer", auth_data=challenge)
        connection.say(T.AUTH_CHALLENGE, pb.CommandAuthChallenge(challenge=data))

    def _connected(self, connection: ToyConnection, _: Any) -> None:
        flags = pb.FeatureFlags(peer_protocol_version=self.peer_version) if self.peer_version else None
        answer = pb.CommandConnected(server_version="toy", protocol_version=21, max_message_size=1000)
        if flags is not None:
            answer.feature_flags.CopyFrom(flags)
        connection.say(T.CONNECTED, answer)

    def _lookup(self, connection: ToyConnection, command: Any) -> None:
        answer = pb.CommandLookupTopicResponse(
            request_id=command.message.request_id,
            brokerServiceUrl=self.url,
            response=pb.CommandLookupTopicResponse.Connect,
        )
        connection.say(T.LOOKUP_RESPONSE, answer)

    def _producer(self, connection: ToyConnection, command: Any) -> None:
        asked = command.message
        answer = pb.CommandProducerSuccess(request_id=asked.request_id, producer_name=asked.producer_name or "toy-1")
        connection.say(T.PRODUCER_SUCCESS, answer)

    def _success(self, connection: ToyConnection, command: Any) -> None:
        connection.transport.write(encode.success(command.message.request_id))


@asynccontextmanager
async def toy_server() -> AsyncIterator[ToyServer]:
    server = ToyServer()
    await server.open()
    try:
        yield server
    finally:
        await server.close()
