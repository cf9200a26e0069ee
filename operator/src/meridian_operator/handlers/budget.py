# SPDX-License-Identifier: Apache-2.0
"""A bound on how often something may happen, whatever the number of objects."""

from __future__ import annotations

from collections.abc import Callable


class Budget:
    """So much a second, and as much at once.

    :param clock: seconds, from any beginning.
    """

    def __init__(self, per_second: float, clock: Callable[[], float]) -> None:
        self._per_second = per_second
        self._clock = clock
        self._left = per_second
        self._since = clock()

    def take(self) -> bool:
        """Take one, if there is one."""
        now = self._clock()
        self._left = min(self._per_second, self._left + (now - self._since) * self._per_second)
        self._since = now
        if self._left < 1:
            return False
        self._left -= 1
        return True
