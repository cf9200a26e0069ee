# SPDX-License-Identifier: Apache-2.0
"""What the acknowledgements of one turn of the loop claim, and how it is made known.

They all become one delta (R18): one record in the progress log, durable in the group commit, and one message to each
peer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from meridian_broker.ledgers.notifying import notify_all
from meridian_broker.ledgers.store import Done, LedgerError
from meridian_broker.positions import Progress
from meridian_broker.topics.cursors import drops
from meridian_broker.topics.journal.progress_log import Kind

if TYPE_CHECKING:
    from meridian_broker.topics.subscriptions.subscription import Subscription


class Claims:
    """The claims of one subscription that nobody was told of yet."""

    __slots__ = ("_confirmations", "_delta", "_entries", "_flushing", "_subscription")

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription
        self._delta: Progress | None = None
        self._entries = 0
        self._confirmations: list[Done] | None = None
        self._flushing = False

    def open(self) -> Progress:
        """What this turn's acknowledgements claim."""
        if self._delta is None:
            self._delta = self._subscription.progress.empty_delta()
        return self._delta

    def add(self, delta: Progress, entries: int, confirmed: Done | None) -> None:
        """Also claim what a piece of progress does that is nobody's else. The rest as ``changed``."""
        if self._delta is not None:
            self._delta.join(delta)
        elif entries:
            self._delta = delta
        self.changed(confirmed, entries)

    def changed(self, confirmed: Done | None, entries: int) -> None:
        """So many entries were claimed: it is written at the end of this turn, and ``confirmed`` hears when it is
        durable."""
        self._entries += entries
        if confirmed is not None:
            if self._confirmations is None:
                self._confirmations = []
            self._confirmations.append(confirmed)
        if not self._flushing:
            self._flushing = True
            self._subscription.topic.scheduler.defer(self._flush_turn)

    def _flush_turn(self) -> None:
        self._flushing = False
        self.flush()

    def flush_pending(self) -> None:
        """As ``flush``, when there is something."""
        if self._delta is not None or self._confirmations is not None:
            self.flush()

    def flush(self) -> None:
        """Make this turn's acknowledgements one record and one message to each peer."""
        delta, self._delta = self._delta, None
        confirmations, self._confirmations = self._confirmations, None
        entries, self._entries = self._entries, 0
        subscription = self._subscription
        subscription.last_acked_ms = subscription.topic.scheduler.now_ms()
        if delta is None or not drops.join(subscription.progress, subscription.dropped, delta):
            if confirmations:
                subscription.topic.progress_log.when_durable(lambda error: self._confirm(confirmations, error))
            return
        self.make_known(delta, confirmations, entries)
        subscription.advance()

    def make_known(self, delta: Progress, confirmations: list[Done] | None = None, entries: int = 0) -> None:
        """Write what is joined already, and tell it to the other regions.

        :param entries: how many were acknowledged in it.
        """
        subscription = self._subscription
        topic = subscription.topic
        if not subscription.is_there:
            gone = LedgerError(f"subscription {subscription.name!r} was deleted: nothing of it is kept")
            notify_all(confirmations or (), gone)
            return
        topic.progress_log.append(Kind.ACKED, subscription.name, delta.encode())
        try:
            if subscription.replicated:
                subscription.first_hand = subscription.first_hand or Progress()
                subscription.first_hand.join(delta)
                topic.tell_others(subscription.name, delta, entries=entries)
        finally:
            if confirmations:
                topic.progress_log.when_durable(lambda error: self._confirm(confirmations, error))

    def _confirm(self, confirmations: list[Done], error: LedgerError | None) -> None:
        """Give clients their receipts. What they acknowledged leaves for the other regions before: a broker that is
        killed right afterwards repeats none of it there, as long as its links hold (R19)."""
        subscription = self._subscription
        try:
            if subscription.replicated and subscription.topic.exchange is not None:
                subscription.topic.exchange.send_pending()
        finally:
            notify_all(confirmations, error)
