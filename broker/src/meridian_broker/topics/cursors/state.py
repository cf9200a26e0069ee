# SPDX-License-Identifier: Apache-2.0
"""A cursor's state: what has been acknowledged, in which regions, and what was dropped; and how changes join it.

Pure state and algebra, independent of topics and disks.
"""

from __future__ import annotations

from meridian_broker.positions import Dropped, Progress
from meridian_broker.positions.position import EARLIEST, LATEST


class CursorState:
    """The part of a cursor that acknowledgements, rewinds, floors and drops are joined into."""

    __slots__ = ("dropped", "first_hand", "progress")

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.first_hand: Progress | None = None
        """What this region's own clients acked: evidence for the verifier (R60)."""
        self.dropped: Dropped | None = None
        """What is not owed here any more although it was not acked (R14)."""

    def join(self, delta: Progress) -> bool:
        """Join acknowledgements or a rewind. A rewind that is new here takes drops back (R12).

        :returns: whether anything was new.
        """
        progress, dropped = self.progress, self.dropped
        if dropped is None or dropped.is_empty:
            return progress.join(delta)
        before = progress.layers
        changed = progress.join(delta)
        if progress.layers is not before:
            known = {layer.epoch for layer in before or ()}
            for epoch, rules, publish_time_ms in progress.rewinds():
                if epoch not in known:
                    if publish_time_ms is not None:  # ranges do not contain the publish times of their entries
                        rules = {region: (EARLIEST, LATEST) for _, region, _, _ in dropped.runs()}
                    dropped.take_back(rules)
        return changed

    def join_floors(self, delta: Progress) -> None:
        """Join floors; evidence of acks and drops below them is forgotten with all other detail (R11)."""
        self.progress.join(delta)
        if self.first_hand is not None:
            self.first_hand.join(delta)
        self.forget_drops()

    def join_first_hand(self, delta: Progress) -> None:
        """Record what this region's own clients acknowledged."""
        if self.first_hand is None:
            self.first_hand = Progress()
        self.first_hand.join(delta)

    def keep_first_hand(self) -> None:
        """The subscription is replicated from now on: everything known of it so far was acknowledged here."""
        if self.first_hand is None:
            self.first_hand = self.progress.copy()

    def join_dropped(self, ranges: Dropped) -> bool:
        """Record dropped entries (R14). :returns: whether anything was new."""
        if self.dropped is None:
            self.dropped = Dropped()
        return self.dropped.join(ranges)

    def forget_drops(self) -> None:
        """Forget drops below the floors, as all other detail."""
        if self.dropped is not None and not self.dropped.is_empty:
            for region, position in self.progress.floors().items():
                self.dropped.forget(region, position)
