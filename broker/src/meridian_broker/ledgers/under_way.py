# SPDX-License-Identifier: Apache-2.0
"""Operations in flight: closing something waits for the operations it has accepted.

A waiter waits for operations begun before it asked, not for later ones: a busy subscription always has something in
flight, and a close must finish nevertheless. The wait is bounded, in case a disk hangs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from meridian_broker.ledgers.notifying import notify_all
from meridian_broker.ledgers.scheduling import Scheduler, Timer
from meridian_broker.ledgers.store import LedgerError

PATIENCE_SECONDS: Final = 10.0
"""How long a close waits. What is not durable by then was never confirmed: its messages are delivered again."""

Over = Callable[[LedgerError | None], None]
"""Called when all of it has ended, with the first error, if any."""


class _Waiter:
    __slots__ = ("error", "tell", "upto")

    def __init__(self, upto: int, tell: Over) -> None:
        self.upto = upto
        self.tell = tell
        self.error: LedgerError | None = None


class UnderWay:
    """Counts operations in flight, numbered in the order in which they begin."""

    __slots__ = ("_begun", "_oldest", "_open", "_waiting")

    def __init__(self) -> None:
        self._begun = 0
        self._oldest = 0
        """Every operation with a smaller number has ended."""
        self._open: set[int] = set()
        self._waiting: deque[_Waiter] = deque()

    @property
    def is_idle(self) -> bool:
        return not self._open

    def begin(self) -> int:
        """An operation begins. Returns the number to pass to ``end``."""
        number = self._begun
        self._begun += 1
        self._open.add(number)
        return number

    def end(self, number: int, error: LedgerError | None = None) -> None:
        """It ended, or failed with ``error``."""
        self._open.discard(number)
        while self._oldest < self._begun and self._oldest not in self._open:
            self._oldest += 1
        if self._waiting:
            self._tell(number, error)

    def _tell(self, number: int, error: LedgerError | None) -> None:
        due: list[Callable[[], None]] = []
        for waiter in self._waiting:
            if number < waiter.upto:
                waiter.error = waiter.error or error
        while self._waiting and self._waiting[0].upto <= self._oldest:
            waiter = self._waiting.popleft()
            due.append(partial(waiter.tell, waiter.error))
        notify_all(due)

    def when_over(self, tell: Over) -> None:
        """Call ``tell`` when all operations begun so far have ended; at once if they have."""
        if self.is_idle:
            tell(None)
        else:
            self._waiting.append(_Waiter(self._begun, tell))

    async def wait(self, scheduler: Scheduler) -> bool:
        """See ``all_over``."""
        return await all_over((self,), scheduler)


async def all_over(works: Iterable[UnderWay], scheduler: Scheduler) -> bool:
    """Wait until all that these have begun so far has ended, for at most ``PATIENCE_SECONDS``. Returns whether it
    has."""
    busy = [work for work in works if not work.is_idle]
    if not busy:
        return True
    left = len(busy)
    timers: list[Timer] = []

    def ask(ready: Callable[[bool], None]) -> None:
        def over(_: LedgerError | None) -> None:
            nonlocal left
            left -= 1
            if not left:
                ready(True)

        timers.append(scheduler.later(PATIENCE_SECONDS, lambda: ready(False)))
        for work in busy:
            work.when_over(over)

    try:
        return bool(await scheduler.answer(ask))
    finally:
        for timer in timers:
            timer.cancel()
