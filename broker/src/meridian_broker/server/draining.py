# SPDX-License-Identifier: Apache-2.0
"""The steps of a drain that wait: clients settle what is under way before they are sent away, and peers confirm it.

Whatever is under way when a connection ends is done again on the next one: an acknowledgement that the client had not
sent yet means that its message is delivered again, and a message without a receipt is stored twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from meridian_broker.ledgers.scheduling import Scheduler, in_slices

if TYPE_CHECKING:
    from meridian_broker.gateway.exchange import ExchangeShell
    from meridian_broker.gateway.pulsar.broker import Broker
    from meridian_broker.topics.service.exchange_host import ExchangeHost
    from meridian_broker.topics.service.service import TopicService
    from meridian_broker.topics.subscriptions.subscription import Subscription

ACK_SECONDS: Final = 0.25
"""How long consumers may acknowledge delivered messages. Official clients batch acknowledgements for 100 ms.
Publishing continues meanwhile."""
RECEIPT_SECONDS: Final = 1.0
"""How long messages that were read may take to be stored."""
LOOK_SECONDS: Final = 0.025


async def quiesce(service: TopicService, gateway: Broker, scheduler: Scheduler) -> None:
    """Dispatch no more, and wait for acknowledgements; read no more, and wait for receipts. Both for a bounded time."""
    waiting: list[Subscription] = []
    async for topic in in_slices(scheduler, service.topics.values()):
        topic.rest()
        waiting += filter(_is_owed_acks, topic.subscriptions.values())

    def have_acknowledged() -> bool:
        waiting[:] = filter(_is_owed_acks, waiting)  # nothing is dispatched, so no other one joins them
        return not waiting

    await _until(have_acknowledged, ACK_SECONDS)
    gateway.hear_no_more()
    await _until(lambda: not gateway.owes_receipts, RECEIPT_SECONDS)


async def confirmed(host: ExchangeHost, exchange: ExchangeShell, scheduler: Scheduler) -> None:
    """Wait, within the barrier's time, until peers confirmed the changes sent to them (R20)."""

    async def flush(topic: str, subscription: str) -> None:
        await scheduler.answer(lambda ready: exchange.flush(topic, subscription, lambda: ready(None)))

    async with asyncio.TaskGroup() as flushes:
        async for topic in in_slices(scheduler, host.open_topics()):
            for name in host.replicated_in(topic):
                flushes.create_task(flush(topic, name))


def _is_owed_acks(subscription: Subscription) -> bool:
    """Do its consumers have something that they have not acknowledged?"""
    dispatcher = subscription.dispatcher
    if dispatcher is None or not subscription.consumers or not subscription.durable:
        return False
    # For shared subscription types it is known which consumer holds which message.
    return subscription.unacked_messages > 0 or (
        dispatcher.read > subscription.cursor.mark_delete and not dispatcher.tracks_holders
    )


async def _until(condition: Callable[[], bool], seconds: float) -> None:
    """Wait for the condition, no longer than that."""
    for _ in range(round(seconds / LOOK_SECONDS)):
        if condition():
            return
        await asyncio.sleep(LOOK_SECONDS)
