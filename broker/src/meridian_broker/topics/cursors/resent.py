# SPDX-License-Identifier: Apache-2.0
"""Entries sent since a rewind: only their acknowledgements count in the newest epoch (R13)."""

from __future__ import annotations

from meridian_broker.positions import AckSet
from meridian_broker.positions.position import Position


class Resent:
    """Which entries were sent since the newest rewind, of those stored here before it, as local positions.

    What is stored after ``border`` arrived after the rewind, so it was never sent in an older epoch. The memory used
    is bounded by the entries before the border, kept as runs, and released once nothing up to the border is owed. It
    is not stored: after a restart or another rewind, an entry has to be sent once more before its acknowledgement
    counts, and the broker sends everything unacknowledged again then anyway. A message may be repeated; none is
    skipped.
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
        """Whether the entry, if it was sent at all, was sent since the rewind."""
        return position > self.border or self._sent.contains(position)

    def passed(self, mark_delete: Position) -> None:
        """Nothing up to ``mark_delete`` is owed any more."""
        if mark_delete >= self.border and not self._sent.is_empty:
            self._sent = AckSet()

    def copy(self) -> Resent:
        """A snapshot, for an acknowledgement that is processed later and does not cover what is sent meanwhile."""
        other = Resent(self.border)
        other._sent = self._sent.copy()
        return other
