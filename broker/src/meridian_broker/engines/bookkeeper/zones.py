# SPDX-License-Identifier: Apache-2.0
"""In which zone each bookie is, and which bookies to choose so that the copies of an entry are in several zones.

A zone is what fails as a whole: a data centre, a rack, a power supply. Operators name the zones, because bookies do not
register theirs. Bookies that match no pattern count as one more zone.

Zones are a preference. A working bookie in the wrong zone is better than none: with one copy less, the next failure
stops all writing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

ANY: Final = "*"
PATTERNS_MAX: Final = 1_000
NOWHERE: Final = ""
"""The zone of a bookie that matches no pattern."""


def parse_zones(text: str) -> dict[str, str]:
    """``BOOKIE=ZONE``, separated by commas; a BOOKIE that ends in ``*`` matches all ids that begin so.

    :raises ValueError: it cannot be read; the message completes a sentence.
    """
    found: dict[str, str] = {}
    for part in filter(None, (one.strip() for one in text.split(","))):
        bookie, _, zone = (one.strip() for one in part.partition("="))
        if not bookie or not zone or ANY in bookie[:-1]:
            raise ValueError(f"{part!r} is not BOOKIE=ZONE, where only the end of BOOKIE may be *")
        if found.setdefault(bookie, zone) != zone:
            raise ValueError(f"{bookie} is in two zones, {found[bookie]} and {zone}")
    if len(found) > PATTERNS_MAX:
        raise ValueError(f"{len(found)} bookies or patterns: the limit is {PATTERNS_MAX}")
    return found


class Zones:
    """See the module's text."""

    def __init__(self, patterns: Mapping[str, str] | None = None) -> None:
        """:param patterns: as ``parse_zones`` returns them; the longest match for a bookie counts."""
        given = dict(patterns or {})
        self._exact = {one: zone for one, zone in given.items() if not one.endswith(ANY)}
        prefixes = [(one.removesuffix(ANY), zone) for one, zone in given.items() if one.endswith(ANY)]
        self._prefixes = sorted(prefixes, key=lambda one: -len(one[0]))
        self.are_known = bool(given)

    def of(self, bookie: str) -> str:
        """The bookie's zone."""
        exact = self._exact.get(bookie)
        if exact is not None:
            return exact
        return next((zone for prefix, zone in self._prefixes if bookie.startswith(prefix)), NOWHERE)

    def number(self, bookies: Iterable[str]) -> int:
        """The number of zones that they are in."""
        return len({self.of(bookie) for bookie in bookies})

    def next_to(self, others: Collection[str], candidates: Sequence[str]) -> str:
        """Of several candidates, the first one whose zone has the fewest of the others."""
        if not self.are_known:
            return candidates[0]
        there = Counter(map(self.of, others))
        return min(candidates, key=lambda bookie: there[self.of(bookie)])

    def ensemble(self, candidates: Sequence[str], size: int, chosen: Sequence[str] = ()) -> tuple[str, ...]:
        """``size`` bookies in as many zones as possible, including those already chosen; fewer if there are fewer.
        Earlier candidates are preferred."""
        if not self.are_known:
            return (*chosen, *candidates)[:size]
        ensemble, left = list(chosen), list(candidates)
        while left and len(ensemble) < size:
            found = self.next_to(ensemble, left)
            left.remove(found)
            ensemble.append(found)
        return tuple(ensemble)
