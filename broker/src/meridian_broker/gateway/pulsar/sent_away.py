# SPDX-License-Identifier: Apache-2.0
"""Consumers of a connection that were disconnected, until they subscribe again.

The same consumer id on the same connection is the same object in the client's program. It still drops messages
up to its last cumulative acknowledgement (``Consumer.acknowledges_to``), so that position is kept for it.
"""

from __future__ import annotations

from typing import Final

from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.topics.dispatch.consumer import Consumer

SENT_AWAY_MAX: Final = 1000
"""Limit on consumers per connection; clients return within a second or two. Beyond it the oldest are forgotten."""


class SentAway:
    """Consumer id -> the position up to which that consumer acknowledged cumulatively."""

    __slots__ = ("_acked_to",)

    def __init__(self) -> None:
        self._acked_to: dict[int, Position] | None = None

    def add(self, consumer: Consumer) -> None:
        """The consumer was told to subscribe again."""
        if consumer.acked_to > EARLIEST:
            if self._acked_to is None:
                self._acked_to = {}
            while len(self._acked_to) >= SENT_AWAY_MAX:
                del self._acked_to[next(iter(self._acked_to))]
            self._acked_to[consumer.consumer_id] = consumer.acked_to

    def acknowledged(self, consumer_id: int, position: Position) -> None:
        """The consumer acknowledged cumulatively before it subscribed again."""
        if self._acked_to is not None and consumer_id in self._acked_to:
            self._acked_to[consumer_id] = max(self._acked_to[consumer_id], position)

    def back(self, consumer: Consumer) -> None:
        """The consumer has subscribed again."""
        if self._acked_to is not None:
            consumer.acked_to = self._acked_to.pop(consumer.consumer_id, EARLIEST)

    def forget(self, consumer_id: int) -> None:
        """The consumer was closed, or did the seek itself: clients that seek do not drop any messages afterwards."""
        if self._acked_to is not None:
            self._acked_to.pop(consumer_id, None)
