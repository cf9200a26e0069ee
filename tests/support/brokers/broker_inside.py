# SPDX-License-Identifier: Apache-2.0
"""A complete broker on the test's own event loop, reached over real sockets: tests can observe it from inside."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from meridian_broker.engines.local.files import FilePort
from meridian_broker.server.broker import BrokerProcess
from meridian_broker.server.settings import Settings
from support.brokers.free_ports import free_port


@asynccontextmanager
async def broker_inside(directory: Path, **settings: object) -> AsyncIterator[BrokerProcess]:
    """A started broker, drained at the end."""
    async with broker_on(directory, None, settings) as process:
        yield process


@asynccontextmanager
async def broker_on(
    directory: Path, files: Callable[[Path], FilePort] | None, settings: Mapping[str, object]
) -> AsyncIterator[BrokerProcess]:
    """The same on a disk of the test's own; see ``BrokerProcess.start``."""
    pairs = {
        "clusterName": "inside",
        "dataDirectory": str(directory),
        "brokerServicePort": str(free_port()),
        "webServicePort": str(free_port()),
        **{key: str(value) for key, value in settings.items()},
    }
    async with AsyncExitStack() as stack:
        process = await BrokerProcess.start(Settings.of(pairs), stack, files)
        yield process
        await process.drain()
