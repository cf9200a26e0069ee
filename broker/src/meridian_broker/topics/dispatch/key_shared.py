# SPDX-License-Identifier: Apache-2.0
"""Key_Shared: messages of one key go to one consumer at a time, in order; different keys to different consumers.

``Lanes`` decides what may be sent to which consumer. This dispatcher reads the log, sends what it may, and records the
positions of entries that must wait (their consumer is full, their slot is draining or earlier entries of it wait), so
that entries behind them flow. At most ``LOOK_AHEAD`` entries wait; then reading stops until some are sent.
Returned entries (negative acknowledgement, a consumer that left) wait in the same place, before newer ones.

A delayed message does not take part in its key's order until it is due: it would block all others of the key.
"""

from __future__ import annotations

import struct
from collections.abc import Container
from functools import partial
from typing import TYPE_CHECKING, Final

from meridian_broker.ledgers.entry import deliver_at_ms
from meridian_broker.ledgers.store import LedgerCorrupt, LedgerError, LedgerUnreadable
from meridian_broker.positions.position import Position
from meridian_broker.topics import entry_metadata
from meridian_broker.topics.dispatch.consumer import Consumer
from meridian_broker.topics.dispatch.dispatcher import TURN_ENTRIES
from meridian_broker.topics.dispatch.in_flight import REPLAY_TURN, InFlightDispatcher
from meridian_broker.topics.dispatch.key_lanes import Lanes
from meridian_broker.topics.dispatch.key_ranges import AutoSplit, KeySharedPolicy, Split, StickyRanges, slot_of
from meridian_broker.topics.errors import ConsumerBusy
from meridian_broker.topics.policies import UNLIMITED
from meridian_broker.wire.pulsar import metadata
from meridian_broker.wire.pulsar.metadata import BodyError

if TYPE_CHECKING:
    from meridian_broker.ledgers.reading import Stored
    from meridian_broker.topics.cursors.cursor import Cursor
    from meridian_broker.topics.dispatch.delivery import Delivery

_KEY_HASH: Final = struct.Struct(">I")
_KEY_HASH_AT: Final = 8
"""Offset of the key hash in an entry's header."""
LOOK_AHEAD: Final = 20_000
"""Entries of one subscription that may wait while later ones are sent; about 200 bytes each."""
PASSED_EVERY_MS: Final = 1000
"""How often waiting entries are compared with mark-delete, which also moves with acknowledgements of other regions."""


