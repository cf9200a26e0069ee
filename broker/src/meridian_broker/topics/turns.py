# SPDX-License-Identifier: Apache-2.0
"""Work of a topic's subscriptions in the next turn of the loop, scheduled once for all of them.

After a message for tens of thousands of subscriptions each of them dispatches, and then writes its acknowledgement. A
callback of the loop for each would cost as much as its work. But once they are behind, one turn for all of them takes
many seconds, in which nothing else runs: requests wait, and the lease on the broker's topics ends. So after ``TURN_MS``
the rest waits for another turn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from meridian_broker.ledgers.scheduling import Scheduler


TURN_MS: Final = 20
"""After so many milliseconds the loop may do something else."""
LOOK_EVERY: Final = 16
"""How many have their turn between two looks at the clock."""


class Waiting(Protocol):
    """Something with work for the next turn."""

    def next_turn(self) -> None:
        """Do it."""
        ...


class Turns:
    """Those that wait for the next turn, in the order in which they asked for it."""

    __slots__ = ("_first", "_scheduler", "_waiting")

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._first: list[Waiting] = []
        """Those who come before all others."""
        self._waiting: list[Waiting] = []

    def add(self, one: Waiting) -> None:
        """Call its ``next_turn`` once in the next turn of the loop."""
        waiting = self._waiting
        if not (waiting or self._first):
            self._scheduler.defer(self._run)
        waiting.append(one)

    def add_first(self, one: Waiting) -> None:
        """As ``add``, and before those who were added so, even earlier: it does for many of them what would cost more
        if each had to do it by itself in its turn."""
        if not (self._waiting or self._first):
            self._scheduler.defer(self._run)
        self._first.append(one)

    def _run(self) -> None:
        scheduler = self._scheduler
        due = iter([*self._first, *self._waiting])
        self._first, self._waiting = [], []
        until = scheduler.monotonic_ms() + TURN_MS
        try:
            for number, one in enumerate(due, 1):
                one.next_turn()
                if not number % LOOK_EVERY and scheduler.monotonic_ms() >= until:
                    break
        finally:
            if left := list(due):  # also if one failed, as the loop reports: the others go on without it
                asked, self._waiting = self._waiting, left
                self._waiting += asked
                if not (asked or self._first):  # else they are called already
                    scheduler.defer(self._run)
