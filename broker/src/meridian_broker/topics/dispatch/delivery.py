# SPDX-License-Identifier: Apache-2.0
"""What a dispatcher needs from its subscription."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from meridian_broker.positions.position import Position
    from meridian_broker.topics.cursors.ack_state import AckState
    from meridian_broker.topics.dispatch.consumer import Consumer
    from meridian_broker.topics.dispatch.rates import Pace


class Delivery(Protocol):
    """Hands entries to consumers and accounts for them."""

    unacked_messages: int
    """Messages sent to all consumers and not acked yet; counted only if several consumers receive at once."""
    pace: Pace | None

    @property
    def consumers(self) -> Sequence[Consumer]: ...

    @property
    def blocked(self) -> bool:
        """Whether the limit of unacked messages is reached, so that nothing more is sent."""
        ...

    def send(self, consumer: Consumer, position: Position, entry: bytes, redeliveries: int) -> None:
        """Hand an entry to a consumer and account for it."""
        ...

    def dispatch_soon(self) -> None:
        """Let the dispatcher run in the next turn of the loop."""
        ...

    def release(self, acker: AckState, position: Position) -> None:
        """The entry is no longer in flight."""
        ...

    def unblock(self, consumer: Consumer) -> None:
        """The consumer holds less than before and may get more."""
        ...

    def read_compacted(self, wanted: bool) -> None:
        """Read from the compacted view from now on, or from the whole log."""
        ...
