# SPDX-License-Identifier: Apache-2.0
"""What a dispatcher needs from its subscription."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from meridian_broker.positions.position import Position
    from meridian_broker.topics.cursors.ack_state import AckState
    from meridian_broker.topics.dispatch.consumer import Consumer
    from meridian_broker.topics.dispatch.rates import Pace


class Delivery(Protocol):
    """Hands entries to consumers and accounts for them."""

    unacked_messages: int
    """Sent to all consumers and not yet acked; counted only where several receive at once."""
    pace: Pace | None

    @property
    def consumers(self) -> list[Consumer]: ...

    @property
    def blocked(self) -> bool:
        """So much is sent and not acked that no more is sent."""
        ...

    def send(self, consumer: Consumer, position: Position, entry: bytes, redeliveries: int) -> None:
        """Hand an entry to a consumer and account for it."""
        ...

    def dispatch_soon(self) -> None:
        """Let the dispatcher run in the next turn of the loop."""
        ...

    def release(self, acker: AckState, position: Position) -> None:
        """An entry is not in flight any more."""
        ...

    def unblock(self, consumer: Consumer) -> None:
        """What the consumer holds became less: it may get more."""
        ...

    def read_compacted(self, wanted: bool) -> None:
        """Read the compacted view from now on, or the whole log."""
        ...
