# SPDX-License-Identifier: Apache-2.0
"""A metadata store that remembers whether it is full.

A full store answers every read and refuses every write, so a broker keeps running but can create, change and
roll over nothing. Operators must see that early: ``GET /meridian/v1/health`` shows the remembered state.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from contextlib import suppress
from typing import TypeVar

from meridian_broker.metadata import keys
from meridian_broker.metadata.forwarding import ForwardingStore
from meridian_broker.metadata.store import Check, Committed, Delete, MetadataFull, MetadataStore, Put

T = TypeVar("T")


class NotingStore(ForwardingStore):
    """See the module's text."""

    def __init__(self, store: MetadataStore) -> None:
        super().__init__(store)
        self.full: str | None = None
        """Why the last write was refused, if the store was full; None: it is not, as far as known."""

    async def _noted(self, write: Awaitable[T]) -> T:
        try:
            result = await write
        except MetadataFull as error:
            self.full = str(error)
            raise
        self.full = None
        return result

    async def look_for_room(self) -> None:
        """Clear ``full`` if a test write succeeds. Call it periodically: there may be no other writes.

        :raises MetadataError: the store did not answer.
        """
        if self.full is not None:
            with suppress(MetadataFull):
                await self.put(keys.ROOM, b"")

    async def put(self, path: str, value: bytes, *, expected: int | None = None, lease: int | None = None) -> int:
        return await self._noted(self._store.put(path, value, expected=expected, lease=lease))

    async def transact(self, checks: Sequence[Check], operations: Sequence[Put | Delete]) -> Committed | None:
        writing = self._store.transact(checks, operations)
        if all(isinstance(operation, Delete) for operation in operations):
            return await writing  # a full store may still take these
        return await self._noted(writing)
