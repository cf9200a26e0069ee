# SPDX-License-Identifier: Apache-2.0
"""The simulator's event loop: one queue of callbacks, one clock, and coroutines that run on nothing else.

Time is a number that jumps to the next due callback. Nothing sleeps and nothing runs concurrently, so every run of a
story is the same. A simulated process (a broker) is an *owner*: once it is dead, its callbacks and coroutines are
skipped, like those of a killed process.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Final, Generic, Protocol, TypeVar

T = TypeVar("T")

MOMENT_LIMIT: Final = 50_000
"""Maximum callbacks at one instant. More means that something reschedules itself without waiting for anything."""


class Owner(Protocol):
    """Anything that can die."""

    alive: bool


class Spinning(Exception):
    """Something reschedules itself forever while no time passes."""


class Timer:
    """A callback and when it is due."""

    __slots__ = ("callback", "owner")

    def __init__(self, owner: Owner | None, callback: Callable[[], None]) -> None:
        self.owner = owner
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None

    def fire(self) -> None:
        """Call it now, late, unless it was cancelled meanwhile."""
        if self.callback is not None:
            self.callback()


class Loop:
    """See the module's text. Times are microseconds since the world began."""

    def __init__(self) -> None:
        self.now_us = 0
        self.on_error: Callable[[BaseException, str], None] | None = None
        """Called with every uncaught exception."""
        self._suspended: dict[Owner, list[tuple[Owner | None, Callable[[], None]]]] = {}
        """Stopped processes, and what they will do once they continue."""
        self._ready: deque[tuple[Owner | None, Callable[[], None]]] = deque()
        self._heap: list[tuple[int, int, Timer]] = []
        self._number = 0

    def soon(self, owner: Owner | None, callback: Callable[[], None]) -> None:
        """Call it in the next turn."""
        self._ready.append((owner, callback))

    def after(self, delay_us: int, owner: Owner | None, callback: Callable[[], None]) -> Timer:
        """Call it after a delay."""
        self._number = number = self._number + 1
        timer = Timer(owner, callback)
        heapq.heappush(self._heap, (self.now_us + delay_us if delay_us > 0 else self.now_us, number, timer))
        return timer

    def run(self, until_us: int) -> None:
        """Run everything that is due until then."""
        self._turns()
        heap, ready = self._heap, self._ready
        while heap and heap[0][0] <= until_us:
            due, _, timer = heapq.heappop(heap)
            owner, callback = timer.owner, timer.callback
            if callback is None or (owner is not None and not owner.alive):
                continue
            self.now_us = due
            if self._suspended and self.holds_back(owner, timer.fire):
                continue
            try:
                callback()
            except Exception as error:
                self._failed(error, callback)
            if ready:
                self._turns()
        self.now_us = max(self.now_us, until_us)

    def _turns(self) -> None:
        ready, count = self._ready, 0
        while ready:
            owner, callback = ready.popleft()
            if owner is None or owner.alive:
                if self._suspended and self.holds_back(owner, callback):
                    continue
                try:
                    callback()
                except Exception as error:
                    self._failed(error, callback)
                count += 1
                if count > MOMENT_LIMIT:
                    ready.clear()
                    raise Spinning(f"{callback} and others keep each other busy while no time passes")

    def _failed(self, error: Exception, callback: Callable[[], None]) -> None:
        if self.on_error is None:
            raise error
        self.on_error(error, getattr(callback, "__qualname__", repr(callback)))

    # -- stopped processes

    def suspend(self, owner: Owner) -> None:
        """Stop the process, as by SIGSTOP: what it would do waits, in order."""
        self._suspended.setdefault(owner, [])

    def resume(self, owner: Owner) -> None:
        """Continue the process, which catches up at once with everything that waits."""
        self._ready.extend(self._suspended.pop(owner, ()))

    def is_suspended(self, owner: Owner) -> bool:
        """Whether the process is stopped."""
        return owner in self._suspended

    def holds_back(self, owner: Owner | None, callback: Callable[[], None], *, is_task: bool = False) -> bool:
        """Whether the process is stopped. If so, the callback waits until it continues.

        :param is_task: it is called even if the process is dead by then: a task ends itself.
        """
        waiting = None if owner is None else self._suspended.get(owner)
        if waiting is None:
            return False
        waiting.append((None if is_task else owner, callback))
        return True

    # -- coroutines

    def spawn(self, owner: Owner | None, work: Coroutine[Any, Any, None], name: str) -> Task:
        task = Task(self, owner, work, name)
        self._ready.append((None, task.step))
        return task

    async def sleep(self, delay_us: int) -> None:
        if delay_us <= 0:
            return
        heard: Future[None] = Future()
        self.after(delay_us, None, lambda: heard.resolve(None))
        await heard


