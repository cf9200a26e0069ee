# SPDX-License-Identifier: Apache-2.0
"""A metadata store that remembers whether it is full.

A full store answers every read and refuses every write, so a broker goes on with what it has and can create, change and
roll over nothing. That has to be seen before somebody needs it: ``GET /meridian/v1/health`` shows what is remembered.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import suppress
from typing import TypeVar

from meridian_broker.metadata import keys
from meridian_broker.metadata.store import Change, Check, Delete, Lease, MetadataFull, MetadataStore, Put, Record

T = TypeVar("T")


class NotingStore:
    """The port, over another store."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self.full: str | None = None
        """What the last write was told when there was no room for it; None: it was written."""

    async def _noted(self, write: Awaitable[T]) -> T:
        try:
            result = await write
        except MetadataFull as error:
            self.full = str(error)
            raise
        self.full = None
        return result

    async def look_for_room(self) -> None:
        """Forget that it is full, if it is not any more. Call it now and then: perhaps nobody else writes anything.

        :raises MetadataError: it cannot be told.
        """
        if self.full is not None:
            with suppress(MetadataFull):
                await self.put(keys.ROOM, b"")

    async def get(self, path: str) -> Record | None:
        return await self._store.get(path)

    async def put(self, path: str, value: bytes, *, expected: int | None = None, lease: int | None = None) -> int:
        return await self._noted(self._store.put(path, value, expected=expected, lease=lease))

    async def delete(self, path: str, *, expected: int | None = None) -> bool:
        return await self._store.delete(path, expected=expected)

    async def children(self, path: str) -> list[str]:
        return await self._store.children(path)

    async def scan(self, prefix: str) -> list[tuple[str, Record]]:
        return await self._store.scan(prefix)

    async def transact(self, checks: Sequence[Check], operations: Sequence[Put | Delete]) -> bool:
        writing = self._store.transact(checks, operations)
        if all(isinstance(operation, Delete) for operation in operations):
            return await writing  # a full store may still take these
        return await self._noted(writing)

    def watch(self, prefix: str) -> AsyncIterator[list[Change]]:
        return self._store.watch(prefix)

    async def lease(self, ttl_seconds: float) -> Lease:
        return await self._store.lease(ttl_seconds)

    async def close(self) -> None:
        await self._store.close()
