# SPDX-License-Identifier: Apache-2.0
"""What other regions say is acknowledged, applied here (R31).

An update says "everything up to here". It counts for the entries that its sender could have had: not for those that
``replicate_to`` or an operator kept from it, nor for those of a region that it took no account of, because that region
was given up, or left the topic. They count in the oldest epoch, so an update does not undo a rewind made here, of
which its sender does not know (R32).

Nor does one by a region of Apache Pulsar count for messages of another such region. Those are linked directly, and by
default a link carries what is published from then on: nobody here knows which of these messages the sender ever had.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from meridian_broker.ledgers.entry import DAMAGED, unpack
from meridian_broker.ledgers.index import Place
from meridian_broker.ledgers.store import LedgerError
from meridian_broker.positions import ZERO
from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.positions.skipped import stretches
from meridian_broker.replication.snapshots.ports import could_have_had
from meridian_broker.topics.cursors import rewinding
from meridian_broker.topics.errors import TopicError

if TYPE_CHECKING:
    from meridian_broker.topics.subscriptions.subscription import Subscription
    from meridian_broker.topics.topic import Topic

SLICE: Final = 1000
"""Entries read at a time."""
READ_BYTES: Final = 1 << 20
AGAIN_SECONDS: Final = 5.0
"""Pause before an update whose entries could not be read is tried again."""
WAITING_MAX: Final = 10_000
"""Updates of one topic that wait. A region sends one a second for each of its subscriptions."""

log = logging.getLogger(__name__)


class _Update(NamedTuple):
    subscription: str
    sender: str
    unknown: frozenset[str]


class Updates:
    """Applies the updates of one topic, one after the other."""

    def __init__(
        self, topic: Topic, pulsar_regions: Callable[[], frozenset[str]], refuse: Callable[[str], None]
    ) -> None:
        """
        :param pulsar_regions: those of the topic that run Apache Pulsar.
        :param refuse: called with the reason why an update has no effect.
        """
        self._topic = topic
        self._pulsar_regions = pulsar_regions
        self._refuse = refuse
        self._waiting: dict[_Update, Position] = {}
        """The furthest position of each."""
        self._applied: dict[_Update, tuple[Subscription, Position]] = {}
        """How far each was applied, so that what stays owed before that is not read again for each update."""
        self._is_busy = False

    def add(self, subscription: str, position: Position, sender: str, unknown: frozenset[str]) -> None:
        """See ``SnapshotHost.acknowledge``."""
        update = _Update(subscription, sender, unknown)
        if update not in self._waiting and len(self._waiting) >= WAITING_MAX:
            self._refuse(f"{sender} sent an update while {WAITING_MAX} others wait")
            return
        self._waiting[update] = max(position, self._waiting.get(update, EARLIEST))
        self._begin()

    def _begin(self) -> None:
        if not self._is_busy and self._waiting and self._topic.failure is None:
            self._is_busy = True
            self._topic.scheduler.spawn(self._run(), "move subscriptions as other regions say")

    async def _run(self) -> None:
        topic = self._topic
        try:
            while self._waiting and topic.failure is None:
                update = next(iter(self._waiting))
                position = self._waiting.pop(update)
                try:
                    await self._apply(update, position)
                except TopicError as error:
                    self._refuse(f"an update for {update.subscription!r} from {update.sender}: {error}")
                except LedgerError as error:
                    log.warning("%s: an update from %s waits: %s", topic.name, update.sender, error)
                    self._waiting[update] = max(position, self._waiting.get(update, EARLIEST))
                    topic.scheduler.later(AGAIN_SECONDS, self._begin)
                    return
        finally:
            self._is_busy = False

    async def _apply(self, update: _Update, position: Position) -> None:
        """:raises LedgerError: an entry cannot be read now. :raises TopicError: it may not be created."""
        topic, name = self._topic, update.subscription
        registry = topic.subscription_registry
        subscription = topic.subscriptions.get(name)
        if subscription is None:
            if name in registry.tombstones:
                self._refuse(f"{update.sender} moves subscription {name!r}, which was deleted")
                return
            registry.check_room(name)
            subscription = topic.subscribing.create_subscription(name, EARLIEST, replicated=True)
        if not subscription.durable or not subscription.replicated:
            self._refuse(f"{update.sender} moves subscription {name!r}, which is not replicated here")
            return
        after = subscription.cursor.mark_delete
        known, applied = self._applied.get(update, (None, EARLIEST))
        if known is subscription:
            after = max(after, applied)
        while after < position and topic.failure is None and subscription.is_there:
            following = await self._acknowledge(subscription, update, after, position)
            if following is None:
                break
            after = following
        if update not in self._applied and len(self._applied) >= WAITING_MAX:
            self._applied.clear()
        self._applied[update] = subscription, after

    async def _acknowledge(
        self, subscription: Subscription, update: _Update, after: Position, upto: Position
    ) -> Position | None:
        """Acknowledge the next entries; returns how far that went. None: there are no more."""
        topic, cursor = self._topic, subscription.cursor
        read = await topic.log.read_after(after, SLICE, READ_BYTES)
        if not read or read[0][0] > upto:
            return None
        for ledger in {position.ledger for position, _ in read}:
            await topic.log.load_index(ledger)
        skipped = self._skipped(update.sender)
        delta = cursor.progress.empty_delta()
        is_any = False
        for position, entry in read:
            if position > upto:
                break
            after = position
            place = topic.log.place(position) if topic.log.holds(position) else None
            if place is None or entry[1] & DAMAGED or not self._could_have_had(update, place, entry, skipped):
                continue
            if not cursor.progress.is_acked(place.region, place.origin):
                delta.ack(ZERO, place.region, place.prev, place.origin)
                is_any = True
        if is_any:
            join = rewinding.acknowledge_for if update.sender in self._pulsar_regions() else rewinding.merge
            refused = await topic.scheduler.answer(lambda ready: join(cursor, delta, ready))
            if refused is not None:
                raise LedgerError(refused)
        return after

    def _could_have_had(
        self, update: _Update, place: Place, entry: bytes, skipped: list[tuple[Position, Position]]
    ) -> bool:
        header, pulsar = unpack(entry), self._pulsar_regions()
        origin = place.region if header.came_from is None else header.came_from[0]
        if origin == update.sender:
            return True
        if origin in pulsar or origin not in self._topic.regions():
            return False
        if not could_have_had(update.sender, update.unknown, origin, header.replicate_to):
            return False
        return origin != self._topic.region or not any(low < place.origin <= high for low, high in skipped)

    def _skipped(self, sender: str) -> list[tuple[Position, Position]]:
        """Own entries that were never sent to a region, because an operator skipped them."""
        if self._topic.metadata is None:
            return []
        record = self._topic.metadata.record
        return [
            (after, upto)
            for region, after, upto in stretches(record.skipped, record.skipped_before)
            if region == sender
        ]
