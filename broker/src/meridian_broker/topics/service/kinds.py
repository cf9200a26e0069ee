# SPDX-License-Identifier: Apache-2.0
"""One name, two kinds of topic: with partitions and without.

Within a region the two exclude each other. Two regions that cannot reach each other may make one of each. Each creation
has a stamp, and of the two the earlier one counts, in every region (as R15 decides between two creations of a
subscription). A region that tells another of its topic sends the stamp as well, and the receiver compares: a later
creation *gives way*. So the kind of the earliest creation wins wherever regions meet, in any order, and no region goes
back to a later one.

A copy that gives way is not lost. If it holds messages it is quarantined, as a copy whose topic was deleted elsewhere
(R8): under a name of its own, in its region alone. Its subscriptions begin at the earliest message of the topic that
takes its place, so they skip nothing; its clients have to be recreated, because official clients ask only once how many
partitions a topic has.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import AsyncExitStack
from enum import IntEnum
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from meridian_broker.ledgers.scheduling import run_all
from meridian_broker.ledgers.store import LedgerError
from meridian_broker.metadata.store import MetadataError
from meridian_broker.metadata.topic_records import TopicRecord
from meridian_broker.positions import ZERO, Stamp
from meridian_broker.positions.position import EARLIEST
from meridian_broker.topics.errors import OtherKind, TopicError, TopicFenced
from meridian_broker.topics.names import COMPACTION_SUBSCRIPTION
from meridian_broker.topics.service import incarnations, removal
from meridian_broker.wire.pulsar import topic_name
from meridian_broker.wire.pulsar.topic_name import TopicName

if TYPE_CHECKING:
    from meridian_broker.topics.service.opener import TopicOpener
    from meridian_broker.topics.topic import Topic

log = logging.getLogger(__name__)


class Kind(IntEnum):
    """Of two creations whose order is not known, because earlier versions made them, the lesser kind counts."""

    PARTITIONED = 0
    PLAIN = 1


class Creation(NamedTuple):
    """The creation of a topic under a name. The lesser of two counts."""

    stamp: Stamp
    """``ZERO`` if an earlier version created it."""
    kind: Kind


class Carried(NamedTuple):
    """A subscription of a copy that gave way."""

    name: str
    replicated: bool


def gives_way(ours: Creation, theirs: Creation) -> bool:
    """Is ours of the other kind, and made later?"""
    return ours.kind is not theirs.kind and theirs < ours


async def creation(opener: TopicOpener, name: TopicName) -> Creation | None:
    """The creation of this region's topic of that name; None: there is none."""
    partitioned = await opener.parts.catalog.partitioned.find(name)
    if partitioned is not None:
        return Creation(partitioned.created or ZERO, Kind.PARTITIONED)
    plain = await opener.parts.catalog.topics.find(name)
    return None if plain is None else Creation(plain[0].created or ZERO, Kind.PLAIN)


async def make_way(opener: TopicOpener, name: TopicName, theirs: Creation) -> list[Carried]:
    """Another region has a topic of that name: one of the other kind here gives way if it was created later.

    :returns: its subscriptions, for ``carry`` once the other one is made.
    :raises OtherKind: ours was made earlier.
    :raises TopicError, LedgerError, MetadataError: it could not give way now; the next request continues.
    """
    ours = await creation(opener, name)
    if ours is None or ours.kind is theirs.kind:
        return []
    if not gives_way(ours, theirs):
        made = "without partitions" if ours.kind is Kind.PLAIN else "with partitions"
        raise OtherKind(
            f"{opener.parts.region} has {name} as a topic {made}, created earlier ({ours.stamp}): that one counts"
        )
    why = f"{name} was created earlier ({theirs.stamp}) in another region, " + (
        "with partitions; this is the one without" if ours.kind is Kind.PLAIN else "without partitions"
    )
    names = [name] if ours.kind is Kind.PLAIN else [name, *await removal.partition_names(opener, name)]
    carried: dict[str, Carried] = {}
    async with AsyncExitStack() as locks:
        held = await removal.hold(opener, names, locks)
        if await creation(opener, name) != ours:
            raise TopicFenced(f"{name} was deleted or recreated in the meantime: try again")
        for topic in held:
            carried |= _subscriptions(topic)
            await _give_way(opener, topic, why)
        if ours.kind is Kind.PARTITIONED:
            await opener.parts.catalog.partitioned.take_back(name)
    return list(carried.values())


