# SPDX-License-Identifier: Apache-2.0
"""Before topics move or their broker stops: clients finish what is under way.

Whatever is under way when a client is sent away is done again at the next owner: an acknowledgement that the client
had not sent yet means that its message is delivered again, and a message without a receipt is stored twice. So a
topic first stops dispatching and waits for acknowledgements, and then ignores what is published and waits until
everything before that has its receipt. Clients send what was ignored again, in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING, Final

from meridian_broker.ledgers.scheduling import Scheduler, in_slices
from meridian_broker.topics.context import WindingDown

if TYPE_CHECKING:
    from meridian_broker.ledgers.store import LedgerError
    from meridian_broker.topics.subscriptions.subscription import Subscription
    from meridian_broker.topics.topic import Topic

ACK_SECONDS: Final = 0.25
"""How long consumers may acknowledge delivered messages. Official clients batch acknowledgements for 100 ms.
Publishing continues meanwhile."""
RECEIPT_SECONDS: Final = 1.0
"""How long accepted messages may take to be stored."""
LOOK_SECONDS: Final = 0.025


async def wind_down(topics: Collection[Topic], scheduler: Scheduler) -> None:
    """Dispatch no more, and wait for acknowledgements; take no more messages, and wait for receipts. Each wait is
    bounded and for all topics at once."""
    owing: list[Subscription] = []
    async for topic in in_slices(scheduler, topics):
        topic.wind_down(WindingDown.DISPATCHES_NOTHING)
        owing += filter(_is_owed_acks, topic.subscriptions.values())

    def have_acknowledged() -> bool:
        owing[:] = filter(_is_owed_acks, owing)  # nothing is dispatched, so none is added
        return not owing

    await _until(have_acknowledged, ACK_SECONDS, scheduler)
    storing: set[int] = set()
    async for topic in in_slices(scheduler, topics):
        topic.wind_down(WindingDown.IGNORES_MESSAGES)
        storing.add(id(topic))
        topic.log.when_durable(partial(_stored, storing, id(topic)))
    await _until(lambda: not storing, RECEIPT_SECONDS, scheduler)


def _stored(storing: set[int], topic: int, _: LedgerError | None) -> None:
    storing.discard(topic)


def _is_owed_acks(subscription: Subscription) -> bool:
    """Do its consumers have something that they have not acknowledged?"""
    dispatcher = subscription.dispatcher
    if dispatcher is None or not subscription.consumers or not subscription.durable:
        return False
    # For shared subscription types it is known which consumer holds which message.
    return subscription.unacked_messages > 0 or (
        dispatcher.read > subscription.cursor.mark_delete and not dispatcher.tracks_holders
    )


async def _until(condition: Callable[[], bool], seconds: float, scheduler: Scheduler) -> None:
    """Wait for the condition, at most this long."""
    for _ in range(round(seconds / LOOK_SECONDS)):
        if condition():
            return
        await scheduler.answer(lambda ready: scheduler.later(LOOK_SECONDS, lambda: ready(None)))
