# SPDX-License-Identifier: Apache-2.0
"""More partitions of a topic (R15).

Clients learn of a partition once its subscriptions are durable: one that created its own, at the latest message, would
miss what was published there before.

A topic grows under its lock, so it is not deleted meanwhile. In a region of several brokers the owner of each new
partition makes it, and another broker may delete the topic, or add partitions, too. So a growth first writes the
topic's record again, as it is; partitions are made, and the number is written, only while the record has that version.
Whoever begins later, or deletes the topic, thereby ends this growth.

A growth that fails takes back the partitions that it made. One that follows a crash first takes back what the crashed
one left.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Protocol

from meridian_broker.ledgers.scheduling import run_all
from meridian_broker.ledgers.store import LedgerError
from meridian_broker.metadata.partitioned_topics import MAX_PARTITIONS
from meridian_broker.metadata.store import MetadataError
from meridian_broker.positions.position import EARLIEST
from meridian_broker.topics.errors import TopicError, TopicFenced
from meridian_broker.topics.service import incarnations, removal
from meridian_broker.wire.pulsar.topic_name import TopicName

if TYPE_CHECKING:
    from meridian_broker.topics.service.opener import TopicOpener

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Growth:
    """What the owner of a partition is told of a growth."""

    partitions: int
    """The number that the topic is about to have."""
    version: int
    """The version of the partitioned topic's record: once it differs, somebody else changes the topic."""
    subscriptions: Mapping[str, bool] = field(default_factory=dict)
    """The first partition's, and whether each is replicated."""


class Owners(Protocol):
    """The brokers that serve the partitions of a topic."""

    async def subscriptions(self, first: TopicName) -> Mapping[str, bool]:
        """As ``subscriptions`` below, at the partition's owner.

        :raises TopicError, LedgerError, MetadataError: it cannot tell.
        """
        ...

    async def prepare(self, partition: TopicName, growth: Growth) -> None:
        """As ``prepare`` below, at the partition's owner.

        :raises TopicError, LedgerError, MetadataError: it did not, or its answer was lost.
        """
        ...


class OnlyBroker:
    """Implements ``Owners`` in a region of one broker."""

    def __init__(self, opener: TopicOpener) -> None:
        self._opener = opener

    async def subscriptions(self, first: TopicName) -> Mapping[str, bool]:
        return await subscriptions(self._opener, first)

    async def prepare(self, partition: TopicName, growth: Growth) -> None:
        await prepare(self._opener, partition, growth)


async def grow(
    opener: TopicOpener, name: TopicName, partitions: int, known: str | None = None, owners: Owners | None = None
) -> None:
    """Grow to this number of partitions; the topic's subscriptions start at the earliest message of the new ones.

    :param known: another region asks, and this is the last deletion that it knows of (R8).
    :param owners: None: this broker has all partitions.
    :raises TopicFenced: it was deleted, or changed, meanwhile.
    :raises NotFound: there is no such partitioned topic.
    """
    partitioned = opener.parts.catalog.partitioned
    if not name.is_persistent:
        await partitioned.grow(name, partitions)
        return
    owners = OnlyBroker(opener) if owners is None else owners
    async with opener.registry.lock(str(name)):
        if known is not None:
            await incarnations.check_base(opener, name, known)
        before = (await partitioned.get(name)).partitions
        if not before < partitions <= MAX_PARTITIONS:
            await partitioned.grow(name, partitions)  # says what is wrong with the number
            return
        before, version = await partitioned.begin_growth(name)
        numbers = {*range(before, partitions), *await _left_beyond(opener, name, before)}
        new = [name.with_partition(number) for number in sorted(numbers)]
        try:
            growth = Growth(partitions, version, await owners.subscriptions(name.with_partition(0)))
            making = [partial(owners.prepare, one, growth) for one in new]
            await run_all(opener.parts.scheduler, making, "make a partition")
            await partitioned.grow(name, partitions, version)
        except Exception:
            await _give_up(opener, owners, new, Growth(before, version))
            raise
    # The others read the number when they are opened; until then nobody misses it, because the new partitions'
    # replicators tell other regions.
    for number in range(partitions):
        if (topic := opener.registry.topics.get(str(name.with_partition(number)))) is not None:
            topic.grew(partitions)


async def _give_up(opener: TopicOpener, owners: Owners, made: list[TopicName], before: Growth) -> None:
    taking_back = [partial(owners.prepare, one, before) for one in made]
    try:
        await run_all(opener.parts.scheduler, taking_back, "take a partition back")
    except (MetadataError, LedgerError, TopicError) as error:
        log.warning("%s did not grow; partitions created for that stay until it does: %s", made[0].base, error)


async def _left_beyond(opener: TopicOpener, name: TopicName, number: int) -> list[int]:
    """Partitions on record beyond the number that the topic has."""
    on_record = await opener.parts.catalog.topics.partitions(name)
    return [one.partition for one in on_record if one.partition >= number]


async def subscriptions(opener: TopicOpener, first: TopicName) -> Mapping[str, bool]:
    """What new partitions begin with: the durable subscriptions of the first one, and whether each is replicated."""
    topic = await opener.topic(first, create=False)
    return {name: one.replicated for name, one in topic.subscriptions.items() if one.durable}


async def prepare(opener: TopicOpener, partition: TopicName, growth: Growth) -> None:
    """Make a partition that clients do not know of yet, in place of what an earlier growth left. One that the topic is
    not going to have is only taken back.

    :raises TopicFenced: the topic was deleted, or changed, since the growth began.
    """
    async with AsyncExitStack() as locks:
        left = await removal.hold(opener, [partition], locks)
        await _check(opener, partition, growth)
        for topic in left:
            await removal.unmake_empty(opener, topic)
    if partition.partition >= growth.partitions:
        return
    topic = await opener.topic(partition, create=True, growing_to=growth.partitions)
    for name, replicated in growth.subscriptions.items():
        if name not in topic.subscriptions:
            topic.subscribing.create_subscription(name, EARLIEST, replicated=replicated)
    await opener.parts.scheduler.answer(topic.progress_log.when_durable)


async def _check(opener: TopicOpener, partition: TopicName, growth: Growth) -> None:
    has, version = await opener.parts.catalog.partitioned.number(partition.base)
    if version != growth.version or partition.partition < has:
        raise TopicFenced(f"{partition.base} was changed while partitions were added to it: repeat the request")
