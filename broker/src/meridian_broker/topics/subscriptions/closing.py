# SPDX-License-Identifier: Apache-2.0
"""How a consumer goes that closes in good order."""

from __future__ import annotations

from meridian_broker.ledgers.store import Done, LedgerError
from meridian_broker.topics.dispatch.consumer import Consumer
from meridian_broker.topics.subscriptions.subscription import Subscription


def leave(consumer: Consumer, left: Done) -> None:
    """Take it out. ``left`` hears it once what was acked here is durable and the other regions know it, so that
    neither a crash nor a planned switch repeats any of it (R20). A non-persistent topic has nothing to wait for."""
    subscription = consumer.subscription
    if not isinstance(subscription, Subscription):
        subscription.leave(consumer)
        left(None)
        return
    topic = subscription.topic
    subscription.leave(consumer)

    def durable(error: LedgerError | None) -> None:
        if error is None and subscription.replicated and topic.exchange is not None:
            topic.exchange.flush(topic.name, subscription.name, lambda: left(None))
        else:
            left(error)

    def resolved(failure: LedgerError | None) -> None:
        subscription.cursor.flush_pending()
        topic.progress_log.when_durable(lambda error: durable(failure or error))

    subscription.cursor.when_resolved(resolved)
