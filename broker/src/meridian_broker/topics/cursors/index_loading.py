# SPDX-License-Identifier: Apache-2.0
"""A cursor whose way leads through entries that are not indexed in memory waits until they are, and then goes on.

A disk that cannot be read is asked again after a while: until then entries before mark-delete's right place are passed
over one by one, which costs time and loses nothing.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from meridian_broker.ledgers.store import LedgerError

if TYPE_CHECKING:
    from meridian_broker.positions.position import Position
    from meridian_broker.topics.subscriptions.subscription import Subscription

READ_AGAIN_SECONDS: Final = 5.0

log = logging.getLogger(__name__)


def soon(subscription: Subscription, position: Position) -> None:
    """Have what is at ``position`` in memory, then move the cursor on, unless that is under way."""
    if not subscription.is_walking_on:
        subscription.is_walking_on = True
        subscription.topic.serve(_walk_on(subscription, position), "move a cursor on")


async def _walk_on(subscription: Subscription, position: Position) -> None:
    topic = subscription.topic
    try:
        await topic.log.load_index(position.ledger)
        if subscription.times is not None:
            await subscription.times.load(position)
    except LedgerError as error:
        log.warning("the cursor of %s of %s stays behind for now: %s", subscription.name, topic.name, error)
        topic.scheduler.later(READ_AGAIN_SECONDS, lambda: _go(subscription))
    else:
        _go(subscription)


def _go(subscription: Subscription) -> None:
    subscription.is_walking_on = False
    if subscription.topic.failure is None:
        subscription.advance()
