# SPDX-License-Identifier: Apache-2.0
"""The same acknowledgements by many subscriptions of a topic, gathered into one record.

When one message goes to thousands of subscriptions, their acknowledgements of it come together as well, and differ in
nothing but the name. As one record they cost the disk, and later a restart, a fraction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from meridian_broker.topics.journal.changes import MANY, Kind, encode, encode_many


class Gathering:
    """A record that is not written yet. While it is empty, the next acknowledgement decides what it holds."""

    __slots__ = ("_delta", "_names", "is_empty")

    def __init__(self) -> None:
        self._delta: bytes | None = None
        self._names: list[str] = []
        self.is_empty = True

    def add(self, subscriptions: Sequence[str], delta: bytes) -> int:
        """More subscriptions acknowledge the same. Returns how many of them the record took; none, if this is
        something else or the record is full."""
        if delta != self._delta:
            return 0
        room = MANY - len(self._names)
        self._names += subscriptions[:room]
        return min(room, len(subscriptions))

    def begin(self, delta: bytes) -> None:
        """Begin the record of this acknowledgement; ``add`` its subscriptions."""
        self._delta, self._names, self.is_empty = delta, [], False

    def take(self, clock: Callable[[], int]) -> tuple[bytes, int] | None:
        """The record and how many subscriptions it names; None: there is none. It is empty afterwards.

        :param clock: returns the time in milliseconds.
        """
        delta, self._delta, self.is_empty = self._delta, None, True
        if delta is None:
            return None
        names, self._names = self._names, []
        now_ms = clock()
        if len(names) == 1:
            return encode(Kind.ACKED, names[0], now_ms, delta), 1
        return encode_many(names, now_ms, delta), len(names)
