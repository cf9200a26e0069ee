# SPDX-License-Identifier: Apache-2.0
"""Positions ``(ledger, entry)`` as single whole numbers that keep their order, so that ranges become number ranges.

Ledger ids are large and sparse (R1), entries dense: a position becomes *rank of its ledger* in the high bits and the
entry in the low ones. The ranks are made for one topic and origin at a time, from all positions that occur there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from meridian_verifier.align.intervals import Keys

ENTRY_BITS: Final = 40
"""A ledger holds fewer than 10^12 entries; larger values ("after everything") are clamped."""
_LAST_ENTRY: Final = (1 << ENTRY_BITS) - 1


@dataclass(frozen=True, slots=True, eq=False)
class Coordinates:
    """The ledgers that occur, sorted: their ranks make the keys."""

    ledgers: Keys

    @classmethod
    def over(cls, *ledgers: Any) -> Coordinates:
        """Coordinates in which every position with one of these ledgers has a key."""
        return cls(np.unique(np.concatenate([np.asarray(some, dtype=np.int64) for some in ledgers])))

    def keys(self, ledger: Any, entry: Any) -> Keys:
        """Keys of positions. A ledger not named when these coordinates were created sorts among the others, but shares
        its neighbour's key: name all of them."""
        rank = np.searchsorted(self.ledgers, np.asarray(ledger, dtype=np.int64)).astype(np.int64)
        # Entry -1 ("before the first") is a real bound of ranges, so entries are counted from 1 here.
        number = np.clip(np.asarray(entry, dtype=np.int64), -1, _LAST_ENTRY - 1) + 1
        return (rank << ENTRY_BITS) | number

    def key(self, ledger: int, entry: int) -> int:
        """The key of one position."""
        return int(self.keys([ledger], [entry])[0])

    @staticmethod
    def before_ledger(keys: Keys) -> Keys:
        """For each key, the key of the position before the first entry of its ledger."""
        return (keys >> ENTRY_BITS) << ENTRY_BITS

    def position(self, key: int) -> tuple[int, int]:
        """The position of a key."""
        return int(self.ledgers[key >> ENTRY_BITS]), (key & _LAST_ENTRY) - 1
