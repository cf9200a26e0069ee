# SPDX-License-Identifier: Apache-2.0
"""A process that writes metadata, sends its events to a file, and kills itself at a given point.

``python -m support.worlds.sync_writer sqlite|etcd WHERE TOPIC transaction|message before|after COUNT``: it dies before
or after it asked the store for the transaction of that number, or wrote the message of that number. What it is told to
have written, it prints.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from meridian_broker.engines.etcd.metadata import EtcdMetadataStore
from meridian_broker.engines.sqlite.metadata import SqliteMetadataStore
from meridian_broker.metadata.catalog import Catalog
from meridian_broker.metadata.policies import NamespaceRecord
from meridian_broker.metadata.records import ClusterRecord, TenantRecord
from meridian_broker.metadata.store import Check, Committed, Delete, MetadataStore, Put
from meridian_broker.metadata.sync.publishing import Publisher
from meridian_broker.metadata.sync.recording import RecordingStore
from meridian_broker.positions.clock import HybridClock
from support.worlds.sync_world import is_synced

NOW_MS = 1_700_000_000_000
REGION = frozenset({"us"})


@asynccontextmanager
async def opened(kind: str, where: str) -> AsyncIterator[MetadataStore]:
    """A store of that kind; for etcd, ``where`` is its address, ``#`` and a prefix."""
    store: SqliteMetadataStore | EtcdMetadataStore
    if kind == "sqlite":
        store = await SqliteMetadataStore.open(where)
    else:
        url, _, prefix = where.partition("#")
        store = await EtcdMetadataStore.connect(url, prefix)
    try:
        yield store
    finally:
        await store.close()


def catalog_over(store: MetadataStore, clock: HybridClock) -> Catalog:
    return Catalog(store, clock, lambda: NOW_MS, asyncio.sleep, lambda _: 0)


class Place:
    """The point at which the process kills itself."""

    def __init__(self, what: str, when: str, count: int) -> None:
        self._place = what, when
        self._left = count

    def pass_by(self, what: str, when: str) -> None:
        if (what, when) == self._place:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


class DeadlyStore:
    """The real store, with points at which the process may kill itself."""

    def __init__(self, store: MetadataStore, place: Place) -> None:
        self._store = store
        self._place = place

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def transact(self, checks: Sequence[Check], operations: Sequence[Put | Delete]) -> Committed | None:
        self._place.pass_by("transaction", "before")
        done = await self._store.transact(checks, operations)
        self._place.pass_by("transaction", "after")
        return done


async def main(kind: str, where: str, topic: str, what: str, when: str, count: str) -> None:
    place = Place(what, when, int(count))

    async def notify(message: bytes) -> None:
        place.pass_by("message", "before")
        with open(topic, "ab") as file:  # noqa: ASYNC230 - nothing else runs in this process
            file.write(message.hex().encode() + b"\n")
        place.pass_by("message", "after")

    async with opened(kind, where) as real:
        store: Any = DeadlyStore(real, place)
        clock = HybridClock(lambda: NOW_MS, "us")
        catalog = catalog_over(RecordingStore(store, clock, is_synced), clock)
        publisher = Publisher(store, clock, notify)
        await catalog.clusters.put("us", ClusterRecord("http://us:8080"))
        for number in range(1000):
            await catalog.tenants.create(f"t{number}", TenantRecord(frozenset({"a", "b"}), REGION))
            await catalog.namespaces.create(f"t{number}/n", NamespaceRecord())
            await catalog.namespaces.set_policy(f"t{number}/n", "message_ttl_in_seconds", number)
            print(f"t{number}", flush=True)
            if number % 2:
                await publisher.drain()
            if number % 3 == 2:
                await catalog.namespaces.delete(f"t{number - 1}/n")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
