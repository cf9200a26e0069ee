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

from meridian_broker.metadata.policy_values import QUOTA_KINDS, QUOTA_POLICIES, BacklogQuota
from meridian_broker.positions import Cause
from meridian_broker.positions.position import EARLIEST
from meridian_broker.topics.cursors import drops
from meridian_broker.topics.errors import BacklogQuotaException, BacklogQuotaHold
from meridian_broker.topics.subscriptions.backlogs import beyond, exceeded, quotas, waiting

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
    for kind, quota in quotas(topic):
        if quota.policy != EVICTION and (problem := await _problem(topic, kind, quota)) is not None:
            text = f"{topic.name}: {problem}; producers may connect once the backlog is smaller"
            raise BacklogQuotaHold(text) if quota.policy == HOLD else BacklogQuotaException(text)


async def enforce(topic: Topic) -> None:
    """Send producers away, or evict, where a quota is exceeded.

    :raises LedgerError, TopicError: not now; it is right to try again.
    """
    for kind, quota in quotas(topic):
        problem = await _problem(topic, kind, quota)
        if problem is None:
            continue
        if quota.policy == EVICTION:
            await _evict(topic, kind, quota)
        else:
            _send_away(topic, [one for one in topic.producers.values() if one.remote_region is None], problem)
    problem = await exceeded(topic, topic.subscriptions.values())
    topic.intake.found(problem)
    if problem is not None:
        _send_away(topic, [one for one in topic.producers.values() if one.remote_region is not None], problem)


async def _problem(topic: Topic, kind: str, quota: BacklogQuota) -> str | None:
    """How a quota is exceeded, in words; None: it is not."""
    # Of a region not reached yet nobody knows what waits for it.
    places = [place for place in topic.replicated_positions.values() if place != EARLIEST]
    slowest = min([*waiting(topic.subscriptions.values()), *places], default=topic.log.last_confirmed)
    return await beyond(topic, kind, quota, slowest)


def _send_away(topic: Topic, producers: list[Producer], problem: str) -> None:
    if producers:
        log.warning("%s: %s; disconnected %d producers", topic.name, problem, len(producers))
    for producer in producers:
        if producer.remote_region is not None:
            topic.intake.turned_away(producer.remote_region, problem)
        topic.remove_producer(producer)
        producer.port.disconnect_producer(producer)


async def _evict(topic: Topic, kind: str, quota: BacklogQuota) -> None:
    cursors = [one.cursor for one in topic.subscriptions.values() if one.durable]
    if kind == SIZE:
        upto = topic.log.place_before_last(int(quota.limit_bytes * EVICT_TO))
        counts = await drops.drop_upto(topic, cursors, Cause.QUOTA, upto)
    else:
        before_ms = topic.scheduler.now_ms() - int(quota.limit_seconds * EVICT_TO * 1000)
        counts = await drops.drop_old(topic, cursors, before_ms, Cause.QUOTA)
    if any(counts.values()):
        log.warning("%s exceeded its backlog quota: dropped entries by subscription: %s", topic.name, counts)
