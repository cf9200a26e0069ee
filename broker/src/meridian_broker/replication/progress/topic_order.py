# SPDX-License-Identifier: Apache-2.0
"""The open topics in the order of a hash of their names, which is the same in every region.

Topics open and close all the time, and there may be a hundred thousand: the order follows them in passes, which are
made of steps of bounded size. Names with equal beginnings of their hashes are easy to find, so no bound relies on
hashes that spread well.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator, Set
from typing import Final

from meridian_broker.replication.progress.digest_tree import number_of

HASH_BITS: Final = 64
HASHED: Final = 5000
"""New topics in one step: some milliseconds."""
LOOKED: Final = 20_000
"""Topics looked up in one step."""
_CELL_BITS: Final = 12
_CELL_SHIFT: Final = HASH_BITS - _CELL_BITS
_CELLS: Final = 1 << _CELL_BITS

Place = tuple[int, str]
"""A hash and a topic."""


class TopicOrder:
    """See the module's text."""

    def __init__(self, topics: Callable[[], Set[str]]) -> None:
        """:param topics: those that are open now, a live set."""
        self._topics = topics
        self._cells: dict[int, list[Place]] = {}
        """By the first bits of the hash; each in order, none empty."""
        self._filled: list[int] = []
        """The keys of the cells in order: a few topics are walked without a look at thousands of empty cells."""
        self._known: set[str] = set()
        self._unseen: list[str] = []
        """Open when the pass began, and not looked at yet."""
        self._cell = _CELLS
        self._index = 0
        """The next place to be looked at for a topic that was closed."""

    def __len__(self) -> int:
        return len(self._known)

    def begin(self) -> None:
        """Begin a pass. Nothing but copying the names grows with their number: a millisecond for 100,000."""
        self._unseen = list(self._topics())
        self._cell = self._index = 0

    def step(self) -> bool:
        """Continue the pass. :returns: whether it is complete."""
        looked = self._add(self._topics())
        if not self._unseen:
            self._drop(self._topics(), looked)
        return not self._unseen and self._cell == _CELLS

    def _add(self, topics: Set[str]) -> int:
        looked = hashed = 0
        while self._unseen and looked < LOOKED and hashed < HASHED:
            topic = self._unseen.pop()
            looked += 1
            if topic not in self._known and topic in topics:
                hashed += 1
                hashed_to = number_of(topic.encode())
                self._insert((hashed_to, topic))
                self._known.add(topic)
        return looked

    def _insert(self, place: Place) -> None:
        number = place[0] >> _CELL_SHIFT
        if (cell := self._cells.get(number)) is None:
            self._cells[number] = [place]
            insort(self._filled, number)
        else:
            insort(cell, place)

    def _drop(self, topics: Set[str], looked: int) -> None:
        while self._cell < _CELLS and looked < LOOKED:
            cell = self._cells.get(self._cell, [])
            looked += 1
            if self._index >= len(cell):
                at = bisect_right(self._filled, self._cell)
                self._cell, self._index = self._filled[at] if at < len(self._filled) else _CELLS, 0
            elif (topic := cell[self._index][1]) in topics:
                self._index += 1
            else:
                self._known.discard(topic)
                del cell[self._index]
                if not cell:
                    del self._cells[self._cell]
                    del self._filled[bisect_left(self._filled, self._cell)]

    def between(self, first: Place, end: int) -> Iterator[Place]:
        """Those from ``first`` on whose hash is below ``end``."""
        for at in range(bisect_left(self._filled, first[0] >> _CELL_SHIFT), len(self._filled)):
            cell = self._cells[self._filled[at]]
            for index in range(bisect_left(cell, first), len(cell)):
                if cell[index][0] >= end:
                    return
                yield cell[index]


def following(place: Place) -> Place:
    """The first place after this one."""
    return place[0], place[1] + "\0"
