# SPDX-License-Identifier: Apache-2.0
"""Retries requests on behalf of clients that do not retry.

While a topic is being closed, reopened or deleted it cannot be served, and the protocol has ``ServiceNotReady`` for
that: look it up and try again. Official C++ clients, and those built on them, do so for PRODUCER and lookups; for
SUBSCRIBE they do nothing until their own time-out (30 seconds by default), and then fail.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from meridian_broker.ledgers.store import LedgerError
from meridian_broker.metadata.store import MetadataUnavailable
from meridian_broker.topics.errors import TopicElsewhere, TopicFenced

T = TypeVar("T")

PASSING: Final = (TopicFenced, LedgerError, MetadataUnavailable)
"""Failures that may pass quickly."""
SECONDS: Final = 10.0
"""After this the client gets the error; shorter than the client's own timeout."""
FIRST_PAUSE: Final = 0.05
LAST_PAUSE: Final = 0.5


async def patiently(attempt: Callable[[], Awaitable[T]], is_wanted: Callable[[], bool]) -> T:
    """Result of ``attempt``, retried for ``SECONDS`` on passing failures while the result is still wanted."""
    loop, pause = asyncio.get_running_loop(), FIRST_PAUSE
    give_up = loop.time() + SECONDS
    while True:
        try:
            return await attempt()
        except TopicElsewhere:
            raise  # waiting does not bring it back
        except PASSING:
            if loop.time() + pause > give_up or not is_wanted():
                raise
        await asyncio.sleep(pause)
        pause = min(2 * pause, LAST_PAUSE)
