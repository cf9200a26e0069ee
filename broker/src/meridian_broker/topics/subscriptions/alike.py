# SPDX-License-Identifier: Apache-2.0
"""What consumers of many subscriptions say alike after a broadcast: an acknowledgement of one entry, or a few permits.

A loop over all of them costs half of what a call for each does, which would decide the same every time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from meridian_broker.topics.subscriptions.subscription import Subscription

if TYPE_CHECKING:
    from meridian_broker.positions.position import Position
    from meridian_broker.topics.cursors.cursor import Cursor
    from meridian_broker.topics.dispatch.consumer import Consumer
    from meridian_broker.topics.journal.common_acks import CommonAck


def acknowledge(consumers: Iterable[Consumer], position: Position) -> None:
    """Each acknowledges this entry of its topic, by itself, and waits for no answer.

    The first of a topic does so as any other would. The others claim the same, as long as they are in the same state.
    """
    common: CommonAck | None = None
    joined: list[Cursor] = []
    try:
        for consumer in consumers:
            subscription = consumer.subscription
            if common is not None and isinstance(subscription, Subscription):
                dispatcher, cursor = subscription.dispatcher, subscription.cursor
                is_alone = dispatcher is not None and not dispatcher.tracks_holders
                if is_alone and cursor.claim_as(consumer, common):
                    joined.append(cursor)
                    continue
                common.join(joined)
                joined = []
            subscription.acknowledge(consumer, [position])
            if isinstance(subscription, Subscription):
                common = subscription.topic.progress_log.common_acks.get(position)
    finally:  # also if one fails: what was claimed is written
        if common is not None:
            common.join(joined)


def flow(consumers: Iterable[Consumer], permits: int) -> None:
    """Each can accept this many more messages, see ``Consumer.flow``."""
    for consumer in consumers:
        had = consumer.permits
        consumer.permits = had + permits
        if had <= 0:
            consumer.subscription.dispatch_soon()
