# SPDX-License-Identifier: Apache-2.0
"""One process that measures how long very many damaged entries block a broker's loop: run by ``measure.py``, prints one
JSON object.

A real topic as in ``acks.py``, with a subscription that is owed everything. The disk damages all entries of its sealed
ledgers, headers included. For each step, from reading the ledgers again to accepting the loss, the longest turn of the
loop, and its processor time, in milliseconds.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import sys

from acks import topic_of
from meridian_broker.engines.memory.ledgers import MemoryReader
from meridian_broker.ledgers.scheduling import next_turn
from meridian_broker.ledgers.store import LedgerCorrupt
from meridian_broker.server.running import GC_THRESHOLD
from meridian_broker.topics.topic import Topic
from seeks import measured

rotten = set[int]()
"""Ledgers on a disk that reads every entry wrong."""


class RottenReader(MemoryReader):
    """Reads from a disk that damaged some ledgers."""

    async def read(self, first: int, last: int, max_bytes: int) -> list[bytes]:
        if self.ledger_id in rotten:
            await asyncio.sleep(0)  # as a disk does
            raise LedgerCorrupt(f"entry {first} of ledger {self.ledger_id} fails its checksum", b"")
        return await super().read(first, last, max_bytes)


async def open_anew(topic: Topic) -> None:
    for ledger in sorted(rotten):
        await topic.log.reload_index(ledger)


async def ask(topic: Topic) -> None:
    """Every other region is asked; there are none."""
    topic.repair.noticed()
    while not topic.repair.for_a_person() or not all(gap.is_judged for gap in topic.repair.gaps()):
        topic.repair._since_ms = dict.fromkeys(topic.repair._since_ms, 1)
        await next_turn(topic.scheduler)


async def accept(topic: Topic) -> None:
    for gap in topic.repair.gaps():
        await topic.gaps.accept(gap.origin, gap.upto, "a person", forced=False)
    assert not topic.repair.gaps()


async def main() -> None:
    entries = int(sys.argv[1])
    topic, _ = await topic_of(entries + 4000, mixed=False)
    sealed = [span.ledger_id for span in topic.log.spans()[:-1]]
    assert sealed, "fewer entries than a ledger holds"
    rotten.update(sealed)
    for chapter in topic.log._chapters:
        reader = await topic.log._reader(chapter)
        assert isinstance(reader, MemoryReader)
        chapter.reader = RottenReader(reader._handle)
    topic.log.on_damage = lambda: None  # asked for below
    gc.set_threshold(*GC_THRESHOLD)
    logging.disable()  # each ledger and the accepted loss are logged
    cases = {
        "open ledgers of damaged entries": await measured(open_anew(topic)),
        "ask for them": await measured(ask(topic)),
        "accept their loss": await measured(accept(topic)),
    }
    print(json.dumps({"cases": cases, "entries": len(topic.log.damage.lost)}))


if __name__ == "__main__":
    asyncio.run(main())
