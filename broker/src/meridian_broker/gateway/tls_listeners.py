# SPDX-License-Identifier: Apache-2.0
"""TLS listeners with a limit on handshakes in progress.

A connection counts against the limits of its protocol once its handshake is over: asyncio's own TLS server reports it
only then. Clients that never finish could hold any number of file descriptors and OpenSSL buffers. So connections are
accepted here and take a place before the handshake begins. When no place is free, the oldest handshake of the address
is closed, or the oldest of all: a healthy one takes milliseconds."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
import time
from collections.abc import Callable
from typing import Final

from meridian_broker.bounds.http import HANDSHAKE_SECONDS
from meridian_broker.gateway.places import Hall, Places

AT_ONCE: Final = 64
"""Connections accepted in one turn of the loop; beginning a handshake takes some hundred microseconds."""
RETRY_SECONDS: Final = 1.0
"""Seconds after which a listener retries when the system had no descriptor or memory for another connection."""

log = logging.getLogger(__name__)


class TlsListeners:
    """The TLS listeners of one process. ``listen`` as often as needed, then ``await close()``."""

    def __init__(self, context: ssl.SSLContext, places: Places) -> None:
        """:param places: limits for handshakes in progress, over all listeners."""
        self._context = context
        self._hall = Hall(places, time.monotonic, "TLS handshakes under way")
        self._handshakes: set[asyncio.Task[None]] = set()

    async def listen(
        self,
        protocol: Callable[[], asyncio.Protocol],
        host: str,
        port: int,
        *,
        backlog: int,
        early: socket.socket | None = None,
    ) -> TlsListener:
        """Bind the address; connections are accepted only after ``start_serving``.

        :param early: a socket that is bound to the address already.
        :raises OSError: the address is taken.
        """
        if early is not None:
            return TlsListener(self, protocol, [early], backlog)
        bound = await asyncio.get_running_loop().create_server(asyncio.Protocol, host, port, start_serving=False)
        sockets = [socket.socket(fileno=os.dup(one.fileno())) for one in bound.sockets]
        bound.close()
        return TlsListener(self, protocol, sockets, backlog)

    def begin(self, protocol: Callable[[], asyncio.Protocol], connection: socket.socket, address: str) -> None:
        """Begin the handshake of a new connection."""
        handshake = _Handshake(connection, address)
        task = handshake.task = asyncio.get_running_loop().create_task(
            handshake.shake(protocol, self._context), name="a TLS handshake"
        )
        self._handshakes.add(task)

        def ended(_: asyncio.Task[None]) -> None:
            self._handshakes.discard(task)
            self._hall.leave(handshake)
            handshake.close_unused()
            if not task.cancelled() and (error := task.exception()) is not None:
                log.error("failed to accept a TLS connection", exc_info=error)

        task.add_done_callback(ended)
        if self._hall.enter(handshake) is not None:
            task.cancel()

    async def close(self) -> None:
        """End the handshakes in progress, once the listeners are closed."""
        for task in tuple(self._handshakes):
            task.cancel()
        if self._handshakes:
            await asyncio.wait(tuple(self._handshakes))


class _Handshake:
    """A handshake in progress, which occupies a place."""

    def __init__(self, connection: socket.socket, address: str) -> None:
        self.address = address
        self.has_place = False
        self.task: asyncio.Task[None]
        self._connection: socket.socket | None = connection
        """The socket, until the loop takes it over."""

    async def shake(self, protocol: Callable[[], asyncio.Protocol], context: ssl.SSLContext) -> None:
        """Returns once the protocol has the connection, or it is closed."""
        connection, self._connection = self._connection, None
        assert connection is not None
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                protocol, connection, ssl=context, ssl_handshake_timeout=HANDSHAKE_SECONDS
            )
        except OSError as error:  # includes ssl.SSLError and the handshake time-out
            log.debug("a TLS handshake with %s failed: %s", self.address, error)

    def close_unused(self) -> None:
        """Close the socket if the handshake was cancelled before it began."""
        if self._connection is not None:
            self._connection.close()

    def give_way(self) -> None:
        """See ``gateway.places.Guest``."""
        self.task.cancel()


class TlsListener:
    """The listener of one address; used like ``asyncio.Server``."""

    def __init__(
        self,
        listeners: TlsListeners,
        protocol: Callable[[], asyncio.Protocol],
        sockets: list[socket.socket],
        backlog: int,
    ) -> None:
        self.sockets = sockets
        self._listeners = listeners
        self._protocol = protocol
        self._backlog = backlog
        self._loop = asyncio.get_running_loop()

    async def start_serving(self) -> None:
        """Accept connections from now on."""
        for one in self.sockets:
            one.setblocking(False)
            one.listen(self._backlog)
            self._loop.add_reader(one, self._accept, one)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(AT_ONCE):
            try:
                connection, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                log.error("cannot accept connections, trying again in %.0f s: %s", RETRY_SECONDS, error)
                self._loop.remove_reader(listening)
                self._loop.call_later(RETRY_SECONDS, self._accept_again, listening)
                return
            connection.setblocking(False)
            self._listeners.begin(self._protocol, connection, str(address[0]))

    def _accept_again(self, listening: socket.socket) -> None:
        if listening in self.sockets:
            self._loop.add_reader(listening, self._accept, listening)

    def close(self) -> None:
        """Stop accepting connections."""
        while self.sockets:
            one = self.sockets.pop()
            self._loop.remove_reader(one)
            one.close()
