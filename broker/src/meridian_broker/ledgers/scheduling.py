# SPDX-License-Identifier: Apache-2.0
"""The port through which pure rooms get time, turns of the loop and tasks that somebody owns."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Protocol


class Timer(Protocol):
    """A call that was asked for later."""

    def cancel(self) -> None: ...


class Scheduler(Protocol):
    """What a core may ask of the shell it runs in. The simulator has one of these, the broker another."""

    def now_ms(self) -> int:
        """Wall clock, milliseconds since 1970."""
        ...

    def defer(self, callback: Callable[[], None]) -> None:
        """Run ``callback`` once in the next turn of the loop."""
        ...

    def later(self, seconds: float, callback: Callable[[], None]) -> Timer: ...

    async def answer(self, ask: Callable[[Callable[[Any], None]], object]) -> Any:
        """Call ``ask`` with a callback and wait for what the callback is given; an exception given is raised."""
        ...

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Run ``work`` as a task that the shell owns, awaits and cancels at its end. A failure of it is logged."""
        ...
