# SPDX-License-Identifier: Apache-2.0
"""Fixtures for tests of the catalog: three regions, a clock that tests set, and a store with concurrent changes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from meridian_broker.engines.sqlite.metadata import SqliteMetadataStore
from meridian_broker.metadata import counters
from meridian_broker.metadata.catalog import Catalog
from meridian_broker.metadata.records import ClusterRecord
from meridian_broker.metadata.view import Changed
from meridian_broker.wire.pulsar.topic_name import parse
from support.contracts.metadata_contract import wait_until

CLUSTERS = {
    name: ClusterRecord(f"http://{name}:8080", "", f"pulsar://{name}:6650", "") for name in ("us-east", "us-west", "eu")
}
NOW_MS = counters.EPOCH_2020_MS + 5 * 365 * 86_400_000
ORDERS = parse("orders")


@dataclass
class Clock:
    now_ms: int = NOW_MS

    def __call__(self) -> int:
        return self.now_ms


@contextlib.asynccontextmanager
async def running(catalog: Catalog) -> AsyncIterator[list[Changed]]:
    """Run ``catalog.run`` with its watch established; collect what its listeners receive."""
    heard: list[Changed] = []
    stop = catalog.subscribe(heard.append)
    task = asyncio.create_task(catalog.run())
    try:
        await wait_until(lambda: Changed("everything", "") in heard)
        heard.clear()
        yield heard
    finally:
        stop()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


class Interrupted:
    """The real store, with one concurrent change at a call: before a write or listing, after a read."""

    def __init__(self, store: SqliteMetadataStore, call: str, happening: Callable[[], Awaitable[None]]) -> None:
        self._store = store
        self._call = call
        self._happening: Callable[[], Awaitable[None]] | None = happening

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._store, name)
        if name != self._call:
            return real

        async def interrupted(*arguments: Any, **options: Any) -> Any:
            happening, self._happening = self._happening, None
            if name in ("get", "scan"):
                result = await real(*arguments, **options)
                if happening is not None:
                    await happening()
                return result
            if happening is not None:
                await happening()
            return await real(*arguments, **options)

        return interrupted
