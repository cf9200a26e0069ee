# SPDX-License-Identifier: Apache-2.0
"""The port through which pure rooms get the time, turns of the loop and owned tasks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator
from typing import Any, Final, Protocol, TypeVar

T = TypeVar("T")

AT_ONCE: Final = 256
"""Jobs that ``run_all`` runs concurrently by default: enough for the stores to commit many of them together."""
SLICE: Final = 100
"""Items that a walk takes in one turn of the loop: a few milliseconds if each takes tens of microseconds."""


class Timer(Protocol):
    """A call scheduled for later."""

    def cancel(self) -> None: ...


class Scheduler(Protocol):
    """Services of the shell around a core. The simulator has one implementation, the broker another."""

    def now_ms(self) -> int:
        """Wall clock, milliseconds since 1970."""
        ...

    def monotonic_ms(self) -> int:
        """A monotonic clock for durations, in milliseconds. It includes time during which the machine is suspended."""
        ...

    def defer(self, callback: Callable[[], None]) -> None:
        """Run ``callback`` once in the next turn of the loop."""
        ...

    def later(self, seconds: float, callback: Callable[[], None]) -> Timer: ...

    async def answer(self, ask: Callable[[Callable[[Any], None]], object]) -> Any:
        """Call ``ask`` with a callback and wait for the callback's argument; if that is an exception, it is raised."""
        ...

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Run ``work`` as a task that the shell owns, awaits and cancels when it ends. A failure is logged."""
        ...

    async def cuttable(self, work: Coroutine[Any, Any, None], begun: Callable[[Callable[[], None]], object]) -> bool:
        """Run ``work`` as part of the calling task. ``begun`` is given what cuts it short, for as long as it runs: it
        is then cancelled where it waits. Returns False if that happened.
        """
        ...


async def next_turn(scheduler: Scheduler) -> None:
    """Let other tasks run; continue in the next turn of the loop."""
    await scheduler.answer(lambda ready: scheduler.defer(lambda: ready(None)))


async def later(scheduler: Scheduler, seconds: float) -> None:
    """Continue after this many seconds."""
    await scheduler.answer(lambda ready: scheduler.later(seconds, lambda: ready(None)))


async def in_slices(scheduler: Scheduler, items: Iterable[T], size: int = SLICE) -> AsyncIterator[T]:
    """The items as they are now, ``size`` in each turn of the loop: there may be a hundred thousand.

    An item may have been removed in the meantime; the caller must expect that.
    """
    for number, item in enumerate(tuple(items)):
        if number and number % size == 0:
            await next_turn(scheduler)
        yield item


async def run_all(
    scheduler: Scheduler, jobs: Iterable[Callable[[], Awaitable[object]]], name: str, *, at_once: int = AT_ONCE
) -> None:
    """Run every job, ``at_once`` at a time. Once one fails, no more are started; those under way are awaited.

    :raises Exception: the first failure.
    """
    failures: list[Exception] = []
    listed = list(jobs)
    waiting = iter(listed)
    workers = left = min(at_once, len(listed))
    if not workers:
        return

    async def work(ready: Callable[[Any], None]) -> None:
        nonlocal left
        try:
            await _work_off(waiting, failures)
        finally:
            left -= 1
            if left == 0:
                ready(failures[0] if failures else None)

    def begin(ready: Callable[[Any], None]) -> None:
        for _ in range(workers):
            scheduler.spawn(work(ready), name)

    await scheduler.answer(begin)


async def _work_off(waiting: Iterator[Callable[[], Awaitable[object]]], failures: list[Exception]) -> None:
    for job in waiting:
        try:
            await job()
        except Exception as error:
            failures.append(error)
        if failures:
            return
