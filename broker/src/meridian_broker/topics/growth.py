# SPDX-License-Identifier: Apache-2.0
"""More partitions of a topic (R15).

Clients are told of a partition once its subscriptions are durable: one who subscribes to it himself, at its latest
message, would miss what was published there before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from meridian_broker.metadata.topic_catalog import MAX_PARTITIONS
from meridian_broker.positions.position import EARLIEST
from meridian_broker.wire.pulsar.topic_name import TopicName

if TYPE_CHECKING:
    from meridian_broker.topics.service import TopicService


async def grow(service: TopicService, name: TopicName, partitions: int) -> None:
    """Have so many partitions; the topic's subscriptions start at the earliest message of the new ones.

    :raises TopicNotFound: there is no such topic.
    """
    partitioned = service.catalog.partitioned
    if not name.is_persistent:
        await partitioned.grow(name, partitions)
        return
    before = await service.partitions(name, create=False)
    for index in range(before, min(partitions, MAX_PARTITIONS) if before else 0):
        await _prepare_partition(service, name, index, partitions)
    await partitioned.grow(name, partitions)
    for index in range(partitions):
        (await service.topic(name.with_partition(index), create=False)).partitions = partitions


async def _prepare_partition(service: TopicService, name: TopicName, index: int, partitions: int) -> None:
    """Make a new partition with the subscriptions of the first one."""
    known = await service.topic(name.with_partition(0), create=False)
    topic = await service.topic(name.with_partition(index), create=True, growing_to=partitions)
    for subscription in list(known.subscriptions.values()):
        if subscription.durable and subscription.name not in topic.subscriptions:
            topic.create_subscription(subscription.name, EARLIEST, replicated=subscription.replicated)
    await service.scheduler.answer(topic.progress_log.when_durable)
