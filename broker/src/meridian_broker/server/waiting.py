# SPDX-License-Identifier: Apache-2.0
"""A starting broker waits for its dependencies.

A region's parts are started in any order, and a broker that was killed may still be releasing its volume when the
next one starts. Exiting and being restarted would work, too, but would look like a fault.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")

FIRST_PAUSE_SECONDS: Final = 0.1
LAST_PAUSE_SECONDS: Final = 2.0


class StartFailed(Exception):
    """A dependency of the broker cannot be reached or read. The message says which, and what to do."""


async def once_there(
    opened: Callable[[], Awaitable[T]], away: type[Exception] | tuple[type[Exception], ...], seconds: float
) -> T:
    """Retry ``opened`` for up to ``seconds`` while it raises ``away``; after that the exception is raised."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    pause = FIRST_PAUSE_SECONDS
    while True:
        try:
            return await opened()
        except away as error:
            left = until - loop.time()
            if left <= 0:
                raise
            if pause == FIRST_PAUSE_SECONDS:
                log.warning("%s; waiting up to %.0f s for it", error, seconds)
            await asyncio.sleep(min(pause, left))
            pause = min(2 * pause, LAST_PAUSE_SECONDS)
