# SPDX-License-Identifier: Apache-2.0
"""How topics are deleted on request.

A deletion is put on record before anything else happens. Until then the topic serves the clients that it has, so a
deletion that a full metadata store refuses changes nothing. No client is admitted after the last check for clients, so
no message is accepted only to be deleted. Unused topics are deleted in the same way (``unused.py``).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Final

from meridian_broker.ledgers.scheduling import run_all
from meridian_broker.metadata.deletions import Deletion
from meridian_broker.metadata.errors import NotFound, Overtaken
from meridian_broker.metadata.shadow_topics import SOURCE
from meridian_broker.metadata.store import MetadataFull
from meridian_broker.positions import Stamp
from meridian_broker.positions.position import EARLIEST
from meridian_broker.topics.errors import TopicFenced, TopicInUse, TopicNotFound
from meridian_broker.topics.journal.topic_record import stamp_of
from meridian_broker.topics.lifecycle import deletion, opening, orphans, quarantine
from meridian_broker.wire.pulsar import topic_name
from meridian_broker.wire.pulsar.topic_name import TopicName

if TYPE_CHECKING:
    from meridian_broker.metadata.catalog import Catalog
    from meridian_broker.metadata.shadow_topics import ShadowRecord
    from meridian_broker.metadata.store import Check
    from meridian_broker.topics.service.opener import TopicOpener
    from meridian_broker.topics.topic import Topic

log = logging.getLogger(__name__)

SHOWN: Final = 20
"""Shadows named when their source is not deleted because of them."""

Objecting = Callable[["Topic"], None]
"""Raises if the topic may not be deleted."""
Begun = Callable[[Stamp], None]
"""Called with the stamp of a deletion that is on record: other regions may be told while it is carried out."""


def _to_nobody(_: Stamp) -> None:
    """Notifies no region."""


async def delete(opener: TopicOpener, name: TopicName, *, force: bool, begun: Begun = _to_nobody) -> Stamp | None:
    """Delete a topic, or a partitioned one with its partitions. Returns the deletion's stamp, for a persistent topic.

    :raises TopicInUse: it has clients and ``force`` is not set, or it has shadows.
    :raises NotFound: there is none.
    """
    check = _anyway if force else _check_no_clients
    partitioned = opener.parts.catalog.partitioned
    if name.partition >= 0 or await partitioned.find(name) is None:
        if not name.is_persistent:
            opener.registry.non_persistent.delete([name], force=force, partitioned=False)
            if name.partition < 0:
                await opener.parts.catalog.permissions.forget(name)
            return None
        async with AsyncExitStack() as locks:
            topics = await hold(opener, [name], locks)
            if not topics:
                await forget_remains(opener, name)
                raise TopicNotFound(f"topic {name} does not exist")
            async with without_shadows(opener, name) as also:  # now that none is made here
                shadow = await opener.parts.catalog.shadows.fetch(name) if name.partition < 0 else None
                stamp = await new_stamp(opener, name)
                await remove(opener, topics, check, stamp, begun, also=also)
            if shadow is not None:
                await opener.parts.catalog.shadows.delete(shadow)
        return stamp
    async with AsyncExitStack() as locks:
        await locks.enter_async_context(opener.registry.lock(str(name)))
        names = await partition_names(opener, name)
        if not name.is_persistent:
            opener.registry.non_persistent.delete(names, force=force, partitioned=True)
            return await partitioned.delete(name)
        await check_no_shadows(opener, name)
        shadow = await opener.parts.catalog.shadows.fetch(name)
        topics = await hold(opener, names, locks)
        stamp = await new_stamp(opener, name)
        async with without_shadows(opener, name) as also:
            await remove(opener, topics, check, stamp, begun, partitioned=name, also=also)
        return await forget_partitions(opener.parts.catalog, name, stamp, shadow)


async def begin_partitioned(opener: TopicOpener, name: TopicName, stamp: Stamp) -> None:
    """The first step of deleting a partitioned topic.

    :raises TopicInUse: it has shadows, or gets one just now.
    :raises NotFound: it does not exist.
    """
    async with without_shadows(opener, name) as also:
        await opener.parts.catalog.partitioned.begin_deletion(name, stamp, also)


async def forget_partitions(catalog: Catalog, name: TopicName, stamp: Stamp, shadow: ShadowRecord | None) -> Stamp:
    """The last step of deleting a partitioned topic, which holds for partitions that were never used, too.

    :param shadow: its record, as of the beginning, if it is a shadow.
    :raises NotFound: it does not exist any more.
    """
    record = await catalog.partitioned.on_record(name)
    if record is None or SOURCE not in record.properties:
        return await catalog.partitioned.delete(name, stamp)
    await catalog.partitioned.forget(name)
    if shadow is not None:
        await catalog.shadows.delete(shadow)
    return stamp


async def is_shadow(opener: TopicOpener, name: TopicName) -> bool:
    """Whether the topic of this name was made as a shadow, not as an ordinary one by another broker."""
    catalog = opener.parts.catalog
    partitioned, plain = await catalog.partitioned.on_record(name), await catalog.topics.find(name)
    made = partitioned if partitioned is not None else None if plain is None else plain[0]
    return made is not None and SOURCE in made.properties


async def is_ordinary(opener: TopicOpener, name: TopicName) -> bool:
    """Whether there is a topic of this name that was not made as a shadow, whatever the records of shadows say."""
    return await exists(opener, name) and not await is_shadow(opener, name)


async def exists(opener: TopicOpener, name: TopicName) -> bool:
    """Whether there is a persistent topic of this name, partitioned or not; true also if its deletion has begun."""
    catalog = opener.parts.catalog
    return await catalog.partitioned.on_record(name) is not None or await catalog.topics.find(name) is not None


async def forget_remains(opener: TopicOpener, name: TopicName) -> None:
    """Delete the record of a shadow that has no topic, because a deletion, or a creation, ended in between.

    :raises MetadataError: it may still be there.
    """
    record = await opener.parts.catalog.shadows.fetch(name)
    if record is None or opening.may_be_made(opener.parts, record):
        return
    if not await exists(opener, record.shadow):
        await opener.parts.catalog.shadows.delete_left(record)


@contextlib.asynccontextmanager
async def without_shadows(opener: TopicOpener, name: TopicName) -> AsyncIterator[Sequence[Check]]:
    """A topic, or a partition of one, has no shadows: it may be deleted.

    The only broker of a region makes none meanwhile, because the caller holds the topic's lock. In a region of several,
    what this yields has to be checked by the very write that puts the deletion on record. A broker that makes a shadow
    before that lets the check fail; one that does so later sees that the topic is deleted.

    :raises TopicInUse: it has shadows, or another broker makes one just now.
    """
    shadows = opener.parts.catalog.shadows
    if opener.parts.ownership.is_sole or name.partition >= 0:  # without this partition its topic is still a source
        await check_no_shadows(opener, name)
        yield ()
        return
    announced = await shadows.announce(name)
    try:
        await check_no_shadows(opener, name)
        yield (announced,)
    except Overtaken as error:
        await check_no_shadows(opener, name)
        raise TopicInUse(f"another broker deletes {name}, or makes a shadow of it, just now: repeat it") from error
    finally:
        await shadows.withdraw(announced)


async def check_no_shadows(opener: TopicOpener, name: TopicName) -> None:
    """:raises TopicInUse: the topic, or the one that it is a partition of, has shadows."""
    if opener.parts.catalog.shadows.find(name) is not None and await is_shadow(opener, name.base):
        return  # it can have none
    if name.partition >= 0:
        base = await opener.parts.catalog.partitioned.on_record(name.base)
        if base is not None and base.deleting is not None:
            return  # it was decided for the whole topic
    if not opener.parts.ownership.is_sole:  # another broker may have made one just now
        await opener.parts.catalog.shadows.refresh()
    for record in opener.parts.catalog.shadows.of(name):
        if opening.may_be_made(opener.parts, record) or await is_shadow(opener, record.shadow):
            break
        if await is_ordinary(opener, record.shadow):
            await opener.parts.catalog.shadows.delete(record)  # made by another broker while this shadow was to be
        else:
            await opener.parts.catalog.shadows.delete_left(record)
    if shadows := opener.parts.catalog.shadows.of(name):
        listed = ", ".join(str(one.shadow) for one in shadows[:SHOWN])
        more = f" and {len(shadows) - SHOWN} more" if len(shadows) > SHOWN else ""
        raise TopicInUse(
            f"{name.base} has shadows, {listed}{more}: delete these first, or all together: with ?cascade=true, or "
            "--cascade on the command line"
        )


async def delete_as_elsewhere(opener: TopicOpener, name: TopicName, stamp: Stamp, *, partitioned: bool) -> None:
    """Follow the deletion of another region, even if the topic is in use here or does not exist (R8).

    A shadow stays: it is a topic of this region alone, and the other region's had nothing but its name.

    A link may have reported the deletion before: what was made since then stays. What is of the other kind here, with
    partitions or without (``kinds.py``), was never replicated to the region that deleted: it is quarantined.

    :raises TopicFenced: it was opened, or grew, meanwhile.
    """
    if await is_shadow(opener, name.base):
        return
    async with AsyncExitStack() as locks:
        names = await _names_of_both_kinds(opener, name)
        topics = [one for one in await hold(opener, names, locks) if stamp_of(one.incarnation) < stamp]
        # Links tell of the deletion, too, so partitions may be gone since; but none may have been made.
        if not set(await _names_of_both_kinds(opener, name)) <= set(names):
            raise TopicFenced(f"{name} gained partitions in the meantime: delete it again")
        known = await opener.parts.catalog.topics.deletion(name)
        is_told = known is not None and known.stamp >= stamp
        meant = [one for one in topics if (one.name != str(name)) == partitioned or name.partition >= 0]
        has_count = name.partition < 0 and await opener.parts.catalog.partitioned.find(name) is not None
        await remove(opener, meant, _anyway, stamp, partitioned=name if has_count and not is_told else None)
        for topic in topics:
            if topic not in meant:
                await _leave(opener, topic, f"{name} was deleted in another region ({stamp})", stamp)
        if name.partition < 0 and not is_told:
            with contextlib.suppress(NotFound):
                await opener.parts.catalog.partitioned.delete(name, stamp)
        await opener.parts.catalog.topics.mark_deleted(name, stamp)


async def _leave(opener: TopicOpener, topic: Topic, why: str, stamp: Stamp) -> None:
    """Remove a topic of which no other region has messages: it is quarantined if it holds any. The caller holds its
    lock."""
    await close_for_good(opener, topic, why)
    if topic.log.after(EARLIEST) is None:
        await deletion.destroy(opener.parts, topic, stamp)
        return
    reason = f"{why}, and no other region has the messages of this topic, which is of the other kind"
    await quarantine_topic(opener, topic, topic_name.parse(topic.name), reason, stamp)


async def close_for_good(opener: TopicOpener, topic: Topic, why: str) -> None:
    """Close a topic that goes because of another region; the caller holds its lock.

    What happens to it depends on what it holds, which is certain only once it is closed: publishes that are under way
    at the fence become durable and get receipts. So nothing is recorded before the fence, but whether the store takes
    writes is checked.

    :raises MetadataError: the store takes none now: the topic goes on.
    :raises LedgerError: its log failed. It is closed.
    """
    if topic.metadata is not None:
        await topic.metadata.check_writable()
    topic.fence(why, for_good=True)
    try:
        await topic.scheduler.answer(topic.log.when_durable)
    finally:
        await opener.drop(topic)


async def quarantine_topic(opener: TopicOpener, topic: Topic, name: TopicName, why: str, stamp: Stamp | None) -> None:
    """Quarantine a topic that is fenced and no longer open. The caller holds its lock.

    :param why: shown as a property of the copy.
    :param stamp: of the topic's deletion; None: it was not deleted.
    """
    await topic.close(why)
    to = await quarantine.move(opener.parts, name, why, stamp)
    opener.parts.unfinished.forget(topic.name)
    await opener.open(to)


async def _names_of_both_kinds(opener: TopicOpener, name: TopicName) -> list[TopicName]:
    return [name, *await partition_names(opener, name)] if name.partition < 0 else [name]


async def forget_partitioned(opener: TopicOpener, name: TopicName, stamp: Stamp) -> None:
    """A partitioned topic was deleted in another region: the first report on one of its partitions deletes their
    number, under the topic's lock, so that a thousand reports at once do not contend for one record.
    """
    async with opener.registry.lock(str(name)):
        known = await opener.parts.catalog.partitioned.deletion(name)
        if known is not None and known.stamp >= stamp:
            return
        try:
            await opener.parts.catalog.partitioned.delete(name, stamp)
        except NotFound:
            await opener.parts.catalog.topics.mark_deleted(name, stamp)


async def finish(opener: TopicOpener, name: TopicName) -> None:
    """Delete what is left of a partitioned topic whose deletion was begun by an earlier run of the broker, or failed.

    :raises MetadataError, LedgerError, TopicError: something is left.
    """
    async with AsyncExitStack() as locks:
        await locks.enter_async_context(opener.registry.lock(str(name)))
        record = await opener.parts.catalog.partitioned.on_record(name)
        if record is None or record.deleting is None:
            return
        stamp = Stamp.parse(record.deleting)
        left = await hold(opener, await partition_names(opener, name), locks)  # opening deletes what that run left
        shadow = await opener.parts.catalog.shadows.fetch(name)
        await forget_partitions(opener.parts.catalog, name, stamp, shadow)
        log.info("partitioned topic %s: completed a deletion that was begun earlier", name)
    if left:  # recreated, and the metadata is an older copy
        await orphans.make_partitioned(opener.parts, name, 1 + max(topic.partition for topic in left))


async def take_back(opener: TopicOpener, names: Iterable[TopicName]) -> None:
    """Take back partitions that their topic does not have, if they hold no message.

    The caller holds the topic's lock.

    :raises MetadataError, LedgerError, TopicError: some of them may be left.
    """
    for name in names:
        async with AsyncExitStack() as locks:
            for topic in await hold(opener, [name], locks):
                await unmake_empty(opener, topic)


async def unmake_empty(opener: TopicOpener, topic: Topic) -> None:
    """As ``take_back`` for one that is open; the caller holds its lock."""
    if topic.log.last_own == EARLIEST and not topic.log.last_origin:
        await unmake(opener, topic, "the topic has no such partition")


async def unmake(opener: TopicOpener, topic: Topic, why: str) -> None:
    """Remove a topic that holds no message as if it had never been made; the caller holds its lock."""
    topic.fence(why, for_good=True)
    await opener.drop(topic)
    await opener.parts.catalog.topics.take_back(topic_name.parse(topic.name))
    opener.parts.unfinished.forget(topic.name)
    await deletion.delete_ledgers(topic)


async def partition_names(opener: TopicOpener, name: TopicName) -> list[TopicName]:
    """All partitions that a topic has by number or on record: growth that broke off may have left more than it has."""
    record = await opener.parts.catalog.partitioned.find(name)
    numbered = [] if record is None else [name.with_partition(number) for number in range(record.partitions)]
    on_record = await opener.parts.catalog.topics.partitions(name) if name.is_persistent else []
    return list(dict.fromkeys([*numbered, *on_record]))


async def hold(opener: TopicOpener, names: list[TopicName], locks: AsyncExitStack) -> list[Topic]:
    """Open those that exist, and take the locks of all, in the order of their names.

    The holder of a partitioned topic's lock may take those of its partitions, and no task takes them the other way
    round, so no two wait for each other.

    A partition that was never used would be created by opening it, and taken for a new topic by other regions.

    :raises TopicFenced: one was reopened meanwhile.
    """
    found: dict[TopicName, Topic] = {}

    async def open_one(name: TopicName) -> None:
        record = await opener.parts.catalog.topics.find(name)
        if record is not None:
            opener.failing.end_pause(str(name), opener.parts.scheduler.monotonic_ms())
            with contextlib.suppress(TopicNotFound, TopicFenced):  # it is looked at again below
                found[name] = await opener.topic(name, create=False, incarnation=record[0].incarnation)

    await run_all(opener.parts.scheduler, [partial(open_one, name) for name in names], "open a topic to be deleted")
    ordered = sorted(names, key=str)
    for name in ordered:
        await locks.enter_async_context(opener.registry.lock(str(name)))
    for name in ordered:
        if opener.registry.topics.get(str(name)) is found.get(name):
            continue
        if await opener.parts.catalog.topics.find(name) is not None:
            raise TopicFenced(f"{name} was reopened in the meantime: delete it again")
        found.pop(name, None)  # deleted by somebody else: another region may have reported the deletion, too
    return [found[name] for name in names if name in found]


async def new_stamp(opener: TopicOpener, name: TopicName) -> Stamp:
    """The stamp of a deletion that happens now."""
    newest = opener.parts.catalog.topics.newest_deletion
    known = await newest(name) if name.partition < 0 else await opener.parts.catalog.topics.deletion(name)
    return opener.parts.clock.next(known.stamp if isinstance(known, Deletion) else known)


def _anyway(_: Topic) -> None:
    """Clients are disconnected."""


def _check_no_clients(topic: Topic) -> None:
    """:raises TopicInUse: somebody is connected."""
    if busy := clients(topic):
        raise TopicInUse(f"{topic.name} has {busy} producers and consumers: close them, or force")


async def check_unused(opener: TopicOpener, name: TopicName) -> None:
    """:raises TopicInUse: somebody is connected to the topic, or to one of its partitions."""
    for one in [name, *await partition_names(opener, name)]:
        topic = opener.registry.topics.get(str(one))
        if topic is not None:
            _check_no_clients(topic)


def clients(topic: Topic) -> int:
    """Producers and consumers, without the replicators of other regions."""
    producers = sum(producer.remote_region is None for producer in topic.producers.values())
    return producers + sum(len(subscription.consumers) for subscription in topic.subscriptions.values())


async def remove(
    opener: TopicOpener,
    topics: list[Topic],
    check: Objecting,
    stamp: Stamp,
    begun: Begun = _to_nobody,
    *,
    partitioned: TopicName | None = None,
    also: Sequence[Check] = (),
) -> None:
    """The caller holds their locks.

    A topic that was closed and could not be deleted is opened again in the next turn, without a request, if the process
    still runs then: it lives on unless its record says that it is deleted, and is deleted then if it does.

    :param begun: called once for a partitioned topic, else for each topic.
    :param partitioned: they are the partitions of this topic, which is deleted: one write decides it for all of them.
    :param also: must hold when it is decided.
    :raises MetadataFull, Overtaken: topics whose deletion is not on record go on as before.
    """
    for topic in topics:
        check(topic)
    for topic in topics:
        topic.begin_leaving()
    left = set(topics)

    async def remove_one(topic: Topic) -> None:
        if partitioned is None:
            await _decide([topic], deletion.begin(topic, stamp, also))
            begun(stamp)
        await opener.drop(topic)
        await deletion.destroy(opener.parts, topic, stamp)
        left.remove(topic)

    try:
        if partitioned is not None:
            opener.parts.unfinished.finish_later(partitioned)
            await _decide(topics, opener.parts.catalog.partitioned.begin_deletion(partitioned, stamp, also))
            begun(stamp)
        await run_all(opener.parts.scheduler, [partial(remove_one, topic) for topic in topics], "delete a topic")
    finally:
        for topic in left:
            topic.stay()
            if topic.failure is not None:
                opener.parts.scheduler.defer(partial(_open_again, opener, topic))


async def _decide(topics: list[Topic], write: Awaitable[None]) -> None:
    """Put the deletion of topics on record, and then close them.

    :param write: raises ``MetadataFull`` or ``Overtaken`` if nothing was written; the topics go on then. After any
        other error nobody knows whether they are deleted, so they are closed.
    """
    going = topics
    try:
        await write
    except (MetadataFull, Overtaken):
        going = []
        raise
    finally:
        for topic in going:
            topic.fence("the topic was deleted", for_good=True)


def _open_again(opener: TopicOpener, topic: Topic) -> None:
    opening = opener.open(topic_name.parse(topic.name))
    opener.parts.scheduler.spawn(opening, "open a topic that could not be deleted")
