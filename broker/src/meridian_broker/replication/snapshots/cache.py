# SPDX-License-Identifier: Apache-2.0
"""The snapshots that one subscription may still use, thinned where there are too many.

A topic takes a snapshot every second, and a subscription may be days behind. It keeps a bounded number of them: once
there is one too many, it removes the one whose removal leaves the smallest *gap*, the distance between its two
neighbours. The first and the last stay.

So no gap that removals left is more than twice the average. Of n + 1 snapshots the n - 1 between the first and the last
can be removed. Each gap is on at most two sides of these, hence the gaps that their removals would leave add up to at
most twice the whole distance. The smallest of them is at most 2 / (n - 1) of it: twice the average of the n - 1 gaps
that n snapshots have. Later snapshots make the distance longer and the average greater. Only where no snapshot was ever
taken is a gap longer.

A snapshot stays true forever, so the order in which they are added does not matter: those that were taken before a
restart or a rewind are read from the log again and put in their places.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush, heapreplace
from typing import Final

from meridian_broker.positions.position import Position
from meridian_broker.wire.pulsar.markers import Snapshot

LEAST: Final = 3
"""Snapshots: the first, the last and one that may be removed."""


class _Kept:
    """A snapshot in the list, with its neighbours."""

    __slots__ = ("at", "before", "behind", "key", "snapshot")

    def __init__(self, snapshot: Snapshot, at: int, before: _Kept | None, behind: _Kept | None) -> None:
        self.snapshot = snapshot
        self.at = at
        self.before = before
        self.behind = behind
        self.key = _NONE
        """The gap that its removal would leave; ``_NONE``: it is the first, the last, or was removed."""

    def measure(self) -> bool:
        """Measure that gap. False: there is none."""
        if self.before is None or self.behind is None:
            self.key = _NONE
            return False
        self.key = max(self.behind.at - self.before.at, 0)
        return True


_NONE: Final = -1


class SnapshotCache:
    """Bounded, in the order of positions. An addition costs O(log n), or O(n) far from the last one."""

    def __init__(self, most: int) -> None:
        """:param most: how many snapshots are kept, at least ``LEAST``."""
        self._most = max(most, LEAST)
        self._first: _Kept | None = None
        self._last: _Kept | None = None
        self._count = 0
        self._ranks: list[tuple[int, int, _Kept]] = []
        """Heap of (gap that the removal would leave, number, snapshot). A rank that is too small, or of a removed
        snapshot, stays until it is met.
        """
        self._number = 0

    def __len__(self) -> int:
        return self._count

    @property
    def first(self) -> Position | None:
        """The position of the first one: an update is possible once everything up to here is acknowledged."""
        return None if self._first is None else self._first.snapshot.position

    def kept(self) -> list[tuple[Position, int]]:
        """Positions and distances of what is kept, in order."""
        found, one = [], self._first
        while one is not None:
            found.append((one.snapshot.position, one.at))
            one = one.behind
        return found

    def add(self, snapshot: Snapshot, at: int) -> None:
        """Keep a snapshot; one already kept at that position is the same.

        :param at: how many entries of the topic were stored before it, or another measure of distance that grows with
            positions.
        """
        before = self._last
        while before is not None and before.snapshot.position > snapshot.position:
            before = before.before
        if before is not None and before.snapshot.position == snapshot.position:
            return
        behind = self._first if before is None else before.behind
        one = _Kept(snapshot, at, before, behind)
        if before is None:
            self._first = one
        else:
            before.behind = one
        if behind is None:
            self._last = one
        else:
            behind.before = one
        self._count += 1
        for changed in (before, one, behind):
            self._rank(changed)
        if self._count > self._most:
            self._thin()
        if len(self._ranks) > 4 * self._most:
            self._rank_anew()

    def take(self, position: Position) -> Snapshot | None:
        """The newest snapshot at or before ``position``; it and those before it are removed. None: there is none."""
        found, one = None, self._first
        while one is not None and one.snapshot.position <= position:
            found, one.key = one.snapshot, _NONE
            self._count -= 1
            one = one.behind
        self._first = one
        if one is None:
            self._last = None
        else:
            one.before, one.key = None, _NONE
        return found

    def _rank(self, one: _Kept | None) -> None:
        if one is not None and one.measure():
            self._number += 1
            heappush(self._ranks, (one.key, self._number, one))

    def _thin(self) -> None:
        """Remove the snapshot between the first and the last whose removal leaves the smallest gap."""
        while True:
            key, number, one = self._ranks[0]
            if one.key == key:
                break
            if one.key > key:  # its neighbours have gone since
                heapreplace(self._ranks, (one.key, number, one))
            else:  # it has a newer rank, or was removed
                heappop(self._ranks)
        heappop(self._ranks)
        before, behind = one.before, one.behind
        assert before is not None and behind is not None
        one.key = _NONE
        before.behind, behind.before = behind, before
        self._count -= 1
        before.measure()
        behind.measure()

    def _rank_anew(self) -> None:
        self._ranks, one = [], self._first
        while one is not None:
            if one.measure():
                self._number += 1
                self._ranks.append((one.key, self._number, one))
            one = one.behind
        heapify(self._ranks)
