# SPDX-License-Identifier: Apache-2.0
"""Decides when a connection is read and written.

Several reasons may stop reading from a client at once; reading resumes when the last one is gone. Meanwhile TCP holds
the client back, so nothing has to be refused and nothing piles up here. All its producers and requests wait: that is
the price of one connection for many of them, in Pulsar as well."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable
from fcntl import ioctl
from termios import TIOCOUTQ
from typing import Final

WRITE_BYTES: Final = 512 << 10
"""Limit on bytes written in one turn of the loop; beyond it a connection's consumers wait for the next turn. A small
message to two thousand of them takes less."""
WRITE_BYTES_MIN: Final = 32 << 10
WRITE_BYTES_TOTAL: Final = 64 << 20
"""The same for all connections together: each gets less when there are many, as many may be slow at once."""
UNSENT_BYTES: Final = 64 << 10
"""Limit on bytes the client has not taken; at the limit nothing more is read from it or sent to it."""
EARLY_BYTES: Final = UNSENT_BYTES + 1
"""On a connection of several consumers, this many bytes of messages are sent early, while the broker handles the
others: among tens of thousands, the first clients need not wait for the last one's turn. For a lone consumer, sending a
whole turn at once is cheaper. One byte more than a transport buffers before it writes."""
HOLD_SECONDS_MAX: Final = 1.0
"""A rate may change while a connection waits for it, so it is checked this often."""

PENDING: Final = 1
"""Reasons to stop reading from a connection; each is a bit. This one: too many messages are not durable yet."""
BYTES: Final = 2
RATE: Final = 4
UNANSWERED: Final = 8
UNREAD: Final = 16


def turn_bytes(connections: int) -> int:
    """Bytes that each of this many connections may write in a turn of the loop."""
    return min(WRITE_BYTES, max(WRITE_BYTES_MIN, WRITE_BYTES_TOTAL // max(connections, 1)))


class FlowControl(asyncio.Protocol):
    """The flow control of a connection."""

    __slots__ = (
        "_ended",
        "_holds",
        "_loop",
        "_out_bytes",
        "_paused",
        "_room_wanted",
        "_turn_bytes",
        "_writable",
        "transport",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.transport: asyncio.Transport | None = None
        self._loop = loop
        self._ended = False
        """It is being closed: reading never resumes."""
        self._out_bytes = 0
        """Queued in this turn of the loop."""
        self._turn_bytes = WRITE_BYTES
        """Bytes that may be queued in this turn."""
        self._writable = True
        self._paused = 0
        """Current reasons to stop reading."""
        self._holds: set[Callable[[], int]] | None = None
        self._room_wanted: list[asyncio.Future[None]] | None = None

    def pause(self, reason: int) -> None:
        """Stop reading, for this reason in addition to others."""
        if not self._paused and self.transport is not None and not self._ended:
            self.transport.pause_reading()
        self._paused |= reason

    def read_on(self, reason: int) -> None:
        """This reason to stop reading is gone."""
        if self._paused & reason:
            self._paused &= ~reason
            if not self._paused and self.transport is not None and not self._ended:
                self.transport.resume_reading()

    def pause_writing(self) -> None:
        self._writable = False
        self.pause(UNREAD)

    def resume_writing(self) -> None:
        self._writable = True
        self.read_on(UNREAD)
        self._wake_writers()

    def _not_taken(self) -> int:
        """Bytes that were written and that the client's machine has not confirmed; the kernel holds many of them."""
        if self.transport is None:
            return 0
        held = array("i", [0])
        sock = self.transport.get_extra_info("socket")
        if sock is not None:
            try:
                ioctl(sock.fileno(), TIOCOUTQ, held)
            except OSError:
                held[0] = 0  # it is being closed
        return self.transport.get_write_buffer_size() + held[0]

    def writable(self) -> bool:
        return self._writable and self._out_bytes < self._turn_bytes

    async def room(self) -> None:
        """Wait until the client has read what was written; call it before building an answer that may be long."""
        while self.transport is not None and not self.writable():
            if self._room_wanted is None:
                self._room_wanted = []
            wanted = self._loop.create_future()
            self._room_wanted.append(wanted)
            await wanted

    def _wake_writers(self) -> None:
        wanted, self._room_wanted = self._room_wanted, None
        for one in wanted or ():
            if not one.done():
                one.set_result(None)

    def hold(self, wait_ms: Callable[[], int]) -> None:
        """More was published than a rate allows: stop reading until ``wait_ms`` returns 0."""
        if self._holds is None:
            self._holds = set()
            self.pause(RATE)
            self._loop.call_later(min(wait_ms() / 1000, HOLD_SECONDS_MAX), self._look_at_holds)
        self._holds.add(wait_ms)

    def _look_at_holds(self) -> None:
        wait = max(wait_ms() for wait_ms in self._holds or ())
        if wait > 0 and self.transport is not None:
            self._loop.call_later(min(wait / 1000, HOLD_SECONDS_MAX), self._look_at_holds)
        else:
            self._holds = None
            self.read_on(RATE)
