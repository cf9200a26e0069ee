# SPDX-License-Identifier: Apache-2.0
"""Places where entries of an origin may be missing although later ones are stored (R5).

A region that publishes before it could ask every other region does not know whether it lost entries in a restore. Its
first entry then names no predecessor, and each region that stores that entry records a *hole* before it: if the lost
entries turn up, they are inserted there, in order. A hole is closed once the origin has asked all regions.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Final

from meridian_broker.positions.position import Position

log = logging.getLogger(__name__)

Hole = tuple[Position, Position]
"""Entries of one origin between these two, if there are any, may still arrive from another region."""
HOLES_MAX: Final = 64
"""Per origin. Each hole takes a restart of the origin while it could not ask some other region."""


def is_break(prev: Position, origin: Position) -> bool:
    """Whether an entry's ``prev`` says that its predecessor was not known for sure."""
    return prev.entry < 0 and prev.ledger == origin.ledger


class Holes:
    """The holes of all origins of one topic."""

    def __init__(self, ranges: Mapping[str, Sequence[Hole]] | None = None) -> None:
        self.ranges: dict[str, list[Hole]] = {region: list(some) for region, some in (ranges or {}).items()}
        self.given_up = 0
        """Holes that were dropped because there were too many: entries that turn up for them are no longer accepted."""

    def of(self, region: str) -> tuple[Hole, ...]:
        return tuple(self.ranges.get(region, ()))

    def open(self, region: str, after: Position, before: Position) -> None:
        """Record that entries may be missing between the two. If there are too many holes, drop and log the oldest."""
        known = self.ranges.setdefault(region, [])
        if all(hole[1] != before for hole in known):
            known.append((after, before))
            for lost_after, lost_before in known[:-HOLES_MAX]:
                self.given_up += 1
                log.warning(
                    "giving up on entries that %s may have lost between %s and %s: it has more than %d such holes",
                    *(region, lost_after, lost_before, HOLES_MAX),
                )
            del known[:-HOLES_MAX]

    def open_all(self, ranges: Mapping[str, Sequence[Hole]]) -> None:
        """``open`` several."""
        for region, some in ranges.items():
            for hole in some:
                self.open(region, *hole)

    def fill(self, region: str, origin: Position) -> None:
        """An entry was stored: if it lies in a hole, the hole now begins after it."""
        known = self.ranges.get(region)
        if known:
            self.ranges[region] = [(origin, b) if a < origin < b else (a, b) for a, b in known]

    def close(self, region: str, before: Position | None = None) -> None:
        """No more entries will arrive in the hole that ends at ``before``, or in any of the region's."""
        left = [] if before is None else [hole for hole in self.ranges.get(region, ()) if hole[1] != before]
        if left:
            self.ranges[region] = left
        else:
            self.ranges.pop(region, None)
