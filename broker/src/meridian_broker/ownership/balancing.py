# SPDX-License-Identifier: Apache-2.0
"""When a broker hands one of its bundles to another one.

Each move interrupts the clients of a bundle for a moment, so there are two reasons only:

- The set of brokers or of bundles has changed. Bundles are handed over until no broker has two more than another, and
  then no more until one of the sets changes again. So bundles that somebody moves by hand stay where they were put.
- A broker is overloaded while another one is not. It hands over the largest bundle that leaves the other broker below
  itself, so no two brokers ever pass a bundle back and forth. Then it waits until the loads have been measured again.

Pure: once a second, each broker looks at what it knows about all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from typing import Final

from meridian_broker.ownership.bundles import Bundle
from meridian_broker.ownership.placement import Candidate, to_hand_over, to_relieve

MEASURE_SECONDS: Final = 60.0
"""How long a broker hands over no bundle because of its load after its bundles changed: several smoothed
measurements."""


class Balance:
    """See the module's text. One per broker."""

    def __init__(self) -> None:
        self._members: Hashable = None
        """The brokers and bundles, as last seen."""
        self._mine: frozenset[Bundle] = frozenset()
        self._is_spreading = False
        """One of the sets has changed, and bundles are not spread evenly yet."""
        self._measured_at = 0.0

    def next_move(
        self,
        mine: Mapping[Bundle, float],
        me: str,
        candidates: Collection[Candidate],
        members: Hashable,
        now: float,
    ) -> tuple[Bundle, str] | None:
        """A bundle to hand over, and the broker that gets it; None: nothing moves now.

        :param mine: the bundles that this broker owns, with their traffic, all in the same unit; 0: unknown.
        :param members: a value that changes when a broker joins, restarts or leaves, or a bundle is made or split.
        :param now: monotonic time in seconds.
        """
        if members != self._members:
            self._members, self._is_spreading = members, True
        if mine.keys() != self._mine:
            self._mine, self._measured_at = frozenset(mine), now + MEASURE_SECONDS
        if self._is_spreading:
            self._is_spreading = not _is_even(candidates)
            return to_hand_over(mine, me, candidates)
        return to_relieve(mine, me, candidates) if now >= self._measured_at else None


def _is_even(candidates: Collection[Candidate]) -> bool:
    counts = [one.bundles for one in candidates]
    return not counts or max(counts) - min(counts) < 2
