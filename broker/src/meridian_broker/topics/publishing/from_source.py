# SPDX-License-Identifier: Apache-2.0
"""What a shadow's broker is told by the broker of its source (PIP-180).

A SEND of the shadow replicator carries no message. Its ``message_id`` says that everything up to there is confirmed,
and the shadow reads it from the store. The receipt says that the shadow has read that far, so the source's broker
knows how far behind it is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from meridian_broker.positions.bitruns import ENTRY_LIMIT
from meridian_broker.positions.position import EARLIEST, LATEST
from meridian_broker.topics import validation
from meridian_broker.topics.errors import NotAllowed

if TYPE_CHECKING:
    from meridian_broker.ledgers.view import LogView
    from meridian_broker.positions.position import Position
    from meridian_broker.topics.publishing.producer import Producer
    from meridian_broker.wire.pulsar.frames import Send

WAITING_MAX: Final = 64
"""Message ids without a receipt; a replicator sends half as many before it waits for one."""


class FromSource:
    """One per producer of a shadow replicator."""

    __slots__ = ("_log", "_unwatch", "_waiting")

    def __init__(self, log: LogView) -> None:
        """:param log: the shadow's."""
        self._log = log
        self._waiting: deque[tuple[Position, Producer, Send]] = deque()
        self._unwatch: Callable[[], None] | None = None

    def take(self, producer: Producer, send: Send) -> None:
        """Read on, and answer once everything up to the message id was read.

        :raises NotAllowed: it names no message id, or one that cannot be (R7), or too many have no receipt.
        """
        if send.message_id is None:
            raise NotAllowed("a shadow stores nothing itself: its source's broker sends message ids, and no messages")
        if send.message_id.ack_set or send.message_id.HasField("batch_index"):
            raise NotAllowed("the message id of a whole entry was expected, not of a part of one")
        position = validation.position(send.message_id)
        if not EARLIEST < position < LATEST or not 0 <= position.entry < ENTRY_LIMIT:
            raise NotAllowed(f"no entry can have the message id {send.message_id.ledgerId}:{send.message_id.entryId}")
        if len(self._waiting) >= WAITING_MAX:
            raise NotAllowed(f"{WAITING_MAX} message ids have no receipt yet: wait for one")
        self._waiting.append((position, producer, send))
        if self._unwatch is None:
            self._unwatch = self._log.watch(self._answer)
        self._log.source_confirmed(position)
        self._answer()

    def close(self) -> None:
        """The producer is gone: nothing is answered any more."""
        self._waiting.clear()
        self._answer()

    def _answer(self) -> None:
        """Send the receipts that are due, in the order of the SENDs."""
        while self._waiting and self._log.has_read(self._waiting[0][0]):
            position, producer, send = self._waiting.popleft()
            producer.port.has_read(producer, send, position)
        if not self._waiting and self._unwatch is not None:
            self._unwatch()
            self._unwatch = None
