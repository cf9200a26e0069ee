# SPDX-License-Identifier: Apache-2.0
"""Ledgers offloaded from real bookies: read as before, also by an open reader, and no longer on the bookies."""

from __future__ import annotations

import asyncio

import pytest
from meridian_broker.engines.bookkeeper.store import BookKeeperLedgerStore
from meridian_broker.engines.memory.objects import MemoryObjects
from meridian_broker.ledgers.offloaded.cache import BlockCache
from meridian_broker.ledgers.offloaded.copies import Copies
from meridian_broker.ledgers.offloaded.offloading import Offloading
from meridian_broker.ledgers.offloaded.storage import OffloadedLedgers
from meridian_broker.ledgers.offloaded.table import OffloadTable
from meridian_broker.ledgers.store import LedgerNotFound
from meridian_broker.metadata.store import Record
from meridian_broker.server.loop import LoopScheduler
from support.brokers.bookies import Bookies
from support.contracts.ledger_contract import append_all, read_all
from support.worlds.offload_world import LABEL, MemoryMetadata

ENTRIES = [b"%d" % number * 100 for number in range(500)]


async def test_a_ledger_leaves_its_bookies_and_is_read_as_before(bookies: Bookies) -> None:
    scheduler, records, objects = LoopScheduler(), dict[str, Record](), MemoryObjects()

    async def started() -> OffloadedLedgers:
        near = await BookKeeperLedgerStore.start(bookies.etcd.url, "offloading")
        table = OffloadTable(MemoryMetadata(records, lambda: None))  # type: ignore[arg-type]
        await table.load()
        offloading = Offloading(table, Copies(objects, "us", 4096, 20_000), near, scheduler, lambda: "copy")
        cache = BlockCache(1 << 20, scheduler.answer)
        return OffloadedLedgers(near, offloading, cache, scheduler, prefers_copies=False, outside="{}")

    store = await started()
    writer = await store.create(70_001, 1, LABEL)
    await append_all(writer, ENTRIES)
    await writer.seal()
    reader = await store.open(70_001)
    assert await reader.read(0, 9, 1 << 20) == ENTRIES[:10]
    await store.offloading.copy(70_001, 1)
    await store.offloading.leave(70_001)
    assert 70_001 not in [info.ledger_id for info in await store.list()]
    rest: list[bytes] = []
    while len(rest) < 490:
        rest += await reader.read(10 + len(rest), 499, 1 << 20)
    assert rest == ENTRIES[10:]
    await store._near.close()

    store = await started()  # another broker, which has never seen the ledger
    info = await store.recover(70_001, 2)
    assert (info.entries, info.sealed, info.label) == (500, True, LABEL)
    assert await read_all(store, 70_001) == ENTRIES
    await store.delete(70_001)
    await store.offloading.clear()
    assert not objects.bucket and not records
    with pytest.raises(LedgerNotFound):
        await store.open(70_001)
    await store.close()
    await asyncio.wait_for(scheduler.close(), 10)
