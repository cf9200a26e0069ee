# SPDX-License-Identifier: Apache-2.0
"""What a shadow's broker is told by the broker of its source (PIP-180).

A SEND of the shadow replicator carries no message. Its ``message_id`` says that everything up to there is confirmed,
and the shadow reads it from the store. The receipt says that the shadow has read that far, so the source's broker
knows how far behind it is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from meridian_broker.positions.bitruns import ENTRY_LIMIT
from meridian_broker.positions.position import EARLIEST, LATEST
from meridian_broker.topics import validation
from meridian_broker.topics.errors import NotAllowed

if TYPE_CHECKING:
    from meridian_broker.ledgers.view import LogView
    from meridian_broker.positions.position import Position
    from meridian_broker.topics.publishing.producer import Producer
    from meridian_broker.wire.pulsar.frames import Send


class FromSource:
    """One per producer of a shadow replicator. What waits is bounded by the connection, which stops reading."""

    __slots__ = ("_log", "_unwatch", "_waiting")

    def __init__(self, log: LogView) -> None:
        """:param log: the shadow's."""
        self._log = log
        self._waiting: deque[tuple[Position, Producer, Send]] = deque()
        self._unwatch: Callable[[], None] | None = None

    def take(self, producer: Producer, send: Send) -> None:
        """Read on, and answer once everything up to the message id was read.

        :raises NotAllowed: it names no message id, or one that cannot be (R7).
        """
        if send.message_id is None:
            raise NotAllowed("a shadow stores nothing itself: its source's broker sends message ids, and no messages")
        if send.message_id.ack_set or send.message_id.HasField("batch_index"):
            raise NotAllowed("the message id of a whole entry was expected, not of a part of one")
        position = validation.position(send.message_id)
        if not EARLIEST < position < LATEST or not 0 <= position.entry < ENTRY_LIMIT:
            raise NotAllowed(f"no entry can have the message id {send.message_id.ledgerId}:{send.message_id.entryId}")
        self._waiting.append((position, producer, send))
        if self._unwatch is None:
            self._unwatch = self._log.watch(self._answer)
        self._log.source_confirmed(position)
        self._answer()

    def _answer(self) -> None:
        """Send the receipts that are due, in the order of the SENDs."""
        waiting, read = self._waiting, self._log.last_confirmed
        while waiting:
            position, producer, send = waiting[0]
            if producer.topic.producers.get(producer.name) is not producer:
                producer.port.dropped([send])
            elif position <= read:
                producer.port.stored(producer, [send], position)
            else:
                return
            waiting.popleft()
        if self._unwatch is not None:
            self._unwatch()
            self._unwatch = None
