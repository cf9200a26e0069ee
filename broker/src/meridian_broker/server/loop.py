# SPDX-License-Identifier: Apache-2.0
"""The scheduler of a real broker: the wall clock and asyncio's loop, with an owner for every task."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any

from meridian_broker.engines import clock

log = logging.getLogger(__name__)


class LoopScheduler:
    """Implements ``ledgers.scheduling.Scheduler``. ``await close()`` cancels running tasks."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._now_ms = 0

    def now_ms(self) -> int:
        """The same object within a millisecond: subscriptions store several timestamps, and many are created
        together."""
        now_ms = time.time_ns() // 1_000_000
        if now_ms != self._now_ms:
            self._now_ms = now_ms
        return self._now_ms

    def monotonic_ms(self) -> int:
        return clock.monotonic_ms()

    def defer(self, callback: Callable[[], None]) -> None:
        self._loop.call_soon(callback)

    def later(self, seconds: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        return self._loop.call_later(seconds, callback)

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = self._loop.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("failed to %s", task.get_name(), exc_info=error)

    async def answer(self, ask: Callable[[Callable[[Any], None]], object]) -> Any:
        future: asyncio.Future[Any] = self._loop.create_future()

        def ready(value: Any) -> None:
            if not future.done():
                if isinstance(value, Exception):
                    future.set_exception(value)
                else:
                    future.set_result(value)

        ask(ready)
        return await future

    async def cuttable(self, work: Coroutine[Any, Any, None], begun: Callable[[Callable[[], None]], object]) -> bool:
        task, is_cut = self._loop.create_task(work), False

        def cut() -> None:
            nonlocal is_cut
            is_cut = True
            task.cancel()

        try:
            begun(cut)
            await task
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if not is_cut or (caller is not None and caller.cancelling()):
                raise
            return False
        return True

    async def tasks_ended(self) -> None:
        """Wait for the running tasks, without cancelling them."""
        while self._tasks:
            await asyncio.wait(tuple(self._tasks))

    async def close(self) -> None:
        """Cancel the running tasks and wait until they have ended."""
        for task in tuple(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(tuple(self._tasks))
