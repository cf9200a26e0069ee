# SPDX-License-Identifier: Apache-2.0
"""A metadata store on top of another, to which it forwards everything: the base of those that add to some of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from meridian_broker.metadata.store import Change, Check, Committed, Delete, Lease, MetadataStore, Put, Record


class ForwardingStore:
    """Implements the port."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def get(self, path: str) -> Record | None:
        return await self._store.get(path)

    async def get_many(self, paths: Sequence[str]) -> list[Record | None]:
        return await self._store.get_many(paths)

    async def put(self, path: str, value: bytes, *, expected: int | None = None, lease: int | None = None) -> int:
        return await self._store.put(path, value, expected=expected, lease=lease)

    async def delete(self, path: str, *, expected: int | None = None) -> bool:
        return await self._store.delete(path, expected=expected)

    async def children(self, path: str) -> list[str]:
        return await self._store.children(path)

    async def scan(self, prefix: str) -> list[tuple[str, Record]]:
        return await self._store.scan(prefix)

    async def transact(self, checks: Sequence[Check], operations: Sequence[Put | Delete]) -> Committed | None:
        return await self._store.transact(checks, operations)

    def watch(self, prefix: str) -> AsyncIterator[list[Change]]:
        return self._store.watch(prefix)

    async def lease(self, ttl_seconds: float) -> Lease:
        return await self._store.lease(ttl_seconds)

    async def close(self) -> None:
        await self._store.close()
