# SPDX-License-Identifier: Apache-2.0
"""Resolves acknowledgements of entries that were dropped while a consumer held them, if their ledger is gone (R14).

An acknowledgement names a place in this region's log, and the ledger's index says what it claims. The index is deleted
with the ledger, but a consumer may still hold dropped entries of it. Another region may not have dropped them, and
would deliver what was acknowledged here. So if a consumer held entries that were dropped, their ledger's index stays in
memory for a while, limited to the newest such ledgers of a topic. With only own entries it takes almost no memory,
otherwise five bytes per entry.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from meridian_broker.ledgers.index import LedgerIndex
from meridian_broker.positions.position import Position

LEDGERS_MAX: Final = 16
"""Per topic. Acknowledging a dropped entry of an older ledger that is deleted has no effect."""


class Late:
    """Indexes of ledgers in which something was dropped while a consumer held it. One per topic."""

    __slots__ = ("_indexes",)

    def __init__(self) -> None:
        self._indexes: dict[int, LedgerIndex] = {}

    def note(self, index: LedgerIndex) -> None:
        """Entries of this ledger are dropped while a consumer holds them."""
        if self._indexes.get(index.ledger_id) is not index:
            self._indexes[index.ledger_id] = index
            if len(self._indexes) > LEDGERS_MAX:
                del self._indexes[min(self._indexes)]

    def index(self, position: Position) -> LedgerIndex | None:
        """The index that resolves an acknowledgement of this entry; None if it is no longer kept."""
        index = self._indexes.get(position.ledger)
        return index if index is not None and 0 <= position.entry < len(index) else None

    def pack(self, stored: Collection[int]) -> None:
        """Called from time to time: pack indexes of ledgers that are no longer stored, to save memory."""
        for ledger, index in self._indexes.items():
            if ledger not in stored and not index.is_packed:
                index.pack()
