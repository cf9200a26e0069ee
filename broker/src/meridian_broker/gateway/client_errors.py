# SPDX-License-Identifier: Apache-2.0
"""What can go wrong between us and another broker, by situation.

``ConnectFailed``: never got there. ``ConnectionLost``: was there. ``RequestRefused``: the other side said no, with its
code. ``RequestTimedOut``: it said nothing. ``MisbehavedPeer`` is a ``ConnectionLost`` for which the other side is to
blame.
"""

from __future__ import annotations

from meridian_broker.wire.pulsar.errors import ServerError


class ClientError(Exception):
    """Something asked of another broker did not happen."""


class ConnectFailed(ClientError):
    """No connection came about: nobody listens there, TLS failed, or the broker turned us away."""


class ConnectionLost(ClientError):
    """The connection is gone, and with it the answer. What was asked may have happened."""


class MisbehavedPeer(ConnectionLost):
    """We ended the connection, because what came over it was against the protocol."""


class RequestTimedOut(ClientError):
    """No answer in time. What was asked may have happened."""


class RequestRefused(ClientError):
    """The broker's answer is no."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        """A ``ServerError`` number, or one that this version does not know."""


def code_name(code: int) -> str:
    """The name of a ``ServerError`` number; the number itself when it has none here."""
    try:
        return ServerError(code).name
    except ValueError:
        return str(code)
