# SPDX-License-Identifier: Apache-2.0
"""How a topic's stored state is deleted, so that a broker that dies in between leaves a deletion that can be finished.

A deletion begins with one write of the topic's record, and before that nothing changes: see ``begin``.

Who deletes which topics, and when: see ``service/removal.py``.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from meridian_broker.metadata.shadow_topics import SOURCE
from meridian_broker.positions import Stamp
from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.topics.journal.topic_record import TopicMetadata, stamp_of
from meridian_broker.topics.lifecycle import orphans
from meridian_broker.wire.pulsar import topic_name
from meridian_broker.wire.pulsar.topic_name import TopicName

if TYPE_CHECKING:
    from meridian_broker.metadata.store import Check
    from meridian_broker.topics.lifecycle.parts import BrokerParts
    from meridian_broker.topics.topic import Topic

log = logging.getLogger(__name__)


async def begin(topic: Topic, stamp: Stamp, also: Sequence[Check] = ()) -> None:
    """Put on record that the topic is deleted. Its clients need not be gone.

    :param also: must hold at the same time.
    :raises MetadataFull, Overtaken: it is not deleted.
    :raises MetadataError: it may be deleted: the record has to be read again.
    """
    if topic.metadata is not None:
        await topic.metadata.begin_deletion(stamp, topic.log.last_own, topic.log.last_origin, also)


async def destroy(parts: BrokerParts, topic: Topic, stamp: Stamp) -> None:
    """Delete all that is stored of a topic that is closed for good; the caller holds its lock.

    The record first says that it is deleted: otherwise a copy with half of it gone would be taken for a whole one. It
    also says with which stamp: the broker that finishes the deletion, even on metadata restored from a copy of this
    very moment, then means the one that all regions know, not a later one that would delete what was made since.
    """
    ends = {**topic.log.last_origin, topic.region: topic.log.last_own}
    await begin(topic, stamp)  # again, if entries came since
    await delete_ledgers(topic)
    await _forget(parts, topic_name.parse(topic.name), stamp, ends, is_shadow=topic.shadow_of is not None)


async def delete_ledgers(topic: Topic) -> None:
    """All that is stored of a topic that is closed for good and no longer on record."""
    await topic.compaction.delete()
    await topic.progress_log.delete()
    await topic.log.delete()


async def _forget(
    parts: BrokerParts, name: TopicName, stamp: Stamp, ends: Mapping[str, Position], *, is_shadow: bool
) -> None:
    if is_shadow:  # its record as one goes last
        await parts.catalog.topics.forget(name)
    else:
        known = {region: end for region, end in ends.items() if end > EARLIEST}
        await parts.catalog.topics.delete(name, stamp, known)
    parts.unfinished.forget(str(name))


async def acquired(
    parts: BrokerParts, name: TopicName, fence: int, with_base: str | None, *, of_shadow: bool
) -> tuple[TopicMetadata, bool]:
    """The topic's record, this broker's now, and whether there is one; the caller holds its lock.

    One whose deletion was begun and not finished, because a broker died or its disk was full, is deleted now. Metadata
    that are an older copy may say so of a topic that was recreated since: then its new ledgers are on the volume, and
    it is on record again (R5).

    :param fence: of this broker's term.
    :param with_base: the deletion of its partitioned topic was begun, with this stamp.
    :param of_shadow: that one was made as a shadow.
    :raises TopicFenced: a later owner has it.
    :raises LedgerError: what is left of it cannot be deleted.
    """
    metadata = TopicMetadata(parts.catalog, name, parts.new_lock(), parts.scheduler)
    exists = await metadata.acquire(fence)
    record = metadata.record
    deleting = record.deleting
    if with_base and stamp_of(record.incarnation) < Stamp.parse(with_base):
        deleting = with_base
    if not exists or deleting is None:
        return metadata, exists
    view = () if record.compacted is None else (record.compacted.ledger_id,)
    ledgers = (one.ledger_id for one in record.ledgers)
    for ledger in (*record.progress_ledgers, *ledgers, *view, *record.obsolete_ledgers):
        await parts.store.delete(ledger)
    newest = stamp_of(orphans.newest(await parts.labels.of(str(name))))
    is_made_again = newest > stamp_of(record.incarnation)
    # An earlier version did not say which deletion it had begun.
    began = Stamp.parse(deleting) if deleting else None
    stamp = began or (newest if is_made_again else parts.clock.next())
    is_shadow = of_shadow or SOURCE in record.properties
    await _forget(parts, name, stamp, {**record.last_origins, parts.region: record.last_own}, is_shadow=is_shadow)
    log.info("topic %s: completed a deletion that was begun earlier", name)
    metadata = TopicMetadata(parts.catalog, name, parts.new_lock(), parts.scheduler)
    if is_made_again:
        log.warning(
            "%s was created again on the volume, but not in the metadata, an older copy: recording it again", name
        )
        await metadata.create(fence, joining=parts.is_multi_region(name), is_found=True)
    return metadata, is_made_again
