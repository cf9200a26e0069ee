# SPDX-License-Identifier: Apache-2.0
"""Retries requests on behalf of clients, and answers them before they give up.

While a topic moves, is being closed, reopened or deleted it cannot be served, and the protocol has ``ServiceNotReady``
for that: look it up and try again. Not every official client copes with that answer:

- C++ clients, and those built on them (Python, Node.js), look the topic up again after a refused PRODUCER. After a
  refused SUBSCRIBE they do nothing until their own time-out (30 seconds by default), and then fail, unless the broker
  also closes the consumer (``subscribing.py``).
- C++ and Java clients close the whole connection if a lookup is refused with ``ServiceNotReady``.
- Go clients retry nothing of what creates a producer or a consumer: lookup, PARTITIONED_METADATA, PRODUCER, SUBSCRIBE.

So the broker tries again first. Another broker may serve the topic by the time that this one gives up, so the client is
not left without an answer for longer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from meridian_broker.ledgers.store import LedgerCorrupt, LedgerError
from meridian_broker.metadata.errors import Contended
from meridian_broker.metadata.store import LeaseExpired, MetadataFull, MetadataUnavailable, VersionConflict
from meridian_broker.topics.errors import TopicElsewhere, TopicFenced
from meridian_broker.wire.pulsar.errors import ServiceNotReadyError

T = TypeVar("T")

PASSING: Final = (
    TopicFenced,
    LedgerError,
    MetadataUnavailable,
    VersionConflict,
    Contended,
    LeaseExpired,
    ServiceNotReadyError,
)
"""Failures that may pass quickly."""
LASTING: Final = (TopicElsewhere, LedgerCorrupt, MetadataFull)
"""Those among them for which waiting does not help."""
SECONDS: Final = 18.0
"""After this the client gets the error; shorter than the clients' own timeout, which is 30 seconds by default."""
LATE_SECONDS: Final = 22.0
"""After this the client gets an answer even if an attempt is still under way."""
FIRST_PAUSE: Final = 0.05
LAST_PAUSE: Final = 0.5


async def patiently(
    attempt: Callable[[], Awaitable[T]],
    is_wanted: Callable[[], bool],
    late: Callable[[Exception], bool] = lambda _: True,
) -> T:
    """Result of ``attempt``, retried for ``SECONDS`` on passing failures while the result is still wanted.

    :param late: called with the reason if an attempt is still under way after ``LATE_SECONDS``. Returns whether it
        goes on nevertheless: the client's next request profits from an opened topic. Otherwise the task is cancelled.
    """
    loop, pause = asyncio.get_running_loop(), FIRST_PAUSE
    give_up = loop.time() + SECONDS
    last: Exception = ServiceNotReadyError(f"the topic is not open after {LATE_SECONDS:g} s: look it up again")
    task = asyncio.current_task()

    def is_late() -> None:
        if not late(last) and task is not None:
            task.cancel()

    timer = loop.call_later(LATE_SECONDS, is_late)
    try:
        while True:
            try:
                return await attempt()
            except LASTING:
                raise
            except PASSING as error:
                if loop.time() + pause > give_up or not is_wanted():
                    raise
                last = error
            await asyncio.sleep(pause)
            pause = min(2 * pause, LAST_PAUSE)
    finally:
        timer.cancel()
