# SPDX-License-Identifier: Apache-2.0
"""Limits on connections whose client is not identified yet: a fixed number of places, in total and per address.

A new connection that finds no free place takes that of the longest-idle one, of its own address if that address has
reached its limit. So holding connections open keeps nobody else out, and an address that opens many displaces its own
first. A new connection is refused only if all the others are busy."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

log = logging.getLogger(__name__)

SAID_EVERY: Final = 60.0
"""Seconds between two log lines about connections that were closed to make room."""


@dataclass(frozen=True, slots=True)
class Places:
    """Limits on connections."""

    total: int
    per_address: int


class Guest(Protocol):
    """A connection that takes a place."""

    address: str
    has_place: bool

    def give_way(self) -> None:
        """Close the connection: another one gets its place."""


class Hall:
    """The connections of one or several listeners that share their places."""

    def __init__(self, places: Places, clock: Callable[[], float], what: str) -> None:
        """:param clock: monotonic seconds.
        :param what: the connections, in the plural, for the log.
        """
        self._places = places
        self._clock = clock
        self._what = what
        self._addresses: Counter[str] = Counter()
        self._idle: dict[Guest, None] = {}
        """Idle connections, the longest idle first."""
        self._gone = 0
        self._said = -SAID_EVERY

    @property
    def count(self) -> int:
        return self._addresses.total()

    def enter(self, guest: Guest) -> str | None:
        """Add an idle connection. Returns the reason if there is no place for it."""
        places, address = self._places, guest.address
        if self._addresses[address] >= places.per_address and not self._make_room(address):
            return f"{address} has reached the limit of {places.per_address} active connections"
        if self.count >= places.total and not self._make_room(None):
            return f"this broker has reached its limit of {places.total} active connections: try again in a moment"
        self._addresses[address] += 1
        self._idle[guest] = None
        guest.has_place = True
        return None

    def _make_room(self, address: str | None) -> bool:
        for guest in self._idle:
            if address in (None, guest.address):
                self.leave(guest)
                guest.give_way()
                self._tell()
                return True
        return False

    def _tell(self) -> None:
        self._gone += 1
        if self._clock() - self._said >= SAID_EVERY:
            log.warning("closed %d %s to make room for new ones: the limit was reached", self._gone, self._what)
            self._said, self._gone = self._clock(), 0

    def leave(self, guest: Guest) -> None:
        """It is closed, or about to be. Repeated calls have no effect."""
        if guest.has_place:
            guest.has_place = False
            self._idle.pop(guest, None)
            self._addresses[guest.address] -= 1
            if not self._addresses[guest.address]:
                del self._addresses[guest.address]

    def busy(self, guest: Guest) -> None:
        """The connection is being served, so it is not closed to make room."""
        self._idle.pop(guest, None)

    def idle(self, guest: Guest) -> None:
        """The connection has been served and is idle again."""
        if guest.has_place:
            self._idle[guest] = None
