# SPDX-License-Identifier: Apache-2.0
"""What the progress log keeps of a topic: how its subscriptions come back, and what a new ledger of it begins with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meridian_broker.positions import ZERO, Dropped, Progress
from meridian_broker.topics import drops, floors, rewinding, sharing
from meridian_broker.topics.lives import whole
from meridian_broker.topics.progress_log import Change, Kind, Whole
from meridian_broker.topics.subscription_record import decode_record, encode_record

if TYPE_CHECKING:
    from meridian_broker.topics.subscription import Subscription
    from meridian_broker.topics.topic import Topic


def recover(topic: Topic, changes: list[Change]) -> None:
    """Rebuild the subscriptions from what the progress log holds."""
    for kind, name, time_ms, payload in changes:
        if kind == Kind.SEQUENCES:
            topic.deduplication.recall(payload)
            continue
        if kind == Kind.WHOLE:
            _recall(topic, Whole.decode(payload), name, time_ms)
            continue
        if kind == Kind.GAP:
            topic.gaps.recall(name, payload)
            continue
        if kind == Kind.VOTES:
            sharing.recall(topic, name, payload)
            continue
        subscription = topic.subscriptions.get(name)
        if kind == Kind.SUBSCRIPTION:
            topic.lives.recall(decode_record(payload), time_ms)
        elif kind == Kind.REMOVED:
            topic.subscriptions.pop(name, None)
        elif subscription is None:
            continue
        elif kind in (Kind.ACKED, Kind.MERGED, Kind.PROGRESS):
            delta = Progress.decode(payload)
            drops.join(subscription.progress, subscription.dropped, delta)
            if kind == Kind.ACKED:
                subscription.last_acked_ms = time_ms
                if subscription.replicated:
                    subscription.first_hand = subscription.first_hand or Progress()
                    subscription.first_hand.join(delta)
        elif kind == Kind.FLOORS:
            floors.apply(subscription, Progress.decode(payload))
        elif kind == Kind.FIRST_HAND:
            _join_first_hand(subscription, payload)
        elif kind == Kind.DROPPED:
            subscription.dropped = subscription.dropped or Dropped()
            subscription.dropped.join(Dropped.decode(payload))
    for subscription in topic.subscriptions.values():
        if subscription.progress.epoch is not ZERO:
            rewinding.begin(subscription)
        subscription.start_cursor()


def _recall(topic: Topic, stood: Whole, name: str, time_ms: int) -> None:
    topic.lives.recall(decode_record(stood.record), time_ms)
    subscription = topic.subscriptions[name]
    drops.join(subscription.progress, subscription.dropped, Progress.decode(stood.progress))
    if stood.first_hand:
        _join_first_hand(subscription, stood.first_hand)


def _join_first_hand(subscription: Subscription, payload: bytes) -> None:
    subscription.first_hand = subscription.first_hand or Progress()
    subscription.first_hand.join(Progress.decode(payload))


def snapshot(topic: Topic) -> list[tuple[Kind, str, bytes]]:
    """Everything the progress log must begin a ledger with."""
    records = topic.deduplication.snapshot()
    for name, subscription in topic.subscriptions.items():
        if subscription.durable:
            records.append((Kind.WHOLE, name, whole(subscription).encode()))
            if subscription.dropped is not None:  # behind its rewinds, which would take them back
                records.append((Kind.DROPPED, name, subscription.dropped.encode()))
    records.extend(topic.gaps.snapshot())
    records.extend((Kind.SUBSCRIPTION, one.name, encode_record(one)) for one in topic.lives.snapshot())
    records.extend(sharing.snapshot(topic))
    return records
