# SPDX-License-Identifier: Apache-2.0
"""Which of several replicas acts: the one that holds the Lease. Pure.

The holder renews the Lease; a replica that has watched it stay unchanged for ``LEASE_SECONDS`` of its own clock takes
it over. The holder stops acting ``ACT_SECONDS`` after it *began* its last successful renewal. So it stops before any
other replica can take over, whatever the difference between their clocks, and however late its answers arrive.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

LEASE_SECONDS: Final = 10
"""How long a Lease stays its holder's without being renewed."""
ACT_SECONDS: Final = 7.0
"""How long the holder acts without having renewed. The rest is for calls that are on their way."""
RENEW_SECONDS: Final = 2.0
"""How often the holder renews, and the others look."""
LONGEST_SECONDS: Final = 60
"""A Lease that claims to be longer is not believed: it would keep every replica from acting."""


@dataclass(frozen=True, slots=True)
class Lease:
    """What stands in the Lease."""

    holder: str
    """Empty: it was released."""
    acquired: str
    renewed: str
    transitions: int
    """How often it has changed hands."""
    seconds: int = LEASE_SECONDS


class Candidate:
    """One replica's view of the Lease.

    :param me: a name that no other replica has, and that no replica ever gets again.
    """

    def __init__(self, me: str) -> None:
        self.me = me
        self._seen: tuple[str, float] | None = None
        self._acts_until = float("-inf")

    def acts(self, now: float) -> bool:
        """May this replica act?

        :param now: seconds of this machine's steady clock, here and below.
        """
        return now < self._acts_until

    def next(self, found: Lease | None, version: str, now: float, time: str) -> Lease | None:
        """What to write in place of what was found; None: somebody else holds the Lease.

        :param version: changes with every write to the Lease.
        :param time: the time of day, for people.
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
        """A write that named this replica succeeded.

        :param began: when the call for it began.
        """
        self._acts_until = began + ACT_SECONDS

    def lost(self) -> None:
        """Somebody else holds the Lease, or it was given up."""
        self._acts_until = float("-inf")
