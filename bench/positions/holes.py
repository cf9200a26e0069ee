# SPDX-License-Identifier: Apache-2.0
"""One process that measures the memory of subscriptions full of holes: run by ``measure.py``, prints one JSON object.

Each subscription has its progress, its first-hand acks (the evidence for the verifier) and its part of the topic's
index, over ledgers of 50,000 entries as in brokers. A Shared consumer acks in random order, a thousand entries per
turn, through the index as in the broker; then everything is encoded as by the broker's housekeeping. Memory is the
growth of the resident set over several subscriptions, after the allocator has returned its reserves.
"""

from __future__ import annotations

import ctypes
import gc
import json
import sys
from array import array
from math import log2
from pathlib import Path
from random import Random

from meridian_broker.ledgers.entry import EntryHeader
from meridian_broker.ledgers.index import LedgerIndex, RegionCodes
from meridian_broker.positions import ZERO, Position, Progress
from meridian_broker.positions.position import EARLIEST

PER_LEDGER = 50_000
LEDGER = 750_000_000_000_123
TURN = 1000
REMOTES = ("us-west", "eu-central")


def resident() -> int:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("no VmRSS in /proc/self/status")


def own_ledgers(entries: int) -> list[LedgerIndex]:
    """A topic whose entries were all first stored here."""
    codes, before, found = RegionCodes("us-east"), EARLIEST, []
    for number in range(-(-entries // PER_LEDGER)):
        index = LedgerIndex(LEDGER + 4096 * number, codes, before)
        index.add_all([1] * min(PER_LEDGER, entries - number * PER_LEDGER))
        before = Position(index.ledger_id, len(index) - 1)
        found.append(index)
    return found


def mixed_ledgers(entries: int) -> list[LedgerIndex]:
    """A topic to which three regions publish in turn."""
    codes, before, found = RegionCodes("us-east"), EARLIEST, []
    last = dict.fromkeys(REMOTES, EARLIEST)
    for number in range(-(-entries // PER_LEDGER)):
        index = LedgerIndex(LEDGER + 4096 * number, codes, before)
        for entry in range(PER_LEDGER):
            if entry % 3 == 0:
                index.add_own(1)
                before = Position(index.ledger_id, entry)
                continue
            region = REMOTES[entry % 3 - 1]
            origin = Position(index.ledger_id + 7, entry)
            index.add(EntryHeader(0, 0, 1, 0, 0, 0, 0, last[region], region, origin, None, None))
            last[region] = origin
        found.append(index)
    return found


def subscription(indexes: list[LedgerIndex], holes: int, seed: int) -> tuple[Progress, Progress]:
    """Progress and first-hand acks after everything was acked except ``holes`` entries, the first one among them."""
    entries = sum(map(len, indexes))
    order = array("I", range(1, entries))  # no Python objects: they would leave holes in the heap
    Random(seed).shuffle(order)
    progress, first_hand = Progress(), Progress()
    del order[entries - holes :]
    for start in range(0, len(order), TURN):
        delta = Progress()
        for number in order[start : start + TURN]:
            place = indexes[number // PER_LEDGER].place(number % PER_LEDGER)
            assert place is not None
            delta.ack(ZERO, place.region, place.prev, place.origin)
        progress.join(delta)
        first_hand.join(delta)
    return progress, first_hand


def cool(progress: Progress, first_hand: Progress) -> None:
    for _ in range(10):  # more than needed: a visit encodes a bounded number of ledgers
        progress.cool()
        first_hand.cool(progress)


def main() -> None:
    entries, holes, count, mixed = (int(word) for word in sys.argv[1:])
    cool(*subscription(own_ledgers(entries), holes, 0))  # one-time allocations, and what the allocator keeps
    begin = resident()
    indexes = mixed_ledgers(entries) if mixed else own_ledgers(entries)
    unpacked = sum(index.memory() for index in indexes)
    for index in indexes:
        index.pack()
    with_index = resident()
    kept, warm = [], 0
    for seed in range(count):
        before = resident()
        made = subscription(indexes, holes, seed + 1)
        warm = max(warm, resident() - before)
        cool(*made)
        kept.append(made)
    end = resident()
    encoded = kept[0][0].encode()
    assert kept[0][0] == kept[0][1]
    assert Progress.decode(encoded) == kept[0][0]
    share = holes / entries
    bound = -entries * (share * log2(share) + (1 - share) * log2(1 - share)) / 8
    print(
        json.dumps(
            {
                "entries": entries,
                "holes": holes,
                "regions": 3 if mixed else 1,
                "entropy_bytes": round(bound),
                "encoded_bytes": len(encoded),
                "memory_bytes": (end - with_index) // count,
                "memory_warm_bytes": warm,
                "index_bytes": max(0, with_index - begin),
                "index_unpacked_bytes": unpacked,
                "subscriptions": count,
            }
        )
    )


if __name__ == "__main__":
    main()
