# SPDX-License-Identifier: Apache-2.0
"""What the subscriptions of a topic do in the next turn of the loop, asked of the loop once for all of them.

A message that goes to tens of thousands of subscriptions lets each of them dispatch, and then write its
acknowledgement. A call of the loop for each would cost as much as what is done in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from meridian_broker.ledgers.scheduling import Scheduler


class Waiting(Protocol):
    """Whoever has something to do in the next turn."""

    def next_turn(self) -> None:
        """Do it."""
        ...


class Turns:
    """Those who wait for the next turn, in the order in which they asked for it."""

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
        due = iter([*self._first, *self._waiting])
        self._first, self._waiting = [], []
        try:
            for one in due:
                one.next_turn()
        finally:
            for one in due:  # one failed, as the loop reports: the others go on without it
                self.add(one)