class Future(Generic[T]):
    """A future value. Awaiters continue in the turn after it is set."""

    __slots__ = ("_error", "_value", "_waiters", "done")

    def __init__(self) -> None:
        self.done = False
        self._value: T | None = None
        self._error: BaseException | None = None
        self._waiters: list[Callable[[], None]] | None = None

    def resolve(self, value: T) -> None:
        if not self.done:
            self._value = value
            self._finish()

    def fail(self, error: BaseException) -> None:
        if not self.done:
            self._error = error
            self._finish()

    def _finish(self) -> None:
        self.done = True
        waiters, self._waiters = self._waiters, None
        for waiter in waiters or ():
            waiter()

    def when_done(self, callback: Callable[[], None]) -> None:
        if self.done:
            callback()
        elif self._waiters is None:
            self._waiters = [callback]
        else:
            self._waiters.append(callback)

    def __await__(self) -> Generator[Future[T], None, T]:
        if not self.done:
            yield self
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]


class Task:
    """A running coroutine."""

    __slots__ = ("_loop", "_owner", "_work", "name")

    def __init__(self, loop: Loop, owner: Owner | None, work: Coroutine[Any, Any, None], name: str) -> None:
        self._loop = loop
        self._owner = owner
        self._work = work
        self.name = name

    def step(self) -> None:
        owner = self._owner
        if owner is not None and not owner.alive:
            with contextlib.suppress(RuntimeError):  # it awaits something while it ends: that will not happen any more
                self._work.close()
            return
        if self._loop.holds_back(owner, self.step, is_task=True):
            return
        try:
            waited = self._work.send(None)
        except StopIteration:
            return
        except Exception as error:
            if self._loop.on_error is None:
                raise
            self._loop.on_error(error, self.name)
            return
        if waited is None:  # asyncio.sleep(0)
            self._loop.soon(None, self.step)
            return
        assert isinstance(waited, Future), f"{self.name} awaits something that is not from this loop: {waited!r}"
        waited.when_done(self._wake)

    def _wake(self) -> None:
        self._loop.soon(None, self.step)


class Cuttable:
    """A coroutine that runs as part of the task that awaits this, until it ends or is cut short."""

    def __init__(self, work: Coroutine[Any, Any, None]) -> None:
        self._work = work
        self._is_cut: Future[None] = Future()

    def cut(self) -> None:
        """Cancel it where it waits."""
        self._is_cut.resolve(None)

    def __await__(self) -> Generator[Future[None] | None, None, bool]:
        try:
            while not self._is_cut.done:
                waited = self._work.send(None)
                yield None if waited is None else self._either(waited)
            waited = self._work.throw(asyncio.CancelledError())
            while True:  # what it still does before it ends
                yield waited
                waited = self._work.send(None)
        except StopIteration:
            return not self._is_cut.done
        except asyncio.CancelledError:
            return False
        finally:  # if the process died, this ends before the task that awaits it
            self._work.close()

    def _either(self, waited: Future[Any]) -> Future[None]:
        continues: Future[None] = Future()
        waited.when_done(lambda: continues.resolve(None))
        self._is_cut.when_done(lambda: continues.resolve(None))
        return continues


class Lock:
    """Like `asyncio.Lock`, in order."""

    def __init__(self) -> None:
        self._held = False
        self._queue: deque[Future[None]] = deque()

    async def __aenter__(self) -> None:
        if self._held:
            turn: Future[None] = Future()
            self._queue.append(turn)
            await turn
        self._held = True

    def locked(self) -> bool:
        return self._held

    async def __aexit__(self, *_: object) -> None:
        self._held = False
        if self._queue:
            self._held = True
            self._queue.popleft().resolve(None)


class Event:
    """Like `asyncio.Event`."""

    def __init__(self) -> None:
        self._is_set = False
        self._waiters: list[Future[None]] = []

    def set(self) -> None:
        self._is_set = True
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter.resolve(None)

    def clear(self) -> None:
        self._is_set = False

    async def wait(self) -> None:
        if not self._is_set:
            turn: Future[None] = Future()
            self._waiters.append(turn)
            await turn


class SimScheduler:
    """`ledgers.scheduling.Scheduler` of one simulated process: its own clock, the world's turns."""

    def __init__(self, loop: Loop, owner: Owner, wall_ms: Callable[[], int]) -> None:
        self._loop = loop
        self._owner = owner
        self._wall_ms = wall_ms

    def now_ms(self) -> int:
        return self._wall_ms()

    def monotonic_ms(self) -> int:
        return self._loop.now_us // 1000

    def defer(self, callback: Callable[[], None]) -> None:
        self._loop.soon(self._owner, callback)

    def later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        return self._loop.after(round(seconds * 1_000_000), self._owner, callback)

    async def answer(self, ask: Callable[[Callable[[Any], None]], object]) -> Any:
        heard: Future[Any] = Future()

        def ready(value: Any) -> None:
            if isinstance(value, Exception):
                heard.fail(value)
            else:
                heard.resolve(value)

        ask(ready)
        return await heard

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self._loop.spawn(self._owner, work, name)

    async def cuttable(self, work: Coroutine[Any, Any, None], begun: Callable[[Callable[[], None]], object]) -> bool:
        running = Cuttable(work)
        begun(running.cut)
        return await running
