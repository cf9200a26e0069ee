# SPDX-License-Identifier: Apache-2.0
"""Regions in the test's own process: real brokers with real ports, stores and files, stopped and started at will."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from meridian_broker.gateway.client import PulsarClientConnection
from meridian_broker.gateway.roles import Producer
from meridian_broker.server.broker import BrokerProcess
from meridian_broker.server.settings import Settings
from support.brokers.broker_process import PATIENT
from support.brokers.free_ports import free_port


class Region:
    """One region. ``process`` is its broker while it runs."""

    def __init__(self, name: str, directory: Path, port: int, admin_port: int) -> None:
        self.name = name
        self.directory = directory
        self.port = port
        self.admin_port = admin_port
        self.process: BrokerProcess
        self._stack = AsyncExitStack()
        self._clients: list[PulsarClientConnection] = []

    @property
    def url(self) -> str:
        return f"pulsar://127.0.0.1:{self.port}"

    @property
    def admin_url(self) -> str:
        return f"http://127.0.0.1:{self.admin_port}"

    async def start(self) -> None:
        settings = Settings.of(
            {
                "clusterName": self.name,
                "dataDirectory": str(self.directory / self.name),
                "brokerServicePort": str(self.port),
                "webServicePort": str(self.admin_port),
                "regionsFile": str(self.directory / "regions.json"),
                "peerTokenFile": str(self.directory / "peer.token"),
                **PATIENT,
            }
        )
        self._stack = AsyncExitStack()
        try:
            self.process = await BrokerProcess.start(settings, self._stack)
        except BaseException:
            await self._stack.aclose()
            raise

    async def stop(self) -> None:
        """Stop cleanly, as after SIGTERM."""
        await self.process.drain()
        await self._stack.aclose()

    async def close(self) -> None:
        """Stop without saying good-bye to other regions. Clients are closed on both sides."""
        for client in self._clients:
            await client.close()
        for connection in tuple(self.process.gateway.connections):
            connection.end("the test is over")
        await self._stack.aclose()

    async def connect(self) -> PulsarClientConnection:
        """A client, which is closed with the region at the latest."""
        made = await PulsarClientConnection.connect(self.url)
        self._clients.append(made)
        return made

    def stored(self, topic: str) -> int:
        """How many entries of a topic it stores."""
        found = self.process.service.topics.get(topic)
        return 0 if found is None else found.log.entries

    async def publish(self, topic: str, first: int, count: int) -> None:
        """Publish ``count`` messages whose bodies are their numbers, and wait for their receipts."""
        connection = await self.connect()
        producer = await Producer.open(connection, topic)
        for number in range(first, first + count):
            await producer.send(b"%d" % number)
        await producer.flush()
        await connection.close()


@asynccontextmanager
async def regions(directory: Path, *names: str) -> AsyncIterator[list[Region]]:
    """Start regions that replicate to each other; stop those still running at the end."""
    every = [Region(name, directory, free_port(), free_port()) for name in names]
    listed = [{"name": one.name, "service_url": one.url, "admin_url": one.admin_url} for one in every]
    (directory / "regions.json").write_text(json.dumps({"regions": listed}))
    (directory / "peer.token").write_text("a secret that only these tests know\n")
    async with AsyncExitStack() as stack:
        for one in every:
            await one.start()
            stack.push_async_callback(one.close)
        yield every


async def until(condition: Callable[[], bool] | Callable[[], Awaitable[bool]], seconds: float = 60.0) -> None:
    """Poll for a condition that no event announces."""
    async with asyncio.timeout(seconds):
        while True:
            outcome = condition()
            if outcome if isinstance(outcome, bool) else await outcome:
                return
            await asyncio.sleep(0.01)
