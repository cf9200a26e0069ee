# SPDX-License-Identifier: Apache-2.0
"""What a broker does every minute for the ledgers in etcd: counts them, and removes old tombstones.

Bookies read the list of all ledgers in a single answer from etcd, whose size is limited; beyond that they free no
space. Tombstones of deleted ledgers keep ids from being used again (R1); in the end they would fill etcd.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final

from meridian_broker.engines.bookkeeper.context import StoreContext
from meridian_broker.ledgers.periodic import PeriodicWork

SECONDS: Final = 60.0
LEDGERS_MANY: Final = 70_000
"""Bookies fail to list about 100,000."""
TOMBSTONE_MS: Final = 30 * 24 * 3600 * 1000

log = logging.getLogger(__name__)


class Upkeep:
    """See the module's text."""

    def __init__(self, context: StoreContext) -> None:
        self._context = context
        self._has_warned = False
        self.work = PeriodicWork(
            "maintain the list of ledgers",
            "the number of ledgers is unknown, and old tombstones of ledgers are not removed",
            self.turn,
            SECONDS,
            clock=time.monotonic,
            sleep=asyncio.sleep,
        )

    async def turn(self) -> None:
        """:raises LedgerError: etcd did not answer."""
        table = self._context.table
        count = self._context.ledgers = await table.count()
        if count >= LEDGERS_MANY and not self._has_warned:
            log.warning(
                "%d ledgers are in etcd at %s: from about 100,000 on, bookies free no space. Trim topics, or use "
                "larger ledgers (managedLedgerMaxEntriesPerLedger)",
                count,
                table.where,
            )
        self._has_warned = count >= LEDGERS_MANY
        await table.forget_deleted(time.time_ns() // 1_000_000 - TOMBSTONE_MS)
