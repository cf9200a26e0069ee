# SPDX-License-Identifier: Apache-2.0
"""Where entries of an origin may be missing although later ones are stored (R5).

A region that publishes before it could ask every other one does not know whether it lost entries in a restore. Its
first entry then claims no predecessor, and whoever stores that entry notes a *hole* before it: should the lost entries
turn up, they are taken in there, in their order. A hole is closed once the origin has asked everybody.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Final

from meridian_broker.positions.position import Position

log = logging.getLogger(__name__)

Hole = tuple[Position, Position]
"""Entries of one origin between the two, if there are any, may still come from another region."""
HOLES_MAX: Final = 64
"""Per origin. Each takes a restart of it while another region could not be asked."""


def is_break(prev: Position, origin: Position) -> bool:
    """Whether an entry's ``prev`` says that what came before it was not known for sure."""
    return prev.entry < 0 and prev.ledger == origin.ledger


class Holes:
    """The holes of all origins of one topic."""

    def __init__(self, ranges: Mapping[str, Sequence[Hole]] | None = None) -> None:
        self.ranges: dict[str, list[Hole]] = {region: list(some) for region, some in (ranges or {}).items()}
        self.given_up = 0
        """Holes that were forgotten because there were too many: what turns up for them is not taken any more."""

    def of(self, region: str) -> tuple[Hole, ...]:
        return tuple(self.ranges.get(region, ()))

    def open(self, region: str, after: Position, before: Position) -> None:
        """Between the two there may be more. Of too many holes the oldest is given up, which is counted and told."""
        known = self.ranges.setdefault(region, [])
        if all(hole[1] != before for hole in known):
            known.append((after, before))
            for lost_after, lost_before in known[:-HOLES_MAX]:
                self.given_up += 1
                log.warning(
                    "not waiting any more for what %s may have lost between %s and %s: it has more than %d such holes",
                    *(region, lost_after, lost_before, HOLES_MAX),
                )
            del known[:-HOLES_MAX]

    def open_all(self, ranges: Mapping[str, Sequence[Hole]]) -> None:
        """The same for several."""
        for region, some in ranges.items():
            for hole in some:
                self.open(region, *hole)

    def fill(self, region: str, origin: Position) -> None:
        """An entry is stored: where it lies in a hole, what may still be missing begins behind it."""
        known = self.ranges.get(region)
        if known:
            self.ranges[region] = [(origin, b) if a < origin < b else (a, b) for a, b in known]

    def close(self, region: str, before: Position | None = None) -> None:
        """Nothing more is to come: in the hole that ends there, or in all of the region's."""
        left = [] if before is None else [hole for hole in self.ranges.get(region, ()) if hole[1] != before]
        if left:
            self.ranges[region] = left
        else:
            self.ranges.pop(region, None)
