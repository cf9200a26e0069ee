# SPDX-License-Identifier: Apache-2.0
"""Acknowledgements of entries that were dropped while a consumer held them, and whose ledger has been deleted (R14).

An acknowledgement names a place in this region's log, and the index of that ledger says what it claims. A ledger's
index is deleted with the ledger. But a consumer may still hold dropped entries of it. Another region may not have
dropped them, and would deliver what was acknowledged here. So if a consumer held something that was dropped in a
ledger, the ledger's index is kept for a while: in memory, and for a limited number of the newest ledgers of a topic. A
ledger of this region's own entries takes almost no memory, others five bytes an entry.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from meridian_broker.ledgers.index import LedgerIndex
from meridian_broker.positions.position import Position

LEDGERS_MAX: Final = 16
"""Per topic. Acknowledging an entry that was dropped in an older ledger, since deleted, has no effect."""


class Late:
    """Indexes of ledgers in which something was dropped while a consumer held it. One per topic."""

    __slots__ = ("_indexes",)

    def __init__(self) -> None:
        self._indexes: dict[int, LedgerIndex] = {}

    def note(self, index: LedgerIndex) -> None:
        """Something in this ledger is dropped while a consumer holds it."""
        if self._indexes.get(index.ledger_id) is not index:
            self._indexes[index.ledger_id] = index
            if len(self._indexes) > LEDGERS_MAX:
                del self._indexes[min(self._indexes)]

    def index(self, position: Position) -> LedgerIndex | None:
        """The index that resolves an acknowledgement of this entry; None if it is no longer kept."""
        index = self._indexes.get(position.ledger)
        return index if index is not None and 0 <= position.entry < len(index) else None

    def pack(self, stored: Collection[int]) -> None:
        """Called from time to time: indexes of ledgers that are no longer stored are packed, to take less memory."""
        for ledger, index in self._indexes.items():
            if ledger not in stored and not index.is_packed:
                index.pack()
