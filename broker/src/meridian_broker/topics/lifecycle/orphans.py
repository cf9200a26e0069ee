# SPDX-License-Identifier: Apache-2.0
"""Ledgers on the volume that the metadata does not name, because the metadata alone was restored from an older copy
(R5).

Such metadata lacks the ledgers created since, and perhaps whole topics; but each ledger's label names its topic
(``ledgers/labels.py``). So opening a topic *adopts* what is found:

- Ledgers with messages that are newer than any that the record ever named. An older one was recorded and trimmed: its
  owner stopped between the record and the deletion, which is done now (``TopicLog.open``).
- Newer progress ledgers (``ProgressLog.open``): the acknowledgements in them count.
- Newer compacted views (``Compaction.open``), as far as they are complete.
- Ledgers of a later incarnation: the topic was deleted and created again meanwhile, and the record describes the
  earlier one. The same holds if the record says that the topic was being deleted when the copy was made
  (``deletion.acquired``). If messages that the record names are still on the volume, they were quarantined (R8), and
  are quarantined again. Ledgers of an earlier incarnation than the record's, or than the last deletion on record,
  belong to a topic that no longer exists.
- Ledgers with messages that were offloaded since, of which only copies in the object store are left. A topic's last
  ledger is never offloaded, so the copies are looked for only if a newer one was found on the volume. Until the object
  store can be asked, such a topic stays closed: once it has recorded the newer ledger, an earlier one that it lacks
  counts as trimmed.
- Ledgers of a quarantined copy belong to that copy, whose record names them, although their labels name the topic.

A ledger that was created but not recorded has no entries, because none is stored before it is recorded: it is
deleted. Any earlier owner that could still write to adopted ledgers is fenced, as always (R10).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from meridian_broker.ledgers.chapters import Span
from meridian_broker.ledgers.labels import Kind
from meridian_broker.metadata.errors import AlreadyExists, NotFound
from meridian_broker.metadata.topic_records import TopicRecord
from meridian_broker.positions import Stamp
from meridian_broker.positions.position import Position
from meridian_broker.topics.journal.topic_record import stamp_of
from meridian_broker.topics.lifecycle import quarantine
from meridian_broker.topics.lifecycle.labels import Labelled
from meridian_broker.wire.pulsar import topic_name
from meridian_broker.wire.pulsar.topic_name import TopicName

if TYPE_CHECKING:
    from meridian_broker.topics.journal.topic_record import TopicMetadata
    from meridian_broker.topics.lifecycle.parts import BrokerParts

log = logging.getLogger(__name__)


class Adopted(NamedTuple):
    """The ledgers that a topic takes over, oldest first."""

    messages: list[Span]
    progress: list[int]
    views: list[tuple[int, Position]]
    """Ledgers of compacted views, with their horizons."""
    trimmed: list[int]
    """Ledgers with messages that are no longer recorded: to be deleted."""


def newest(ledgers: Iterable[Labelled]) -> str:
    """The latest incarnation of a topic among its ledgers."""
    return max((one.label.belonging.incarnation for one in ledgers), key=stamp_of, default="")


async def make_topics(parts: BrokerParts) -> None:
    """Record topics that exist on the volume only, before clients ask which topics there are.

    :raises MetadataError: the metadata store does not answer.
    """
    partitions: dict[TopicName, int] = {}
    on_record: dict[str, set[TopicName]] = {}
    for topic in await parts.labels.topics():
        name = topic_name.parse(topic)
        namespace = name.namespace_name
        if namespace not in on_record:
            on_record[namespace] = set(await parts.catalog.topics.names(namespace))
        if name in on_record[namespace]:
            continue
        ledgers = await parts.labels.of(topic)
        quarantined = await _ledgers_aside(parts, name)
        if all(one.ledger_id in quarantined for one in ledgers):
            continue
        incarnation = newest(ledgers)
        known = await parts.catalog.topics.incarnation(name)
        if stamp_of(incarnation) < stamp_of(known):
            continue  # the topic was deleted
        try:
            if incarnation != known:
                await parts.catalog.topics.mark_deleted(name, stamp_of(incarnation))
            record = TopicRecord(joining=parts.is_multi_region(name))
            await parts.catalog.topics.create(name, record, is_found=True)
        except (AlreadyExists, NotFound) as error:
            log.warning(
                "ledgers of %s are on the volume, but the topic cannot be recorded, so they are left there: %s",
                topic,
                error,
            )
            continue
        log.warning("%s is on the volume but not in the metadata, an older copy: recorded it again", topic)
        if name.partition >= 0:
            partitions[name.base] = max(name.partition + 1, partitions.get(name.base, 0))
    for base, count in partitions.items():
        await make_partitioned(parts, base, count)


async def _ledgers_aside(parts: BrokerParts, name: TopicName) -> set[int]:
    """Ledgers with the topic's label that belong to quarantined copies."""
    found: set[int] = set()
    for record in await parts.catalog.topics.aside(name):
        found |= {*record.progress_ledgers, *record.obsolete_ledgers, *(one.ledger_id for one in record.ledgers)}
        if record.compacted is not None:
            found.add(record.compacted.ledger_id)
    return found


