# SPDX-License-Identifier: Apache-2.0
"""Publish times of a topic's entries, for the few operations that need them (R12).

A log keeps the earliest and the latest publish time of each block of entries (``block_times.py``). This shows on
which side of a moment an entry lies, except in blocks with entries on both sides: for these, the headers are read.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable
from typing import Final

from meridian_broker.ledgers.block_times import BLOCK
from meridian_broker.ledgers.entry import publish_time_ms
from meridian_broker.ledgers.reading import ReadableLog
from meridian_broker.positions.position import Position

BLOCKS_MAX: Final = 128
"""Blocks per subscription whose individual times are kept in memory; the least recently loaded are dropped."""
PAGE_BYTES: Final = 1 << 20
"""Bytes of entries per read."""


async def first_since(log: ReadableLog, time_ms: int) -> Position | None:
    """The first entry published at ``time_ms`` or later, or None. Usually reads one block.

    A ledger whose times are not in memory is read first, unless its record shows that all of it is earlier.

    :raises LedgerError: the entries cannot be read.
    """
    for ledger, entries, _ in log.counts():
        if not log.holds(Position(ledger, 0)) or 0 < log.latest_ms(ledger) < time_ms:
            continue
        for first in list((await log.load_times(ledger)).reaching(time_ms)):
            at, end = first, min(first + BLOCK, entries)
            while at < end and (found := await log.read_after(Position(ledger, at - 1), end - at, PAGE_BYTES)):
                for position, entry in found:
                    if publish_time_ms(entry) >= time_ms:
                        return position
                if found[0][0].ledger != ledger:
                    break  # trimmed meanwhile
                at += len(found)
    return None


class PublishTimes:
    """Finds on which side of some moments entries were published: the times that seeks went to."""

    __slots__ = ("_blocks", "_log", "_moments")

    def __init__(self, log: ReadableLog, moments: Iterable[int]) -> None:
        self._log = log
        self._moments = sorted(moments)
        self._blocks: dict[tuple[int, int], array[int]] = {}

    def of(self, position: Position) -> int:
        """A time on the same side of every moment as the entry's publish time, in milliseconds since 1970.

        0: not in memory, ``load`` it. Never earlier than the entry's own time.
        """
        ledger, entry = position
        known = self._log.times(ledger)
        between = None if known is None else known.between(entry)
        if between is not None:
            moments, latest_ms = self._moments, between[1]
            if bisect_right(moments, between[0]) == bisect_right(moments, latest_ms):
                return latest_ms
        times = self._blocks.get((ledger, entry // BLOCK))
        at = entry % BLOCK
        return 0 if times is None or at >= len(times) else times[at]

    async def load(self, position: Position) -> None:
        """Load the times of those entries of a block that are still stored. :raises LedgerError: they cannot be
        read."""
        ledger = position.ledger
        await self._log.load_times(ledger)
        key = ledger, position.entry // BLOCK
        if key in self._blocks:  # move to the end, so that a caller that loads several keeps all of them
            self._blocks[key] = self._blocks.pop(key)
        if self.of(position):
            return
        times, first = array("Q", self._blocks.get(key, ())), key[1] * BLOCK
        while len(times) < BLOCK:
            at = first + len(times)
            found = await self._log.read_after(Position(ledger, at - 1), BLOCK - len(times), PAGE_BYTES)
            if not found or found[0][0] != (ledger, at):
                break
            times.extend(publish_time_ms(entry) for _, entry in found)
        self._blocks.pop(key, None)
        self._blocks[key] = times
        while len(self._blocks) > BLOCKS_MAX:
            del self._blocks[next(iter(self._blocks))]
