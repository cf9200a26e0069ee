# SPDX-License-Identifier: Apache-2.0
"""A subscription: its record, its consumers and their dispatcher.

What it is owed is the business of its ``cursor`` (``topics/cursors/cursor.py``). The subscription connects the two:
entries go out through a dispatcher, acknowledgements go to the cursor, and decisions of the cursor come back through
``CursorOwner``, whose methods are marked below.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from meridian_broker.ledgers.entry import messages as messages_of
from meridian_broker.ledgers.store import Done
from meridian_broker.positions import Progress
from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.topics.context import WindingDown
from meridian_broker.topics.cursors import ack_commands, acknowledging
from meridian_broker.topics.cursors.compacted_cursor import CompactedReading
from meridian_broker.topics.cursors.cursor import Cursor
from meridian_broker.topics.dispatch.consumer import Consumer
from meridian_broker.topics.dispatch.dispatcher import Dispatcher
from meridian_broker.topics.dispatch.rates import Pace
from meridian_broker.topics.dispatch.types import EXCLUSIVE, SubscriptionType
from meridian_broker.topics.errors import ConsumerBusy, TopicFenced
from meridian_broker.topics.journal.subscription_record import SubscriptionRecord

if TYPE_CHECKING:
    from meridian_broker.topics.context import TopicContext
    from meridian_broker.topics.cursors.ack_state import AckState
    from meridian_broker.topics.ports import DispatchedStreams, Exchange
    from meridian_broker.topics.subscriptions.ports import Registry


class Subscription:
    """One subscription of one topic or partition in this region."""

    __slots__ = (
        "_barriers",
        "barrier",
        "bytes_out",
        "cursor",
        "dispatcher",
        "entries_dropped",
        "is_waiting",
        "last_left_ms",
        "messages_out",
        "pace",
        "record",
        "registry",
        "streams",
        "topic",
        "type",
        "unacked_messages",
    )

    def __init__(
        self,
        topic: TopicContext,
        registry: Registry[Subscription],
        record: SubscriptionRecord,
        progress: Progress,
        durable: bool = True,
    ) -> None:
        self.topic = topic
        self.registry = registry
        """All subscriptions of the topic."""
        self.record = record
        """Replaced by ``follow_record`` only."""
        self.cursor = Cursor(topic, self, progress, durable)
        self.streams: DispatchedStreams | None = None
        """Set while dispatch scope ``origin`` is in force (R26)."""
        self.entries_dropped = 0
        """Entries dropped without an acknowledgement since the topic was opened (R14)."""
        self.type: SubscriptionType | None = None
        self.dispatcher: Dispatcher | None = None
        self._barriers = 0
        self.barrier = False
        """True while dispatch waits for the newest progress of the other regions (R20)."""
        self.messages_out = 0
        self.bytes_out = 0
        self.pace: Pace | None = registry.dispatch_rates.pace(self)
        """Its rate limits; None: it has none."""
        self.unacked_messages = 0
        """Shared: messages sent to all consumers and not acked yet."""
        self.last_left_ms = topic.scheduler.now_ms()
        """When its last consumer left; before that, when it was created or opened here. In milliseconds since 1970."""
        self.is_waiting = False
        """It dispatches in the next turn of the loop."""

    def follow_record(self, record: SubscriptionRecord) -> None:
        """Replace the record by one of the same incarnation or a later one. The caller writes it to the log."""
        assert record.name == self.record.name, "a record of another subscription"
        assert record.deleted >= self.record.deleted, "a record of an earlier incarnation"
        self.record = record

    @property
    def name(self) -> str:
        return self.record.name

    @property
    def replicated(self) -> bool:
        return self.record.replicated

    @property
    def durable(self) -> bool:
        return self.cursor.durable

    @property
    def consumers(self) -> Sequence[Consumer]:
        return () if self.dispatcher is None else self.dispatcher.consumers

    @property
    def tracks_holders(self) -> bool:
        """Whether several of its consumers receive at once; without consumers, whether that was so for the last
        type.
        """
        return self.type is not None and self.type.tracks_holders

    @property
    def type_name(self) -> str:
        return EXCLUSIVE.name if self.type is None else self.type.name

    # -- consumers -----------------------------------------------------------------------------------------------

    def add_consumer(self, consumer: Consumer, kind: SubscriptionType) -> None:
        """:raises ConsumerBusy: an exclusive consumer is connected, or consumers of another type are.
        :raises ConsumerAssignError: Key_Shared: its ranges are not valid, or overlap another consumer's.
        """
        dispatcher = self.dispatcher
        if dispatcher is not None and dispatcher.consumers:
            if kind != self.type:
                raise ConsumerBusy(
                    f"subscription {self.name!r} has {_label(self.type)} consumers; a {kind.name} one cannot join"
                )
            if kind.admits_one:
                raise ConsumerBusy(f"subscription {self.name!r} is {kind.name} and already has its consumer")
        else:
            self.type = kind
            if kind.tracks_holders:  # these types do not read compacted; with the others, the active consumer decides
                self.read_compacted(False)
            dispatcher = self.dispatcher = kind.dispatcher(self.cursor, self, consumer.key_shared)
            is_known_elsewhere = self.replicated or self.registry.is_in_doubt(self.name)
            if self.durable and is_known_elsewhere and self.topic.exchange is not None:
                self._ask_others(self.topic.exchange)
        assert dispatcher is not None
        dispatcher.add(consumer)
        if (
            self.streams is not None
        ):  # if no region could be asked, the barrier was passed before the consumer was added
            self.streams.refresh()
        self.dispatch_soon()

    def remove_consumer(self, consumer: Consumer) -> None:
        """The consumer closed or its connection broke; entries that it did not ack go to other consumers."""
        dispatcher = self.dispatcher
        if dispatcher is not None and consumer in dispatcher.consumers:
            dispatcher.remove(consumer)
            if not dispatcher.consumers:
                self.last_left_ms = self.topic.scheduler.now_ms()
                self.dispatcher = None
                self.barrier = False
                if self.streams is not None:
                    self.streams.refresh()

    def divide(self, streams: DispatchedStreams | None) -> None:
        """The dispatch scope changed. What consumers hold may be delivered twice.

        :param streams: the messages to dispatch from now on; None: all.
        """
        self.disconnect_consumers()
        if self.streams is not None:
            self.streams.close()
        self.streams = streams

    def leave(self, consumer: Consumer) -> None:
        """The consumer left; the subscription of a reader is removed with it."""
        self.remove_consumer(consumer)
        self.topic.used()
        if not (self.durable or self.consumers):
            self.registry.forget_reader(self)

    def disconnect_consumers(self) -> None:
        """Disconnect all consumers, so that they subscribe again (seek, remote rewind, unload)."""
        for consumer in list(self.consumers):
            self.remove_consumer(consumer)
            consumer.port.disconnect_consumer(consumer)

    def _ask_others(self, exchange: Exchange) -> None:
        """Wait for the newest progress before the first dispatch (R20). Only the answer to the last question counts."""
        self.barrier = True
        self._barriers += 1
        asked = self._barriers

        def passed() -> None:
            if asked == self._barriers and self.barrier:
                self._barrier_passed()

        exchange.barrier(self.topic.name, self.name, passed)

    def _barrier_passed(self) -> None:
        self.barrier = False
        if self.dispatcher is not None:
            self.dispatcher.rewind()
        if self.streams is not None:
            self.streams.refresh()
        self.dispatch_soon()

    # -- the compacted view --------------------------------------------------------------------------------------

    def read_compacted(self, wanted: bool) -> None:
        """Read from the compacted view from now on, or from the whole log."""
        if wanted != (self.cursor.compacted is not None):
            self.cursor.read_through(CompactedReading(self.cursor, self.registry.compaction) if wanted else None)
            self.read_anew()

    def read_anew(self) -> None:
        """Continue at the first entry that is owed: with another view, entries that were passed over may be owed
        again.
        """
        if self.durable:
            self.cursor.start_cursor()
        if self.dispatcher is not None:
            self.dispatcher.rewind()

    # -- dispatch ------------------------------------------------------------------------------------------------

    def dispatch_soon(self) -> None:
        """Let the dispatcher run in the next turn of the loop."""
        if not self.is_waiting and self.dispatcher is not None:
            self.is_waiting = True
            self.topic.turns.add(self)

    def next_turn(self) -> None:
        """Dispatch."""
        newest = self.registry.newest
        if newest is None or not newest.may_be_sent() or newest.send(iter((self,))) is not None:
            self.dispatch()

    def dispatch(self) -> None:
        """Dispatch now, whatever there is to send."""
        self.is_waiting = False
        newest, dispatcher = self.registry.newest, self.dispatcher
        if dispatcher is None:
            return
        if not self.barrier and self.topic.failure is None:
            self.cursor.flush_pending()
            if self.topic.winding_down is WindingDown.NOT and (self.streams is None or self.streams.held):
                after = dispatcher.read
                dispatcher.pump()
                if newest is not None and dispatcher.read is not after:
                    newest.note(after, dispatcher.read)
            if self.topic.terminated is not None:
                self._tell_end()
            self.cursor.catch_up()

    def _tell_end(self) -> None:
        """Tell each consumer once that the topic is terminated and everything in it acknowledged."""
        if self.cursor.mark_delete >= self.topic.log.last_confirmed:
            for consumer in self.consumers:
                if not consumer.knows_end:
                    consumer.knows_end = True
                    consumer.port.reached_end(consumer)

    def mended(self, entries: Mapping[Position, bytes]) -> None:
        """These damaged entries were repaired; others may have been given up."""
        if self.dispatcher is not None:
            for position, entry in entries.items():
                self.dispatcher.mended(position, entry)
        self.cursor.advance()
        self.dispatch_soon()

    def send(self, consumer: Consumer, position: Position, entry: bytes, redeliveries: int) -> None:
        """Hand an entry to a consumer and account for it."""
        messages = messages_of(entry)
        consumer.permits -= messages
        consumer.messages_out += messages
        consumer.bytes_out += len(entry)
        self.messages_out += messages
        self.bytes_out += len(entry)
        cursor = self.cursor
        if cursor.resent is not None:
            cursor.resent.note(position)
        if self.pace is not None:
            self.pace.sent(messages, len(entry))
        compacted = cursor.compacted
        if compacted is not None and cursor.durable:
            compacted.note_sent(consumer, position)
        remaining: int | None = None
        if messages > 1:
            remaining = cursor.remaining(position, entry, messages)
            if compacted is not None:
                compacted.note_batch(position, messages, remaining)
        dispatcher = self.dispatcher
        if dispatcher is not None and dispatcher.tracks_holders:
            unacked, holders = consumer.unacked, dispatcher.holders
            if unacked is None:
                unacked = consumer.unacked = {}
            if holders is None:
                holders = dispatcher.holders = {}
            unacked[position] = messages
            holders[position] = consumer
            consumer.unacked_messages += messages
            self.unacked_messages += messages
            if consumer.unacked_messages >= self.topic.bounds.unacked_per_consumer:
                consumer.blocked = True
        consumer.port.deliver(consumer, position, entry, redeliveries, remaining)

    def send_again(self, consumer: Consumer, positions: list[Position] | None, consumer_epoch: int) -> None:
        """REDELIVER_UNACKNOWLEDGED_MESSAGES: named entries on Shared, everything unacked otherwise."""
        consumer.consumer_epoch = max(consumer.consumer_epoch, consumer_epoch)
        if self.dispatcher is not None:
            self.dispatcher.send_again(consumer, positions)

    @property
    def blocked(self) -> bool:
        """Whether the limit of unacked messages is reached, so that nothing more is sent."""
        return self.unacked_messages >= self.topic.bounds.unacked_per_subscription

    def follow_bounds(self) -> None:
        """The topic's bounds have changed."""
        for consumer in self.consumers:
            consumer.blocked = consumer.unacked_messages >= self.topic.bounds.unacked_per_consumer
        self.dispatch_soon()

    def unblock(self, consumer: Consumer) -> None:
        """The consumer holds less than before and may get more."""
        if self.dispatcher is not None and not self.dispatcher.tracks_holders:
            return
        if self.unacked_messages >= self.topic.bounds.unacked_per_subscription // 2:
            self.dispatch_soon()  # it may have been blocked until now
        if consumer.blocked and consumer.unacked_messages < self.topic.bounds.unacked_per_consumer // 2:
            consumer.blocked = False
            self.dispatch_soon()

    # -- acknowledgements ----------------------------------------------------------------------------------------

    def acknowledge(
        self,
        consumer: Consumer,
        positions: list[Position],
        batches: dict[Position, int] | None = None,
        confirmed: Done | None = None,
    ) -> None:
        """Individual acknowledgement, see ``ack_commands.individual``."""
        cursor, dispatcher = self.cursor, self.dispatcher
        if len(positions) == 1 and not batches and cursor.claim_common(consumer, positions[0], confirmed):
            if dispatcher is None or dispatcher.tracks_holders:
                self.release(consumer, positions[0])
                self.unblock(consumer)
            return
        rest = ack_commands.individual(cursor, consumer, positions, batches, confirmed)
        if rest is None:
            self.unblock(consumer)
        else:
            acknowledging.go_on_later(self.cursor, partial(self._and_unblock, consumer, rest), confirmed)

    async def _and_unblock(self, consumer: Consumer, rest: acknowledging.Rest) -> None:
        await rest()
        self.unblock(consumer)

    def acknowledge_cumulative(
        self, consumer: Consumer, position: Position, part: int | None = None, confirmed: Done | None = None
    ) -> None:
        """Acknowledge everything up to ``position``, see ``ack_commands.cumulative``."""
        rest = ack_commands.cumulative(self.cursor, consumer, position, part, confirmed)
        if rest is not None:
            acknowledging.go_on_later(self.cursor, rest, confirmed)

    def release(self, acker: AckState, position: Position) -> None:
        """``CursorOwner``: an entry was acknowledged and is no longer in flight."""
        dispatcher = self.dispatcher
        if dispatcher is None or dispatcher.holders is None:
            return
        holder = dispatcher.holders.pop(position, None)
        if holder is None or holder.unacked is None:
            return
        messages = holder.unacked.pop(position)
        holder.unacked_messages -= messages
        self.unacked_messages -= messages
        dispatcher.acked(position)
        if holder is not acker:
            self.unblock(holder)

    def follow(self) -> None:
        """New entries arrived and no consumer is connected: their acknowledgements may have come first."""
        snapshots = self.topic.snapshots
        if self.record.replicated or (snapshots is not None and snapshots.last_marker > self.cursor.mark_delete):
            self.cursor.advance()

    # -- what the cursor decides (``CursorOwner``) -----------------------------------------------------------------

    @property
    def read_position(self) -> Position:
        return EARLIEST if self.dispatcher is None else self.dispatcher.read

    def moved(self, position: Position) -> None:
        if self.record.replicated and self.topic.snapshots is not None:
            self.topic.snapshots.moved(self.name)
        if self.topic.terminated is not None:
            self.dispatch_soon()
        dispatcher = self.dispatcher
        if dispatcher is not None and self.cursor.compacted is None and dispatcher.read < position:
            dispatcher.read = position
            if self.topic.log.damage.damaged:  # one that it waits for may not be owed any more
                self.dispatch_soon()

    def acked_elsewhere(self) -> None:
        if self.dispatcher is not None:
            self.dispatcher.acked_elsewhere()
        self.dispatch_soon()

    def let_go(self, positions: Iterable[Position]) -> bool:
        """Entries were dropped: consumers that held them have room for others, and the cursor moves on."""
        is_any_held, dispatcher = False, self.dispatcher
        for position in positions:
            self.entries_dropped += 1
            is_any_held |= not self.tracks_holders and dispatcher is not None and position <= dispatcher.read
            holder = None if dispatcher is None or dispatcher.holders is None else dispatcher.holders.get(position)
            if holder is not None:
                is_any_held = True
                self.release(holder, position)
                self.unblock(holder)
        self.cursor.advance()
        self.dispatch_soon()
        return is_any_held

    def backlog(self) -> int:
        """Entries owed, as far as they can be counted without I/O."""
        return self.cursor.backlog()

    @property
    def is_there(self) -> bool:
        """Whether it was not deleted. Records written for a deleted one would be read as those of a later one of its
        name.
        """
        return self.registry.subscriptions.get(self.record.name) is self

    def check_open(self) -> None:
        """:raises TopicFenced: the topic is closing, or the subscription was deleted since it was looked up."""
        if self.topic.failure is not None:
            raise TopicFenced(self.topic.failure)
        if not self.is_there:
            raise TopicFenced(f"subscription {self.name!r} was deleted at the same moment: subscribe again")


def _label(kind: SubscriptionType | None) -> str:
    return "no" if kind is None else kind.name
