# SPDX-License-Identifier: Apache-2.0
"""Work of a topic's subscriptions in the next turn of the loop, scheduled once for all of them.

After a message for tens of thousands of subscriptions each of them dispatches, and then writes its acknowledgement. A
callback of the loop for each would cost as much as its work. But once they are behind, one turn for all of them takes
many seconds, in which nothing else runs: requests wait, and the lease on the broker's topics ends. So after ``TURN_MS``
the rest waits for another turn.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from meridian_broker.ledgers.scheduling import Scheduler


TURN_MS: Final = 20
"""After so many milliseconds the loop may do something else."""
LOOK_EVERY: Final = 2
"""How many have their turn between two looks at the clock; an ``Offer`` is the turn of several."""
FIRST_WAIT_MS: Final = 500
"""For at most so long, those who come first wait for a turn that is under way."""


class Waiting(Protocol):
    """Something with work for the next turn."""

    def next_turn(self) -> None:
        """Do it."""
        ...


class Turns:
    """Those that wait for the next turn, in the order in which they asked for it.

    A turn that took too long is continued before another one begins: a message goes to all of its subscriptions before
    the acknowledgements that come from the first of them meanwhile cost the others time.
    """

    __slots__ = ("_first", "_first_ms", "_is_due", "_left", "_scheduler", "_waiting")

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._is_due = False
        """The loop will call ``_run``."""
        self._left: list[Waiting] = []
        """The rest of a turn that took too long."""
        self._first: list[Waiting] = []
        """Those who come before all others of the next turn, ..."""
        self._first_ms = 0
        """... and since when the first of them waits."""
        self._waiting: list[Waiting] = []

    def add(self, one: Waiting) -> None:
        """Call its ``next_turn`` once in the next turn of the loop."""
        self._waiting.append(one)
        if not self._is_due:
            self._run_soon()

    def add_first(self, one: Waiting) -> None:
        """As ``add``, and before those who were added so, even earlier: it does for many of them what would cost more
        if each had to do it by itself in its turn."""
        if not self._first:
            self._first_ms = self._scheduler.monotonic_ms()
        self._first.append(one)
        if not self._is_due:
            self._run_soon()

    def _run_soon(self) -> None:
        self._is_due = True
        self._scheduler.defer(self._run)

    def _run(self) -> None:
        scheduler, self._is_due = self._scheduler, False
        began = scheduler.monotonic_ms()
        due = self._take(began)
        until = began + TURN_MS
        try:
            for number, one in enumerate(due, 1):
                one.next_turn()
                if not number % LOOK_EVERY and scheduler.monotonic_ms() >= until:
                    break
        finally:
            self._left = list(due)  # also if one failed, as the loop reports: the others go on without it
            if (self._left or self._first or self._waiting) and not self._is_due:
                self._run_soon()

    def _take(self, now_ms: int) -> Iterator[Waiting]:
        """Those whose turn it is now."""
        left, self._left = self._left, []
        if left and not (self._first and now_ms >= self._first_ms + FIRST_WAIT_MS):
            return iter(left)
        due = iter([*self._first, *left, *self._waiting])
        self._first, self._waiting = [], []
        return due
