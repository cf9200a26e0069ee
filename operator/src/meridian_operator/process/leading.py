# SPDX-License-Identifier: Apache-2.0
"""Holding the Lease: stand by until it is ours, renew it, stop when it is lost, release it at the end."""

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
    """A call that only the replica that holds the Lease may make."""

    def __init__(self) -> None:
        super().__init__("this replica no longer holds the Lease")


class LeaseStore(Protocol):
    """Where the Lease is."""

    async def read(self) -> tuple[Lease | None, str]:
        """The Lease and its version."""

    async def write(self, lease: Lease, version: str) -> None:
        """Replace what was read."""


class Leadership:
    """This replica's part in the election.

    :param clock: steady seconds.
    :param wall: the time of day, in UTC.
    """

    def __init__(self, store: LeaseStore, me: str, clock: Callable[[], float], wall: Callable[[], datetime]) -> None:
        self._store = store
        self._clock = clock
        self._wall = wall
        self._candidate = Candidate(me)
        self.released = False
        """It was given back, and not lost."""

    @property
    def acts(self) -> bool:
        """May this replica act now?"""
        return self._candidate.acts(self._clock())

    async def stand_by(self) -> None:
        """Return once this replica holds the Lease."""
        _log.info("standing by as %s", self._candidate.me)
        while True:
            if await self._try():
                break
            await asyncio.sleep(RENEW_SECONDS)
        _log.info("%s holds the Lease, and acts", self._candidate.me)

    async def keep(self) -> None:
        """Renew; return when the Lease is lost, or was released."""
        while self.acts:
            await asyncio.sleep(RENEW_SECONDS)
            await self._try()
        if not self.released:
            _log.error("the Lease is lost: it could not be renewed in time, or another replica holds it")

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
            _log.warning("the Lease was not released, and runs out by itself: %s", error or "no answer")

    async def _try(self) -> bool:
        """Take or renew the Lease. A failure leaves open who holds it."""
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
            _log.warning("the Lease could not be read or written: %s", error or "no answer")
            return False
        self._candidate.holds(began)
        return True

    def fence(self) -> aiohttp.TraceConfig:
        """Lets a session of aiohttp begin no request that this replica may not make, however long it waited for a
        connection."""

        async def check(*_: Any) -> None:
            if not self.acts:
                raise NotLeading

        trace = aiohttp.TraceConfig()
        for signal in (trace.on_request_start, trace.on_connection_create_end, trace.on_connection_reuseconn):
            signal.append(check)
        return trace


def _micro(time: datetime) -> str:
    """As Kubernetes writes a MicroTime."""
    return time.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
