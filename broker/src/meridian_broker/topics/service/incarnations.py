# SPDX-License-Identifier: Apache-2.0
"""A topic was deleted while a region was away: what that region does with its copy when it comes back (R8).

A region that asks for a topic names the deletion that it knows of. Of two the later one counts, and a region that hears
of a later one follows it: its copy is of a topic that is gone.

The deletion remembers how far each origin's entries had come to the region that deleted. A copy that holds nothing
beyond is deleted. One that holds more has messages with receipts that no other region ever had, and the deletion cannot
have meant them. It is *quarantined*: it gets another name, under which it lives in this region alone, with its
subscriptions, until somebody has looked at it and deletes it. In both cases the name is free for the topic as the other
regions know it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from meridian_broker.ledgers.store import LedgerError
from meridian_broker.metadata.deletions import Deletion
from meridian_broker.metadata.store import MetadataError
from meridian_broker.positions import ZERO, Stamp
from meridian_broker.positions.position import EARLIEST
from meridian_broker.replication.entries.source import DeletionNotice
from meridian_broker.topics.errors import TopicError, TopicFenced, TopicNotFound
from meridian_broker.topics.journal.topic_record import stamp_of
from meridian_broker.topics.lifecycle import deletion
from meridian_broker.topics.service import removal
from meridian_broker.wire.pulsar import topic_name
from meridian_broker.wire.pulsar.topic_name import TopicName

if TYPE_CHECKING:
    from meridian_broker.topics.service.opener import TopicOpener
    from meridian_broker.topics.topic import Topic

log = logging.getLogger(__name__)

CLOCKS_APART_MS: Final = 3_600_000
"""A deletion further in the future than this is no deletion, but a broken clock."""
RETRY_SECONDS: Final = 5.0
"""Time after which a deletion that failed is tried again."""


async def differing(opener: TopicOpener, name: TopicName, asked: str) -> DeletionNotice | None:
    """What to tell a region that knows of another deletion of the topic than we do; None: both know of the same one,
    or it knows of a later one, which is followed then."""
    found = opener.registry.topics.get(str(name))
    if found is not None and found.failure is None and found.incarnation == asked:
        return None
    record, deletion = await opener.parts.catalog.topics.find(name), await opener.parts.catalog.topics.deletion(name)
    known = record[0].incarnation if record is not None else "" if deletion is None else str(deletion.stamp)
    if known == asked:
        return None
    if record is None and stamp_of(known) < (stamp := stamp_of(asked)) and _is_possible(opener, stamp):
        await opener.parts.catalog.topics.mark_deleted(name, stamp)
        return None
    if deletion is None or str(deletion.stamp) != known:
        return DeletionNotice(known, {}, False)
    return DeletionNotice(known, deletion.ends, deletion.is_of_base)


async def compare_base(opener: TopicOpener, name: TopicName, asked: str) -> int:
    """A region that knows of deletion ``asked`` asks about a partitioned topic: 1 if we know of a later deletion, 0 if
    of the same one, -1 if of an earlier one: what we have then was deleted there."""
    known = await opener.parts.catalog.partitioned.deletion(name)
    ours, theirs = ZERO if known is None else known.stamp, stamp_of(asked)
    return (ours > theirs) - (ours < theirs)


async def follow_base(opener: TopicOpener, name: TopicName, asked: str) -> Deletion | None:
    """A region that knows of deletion ``asked`` wants us to have a partitioned topic: the later deletion that we know
    of, which forbids it; None: we may have it. If ours was deleted there, we forget how many partitions it had; each
    of them goes, or is quarantined, when its replicators are told."""
    known = await opener.parts.catalog.partitioned.deletion(name)
    stamp = stamp_of(asked)
    if known is not None and known.stamp > stamp:
        return known
    if stamp > (ZERO if known is None else known.stamp) and _is_possible(opener, stamp):
        await removal.forget_partitioned(opener, name.base, stamp)
    return None


async def check_base(opener: TopicOpener, name: TopicName, asked: str) -> None:
    """The same, checked again while holding the topic's lock. :raises TopicFenced: it was deleted meanwhile."""
    if await compare_base(opener, name, asked) > 0:
        raise TopicFenced(f"{name} was deleted in the meantime: try again")


async def follow(opener: TopicOpener, topic: Topic, told: DeletionNotice) -> None:
    """Another region reported a later deletion than the one we know of: delete our copy, or quarantine it."""
    stamp = stamp_of(told.incarnation)
    if stamp <= stamp_of(topic.incarnation) or not _is_possible(opener, stamp):
        return
    name = topic_name.parse(topic.name)
    if told.is_of_base:
        try:
            await removal.forget_partitioned(opener, name.base, stamp)
        except MetadataError as error:
            log.warning(
                "%s was deleted in another region but not yet here; that region will report it again: %s",
                name.base,
                error,
            )
            return
    async with opener.registry.lock(topic.name):
        if opener.registry.topics.get(topic.name) is not topic or topic.failure is not None:
            return
        try:
            await removal.close_for_good(opener, topic, f"the topic was deleted in another region ({stamp})")
            beyond = {
                region: end
                for region, end in {**topic.log.last_origin, topic.region: topic.log.last_own}.items()
                if end > told.ends.get(region, EARLIEST)
            }
            if beyond:
                regions = ", ".join(sorted(beyond))
                why = (
                    f"{name} was deleted in other regions ({stamp}), but this copy has messages of {regions} that "
                    "they never got"
                )
                await removal.quarantine_topic(opener, topic, name, why, stamp)
            else:
                await deletion.destroy(opener.parts, topic, stamp)
                log.warning("topic %s was deleted in another region (%s) and now also here", name, stamp)
        except (TopicError, LedgerError, MetadataError) as error:
            log.warning("%s was deleted in another region but not yet here, will retry: %s", name, error)
            if opener.registry.topics.get(topic.name) is not topic:
                _open_later(opener, name)  # an open topic's replicators are told of the deletion again


async def _open_again(opener: TopicOpener, name: TopicName) -> None:
    """Once it is open, its replicators are told of the deletion again."""
    try:
        await opener.topic(name, create=False)
    except TopicNotFound:
        return  # it is deleted after all
    except (TopicError, LedgerError, MetadataError):
        if not opener.registry.closing:
            _open_later(opener, name)


def _open_later(opener: TopicOpener, name: TopicName) -> None:
    scheduler = opener.parts.scheduler
    scheduler.later(RETRY_SECONDS, lambda: scheduler.spawn(_open_again(opener, name), "retry"))


def _is_possible(opener: TopicOpener, stamp: Stamp) -> bool:
    ahead_ms = stamp.time_ms - opener.parts.scheduler.now_ms()
    known = stamp.region == opener.parts.region or opener.parts.catalog.cluster(stamp.region) is not None
    return known and ahead_ms <= CLOCKS_APART_MS
