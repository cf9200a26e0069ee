# SPDX-License-Identifier: Apache-2.0
"""More partitions of a topic (R15).

Clients learn of a partition once its subscriptions are durable: one that created its own, at the latest message, would
miss what was published there before.

A topic grows under its lock, so it is not deleted meanwhile. Growth that fails takes back the partitions that it made,
and growth that follows one that a crash ended begins by taking back what that left.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from meridian_broker.ledgers.scheduling import run_all
from meridian_broker.ledgers.store import LedgerError
from meridian_broker.metadata.partitioned_topics import MAX_PARTITIONS
from meridian_broker.metadata.store import MetadataError
from meridian_broker.positions.position import EARLIEST
from meridian_broker.topics.errors import TopicError
from meridian_broker.topics.service import incarnations, removal
from meridian_broker.wire.pulsar.topic_name import TopicName

if TYPE_CHECKING:
    from meridian_broker.topics.service.opener import TopicOpener

log = logging.getLogger(__name__)


async def grow(opener: TopicOpener, name: TopicName, partitions: int, known: str | None = None) -> None:
    """Grow to this number of partitions; the topic's subscriptions start at the earliest message of the new ones.

    :param known: another region asks, and this is the last deletion that it knows of (R8).
    :raises TopicFenced: it was deleted meanwhile.
    :raises NotFound: there is no such partitioned topic.
    """
    partitioned = opener.parts.catalog.partitioned
    if not name.is_persistent:
        await partitioned.grow(name, partitions)
        return
    async with opener.registry.lock(str(name)):
        if known is not None:
            await incarnations.check_base(opener, name, known)
        before = (await partitioned.get(name)).partitions
        if not before < partitions <= MAX_PARTITIONS:
            await partitioned.grow(name, partitions)  # says what is wrong with it
            return
        await _take_back_from(opener, name, before)
        try:
            new = [partial(_prepare_partition, opener, name, index, partitions) for index in range(before, partitions)]
            await run_all(opener.parts.scheduler, new, "make a partition")
            await partitioned.grow(name, partitions)
        except Exception:
            await _give_up(opener, name, before)
            raise

    async def tell(index: int) -> None:
        (await opener.topic(name.with_partition(index), create=False)).grew(partitions)

    telling = [partial(tell, index) for index in range(partitions)]
    await run_all(opener.parts.scheduler, telling, "tell a partition's number")


async def _give_up(opener: TopicOpener, name: TopicName, before: int) -> None:
    try:
        record = await opener.parts.catalog.partitioned.find(name)  # the number may have been written all the same
        await _take_back_from(opener, name, before if record is None else record.partitions)
    except (MetadataError, LedgerError, TopicError) as error:
        log.warning("%s did not grow; partitions created for that stay until it does: %s", name, error)


async def _take_back_from(opener: TopicOpener, name: TopicName, number: int) -> None:
    """Partitions on record beyond the number that the topic has."""
    on_record = await opener.parts.catalog.topics.partitions(name)
    await removal.take_back(opener, [one for one in on_record if one.partition >= number])


async def _prepare_partition(opener: TopicOpener, name: TopicName, index: int, partitions: int) -> None:
    """Make a new partition with the subscriptions of the first one."""
    known = await opener.topic(name.with_partition(0), create=False)
    topic = await opener.topic(name.with_partition(index), create=True, growing_to=partitions)
    for subscription in list(known.subscriptions.values()):
        if subscription.durable and subscription.name not in topic.subscriptions:
            topic.subscribing.create_subscription(subscription.name, EARLIEST, replicated=subscription.replicated)
    await opener.parts.scheduler.answer(topic.progress_log.when_durable)
