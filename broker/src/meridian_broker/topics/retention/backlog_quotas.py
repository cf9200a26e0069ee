# SPDX-License-Identifier: Apache-2.0
"""Backlog quotas: how much of a topic may wait, and what happens beyond that.

What waits is measured from the slowest durable subscription, or from the other region that is farthest behind. Over the
quota either producers are kept out until the backlog is below it again, or the oldest entries go as drops (R14). Only
subscriptions lose entries to a quota, never another region: what waits for replication stays.

Entries of other regions are kept out, too, and come later (``topics/backfill/intake.py``), but only for what waits for
subscriptions. What waits for another region does not become less by refusing that region's entries: two regions that
are both behind with each other would refuse each other for ever.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from meridian_broker.ledgers.entry import unpack
from meridian_broker.metadata.policy_values import QUOTA_KINDS, QUOTA_POLICIES, BacklogQuota
from meridian_broker.positions import Cause
from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.topics.cursors import drops
from meridian_broker.topics.errors import BacklogQuotaException, BacklogQuotaHold

if TYPE_CHECKING:
    from meridian_broker.topics.publishing.producer import Producer
    from meridian_broker.topics.topic import Topic

SIZE, AGE = QUOTA_KINDS
HOLD, EXCEPTION, EVICTION = QUOTA_POLICIES
EVICT_TO: Final = 0.9
"""Eviction goes on until the backlog is this share of the limit, so that the next message does not begin it anew."""

log = logging.getLogger(__name__)


async def check_producer(topic: Topic) -> None:
    """May a producer come to the topic now?

    :raises BacklogQuotaHold, BacklogQuotaException: too much waits there.
    """
    for kind, quota in _quotas(topic):
        if quota.policy != EVICTION and (problem := await _problem(topic, kind, quota)) is not None:
            text = f"{topic.name}: {problem}; producers may connect once the backlog is smaller"
            raise BacklogQuotaHold(text) if quota.policy == HOLD else BacklogQuotaException(text)


async def exceeded(topic: Topic) -> str | None:
    """How subscriptions exceed a quota that keeps entries of other regions out, in words; None: they do not.

    :raises LedgerError: the oldest message cannot be read.
    """
    slowest = min(_waiting_subscriptions(topic), default=topic.log.last_confirmed)
    for kind, quota in _quotas(topic):
        if quota.policy != EVICTION and (problem := await _beyond(topic, kind, quota, slowest)) is not None:
            return problem
    return None


async def enforce(topic: Topic) -> None:
    """Send producers away, or evict, where a quota is exceeded.

    :raises LedgerError, TopicError: not now; it is right to try again.
    """
    for kind, quota in _quotas(topic):
        problem = await _problem(topic, kind, quota)
        if problem is None:
            continue
        if quota.policy == EVICTION:
            await _evict(topic, kind, quota)
        else:
            _send_away(topic, [one for one in topic.producers.values() if one.remote_region is None], problem)
    problem = await exceeded(topic)
    topic.intake.found(problem)
    if problem is not None:
        _send_away(topic, [one for one in topic.producers.values() if one.remote_region is not None], problem)


def _quotas(topic: Topic) -> list[tuple[str, BacklogQuota]]:
    is_kept = topic.keeps_quotas and topic.failure is None
    return sorted(topic.rules.backlog_quotas.items()) if is_kept else []


async def _problem(topic: Topic, kind: str, quota: BacklogQuota) -> str | None:
    """How a quota is exceeded, in words; None: it is not."""
    # Of a region not reached yet nobody knows what waits for it.
    places = [place for place in topic.replicated_positions.values() if place != EARLIEST]
    slowest = min([*_waiting_subscriptions(topic), *places], default=topic.log.last_confirmed)
    return await _beyond(topic, kind, quota, slowest)


async def _beyond(topic: Topic, kind: str, quota: BacklogQuota, slowest: Position) -> str | None:
    """The same of what stands behind a place."""
    if kind == SIZE:
        size = topic.log.bytes_after(slowest)
        if 0 <= quota.limit_bytes <= size:
            return f"{size} bytes wait for the slowest subscription or region, its backlog quota is {quota.limit_bytes}"
    elif quota.limit_seconds > 0:
        oldest = await topic.log.read_after(slowest, 1, 1)
        seconds = (topic.scheduler.now_ms() - unpack(oldest[0][1]).publish_time_ms) // 1000 if oldest else 0
        if seconds > quota.limit_seconds:
            return f"the oldest message waits for {seconds} s, its backlog quota is {quota.limit_seconds} s"
    return None


def _waiting_subscriptions(topic: Topic) -> list[Position]:
    return [one.mark_delete for one in topic.subscriptions.values() if one.durable]


def _send_away(topic: Topic, producers: list[Producer], problem: str) -> None:
    if producers:
        log.warning("%s: %s; %d producers are sent away", topic.name, problem, len(producers))
    for producer in producers:
        if producer.remote_region is not None:
            topic.intake.turned_away(producer.remote_region, problem)
        topic.remove_producer(producer)
        producer.port.disconnect_producer(producer)


async def _evict(topic: Topic, kind: str, quota: BacklogQuota) -> None:
    subscriptions = [one for one in topic.subscriptions.values() if one.durable]
    if kind == SIZE:
        upto = topic.log.place_before_last(int(quota.limit_bytes * EVICT_TO))
        counts = await drops.drop_upto(topic, subscriptions, Cause.QUOTA, upto)
    else:
        before_ms = topic.scheduler.now_ms() - int(quota.limit_seconds * EVICT_TO * 1000)
        counts = await drops.drop_old(topic, subscriptions, before_ms, Cause.QUOTA)
    if any(counts.values()):
        log.warning("%s is over its backlog quota: entries went, by subscription: %s", topic.name, counts)
