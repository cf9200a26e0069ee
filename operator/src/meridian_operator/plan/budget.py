# SPDX-License-Identifier: Apache-2.0
"""Rate limits that hold whatever the number of objects."""

from __future__ import annotations

from collections.abc import Callable


class Budget:
    """A token bucket.

    :param per_second: sustained rate.
    :param at_once: burst size.
    :param clock: monotonic seconds.
    """

    def __init__(self, per_second: float, at_once: float, clock: Callable[[], float]) -> None:
        self._per_second = per_second
        self._at_once = at_once
        self._clock = clock
        self._left = at_once
        self._since = clock()

    def take(self) -> bool:
        """Take a token. Returns False if none is left."""
        if self.wait_seconds() > 0:
            return False
        self._left -= 1
        return True

    def wait_seconds(self) -> float:
        """Seconds until a token is available; 0: now."""
        now = self._clock()
        self._left = min(self._at_once, self._left + (now - self._since) * self._per_second)
        self._since = now
        return max(0.0, (1 - self._left) / self._per_second)
