# SPDX-License-Identifier: Apache-2.0
"""Dispatchers: which consumer gets which entry, and when.

A dispatcher reads the topic's log behind its read position, passes over what is acked already (here or in any other
region, R10) and hands the rest to consumers that have permits and a connection that takes bytes. It runs in short
turns, so one subscription never starves the loop, and it reads the store only when the tail is not in memory.

- ``SingleDispatcher``: Exclusive and Failover. One consumer is active; what it did not ack is read again when it goes.
- ``SharedDispatcher``: every ready consumer in turn; what one did not ack goes back to be sent to another.
- ``KeySharedDispatcher``, in a module of its own: one consumer per key.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, ClassVar, Final

from meridian_broker.ledgers.entry import CHUNK, HEADER, deliver_at_ms
from meridian_broker.ledgers.store import LedgerCorrupt, LedgerError, LedgerUnreadable
from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.topics.dispatch.chunks import ChunkKeepers, Pieces
from meridian_broker.topics.dispatch.consumer import Consumer
from meridian_broker.topics.dispatch.delayed import Delays
from meridian_broker.topics.dispatch.remote_acks import Settling

if TYPE_CHECKING:
    from meridian_broker.ledgers.reading import Stored
    from meridian_broker.ledgers.scheduling import Timer
    from meridian_broker.topics.subscriptions.subscription import Subscription

_log = logging.getLogger(__name__)

TURN_ENTRIES: Final = 500
"""Entries one subscription sends in one turn of the loop, so that others get theirs."""
TURN_BYTES: Final = 4 << 20
REPLAY_TURN: Final = 100
"""Entries sent again in one turn."""
DUE_TURN: Final = 1000
"""Delayed entries made ready at a time, once they are due."""
_BARE: Final = HEADER.size
"""Low byte of the body's offset in an entry without optional fields, as nearly all are: not a delayed one."""


_ALL: Final = ""
"""No region's name."""


