# SPDX-License-Identifier: Apache-2.0
"""Observes one region for all objects: one request asks about many objects, at a bounded rate.

Queries wait in a queue, and the time spent there says nothing about the region. After a failed request a separate probe
finds out whether the region can be reached. Its result holds for every object: while the region is unreachable, no
object waits for a timeout of its own.
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
"""Sustained rate of requests that observe the region, however many objects there are."""
REQUESTS_AT_ONCE: Final = 5.0
"""Burst of such requests, so that a single change does not wait."""
PAGE: Final = 500
"""Maximum topics per request."""
PARALLEL_CHANGES: Final = 6
"""Concurrent changes in the region."""
PROBE_SECONDS: Final = 5.0
"""How often an unreachable region is probed."""
TROUBLE: Final = (aiohttp.ClientError, TimeoutError, OSError)
"""Errors of a failed call: the region may be unreachable, or only slow."""
_log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class _Waiting:
    """A queued ask."""

    ask: Ask
    seen: asyncio.Future[RegionSeen] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Observer:
    """Looks at one region for all objects, and changes it.

    :param clock: monotonic seconds.
    :param sleep: sleeps for the given seconds.
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
        """Why the region cannot be reached; empty: as far as is known, it can."""
        self._probed = 0.0
        self._changing = asyncio.Semaphore(PARALLEL_CHANGES)
        self.calls = 0
        """Requests so far."""
        self._task = asyncio.create_task(self._run(), name=f"observer of {self.region.name}")

    async def close(self) -> None:
        """Stop observing. Queries still in the queue are answered with a problem."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._tell_all("the operator has stopped observing this region")

    async def see(self, topic: TopicName, subscription: str | None = None) -> RegionSeen:
        """What the region holds of a topic and of one of its subscriptions."""
        waiting = _Waiting(Ask(topic, subscription))
        self._line.append(waiting)
        self._came.set()
        return await waiting.seen

    async def see_synchronization(self) -> RegionSeen:
        """How the region synchronizes metadata. Few objects ask for it, so each asks for itself."""
        if self._away:
            return self._silent("RegionUnreachable", self._away)
        self.calls += 1
        try:
            return await self._client.synchronization()
        except TROUBLE as error:
            return self._silent("RegionUnreachable", str(error) or f"no answer ({type(error).__name__})")
        except Refused as error:
            reason = "TokenRefused" if error.status in (401, 403) else "RegionUnreachable"
            return self._silent(reason, str(error))
        except Exception as error:
            return self._silent(
                "RegionUnreachable", f"{self.region.url} does not answer like a broker: {error!r}"[:500]
            )

    async def apply(self, change: Change) -> None:
        """Make one change. Its timeout begins when its turn comes.

        :raises Refused: the region refused. A change that is already in effect is not refused.
        :raises aiohttp.ClientError: the connection failed.
        :raises TimeoutError: no answer in time.
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
            self._tell_all(str(error), "TokenRefused" if error.status in (401, 403) else "RegionUnreachable")
        except Exception as error:
            # No answer of a region, whatever it contains, may end the observer.
            self._tell_all(f"{self.region.url} does not answer like a broker: {error!r}"[:500])
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
        """The region is reachable but too slow: ask for less at once."""
        if self._page > 1:
            self._page //= 2
            return
        first = self._line[0]
        text = f"it is reachable but did not describe {first.ask.topic} within {CALL_SECONDS:.0f} s"
        self._tell(first, self._silent("RegionSlow", f"{text} ({type(error).__name__})"))

    def _tell_all(self, problem: str, reason: str = "RegionUnreachable") -> None:
        for waiting in self._line:
            self._tell(waiting, self._silent(reason, problem))

    def _tell(self, waiting: _Waiting, seen: RegionSeen) -> None:
        if not waiting.seen.done():
            waiting.seen.set_result(seen)

    def _silent(self, reason: str, problem: str) -> RegionSeen:
        return RegionSeen(self.region.name, self.region.url, problem=problem, reason=reason)
