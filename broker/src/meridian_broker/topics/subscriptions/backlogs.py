# SPDX-License-Identifier: Apache-2.0
"""How much of a topic waits for its subscriptions, measured against its backlog quotas.

What follows from an exceeded quota is decided in ``retention/backlog_quotas.py`` for producers of clients, and in
``backfill/intake.py`` for entries of other regions.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from meridian_broker.ledgers.entry import unpack
from meridian_broker.metadata.policy_values import QUOTA_KINDS, QUOTA_POLICIES, BacklogQuota
from meridian_broker.positions.position import Position

if TYPE_CHECKING:
    from meridian_broker.topics.context import TopicContext
    from meridian_broker.topics.subscriptions.subscription import Subscription

SIZE, AGE = QUOTA_KINDS
HOLD, EXCEPTION, EVICTION = QUOTA_POLICIES


def quotas(topic: TopicContext) -> list[tuple[str, BacklogQuota]]:
    """The quotas in force now, by kind."""
    is_kept = topic.keeps_quotas and topic.failure is None
    return sorted(topic.rules.backlog_quotas.items()) if is_kept else []


async def exceeded(topic: TopicContext, subscriptions: Iterable[Subscription]) -> str | None:
    """Which quota the subscriptions exceed, as a sentence; it keeps entries of other regions out. None: they exceed
    none.

    :raises LedgerError: the oldest message cannot be read.
    """
    slowest = min(waiting(subscriptions), default=topic.log.last_confirmed)
    for kind, quota in quotas(topic):
        if quota.policy != EVICTION and (problem := await beyond(topic, kind, quota, slowest)) is not None:
            return problem
    return None


async def beyond(topic: TopicContext, kind: str, quota: BacklogQuota, slowest: Position) -> str | None:
    """How the backlog after position ``slowest`` exceeds a quota, as a sentence; None: it does not.

    :raises LedgerError: the oldest message cannot be read.
    """
    if kind == SIZE:
        size = topic.log.bytes_after(slowest)
        if 0 <= quota.limit_bytes <= size:
            return f"{size} bytes wait for the slowest subscription or region; the backlog quota is {quota.limit_bytes}"
    elif quota.limit_seconds > 0:
        oldest = await topic.log.read_after(slowest, 1, 1)
        seconds = (topic.scheduler.now_ms() - unpack(oldest[0][1]).publish_time_ms) // 1000 if oldest else 0
        if seconds > quota.limit_seconds:
            return f"the oldest message has been pending for {seconds} s; the backlog quota is {quota.limit_seconds} s"
    return None


def waiting(subscriptions: Iterable[Subscription]) -> list[Position]:
    """The positions up to which each durable subscription has acknowledged everything."""
    return [one.cursor.mark_delete for one in subscriptions if one.durable]