class Dispatcher:
    """What both kinds share: the read position and the way to the log.

    There is one per subscription with consumers, mostly idle: what only some need is made when it is needed.
    """

    __slots__ = ("_covered", "_generation", "_reading", "consumers", "holders", "read", "subscription")

    goes_round: ClassVar[bool] = False
    """Whether entries behind a damaged one are sent before it is whole again: only where nobody counts on an order."""

    def __init__(self, subscription: Subscription) -> None:
        self.subscription = subscription
        self.consumers: list[Consumer] = []
        self.holders: dict[Position, Consumer] = {}
        """Shared: who was sent an entry and neither acknowledged it nor gave it back. Each consumer knows its own
        (``unacked``), but anybody may acknowledge an entry, and there may be thousands of consumers to ask."""
        self.read = subscription.start()
        self._reading = False
        self._generation = 0
        """Counts rewinds, so that a read begun before one is not dispatched after it."""
        self._covered: dict[str, Position] | None = None
        """Dispatch scope ``origin``, while a share that was won is read from the start: how far others were read."""

    def add(self, consumer: Consumer) -> None:
        self.consumers.append(consumer)

    def remove(self, consumer: Consumer) -> None:
        self.consumers.remove(consumer)

    def rewind(self) -> None:
        """Read again from the first entry not acked."""
        self._generation += 1
        self._covered = None
        if self.subscription.compacted is not None:
            self.subscription.compacted.begin_anew()
        self.read = self.subscription.start()

    def read_back(self, origin: str, others: list[str]) -> None:
        """Read what was passed over of an origin until now; what was read of the others is not read again (R26)."""
        covered = self._covered or {}
        for other in (_ALL, *others):
            covered[other] = max(covered.get(other, EARLIEST), self.read)
        covered.pop(origin, None)
        self._forget(origin)
        self._covered = covered
        self._generation += 1
        self.read = self.subscription.start()

    def _forget(self, origin: str) -> None:
        """Let go of what waits of an origin: it is read again."""

    def _sift(self, found: list[Stored]) -> list[Stored]:
        """Of entries that were read, those that no consumer here was sent already."""
        covered, log, kept = self._covered or {}, self.subscription.topic.log, []
        if self.read >= covered.get(_ALL, EARLIEST):
            self._covered = None
            return found
        for stored in found:
            position = stored[0]
            index = log.index(position.ledger)
            origin = None if index is None else index.origin(position.entry)
            if origin is not None and position <= covered.get(origin[0], EARLIEST):
                continue
            if not self._is_held(position):
                kept.append(stored)
        if found and not kept:
            self.read = found[-1][0]
            self.subscription.dispatch_soon()
        return kept

    def _is_held(self, position: Position) -> bool:
        """Was the entry sent to a consumer that has neither acknowledged it nor given it back?"""
        return position in self.holders

    def mended(self, position: Position, entry: bytes) -> None:
        """A damaged entry is whole again. Whoever waits for it reads on by itself."""

    def is_active(self, consumer: Consumer) -> bool:
        """Does this consumer get messages?"""
        return consumer in self.consumers

    def settled(self, position: Position) -> None:
        """An entry that was with a consumer is acked."""

    def acked_elsewhere(self) -> None:
        """Other regions' acknowledgements came: some may be of what consumers hold here."""

    def pump(self) -> None:
        """Send what can be sent now."""
        raise NotImplementedError

    def _next_entries(self, limit: int) -> list[Stored] | None:
        """The next entries from memory; None while they are fetched (the pump runs again then), [] at the end."""
        if self._reading:
            return None
        if self.subscription.topic.log.damage.damaged and self._waits_for_damaged():
            return []
        if self.subscription.pace is not None:
            limit = self.subscription.pace.allowance(limit)
        found = self.subscription.source.tail_after(self.read, limit, TURN_BYTES)
        if found is None:
            self._reading = True
            work = self._fetch(self.read, limit, self._generation)
            self.subscription.topic.serve(work, "read entries for a subscription")
        elif self._covered is not None:
            return self._sift(found)
        return found

    def _waits_for_damaged(self) -> bool:
        """Whether the next entry is damaged and has to be waited for. Those that need not be are passed over."""
        subscription, log = self.subscription, self.subscription.topic.log
        horizon = EARLIEST if subscription.compacted is None else subscription.compacted.horizon
        for _ in range(TURN_ENTRIES):
            following = log.after(self.read)
            place = None if following is None else log.damage.damaged.get(following)
            if following is None or place is None or following <= horizon:
                return False
            if not subscription.passes(place, following):
                if not self.goes_round:
                    return True
                self._leave_out(following)
            self.read = following
        subscription.dispatch_soon()
        return True

    def _leave_out(self, position: Position) -> None:
        """Go round a damaged entry: it is sent once it is whole again."""

    async def _fetch(self, after: Position, limit: int, generation: int) -> None:
        log = self.subscription.topic.log
        try:
            entries = await self.subscription.source.read_after(after, limit, TURN_BYTES)
            if entries and log.holds(entries[0][0]):
                await log.load_index(entries[0][0].ledger)
        except (LedgerUnreadable, LedgerCorrupt) as error:
            self._try_later(error, self._read_on)
            return
        except LedgerError as error:
            self.subscription.topic.fence(f"entries cannot be read: {error}")
            return
        self._reading = False
        if entries and entries[0][0] in log.damage.damaged:
            entries = []  # alone, as all that is damaged is read
        if generation == self._generation and entries:
            self._take(entries if self._covered is None else self._sift(entries))
        self.subscription.dispatch_soon()

    def _read_on(self) -> None:
        self._reading = False
        self.subscription.dispatch_soon()

    def _try_later(self, error: LedgerError, again: Callable[[], None]) -> None:
        """The storage fails a read of this subscription: only its consumers wait, and longer after each failure."""
        topic, name = self.subscription.topic, self.subscription.name
        pause_ms = topic.unread.failed(name, str(error), topic.scheduler.monotonic_ms())
        if not pause_ms:
            _log.warning("%s: subscription %r waits until its entries can be read: %s", topic.name, name, error)
        topic.scheduler.later(pause_ms / 1000, again)

    def _take(self, entries: list[Stored]) -> None:
        raise NotImplementedError


