# SPDX-License-Identifier: Apache-2.0
"""Errors of connections to other brokers, by situation.

``ConnectFailed``: no connection was established. ``ConnectionLost``: it was, and ended. ``RequestRefused``: the other
side refused, with its code. ``RequestTimedOut``: it did not answer. ``MisbehavedPeer`` is a ``ConnectionLost`` that is
the other side's fault.
"""

from __future__ import annotations

from meridian_broker.wire.pulsar.errors import ServerError


class ClientError(Exception):
    """A request to another broker failed."""


class ConnectFailed(ClientError):
    """No connection was established: nothing listens there, TLS failed, or the broker refused it."""


class ConnectionLost(ClientError):
    """The connection was lost before the answer arrived. The request may have been executed."""


class MisbehavedPeer(ConnectionLost):
    """We ended the connection, because the other side violated the protocol."""


class RequestTimedOut(ClientError):
    """No answer in time. The request may have been executed."""


class RequestRefused(ClientError):
    """The broker refused the request."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        """A ``ServerError`` number, or one that this version does not know."""


def code_name(code: int) -> str:
    """The name of a ``ServerError`` number; the number itself if it has no name here."""
    try:
        return ServerError(code).name
    except ValueError:
        return str(code)
