# SPDX-License-Identifier: Apache-2.0
"""Replay of a topic's progress log, which rebuilds its subscriptions, and the snapshot that a new ledger begins with.

A log may hold a hundred thousand acknowledgements, and a broker opens many topics while it serves others. So records
are read in slices, and within a slice the acknowledgements of one subscription are joined to each other first: its
progress, which may be large, is joined with the sum. The result is the same as joining one record after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from meridian_broker.ledgers.scheduling import next_turn
from meridian_broker.positions import ZERO, Dropped, Progress
from meridian_broker.topics.dispatch_scope import votes
from meridian_broker.topics.journal.changes import Change, Kind
from meridian_broker.topics.journal.subscription_record import decode_record, encode_record
from meridian_broker.topics.journal.subscription_snapshot import Whole
from meridian_broker.topics.subscriptions.registry import whole

if TYPE_CHECKING:
    from meridian_broker.topics.subscriptions.subscription import Subscription
    from meridian_broker.topics.topic import Topic

_DELTAS: Final = frozenset((Kind.ACKED, Kind.MERGED))

OnAcked = Callable[[str, int, Progress], None]
"""Called with every acknowledgement of this region's clients: subscription, time in milliseconds, claimed progress."""


async def recover(topic: Topic, on_acked: OnAcked | None = None) -> None:
    """Rebuild the subscriptions from the progress log. Others run in between.

    :raises LedgerError: the log cannot be read.
    :raises ValueError: a record of it is not valid.
    """
    lost = topic.subscription_registry.lost_records
    async for changes in topic.progress_log.changes(lost.met):
        take(topic, changes, on_acked)
    lost.finish()
    for subscription in list(topic.subscriptions.values()):
        await next_turn(topic.scheduler)
        if subscription.cursor.progress.epoch is not ZERO:
            subscription.cursor.rewound()
        subscription.cursor.start_cursor()


def take(topic: Topic, changes: list[Change], on_acked: OnAcked | None = None) -> None:
    """Apply some changes, in order."""
    sums: dict[str, _Sum] = {}
    last, last_payload = None, b""
    lost = topic.subscription_registry.lost_records
    for change in changes:
        kind, name, time_ms, payload = change
        if kind not in _DELTAS:
            if name in sums:
                sums.pop(name).join()
            _take_one(topic, change)
            continue
        subscription = topic.subscriptions.get(name)
        if subscription is None and on_acked is None and not lost.is_any:
            continue
        # Many subscriptions may share one payload (``ACKED_BY_MANY``): what is read of it is not changed.
        delta = last if last is not None and payload is last_payload else Progress.decode(payload)
        last, last_payload = delta, payload
        subscription = subscription or lost.unknown(name, delta.beginning.incarnation)
        if kind == Kind.ACKED and on_acked is not None:
            on_acked(name, time_ms, delta)
        if subscription is not None:
            found = sums.get(name) or sums.setdefault(name, _Sum(subscription))
            found.add(kind, time_ms, delta)
    for found in sums.values():
        found.join()


class _Sum:
    """Consecutive changes of one subscription's progress."""

    __slots__ = ("_acked", "_is_acked_own", "_merged", "_subscription")

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription
        self._acked: Progress | None = None
        self._is_acked_own = False
        """It may be changed: until there are two, it is a change itself, which other subscriptions may share."""
        self._merged: Progress | None = None

    def add(self, kind: Kind, time_ms: int, delta: Progress) -> None:
        is_alone = self._takes_drops_back(delta)
        if is_alone:
            self.join()
        if kind == Kind.ACKED:
            self._subscription.cursor.was_acked_at(time_ms)
            if self._acked is None:
                self._acked, self._is_acked_own = delta, False
            else:
                if not self._is_acked_own:
                    self._acked, self._is_acked_own = self._acked.copy(), True
                self._acked.join(delta)
        elif self._merged is None:
            self._merged = delta
        else:
            self._merged.join(delta)
        if is_alone:
            self.join()

    def _takes_drops_back(self, delta: Progress) -> bool:
        """Which drops a rewind takes back depends on what it ruled when it arrived, and that may grow (R12)."""
        dropped = self._subscription.cursor.dropped
        return dropped is not None and not dropped.is_empty and delta.count_rewinds() > 0

    def join(self) -> None:
        """Join the sum to the subscription."""
        subscription, acked, merged = self._subscription, self._acked, self._merged
        self._acked = self._merged = None
        if acked is not None:
            subscription.cursor.join(acked)
            if subscription.replicated:
                subscription.cursor.join_first_hand(acked)
        if merged is not None:
            subscription.cursor.join(merged)


def _take_one(topic: Topic, change: Change) -> None:
    """Apply a change that is not a delta of progress."""
    kind, name, time_ms, payload = change
    registry = topic.subscription_registry
    if kind == Kind.SEQUENCES:
        topic.deduplication.replay(payload)
    elif kind == Kind.WHOLE:
        _replay_whole(topic, Whole.decode(payload), name, time_ms)
    elif kind == Kind.GAP:
        topic.gaps.replay(name, payload)
    elif kind == Kind.PULSAR:
        topic.pulsar.replay(name, payload)
    elif kind == Kind.VOTES:
        votes.replay(topic.votes, name, payload)
    elif kind == Kind.SUBSCRIPTION:
        registry.replay(decode_record(payload), time_ms)
    elif kind == Kind.REMOVED:
        topic.subscriptions.pop(name, None)
        registry.lost_records.removed(name)
    elif kind == Kind.LOST:
        registry.lost_records.replay(name, payload)
    elif (subscription := topic.subscriptions.get(name) or registry.lost_records.unknown(name)) is not None:
        _take_state(subscription, kind, payload)


def _take_state(subscription: Subscription, kind: Kind, payload: bytes) -> None:
    if kind == Kind.PROGRESS:
        subscription.cursor.join(Progress.decode(payload))
    elif kind == Kind.FLOORS:
        subscription.cursor.join_floors(Progress.decode(payload))
    elif kind == Kind.FIRST_HAND:
        subscription.cursor.join_first_hand(Progress.decode(payload))
    elif kind == Kind.DROPPED:
        subscription.cursor.join_dropped(Dropped.decode(payload))


def _replay_whole(topic: Topic, stood: Whole, name: str, time_ms: int) -> None:
    topic.subscription_registry.replay(decode_record(stood.record), time_ms)
    subscription = topic.subscriptions[name]
    subscription.cursor.join(Progress.decode(stood.progress))
    if stood.first_hand:
        subscription.cursor.join_first_hand(Progress.decode(stood.first_hand))


def snapshot(topic: Topic) -> Iterator[tuple[Kind, str, bytes]]:
    """Everything that a new ledger of the progress log begins with. Each record is current when it is requested;
    later changes are in the log after it.
    """
    yield from topic.deduplication.snapshot()
    for subscription in list(topic.subscriptions.values()):
        if subscription.durable and subscription.is_there:
            yield Kind.WHOLE, subscription.name, whole(subscription).encode()
            if subscription.cursor.dropped is not None:  # after its rewinds, which would take them back
                yield Kind.DROPPED, subscription.name, subscription.cursor.dropped.encode()
    yield from topic.gaps.snapshot()
    yield from topic.pulsar.snapshot()
    yield from topic.subscription_registry.lost_records.snapshot()
    for record in topic.subscription_registry.tombstones.snapshot():
        yield Kind.SUBSCRIPTION, record.name, encode_record(record)
    yield from votes.snapshot(topic.votes, topic.subscriptions.keys() | topic.subscription_registry.tombstones.keys())
