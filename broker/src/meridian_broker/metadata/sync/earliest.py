# SPDX-License-Identifier: Apache-2.0
"""Paths with moments, the earliest at hand: what is due at a moment costs nothing until then."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Final

from meridian_broker.metadata.sync.stamped import Moment

SLACK: Final = 1000
"""Outdated entries that the heap may hold, besides as many as there are paths."""


class Earliest:
    """See the module's text. A path has one moment at most."""

    def __init__(self) -> None:
        self._moments: dict[str, Moment] = {}
        self._heap: list[tuple[Moment, str]] = []
        """Every path with its moment, and some with moments that they no longer have."""

    def __len__(self) -> int:
        return len(self._moments)

    def __contains__(self, path: str) -> bool:
        return path in self._moments

    def set(self, path: str, at: Moment | None) -> None:
        """Set the path's moment; None: it no longer has one."""
        if at is None:
            self._moments.pop(path, None)
        elif self._moments.get(path) != at:
            self._moments[path] = at
            heappush(self._heap, (at, path))
        if len(self._heap) > 2 * len(self._moments) + SLACK:
            self._heap = [(at, path) for path, at in self._moments.items()]
            heapify(self._heap)

    def first(self) -> Moment | None:
        """The earliest moment; None: there is no path."""
        while self._heap and self._moments.get(self._heap[0][1]) != self._heap[0][0]:
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def upto(self, moment: Moment, most: int) -> list[str]:
        """Paths up to this moment, earliest first, up to the limit. They stay until they are set to None."""
        found: dict[str, Moment] = {}  # a path that had its moment before may be in the heap twice
        while len(found) < most and (first := self.first()) is not None and first <= moment:
            at, path = heappop(self._heap)
            found[path] = at
        for path, at in found.items():
            heappush(self._heap, (at, path))
        return list(found)
