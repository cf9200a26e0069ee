# SPDX-License-Identifier: Apache-2.0
"""What a rewind does to a subscription (R12, R13): made here by a seek, or told by another region.

An acknowledgement counts in the epoch in which its entry was sent (R13). ACK does not say which that was: a client may
still hold what it got before the rewind. So a subscription that was rewound remembers which of the entries that were
there before were sent again (``Resent``). An acknowledgement of any other one is of an older epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from meridian_broker.ledgers.times import PublishTimes
from meridian_broker.positions import AckSet, Progress
from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.topics.cursors import drops, floors, rewind_merging
from meridian_broker.topics.journal.progress_log import Kind

if TYPE_CHECKING:
    from meridian_broker.topics.subscriptions.subscription import Subscription


NONE_STALE: Final[frozenset[Position]] = frozenset()


class Resent:
    """Which entries were sent since the newest rewind, of those stored here before it: local positions.

    What is stored behind ``border`` came later than the rewind, so it was never sent under an older epoch. Bounded by
    what stood before the border, as runs; let go of when nothing up to there is owed any more. It is not written down:
    after a restart, and after a further rewind, an entry has to be sent once more before its acknowledgement counts,
    as the broker does anyway with all that is not acknowledged by then. A message may come again, none is skipped.
    """

    __slots__ = ("_sent", "border")

    def __init__(self, border: Position) -> None:
        self.border = border
        self._sent = AckSet()

    def note(self, position: Position) -> None:
        """The entry was sent."""
        if position <= self.border:
            self._sent.claim(Position(position.ledger, position.entry - 1), position)

    def holds(self, position: Position) -> bool:
        """Was it sent since the rewind, if it was sent at all?"""
        return position > self.border or self._sent.contains(position)

    def passed(self, mark_delete: Position) -> None:
        """Nothing up to there is owed any more."""
        if mark_delete >= self.border and not self._sent.is_empty:
            self._sent = AckSet()

    def copy(self) -> Resent:
        """As it is now, for an acknowledgement that is worked out later: what is sent meanwhile is not meant by it."""
        other = Resent(self.border)
        other._sent = self._sent.copy()
        return other


def stale(subscription: Subscription, positions: Iterable[Position]) -> frozenset[Position]:
    """Of entries that a client acknowledges, those it holds from before a rewind: they count in an older epoch (R13).

    An entry that was sent again is acknowledged by whoever says so: nobody can tell its copies apart.
    """
    resent = subscription.resent
    if resent is None:
        return NONE_STALE
    return frozenset(position for position in positions if not resent.holds(position))


def begin(subscription: Subscription) -> None:
    """The subscription was rewound, or comes back from disk and was rewound once: nothing is sent again yet."""
    log = subscription.topic.log
    subscription.resent = Resent(log.last_confirmed)
    moments = subscription.progress.moments()
    subscription.times = PublishTimes(log, moments) if moments else None


def merge(subscription: Subscription, delta: Progress, done: Callable[[str | None], None]) -> None:
    """Join what another region told, make it durable, and act on it.

    A rewind closes the consumers (R13), and so does an earlier creation, whose place may lie further back (R15).
    """
    subscription.claims.flush_pending()
    progress, log = subscription.progress, subscription.topic.progress_log
    before, beginning = progress.layers, progress.beginning
    if not drops.join(progress, subscription.dropped, delta):
        log.when_durable(lambda error: done(None if error is None else str(error)))
        return
    log.append(
        Kind.MERGED, subscription.name, delta.encode(), lambda error: done(None if error is None else str(error))
    )
    is_rewound = False
    if progress.layers is not before:
        # An older rewind may come after a newer one, and rules other entries.
        known = {layer.epoch for layer in before or ()}
        is_rewound = any(layer.epoch not in known for layer in progress.layers or ())
    if is_rewound or progress.beginning != beginning:
        subscription.disconnect_consumers()
        if is_rewound:
            begin(subscription)
            rewind_merging.tell_first_hand(subscription, progress.heads())
        subscription.start_cursor()
    else:
        if progress.layers is not before:
            rewind_merging.merged_elsewhere(subscription)
        subscription.advance()
        if subscription.dispatcher is not None:
            subscription.dispatcher.acked_elsewhere()
        subscription.dispatch_soon()
    if delta.reports:
        floors.rise(subscription)


def take_back(subscription: Subscription, delta: Progress, settled: Position = EARLIEST) -> None:
    """A seek: consumers come again, ``delta`` is joined, written and told, and the cursor begins anew.

    :param settled: up to here nothing is owed then, but for what a compacted view may show again.
    :raises TopicFenced: the topic was closed, or the subscription deleted, while the place was looked for.
    """
    subscription.check_open()
    subscription.disconnect_consumers()
    before = subscription.progress.epoch
    drops.join(subscription.progress, subscription.dropped, delta)
    if subscription.progress.epoch != before:
        begin(subscription)
    subscription.claims.make_known(delta)
    subscription.start_cursor(settled)