class KeySharedDispatcher(InFlightDispatcher):
    """Dispatcher of Key_Shared subscriptions."""

    __slots__ = ("_lanes", "_passed", "_passed_ms", "_sending", "_slots", "policy")

    def __init__(self, cursor: Cursor, delivery: Delivery, policy: KeySharedPolicy | None) -> None:
        super().__init__(cursor, delivery, policy)
        self.policy = policy = policy or KeySharedPolicy()
        split: Split[Consumer] = StickyRanges() if policy.sticky else AutoSplit()
        self._lanes = Lanes(split, policy.out_of_order)
        self._slots: dict[Position, int] = {}
        """Slots of the entries in flight."""
        self._sending = False
        self._passed = self.read
        self._passed_ms = 0

    # -- consumers -----------------------------------------------------------------------------------------------

    def add(self, consumer: Consumer) -> None:
        """:raises ConsumerBusy: its policy differs from that of the consumers that are connected.
        :raises ConsumerAssignError: its sticky ranges are not valid, or overlap another consumer's.
        """
        policy = consumer.key_shared or KeySharedPolicy()
        if not policy.fits(self.policy):
            raise ConsumerBusy(
                f"consumers of subscription {self.cursor.name!r} share keys by {self.policy}, "
                f"not by {policy}: use the same policy, or close them"
            )
        self._lanes.join(consumer, consumer.name, policy.ranges)
        super().add(consumer)

    def remove(self, consumer: Consumer) -> None:
        unacked = list(consumer.unacked or ())
        in_flight = [(position, self._slots.pop(position)) for position in unacked]
        self._lanes.leave(consumer, in_flight)
        super().remove(consumer)

    def rewind(self) -> None:
        super().rewind()
        self._slots.clear()
        self._lanes.clear()

    def _forget(self, origin: str) -> None:
        super()._forget(origin)
        self._lanes.keep(self._of_others(origin))

    def _send_late(self, position: Position, entry: bytes) -> None:
        self._lanes.hold(_slot(entry), position)

    # -- what happens to entries in flight -----------------------------------------------------------------------

    def acked(self, position: Position) -> None:
        super().acked(position)
        slot = self._slots.pop(position, None)
        if slot is not None:
            self._lanes.acked(slot)
            if self._lanes.waiting:
                self.delivery.dispatch_soon()

    def _queued(self) -> Container[Position]:
        return self._lanes.positions()

    def _again(self, position: Position) -> None:
        slot = self._slots.pop(position, None)
        if slot is not None:  # otherwise its consumer left, and it is waiting already
            self._lanes.given_back(slot, position)

    # -- dispatch ------------------------------------------------------------------------------------------------

    def pump(self) -> None:
        lanes, cursor, delivery = self._lanes, self.cursor, self.delivery
        ready = [consumer for consumer in self.consumers if consumer.ready]
        if not ready or delivery.blocked or self._sending:
            return
        if self._delays:
            room = LOOK_AHEAD - lanes.waiting
            for position, slot in self._delays.take_due(cursor.context.scheduler.now_ms(), max(room, 0)):
                lanes.hold(slot, position)
        if lanes.waiting:
            self._forget_passed()
            if any(lanes.first_waiting(consumer) for consumer in ready):
                self._sending = True
                work = partial(self._send_waiting, self._generation)
                cursor.context.serve(work, "send entries that waited")
                return
        if lanes.waiting >= LOOK_AHEAD or (self._delays is not None and self._delays.full):
            return
        wanted = sum(consumer.permits for consumer in ready)
        entries = self._next_entries(max(1, min(TURN_ENTRIES, wanted)))
        if entries:
            self._take(entries)
            delivery.dispatch_soon()

    def _take(self, entries: list[Stored]) -> None:
        lanes, cursor, delivery = self._lanes, self.cursor, self.delivery
        is_delaying = cursor.context.rules.delayed_delivery.active
        now_ms = cursor.context.scheduler.now_ms() if is_delaying else UNLIMITED
        for position, entry in entries:
            if cursor.is_done(position, entry):
                self.read = position
                continue
            deliver_ms = deliver_at_ms(entry)
            if deliver_ms > now_ms:
                if self.delays.full:
                    return
                self.delays.add(deliver_ms, position, _slot(entry))
                self.read = position
                continue
            slot = _slot(entry)
            consumer = lanes.consumer_for(slot)
            if consumer is not None and consumer.ready and not delivery.blocked:
                self.read = position
                self._send(consumer, slot, position, entry)
            elif lanes.waiting < LOOK_AHEAD:
                self.read = position
                lanes.hold(slot, position)
            else:
                return

    def _send(self, consumer: Consumer, slot: int, position: Position, entry: bytes) -> None:
        self._slots[position] = slot
        self._lanes.sent(slot, position, consumer)
        self.delivery.send(consumer, position, entry, self._redeliveries.get(position, 0))

    async def _send_waiting(self, generation: int) -> None:
        lanes, log = self._lanes, self.cursor.context.log
        try:
            for _ in range(REPLAY_TURN):
                found = self._next_waiting()
                if found is None:
                    break
                consumer, position, slot = found
                if not log.holds(position):
                    lanes.take(slot, position)
                    self._redeliveries.pop(position, None)
                    continue
                entry = await log.read_one(position)
                await log.load_index(position.ledger)
                if generation != self._generation or consumer not in self.consumers:
                    break
                if lanes.first_waiting(consumer) != (position, slot) or not consumer.ready:
                    continue  # acknowledged or moved while it was read
                lanes.take(slot, position)
                if self.cursor.is_done(position, entry):
                    self._redeliveries.pop(position, None)
                    if position in log.damage.damaged:
                        self._leave_out(position)
                else:
                    self._send(consumer, slot, position, entry)
        except (LedgerUnreadable, LedgerCorrupt) as error:
            self._try_later(error, self._send_on)
        except LedgerError as error:
            self.cursor.context.fence(f"entries that waited cannot be read: {error}")
        else:
            self._send_on()

    def _send_on(self) -> None:
        self._sending = False
        self.delivery.dispatch_soon()

    def _next_waiting(self) -> tuple[Consumer, Position, int] | None:
        """The next ready consumer that has an entry waiting, in turn."""
        consumers, blocked = self.consumers, self.delivery.blocked
        for step in range(0 if blocked else len(consumers)):
            consumer = consumers[(self._turn + step) % len(consumers)]
            if consumer.ready and (first := self._lanes.first_waiting(consumer)) is not None:
                self._turn = (self._turn + step + 1) % len(consumers)
                return consumer, *first
        return None

    def _forget_passed(self) -> None:
        """Forget waiting and in-flight entries that were acknowledged in another region or by an operator."""
        mark_delete, now_ms = self.cursor.mark_delete, self.cursor.context.scheduler.now_ms()
        if mark_delete > self._passed and now_ms - self._passed_ms >= PASSED_EVERY_MS:
            self._passed, self._passed_ms = mark_delete, now_ms
            self._lanes.passed(mark_delete)
            for position in [position for position in self._redeliveries if position <= mark_delete]:
                if not self._is_held(position):
                    del self._redeliveries[position]


def _slot(entry: bytes) -> int:
    """The slot of an entry. A message without a key is spread by its producer's name and sequence id."""
    (key_hash,) = _KEY_HASH.unpack_from(entry, _KEY_HASH_AT)
    if key_hash == 0:
        try:
            key_hash = metadata.key_hash(entry_metadata.view(entry))
        except (BodyError, struct.error):
            return 1  # it was accepted once, so it has to go to some consumer
    return slot_of(key_hash)
