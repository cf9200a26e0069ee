# SPDX-License-Identifier: Apache-2.0
"""Work of a topic's subscriptions in the next turn of the loop, scheduled once for all of them.

After a message for tens of thousands of subscriptions each of them dispatches, and then writes its acknowledgement. A
callback of the loop for each would cost as much as its work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from meridian_broker.ledgers.scheduling import Scheduler


class Waiting(Protocol):
    """Something with work for the next turn."""

    def next_turn(self) -> None:
        """Do it."""
        ...


class Turns:
    """Those that wait for the next turn, in the order in which they asked for it."""

    __slots__ = ("_scheduler", "_waiting")

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._waiting: list[Waiting] = []

    def add(self, one: Waiting) -> None:
        """Call its ``next_turn`` once in the next turn of the loop."""
        waiting = self._waiting
        if not waiting:
            self._scheduler.defer(self._run)
        waiting.append(one)

    def _run(self) -> None:
        due, self._waiting = iter(self._waiting), []
        try:
            for one in due:
                one.next_turn()
        finally:
            for one in due:  # one failed, as the loop reports: the others go on without it
                self.add(one)
