# SPDX-License-Identifier: Apache-2.0
"""The end of a topic that stays readable: no more messages, for ever, in this region.

From the first moment nothing is taken any more; once all that was taken before is durable, the last entry is put on
record, and only then anybody is told. Consumers that have acknowledged everything hear that this was the end.

Other regions go on: each has its own topic of that name, and is terminated by itself. What their clients publish is not
stored here then (``topics/backfill/intake.py``). Their replicators are refused with this reason, keep what they have,
and show it in their status. What a restore lost of this region's own entries is asked for before the end is recorded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from meridian_broker.ledgers.store import LedgerError
from meridian_broker.positions.position import Position
from meridian_broker.topics.errors import TopicFenced

if TYPE_CHECKING:
    from meridian_broker.topics.subscriptions.subscription import Subscription
    from meridian_broker.topics.topic import Topic


async def terminate(topic: Topic) -> Position:
    """Take no more messages. Returns the last entry; asked again, the same one.

    :raises TopicFenced: somebody else is about to do it, or the topic was closed meanwhile; ask again.
    :raises MetadataError: it is not on record: the topic goes on.
    """
    topic.check_open()
    if topic.recall is not None:
        await topic.scheduler.answer(topic.recall.ready)
        topic.check_open()
    if topic.terminated is not None:
        return topic.terminated
    if topic.is_ended:
        raise TopicFenced(f"{topic.name} is being terminated: ask again")
    topic.is_ended = True
    try:
        await topic.scheduler.answer(topic.log.when_durable)
        topic.check_open()
        last = topic.log.last_confirmed
        if topic.metadata is not None:
            await topic.metadata.save_terminated(last)
    except LedgerError as error:
        raise TopicFenced(f"{topic.name} was closed meanwhile: terminate it again ({error})") from error
    finally:
        topic.is_ended = False
    ended(topic, last)
    return last


def ended(topic: Topic, last: Position) -> None:
    """It is on record that ``last`` is the end: producers go, and consumers may be told."""
    topic.is_ended, topic.terminated = True, last
    topic.admission.end(str(topic.refusal()))
    for producer in list(topic.producers.values()):
        topic.remove_producer(producer)
        producer.port.disconnect_producer(producer)
    for subscription in topic.subscriptions.values():
        subscription.dispatch_soon()


def tell_consumers(subscription: Subscription) -> None:
    """To the consumers of a terminated topic, once each: everything is acknowledged, and nothing will follow."""
    if subscription.mark_delete < subscription.topic.log.last_confirmed:
        return
    for consumer in subscription.consumers:
        if not consumer.knows_end:
            consumer.knows_end = True
            consumer.port.reached_end(consumer)
