# SPDX-License-Identifier: Apache-2.0
"""What a recovery knows of one entry: whether a bookie has it, or too few can have it for it to be confirmed."""

from __future__ import annotations

from typing import Final

from meridian_broker.engines.bookkeeper.entries import EntryDamaged, StoredEntry, parse_entry
from meridian_broker.engines.bookkeeper.packets import Answer, Code

Found = tuple[StoredEntry, bytes]
"""An entry, and its bytes as bookies have them."""
ABSENT: Final = frozenset({Code.NO_ENTRY, Code.NO_LEDGER})
"""Answers of a bookie that has no such entry."""


class Question:
    """One entry, read from its bookies until it is found or certainly not confirmed."""

    __slots__ = ("_lack", "_needed", "alone", "asked", "found", "waiting")

    def __init__(self, bookies: tuple[str, ...], ack_quorum: int) -> None:
        self.asked = 0
        self.waiting = set(bookies)
        """Bookies that have not yet said whether they have it."""
        self._lack: set[str] = set()
        self._needed = len(bookies) - ack_quorum + 1
        self.alone = ""
        """The only bookie that was asked so far, because it should have the entry."""
        self.found: Found | None = None

    @property
    def is_absent(self) -> bool:
        """No ack quorum can have it."""
        return self.found is None and len(self._lack) >= self._needed

    @property
    def is_answered(self) -> bool:
        return self.found is not None or self.is_absent

    def take(self, ledger: int, entry: int, bookie: str, answer: Answer) -> bool:
        """Note a bookie's answer. Returns whether the question is answered now."""
        if answer.code in ABSENT:
            self.waiting.discard(bookie)
            self._lack.add(bookie)
        elif answer.code == Code.OK and self.found is None:
            try:
                self.found = parse_entry(ledger, answer.bodies[0], entry), answer.bodies[0]
            except EntryDamaged:
                return False  # neither found nor absent: the bookie did store it
            self.waiting.discard(bookie)
        return self.is_answered
