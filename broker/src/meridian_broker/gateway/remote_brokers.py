# SPDX-License-Identifier: Apache-2.0
"""The brokers of another region: one connection to each, shared by all replicators that go there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from meridian_broker.gateway.client import MAX_REDIRECTS, PulsarClientConnection
from meridian_broker.gateway.client_errors import ConnectionLost
from meridian_broker.gateway.links import Link, Resolver

if TYPE_CHECKING:
    from meridian_broker.gateway.client_options import ClientOptions

READERS: Final = 4
"""Replicators to one region that read the log at the same time; each holds up to 1 MiB meanwhile."""


class RemoteBrokers:
    """The connections to one region, shared by all its replicators."""

    def __init__(self, region: str, resolve: Resolver, options: ClientOptions, jitter: Callable[[], float]) -> None:
        self.region = region
        self.users = 0
        self.link = Link(region, resolve, options, jitter, "replication")
        self.link.start()
        self.turns = asyncio.Semaphore(READERS)
        self._options = options.towards(region)
        self._others: dict[str, PulsarClientConnection] = {}
        self._lock = asyncio.Lock()

    async def serving(self, topic: str) -> PulsarClientConnection:
        """A connection to the broker that serves ``topic``, as soon as the region can be reached."""
        connection = await self.link.ready()
        authoritative = False
        for _ in range(MAX_REDIRECTS):
            answer = await connection.lookup(topic, authoritative=authoritative)
            if not answer.redirect:
                return connection if answer.through_proxy else await self._to(answer.url)
            connection, authoritative = await self._to(answer.url), answer.authoritative
        raise ConnectionLost(f"{self.region} redirected the lookup of {topic} {MAX_REDIRECTS} times")

    async def close(self) -> None:
        await self.link.close()
        for connection in self._others.values():
            await connection.close()
        self._others.clear()

    async def _to(self, url: str) -> PulsarClientConnection:
        main = self.link.connection
        if main is not None and main.url == url:
            return main
        async with self._lock:
            known = self._others.get(url)
            if known is None or not known.is_open:
                self._others = {key: one for key, one in self._others.items() if one.is_open}
                known = await PulsarClientConnection.connect(url, self._options)
                if self._options.peer is not None and not known.is_proven:
                    await known.close()
                    raise ConnectionLost(f"{url} is {known.server_version}, not a Meridian broker")
                self._others[url] = known
            return known
