# SPDX-License-Identifier: Apache-2.0
"""Shared: ready consumers take turns; entries that one did not ack are redelivered to another."""

from __future__ import annotations

from collections.abc import Container
from functools import partial
from typing import TYPE_CHECKING, Final

from meridian_broker.ledgers.entry import CHUNK, HEADER
from meridian_broker.ledgers.store import LedgerCorrupt, LedgerError, LedgerUnreadable
from meridian_broker.positions.position import Position
from meridian_broker.topics.dispatch.chunks import ChunkKeepers
from meridian_broker.topics.dispatch.consumer import Consumer
from meridian_broker.topics.dispatch.dispatcher import TURN_ENTRIES
from meridian_broker.topics.dispatch.in_flight import REPLAY_TURN, InFlightDispatcher
from meridian_broker.topics.dispatch.replay import Replay

if TYPE_CHECKING:
    from meridian_broker.ledgers.reading import Stored
    from meridian_broker.topics.cursors.cursor import Cursor
    from meridian_broker.topics.dispatch.delivery import Delivery
    from meridian_broker.topics.dispatch.key_ranges import KeySharedPolicy

DUE_TURN: Final = 1000
"""Delayed entries that become sendable at a time, once they are due."""
_BARE: Final = HEADER.size
"""Low byte of the body's offset in an entry without optional fields, as nearly all are: such an entry is not
delayed.
"""


class SharedDispatcher(InFlightDispatcher):
    """Dispatcher of Shared subscriptions."""

    __slots__ = ("_chunks", "_reading_replay", "_replay")

    goes_round = True

    def __init__(self, cursor: Cursor, delivery: Delivery, policy: KeySharedPolicy | None) -> None:
        super().__init__(cursor, delivery, policy)
        self._replay: Replay | None = None
        """Entries to send again; created for the first of them."""
        self._reading_replay = False
        self._chunks: ChunkKeepers | None = None

    def rewind(self) -> None:
        super().rewind()
        self._replay = None
        self._chunks = None

    def remove(self, consumer: Consumer) -> None:
        if self._chunks is not None:
            self._chunks.gone(consumer)
        super().remove(consumer)

    def _forget(self, origin: str) -> None:
        kept = self._of_others(origin)
        if self._replay is not None:
            self._replay.keep(kept)
        super()._forget(origin)

    def _queued(self) -> Container[Position]:
        return () if self._replay is None else self._replay.positions

    def _again(self, position: Position) -> None:
        if self._replay is None:
            self._replay = Replay()
        self._replay.add(position)

    def _send_late(self, position: Position, entry: bytes) -> None:
        if deliver_ms := self._due_later(entry):
            self.delays.add(deliver_ms, position)
        else:
            self._again(position)

    def _next_ready(self) -> Consumer | None:
        """The next ready consumer in turn, highest priority first."""
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
        if not any(consumer.ready for consumer in self.consumers) or self.delivery.blocked:
            return
        if self._chunks is not None and self._chunks.waiting:
            return
        if self._delays and len(self._replay or ()) < DUE_TURN:
            for due, _ in self._delays.take_due(self.cursor.context.scheduler.now_ms(), DUE_TURN):
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
            self.delivery.dispatch_soon()

    def _take(self, entries: list[Stored]) -> None:
        cursor, delivery, redeliveries = self.cursor, self.delivery, self._redeliveries
        for position, entry in entries:
            if cursor.is_done(position, entry):
                self.read = position
                continue
            if entry[3] != _BARE and (deliver_ms := self._due_later(entry)):
                if self.delays.full:
                    return
                self.delays.add(deliver_ms, position)
                self.read = position
                continue
            consumer = None if delivery.blocked else self._next_ready()
            if entry[1] & CHUNK:
                consumer = self._keeper(entry, consumer)
            if consumer is None:
                return
            self.read = position
            delivery.send(consumer, position, entry, redeliveries.get(position, 0) if redeliveries else 0)

    def _keeper(self, chunk: bytes, anybody: Consumer | None) -> Consumer | None:
        """The consumer for this chunk of a message."""
        if self._chunks is None:
            self._chunks = ChunkKeepers()
        return self._chunks.keeper(chunk, anybody)

    def _pump_replay(self) -> None:
        if self._reading_replay:
            return
        self._reading_replay = True
        self.cursor.context.serve(partial(self._replay_turn, self._generation), "send entries again")

    async def _replay_turn(self, generation: int) -> None:
        cursor, delivery, log = self.cursor, self.delivery, self.cursor.context.log
        try:
            for _ in range(REPLAY_TURN):
                replay = self._replay
                if not replay or not any(consumer.ready for consumer in self.consumers):
                    break
                position, is_sent = replay.first, False
                if log.holds(position):
                    entry = await log.read_one(position)
                    await log.load_index(position.ledger)
                    if generation != self._generation or not replay or replay.first != position:
                        break
                    if not cursor.is_done(position, entry):
                        consumer = self._next_ready()
                        if entry[1] & CHUNK:
                            consumer = self._keeper(entry, consumer)
                        if consumer is None:
                            break
                        delivery.send(consumer, position, entry, self._redeliveries.get(position, 0))
                        is_sent = True
                    elif position in log.damage.damaged:
                        self._leave_out(position)
                if not is_sent:
                    self._redeliveries.pop(position, None)
                replay.remove_first()
        except (LedgerUnreadable, LedgerCorrupt) as error:
            self._try_later(error, self._replay_on)
        except LedgerError as error:
            cursor.context.fence(f"entries cannot be read again: {error}")
        else:
            self._replay_on()

    def _replay_on(self) -> None:
        self._reading_replay = False
        self.delivery.dispatch_soon()
