# SPDX-License-Identifier: Apache-2.0
"""Entries sent since a rewind: only their acknowledgements count in the newest epoch (R13)."""

from __future__ import annotations

from meridian_broker.positions import AckSet
from meridian_broker.positions.position import Position


class Resent:
    """Which entries were sent since the newest rewind, of those stored here before it: local positions.

    What is stored behind ``border`` came later than the rewind, so it was never sent under an older epoch. Bounded by
    what stood before the border, as runs; let go of when nothing up to there is owed any more. It is not written down:
    after a restart, and after a further rewind, an entry has to be sent once more before its acknowledgement counts,
    as the broker does anyway with all that is not acknowledged by then. A message may come again, none is skipped.
    """

    __slots__ = ("_sent", "border")

    def __init__(self, border: Position) -> None:
        self.border = border
        self._sent = AckSet()

    def note(self, position: Position) -> None:
        """The entry was sent."""
        if position <= self.border:
            self._sent.claim(Position(position.ledger, position.entry - 1), position)

    def holds(self, position: Position) -> bool:
        """Was it sent since the rewind, if it was sent at all?"""
        return position > self.border or self._sent.contains(position)

    def passed(self, mark_delete: Position) -> None:
        """Nothing up to there is owed any more."""
        if mark_delete >= self.border and not self._sent.is_empty:
            self._sent = AckSet()

    def copy(self) -> Resent:
        """As it is now, for an acknowledgement that is worked out later: what is sent meanwhile is not meant by it."""
        other = Resent(self.border)
        other._sent = self._sent.copy()
        return other
