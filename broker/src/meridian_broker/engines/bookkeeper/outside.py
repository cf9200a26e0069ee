# SPDX-License-Identifier: Apache-2.0
"""Ledgers on bookies, read by a process other than their broker: the export's child process.

The broker passes the last entry to read, because only it knows what is confirmed in an open ledger.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meridian_broker.engines.bookkeeper.description import login_of, tls_of
from meridian_broker.engines.bookkeeper.handles import BookKeeperReader
from meridian_broker.engines.bookkeeper.store import BookKeeperLedgerStore


class OutsideBookKeeper:
    """Implements `meridian_broker.ledgers.storage.OutsideLedgers`."""

    def __init__(self, store: BookKeeperLedgerStore) -> None:
        self._store = store
        self._reader: BookKeeperReader | None = None
        """The reader of the ledger that was read last."""

    @classmethod
    async def connect(cls, storage: Mapping[str, Any]) -> OutsideBookKeeper:
        """:raises LedgerError: etcd does not answer."""
        login, tls = login_of(storage), tls_of(storage)
        return cls(await BookKeeperLedgerStore.start(storage["etcd"], storage["region"], login=login, tls=tls))

    async def read(self, ledger_id: int, first: int, last: int, max_bytes: int) -> list[bytes]:
        reader = self._reader
        if reader is None or reader.ledger_id != ledger_id or reader.last_confirmed() < last:
            reader = self._reader = await self._store.open(ledger_id, confirmed=last)
        return await reader.read(first, last, max_bytes)

    async def close(self) -> None:
        await self._store.close()
