# SPDX-License-Identifier: Apache-2.0
"""Per-consumer state that decides what an acknowledgement means: what the consumer was sent, and when."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meridian_broker.positions import Stamp
from meridian_broker.positions.position import EARLIEST, Position

if TYPE_CHECKING:
    from meridian_broker.topics.cursors.chunk_pieces import Pieces


class AckState:
    """The part of a consumer that decides what its acknowledgements mean."""

    __slots__ = ("acked_to", "epoch", "pieces")

    def __init__(self, epoch: Stamp) -> None:
        self.epoch = epoch
        """Epoch in which its messages are dispatched, and in which its acknowledgements therefore count (R13)."""
        self.acked_to: Position = EARLIEST
        """Position up to which it acknowledged cumulatively, before a reconnect included."""
        self.pieces: Pieces | None = None
        """Exclusive, Failover: which of the entries it was sent are chunks; None before the first chunk."""

    def acknowledges_to(self, position: Position, *, in_part: bool) -> Position:
        """It acknowledges everything up to ``position``. Returns the position after which that applies.

        Official clients drop what they receive up to their last cumulative acknowledgement: entries sent again after
        a rewind made elsewhere (R13), or of another region's stream (R26). The next cumulative acknowledgement
        therefore does not concern those. After a client goes back it drops nothing, and the position is reset.

        :param in_part: the entry is a batch and only partly acknowledged.
        """
        before = self.acked_to
        if position < before or (position == before and not in_part):
            return EARLIEST
        self.acked_to = position
        return before
