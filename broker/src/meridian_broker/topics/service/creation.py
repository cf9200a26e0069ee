# SPDX-License-Identifier: Apache-2.0
"""How many partitions a topic has, and how topics are made: partitioned ones in all regions that can be reached.

The request is answered once these regions know of it: a client that learns elsewhere that the topic exists, and asks
its own region for it, would make a topic without partitions there. A region that cannot be reached holds nobody up: the
replicators tell it later, and ``kinds.py`` decides about what was made there meanwhile.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from meridian_broker.ledgers.scheduling import run_all
from meridian_broker.metadata.errors import AlreadyExists
from meridian_broker.metadata.records import PartitionedTopicRecord
from meridian_broker.metadata.topic_records import TopicRecord
from meridian_broker.topics import validation
from meridian_broker.topics.backfill.questions import PeerAway
from meridian_broker.topics.errors import InvalidName, OtherKind, TopicElsewhere, TopicNotFound
from meridian_broker.topics.lifecycle import opening
from meridian_broker.topics.service import kinds
from meridian_broker.wire.pulsar.topic_name import TopicName

if TYPE_CHECKING:
    from meridian_broker.topics.service.opener import TopicOpener

log = logging.getLogger(__name__)


async def partitions(opener: TopicOpener, name: TopicName, *, create: bool) -> int:
    """Number of partitions, 0 for a topic without. A partitioned topic is made if that is allowed and none exists; one
    without partitions is made by its first client.

    :raises TopicNotFound: there is none, and none may be made.
    """
    opener.registry.check_exists(name)
    record = await opener.parts.catalog.partitioned.find(name.base)
    if record is not None:
        if name.partition >= record.partitions:
            raise TopicNotFound(f"{name.base} has {record.partitions} partitions, not {name.partition + 1}")
        return record.partitions if name.partition < 0 else 0
    if str(name) in opener.registry.topics or str(name) in opener.registry.non_persistent.topics:
        return 0
    if await opener.parts.catalog.topics.find(name) is not None:
        return 0
    creation = opener.parts.rules(name).auto_topic_creation
    if not create or not creation.allowed:
        raise TopicNotFound(f"topic {name} does not exist")
    if creation.partitioned and name.partition < 0:
        try:
            await create_partitioned(opener, name, creation.partitions, {})
        except AlreadyExists as error:  # somebody else was quicker, here or in another region
            try:
                return await partitions(opener, name, create=False)
            except TopicNotFound:
                raise error from None  # the other region tells us of its topic: clients ask again until then
        return creation.partitions
    return 0


async def create_plain(opener: TopicOpener, name: TopicName, properties: dict[str, str]) -> None:
    """Make a topic without partitions.

    :raises AlreadyExists: there is one of that name.
    :raises InvalidName: no topic may be called that.
    """
    opener.registry.check_exists(name)
    validation.new_topic(name)
    if not name.is_persistent:
        await opener.registry.non_persistent.create(name)
        return
    await opening.check_room(opener.parts, name, 1)
    record = TopicRecord(properties=properties, joining=opener.parts.is_multi_region(name))
    await opener.parts.catalog.topics.create(name, record)
    await opener.topic(name, create=False)


async def create_partitioned(opener: TopicOpener, name: TopicName, partitions: int, properties: dict[str, str]) -> None:
    """Make a partitioned topic with all its partitions.

    :raises AlreadyExists: there is a topic of that name, here or, without partitions and made earlier, elsewhere.
    :raises InvalidName: no topic may be called that.
    """
    opener.registry.check_exists(name)
    validation.new_topic(name)
    if partitions < 1:
        raise InvalidName(f"{partitions} partitions: a partitioned topic needs at least one")
    if await opener.parts.catalog.topics.find(name) is not None:
        raise AlreadyExists(f"{name} already exists as a topic without partitions")
    if not name.is_persistent:
        async with opener.registry.lock(str(name)):
            await opening.check_room(opener.parts, name, partitions)
            await opener.parts.catalog.partitioned.create(name, partitions, properties)
        return
    with opener.parts.unfinished.or_later(name):
        async with opener.registry.lock(str(name)):
            await opening.check_room(opener.parts, name, partitions)
            record = await opener.parts.catalog.partitioned.create(name, partitions, properties)
            await opener.parts.catalog.topics.create_partitions(
                name, TopicRecord(joining=opener.parts.is_multi_region(name))
            )
        others = sorted(opener.parts.regions_of(str(name)) - {opener.parts.region})
        telling = [partial(_tell, opener, region, name, record) for region in others]
        opening_all = [partial(_open, opener, name.with_partition(index)) for index in range(partitions)]
        try:
            await run_all(opener.parts.scheduler, [*telling, *opening_all], "make a partition")
        except OtherKind as error:
            await kinds.take_back(opener, name, record.created)
            raise AlreadyExists(f"{name} was not created: {error}") from error


async def _open(opener: TopicOpener, name: TopicName, *, create: bool = False) -> None:
    """Open a partition, unless it is another broker's: that one opens it when it is needed."""
    with suppress(TopicElsewhere):
        await opener.topic(name, create=create)


async def complete(opener: TopicOpener, name: TopicName) -> None:
    """Make what is missing of a partitioned topic that is on record; its replicators tell the other regions of it.

    :raises MetadataError, LedgerError, TopicError: some partitions are not open yet.
    """
    async with opener.registry.lock(str(name)):
        record = await opener.parts.catalog.partitioned.find(name)
        if record is None:
            return  # it was never made after all, or is deleted
        await opener.parts.catalog.topics.create_partitions(
            name, TopicRecord(joining=opener.parts.is_multi_region(name))
        )
    opening_all = [partial(_open, opener, name.with_partition(n), create=True) for n in range(record.partitions)]
    await run_all(opener.parts.scheduler, opening_all, "open a partition")
    log.info("partitioned topic %s: completed a creation that was begun earlier", name)


async def _tell(opener: TopicOpener, region: str, name: TopicName, record: PartitionedTopicRecord) -> None:
    """:raises OtherKind: the region made a topic without partitions earlier."""
    replication = opener.regions.replication
    deletion = await opener.parts.catalog.partitioned.deletion(name)
    incarnation = "" if deletion is None else str(deletion.stamp)
    try:
        await replication.make_partitioned(region, str(name), record.partitions, incarnation, record.created)
    except PeerAway as error:
        log.warning("%s does not know of %s yet and will be notified later: %s", region, name, error)
