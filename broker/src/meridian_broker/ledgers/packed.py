# SPDX-License-Identifier: Apache-2.0
"""Origins of a sealed ledger's foreign entries in five bytes each, not thirty-three, region codes included.

Nearly every entry of a region in a ledger follows the previous one, as its ``prev`` says (R3), and many consecutive
ones come from one ledger of their origin. So ledgers are stored as runs, and ``prev`` only where it is an exception.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Collection
from functools import lru_cache
from typing import Final

from meridian_broker.ledgers.entry import before
from meridian_broker.positions.position import Position

_WORD: Final = 1 << 32

Columns = tuple["array[int]", "array[int]", "array[int]", "array[int]"]
"""Ledger and entry of each entry's origin, and of its ``prev``."""


class PackedOrigins:
    """The four columns in less memory."""

    __slots__ = ("_entries", "_ledgers", "_prevs", "_unchained")

    def __init__(
        self, kinds: bytes | bytearray, columns: Columns, without: Collection[int], unchained: Collection[int] = ()
    ) -> None:
        """:param without: the region codes of entries that are not in the columns.
        :param unchained: the codes of regions whose entries claim only themselves.
        """
        ledgers, entries, prev_ledgers, prev_entries = columns
        self._entries = array("I", entries)
        self._ledgers: dict[int, tuple[list[int], list[int]]] = {}
        """By region code: the entries at which the origin's ledger changes, and those ledgers."""
        self._prevs: dict[int, Position] = {}
        self._unchained = frozenset(unchained)
        last: dict[int, Position] = {}
        for at, kind in enumerate(kinds):
            if kind in without:
                continue
            prev = Position(prev_ledgers[at], prev_entries[at])
            if last.get(kind) != prev and kind not in self._unchained:
                self._prevs[at] = prev
            last[kind] = Position(ledgers[at], entries[at])
            starts, runs = self._ledgers.setdefault(kind, ([], []))
            if not runs or runs[-1] != ledgers[at]:
                starts.append(at)
                runs.append(ledgers[at])

    @staticmethod
    def fits(columns: Columns) -> bool:
        """Whether all entry ids are in the range a broker assigns."""
        return min(columns[1]) >= 0 and max(columns[1]) < _WORD

    def origin(self, kinds: bytes | bytearray, at: int) -> Position:
        starts, ledgers = self._ledgers[kinds[at]]
        return Position(ledgers[bisect_right(starts, at) - 1], self._entries[at])

    def prev(self, kinds: bytes | bytearray, at: int) -> Position:
        if kinds[at] in self._unchained:
            return before(self.origin(kinds, at))
        exception = self._prevs.get(at)
        if exception is not None:
            return exception
        return self.origin(kinds, kinds.rfind(bytes((kinds[at],)), 0, at))

    def memory(self) -> int:
        """Approximate bytes."""
        runs = sum(len(starts) for starts, _ in self._ledgers.values())
        return 4 * len(self._entries) + 80 * len(self._prevs) + 80 * runs + 300


@lru_cache(maxsize=64)
def zeros(count: int) -> bytes:
    """That many zero bytes, shared between callers: most ledgers are full, and so have equally many entries."""
    return bytes(count)
