# SPDX-License-Identifier: Apache-2.0
"""A subscription: what is acked of a topic, and who is being served.

*Progress*, in origin coordinates, is the record of truth (R10). The cursor - a mark-delete position and what is acked
beyond it - is its image under this region's local <-> origin index: ``advance`` walks forward while entries are acked,
wherever they were acked. How acknowledgements are made known is told in ``topics/cursors/ack_buffer.py``, what a rewind
does in ``topics/cursors/rewinding.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from meridian_broker.ledgers.entry import MARKER, publish_time_ms
from meridian_broker.ledgers.entry import messages as messages_of
from meridian_broker.ledgers.store import Done, LedgerNotFound
from meridian_broker.ledgers.under_way import Over, UnderWay
from meridian_broker.positions import Dropped, Progress
from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.topics.cursors import acknowledging, index_loading, log_walks, rewinding, seeking
from meridian_broker.topics.cursors.ack_buffer import Claims
from meridian_broker.topics.cursors.compacted_cursor import CompactedReading
from meridian_broker.topics.cursors.rewinding import Resent
from meridian_broker.topics.dispatch.consumer import Consumer
from meridian_broker.topics.dispatch.dispatcher import Dispatcher
from meridian_broker.topics.dispatch.rates import Pace
from meridian_broker.topics.errors import ConsumerBusy, TopicFenced
from meridian_broker.topics.journal.subscription_record import SubscriptionRecord

if TYPE_CHECKING:
    from meridian_broker.ledgers.index import Place
    from meridian_broker.ledgers.log import TopicLog
    from meridian_broker.ledgers.times import PublishTimes
    from meridian_broker.topics.compaction.compaction import Compaction
    from meridian_broker.topics.dispatch.types import SubscriptionType
    from meridian_broker.topics.dispatch_scope.shares import Shares
    from meridian_broker.topics.ports import Exchange
    from meridian_broker.topics.topic import Topic


WALK: Final = 3000
"""Entries that a cursor passes in one turn of the loop: some milliseconds."""
LEAP: Final = 64
"""After so many entries it looks whether the rest of the ledger can be passed at once."""


class Subscription:
    """One subscription of one topic or partition in this region."""

    __slots__ = (
        "_barriers",
        "_passed_over",
        "_pumping",
        "barrier",
        "bytes_out",
        "claims",
        "compacted",
        "dispatcher",
        "dropped",
        "durable",
        "entries_dropped",
        "first_hand",
        "is_walking_on",
        "last_acked_ms",
        "last_left_ms",
        "look_ups",
        "mark_delete",
        "messages_out",
        "pace",
        "progress",
        "record",
        "resent",
        "resting",
        "share",
        "times",
        "topic",
        "type",
        "unacked_messages",
    )

    def __init__(self, topic: Topic, record: SubscriptionRecord, progress: Progress, durable: bool = True) -> None:
        self.topic = topic
        self.record = record
        self.progress = progress
        self.durable = durable
        self.resent: Resent | None = None
        """Once there was a rewind: what was sent since the newest one (R13)."""
        self.times: PublishTimes | None = None
        """There while a seek by time is part of its progress (R12)."""
        self.first_hand: Progress | None = None
        """What this region's own clients acked: evidence for the verifier (R60)."""
        self.share: Shares | None = None
        """There while dispatch scope ``origin`` is in force (R26)."""
        self.dropped: Dropped | None = None
        """What is not owed here any more although nobody acked it (R14)."""
        self.entries_dropped = 0
        """How many entries that were, since the topic was opened."""
        self.mark_delete: Position = EARLIEST
        self.type: SubscriptionType | None = None
        self.dispatcher: Dispatcher | None = None
        self.compacted: CompactedReading | None = None
        """There while the consumer that gets messages asks for the compacted view, and until one does not."""
        self.claims = Claims(self)
        self.look_ups: UnderWay | None = None
        """Acknowledgements that were taken and whose entries are being looked up; made by the first of them."""
        self._barriers = 0
        self.barrier = False
        self.resting = False
        """Nothing is dispatched any more: the broker is about to stop."""
        """True while dispatch waits for the newest progress of the other regions (R20)."""
        self.messages_out = 0
        self.bytes_out = 0
        self.pace: Pace | None = topic.dispatch_rates.pace(self)
        """The rates that it keeps; None: there are none."""
        self.unacked_messages = 0
        """Shared: sent to all consumers and not yet acked."""
        self.last_acked_ms = 0
        self.last_left_ms = topic.scheduler.now_ms()
        """When its last consumer left; before, when it was made or opened here."""
        self._pumping = False
        self.is_walking_on = False
        """The cursor waits for an index to be loaded."""
        self._passed_over = False

    @property
    def name(self) -> str:
        return self.record.name

    @property
    def replicated(self) -> bool:
        return self.record.replicated

    @property
    def consumers(self) -> list[Consumer]:
        return [] if self.dispatcher is None else self.dispatcher.consumers

    @property
    def tracks_holders(self) -> bool:
        """Whether several of its consumers receive at once, also of one whose last consumer left."""
        return self.type is not None and self.type.tracks_holders

    # -- consumers -----------------------------------------------------------------------------------------------

    def add_consumer(self, consumer: Consumer, kind: SubscriptionType) -> None:
        """:raises ConsumerBusy: the place is taken, or consumers of another type are here.
        :raises ConsumerAssignError: Key_Shared: its ranges are none, or another consumer's.
        """
        dispatcher = self.dispatcher
        if dispatcher is not None and dispatcher.consumers:
            if kind != self.type:
                raise ConsumerBusy(
                    f"subscription {self.name!r} has {_label(self.type)} consumers; a {kind.name} one cannot join"
                )
            if kind.admits_one:
                raise ConsumerBusy(f"subscription {self.name!r} is {kind.name} and has its consumer already")
        else:
            self.type = kind
            if kind.tracks_holders:  # none of those reads compacted; of the others the one that gets messages decides
                self.read_compacted(False)
            dispatcher = self.dispatcher = kind.dispatcher(self, consumer.key_shared)
            is_known_elsewhere = self.replicated or self.topic.lost_records.concerns(self.name)
            if self.durable and is_known_elsewhere and self.topic.exchange is not None:
                self._ask_others(self.topic.exchange)
        assert dispatcher is not None
        dispatcher.add(consumer)
        if self.share is not None:  # where nobody could be asked, the barrier has passed before the consumer was there
            self.share.refresh()
        self.dispatch_soon()

    def remove_consumer(self, consumer: Consumer) -> None:
        """The consumer closed or its connection broke; what it did not ack goes to others."""
        dispatcher = self.dispatcher
        if dispatcher is not None and consumer in dispatcher.consumers:
            dispatcher.remove(consumer)
            if not dispatcher.consumers:
                self.last_left_ms = self.topic.scheduler.now_ms()
                self.dispatcher = None
                self.barrier = False
                if self.share is not None:
                    self.share.refresh()

    def disconnect_consumers(self) -> None:
        """Send every consumer away to subscribe again (seek, remote rewind, unload)."""
        for consumer in list(self.consumers):
            self.remove_consumer(consumer)
            consumer.port.disconnect_consumer(consumer)

    def _ask_others(self, exchange: Exchange) -> None:
        """Wait for the newest progress before the first dispatch (R20). Only the last question's answer counts."""
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
        if self.share is not None:
            self.share.refresh()
        self.dispatch_soon()

    # -- the compacted view --------------------------------------------------------------------------------------

    def read_compacted(self, wanted: bool) -> None:
        """Read the compacted view from now on, or the whole log."""
        if wanted != (self.compacted is not None):
            self.compacted = CompactedReading(self) if wanted else None
            self.read_anew()

    def read_anew(self) -> None:
        """Go on at the first entry that is owed: by another view than before, what it passed over may be owed again."""
        if self.durable:
            self.start_cursor()
        if self.dispatcher is not None:
            self.dispatcher.rewind()

    @property
    def source(self) -> TopicLog | Compaction:
        """What entries are read from."""
        return self.topic.log if self.compacted is None else self.topic.compaction

    def start(self) -> Position:
        """Behind which position a dispatcher begins to read."""
        return self.mark_delete if self.compacted is None else self.compacted.start()

    # -- dispatch ------------------------------------------------------------------------------------------------

    def dispatch_soon(self) -> None:
        """Let the dispatcher run in the next turn of the loop."""
        if not self._pumping and self.dispatcher is not None:
            self._pumping = True
            self.topic.scheduler.defer(self._pump)

    def _pump(self) -> None:
        self._pumping = False
        if self.dispatcher is not None and not self.barrier and self.topic.failure is None:
            self.claims.flush_pending()
            if not self.resting and (self.share is None or self.share.held):
                self.dispatcher.pump()
            if self.topic.terminated is not None:
                self._tell_end()
            if self._passed_over:
                self._passed_over = False
                self.advance()

    def _tell_end(self) -> None:
        """To the consumers of a terminated topic, once each: everything is acknowledged, and nothing will follow."""
        if self.mark_delete >= self.topic.log.last_confirmed:
            for consumer in self.consumers:
                if not consumer.knows_end:
                    consumer.knows_end = True
                    consumer.port.reached_end(consumer)

    def is_done(self, position: Position, entry: bytes) -> bool:
        """Is this entry not to be sent: a marker, or acked in whatever region?"""
        if entry[1] & MARKER:
            return True
        if not self.durable:
            return position <= self.mark_delete
        compacted = self.compacted
        if compacted is not None and position <= compacted.horizon:
            if compacted.is_done(position, entry):
                self._passed_over = True
                return True
            return False
        index = self.topic.log.index(position.ledger)
        origin = None if index is None else index.origin(position.entry)
        if origin is None:
            return position <= self.mark_delete
        acked = self.progress.is_acked(*origin, 0 if self.times is None else publish_time_ms(entry))
        if acked or (self.dropped is not None and self.dropped.contains(*origin)):
            self._passed_over = True
            return True
        return self.share is not None and not self.share.holds(origin[0])

    def is_settled(self, region: str, origin: Position, position: Position | None = None) -> bool:
        """Is nothing owed of an entry any more: acked in whatever region, or dropped in this one (R14)?

        :param position: where it is stored here: after a seek by time its publish time is looked up by it, as far as
            it is in memory (``times``). Without it, only unconditional acks count.
        """
        if position is not None and position in self.topic.log.damage.lost:
            return True
        time_ms = 0 if self.times is None or position is None else self.times.of(position)
        if self.progress.is_acked(region, origin, time_ms):
            return True
        return self.dropped is not None and self.dropped.contains(region, origin)

    def passes(self, place: Place, position: Position) -> bool:
        """Whether a damaged entry is not waited for: nothing of it is owed here, or it is of another region's share."""
        if not self.durable:
            return position <= self.mark_delete
        if self.is_settled(place.region, place.origin, position):
            return True
        return self.share is not None and not self.share.holds(place.region)

    def mended(self, entries: Mapping[Position, bytes]) -> None:
        """These damaged entries are whole again; others may be given up."""
        if self.dispatcher is not None:
            for position, entry in entries.items():
                self.dispatcher.mended(position, entry)
        self.advance()
        self.dispatch_soon()

    def send(self, consumer: Consumer, position: Position, entry: bytes, redeliveries: int) -> None:
        """Hand an entry to a consumer and account for it."""
        messages = messages_of(entry)
        consumer.permits -= messages
        consumer.messages_out += messages
        consumer.bytes_out += len(entry)
        self.messages_out += messages
        self.bytes_out += len(entry)
        if self.resent is not None:
            self.resent.note(position)
        if self.pace is not None:
            self.pace.sent(messages, len(entry))
        if self.compacted is not None and self.durable:
            self.compacted.note_sent(consumer, position)
        remaining: int | None = None
        if messages > 1 and self.compacted is not None and position <= self.compacted.horizon:
            remaining = self.compacted.remaining(position, entry)
        elif messages > 1 and self.durable:
            place = self.topic.log.place(position)
            if place is not None:
                time_ms = 0 if self.times is None else publish_time_ms(entry)
                remaining = self.progress.remaining(place.region, place.origin, messages, time_ms)
        if messages > 1 and self.compacted is not None:
            self.compacted.note_batch(position, messages, remaining)
        dispatcher = self.dispatcher
        if dispatcher is not None and dispatcher.tracks_holders:
            unacked = consumer.unacked
            if unacked is None:
                unacked = consumer.unacked = {}
            unacked[position] = messages
            dispatcher.holders[position] = consumer
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
        """So much is sent and not acked that no more is sent."""
        return self.unacked_messages >= self.topic.bounds.unacked_per_subscription

    def unblock(self, consumer: Consumer) -> None:
        """What the consumer holds became less: it may get more."""
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
        """Individual acknowledgement. ``batches``: of entries acked in part, the bits that are *not* acked yet.

        All ids of one command become one delta (R18). ``confirmed`` hears when it is durable.
        """
        if not self.durable:
            acknowledging.in_memory(self, consumer, positions, confirmed, is_sharing=self.tracks_holders)
            return
        stale = rewinding.stale(self, positions)
        if self.compacted is not None and positions:
            positions = self.compacted.acknowledge(consumer, positions, stale, batches, confirmed)
            if not positions:
                return
        missing = self._acknowledge(consumer, positions, stale, batches or {}, confirmed)
        if missing is not None:
            rest = acknowledging.once_indexed(
                self, missing, lambda: self._acknowledge(consumer, positions, stale, batches or {}, confirmed)
            )
            acknowledging.go_on_later(self, rest, confirmed)

    def _acknowledge(
        self,
        consumer: Consumer,
        positions: list[Position],
        stale: frozenset[Position],
        batches: dict[Position, int],
        confirmed: Done | None,
    ) -> int | None:
        """Single acknowledgements; or a ledger whose index they need first, and nothing was done."""
        log = self.topic.log
        missing = next((p.ledger for p in positions if log.index(p.ledger) is None and log.holds(p)), None)
        if missing is None:
            acknowledging.each(self, consumer, positions, stale, batches, confirmed)
            self.unblock(consumer)
        return missing

    def settle(self, consumer: Consumer, position: Position) -> None:
        """Nobody has this entry under way any more."""
        dispatcher = self.dispatcher
        holder = None if dispatcher is None else dispatcher.holders.pop(position, None)
        if dispatcher is None or holder is None or holder.unacked is None:
            return
        messages = holder.unacked.pop(position)
        holder.unacked_messages -= messages
        self.unacked_messages -= messages
        dispatcher.settled(position)
        if holder is not consumer:
            self.unblock(holder)

    def acknowledge_cumulative(
        self,
        consumer: Consumer,
        position: Position,
        part: int | None = None,
        confirmed: Done | None = None,
    ) -> None:
        """Everything up to ``position`` in this region's order; ``part``: the last entry only but for these bits. Entry
        -1 of a ledger: everything before it."""
        if self.tracks_holders:
            if confirmed is not None:
                confirmed(None)
            return
        if not acknowledging.is_known(self, position):
            if confirmed is not None:
                confirmed(LedgerNotFound(f"there is no entry {position} here: the acknowledgement has no effect"))
            return
        if position.entry < 0:
            horizon = EARLIEST if self.compacted is None else self.compacted.horizon
            position = acknowledging.before_ledger(self.topic.log, position, max(self.mark_delete, horizon))
        if not self.durable:
            acknowledging.in_memory(self, consumer, [position], confirmed, is_sharing=False)
            return
        last = position
        if part is not None:  # the view may have it when the log does not any more
            last = min(self.topic.log.before(position), Position(position.ledger, position.entry - 1))
        behind = consumer.acknowledges_to(last, in_part=part is not None)
        compacted = self.compacted
        if compacted is None or not compacted.acknowledge_up_to(consumer, behind, position, part, confirmed):
            rest = acknowledging.up_to(self, consumer, behind, position, part, confirmed, self.resent)
            if rest is not None:
                acknowledging.go_on_later(self, rest, confirmed)

    def when_resolved(self, callback: Over) -> None:
        """``callback`` hears once all acknowledgements so far are in the progress, at once when they are, or why one of
        them will not be."""
        if self.look_ups is None:
            callback(None)
        else:
            self.look_ups.when_over(callback)

    def follow(self) -> None:
        """New entries came and nobody consumes here: acknowledgements may have come before them."""
        if self.record.replicated:
            self.advance()

    # -- the cursor ----------------------------------------------------------------------------------------------

    def advance(self) -> None:
        """Move mark-delete over what is settled, ``WALK`` entries in one turn of the loop.

        It goes on by itself, also once an index is loaded when the way leads through one not in memory. Until then
        entries before mark-delete's right place are passed over one by one, as those behind it are.
        """
        log, progress, dropped, compacted = self.topic.log, self.progress, self.dropped, self.compacted
        times, position, lost = self.times, self.mark_delete, log.damage.lost
        following, left = log.after(position), WALK
        while following is not None:
            index, left = log.index(following.ledger), left - 1
            if index is None or left < 0:
                index_loading.soon(self, following)
                break
            if left and not left % LEAP and log_walks.is_rest_acked(index, progress, following):
                position = Position(following.ledger, len(index) - 1)
                following = log.after(position)
                continue
            origin = index.origin(following.entry)
            if (
                origin is None
                or progress.is_acked(*origin, 0 if times is None else times.of(following))
                or (dropped is not None and dropped.contains(*origin))
                or (compacted is not None and compacted.passes(following))
                or following in lost
            ):
                position = following
                following = log.after(position)
                continue
            if times is not None and not times.of(following) and progress.depends_on_time(*origin):
                index_loading.soon(self, following)
            break
        self.mark_delete = position
        if self.resent is not None and dropped is None:  # what was dropped may be acknowledged yet
            self.resent.passed(position)
        if self.topic.terminated is not None:
            self.dispatch_soon()
        dispatcher = self.dispatcher
        if dispatcher is not None and compacted is None and dispatcher.read < position:
            dispatcher.read = position
            if log.damage.damaged:  # perhaps it waited for one that is settled now
                self.dispatch_soon()

    def pass_over(self, position: Position) -> None:
        """A reader is owed nothing up to here any more, but for what a compacted view still has."""
        if self.compacted is not None:
            return
        self.mark_delete = max(self.mark_delete, position)
        if self.dispatcher is not None:
            self.dispatcher.read = max(self.dispatcher.read, position)
            self.dispatch_soon()

    def let_go(self, positions: Iterable[Position]) -> bool:
        """These entries were dropped: consumers that hold them have room for others, and the cursor goes on.

        :returns: whether a consumer may hold one of them.
        """
        is_any_held, dispatcher = False, self.dispatcher
        for position in positions:
            self.entries_dropped += 1
            is_any_held |= not self.tracks_holders and dispatcher is not None and position <= dispatcher.read
            holder = None if dispatcher is None else dispatcher.holders.get(position)
            if holder is not None:
                is_any_held = True
                self.settle(holder, position)
                self.unblock(holder)
        self.advance()
        self.dispatch_soon()
        return is_any_held

    def start_cursor(self, settled: Position = EARLIEST) -> None:
        """Stand before the first entry that may be owed, then go over what is acked (at opening, after a rewind).

        :param settled: up to here nothing is owed but what a compacted view may show again.
        """
        log = self.topic.log
        self.mark_delete = log.below(log.region, self.progress.floors())
        if self.compacted is not None:
            self.compacted.reset()
        else:
            self.mark_delete = max(self.mark_delete, settled)
        self.advance()

    async def seek(self, target: Position) -> None:
        """Stand so that ``target`` is the next entry, see ``placing.seek``."""
        await seeking.seek(self, target)

    async def seek_to_time(self, time_ms: int) -> None:
        """What was published at this time or later is owed again, see ``placing.seek_to_time``."""
        await seeking.seek_to_time(self, time_ms)

    def backlog(self) -> int:
        """Entries owed, as far as can be told at once: see ``cursor.backlog``."""
        log = self.topic.log
        if not self.durable:
            return log.distance(self.mark_delete, log.last_confirmed)
        return log_walks.backlog(log, self.progress, self.dropped, self.is_settled, self.mark_delete)

    @property
    def is_there(self) -> bool:
        """It was not deleted. What is written of one that was would be read as of a later one of its name."""
        return self.topic.subscriptions.get(self.record.name) is self

    def check_open(self) -> None:
        """:raises TopicFenced: the topic is closing, or the subscription was deleted since it was found."""
        if self.topic.failure is not None:
            raise TopicFenced(self.topic.failure)
        if not self.is_there:
            raise TopicFenced(f"subscription {self.name!r} was deleted at this very moment: subscribe again")


def _label(kind: SubscriptionType | None) -> str:
    return "no" if kind is None else kind.name
