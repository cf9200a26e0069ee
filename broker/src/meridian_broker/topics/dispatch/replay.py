# SPDX-License-Identifier: Apache-2.0
"""The entries of a Shared subscription that wait to be sent again."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from meridian_broker.positions.position import Position


class Replay:
    """A priority queue of positions: each is in it at most once, and the earliest comes first. False if empty."""

    __slots__ = ("_heap", "positions")

    def __init__(self) -> None:
        self._heap: list[Position] = []
        self.positions: set[Position] = set()

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def first(self) -> Position:
        """The earliest position. :raises IndexError: the queue is empty."""
        return self._heap[0]

    def add(self, position: Position) -> None:
        """Add a position, unless it is already in the queue."""
        if position not in self.positions:
            self.positions.add(position)
            heappush(self._heap, position)

    def remove_first(self) -> None:
        """Remove the earliest position. :raises IndexError: the queue is empty."""
        self.positions.discard(heappop(self._heap))

    def keep(self, wanted: Callable[[Position], bool]) -> None:
        """Remove all positions that are not wanted."""
        self._heap = [position for position in self._heap if wanted(position)]
        heapify(self._heap)
        self.positions = set(self._heap)
