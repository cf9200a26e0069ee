# SPDX-License-Identifier: Apache-2.0
"""Acknowledgements of what was dropped while a consumer held it, and given back before it was acknowledged (R14).

An acknowledgement names a place in this region's log, and what it claims is told by the index of the ledger there. When
a ledger is given back its index goes with it. But a consumer may still hold entries of it that were dropped: another
region did not drop them, perhaps, and would deliver what was acknowledged here. So the index of a ledger in which
something was dropped that a consumer held is kept for a while: of so many ledgers of a topic, the newest ones, and in
memory. A ledger of this region's own entries takes next to nothing, others five bytes an entry.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from meridian_broker.ledgers.index import LedgerIndex
from meridian_broker.positions.position import Position

LEDGERS_MAX: Final = 16
"""Per topic. An acknowledgement of what was dropped in an older one, and given back, has no effect."""


class Late:
    """Indexes of ledgers in which something was dropped that a consumer held. Each topic has one."""

    __slots__ = ("_indexes",)

    def __init__(self) -> None:
        self._indexes: dict[int, LedgerIndex] = {}

    def note(self, index: LedgerIndex) -> None:
        """Of this ledger something that a consumer holds is dropped."""
        if self._indexes.get(index.ledger_id) is not index:
            self._indexes[index.ledger_id] = index
            if len(self._indexes) > LEDGERS_MAX:
                del self._indexes[min(self._indexes)]

    def index(self, position: Position) -> LedgerIndex | None:
        """Which knows what acknowledging this entry claims; None: nobody does any more."""
        index = self._indexes.get(position.ledger)
        return index if index is not None and 0 <= position.entry < len(index) else None

    def pack(self, stored: Collection[int]) -> None:
        """Called once in a while: what is of no ledger that is stored takes less memory."""
        for ledger, index in self._indexes.items():
            if ledger not in stored and not index.is_packed:
                index.pack()