class SingleDispatcher(Dispatcher):
    """Exclusive and Failover: one active consumer."""

    __slots__ = ("_partition", "_waiting", "active", "failover")

    def __init__(self, subscription: Subscription, failover: bool, partition: int) -> None:
        super().__init__(subscription)
        self.failover = failover
        self._partition = partition
        self._waiting: Timer | None = None
        """A change of the active consumer waits a moment, so that the last acknowledgements of the one before count."""
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
        chosen = preferred(self.consumers, self._partition)
        if chosen is self.active:
            if self.failover and newcomer is not None:
                newcomer.port.active_consumer_changed(newcomer, False)
            return
        if self.active is not None:
            self.rewind()
            self._wait_a_moment()
        self.active = chosen
        self.subscription.read_compacted(chosen is not None and chosen.read_compacted)
        if self._waiting is None:
            self._tell()
        self.subscription.dispatch_soon()

    def _tell(self) -> None:
        """Say to each Failover consumer whether it is the active one."""
        if self.failover:
            for consumer in self.consumers:
                consumer.port.active_consumer_changed(consumer, consumer is self.active)

    def _wait_a_moment(self) -> None:
        topic = self.subscription.topic
        if self.failover and self._waiting is None and self.consumers:
            self._waiting = topic.scheduler.later(topic.limits.failover_delay_seconds, self._waited)

    def _waited(self) -> None:
        self._waiting = None
        self.rewind()
        self._tell()
        self.subscription.dispatch_soon()

    def is_active(self, consumer: Consumer) -> bool:
        return self.active is consumer

    def pump(self) -> None:
        active = self.active
        if active is None or not active.ready or self._waiting is not None:
            return
        entries = self._next_entries(min(TURN_ENTRIES, max(active.permits, 1)))
        if entries:
            self._take(entries)
            self.subscription.dispatch_soon()

    def _take(self, entries: list[Stored]) -> None:
        active = self.active
        subscription = self.subscription
        if active is None:
            return
        for position, entry in entries:
            if not active.ready:
                return
            self.read = position
            if not subscription.is_done(position, entry):
                subscription.send(active, position, entry, 0)
                if entry[1] & CHUNK and subscription.durable:
                    if active.pieces is None:
                        active.pieces = Pieces()
                    active.pieces.sent(position, entry, active.acked_to, subscription.mark_delete)


def preferred(consumers: list[Consumer], partition: int) -> Consumer | None:
    """Of several that want to be the active one: the best priority wins; among equals, by name, the partition number
    picks, so that partitions spread. None when there is nobody."""
    if not consumers:
        return None
    best = min(consumer.priority for consumer in consumers)
    candidates = sorted((c for c in consumers if c.priority == best), key=lambda c: c.name)
    return candidates[max(partition, 0) % len(candidates)]


