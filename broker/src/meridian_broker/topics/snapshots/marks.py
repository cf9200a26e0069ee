# SPDX-License-Identifier: Apache-2.0
"""Up to where everything is acknowledged: what other regions may be told of a subscription (PIP-33).

That is mark-delete, as long as mark-delete passed acknowledged entries only. It also passes what was dropped here
without an acknowledgement (R14), what the disk lost, and what a compacted view left out. Another region may still owe
those. Only what expired by the TTL is over everywhere: the policy holds in every region.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from meridian_broker.positions import Cause
from meridian_broker.positions.position import EARLIEST, Position

if TYPE_CHECKING:
    from meridian_broker.topics.cursors.cursor import Cursor

WALK: Final = 3000
"""Entries that are looked at in one turn of the loop: a few milliseconds."""


class Mark:
    """The mark of one subscription."""

    __slots__ = ("_at",)

    def __init__(self) -> None:
        self._at = EARLIEST

    def of(self, cursor: Cursor) -> tuple[Position, bool]:
        """The position, and whether it is as far as it goes; otherwise ask again in another turn of the loop."""
        log, mark_delete = cursor.context.log, cursor.mark_delete
        if cursor.dropped is None and cursor.compacted is None and not log.damage.lost:
            self._at = mark_delete
            return mark_delete, True
        if mark_delete < self._at:  # it was rewound
            self._at = EARLIEST
        for _ in range(WALK):
            following = log.after(self._at)
            if following is None or following > mark_delete:
                return self._at, True
            index = log.index(following.ledger)
            if index is None or not _is_over(cursor, index.origin(following.entry), following):
                return self._at, True
            self._at = following
        return self._at, False


def _is_over(cursor: Cursor, origin: tuple[str, Position] | None, position: Position) -> bool:
    if origin is None:
        return True
    if cursor.progress.is_acked(*origin, 0 if cursor.times is None else cursor.times.of(position)):
        return True
    return cursor.dropped is not None and cursor.dropped.cause(*origin) is Cause.TTL
