# SPDX-License-Identifier: Apache-2.0
"""What a rewind does to a subscription (R12, R13): made here by a seek, or told by another region."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from meridian_broker.positions import ZERO, Progress, Stamp
from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.topics import drops
from meridian_broker.topics.progress_log import Kind

if TYPE_CHECKING:
    from meridian_broker.topics.consumer import Consumer
    from meridian_broker.topics.subscription import Subscription


def ack_epoch(subscription: Subscription, consumer: Consumer, position: Position) -> Stamp:
    """The epoch in which an acknowledgement counts: that in which the entry was sent (R13).

    What was not sent since the newest rewind was sent before it: whoever acknowledges it holds it from then.
    """
    return consumer.epoch if position <= subscription.sent_upto else ZERO


def merge(subscription: Subscription, delta: Progress, done: Callable[[str | None], None]) -> None:
    """Join what another region told, make it durable, and act on it.

    A rewind closes the consumers (R13), and so does an earlier creation, whose place may lie further back (R15).
    """
    subscription.claims.flush_pending()
    progress, log = subscription.progress, subscription.topic.progress_log
    rewinds, beginning = progress.rewinds(), progress.beginning
    if not drops.join(progress, subscription.dropped, delta):
        log.when_durable(lambda error: done(None if error is None else str(error)))
        return
    log.append(
        Kind.MERGED, subscription.name, delta.encode(), lambda error: done(None if error is None else str(error))
    )
    # An older rewind may come after a newer one, and rules other entries.
    if progress.rewinds() != rewinds or progress.beginning != beginning:
        subscription.disconnect_consumers()
        subscription.sent_upto = EARLIEST
        subscription.start_cursor()
    else:
        subscription.advance()
        subscription.dispatch_soon()


def take_back(subscription: Subscription, delta: Progress) -> None:
    """A seek: consumers come again, ``delta`` is joined, written and told, and the cursor begins anew."""
    subscription.disconnect_consumers()
    subscription.sent_upto = EARLIEST
    drops.join(subscription.progress, subscription.dropped, delta)
    subscription.claims.make_known(delta)
    subscription.start_cursor()
