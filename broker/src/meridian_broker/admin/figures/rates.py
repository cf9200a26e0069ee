# SPDX-License-Identifier: Apache-2.0
"""Rates of counters: their growth since the last reading."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Final

KEPT: Final = 100_000
"""Number of counters remembered; the one unread for longest is dropped first."""
LEAST_SECONDS: Final = 1.0
"""Counters read again sooner keep their rate: two users who read at the same time both get a good one."""


class Rates:
    """Per counter, the rate since it was last read, or since it began to count."""

    def __init__(self, now: Callable[[], float]) -> None:
        """:param now: a monotonic clock in seconds."""
        self._now = now
        self._seen: OrderedDict[Hashable, tuple[float, int, float]] = OrderedDict()

    def rate(self, counter: Hashable, value: int, age_seconds: float) -> float:
        """Growth per second. ``age_seconds``: how long the counter has run, for the first reading."""
        now = self._now()
        seen = self._seen.get(counter)
        if seen is not None and value >= seen[1]:
            since, before, rate = seen
            if now - since < LEAST_SECONDS:
                return rate
            rate = (value - before) / (now - since)
        else:
            rate = value / max(age_seconds, LEAST_SECONDS)
        self._seen[counter] = now, value, rate
        self._seen.move_to_end(counter)
        if len(self._seen) > KEPT:
            self._seen.popitem(last=False)
        return rate