async def check_kind(opener: TopicOpener, name: TopicName) -> None:
    """Another region asks for a topic that is not here. :raises OtherKind: what is here is of the other kind."""
    found = await creation(opener, name.base)
    if found is not None and (found.kind is Kind.PLAIN) == (name.partition >= 0):
        kind = "without" if found.kind is Kind.PLAIN else "with"
        raise OtherKind(f"{opener.parts.region} has {name.base} as a topic {kind} partitions")


async def carry(opener: TopicOpener, topics: Iterable[Topic], carried: Iterable[Carried]) -> None:
    """Create the missing subscriptions of a copy that gave way, at the earliest message. Durable on return."""
    for topic in topics:
        for name, replicated in carried:
            if name not in topic.subscriptions:
                topic.subscribing.create_subscription(name, EARLIEST, replicated=replicated)
        await opener.parts.scheduler.answer(topic.progress_log.when_durable)


async def create_as_told(
    opener: TopicOpener, name: TopicName, partitions: int, properties: dict[str, str], created: Stamp, known: str
) -> None:
    """Make a partitioned topic that another region has. Its partitions are opened once the caller has the answer.

    :param known: the last deletion that the other region knows of (R8).
    :raises TopicFenced: it was deleted here meanwhile.
    :raises OtherKind: this region made one without partitions earlier.
    :raises AlreadyExists: there is a partitioned topic of that name.
    """
    carried = await make_way(opener, name, Creation(created, Kind.PARTITIONED))
    opener.registry.check_exists(name)
    async with opener.registry.lock(str(name)):
        await incarnations.check_base(opener, name, known)
        await opener.parts.catalog.partitioned.create(name, partitions, properties, created)
        await opener.parts.catalog.topics.create_partitions(
            name, TopicRecord(joining=opener.parts.is_multi_region(name))
        )
    names = [name.with_partition(index) for index in range(partitions)]
    if carried:
        topics = [await opener.topic(one, create=False) for one in names]
        await carry(opener, topics, carried)
    else:
        opener.parts.scheduler.spawn(_open(opener, names), f"open the partitions of {name}")


async def take_back(opener: TopicOpener, name: TopicName, created: Stamp | None) -> None:
    """A creation made here a moment ago does not count: forget it. If messages came meanwhile, it stays until the
    region that made the topic earlier reports it.
    """
    async with opener.registry.lock(str(name)):
        record = await opener.parts.catalog.partitioned.find(name)
        if record is None or record.created != created:
            return
        names = await removal.partition_names(opener, name)
        await removal.take_back(opener, names)
        if not await opener.parts.catalog.topics.partitions(name):
            await opener.parts.catalog.partitioned.take_back(name)


async def _open(opener: TopicOpener, names: list[TopicName]) -> None:
    """A partition that cannot be opened now is opened at the next request for it."""

    async def open_one(name: TopicName) -> None:
        try:
            await opener.topic(name, create=False)
        except (TopicError, LedgerError, MetadataError) as error:
            log.info("partition %s is not open yet: %s", name, error)

    await run_all(opener.parts.scheduler, [partial(open_one, name) for name in names], "open a partition")


async def _give_way(opener: TopicOpener, topic: Topic, why: str) -> None:
    """The caller holds its lock."""
    await removal.close_for_good(opener, topic, why)
    if topic.log.after(EARLIEST) is None:
        await removal.unmake(opener, topic, why)
        return
    await removal.quarantine_topic(opener, topic, topic_name.parse(topic.name), why, None)


def _subscriptions(topic: Topic) -> dict[str, Carried]:
    return {
        one.name: Carried(one.name, one.replicated)
        for one in topic.subscriptions.values()
        if one.durable and one.name != COMPACTION_SUBSCRIPTION
    }
