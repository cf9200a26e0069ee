# SPDX-License-Identifier: Apache-2.0
"""Backlog quotas: how much of a topic may wait, and what happens beyond that.

The backlog is measured from the slowest durable subscription, or from the other region that is farthest behind. Over
the quota, either producers are kept out until the backlog is below it again, or the oldest entries are dropped (R14).
Only subscriptions lose entries to a quota, never another region: what waits for replication stays.

Entries of other regions are kept out, too, and arrive later (``topics/backfill/intake.py``), but only for the backlog
of subscriptions. The backlog for another region does not shrink by refusing that region's entries: two regions that
are both behind would refuse each other forever.
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
"""Eviction continues until the backlog is this fraction of the limit, so that the next message does not trigger it
again.
"""

log = logging.getLogger(__name__)


async def check_producer(topic: Topic) -> None:
    """Check whether a producer may connect to the topic now.

    :raises BacklogQuotaHold, BacklogQuotaException: the backlog exceeds a quota.
    """
    for kind, quota in quotas(topic):
        if quota.policy != EVICTION and (problem := await _problem(topic, kind, quota)) is not None:
            text = f"{topic.name}: {problem}; producers may connect once the backlog is smaller"
            raise BacklogQuotaHold(text) if quota.policy == HOLD else BacklogQuotaException(text)


async def enforce(topic: Topic) -> None:
    """Disconnect producers or evict entries where a quota is exceeded.

    :raises LedgerError, TopicError: it failed for now; retry later.
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
    """How a quota is exceeded, as a sentence; None: it is not."""
    # The backlog for a region that was never reached is unknown.
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
    if not topic.rules.are_current:
        return
    cursors = [one.cursor for one in topic.subscriptions.values() if one.durable]
    if kind == SIZE:
        upto = topic.log.place_before_last(int(quota.limit_bytes * EVICT_TO))
        counts = await drops.drop_upto(topic, cursors, Cause.QUOTA, upto)
    else:
        before_ms = topic.scheduler.now_ms() - int(quota.limit_seconds * EVICT_TO * 1000)
        counts = await drops.drop_old(topic, cursors, before_ms, Cause.QUOTA)
    if any(counts.values()):
        log.warning("%s exceeded its backlog quota: dropped entries by subscription: %s", topic.name, counts)
