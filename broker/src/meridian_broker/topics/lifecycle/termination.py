# SPDX-License-Identifier: Apache-2.0
"""Termination: the topic accepts no more messages in this region, and stays readable.

From the first moment no message is accepted. Once everything accepted before is durable, the last entry is recorded,
and only then are clients told. Consumers that have acknowledged everything are told that they reached the end.

Other regions are not affected: each has its own topic of that name, and terminates it by itself. Messages published
there are not stored here any more (``topics/backfill/intake.py``). Their replicators are refused with this reason,
keep their backlog, and show the reason in their status. Entries of this region's own that a restore lost are
requested before the end is recorded; entries of any region from before the end that a restore loses later are
fetched from the others.

If record and log disagree about the end, the log is right, because what it holds was acknowledged (``restore``).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
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
    """Accept no more messages. Returns the last entry, the same one each time.

    :raises TopicFenced: another request is doing it, or the topic was closed meanwhile; try again.
    :raises MetadataError: it was not recorded: the topic stays open.
    :raises NotAllowed: it is a shadow.
    """
    topic.check_own_log("terminate")
    topic.check_open()
    if topic.backfill is not None:
        await topic.scheduler.answer(topic.backfill.ready)
        topic.check_open()
    if topic.terminated is not None:
        return topic.terminated
    if topic.is_ended:
        raise TopicFenced(f"{topic.name} is being terminated: try again")
    topic.begin_termination()
    try:
        await topic.scheduler.answer(topic.log.when_durable)
        topic.check_open()
        last = topic.log.last_confirmed
        ends = dict(topic.log.last_origin)
        if topic.metadata is not None:
            await topic.metadata.save_terminated(last, ends)
    except LedgerError as error:
        raise TopicFenced(f"{topic.name} was closed in the meantime: terminate it again ({error})") from error
    finally:
        topic.resume()
    ended(topic, last, ends)
    return last


async def restore(topic: Topic, metadata: TopicMetadata, end: Position) -> None:
    """Check the recorded end when the topic is opened.

    If the log has messages after ``end``, the topic continued: the record is an older copy from before the region
    was rebuilt, or it was unknown whether the end had been written, and the topic was left open. Then the termination
    is forgotten. Keeping it would refuse producers that were admitted, forever; it can be terminated again.

    If messages from before the end were fetched back, the end moves: they are stored in later ledgers.

    :raises LedgerError: the log cannot be read.
    :raises MetadataError: the change cannot be recorded.
    """
    last, ends = topic.log.last_confirmed, metadata.record.terminated_origins
    if last > end:
        if await goes_on_behind(topic.log, end, ends):
            await metadata.save_terminated(None, {})
            log.warning(
                "%s: the metadata says that it was terminated at %s, but it has later messages up to %s: it stays "
                "open. Terminate it again if it should end",
                *(topic.name, end, last),
            )
            return
        await metadata.save_terminated(last, ends)
        end = last
    ended(topic, end, ends)


def ended(topic: Topic, last: Position, ends: Mapping[str, Position]) -> None:
    """``last`` is recorded as the end: disconnect producers, and notify consumers.

    :param ends: per other region, its last entry before the end.
    """
    topic.ended(last, ends)
    topic.admission.end(str(topic.refusal()))
    for producer in list(topic.producers.values()):
        topic.remove_producer(producer)
        producer.port.disconnect_producer(producer)
    for subscription in topic.subscriptions.values():
        subscription.dispatch_soon()
    for shadow in topic.shadows.open.values():
        ended(shadow, last, ends)
