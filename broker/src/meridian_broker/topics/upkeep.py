# SPDX-License-Identifier: Apache-2.0
"""What a broker does to its topics from time to time: old messages go, and quotas are looked after."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from meridian_broker.ledgers.store import LedgerError
from meridian_broker.topics import drops, quotas
from meridian_broker.topics.errors import TopicError

if TYPE_CHECKING:
    from meridian_broker.topics.service import TopicService
    from meridian_broker.topics.topic import Topic

log = logging.getLogger(__name__)


async def expire_all(service: TopicService) -> None:
    """Drop what is older than its topic's message TTL, in every topic that has one."""
    for topic in list(service.topics.values()):
        await expire(topic)


async def expire(topic: Topic) -> None:
    """Drop what is older than the topic's message TTL. What cannot be read is tried again at the next look."""
    if topic.rules.message_ttl_seconds <= 0 or topic.failure is not None:
        return
    before_ms = topic.scheduler.now_ms() - topic.rules.message_ttl_seconds * 1000
    try:
        await drops.drop_old(topic, list(topic.subscriptions.values()), before_ms)
    except (LedgerError, TopicError) as error:
        log.warning("messages of %s did not expire, next try in a while: %s", topic.name, error)


async def check_quotas(service: TopicService) -> None:
    """Enforce the backlog quota of every topic that has one."""
    for topic in list(service.topics.values()) if service.backlog_quotas else ():
        await quotas.enforce(topic)
