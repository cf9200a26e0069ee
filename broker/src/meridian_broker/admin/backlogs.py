# SPDX-License-Identifier: Apache-2.0
"""Exact backlogs and holes need the local <-> origin index of what lies ahead of a cursor."""

from __future__ import annotations

from meridian_broker.topics.subscription import BACKLOG_WALK, Subscription


async def load_ahead(subscription: Subscription) -> None:
    """Load the indexes that ``backlog`` and ``holes`` look at, when there are few enough entries to look at each.

    :raises LedgerError: a ledger cannot be read.
    """
    log = subscription.topic.log
    if not subscription.durable or log.distance(subscription.mark_delete, log.last_confirmed) > BACKLOG_WALK:
        return
    for ledger, entries, _ in log.counts():
        if entries and ledger >= subscription.mark_delete.ledger and log.index(ledger) is None:
            await log.load_index(ledger)
