# SPDX-License-Identifier: Apache-2.0
"""Exclusive and Failover: one consumer is active; entries that it did not ack are read again when it leaves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from meridian_broker.ledgers.entry import CHUNK
from meridian_broker.topics.cursors.chunk_pieces import Pieces
from meridian_broker.topics.dispatch.consumer import Consumer
from meridian_broker.topics.dispatch.dispatcher import TURN_ENTRIES, Dispatcher

if TYPE_CHECKING:
    from meridian_broker.ledgers.reading import Stored
    from meridian_broker.ledgers.scheduling import Timer
    from meridian_broker.positions.position import Position
    from meridian_broker.topics.cursors.cursor import Cursor
    from meridian_broker.topics.dispatch.delivery import Delivery
    from meridian_broker.topics.dispatch.key_ranges import KeySharedPolicy


class SingleDispatcher(Dispatcher):
    """Exclusive: there is one consumer."""

    __slots__ = ("_waiting", "active")

    hands_over: ClassVar[bool] = False
    """Whether there are standby consumers: each is told which one is active, and a change takes a moment."""

    def __init__(self, cursor: Cursor, delivery: Delivery, policy: KeySharedPolicy | None) -> None:
        super().__init__(cursor, delivery, policy)
        self._waiting: Timer | None = None
        """Timer of a change of the active consumer. It is delayed, so that the previous one's last acknowledgements
        count.
        """
        self.active: Consumer | None = None

    def add(self, consumer: Consumer) -> None:
        super().add(consumer)
        self._choose(consumer)

    def remove(self, consumer: Consumer) -> None:
        super().remove(consumer)
        if self.active is consumer:
            self.active = None
            self.rewind()
            self._wait_a_moment()
        self._choose()

    def _choose(self, newcomer: Consumer | None = None) -> None:
        if not self.consumers:
            self.active = None
            return
        chosen = preferred(self.consumers, self.cursor.context.partition)
        if chosen is self.active:
            if self.hands_over and newcomer is not None:
                newcomer.port.active_consumer_changed(newcomer, False)
            return
        if self.active is not None:
            self.rewind()
            self._wait_a_moment()
        self.active = chosen
        self.delivery.read_compacted(chosen is not None and chosen.read_compacted)
        if self._waiting is None:
            self._tell()
        self.delivery.dispatch_soon()

    def _tell(self) -> None:
        """Tell each Failover consumer whether it is the active one."""
        if self.hands_over:
            for consumer in self.consumers:
                consumer.port.active_consumer_changed(consumer, consumer is self.active)

    def _wait_a_moment(self) -> None:
        topic = self.cursor.context
        if self.hands_over and self._waiting is None and self.consumers:
            self._waiting = topic.scheduler.later(topic.limits.failover_delay_seconds, self._waited)

    def _waited(self) -> None:
        self._waiting = None
        self.rewind()
        self._tell()
        self.delivery.dispatch_soon()

    def is_active(self, consumer: Consumer) -> bool:
        return self.active is consumer

    def ready_after(self, position: Position) -> Consumer | None:
        active, read = self.active, self.read
        if active is None or (read is not position and read != position) or self._waiting is not None:
            return None
        return active if self._covered is None and not self._reading and active.ready else None

    def pump(self) -> None:
        active = self.active
        if active is None or not active.ready or self._waiting is not None:
            return
        permits = active.permits
        entries = self._next_entries(permits if permits < TURN_ENTRIES else TURN_ENTRIES)
        if entries:
            self._send(active, entries)
            cursor = self.cursor
            if cursor.compacted is not None or self.read < cursor.context.log.last_confirmed:
                self.delivery.dispatch_soon()

    def _take(self, entries: list[Stored]) -> None:
        active = self.active
        if active is not None and active.ready:
            self._send(active, entries)

    def _send(self, active: Consumer, entries: list[Stored]) -> None:
        """Send what is owed as long as the consumer is ready; it is ready now."""
        cursor, is_done, send = self.cursor, self.cursor.is_done, self.delivery.send
        is_ready = True
        for position, entry in entries:
            if not is_ready and not active.ready:
                return
            is_ready = False
            self.read = position
            if not is_done(position, entry):
                send(active, position, entry, 0)
                if entry[1] & CHUNK and cursor.durable:
                    if active.pieces is None:
                        active.pieces = Pieces()
                    active.pieces.sent(position, entry, active.acked_to, cursor.mark_delete)


class FailoverDispatcher(SingleDispatcher):
    """Failover: one active consumer and others on standby."""

    __slots__ = ()

    hands_over = True


def preferred(consumers: Sequence[Consumer], partition: int) -> Consumer | None:
    """The consumer to be active: highest priority first. Among equals, sorted by name, the partition number picks, so
    that partitions spread. None: there are no consumers.
    """
    if not consumers:
        return None
    best = min(consumer.priority for consumer in consumers)
    candidates = sorted((c for c in consumers if c.priority == best), key=lambda c: c.name)
    return candidates[max(partition, 0) % len(candidates)]
