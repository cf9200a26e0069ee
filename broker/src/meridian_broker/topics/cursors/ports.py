# SPDX-License-Identifier: Apache-2.0
"""What a cursor needs from its surroundings: its subscription, the streams dispatched here, the compacted view."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pyroaring import BitMap

    from meridian_broker.ledgers.store import Done
    from meridian_broker.positions import Progress
    from meridian_broker.positions.position import Position
    from meridian_broker.topics.compaction.compaction import Compaction
    from meridian_broker.topics.compaction.view import CompactedView
    from meridian_broker.topics.cursors.ack_state import AckState
    from meridian_broker.topics.cursors.log_walks import Ranges
    from meridian_broker.topics.journal.subscription_record import SubscriptionRecord
    from meridian_broker.topics.ports import DispatchedStreams


class CursorOwner(Protocol):
    """The subscription of a cursor: its record, and its consumers as far as changes of the cursor concern them."""

    @property
    def record(self) -> SubscriptionRecord: ...

    @property
    def tracks_holders(self) -> bool:
        """Whether several consumers receive entries at once, so that only individual acknowledgements count."""
        ...

    @property
    def streams(self) -> DispatchedStreams | None:
        """The streams dispatched here; None: every message is dispatched here."""
        ...

    @property
    def is_there(self) -> bool:
        """False once the subscription is deleted: nothing more is written about it."""
        ...

    @property
    def read_position(self) -> Position:
        """The position up to which entries were read for consumers; ``EARLIEST``: there are no consumers."""
        ...

    def check_open(self) -> None:
        """:raises TopicFenced: the topic is closing, or the subscription was deleted."""
        ...

    def release(self, acker: AckState, position: Position) -> None:
        """An entry was acknowledged, so no consumer holds it any more."""
        ...

    def let_go(self, positions: Iterable[Position]) -> bool:
        """Entries were dropped, so consumers that hold them have room for others.

        :returns: whether a consumer may hold one of them.
        """
        ...

    def moved(self, position: Position) -> None:
        """Mark-delete moved to this position."""
        ...

    def acked_elsewhere(self) -> None:
        """Other regions acknowledged entries; some of them may be in flight here."""
        ...

    def disconnect_consumers(self) -> None:
        """Disconnect all consumers, so that they subscribe again: the cursor was rewound."""
        ...

    def dispatch_soon(self) -> None:
        """There may be something to send."""
        ...


class ViewReading(Protocol):
    """The part of a cursor that reads the topic's compacted view, see ``CompactedReading``."""

    compaction: Compaction

    @property
    def horizon(self) -> Position: ...

    @property
    def thinned_done(self) -> dict[int, BitMap]: ...

    def reset(self) -> None: ...

    def begin_anew(self) -> None: ...

    def compare(self, view: CompactedView) -> None: ...

    def start(self) -> Position: ...

    def passes(self, position: Position) -> bool: ...

    def knows(self, position: Position) -> bool: ...

    def is_done(self, position: Position, entry: bytes) -> bool: ...

    def remaining(self, position: Position, entry: bytes) -> int | None: ...

    def note_sent(self, acker: AckState, position: Position) -> None: ...

    def note_batch(self, position: Position, messages: int, remaining: int | None) -> None: ...

    def acknowledge(
        self,
        acker: AckState,
        positions: list[Position],
        stale: frozenset[Position],
        batches: dict[Position, int] | None,
        confirmed: Done | None,
    ) -> list[Position]: ...

    def acknowledge_up_to(
        self, acker: AckState, behind: Position, position: Position, part: int | None, confirmed: Done | None
    ) -> bool: ...

    async def move(self, delta: Progress, target: Position) -> Ranges: ...
