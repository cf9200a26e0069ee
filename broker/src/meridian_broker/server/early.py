# SPDX-License-Identifier: Apache-2.0
"""The ports for clients are opened before the program is loaded.

Loading takes longer than a drain. A client that is refused meanwhile waits before it tries again, twice as long each
time; one that is accepted by the operating system waits for its answer, and has it as soon as the broker serves. So
clients pause for as long as the restart takes, not until their next attempt. Imports nothing slow.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from collections.abc import Iterable
from typing import Final

BACKLOG: Final = 1024
"""Connections that may wait to be accepted."""
PATIENCE_SECONDS: Final = 5.0
"""For how long clients wait. A broker that takes longer refuses them, so that they can try another region."""


class EarlyPorts:
    """Ports of one address that are open already.

    One that cannot be opened is left out: the later attempt to open it reports why.
    """

    def __init__(self, host: str, ports: Iterable[int]) -> None:
        self._host = host
        self._open: dict[int, socket.socket] = {}
        for port in ports:
            with contextlib.suppress(OSError, ValueError):
                self._open[port] = _listening(host, port)

    def take(self, host: str, port: int) -> socket.socket | None:
        """The socket, which is the caller's from now on; None: it is not open."""
        return self._open.pop(port, None) if host == self._host else None

    def close(self) -> None:
        """Refuse connections, those that wait included."""
        while self._open:
            self._open.popitem()[1].close()


def _listening(host: str, port: int) -> socket.socket:
    """:raises OSError: the port is taken. :raises ValueError: the host is not an IP address, or the port is 0."""
    if not port:
        raise ValueError("port 0 means any port: there is none to take early")
    family = socket.AF_INET6 if ipaddress.ip_address(host).version == 6 else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind((host, port))
        made.listen(BACKLOG)
        made.setblocking(False)
    except OSError:
        made.close()
        raise
    return made
