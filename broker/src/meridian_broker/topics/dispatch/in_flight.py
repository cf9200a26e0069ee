# SPDX-License-Identifier: Apache-2.0
"""Common base of Shared and Key_Shared: several consumers receive at once, and each has its own entries in flight.

The broker tracks which consumer holds which entry until it is acked. Entries that a consumer returns or leaves behind
go to another one with a redelivery count; delayed entries wait until they are due; entries acked in another region are
released here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from meridian_broker.ledgers.entry import deliver_at_ms
from meridian_broker.topics.dispatch.delayed import Delays
from meridian_broker.topics.dispatch.dispatcher import Dispatcher
from meridian_broker.topics.dispatch.remote_acks import RemoteAcks

if TYPE_CHECKING:
    from meridian_broker.positions.position import Position
    from meridian_broker.topics.cursors.cursor import Cursor
    from meridian_broker.topics.dispatch.consumer import Consumer
    from meridian_broker.topics.dispatch.delivery import Delivery
    from meridian_broker.topics.dispatch.key_ranges import KeySharedPolicy

REPLAY_TURN: Final = 100
"""Entries that are sent again in one turn."""


class InFlightDispatcher(Dispatcher):
    """Tracks which consumer holds which entry. Each subclass decides how returned entries wait for their turn."""

    __slots__ = ("_delays", "_left_out", "_redeliveries", "_remote_acks", "_turn")

    tracks_holders = True

    def __init__(self, cursor: Cursor, delivery: Delivery, policy: KeySharedPolicy | None) -> None:
        super().__init__(cursor, delivery, policy)
        self._turn = 0
        self._redeliveries: dict[Position, int] = {}
        """How often an entry was returned. Only entries in flight or waiting to be sent again have a count, which
        bounds it.
        """
        self._delays: Delays | None = None
        self._remote_acks: RemoteAcks | None = None
        self._left_out: set[Position] | None = None
        """Damaged entries that were skipped."""

    @property
    def delays(self) -> Delays:
        """Delayed entries that were read before they were due."""
        if self._delays is None:
            self._delays = Delays(self.cursor.context.scheduler, self.delivery.dispatch_soon)
        return self._delays

    def rewind(self) -> None:
        super().rewind()
        self._redeliveries.clear()
        if self._delays is not None:
            self._delays.clear()
        self._left_out = None
        if self._remote_acks is not None:
            self._remote_acks.cancel()
        self.holders = None
        for consumer in self.consumers:
            self.delivery.unacked_messages -= consumer.unacked_messages
            consumer.unacked = None
            consumer.unacked_messages = 0
            consumer.blocked = False
        assert self.delivery.unacked_messages == 0, "the unacked count includes messages that no consumer holds"

    def remove(self, consumer: Consumer) -> None:
        super().remove(consumer)
        unacked, consumer.unacked = consumer.unacked, None
        self.delivery.unacked_messages -= consumer.unacked_messages
        consumer.unacked_messages = 0
        if not self.consumers:
            self.rewind()
            return
        assert self.delivery.unacked_messages >= 0, "more messages are acked than were sent"
        holders = self.holders or {}
        for position in unacked or ():
            del holders[position]
            self._again(position)
        self.delivery.dispatch_soon()

    def _forget(self, origin: str) -> None:
        kept = self._of_others(origin)
        for position in [position for position in self._redeliveries if not kept(position)]:
            if not self._is_held(position):
                del self._redeliveries[position]
        if self._delays is not None:
            self._delays.keep(kept)

    def _of_others(self, origin: str) -> Callable[[Position], bool]:
        log = self.cursor.context.log

        def kept(position: Position) -> bool:
            index = log.index(position.ledger) if log.holds(position) else None
            began = None if index is None else index.origin(position.entry)
            return began is not None and began[0] != origin

        return kept

    def send_again(self, consumer: Consumer, positions: list[Position] | None) -> None:
        unacked, holders = consumer.unacked or {}, self.holders or {}
        for position in list(unacked) if positions is None else positions:
            messages = unacked.pop(position, None)
            if messages is None:
                continue
            del holders[position]
            consumer.unacked_messages -= messages
            self.delivery.unacked_messages -= messages
            self._redeliveries[position] = self._redeliveries.get(position, 0) + 1
            self._again(position)
        self.delivery.unblock(consumer)
        self.delivery.dispatch_soon()

    def _again(self, position: Position) -> None:
        """Send an entry again that a consumer returned or left behind."""
        raise NotImplementedError

    def _send_late(self, position: Position, entry: bytes) -> None:
        """Send a damaged entry that was skipped and has been repaired."""
        raise NotImplementedError

    def _leave_out(self, position: Position) -> None:
        if self._left_out is None:
            self._left_out = set()
        self._left_out.add(position)

    def mended(self, position: Position, entry: bytes) -> None:
        if self._left_out is None or position not in self._left_out:
            return
        self._left_out.discard(position)
        self._send_late(position, entry)

    def acked(self, position: Position) -> None:
        if self._redeliveries:
            self._redeliveries.pop(position, None)

    def acked_elsewhere(self) -> None:
        if self.delivery.unacked_messages:
            if self._remote_acks is None:
                self._remote_acks = RemoteAcks(self.cursor, self.delivery)
            self._remote_acks.soon()

    def _due_later(self, entry: bytes) -> int:
        """When the entry may be delivered, in milliseconds since 1970; 0: now."""
        topic, deliver_ms = self.cursor.context, deliver_at_ms(entry)
        return deliver_ms if deliver_ms > topic.scheduler.now_ms() and topic.rules.delayed_delivery.active else 0