class SharedDispatcher(Dispatcher):
    """Shared: every consumer that is ready takes its turn."""

    __slots__ = (
        "_chunks",
        "_delays",
        "_left_out",
        "_reading_replay",
        "_redeliveries",
        "_replay",
        "_replayed",
        "_settling",
        "_turn",
    )

    def __init__(self, subscription: Subscription) -> None:
        super().__init__(subscription)
        self._turn = 0
        self._replay: list[Position] = []
        self._replayed: set[Position] | None = None
        self._redeliveries: dict[Position, int] = {}
        """How often an entry was given back. Only entries that a consumer holds, or that wait to be sent again, have a
        count, so there are no more of these than entries on the way."""
        self._reading_replay = False
        self._delays: Delays | None = None
        self._chunks: ChunkKeepers | None = None
        self._settling: Settling | None = None
        self._left_out: set[Position] | None = None
        """Damaged entries that were gone round."""

    goes_round = True

    @property
    def delays(self) -> Delays:
        """Delayed entries that were read too early."""
        if self._delays is None:
            self._delays = Delays(self.subscription.topic.scheduler, self.subscription.dispatch_soon)
        return self._delays

    def rewind(self) -> None:
        super().rewind()
        self._replay.clear()
        self._replayed = None
        self._redeliveries.clear()
        if self._delays is not None:
            self._delays.clear()
        self._chunks = self._left_out = None
        if self._settling is not None:
            self._settling.cancel()
        self.holders.clear()
        for consumer in self.consumers:
            self.subscription.unacked_messages -= consumer.unacked_messages
            consumer.unacked = None
            consumer.unacked_messages = 0
            consumer.blocked = False

    def remove(self, consumer: Consumer) -> None:
        super().remove(consumer)
        if self._chunks is not None:
            self._chunks.gone(consumer)
        unacked, consumer.unacked = consumer.unacked, None
        self.subscription.unacked_messages -= consumer.unacked_messages
        consumer.unacked_messages = 0
        if not self.consumers:
            self.rewind()
            return
        for position in unacked or ():
            del self.holders[position]
            self._again(position)
        self.subscription.dispatch_soon()

    def _forget(self, origin: str) -> None:
        kept = self._of_others(origin)
        self._replay = [position for position in self._replay if kept(position)]
        heapify(self._replay)
        self._replayed = set(self._replay)
        for position in [position for position in self._redeliveries if not kept(position)]:
            if not self._is_held(position):
                del self._redeliveries[position]
        if self._delays is not None:
            self._delays.keep(kept)

    def _of_others(self, origin: str) -> Callable[[Position], bool]:
        log = self.subscription.topic.log

        def kept(position: Position) -> bool:
            index = log.index(position.ledger) if log.holds(position) else None
            began = None if index is None else index.origin(position.entry)
            return began is not None and began[0] != origin

        return kept

    def send_again(self, consumer: Consumer, positions: list[Position] | None) -> None:
        """Give entries back (negative acknowledgement, ack timeout): all of the consumer's, or those named."""
        unacked = consumer.unacked or {}
        for position in list(unacked) if positions is None else positions:
            messages = unacked.pop(position, None)
            if messages is None:
                continue
            del self.holders[position]
            consumer.unacked_messages -= messages
            self.subscription.unacked_messages -= messages
            self._redeliveries[position] = self._redeliveries.get(position, 0) + 1
            self._again(position)
        self.subscription.dispatch_soon()

    def _again(self, position: Position) -> None:
        if self._replayed is None:
            self._replayed = set()
        if position not in self._replayed:
            self._replayed.add(position)
            heappush(self._replay, position)

    def _leave_out(self, position: Position) -> None:
        if self._left_out is None:
            self._left_out = set()
        self._left_out.add(position)

    def mended(self, position: Position, entry: bytes) -> None:
        if self._left_out is None or position not in self._left_out:
            return
        self._left_out.discard(position)
        self._send_late(position, entry)

    def _send_late(self, position: Position, entry: bytes) -> None:
        if deliver_ms := self._due_later(entry):
            self.delays.add(deliver_ms, position)
        else:
            self._again(position)

    def settled(self, position: Position) -> None:
        self._redeliveries.pop(position, None)

    def acked_elsewhere(self) -> None:
        if self.subscription.unacked_messages:
            if self._settling is None:
                self._settling = Settling(self.subscription)
            self._settling.soon()

    def _next_ready(self) -> Consumer | None:
        """The next consumer in turn, best priority first."""
        best: Consumer | None = None
        consumers = self.consumers
        count = len(consumers)
        for step in range(count):
            candidate = consumers[(self._turn + step) % count]
            if candidate.ready and (best is None or candidate.priority < best.priority):
                best = candidate
                chosen = step
                if candidate.priority == 0:
                    break
        if best is not None:
            self._turn = (self._turn + chosen + 1) % count
        return best

    def pump(self) -> None:
        if not any(consumer.ready for consumer in self.consumers) or self.subscription.blocked:
            return
        if self._chunks is not None and self._chunks.waiting:
            return
        if self._delays and len(self._replay) < DUE_TURN:
            for due, _ in self._delays.take_due(self.subscription.topic.scheduler.now_ms(), DUE_TURN):
                self._again(due)
        if self._replay:
            self._pump_replay()
            return
        if self._delays is not None and self._delays.full:
            return
        wanted = sum(consumer.permits for consumer in self.consumers if consumer.ready)
        entries = self._next_entries(max(1, min(TURN_ENTRIES, wanted)))
        if entries:
            self._take(entries)
            self.subscription.dispatch_soon()

    def _take(self, entries: list[Stored]) -> None:
        subscription = self.subscription
        for position, entry in entries:
            if subscription.is_done(position, entry):
                self.read = position
                continue
            if entry[3] != _BARE and (deliver_ms := self._due_later(entry)):
                if self.delays.full:
                    return
                self.delays.add(deliver_ms, position)
                self.read = position
                continue
            consumer = None if subscription.blocked else self._next_ready()
            if entry[1] & CHUNK:
                consumer = self._keeper(entry, consumer)
            if consumer is None:
                return
            self.read = position
            subscription.send(consumer, position, entry, self._redeliveries.get(position, 0))

    def _due_later(self, entry: bytes) -> int:
        """When it may be delivered; 0: now."""
        topic, deliver_ms = self.subscription.topic, deliver_at_ms(entry)
        return deliver_ms if deliver_ms > topic.scheduler.now_ms() and topic.rules.delayed_delivery.active else 0

    def _keeper(self, chunk: bytes, anybody: Consumer | None) -> Consumer | None:
        """Who gets this chunk of a message."""
        if self._chunks is None:
            self._chunks = ChunkKeepers()
        return self._chunks.keeper(chunk, anybody)

    def _pump_replay(self) -> None:
        if self._reading_replay:
            return
        self._reading_replay = True
        self.subscription.topic.serve(self._replay_turn(self._generation), "send entries again")

    async def _replay_turn(self, generation: int) -> None:
        subscription, log = self.subscription, self.subscription.topic.log
        try:
            for _ in range(REPLAY_TURN):
                if not self._replay or not any(consumer.ready for consumer in self.consumers):
                    break
                position, is_sent = self._replay[0], False
                if log.holds(position):
                    entry = await log.read_one(position)
                    await log.load_index(position.ledger)
                    if generation != self._generation or not self._replay or self._replay[0] != position:
                        break
                    if not subscription.is_done(position, entry):
                        consumer = self._next_ready()
                        if entry[1] & CHUNK:
                            consumer = self._keeper(entry, consumer)
                        if consumer is None:
                            break
                        subscription.send(consumer, position, entry, self._redeliveries.get(position, 0))
                        is_sent = True
                    elif position in log.damage.damaged:
                        self._leave_out(position)
                if not is_sent:
                    self._redeliveries.pop(position, None)
                replayed = heappop(self._replay)
                if self._replayed is not None:
                    self._replayed.discard(replayed)
        except (LedgerUnreadable, LedgerCorrupt) as error:
            self._try_later(error, self._replay_on)
        except LedgerError as error:
            subscription.topic.fence(f"entries cannot be read again: {error}")
        else:
            self._replay_on()

    def _replay_on(self) -> None:
        self._reading_replay = False
        self.subscription.dispatch_soon()
