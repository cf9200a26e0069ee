# SPDX-License-Identifier: Apache-2.0
"""One place in an ensemble: the bookie in it, what was sent to it and what it has acknowledged.

Acknowledgements may arrive out of order; the *mark* moves only over entries without a gap.
"""

from __future__ import annotations


class Place:
    """See the module's text."""

    __slots__ = ("again", "bookie", "early", "is_given_up", "is_lost", "mark", "progress_ms", "sent")

    def __init__(self, bookie: str, mark: int, now_ms: int) -> None:
        self.bookie = bookie
        self.mark = mark
        """It has all entries up to this one."""
        self.early: set[int] = set()
        """Entries acknowledged beyond the mark, after a gap."""
        self.sent = mark + 1
        """The next entry to be sent to it."""
        self.again: set[int] = set()
        """Entries refused because the bookie was overloaded. Nothing new is sent until these are."""
        self.is_lost = False
        self.is_given_up = False
        """The metadata may name another bookie in its place already, so this one must never count again."""
        self.progress_ms = now_ms
        """When its mark last moved, or when it last had nothing to do."""

    def has(self, entry: int) -> None:
        """Note an acknowledgement."""
        if entry == self.mark + 1:
            self.skip_to(entry)
        elif entry > self.mark:
            self.early.add(entry)

    def skip_to(self, mark: int) -> None:
        """It has everything up to here, or no longer needs it."""
        if mark <= self.mark:
            return
        if self.early:
            while mark + 1 in self.early:
                mark += 1
            self.early = {entry for entry in self.early if entry > mark}
        self.mark = mark
        self.sent = max(self.sent, mark + 1)
