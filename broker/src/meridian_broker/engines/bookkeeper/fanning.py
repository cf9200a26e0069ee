# SPDX-License-Identifier: Apache-2.0
"""Sends the same adds to several bookies, joining those of one turn of the event loop only once.

Every entry of a ledger goes to each bookie of its ensemble; queueing and joining it per connection would cost that many
times as much. A connection fetches what is queued here before it writes, and before it accepts an add for itself alone,
so each ledger's entries stay in order.
"""

from __future__ import annotations

from typing import Final, Protocol

from meridian_broker.engines.bookkeeper.ports import Packet

UNSENT_BYTES_MAX: Final = 8 << 20
"""Bytes of adds not yet taken by the socket, beyond which no more are accepted."""
JOINED_BYTES: Final = 16 << 10
"""Entries of up to this average size are joined into one buffer, because copying them costs less than a buffer each."""


class FanConnection(Protocol):
    """What a fan uses of a connection to a bookie."""

    @property
    def room(self) -> int:
        """How many more adds it accepts now; none if it is not positive."""
        ...

    def expect(self, fan: Fan, /) -> None:
        """Adds are queued in this fan: fetch them before writing anything."""
        ...

    def take(self, fan: Fan, parts: list[bytes], adds: int, size: int, /) -> None:
        """Accept the fan's queue: this many adds, with this many bytes of entry data."""
        ...


class Fan:
    """See the module's text."""

    __slots__ = ("_bytes", "_connections", "_count", "_parts", "_room", "is_closed")

    def __init__(self, connections: tuple[FanConnection, ...]) -> None:
        self._connections = connections
        self._parts: list[bytes] = []
        self._count = 0
        self._bytes = 0
        self._room = 0
        """Adds that the connections accept in this turn."""
        self.is_closed = False
        """One of the connections is closed: get a new fan."""

    def add(self, packet: Packet) -> bool:
        """Send an add to all. False: one of the connections accepts no more now, and none gets it."""
        if self._count >= self._room or not self._count:
            self._room = min([connection.room for connection in self._connections])  # they may have got answers since
            if self._count >= self._room:
                return False
        if self._bytes >= UNSENT_BYTES_MAX:
            return False
        if not self._count:
            for connection in self._connections:
                connection.expect(self)
        self._count += 1
        self._bytes += len(packet[1])
        self._parts += packet
        return True

    def flush(self) -> None:
        """Pass the queue to the connections."""
        parts, count, size = self._parts, self._count, self._bytes
        self._parts, self._count, self._bytes = [], 0, 0
        if size <= count * JOINED_BYTES:
            parts = [b"".join(parts)]
        for connection in self._connections:
            connection.take(self, parts, count, size)
