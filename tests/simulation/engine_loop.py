# SPDX-License-Identifier: Apache-2.0
"""As much of asyncio's loop as the local engine uses, on the world's clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from simulation.loop import Future, Loop, Timer

T = TypeVar("T")


class EngineFuture:
    """As much of `asyncio.Future` as the engine uses."""

    def __init__(self) -> None:
        self._inner: Future[Any] = Future()

    def done(self) -> bool:
        return self._inner.done

    def cancelled(self) -> bool:
        return False

    def set_result(self, value: Any) -> None:
        self._inner.resolve(value)

    def set_exception(self, error: BaseException) -> None:
        self._inner.fail(error)

    def __await__(self) -> Iterator[Any]:
        return self._inner.__await__()


class EngineLoop:
    """As much of asyncio's loop as the engine uses, on the world's clock."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop

    def create_future(self) -> EngineFuture:
        return EngineFuture()

    def time(self) -> float:
        return self._loop.now_us / 1_000_000

    def call_later(self, seconds: float, callback: Callable[..., None], *arguments: Any) -> Timer:
        return self._loop.after(round(seconds * 1_000_000), None, lambda: callback(*arguments))

    def run_in_executor(self, _: None, work: Callable[..., T], *arguments: Any) -> EngineFuture:
        heard = EngineFuture()
        try:
            heard.set_result(work(*arguments))
        except Exception as error:
            heard.set_exception(error)
        return heard

    @contextmanager
    def running(self) -> Iterator[None]:
        """For `asyncio.get_running_loop`, `asyncio.sleep`, `asyncio.Event` and `asyncio.Lock`."""
        before = asyncio._get_running_loop()
        asyncio._set_running_loop(self)  # type: ignore[arg-type]
        try:
            yield
        finally:
            asyncio._set_running_loop(before)
