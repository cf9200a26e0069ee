# SPDX-License-Identifier: Apache-2.0
"""Work that a process repeats for its whole life, and that survives any failure of a single run.

A failure is logged once, not once per attempt, with its consequence while it lasts; further attempts come at
growing intervals, up to a bound; operators and metrics can see the state at any time. A run that handles
many topics tries each of them (`each`), so that one bad topic neither stops nor slows the others.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from meridian_broker.ledgers.scheduling import Scheduler, in_slices, run_all

T = TypeVar("T")

BACKOFF_SECONDS_MAX: Final = 30.0
"""The longest pause between attempts of work with a shorter interval."""
NAMED_MAX: Final = 3
"""Failures that a message spells out; it only counts the others."""

log = logging.getLogger(__name__)


class SomeFailed(Exception):
    """A run failed for some items; all others were processed."""

    def __init__(self, failures: dict[str, Exception], tried: int) -> None:
        named = "; ".join(f"{name}: {error}" for name, error in list(failures.items())[:NAMED_MAX])
        more = f"; and {len(failures) - NAMED_MAX} more" if len(failures) > NAMED_MAX else ""
        super().__init__(f"{len(failures)} of {tried} failed: {named}{more}")
        self.failures = failures


async def each(
    scheduler: Scheduler,
    items: Iterable[T],
    name: Callable[[T], str],
    work: Callable[[T], Awaitable[object]],
    *,
    at_once: int = 1,
) -> None:
    """Do ``work`` for every item, even if some fail. Other tasks run in between, even if ``work`` never waits.

    :param at_once: how many run concurrently.
    :raises SomeFailed: it failed for some of them.
    """
    failures: dict[str, Exception] = {}
    tried = 0
    listed = tuple(items)

    async def every(part: Iterable[T]) -> None:
        nonlocal tried
        async for item in in_slices(scheduler, part):
            tried += 1
            try:
                await work(item)
            except Exception as error:
                failures[name(item)] = error

    if at_once == 1:
        await every(listed)
    else:
        parts = [listed[first::at_once] for first in range(min(at_once, len(listed)))]
        await run_all(scheduler, [partial(every, part) for part in parts], "work on many items")
    if failures:
        raise SomeFailed(failures, tried)


@dataclass(frozen=True, slots=True)
class WorkState:
    """How one kind of periodic work is doing."""

    name: str
    turns: int
    """Runs that ended, successful or not."""
    failures: int
    """Runs that failed since the start."""
    seconds_since_success: float
    """Since the last successful run, or since the start if there was none."""
    problem: str | None
    """Why the last run failed; None: it did not."""


class PeriodicWork:
    """One kind of work, named after what it does: "expire old messages".

    :param consequence: what the failure means while it lasts; ends the log line.
    :param turn: one run of it.
    :param seconds: from the end of one run to the next.
    :param clock: seconds, monotonic.
    :param sleep: waits for a number of seconds.
    """

    def __init__(
        self,
        name: str,
        consequence: str,
        turn: Callable[[], Awaitable[object]],
        seconds: float,
        *,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[object]],
    ) -> None:
        self.name = name
        self._consequence = consequence
        self._turn = turn
        self._seconds = seconds
        self._clock = clock
        self._sleep = sleep
        self._turns = 0
        self._failures = 0
        self._failed_in_a_row = 0
        self._last_success = clock()
        self._problem: str | None = None

    async def run(self, *, at_once: bool = False) -> None:
        """Run after each pause, until cancelled. :param at_once: the first run needs no pause."""
        if at_once:
            await self.attempt()
        while True:
            await self._sleep(self.pause)
            await self.attempt()

    async def attempt(self) -> bool:
        """Run once now. Returns whether that succeeded; raises only a cancellation."""
        try:
            await self._turn()
        except Exception as error:
            self._failed(error)
        else:
            self._succeeded()
        self._turns += 1
        return self._problem is None

    @property
    def pause(self) -> float:
        """Seconds until the next run: the interval, doubled with each failure in a row, up to a bound."""
        doubled = self._seconds * float(1 << min(self._failed_in_a_row, 10))
        return max(self._seconds, min(doubled, BACKOFF_SECONDS_MAX))

    def state(self) -> WorkState:
        """How the work is doing now."""
        since = self._clock() - self._last_success
        return WorkState(self.name, self._turns, self._failures, since, self._problem)

    def _succeeded(self) -> None:
        if self._problem is not None:
            log.info("%s: works again", self.name)
        self._problem = None
        self._failed_in_a_row = 0
        self._last_success = self._clock()

    def _failed(self, error: Exception) -> None:
        causes = list(error.failures.values()) if isinstance(error, SomeFailed) else [error]
        problem = str(error) or repr(error)
        is_news, self._problem = problem != self._problem, problem
        self._failures += 1
        # If only some failed, the others should not wait longer than usual for their next run.
        self._failed_in_a_row = 0 if isinstance(error, SomeFailed) else self._failed_in_a_row + 1
        if is_news:
            log.error(
                "failed to %s: %s. Trying again; until it succeeds, %s",
                *(self.name, problem, self._consequence),
                exc_info=next(filter(_is_bug, causes), None),
            )


def _is_bug(error: Exception) -> bool:
    """Our own errors stand for expected situations and explain themselves; any other needs its traceback."""
    return not type(error).__module__.startswith("meridian_broker.")
