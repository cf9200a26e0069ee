# SPDX-License-Identifier: Apache-2.0
"""What a broker does to its topics from time to time: space is given back, old messages go, quotas are looked after,
and topics of which much is not compacted yet are compacted.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Container
from typing import TYPE_CHECKING, Final

from meridian_broker.ledgers.periodic import SomeFailed, each
from meridian_broker.ledgers.store import LedgerError
from meridian_broker.metadata.store import MetadataError
from meridian_broker.positions import Cause
from meridian_broker.topics.compaction.compaction import Status
from meridian_broker.topics.cursors import drops, floors
from meridian_broker.topics.errors import TopicError, TopicFenced
from meridian_broker.topics.retention import backlog_quotas

if TYPE_CHECKING:
    from meridian_broker.topics.cursors.cursor import Cursor
    from meridian_broker.topics.service.service import TopicService
    from meridian_broker.topics.topic import Topic

log = logging.getLogger(__name__)

READER_BACK_MS: Final = 60_000
"""A reader that a seek sent away is waited for so long; clients come back within seconds."""


async def trim_all(service: TopicService) -> None:
    """Give back the space of ledgers nobody needs.

    :raises SomeFailed: of some topics that cannot be done now. The others had their turn.
    """
    service.non_persistent.tidy()
    unruled: Container[str] = ()
    try:
        service.follow_policies()  # a retention that was set a moment ago is to keep what it says
    except SomeFailed as error:
        unruled = error.failures
    await _each_topic(service, trim, without=unruled)


async def expire_all(service: TopicService) -> None:
    """Drop what is older than its topic's message TTL, in every topic that has one. :raises SomeFailed: as above."""
    await _each_topic(service, expire)


async def expire(topic: Topic) -> None:
    """Drop what is older than the topic's message TTL.

    :raises LedgerError, TopicError: not now; it is right to try again.
    """
    if topic.rules.message_ttl_seconds > 0 and topic.failure is None:
        before_ms = topic.scheduler.now_ms() - topic.rules.message_ttl_seconds * 1000
        await drops.drop_old(topic, _cursors(topic), before_ms)


async def expire_soon(topic: Topic) -> None:
    """As ``expire``, where the regular turn does what cannot be done now."""
    try:
        await expire(topic)
    except (LedgerError, TopicError) as error:
        log.warning("messages of %s did not expire, next try in a while: %s", topic.name, error)


async def check_quotas(service: TopicService) -> None:
    """Enforce the backlog quota of every topic that has one. :raises SomeFailed: as above."""
    await _each_topic(service, backlog_quotas.enforce)


async def _each_topic(
    service: TopicService, work: Callable[[Topic], Awaitable[object]], without: Container[str] = ()
) -> None:
    """Do it for every open topic, whatever becomes of the others. :raises SomeFailed: it failed for some."""

    async def turn(topic: Topic) -> None:
        try:
            if topic.failure is None and topic.name not in without:
                await work(topic)
        except (LedgerError, TopicError, MetadataError):
            if topic.failure is None:
                raise  # else it was closed or fenced meanwhile: its next turn comes when it is open again

    await each(list(service.topics.values()), lambda topic: topic.name, turn)


async def compact_due(service: TopicService) -> None:
    """Begin to compact the topics of which more is not compacted than their threshold allows.

    :raises SomeFailed: as above.
    """
    await _each_topic(service, _compact_if_due)


async def _compact_if_due(topic: Topic) -> None:
    threshold, compaction = topic.rules.compaction_threshold_bytes, topic.compaction
    if compaction.status is not Status.RUNNING and 0 < threshold < compaction.bytes_to_do():
        compaction.start()


async def trim(topic: Topic) -> None:
    """Give back the space of ledgers nobody needs, by the retention that rules the topic.

    :raises LedgerError, MetadataError: a ledger cannot be deleted now.
    """
    now, retention = topic.scheduler.now_ms(), topic.rules.retention
    keep_since = None if retention.time_minutes < 0 else now - retention.time_minutes * 60_000
    keep_bytes = None if retention.size_mb < 0 else retention.size_mb << 20
    topic.deduplication.tidy()
    _forget_readers(topic, now)
    await _raise_floors(topic)
    await _give_back(topic, keep_bytes, keep_since)
    if now - topic.last_used_ms > 60_000:
        topic.log.drop_tail()
    topic.log.cool_indexes(topic.needed_from().ledger)
    topic.late.pack({ledger for ledger, _, _ in topic.log.counts()})


async def _raise_floors(topic: Topic) -> None:
    for cursor in _cursors(topic):
        await floors.look_after(cursor)


def _cursors(topic: Topic) -> list[Cursor]:
    return [subscription.cursor for subscription in topic.subscriptions.values()]


def _forget_readers(topic: Topic, now_ms: int) -> None:
    """A subscription that is not durable goes with its reader, also when that does not come back after a seek."""
    for subscription in list(topic.subscriptions.values()):
        is_left = not subscription.durable and not subscription.consumers
        if is_left and now_ms - subscription.last_left_ms > READER_BACK_MS:
            topic.lives.forget_reader(subscription)


async def truncate(topic: Topic) -> None:
    """Let go of everything stored until now, for all subscriptions, and of its space whatever the retention (R14).

    What another region has not got yet stays stored until it has.

    :raises LedgerError: a ledger cannot be read, made or deleted.
    :raises TopicFenced: the topic was closed meanwhile.
    """
    topic.check_open()
    await topic.log.roll()
    await drops.drop_upto(topic, _cursors(topic), Cause.TRUNCATED, topic.log.last_confirmed)
    topic.deduplication.tidy()
    await _raise_floors(topic)
    await _give_back(topic, 0, None)


async def _give_back(topic: Topic, keep_bytes: int | None, keep_since_ms: int | None) -> None:
    """An entry goes only when what settled it is on disk, else a crash would owe what is gone."""
    needed = topic.needed_from()
    try:
        await drops.durable(topic)
        upto = await topic.holding.upto(min(needed, topic.needed_from()), keep_bytes, keep_since_ms)
    except TopicFenced:
        return
    await topic.log.trim(min(upto, topic.needed_from()), keep_bytes, keep_since_ms)
