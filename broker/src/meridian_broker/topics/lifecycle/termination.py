# SPDX-License-Identifier: Apache-2.0
"""The end of a topic that stays readable: no more messages, for ever, in this region.

From the first moment nothing is taken any more; once all that was taken before is durable, the last entry is put on
record, and only then anybody is told. Consumers that have acknowledged everything hear that this was the end.

Other regions go on: each has its own topic of that name, and is terminated by itself. What their clients publish is not
stored here then (``topics/backfill/intake.py``). Their replicators are refused with this reason, keep what they have,
and show it in their status. What a restore lost of this region's own entries is asked for before the end is recorded.

The log has the last word on the end, because what it holds was acknowledged (``recall``).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from meridian_broker.ledgers.finding import goes_on_behind
from meridian_broker.ledgers.store import LedgerError
from meridian_broker.positions.position import Position
from meridian_broker.topics.errors import TopicFenced

if TYPE_CHECKING:
    from meridian_broker.topics.journal.topic_record import TopicMetadata
    from meridian_broker.topics.topic import Topic

log = logging.getLogger(__name__)


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
        raise TopicFenced(f"{topic.name} is being terminated: try again")
    topic.is_ended = True
    try:
        await topic.scheduler.answer(topic.log.when_durable)
        topic.check_open()
        last = topic.log.last_confirmed
        if topic.metadata is not None:
            await topic.metadata.save_terminated(last)
    except LedgerError as error:
        raise TopicFenced(f"{topic.name} was closed in the meantime: terminate it again ({error})") from error
    finally:
        topic.is_ended = False
    ended(topic, last)
    return last


async def recall(topic: Topic, metadata: TopicMetadata, end: Position) -> None:
    """The topic is being opened, and its record says that it ended at ``end``.

    A log that took messages behind that place shows that the topic went on: the record is an older copy, of before the
    region was rebuilt; or nobody could tell whether the end had been written, and the topic was left open. Then the
    termination is forgotten. To keep it would refuse producers that were let in, for ever; whoever still wants the
    topic to end terminates it again.

    What was given back of this region's own messages from before the end moves the end: it stands in later ledgers.

    :raises LedgerError: the log cannot be read.
    :raises MetadataError: what became of the end cannot be written.
    """
    last = topic.log.last_confirmed
    if last > end:
        if await goes_on_behind(topic.log, end):
            await metadata.save_terminated(None)
            log.warning(
                "%s: the metadata say that it was terminated at %s, but it has later messages up to %s: it stays open. "
                "Terminate it again if it should end",
                *(topic.name, end, last),
            )
            return
        await metadata.save_terminated(last)
        end = last
    ended(topic, end)


def ended(topic: Topic, last: Position) -> None:
    """It is on record that ``last`` is the end: producers go, and consumers may be told."""
    topic.is_ended, topic.terminated = True, last
    topic.admission.end(str(topic.refusal()))
    for producer in list(topic.producers.values()):
        topic.remove_producer(producer)
        producer.port.disconnect_producer(producer)
    for subscription in topic.subscriptions.values():
        subscription.dispatch_soon()
