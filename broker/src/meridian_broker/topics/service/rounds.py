# SPDX-License-Identifier: Apache-2.0
"""What a broker does to all its topics from time to time.

It frees space, drops old messages, enforces quotas, compacts topics whose uncompacted part is large, and frees the
ledgers of logs that have not changed for a while.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container
from typing import TYPE_CHECKING

from meridian_broker.ledgers.periodic import SomeFailed, each
from meridian_broker.ledgers.store import LedgerError
from meridian_broker.metadata.store import MetadataError
from meridian_broker.topics.compaction.compaction import Status
from meridian_broker.topics.errors import TopicError
from meridian_broker.topics.retention import backlog_quotas
from meridian_broker.topics.retention.trimming import expire, trim

if TYPE_CHECKING:
    from meridian_broker.topics.service.service import TopicService
    from meridian_broker.topics.topic import Topic


async def trim_all(service: TopicService) -> None:
    """Free the space of ledgers that are no longer needed.

    :raises SomeFailed: it failed for some topics; the others had their turn.
    """
    await service.registry.non_persistent.tidy()
    unruled: Container[str] = ()
    try:
        await service.policies.follow()  # a retention set a moment ago counts already
    except SomeFailed as error:
        unruled = error.failures
    await _each_topic(service, trim, without=unruled)


async def expire_all(service: TopicService) -> None:
    """Drop what is older than its topic's message TTL, in every topic that has one. :raises SomeFailed: as above."""
    await _each_topic(service, expire)


async def check_quotas(service: TopicService) -> None:
    """Enforce the backlog quota of every topic that has one. :raises SomeFailed: as above."""
    await _each_topic(service, backlog_quotas.enforce)


async def compact_due(service: TopicService) -> None:
    """Begin to compact the topics whose uncompacted part exceeds their threshold.

    :raises SomeFailed: as above.
    """
    await _each_topic(service, _compact_if_due)


async def rest_all(service: TopicService) -> None:
    """Let the progress logs that have not changed for a while go to rest. :raises SomeFailed: as above."""
    await _each_topic(service, _rest_if_due)


async def _rest_if_due(topic: Topic) -> None:
    if topic.progress_log.may_rest:
        await topic.progress_log.rest()


async def _compact_if_due(topic: Topic) -> None:
    threshold, compaction = topic.rules.compaction_threshold_bytes, topic.compaction
    if compaction.status is not Status.RUNNING and 0 < threshold < compaction.bytes_to_do():
        compaction.start()


async def _each_topic(
    service: TopicService, work: Callable[[Topic], Awaitable[object]], without: Container[str] = ()
) -> None:
    """Do it for every open topic, even if it fails for others. :raises SomeFailed: it failed for some."""

    async def turn(topic: Topic) -> None:
        try:
            if topic.failure is None and topic.name not in without:
                await work(topic)
        except (LedgerError, TopicError, MetadataError):
            if topic.failure is None:
                raise  # else it was closed or fenced meanwhile: its next turn comes when it is open again

    await each(service.registry.parts.scheduler, service.topics.values(), lambda topic: topic.name, turn)
