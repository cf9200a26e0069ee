# SPDX-License-Identifier: Apache-2.0
"""Measures the turns of an event loop in CPU time, so that other work of the machine does not count."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class LongestTurn:
    """The longest turn inside ``watching``, in seconds of CPU time of the loop's thread."""

    def __init__(self) -> None:
        self.longest = 0.0

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """The loop never sleeps meanwhile: a turn is the time between two calls of ``watch``."""
        loop = asyncio.get_running_loop()
        watches = True
        before = time.thread_time()

        def watch() -> None:
            nonlocal before
            now = time.thread_time()
            self.longest = max(self.longest, now - before)
            before = now
            if watches:
                loop.call_soon(watch)

        watch()
        try:
            yield
        finally:
            watches = False
