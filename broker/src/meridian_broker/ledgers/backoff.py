# SPDX-License-Identifier: Apache-2.0
"""Growing delays between attempts."""

from __future__ import annotations

from collections.abc import Callable


class Backoff:
    """Delays that double up to a limit, partly random, so that those who wait do not all try at the same moment."""

    __slots__ = ("_first", "_jitter", "_last", "_next")

    def __init__(self, jitter: Callable[[], float], first: float, last: float) -> None:
        """:param jitter: returns numbers from 0 to 1; ``random.random`` in production.
        :param first: the first delay, in seconds.
        :param last: the longest delay, in seconds.
        """
        self._jitter = jitter
        self._first = first
        self._last = last
        self._next = first

    def reset(self) -> None:
        """Begin with the first delay again."""
        self._next = self._first

    def next(self) -> float:
        """Seconds to wait now: between half of the current delay and the whole of it."""
        delay = self._next
        self._next = min(self._last, delay * 2)
        return delay * (0.5 + 0.5 * self._jitter())
