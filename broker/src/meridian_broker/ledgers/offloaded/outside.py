# SPDX-License-Identifier: Apache-2.0
"""Offloaded ledgers, read by another process: the export's child.

It has no metadata. If a ledger's original is gone, it looks for a copy; any whole one will do.
"""

from __future__ import annotations

from typing import Any, Final

from meridian_broker.ledgers.objects import ObjectStoreError
from meridian_broker.ledgers.offloaded.cache import BlockCache
from meridian_broker.ledgers.offloaded.copies import Copies
from meridian_broker.ledgers.offloaded.reading import CopyReader
from meridian_broker.ledgers.storage import OutsideLedgers
from meridian_broker.ledgers.store import LedgerNotFound, LedgerUnreadable

CACHE_BYTES: Final = 8 << 20


class OutsideOffloaded:
    """Implements `meridian_broker.ledgers.storage.OutsideLedgers`, for one reader at a time."""

    def __init__(self, near: OutsideLedgers, copies: Copies) -> None:
        self._near = near
        self._copies = copies
        self._cache = BlockCache(CACHE_BYTES, _nobody_waits)
        self._reader: CopyReader | None = None
        """Reads the copy that was read last."""

    async def read(self, ledger_id: int, first: int, last: int, max_bytes: int) -> list[bytes]:
        if self._reader is None or self._reader.ledger_id != ledger_id:
            try:
                return await self._near.read(ledger_id, first, last, max_bytes)
            except LedgerNotFound as error:
                self._reader = await self._find(ledger_id, error)
        return await self._reader.read(first, last, max_bytes)

    async def _find(self, ledger_id: int, error: LedgerNotFound) -> CopyReader:
        try:
            found = await self._copies.find(ledger_id)
        except ObjectStoreError as away:
            raise LedgerUnreadable(f"ledger {ledger_id} cannot be read from {self._copies.where}: {away}") from away
        if found is None:
            raise error
        copy, index = found
        return CopyReader(ledger_id, copy, index.entries, self._copies, self._cache, None)

    async def close(self) -> None:
        await self._copies.close()
        await self._near.close()


async def _nobody_waits(_: Any) -> Any:
    raise AssertionError("one reader at a time")
