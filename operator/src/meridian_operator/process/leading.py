# SPDX-License-Identifier: Apache-2.0
"""Leader election: wait for the Lease, renew it, stop when it is lost, release it at shutdown."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Any, Protocol

import aiohttp

from meridian_operator.kube.client import KubeError
from meridian_operator.plan.lease import RENEW_SECONDS, Candidate, Lease

_log = logging.getLogger(__name__)


class NotLeading(OSError):
    """Only the replica that holds the Lease may make this call."""

    def __init__(self) -> None:
        super().__init__("this replica no longer holds the Lease")


class LeaseStore(Protocol):
    """Stores the Lease."""

    async def read(self) -> tuple[Lease | None, str]:
        """The Lease and its version."""

    async def write(self, lease: Lease, version: str) -> None:
        """Replace the Lease that was read at ``version``."""


class Leadership:
    """This replica's part in the election.

    :param clock: monotonic seconds.
    :param wall: wall-clock time, in UTC.
    """

    def __init__(self, store: LeaseStore, me: str, clock: Callable[[], float], wall: Callable[[], datetime]) -> None:
        self._store = store
        self._clock = clock
        self._wall = wall
        self._candidate = Candidate(me)
        self.released = False
        """The Lease was released deliberately, not lost."""

    @property
    def acts(self) -> bool:
        """May this replica act now?"""
        return self._candidate.acts(self._clock())

    async def stand_by(self) -> None:
        """Return once this replica holds the Lease."""
        _log.info("%s stands by until it holds the Lease", self._candidate.me)
        while True:
            if await self._try():
                break
            await asyncio.sleep(RENEW_SECONDS)
        _log.info("%s holds the Lease and is active", self._candidate.me)

    async def keep(self) -> None:
        """Renew the Lease. Returns when it is lost or released."""
        while self.acts:
            await asyncio.sleep(RENEW_SECONDS)
            await self._try()
        if not self.released:
            _log.error("lost the Lease: it was not renewed in time, or another replica took it; this replica restarts")

    async def release(self) -> None:
        """Let another replica take over at once."""
        if not self.acts:
            return
        self.released = True
        self._candidate.lost()
        try:
            async with asyncio.timeout(RENEW_SECONDS):
                found, version = await self._store.read()
                if found is not None and found.holder == self._candidate.me:
                    await self._store.write(replace(found, holder=""), version)
        except (KubeError, TimeoutError) as error:
            _log.warning("could not release the Lease, which will expire: %s", error or "no answer")

    async def _try(self) -> bool:
        """Acquire or renew the Lease. Returns whether this replica now holds it; after a failure that is unknown."""
        try:
            async with asyncio.timeout(RENEW_SECONDS):
                found, version = await self._store.read()
                wanted = self._candidate.next(found, version, self._clock(), _micro(self._wall()))
                if wanted is None:
                    self._candidate.lost()
                    return False
                began = self._clock()
                await self._store.write(wanted, version)
        except (KubeError, TimeoutError) as error:
            _log.warning("could not read or write the Lease, will retry: %s", error or "no answer")
            return False
        self._candidate.holds(began)
        return True

    def fence(self) -> aiohttp.TraceConfig:
        """Stops an aiohttp session from starting a request after this replica has lost the Lease, however long the
        request waited for a connection."""

        async def check(*_: Any) -> None:
            if not self.acts:
                raise NotLeading

        trace = aiohttp.TraceConfig()
        for signal in (trace.on_request_start, trace.on_connection_create_end, trace.on_connection_reuseconn):
            signal.append(check)
        return trace


def _micro(time: datetime) -> str:
    """Format as a Kubernetes MicroTime."""
    return time.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
