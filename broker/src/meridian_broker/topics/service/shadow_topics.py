# SPDX-License-Identifier: Apache-2.0
"""Shadow topics of a broker: made, listed, deleted with their source, and kept at its number of partitions (PIP-180).

A shadow's record is written before the topic itself, under the lock that is taken to open or make a topic of that name;
so no topic of that name is ever an ordinary one first. Records that a crash left without a topic are removed before
they are used again.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING

from meridian_broker.ledgers.scheduling import run_all
from meridian_broker.ledgers.store import LedgerError
from meridian_broker.metadata import keys
from meridian_broker.metadata.errors import AlreadyExists, Invalid, NotFound, Overtaken
from meridian_broker.metadata.shadow_topics import SOURCE, ShadowRecord, made_as
from meridian_broker.metadata.store import Check, MetadataError
from meridian_broker.metadata.topic_records import TopicRecord
from meridian_broker.topics import validation
from meridian_broker.topics.errors import (
    NotAllowed,
    NotInThisRegion,
    TopicElsewhere,
    TopicError,
    TopicFenced,
    TopicNotFound,
)
from meridian_broker.topics.lifecycle import opening
from meridian_broker.topics.service import partition_growth, removal
from meridian_broker.wire.pulsar import topic_name
from meridian_broker.wire.pulsar.topic_name import TopicName

if TYPE_CHECKING:
    from meridian_broker.metadata.shadow_topics import ShadowTopics
    from meridian_broker.topics.lifecycle.parts import BrokerParts
    from meridian_broker.topics.service.opener import TopicOpener
    from meridian_broker.topics.service.partition_growth import Owners

log = logging.getLogger(__name__)


# -- making --------------------------------------------------------------------------------------------------------


async def create(
    opener: TopicOpener, shadow: TopicName, partitions: int | None, properties: Mapping[str, str], *, listed: bool
) -> None:
    """Make a shadow of the topic that the property ``SOURCE`` names.

    :param partitions: how many it is to have, 0 for none; None: as many as its source.
    :param listed: whether it is in its source's list from the beginning.
    :raises AlreadyExists: there is a topic of that name.
    :raises Invalid: it cannot be a shadow of that topic.
    :raises TopicNotFound: there is no such source.
    :raises NotAllowed: not in this region.
    """
    record = made_as(shadow, properties, listed=listed, made_ms=opener.parts.scheduler.now_ms())
    source = record.source
    await as_stored(opener)
    _check_names(opener, record)
    async with AsyncExitStack() as locks:  # the source is neither deleted nor given partitions, by this broker
        for one in sorted((str(source), str(shadow))):  # in one order: each may be asked to be the other's shadow
            await locks.enter_async_context(opener.registry.lock(one))
        count = await _partitions_of_source(opener, source)
        if partitions is not None and partitions != count:
            raise Invalid(
                f"{shadow} would have {_number(partitions)}, and its source {source} has {_number(count)}: they must "
                "match"
            )
        await _make(opener, record, count, {**properties, SOURCE: str(source)})
    names = [shadow] if not count else [shadow.with_partition(index) for index in range(count)]
    jobs = [partial(_open, opener, name, create=bool(count)) for name in names]
    await run_all(opener.parts.scheduler, jobs, "open a shadow")
    log.info("%s is now a shadow of %s", shadow, source)


async def _make(opener: TopicOpener, record: ShadowRecord, count: int, having: dict[str, str]) -> None:
    """Write both records. The caller holds the locks of both names."""
    shadow, shadows = record.shadow, opener.parts.catalog.shadows
    if await removal.exists(opener, shadow):
        known = shadows.find(shadow)
        if known is not None and known.source == record.source:
            raise AlreadyExists(f"{shadow} is a shadow of {record.source} already")
        raise AlreadyExists(f"topic {shadow} exists already: choose another name for the shadow, or delete that topic")
    await opening.check_room(opener.parts, shadow, max(count, 1))
    left = await shadows.fetch(shadow)
    if left is not None and opening.may_be_made(opener.parts, left):
        raise AlreadyExists(f"{shadow} is being made a shadow of {left.source} by another broker")
    is_on_record = await shadows.create(record, left)
    try:
        # Another broker that deletes the source finds this record, or has put the deletion on record before. The
        # source may be of another kind since, and it may grow: a growth that comes later finds this record, too.
        is_as_read = await _check_source(opener, record.source, count)
        await _create_topic(opener, shadow, count, having, [is_on_record, *is_as_read])
    except Overtaken as error:
        await _give_up(opener, record)
        raise TopicFenced(
            f"{record.source} was changed while {shadow} was made a shadow of it, or that took so long that another "
            "broker gave it up: repeat the request"
        ) from error
    except Exception:
        await _give_up(opener, record)
        raise


async def _give_up(opener: TopicOpener, record: ShadowRecord) -> None:
    """Remove the record of a shadow that was not made. If another broker has made an ordinary topic of that name
    meanwhile, that one must not be taken for a shadow."""
    await opener.parts.catalog.shadows.delete_left(record)
    if await removal.is_ordinary(opener, record.shadow):
        await opener.parts.catalog.shadows.delete(record)


async def _check_source(opener: TopicOpener, source: TopicName, partitions: int) -> list[Check]:
    """What has to hold for the number of partitions to be right.

    :raises TopicNotFound, TopicFenced, Invalid: the source was deleted or changed since it was looked at.
    """
    if await _partitions_of_source(opener, source) != partitions:
        raise TopicFenced(f"{source} has just got another number of partitions: repeat the request")
    if (of := await opener.parts.catalog.shadows.fetch(source)) is not None:
        raise Invalid(f"{source} is a shadow of {of.source}: name that one")
    if not partitions:
        return []
    number, version = await opener.parts.catalog.partitioned.number(source)
    if number != partitions:
        raise TopicFenced(f"{source} has just got more partitions: repeat the request")
    return [Check(keys.partitioned_topic(source), version)]


async def as_stored(opener: TopicOpener) -> None:
    """Learn of shadows that other brokers of the region made."""
    if not opener.parts.ownership.is_sole:
        await opener.parts.catalog.shadows.refresh()


async def _open(opener: TopicOpener, name: TopicName, *, create: bool) -> None:
    """If another broker serves it, that one opens it."""
    with contextlib.suppress(TopicElsewhere):
        await opener.topic(name, create=create)


async def _create_topic(
    opener: TopicOpener, shadow: TopicName, count: int, properties: dict[str, str], also: Sequence[Check]
) -> None:
    """:raises Overtaken: something in ``also`` does not hold."""
    catalog = opener.parts.catalog
    if count:
        await catalog.partitioned.create(shadow, count, properties, also=also)
        await catalog.topics.create_partitions(shadow, TopicRecord())
    else:
        await catalog.topics.create(shadow, TopicRecord(properties=properties), also=also)


def _check_names(opener: TopicOpener, record: ShadowRecord) -> None:
    """:raises Invalid, TopicError: one of the topics cannot be what the record says."""
    shadow, source, shadows = record.shadow, record.source, opener.parts.catalog.shadows
    opener.registry.check_exists(shadow)
    validation.new_topic(shadow)
    for name in (shadow, source):
        if not name.is_persistent:
            raise Invalid(f"{name} stores no messages: shadows and their sources are persistent topics")
        if name.partition >= 0:
            raise Invalid(f"{name} is a partition: name the whole topic, and its shadow gets as many")
    if shadow == source:
        raise Invalid(f"{shadow} cannot be its own shadow")
    if (of := shadows.find(source)) is not None:
        raise Invalid(f"{source} is a shadow of {of.source}: make {shadow} a shadow of that one")
    if shadows.of(shadow):
        raise Invalid(f"{shadow} has shadows itself, so it cannot be one: choose another name")
    try:
        opener.registry.check_lives_here(source)
    except NotInThisRegion as error:
        raise NotAllowed(
            f"a shadow must be in the region of its source ({error}); to have the messages in both regions, "
            "replicate the source"
        ) from error


async def _partitions_of_source(opener: TopicOpener, source: TopicName) -> int:
    """0: it is not partitioned. :raises TopicNotFound: it does not exist."""
    catalog = opener.parts.catalog
    found = await catalog.partitioned.find(source)
    if found is not None:
        return found.partitions
    record = await catalog.topics.find(source)
    if record is None or record[0].deleting is not None:
        raise TopicNotFound(f"topic {source} does not exist: create a source before its shadow")
    return 0


def _number(partitions: int) -> str:
    return f"{partitions} partitions" if partitions else "no partitions"


# -- the list of a source ------------------------------------------------------------------------------------------


def listed(shadows: ShadowTopics, source: TopicName, *, unlisted: bool = False) -> list[str]:
    """The shadows in a source's list.

    :param unlisted: and those that are not in it.
    """
    return [str(one.shadow) for one in shadows.of(source) if one.listed or unlisted]


async def set_list(opener: TopicOpener, source: TopicName, names: Sequence[str]) -> None:
    """Make exactly these the list of a source's shadows. One that is not in the list still reads its source.

    :raises Invalid: one of them is not a shadow of this source; nothing was changed.
    """
    shadows = opener.parts.catalog.shadows
    wanted = {topic_name.parse(name) for name in names}
    for name in sorted(wanted, key=str):
        record = shadows.find(name)
        if record is None or record.source != source or record.shadow != name:
            raise Invalid(f"{name} is not a shadow of {source}: make it with the property {SOURCE}={source}")
    for one in shadows.of(source):
        if one.listed != (one.shadow in wanted):
            try:
                await shadows.change(one.shadow, listed=one.shadow in wanted)
            except NotFound:  # it was deleted meanwhile
                if one.shadow in wanted:
                    raise


async def change(
    opener: TopicOpener, shadow: TopicName, *, holds: bool | None = None, reset_behind: int | None = None
) -> None:
    """Change a shadow's record. None: unchanged.

    :param holds: whether its subscriptions keep ledgers of its source.
    :param reset_behind: see ``ShadowRecord``.
    :raises NotFound: it is not a shadow.
    """
    await opener.parts.catalog.shadows.change(shadow, holds=holds, reset_behind=reset_behind)


# -- other regions -------------------------------------------------------------------------------------------------


def check_for_regions(parts: BrokerParts, name: TopicName) -> None:
    """For other regions, which may have a topic of a shadow's name. Nothing about that topic concerns the shadow.

    :raises NotAllowed: it is a shadow.
    """
    record = parts.catalog.shadows.find(name)
    if record is not None:
        raise NotAllowed(
            f"{parts.region} uses the name {record.shadow} for a shadow of {record.source}, which no other region "
            f"shares: to have the topic in {parts.region}, delete the shadow there"
        )


# -- deleting ------------------------------------------------------------------------------------------------------


async def delete_shadows(opener: TopicOpener, source: TopicName, *, force: bool) -> None:
    """Delete all shadows of a topic, before the topic itself.

    :raises TopicInUse: ``force`` is not given, and clients are connected to the topic or to a shadow. All stay then,
        unless they connected just now.
    """
    await as_stored(opener)
    if not force:
        for name in [source, *(one.shadow for one in opener.parts.catalog.shadows.of(source))]:
            await removal.check_unused(opener, name)
    for record in opener.parts.catalog.shadows.of(source):
        if await removal.is_ordinary(opener, record.shadow):
            await opener.parts.catalog.shadows.delete(record)
            continue
        try:
            await removal.delete(opener, record.shadow, force=force)
        except (NotFound, TopicNotFound):
            await opener.parts.catalog.shadows.delete_left(record)


# -- looking after them --------------------------------------------------------------------------------------------


async def look_after(opener: TopicOpener) -> None:
    """At the start: remove records that a crash left without a topic, and see which shadows have too few partitions."""
    for record in opener.parts.catalog.shadows.all():
        try:
            async with opener.registry.lock(str(record.shadow)):
                if not await removal.exists(opener, record.shadow):
                    if not opening.may_be_made(opener.parts, record):
                        await opener.parts.catalog.shadows.delete_left(record)
                    continue
            opener.parts.catalog.shadows.behind.add(record.shadow)
        except MetadataError as error:
            log.warning("cannot tell whether shadow %s exists: %s", record.shadow, error)
    await catch_up(opener)


async def follow_partitions(opener: TopicOpener, source: TopicName, owners: Owners | None = None) -> None:
    """The source has grown. A shadow that cannot follow now is tried again by ``catch_up``.

    :param owners: as in ``partition_growth.grow``. Without them nothing is tried again.
    :raises TopicFenced: one could not follow, in a region of several brokers.
    """
    await as_stored(opener)  # another broker may have made one just now
    shadows = opener.parts.catalog.shadows
    shadows.behind |= {record.shadow for record in shadows.of(source)}
    await _catch_up(opener, owners)
    if owners is not None and (behind := [one.shadow for one in shadows.of(source) if one.shadow in shadows.behind]):
        raise TopicFenced(f"{source} got its new partitions, but its shadow {behind[0]} did not: repeat the request")


async def catch_up(opener: TopicOpener) -> None:
    """Let shadows that have fewer partitions than their sources follow. A broker that is one of several can only do
    that while it serves a request."""
    if opener.parts.ownership.is_sole:
        await _catch_up(opener, None)


async def _catch_up(opener: TopicOpener, owners: Owners | None) -> None:
    shadows = opener.parts.catalog.shadows
    for shadow in sorted(shadows.behind, key=str):
        record = shadows.find(shadow)
        try:
            if record is not None:
                await _follow_partitions(opener, record, owners)
            shadows.behind.discard(shadow)
        except (MetadataError, LedgerError, TopicError, NotFound) as error:
            log.warning("shadow %s has fewer partitions than its source, will retry: %s", shadow, error)


async def _follow_partitions(opener: TopicOpener, record: ShadowRecord, owners: Owners | None) -> None:
    partitioned = opener.parts.catalog.partitioned
    source, shadow = await partitioned.find(record.source), await partitioned.find(record.shadow)
    if source is not None and shadow is not None and shadow.partitions < source.partitions:
        await partition_growth.grow(opener, record.shadow, source.partitions, owners=owners)