async def make_partitioned(parts: BrokerParts, base: TopicName, count: int) -> None:
    """Have at least ``count`` partitions, as found on the volume."""
    record = await parts.catalog.partitioned.find(base)
    try:
        if record is None:
            await parts.catalog.partitioned.create(base, count)
        elif record.partitions < count:
            await parts.catalog.partitioned.grow(base, count)
    except AlreadyExists as error:
        log.warning(
            "partitions of %s are on the volume, but the topic cannot be recorded, so they are left there: %s",
            base,
            error,
        )


async def adopt(parts: BrokerParts, name: TopicName, metadata: TopicMetadata) -> Adopted:
    """The unrecorded ledgers on the volume of a topic that was just acquired.

    :raises MetadataError: the change of a record of an earlier incarnation cannot be written.
    :raises LedgerUnreadable: the object store does not say what was offloaded.
    """
    ledgers = await parts.labels.of(str(name))
    recorded_upto = metadata.newest_ledger
    incarnation = newest(ledgers)
    if stamp_of(incarnation) > stamp_of(metadata.record.incarnation):
        if {one.ledger_id for one in ledgers} & {one.ledger_id for one in metadata.record.ledgers}:
            await _quarantine(parts, name, metadata, stamp_of(incarnation))
        else:
            await parts.catalog.topics.mark_deleted(name, stamp_of(incarnation))
            await metadata.begin_again(incarnation, joining=parts.is_multi_region(name))
    unnamed = await _unnamed(parts, name, metadata)
    messages = _messages(unnamed, metadata)
    if messages:
        left = [one for one in await parts.labels.left(str(name), recorded_upto) if _is_of(one, metadata)]
        messages = sorted([*messages, *_messages(left, metadata)], key=lambda span: span.ledger_id)
        if left:
            log.warning(
                "%s: %d offloaded ledgers are missing in the metadata, an older copy: adding them again",
                name,
                len(left),
            )
    if entries := sum(one.entries for one in unnamed if one.ledger_id > metadata.newest_ledger):
        log.warning(
            "%s: %d entries are in ledgers missing in the metadata, an older copy: adding them again", name, entries
        )
    progress = [one.ledger_id for one in unnamed if one.label.kind is Kind.PROGRESS]
    views = [(one.ledger_id, one.label.horizon) for one in unnamed if one.label.kind is Kind.COMPACTED]
    trimmed = [
        one.ledger_id for one in unnamed if one.label.kind is Kind.MESSAGES and one.ledger_id <= metadata.newest_ledger
    ]
    return Adopted(messages, progress, views, trimmed)


async def _unnamed(parts: BrokerParts, name: TopicName, metadata: TopicMetadata) -> list[Labelled]:
    """Ledgers of the record's own incarnation that no record names."""
    record = metadata.record
    named = {*record.progress_ledgers, *record.obsolete_ledgers, *(one.ledger_id for one in record.ledgers)}
    found = [one for one in await parts.labels.of(str(name)) if _is_of(one, metadata) and one.ledger_id not in named]
    others = await _ledgers_aside(parts, name) if found else set()
    return [one for one in found if one.ledger_id not in others]


def _is_of(one: Labelled, metadata: TopicMetadata) -> bool:
    return one.label.belonging.incarnation == metadata.record.incarnation


def _messages(unnamed: Iterable[Labelled], metadata: TopicMetadata) -> list[Span]:
    return [
        Span(number, label.own_before, dict(label.origins_before), is_joined=label.is_joined)
        for number, label, _ in unnamed
        if label.kind is Kind.MESSAGES and number > metadata.newest_ledger
    ]


async def _quarantine(parts: BrokerParts, name: TopicName, metadata: TopicMetadata, stamp: Stamp) -> None:
    """Quarantine again what the record names; afterwards the record is that of the topic created after the deletion."""
    record, unnamed = metadata.record, await _unnamed(parts, name, metadata)
    spans = [*metadata.spans(), *_messages(unnamed, metadata)]
    await metadata.save_spans(spans, record.last_own, record.last_origins, record.holes)
    progress = [one.ledger_id for one in unnamed if one.label.kind is Kind.PROGRESS]
    await metadata.save_progress_ledgers([*record.progress_ledgers, *progress], record.progress_snapshot)
    why = f"{name} was deleted in other regions ({stamp}); its copy was quarantined before the metadata was restored"
    parts.unfinished.later(await quarantine.move(parts, name, why, stamp))
    await metadata.create(metadata.fence, joining=parts.is_multi_region(name), is_found=True)
