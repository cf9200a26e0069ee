# SPDX-License-Identifier: Apache-2.0
"""Releases in-flight entries of a Shared subscription that were acknowledged in another region.

They may never be acknowledged here, so they would count as unacknowledged until the consumer leaves, and might block it
at its limit. After acknowledgements from other regions, all in-flight entries are scanned, in slices, and at most so
often that it takes a few per cent of the loop's time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from meridian_broker.ledgers.scheduling import next_turn

if TYPE_CHECKING:
    from meridian_broker.ledgers.scheduling import Timer
    from meridian_broker.positions.position import Position
    from meridian_broker.topics.cursors.cursor import Cursor
    from meridian_broker.topics.dispatch.delivery import Delivery

PAUSE_SECONDS: Final = 0.1
"""Minimum pause between two scans."""
PAUSE_PER_ENTRY: Final = 50e-6
"""Added to the pause per entry in flight; checking one takes about two microseconds."""
SLICE: Final = 500
"""Entries scanned before others run."""


class RemoteAcks:
    """Scans for entries in flight here that were acknowledged elsewhere. One per dispatcher that tracks holders."""

    __slots__ = ("_cursor", "_delivery", "_is_asked", "_is_looking", "_timer")

    def __init__(self, cursor: Cursor, delivery: Delivery) -> None:
        self._cursor = cursor
        self._delivery = delivery
        self._timer: Timer | None = None
        self._is_looking = False
        self._is_asked = False

    def soon(self) -> None:
        """Other regions acknowledged something: scan soon."""
        if self._is_looking:
            self._is_asked = True
        elif self._timer is None:
            pause = PAUSE_SECONDS + PAUSE_PER_ENTRY * self._delivery.unacked_messages
            self._timer = self._cursor.context.scheduler.later(pause, self._begin)

    def cancel(self) -> None:
        """Nothing is in flight any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _begin(self) -> None:
        self._timer = None
        if self._cursor.context.failure is None:
            self._is_looking = True
            self._cursor.context.serve(self._look, "release what was acknowledged elsewhere")

    async def _look(self) -> None:
        delivery = self._delivery
        scheduler = self._cursor.context.scheduler
        try:
            for consumer in list(delivery.consumers):
                held = list(consumer.unacked or ())
                for first in range(0, len(held), SLICE):
                    for position in held[first : first + SLICE]:
                        if self._is_acked(position):
                            delivery.release(consumer, position)
                    delivery.unblock(consumer)
                    await next_turn(scheduler)
        finally:
            self._is_looking = False
        if self._is_asked:
            self._is_asked = False
            self.soon()

    def _is_acked(self, position: Position) -> bool:
        cursor = self._cursor
        if position <= cursor.mark_delete:
            return True
        index = cursor.context.log.index(position.ledger)
        origin = None if index is None else index.origin(position.entry)
        return origin is not None and not cursor.is_owed(*origin)
