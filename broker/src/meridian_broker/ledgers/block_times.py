# SPDX-License-Identifier: Apache-2.0
"""The earliest and the latest publish time of each block of a ledger's entries (R12).

Keeping every time would cost eight bytes per entry, so only the earliest and the latest time of each *block* of entries
are kept. They show in which block a time is first reached, even if entries are out of order, as with other regions or
publishers whose clocks differ.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Final

BLOCK: Final = 512
"""Entries."""


class BlockTimes:
    """The earliest and latest publish time of each block of a ledger; the range may be a little too wide.

    Groups of entries are recorded as a whole; a group that spans two blocks counts in both.
    """

    __slots__ = ("_earliest", "_latest")

    def __init__(self) -> None:
        self._earliest = array("Q")  # set by the client: any 64-bit number of milliseconds
        self._latest = array("Q")

    def note(self, first: int, count: int, earliest_ms: int, latest_ms: int) -> None:
        """The next ``count`` entries, from ``first`` on, were published between these times."""
        earliest, latest = self._earliest, self._latest
        earliest_ms, latest_ms = earliest_ms or 1, latest_ms or 1  # 0 stands for "not known"
        for block in range(first // BLOCK, (first + count - 1) // BLOCK + 1):
            if block == len(latest):
                earliest.append(earliest_ms)
                latest.append(latest_ms)
            else:
                if earliest_ms < earliest[block]:
                    earliest[block] = earliest_ms
                if latest_ms > latest[block]:
                    latest[block] = latest_ms

    @property
    def latest_ms(self) -> int:
        """The latest time of all entries; 0 if there are none."""
        return max(self._latest, default=0)

    def between(self, entry: int) -> tuple[int, int] | None:
        """The times between which an entry was published; None: unknown."""
        block = entry // BLOCK
        return (self._earliest[block], self._latest[block]) if 0 <= block < len(self._latest) else None

    def reaching(self, time_ms: int) -> Iterable[int]:
        """The first entry of each block that may contain an entry published at ``time_ms`` or later."""
        return (block * BLOCK for block, latest_ms in enumerate(self._latest) if latest_ms >= time_ms)
