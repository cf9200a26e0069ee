# SPDX-License-Identifier: Apache-2.0
"""The running operator, on its own thread: kopf watches an API server, and the desk handles objects."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

import aiohttp
import kopf
from kopf._cogs.structs.credentials import Vault, VaultKey
from meridian_operator.api.settings import Settings
from meridian_operator.handlers import watching
from meridian_operator.handlers.desk import Desk
from meridian_operator.handlers.world import World
from meridian_operator.kube.client import KubeClient
from meridian_operator.plan.budget import Budget
from meridian_operator.plan.observed import RegionSeen, TopicName
from meridian_operator.regions.directory import Region, Tokens
from meridian_operator.regions.observing import Observer
from support.kubernetes.kube_api import KubeApi

VERDICTS_NAMESPACE: Final = "meridian-verifier"
_HANDLERS = watching
"""Importing ``watching`` registered the handlers."""


@dataclass(slots=True)
class NearWorld(World):
    """Regions are at the test's URLs, because there is no cluster DNS."""

    urls: Mapping[str, str] = field(default_factory=dict)
    seen: set[TopicName] = field(default_factory=set)
    """Topics that the operator has read in the regions."""

    async def see(self, names: Sequence[str], topic: TopicName, subscription: str | None) -> list[RegionSeen]:
        found = await World.see(self, names, topic, subscription)
        self.seen.add(topic)
        return found

    def observer(self, region: Region) -> Observer:
        return World.observer(self, Region(region.name, self.urls[region.name]))


class RunningOperator:
    """A context manager: inside, the operator watches ``api``.

    :param urls: region -> its admin API. May change while the operator runs.
    :param tenants: namespace -> tenants whose topics its objects may manage.
    :param numbers_per_second: rate limit of status writes that change only numbers.
    :param spread: from 0 to 1; when existing objects are first reconciled.
    """

    def __init__(
        self,
        api: KubeApi,
        urls: Mapping[str, str],
        *,
        tenants: Mapping[str, Sequence[str]] = MappingProxyType({"default": ("public",), "team-x": ("public",)}),
        numbers_per_second: float = 100,
        spread: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._api = api
        self._urls = urls
        regions = {name: {"url": f"http://{name}"} for name in urls}
        self._settings = Settings.model_validate(
            {"regions": regions, "tenantsByNamespace": tenants, "verdictsNamespace": VERDICTS_NAMESPACE}
        )
        self._numbers = numbers_per_second
        self._spread = spread
        self._stop = threading.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="operator")

    def __enter__(self) -> RunningOperator:
        self._thread.start()
        assert self._ready.wait(60), "the operator did not start"
        return self

    def region_calls(self) -> dict[str, int]:
        """Requests to each region so far."""
        return self._world.calls()

    def seen(self) -> int:
        """Number of topics that the operator has read in the regions."""
        return len(self._world.seen)

    def sweep(self) -> None:
        """Look now for objects whose deletion was missed."""
        asyncio.run_coroutine_threadsafe(self._desk.sweep(), self._loop).result(30)

    def stop(self) -> None:
        """Stop the operator; does nothing if it has stopped."""
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(self._desk.close(), self._loop).result(30)
        self._stop.set()
        self._thread.join()

    def __exit__(self, *_: object) -> None:
        self.stop()

    async def _run(self) -> None:
        settings = kopf.OperatorSettings()
        settings.scanning.disabled = True
        settings.queueing.idle_timeout = settings.queueing.exit_timeout = 0.1
        login = kopf.ConnectionInfo(server=f"http://127.0.0.1:{self._api.port}", token="a-token")
        kube = KubeClient(lambda: login)
        budget = Budget(self._numbers, self._numbers, time.monotonic)
        async with aiohttp.ClientSession() as http:
            world = self._world = NearWorld(
                http, Tokens(None), kube, self._spread, budget, self._settings, urls=self._urls
            )
            self._desk, self._loop = Desk(world), asyncio.get_running_loop()
            memo = kopf.Memo(desk=self._desk, world=world, settings=self._settings)
            try:
                await kopf.operator(
                    settings=settings,
                    memo=memo,
                    standalone=True,
                    clusterwide=True,
                    stop_flag=self._stop,
                    ready_flag=self._ready,
                    vault=Vault({VaultKey("test"): login}),
                )
            finally:
                await self._desk.close()
                await world.close()
