# SPDX-License-Identifier: Apache-2.0
"""Dispatchers: which consumer gets which entry, and when.

A dispatcher reads the topic's log after its read position, skips what is already acked (here or in any other region,
R10) and sends the rest to consumers that have permits and a writable connection. It runs in short turns, so that one
subscription never starves the loop, and reads from the store only what the tail in memory does not hold.

``Dispatcher`` is the common base: the read position and access to the log. ``types.py`` lists the
subscription types and the dispatcher of each.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Sequence
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Final

from meridian_broker.ledgers.store import LedgerCorrupt, LedgerError, LedgerUnreadable
from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.topics.dispatch.consumer import Consumer

if TYPE_CHECKING:
    from meridian_broker.ledgers.reading import Stored
    from meridian_broker.topics.cursors.cursor import Cursor
    from meridian_broker.topics.dispatch.delivery import Delivery
    from meridian_broker.topics.dispatch.key_ranges import KeySharedPolicy

_log = logging.getLogger(__name__)

TURN_ENTRIES: Final = 500
"""Entries that one subscription sends in one turn of the loop, so that others get their turn."""
TURN_BYTES: Final = 4 << 20
_ALL: Final = ""
"""Key for "every other origin"; no region has this name."""


class Dispatcher:
    """One per subscription with consumers. Most are idle, so what only some need is created on demand."""

    __slots__ = (
        "_covered",
        "_generation",
        "_reading",
        "consumers",
        "cursor",
        "delivery",
        "holders",
        "read",
    )

    tracks_holders: ClassVar[bool] = False
    """Whether several consumers receive at once, so that the broker has to track which of them holds which entry."""
    goes_round: ClassVar[bool] = False
    """Whether entries after a damaged one are sent before it is repaired: only if the type promises no order."""

    def __init__(self, cursor: Cursor, delivery: Delivery, _policy: KeySharedPolicy | None) -> None:
        """:param _policy: the first consumer's key distribution, for Key_Shared."""
        self.cursor = cursor
        self.delivery = delivery
        self.consumers: Sequence[Consumer] = ()
        """Replaced when one comes or leaves: most have one, and a tuple takes half the room of a list."""
        self.holders: dict[Position, Consumer] | None = None
        """Shared, once an entry was sent: the consumer that was sent it and has neither acknowledged nor returned it.
        Each consumer knows its own (``unacked``), but any consumer may acknowledge an entry, and asking thousands of
        them would be slow.
        """
        self.read = cursor.start()
        self._reading = False
        self._generation = 0
        """Counts rewinds, so that entries read before a rewind are not dispatched after it."""
        self._covered: dict[str, Position] | None = None
        """Dispatch scope ``origin``, while a stream that was taken over is read from its start: how far other origins
        were read.
        """

    def add(self, consumer: Consumer) -> None:
        self.consumers = (*self.consumers, consumer)

    def remove(self, consumer: Consumer) -> None:
        self.consumers = tuple(one for one in self.consumers if one is not consumer)

    def rewind(self) -> None:
        """Read again from the first entry that is not acked."""
        self._generation += 1
        self._covered = None
        if self.cursor.compacted is not None:
            self.cursor.compacted.begin_anew()
        self.read = self.cursor.start()

    def read_back(self, origin: str, others: list[str]) -> None:
        """Go back to the entries of ``origin`` that were passed over. Entries of ``others`` are not read again
        (R26).
        """
        covered = self._covered or {}
        for other in (_ALL, *others):
            covered[other] = max(covered.get(other, EARLIEST), self.read)
        covered.pop(origin, None)
        self._forget(origin)
        self._covered = covered
        self._generation += 1
        self.read = self.cursor.start()

    def _forget(self, origin: str) -> None:
        """Forget the queued entries of an origin, because they are read again."""

    def _sift(self, found: list[Stored]) -> list[Stored]:
        """Filter entries just read: keep those that no consumer here was sent yet."""
        covered, log, kept = self._covered or {}, self.cursor.context.log, []
        if self.read >= covered.get(_ALL, EARLIEST):
            self._covered = None
            return found
        queued = self._queued()
        for stored in found:
            position = stored[0]
            index = log.index(position.ledger)
            origin = None if index is None else index.origin(position.entry)
            if origin is not None and position <= covered.get(origin[0], EARLIEST):
                continue
            if not self._is_held(position) and position not in queued:
                kept.append(stored)
        if found and not kept:
            self.read = found[-1][0]
            self.delivery.dispatch_soon()
        return kept

    def _queued(self) -> Container[Position]:
        """Entries that were read and are waiting to be sent, as far as the dispatcher tracks them individually."""
        return ()

    def _is_held(self, position: Position) -> bool:
        """Whether the entry is with a consumer that has neither acknowledged nor returned it."""
        return self.holders is not None and position in self.holders

    def mended(self, position: Position, entry: bytes) -> None:
        """A damaged entry was repaired. Dispatchers that wait for it continue by themselves."""

    def is_active(self, consumer: Consumer) -> bool:
        """Whether this consumer receives messages."""
        return consumer in self.consumers

    def send_again(self, consumer: Consumer, _positions: list[Position] | None) -> None:
        """The consumer returns entries (negative acknowledgement, ack timeout): those named, or all it holds.

        Without tracking there is only one consumer that can, so everything unacked is read again.
        """
        if self.is_active(consumer):
            self.rewind()
            self.delivery.dispatch_soon()

    def acked(self, position: Position) -> None:
        """An entry in flight was acked."""

    def acked_elsewhere(self) -> None:
        """Other regions acknowledged entries; some of them may be in flight here."""

    def ready_after(self, _position: Position) -> Consumer | None:
        """The consumer that everything goes to, if it has been sent all up to here and may be sent more; None also if
        several receive at once."""
        return None

    def pump(self) -> None:
        """Send whatever can be sent now."""
        raise NotImplementedError

    def _next_entries(self, limit: int) -> list[Stored] | None:
        """The next entries from memory; [] at the end; None while they are read from the store: the pump then runs
        again.
        """
        if self._reading:
            return None
        cursor, pace = self.cursor, self.delivery.pace
        log = cursor.context.log
        if log.damage.damaged and self._waits_for_damaged():
            return []
        if pace is not None:
            limit = pace.allowance(limit)
        found = (log if cursor.compacted is None else cursor.source).tail_after(self.read, limit, TURN_BYTES)
        if found is None:
            self._reading = True
            work = partial(self._fetch, self.read, limit, self._generation)
            self.cursor.context.serve(work, "read entries for a subscription")
        elif self._covered is not None:
            return self._sift(found)
        return found

    def _waits_for_damaged(self) -> bool:
        """Whether the next entry is damaged and has to be waited for. Damaged entries that need no waiting are passed
        over.
        """
        cursor, log = self.cursor, self.cursor.context.log
        horizon = EARLIEST if cursor.compacted is None else cursor.compacted.horizon
        for _ in range(TURN_ENTRIES):
            following = log.after(self.read)
            place = None if following is None else log.damage.damaged.get(following)
            if following is None or place is None or following <= horizon:
                return False
            if not cursor.passes(place, following):
                if not self.goes_round:
                    return True
                self._leave_out(following)
            self.read = following
        self.delivery.dispatch_soon()
        return True

    def _leave_out(self, position: Position) -> None:
        """Skip a damaged entry; it is sent once it is repaired."""

    async def _fetch(self, after: Position, limit: int, generation: int) -> None:
        log = self.cursor.context.log
        try:
            entries = await self.cursor.source.read_after(after, limit, TURN_BYTES)
            if entries and log.holds(entries[0][0]):
                await log.load_index(entries[0][0].ledger)
        except (LedgerUnreadable, LedgerCorrupt) as error:
            self._try_later(error, self._read_on)
            return
        except LedgerError as error:
            self.cursor.context.fence(f"entries cannot be read: {error}")
            return
        self._reading = False
        if entries and entries[0][0] in log.damage.damaged:
            entries = []  # read alone, as every damaged entry is
        if generation == self._generation and entries:
            self._take(entries if self._covered is None else self._sift(entries))
        self.delivery.dispatch_soon()

    def _read_on(self) -> None:
        self._reading = False
        self.delivery.dispatch_soon()

    def _try_later(self, error: LedgerError, again: Callable[[], None]) -> None:
        """The storage failed a read. Only this subscription's consumers wait, for longer after each failure."""
        topic, name = self.cursor.context, self.cursor.name
        pause_ms = topic.unread.failed(name, str(error), topic.scheduler.monotonic_ms())
        if not pause_ms:
            _log.warning("%s: subscription %r is blocked until its entries can be read: %s", topic.name, name, error)
        topic.scheduler.later(pause_ms / 1000, again)

    def _take(self, entries: list[Stored]) -> None:
        raise NotImplementedError
