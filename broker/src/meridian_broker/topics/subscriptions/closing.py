# SPDX-License-Identifier: Apache-2.0
"""An orderly close of a consumer."""

from __future__ import annotations

from meridian_broker.ledgers.store import Done, LedgerError
from meridian_broker.topics.dispatch.consumer import Consumer
from meridian_broker.topics.subscriptions.subscription import Subscription


def leave(consumer: Consumer, left: Done) -> None:
    """Remove the consumer. ``left`` is called once its acknowledgements are durable here and known to the other
    regions, so that neither a crash nor a planned move repeats any message (R20). On a non-persistent topic that is
    at once.
    """
    subscription = consumer.subscription
    if not isinstance(subscription, Subscription):
        subscription.leave(consumer)
        left(None)
        return
    topic = subscription.topic
    subscription.leave(consumer)

    def durable(error: LedgerError | None) -> None:
        if error is None and subscription.replicated and topic.snapshots is not None:
            topic.snapshots.consumer_left(subscription.name)
        if error is None and subscription.replicated and topic.exchange is not None:
            topic.exchange.flush(topic.name, subscription.name, lambda: left(None))
        else:
            left(error)

    def resolved(failure: LedgerError | None) -> None:
        subscription.cursor.flush_pending()
        topic.progress_log.when_durable(lambda error: durable(failure or error))

    subscription.cursor.when_resolved(resolved)
