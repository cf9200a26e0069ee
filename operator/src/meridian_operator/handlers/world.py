# SPDX-License-Identifier: Apache-2.0
"""What handlers share: the regions and everything else outside the process.

kopf maintains its indices from watches, so nothing here reads from Kubernetes.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import aiohttp

from meridian_operator.api.settings import Settings
from meridian_operator.kube.client import KubeClient
from meridian_operator.plan.budget import Budget
from meridian_operator.plan.changes import Change
from meridian_operator.plan.observed import RegionSeen, TopicName
from meridian_operator.plan.verdicts import Verdicts
from meridian_operator.regions.client import Refused, RegionClient
from meridian_operator.regions.directory import Authorities, Region, Tokens
from meridian_operator.regions.observing import TROUBLE, Observer

PARALLEL_REGIONS: Final = 16
_log = logging.getLogger(__name__)


def utc_now() -> str:
    """The current time, formatted as in conditions."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(slots=True)
class World:
    """Everything outside the process."""

    http: aiohttp.ClientSession
    tokens: Tokens
    kube: KubeClient
    random: Callable[[], float]
    """Random number from 0 to 1, to spread work that would otherwise coincide."""
    numbers: Budget
    """Rate limit for status writes in which only numbers changed."""
    settings: Settings
    authorities: Authorities = field(default_factory=lambda: Authorities(None))
    now: Callable[[], str] = utc_now
    wall: Callable[[], float] = time.time
    """Seconds since 1970, to compare with expiry times of tokens."""
    gone: set[str] = field(default_factory=set)
    """UIDs of objects that are deleted, but still in kopf's indices: it missed that, or has yet to process it."""
    verdicts: Verdicts = field(init=False)
    """What the verifiers have written so far."""
    _observers: dict[str, Observer] = field(default_factory=dict)
    _warned: dict[str, str] = field(default_factory=dict)
    _closing: set[asyncio.Task[None]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.verdicts = Verdicts(self.settings.verifiers)

    def may_write_numbers(self) -> bool:
        """May a status in which only numbers changed be written now?"""
        return self.numbers.take()

    async def close(self) -> None:
        """End all connections."""
        await asyncio.gather(*self._closing, *(observer.close() for observer in self._observers.values()))
        await self.http.close()
        await self.kube.close()

    def observer(self, region: Region) -> Observer:
        """The region's observer, shared by all objects. A region whose URL changed gets a new one."""
        known = self._observers.get(region.name)
        if known is None or known.region != region:
            if known is not None:
                closing = asyncio.create_task(known.close())
                self._closing.add(closing)
                closing.add_done_callback(self._closing.discard)
            known = self._observers[region.name] = Observer(
                RegionClient(region, self.http, self.tokens, self.authorities)
            )
        return known

    def check_tokens(self) -> None:
        """Log which tokens expire soon or have expired, each once."""
        for name in self.settings.regions:
            told = self.tokens.warning(name, self.wall())
            if told and told != self._warned.get(name):
                _log.warning("%s", told)
            self._warned[name] = told

    def token_warnings(self, names: Sequence[str]) -> list[str]:
        """What the last check said about the tokens of these regions."""
        return [told for name in names if (told := self._warned.get(name))]

    def calls(self) -> dict[str, int]:
        """Number of requests sent to each region so far."""
        return {name: observer.calls for name, observer in self._observers.items()}

    async def see(self, names: Sequence[str], topic: TopicName, subscription: str | None) -> list[RegionSeen]:
        """Observe all the named regions concurrently."""

        return await self._see_all(names, lambda observer: observer.see(topic, subscription))

    async def see_synchronization(self, names: Sequence[str]) -> list[RegionSeen]:
        """Observe how the named regions synchronize metadata."""
        return await self._see_all(names, Observer.see_synchronization)

    async def _see_all(
        self, names: Sequence[str], see: Callable[[Observer], Awaitable[RegionSeen]]
    ) -> list[RegionSeen]:
        async def one(name: str) -> RegionSeen:
            known = self.settings.regions.get(name)
            if known is None:
                text = "the operator does not know this region: add it to regions in the operator's chart values"
                return RegionSeen(name, "", problem=text, reason="RegionNotListed")
            return await see(self.observer(Region(name, known.url)))

        return list(await asyncio.gather(*(one(name) for name in names[: 2 * PARALLEL_REGIONS])))

    async def apply(self, planned: Sequence[Change]) -> list[tuple[str, str]]:
        """Apply the changes, in order within each region. Returns failures: region and sentence."""

        async def one(region: str) -> list[tuple[str, str]]:
            observer = self.observer(Region(region, self.settings.regions[region].url))
            for change in planned:
                if change.region != region:
                    continue
                try:
                    await observer.apply(change)
                except (Refused, *TROUBLE) as error:
                    # Later changes in this region depend on this one.
                    return [(region, f"{change.sentence()}: {str(error) or type(error).__name__}")]
            return []

        failed = await asyncio.gather(*(one(region) for region in {change.region: None for change in planned}))
        return [failure for region in failed for failure in region]
