# SPDX-License-Identifier: Apache-2.0
"""A broker that starts waits for what it stands on.

A region's parts are started in any order, and a broker that was killed may still be letting go of its volume while the
next one is there already. To end and to be started again would settle that too, but nobody could tell it from a fault.
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
    """What the broker stands on cannot be reached or read. The message says what, and what to do."""


async def once_there(opened: Callable[[], Awaitable[T]], away: type[Exception], seconds: float) -> T:
    """Try ``opened`` again and again, for so long, while it raises ``away``; then that is raised."""
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
                log.warning("%s; this broker waits up to %.0f s for it", error, seconds)
            await asyncio.sleep(min(pause, left))
            pause = min(2 * pause, LAST_PAUSE_SECONDS)
