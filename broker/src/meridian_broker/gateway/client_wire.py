# SPDX-License-Identifier: Apache-2.0
"""The bytes of one outgoing connection, and its lifetime: the handshake, keep-alive, writes, the end.

It starts no task: bytes are handled in ``data_received``, time in loop timers. ``client`` defines what is sent.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, cast

from meridian_broker.bounds.clients import FRAME_PADDING_BYTES, MESSAGE_BYTES
from meridian_broker.gateway.client_errors import ClientError, ConnectionLost, MisbehavedPeer, RequestRefused
from meridian_broker.gateway.client_options import PEER_AUTH_METHOD, ClientOptions
from meridian_broker.gateway.tls import channel_binding
from meridian_broker.wire.peer_proof import Dialling, NotProven
from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar import encode
from meridian_broker.wire.pulsar.frames import FrameDecoder, FrameError
from meridian_broker.wire.pulsar.versions import PEER_PROTOCOL_VERSION, PROTOCOL_VERSION

logger = logging.getLogger(__name__)


class ClientWire(asyncio.Protocol):
    """A connection to one broker, at the level of commands; requests and answers are built on top."""

    def __init__(self, url: str, options: ClientOptions) -> None:
        self.url = url
        self.options = options
        self.server_version = ""
        self.protocol_version = 0
        self.max_message_size = 0
        self.peer_version = 0
        """Version of the peer protocol that the other side announced; 0: it is not a Meridian broker."""
        self.names_sources = False
        """Receipts of a replicator's producer name an entry by its source position, not by its sequence id."""
        self.is_proven = False
        """Whether the other side has proven to be the region that we intended to reach."""
        self._proven_secret = b""
        """Id of the secret that it proved."""
        self.failure: ClientError | None = None
        """Why the connection is over; None while it is not."""
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._decoder = FrameDecoder()
        self._dialling: Dialling | None = None
        self._take: Callable[[Any], None] = self._dispatch if options.peer is None else self._shake_hands
        self._outbox: list[bytes] = []
        self._connected: asyncio.Future[None] = self._loop.create_future()
        self._over = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self._heard = True
        self._pinged = False
        self._timer: asyncio.TimerHandle | None = None

    @abstractmethod
    def _dispatch(self, command: Any) -> None:
        """A command arrived."""

    @abstractmethod
    def _ended(self, reason: str) -> None:
        """The connection is closed: no more commands will arrive."""

    # -- the end ----------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """End the connection and wait until it is gone. Earlier writes are still sent, for up to a second."""
        if self._transport is None:
            return
        if self.failure is None:
            self.failure = ConnectionLost(f"the connection to {self.url} was closed on this side")
        self._flush()
        self._transport.close()
        try:
            async with asyncio.timeout(1.0):
                await self._over.wait()
        except TimeoutError:
            self._transport.abort()
            await self._over.wait()

    async def wait_lost(self) -> str:
        """Wait for the end of the connection and return the reason."""
        await self._over.wait()
        return str(self.failure)

    @property
    def is_open(self) -> bool:
        return self.failure is None and self._connected.done()

    def fail(self, error: ClientError) -> None:
        """End the connection at once, for a reason."""
        if self.failure is None:
            self.failure = error
        if self._transport is not None:
            self._transport.abort()

    def _give_up(self, error: ClientError) -> None:
        """End a connection that was never handed out."""
        self.failure = error
        if not self._connected.cancel() and not self._connected.cancelled():
            self._connected.exception()  # it is no longer waited for
        if self._transport is not None:
            self._transport.abort()

    # -- writing ----------------------------------------------------------------------------------------------------

    def write(self, frames: Sequence[bytes]) -> None:
        """Write buffers that make up complete frames. All writes of one turn of the loop are sent together.

        Wait for ``drain`` before writing much.

        :raises ConnectionLost: the connection is gone.
        """
        if self.failure is not None or self._transport is None:
            raise self._lost()
        if not self._outbox:
            self._loop.call_soon(self._flush)
        self._outbox += frames

    def _flush(self) -> None:
        outbox, self._outbox = self._outbox, []
        if outbox and self._transport is not None and not self._transport.is_closing():
            self._transport.writelines(outbox)

    @property
    def unsent_bytes(self) -> int:
        """Bytes waiting to be written to the socket."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    @property
    def writable(self) -> bool:
        """Whether ``drain`` would return at once."""
        return self._writable.is_set()

    async def drain(self) -> None:
        """Wait until the socket has room again.

        :raises ConnectionLost: the connection is gone.
        """
        if not self._writable.is_set():
            await self._writable.wait()
        if self.failure is not None:
            raise self._lost()

    def _lost(self) -> ClientError:
        failure = self.failure or ConnectionLost(f"there is no connection to {self.url}")
        return type(failure)(str(failure)) if not isinstance(failure, RequestRefused) else ConnectionLost(str(failure))

    # -- callbacks of the loop --------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=self.options.write_buffer)
        connect = pb.CommandConnect(
            client_version=self.options.client_version,
            protocol_version=PROTOCOL_VERSION,
            feature_flags=pb.FeatureFlags(
                supports_get_partitioned_metadata_without_auto_creation=True,
                supports_repl_dedup_by_lid_and_eid=self.options.is_replicator,
                peer_protocol_version=None if self.options.peer is None else PEER_PROTOCOL_VERSION,
            ),
        )
        if self.options.peer is not None:
            try:
                binding = channel_binding(self._transport)
            except ssl.SSLError as error:
                self.fail(ConnectionLost(f"{self.url}: {error}"))
                return
            self._dialling = self.options.dial(self.options.peer, binding)
            connect.auth_method_name = PEER_AUTH_METHOD
            connect.auth_data = self._dialling.opening()
        elif self.options.token is not None:
            try:
                connect.auth_method_name, connect.auth_data = "token", self.options.token()
            except OSError as error:
                self.fail(ConnectionLost(f"the token for {self.url} cannot be read: {error.strerror}"))
                return
        elif self.options.auth_method is not None:
            connect.auth_method_name = self.options.auth_method
            connect.auth_data = self.options.auth_data or b""
        self._transport.write(encode.simple(pb.BaseCommand.CONNECT, connect))
        self._timer = self._loop.call_later(self.options.keep_alive, self._tick)

    def data_received(self, data: bytes) -> None:
        self._heard = True
        broken: FrameError | None = None
        try:
            commands = self._decoder.feed(data)
        except FrameError as error:
            commands, broken = error.before, error
        try:
            for command in commands:
                if self.failure is not None:
                    return
                self._take(command)
        except Exception as error:
            logger.exception("%s: handling a command failed; the connection ends", self.url)
            self.fail(ConnectionLost(f"handling a command of {self.url} failed: {error!r}"))
        if broken is not None:
            self.fail(MisbehavedPeer(f"{self.url} sent something that is not a Pulsar frame: {broken}"))

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if self.failure is None:
            self.failure = ConnectionLost(f"{self.url} closed the connection{f': {exc}' if exc else ''}")
        reason = str(self.failure)
        if self._timer is not None:
            self._timer.cancel()
        self._over.set()
        self._writable.set()
        if not self._connected.done():
            self._connected.set_exception(self.failure)
        self._ended(reason)

    def _tick(self) -> None:
        """Nothing was received for two intervals, the second time despite a PING: the other side is gone."""
        peer = self.options.peer
        if peer is not None and self.is_proven and not peer.holds(self._proven_secret):
            self.fail(ConnectionLost(f"the peer secret that {self.url} proved was removed"))
            return
        if self._heard:
            self._heard = self._pinged = False
        elif self._pinged:
            self.fail(ConnectionLost(f"{self.url} has been silent for {2 * self.options.keep_alive:g} s"))
            return
        if not self._pinged and self.failure is None and self._transport is not None:
            self._pinged = True
            self._transport.write(encode.PING)
        self._timer = self._loop.call_later(self.options.keep_alive, self._tick)

    def _shake_hands(self, command: Any) -> None:
        """Handle commands before the other side has proven its region: only those of the handshake are accepted."""
        kind = command[0]
        if kind == pb.BaseCommand.AUTH_CHALLENGE and self._dialling is not None:
            try:
                proof = self._dialling.respond(command.message.challenge.auth_data)
            except NotProven as error:
                self.fail(MisbehavedPeer(f"{self.url}: {error}"))
                return
            self._proven_secret, self._dialling = self._dialling.key, None
            answer = pb.AuthData(auth_method_name=PEER_AUTH_METHOD, auth_data=proof)
            response = pb.CommandAuthResponse(client_version=self.options.client_version, response=answer)
            self.write([encode.simple(pb.BaseCommand.AUTH_RESPONSE, response)])
        elif kind == pb.BaseCommand.CONNECTED and self._dialling is None:
            self.is_proven = True
            self._take = self._dispatch
            self._dispatch(command)
        elif kind == pb.BaseCommand.CONNECTED and not command.message.feature_flags.peer_protocol_version:
            self._shake(command.message)  # a foreign broker; the caller that opened the connection ends it
        elif kind in (pb.BaseCommand.ERROR, pb.BaseCommand.PING, pb.BaseCommand.PONG):
            self._dispatch(command)
        else:
            self.fail(MisbehavedPeer(f"{self.url} did not prove that it is {self.options.wanted}"))

    def _shake(self, connected: pb.CommandConnected) -> None:
        self.server_version = connected.server_version
        self.protocol_version = connected.protocol_version
        if connected.max_message_size > 0:
            self.max_message_size = connected.max_message_size
            self._decoder.max_frame_bytes = max(connected.max_message_size, MESSAGE_BYTES) + FRAME_PADDING_BYTES
        flags = connected.feature_flags
        self.names_sources = self.options.is_replicator and flags.supports_repl_dedup_by_lid_and_eid
        self.peer_version = min(connected.feature_flags.peer_protocol_version, PEER_PROTOCOL_VERSION)
        if not self._connected.done():
            self._connected.set_result(None)
