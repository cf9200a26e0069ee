# SPDX-License-Identifier: Apache-2.0
"""How a topic is opened: acquired, created if that is allowed, and recovered from the metadata and the volume."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from meridian_broker.ledgers.log import TopicLog
from meridian_broker.ledgers.view import LogView
from meridian_broker.metadata.errors import AlreadyExists
from meridian_broker.metadata.shadow_topics import SOURCE, ShadowRecord, made_as
from meridian_broker.positions import Stamp
from meridian_broker.topics import validation
from meridian_broker.topics.context import TopicSetup
from meridian_broker.topics.errors import LimitReached, NotAllowed, OtherKind, TopicFenced, TopicNotFound
from meridian_broker.topics.journal.progress_log import ProgressLog
from meridian_broker.topics.journal.topic_record import TopicMetadata
from meridian_broker.topics.lifecycle import deletion, orphans, replay, termination
from meridian_broker.topics.lifecycle.shadow_source import ShadowSource
from meridian_broker.topics.lifecycle.shadows_elsewhere import ShadowsElsewhere
from meridian_broker.topics.lifecycle.unconfirmed import Unconfirmed
from meridian_broker.topics.topic import Followed, Topic
from meridian_broker.wire.pulsar import topic_name
from meridian_broker.wire.pulsar.topic_name import TopicName

if TYPE_CHECKING:
    from meridian_broker.metadata.shadow_topics import ShadowRecord
    from meridian_broker.topics.lifecycle.parts import BrokerParts, OtherRegions

log = logging.getLogger(__name__)

MAKING_MS: Final = 60_000
"""How long it may take to make a shadow whose record is there, by clocks of brokers that may differ a little."""


async def open_topic(
    parts: BrokerParts,
    regions: OtherRegions,
    name: TopicName,
    create: bool,
    incarnation: str | None,
    growing_to: int,
    created: Stamp | None,
    source: Topic | Followed | None = None,
) -> Topic:
    """As ``TopicOpener.topic``; the caller holds the topic's lock.

    :param source: of a shadow: open, or followed; None: it does not exist.
    :raises TopicError: it does not exist and may not be made.
    :raises LedgerError: what is stored cannot be recovered.
    :raises ValueError: what is stored cannot be read: a newer broker wrote it, or it is damaged.
    """
    fence = await parts.ownership.acquire(name)
    base = await _base_of(parts, name)
    metadata, exists = await deletion.acquired(parts, name, fence, base.deleting, of_shadow=base.is_shadow)
    shadow = await _recorded(parts, name, metadata if exists else None, base)
    if shadow is None:
        source = None
    if not exists:
        if not growing_to:
            await _may_create(parts, name, create, foreign=incarnation is not None)
        if incarnation is not None and incarnation != (deleted := await parts.catalog.topics.incarnation(name)):
            raise TopicFenced(
                f"{name} was deleted in {parts.region} ({deleted or 'never'}), but the other region knows of "
                f"another deletion ({incarnation or 'none'}): it is not recreated from there (R8)"
            )
        try:
            await metadata.create(fence, joining=parts.is_multi_region(name), created=created, growing_to=growing_to)
        except AlreadyExists:  # the admin API made it meanwhile: it does not wait for openings
            metadata, exists = await deletion.acquired(parts, name, fence, base.deleting, of_shadow=base.is_shadow)
            if not exists:
                raise
            if await _recorded(parts, name, metadata, base) != shadow:
                raise TopicFenced(f"{name} has just been made by another broker: look it up again") from None
    if base.partitions is None:
        base = await _base_of(parts, name)  # it may have been made meanwhile
    adopted = await orphans.adopt(parts, name, metadata)
    topic = await _open(parts, regions, name, metadata, adopted, base, growing_to, source, shadow)
    topic.subscription_registry.lost_records.report()
    if topic.shadow_of is not None:
        _begin_shadow(topic, source)
        return topic
    await topic.deduplication.open(topic.rules.deduplication)
    await topic.pulsar.open()
    if topic.backfill is not None:
        topic.log.restore_joined(metadata.record.joined, is_joined=topic.backfill.is_complete)
    topic.begin()
    return topic


def may_be_made(parts: BrokerParts, shadow: ShadowRecord) -> bool:
    """Whether another broker may be about to make the topic of a shadow that is on record."""
    return not parts.ownership.is_sole and _is_new(parts, shadow)


def _is_new(parts: BrokerParts, shadow: ShadowRecord) -> bool:
    return abs(parts.scheduler.now_ms() - shadow.made_ms) < MAKING_MS


async def _recorded(
    parts: BrokerParts, name: TopicName, metadata: TopicMetadata | None, base: _Base
) -> ShadowRecord | None:
    """The record of this topic as a shadow; None: it is none. A record that was not right is now: what the topic was
    made as counts, because that was one write.

    :param metadata: None: there is no such topic, or it is a partition that was never used.
    :raises TopicFenced: it is a shadow of another topic than the record said, or is being made one.
    """
    shadows, shadow = parts.catalog.shadows, parts.catalog.shadows.find(name)
    made = base.properties if name.partition >= 0 else None if metadata is None else metadata.record.properties
    if made is None:
        if shadow is not None and (base.deleting is not None or await _is_other_kind(parts, name)):
            return shadow  # there is no such topic any more, or under this name, but the record is right
        is_locked = parts.ownership.is_sole and name.partition < 0  # so nobody is making it just now
        if shadow is not None and not is_locked and _is_new(parts, shadow):
            raise TopicFenced(f"{name} is being made a shadow of {shadow.source}: look it up again")
    elif (named := made.get(SOURCE)) is not None:
        if shadow is None and name.partition < 0:
            await shadows.create(made_as(name, made))
        elif shadow is not None and str(shadow.source) != named:
            await shadows.change(shadow.shadow, source=topic_name.parse(named))
        else:
            return shadow
        raise TopicFenced(f"{name} is a shadow of {named}, which the record of shadows did not say: look it up again")
    if shadow is not None:
        log.warning("%s is no shadow of %s: a creation that failed left a record", name, shadow.source)
        await shadows.delete(shadow)
    return None


async def _is_other_kind(parts: BrokerParts, name: TopicName) -> bool:
    """Whether the topic that a partition is named after has none, or a topic by this name has partitions."""
    if name.partition >= 0:
        return await parts.catalog.topics.find(name.base) is not None
    return await parts.catalog.partitioned.on_record(name) is not None


def _begin_shadow(topic: Topic, source: Topic | Followed | None) -> None:
    """It is replayed. :raises TopicFenced: its source was fenced meanwhile."""
    topic.begin()
    if source is not None:
        topic.tie_to(ShadowSource(topic, source))
        if source.failure is not None:
            topic.fence(f"its source is not served now ({source.failure})", for_good=True)
            topic.check_open()
        if source.terminated is not None:
            termination.ended(topic, source.terminated, source.ends)


class _Base(NamedTuple):
    """The partitioned topic that a partition belongs to."""

    incarnation: str = ""
    partitions: int | None = None
    """None: there is no such topic."""
    properties: Mapping[str, str] | None = None
    """None: as above."""
    created: Stamp | None = None
    deleting: str | None = None
    """Stamp of its deletion, which has begun."""
    is_shadow: bool = False
    """It was made as a shadow."""


async def _base_of(parts: BrokerParts, name: TopicName) -> _Base:
    """The deletion is read first: if the topic is deleted in between, its next incarnation's number is not taken for
    this one's.
    """
    if name.partition < 0:
        return _Base()
    partitioned = parts.catalog.partitioned
    deletion = await partitioned.deletion(name)
    incarnation = "" if deletion is None else str(deletion.stamp)
    record = await partitioned.on_record(name.base)
    is_shadow = record is not None and SOURCE in record.properties
    if record is not None and is_shadow and record.deleting is None and parts.catalog.shadows.find(name) is None:
        raise NotAllowed(f"{name.base} is a shadow in another region: read {record.properties[SOURCE]} here")
    if record is None or record.deleting is not None:
        return _Base(incarnation, deleting=None if record is None else record.deleting, is_shadow=is_shadow)
    return _Base(incarnation, record.partitions, record.properties, record.created, is_shadow=is_shadow)


async def _open(
    parts: BrokerParts,
    regions: OtherRegions,
    name: TopicName,
    metadata: TopicMetadata,
    adopted: orphans.Adopted,
    base: _Base,
    growing_to: int,
    source: Topic | Followed | None,
    shadow: ShadowRecord | None,
) -> Topic:
    """The topic with what is stored of it."""
    record = metadata.record
    topic_log: TopicLog
    if shadow is None:
        topic_log = TopicLog(
            *(parts.region, parts.store, metadata, metadata.fence),
            *(parts.log_limits, parts.scheduler, parts.cache),
        )
        await topic_log.open(
            *(metadata.spans(), record.last_own, record.last_origins, record.holes),
            found=adopted.messages,
            trimmed=adopted.trimmed,
            mends=metadata.mends(),
        )
    else:
        topic_log = view = LogView(parts.region, parts.store, parts.scheduler, parts.cache)
        if source is not None:
            view.attach(source.log)

    def progress_log(topic: Topic) -> ProgressLog:
        return ProgressLog(
            *(parts.store, metadata, metadata.fence, parts.scheduler, lambda: replay.snapshot(topic)),
            rests=parts.labels.are_on_record,
        )

    setup = TopicSetup(
        rules=parts.rules(name),
        metadata=metadata,
        regions=lambda: parts.regions_of(str(name)),
        leasing=regions.leasing,
        partitions=None if base.partitions is None else growing_to or base.partitions,
        created=record.created if base.partitions is None else base.created,
        base_incarnation="" if base.partitions is None else base.incarnation,
        keeps_quotas=parts.backlog_quotas,
        shadow_of=None if shadow is None else str(shadow.source_of(name)),
        shadows=dict if shadow is not None else lambda: parts.catalog.shadows.holding(name),
        shadows_elsewhere=None if parts.ownership.is_sole else ShadowsElsewhere(parts, name),
    )
    topic = Topic(
        str(name),
        name.partition,
        parts.region,
        record.incarnation,
        topic_log,
        progress_log,
        parts.scheduler,
        parts.clock,
        parts.topic_limits,
        regions.exchange,
        setup,
        publish_throttle=parts.publishing,
        peers=None if shadow is not None else regions.replication,
        add_schema=lambda schema: parts.schemas.add(name, schema, topic.check_open),
        source=source,
    )
    try:
        await _replay(parts, regions, topic, metadata, adopted)
    except BaseException:
        if shadow is not None:  # its source must not notify it any more
            topic.fence("it could not be opened", for_good=True)
            await topic.log.close()
        raise
    return topic


async def _replay(
    parts: BrokerParts, regions: OtherRegions, topic: Topic, metadata: TopicMetadata, adopted: orphans.Adopted
) -> None:
    """Rebuild the topic from what is on record and in its progress log."""
    record = metadata.record
    topic.admission.restore(record.topic_epoch)
    await topic.compaction.open(metadata, parts.compaction_resources, adopted.views)
    if record.terminated is not None:
        await termination.restore(topic, metadata, record.terminated)
    await topic.progress_log.open(list(record.progress_ledgers), adopted.progress, record.progress_snapshot)
    if regions.before is None:
        await replay.recover(topic)
    else:
        lacking = Unconfirmed(parts.regions_of(topic.name), regions.before)
        await replay.recover(topic, lacking.acked)
        await lacking.tell(topic)


async def _may_create(parts: BrokerParts, name: TopicName, create: bool, *, foreign: bool = False) -> None:
    """``foreign``: another region asks, where the topic was made on purpose; no policy keeps its entries out.

    :raises TopicNotFound: it may not be created automatically.
    :raises InvalidName: no topic may be called that.
    :raises LimitReached: the namespace has as many topics as it may have.
    """
    if name.partition >= 0:
        record = await parts.catalog.partitioned.find(name.base)
        if record is not None:
            if name.partition >= record.partitions:
                raise TopicNotFound(f"{name.base} has {record.partitions} partitions, not {name.partition + 1}")
            return
        if foreign and await parts.catalog.topics.find(name.base) is not None:
            raise OtherKind(f"{parts.region} has {name.base} as a topic without partitions")
        if create:
            raise NotAllowed(
                f"{name.base} is not a partitioned topic, so it has no {name.local_name}: create {name.base} first"
            )
    elif (record := await parts.catalog.partitioned.find(name)) is not None:
        if foreign:
            raise OtherKind(f"{parts.region} has {name} as a topic with {record.partitions} partitions")
        raise NotAllowed(f"{name} is partitioned: name one of its {record.partitions} partitions")
    if foreign and create:
        return
    if not create or not parts.rules(name).auto_topic_creation.allowed:
        raise TopicNotFound(f"topic {name} does not exist")
    validation.new_topic(name)
    await check_room(parts, name, 1)


async def check_room(parts: BrokerParts, name: TopicName, more: int) -> None:
    """:raises LimitReached: the namespace would have more topics than it may have; partitions count each."""
    if most := parts.rules(name).max_topics:
        count = len(await parts.catalog.topics.listing(name.namespace_name))
        if count + more > most:
            raise LimitReached(f"{name.namespace_name} has {count} topics; its limit is {most}: delete some")
