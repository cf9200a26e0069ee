# SPDX-License-Identifier: Apache-2.0
"""A volume that fills up with messages and is emptied again. As a program, takes the directory as its argument."""

from __future__ import annotations

import asyncio
import sys

from meridian_broker.engines.local.store import LocalLedgerStore
from meridian_broker.ledgers.labels import Belonging, Kind, Label
from meridian_broker.ledgers.store import LedgerStorageFull
from support.contracts.ledger_contract import append_all

SEGMENT_BYTES = 256 << 10
MESSAGES, PROGRESS = (Label(kind, Belonging("t", "")).encode() for kind in (Kind.MESSAGES, Kind.PROGRESS))
ACKNOWLEDGEMENTS = 1


async def fill(store: LocalLedgerStore, last: int = ACKNOWLEDGEMENTS) -> int:
    """Store messages until no more are accepted. Returns the last ledger."""
    while True:
        try:
            writer = await store.create(last + 1, 1, MESSAGES)
            last += 1
            await append_all(writer, [b"x" * 10_000] * 20)
        except LedgerStorageFull:
            return last


async def fill_and_empty(store: LocalLedgerStore) -> None:
    """A full volume accepts acknowledgements, frees space by itself, and accepts messages again."""
    writer = await store.create(ACKNOWLEDGEMENTS, 1, PROGRESS)
    last = await fill(store)
    assert "for acknowledgements and for freeing space" in (store.full or "")
    for round_ in range(2):
        await append_all(writer, [b"acknowledged"] * 100)
        for ledger in range(last // 2 * round_ + 2, last + 1):
            await store.delete(ledger)
        async with asyncio.timeout(60):
            while store.full is not None:
                await store.tidy()
        last = await fill(store, last)


async def main(directory: str) -> None:
    """Run it on a small volume."""
    store = await LocalLedgerStore.start(directory, segment_bytes=SEGMENT_BYTES, checkpoint_bytes=2 * SEGMENT_BYTES)
    await fill_and_empty(store)
    await store.close()
    print("went well")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
