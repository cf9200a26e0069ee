# SPDX-License-Identifier: Apache-2.0
"""Entries that a consumer of a compacted view holds although compaction has removed them from the view since.

The cursor passes entries that the view lacks without acknowledging them, because no consumer was sent them. An entry
that a consumer was sent before compaction removed it is different: that consumer has it, so its cumulative
acknowledgement covers it, and no other region needs to send it again.

A ``ViewDeliveries`` belongs to one consumer, from the moment when delivery of everything unacknowledged begins. When
reading restarts, for another consumer or for a redelivery, a new one replaces it: entries removed from the view are not
sent again, so no consumer holds them any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyroaring import BitMap

from meridian_broker.positions.bitruns import ENTRY_LIMIT
from meridian_broker.positions.position import Position

if TYPE_CHECKING:
    from meridian_broker.topics.compaction.view import CompactedView
    from meridian_broker.topics.cursors.ack_state import AckState


class ViewDeliveries:
    """Entries that one consumer was sent, as a bitmap per ledger; those removed from the view since are kept
    separately.
    """

    __slots__ = ("_sent", "_taken_out", "acker")

    def __init__(self, acker: AckState | None = None) -> None:
        self.acker = acker
        self._sent: dict[int, BitMap] = {}
        self._taken_out: dict[int, BitMap] = {}

    def note(self, position: Position, view: CompactedView | None) -> None:
        """The entry was sent, perhaps read from an older view than the one in force."""
        is_out = view is not None and position <= view.horizon and not view.holds(position)
        entries = (self._taken_out if is_out else self._sent).setdefault(position.ledger, BitMap())
        entries.add(position.entry)

    def contains(self, position: Position) -> bool:
        """Whether the entry was sent to this consumer and may still be owed."""
        entries = self._sent.get(position.ledger)
        return entries is not None and position.entry in entries

    def forget_done(self, upto: Position) -> None:
        """Nothing is owed up to here except what was removed from the view."""
        for ledger in [ledger for ledger in self._sent if ledger <= upto.ledger]:
            if ledger < upto.ledger:
                del self._sent[ledger]
            elif upto.entry >= 0:
                self._sent[ledger].remove_range(0, upto.entry + 1)

    def compare(self, view: CompactedView) -> list[int]:
        """A new view is in force. Returns the ledgers of the log from which it removed entries that are held."""
        affected: list[int] = []
        for ledger in sorted(self._sent):
            if ledger > view.horizon.ledger:
                break
            gone = self._sent[ledger] - view.kept(ledger)
            if ledger == view.horizon.ledger and gone:
                gone.remove_range(view.horizon.entry + 1, gone.max() + 1)
            if gone:
                self._sent[ledger] -= gone
                self._taken_out[ledger] = self._taken_out.get(ledger, BitMap()) | gone
                affected.append(ledger)
        return affected

    def taken_out(self, after: Position, upto: Position, most: int) -> list[Position]:
        """The first entries within ``(after, upto]`` that are held and no longer in the view."""
        found: list[Position] = []
        for ledger in sorted(self._taken_out):
            if ledger < after.ledger:
                continue
            if ledger > upto.ledger or len(found) >= most:
                break
            entries = self._taken_out[ledger]
            first = entries.rank(min(after.entry, ENTRY_LIMIT - 1)) if (ledger, 0) <= after else 0
            for entry in entries[first : first + most - len(found)]:
                if ledger == upto.ledger and entry > upto.entry:
                    break
                found.append(Position(ledger, entry))
        return found

    def acked(self, position: Position) -> None:
        """The entry was acknowledged."""
        for part in (self._sent, self._taken_out):
            entries = part.get(position.ledger)
            if entries is not None and 0 <= position.entry < ENTRY_LIMIT:
                entries.discard(position.entry)
                if not entries:
                    del part[position.ledger]
