# SPDX-License-Identifier: Apache-2.0
"""One region as all objects share it: what it holds is asked for many objects in one request, at a bounded rate.

An object that wants to know waits in a line; the time it spends there says nothing about the region. Whether the region
can be reached is found by its own probe, after a request failed, and then holds for every object: while it is away no
object waits for a time limit of its own.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

import aiohttp

from meridian_operator.plan.budget import Budget
from meridian_operator.plan.changes import Change
from meridian_operator.plan.observed import RegionSeen, TopicName
from meridian_operator.regions.client import CALL_SECONDS, Ask, Refused, RegionClient

REQUESTS_PER_SECOND: Final = 1.0
"""Requests that look at the region, in the long run, however many objects there are."""
REQUESTS_AT_ONCE: Final = 5.0
"""The same after a pause, so that a single change does not wait."""
PAGE: Final = 500
"""Most topics of one request."""
PARALLEL_CHANGES: Final = 6
"""Changes that are under way in the region at the same time."""
PROBE_SECONDS: Final = 5.0
"""How often a region that is away is tried."""
TROUBLE: Final = (aiohttp.ClientError, TimeoutError, OSError)
"""A call that came to nothing: the region may be away, or only slow."""
_log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class _Waiting:
    """An ask in the line."""

    ask: Ask
    seen: asyncio.Future[RegionSeen] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Observer:
    """Looks at one region for all objects, and changes it.

    :param clock: seconds, from any beginning.
    :param sleep: waits so many seconds.
    """

    def __init__(
        self,
        client: RegionClient,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.region = client.region
        self._client = client
        self._clock = clock
        self._sleep = sleep
        self._budget = Budget(REQUESTS_PER_SECOND, REQUESTS_AT_ONCE, clock)
        self._line: list[_Waiting] = []
        self._came = asyncio.Event()
        self._page = PAGE
        self._away = ""
        """Why the region cannot be reached; empty: as far as is known it can."""
        self._probed = 0.0
        self._changing = asyncio.Semaphore(PARALLEL_CHANGES)
        self.calls = 0
        """Requests so far."""
        self._task = asyncio.create_task(self._run(), name=f"observer of {self.region.name}")

    async def close(self) -> None:
        """Stop looking. Who still waits is told that the region is not looked at any more."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._tell_all("the operator does not look there any more")

    async def see(self, topic: TopicName, subscription: str | None = None) -> RegionSeen:
        """What the region holds of a topic, and of a subscription on it."""
        waiting = _Waiting(Ask(topic, subscription))
        self._line.append(waiting)
        self._came.set()
        return await waiting.seen

    async def apply(self, change: Change) -> None:
        """Make one change. Its time limit begins when it is its turn.

        :raises Refused: the region said no. What is already as wanted is no refusal.
        :raises aiohttp.ClientError: no connection, or it broke.
        :raises TimeoutError: no answer.
        """
        async with self._changing:
            self.calls += 1
            await self._client.apply(change)

    async def _run(self) -> None:
        while True:
            await self._came.wait()
            self._came.clear()
            while self._line:
                await self._turn()
                self._line = [waiting for waiting in self._line if not waiting.seen.done()]

    async def _turn(self) -> None:
        if self._away and self._clock() - self._probed < PROBE_SECONDS:
            self._tell_all(self._away)
            return
        await self._sleep(self._budget.wait_seconds())
        self._budget.take()
        self.calls += 1
        if self._away:
            await self._probe()
            return
        some = self._line[: self._page]
        try:
            found = await self._client.describe([waiting.ask for waiting in some])
        except TROUBLE as error:
            await self._probe()
            if not self._away:
                self._smaller_page(error)
        except Refused as error:
            self._tell_all(str(error))
        except Exception as error:
            # What a region answers must not end the care for it, whatever it is.
            self._tell_all(f"{self.region.url} does not answer as a broker does: {error!r}"[:500])
        else:
            self._page = min(PAGE, 2 * self._page)
            for waiting, seen in zip(some, found, strict=False):
                self._tell(waiting, seen)

    async def _probe(self) -> None:
        """Can the region be reached at all?"""
        before, self._away = self._away, await self._client.probe()
        self._probed = self._clock()
        if self._away and not before:
            _log.warning("region %s cannot be reached: %s", self.region.name, self._away)
        elif before and not self._away:
            _log.info("region %s can be reached again", self.region.name)
        if self._away:
            self._tell_all(self._away)

    def _smaller_page(self, error: BaseException) -> None:
        """The region is there and did not get done: ask for less at once."""
        if self._page > 1:
            self._page //= 2
            return
        first = self._line[0]
        text = f"it can be reached, but does not say within {CALL_SECONDS:.0f} s what it holds of {first.ask.topic}"
        self._tell(first, self._silent("RegionSlow", f"{text} ({type(error).__name__})"))

    def _tell_all(self, problem: str) -> None:
        for waiting in self._line:
            self._tell(waiting, self._silent("RegionUnreachable", problem))

    def _tell(self, waiting: _Waiting, seen: RegionSeen) -> None:
        if not waiting.seen.done():
            waiting.seen.set_result(seen)

    def _silent(self, reason: str, problem: str) -> RegionSeen:
        return RegionSeen(self.region.name, self.region.url, problem=problem, reason=reason)
