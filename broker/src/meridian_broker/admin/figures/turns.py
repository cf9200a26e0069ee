# SPDX-License-Identifier: Apache-2.0
"""Walks over all topics, or all clients of one, that block nothing else: there may be a hundred thousand of them."""

from __future__ import annotations

import time
from asyncio import sleep
from collections.abc import AsyncIterator, Iterable
from typing import Final, TypeVar

T = TypeVar("T")

TURN_SECONDS: Final = 0.002
"""How long a walk continues before the event loop gets its turn."""


async def in_turns(items: Iterable[T]) -> AsyncIterator[T]:
    """The items as they are now, with pauses in between. An item that was removed meanwhile is returned
    nevertheless.
    """
    began = time.monotonic()
    for item in tuple(items):
        yield item
        if time.monotonic() - began > TURN_SECONDS:
            await sleep(0)
            began = time.monotonic()
