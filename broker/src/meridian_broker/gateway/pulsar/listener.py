# SPDX-License-Identifier: Apache-2.0
"""The listener of Pulsar's protocol: creates a connection object for each accepted socket."""

from __future__ import annotations

import asyncio
import socket
from typing import Final

from meridian_broker.gateway.pulsar.broker import Broker
from meridian_broker.gateway.pulsar.connection import Connection
from meridian_broker.gateway.pulsar.handlers import HANDLERS, RUN_HANDLERS
from meridian_broker.gateway.tls_listeners import TlsListener, TlsListeners

BACKLOG: Final = 1024
"""Connections that the kernel queues before this process accepts them."""


async def listen(
    broker: Broker,
    host: str,
    port: int,
    secure: TlsListeners | None = None,
    listener: str = "",
    early: socket.socket | None = None,
) -> asyncio.Server | TlsListener:
    """Bind the address; connections are accepted only after ``start_serving``.

    :param secure: encrypts connections; None: they are plain.
    :param listener: clients that connect here get the addresses of this listener, unless they name another.
    :param early: a socket that is bound to the address already.
    :raises OSError: the address is taken.
    """
    loop = asyncio.get_running_loop()

    def accept() -> Connection:
        return Connection(broker, HANDLERS, RUN_HANDLERS, loop, listener)

    if secure is not None:
        return await secure.listen(accept, host, port, backlog=BACKLOG, early=early)
    if early is not None:
        return await loop.create_server(accept, sock=early, backlog=BACKLOG, start_serving=False)
    return await loop.create_server(accept, host, port, backlog=BACKLOG, start_serving=False)
