# SPDX-License-Identifier: Apache-2.0
"""Leader election: only the replica that holds the Lease acts. Pure.

The holder renews the Lease. A replica that has seen the Lease unchanged for ``LEASE_SECONDS`` by its own clock takes it
over. The holder stops acting ``ACT_SECONDS`` after it *began* its last successful renewal. It therefore stops before
any other replica can take over, however far their clocks differ and however late responses arrive.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

LEASE_SECONDS: Final = 10
"""How long a Lease lasts without a renewal."""
ACT_SECONDS: Final = 7.0
"""How long the holder acts after its last renewal. The rest is a margin for calls in flight."""
RENEW_SECONDS: Final = 2.0
"""How often the holder renews and the others check."""
LONGEST_SECONDS: Final = 60
"""Upper bound on a Lease's stated duration: a longer one would keep every replica from acting."""


@dataclass(frozen=True, slots=True)
class Lease:
    """Contents of the Lease object."""

    holder: str
    """Empty: the Lease was released."""
    acquired: str
    renewed: str
    transitions: int
    """How often it has changed hands."""
    seconds: int = LEASE_SECONDS


class Candidate:
    """One replica's view of the Lease.

    :param me: a globally unique name that is never reused.
    """

    def __init__(self, me: str) -> None:
        self.me = me
        self._seen: tuple[str, float] | None = None
        self._acts_until = float("-inf")

    def acts(self, now: float) -> bool:
        """May this replica act?

        :param now: seconds of this machine's monotonic clock, here and below.
        """
        return now < self._acts_until

    def next(self, found: Lease | None, version: str, now: float, time: str) -> Lease | None:
        """The Lease to write; None: another replica holds it.

        :param version: changes with every write to the Lease.
        :param time: wall-clock time, for people.
        """
        if found is None:
            return Lease(self.me, time, time, 0)
        if found.holder == self.me:
            return Lease(self.me, found.acquired, time, found.transitions)
        if self._seen is None or self._seen[0] != version:
            self._seen = (version, now)
        if found.holder and now - self._seen[1] < min(found.seconds, LONGEST_SECONDS):
            return None
        return Lease(self.me, time, time, found.transitions + 1)

    def holds(self, began: float) -> None:
        """A write that named this replica as the holder succeeded.

        :param began: when that call began.
        """
        self._acts_until = began + ACT_SECONDS

    def lost(self) -> None:
        """Another replica holds the Lease, or this one released it."""
        self._acts_until = float("-inf")
