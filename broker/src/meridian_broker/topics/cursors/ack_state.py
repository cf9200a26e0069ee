# SPDX-License-Identifier: Apache-2.0
"""Per-consumer state that decides what an acknowledgement means: what the consumer was sent, and when."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meridian_broker.positions import Stamp
from meridian_broker.positions.position import EARLIEST, Position

if TYPE_CHECKING:
    from meridian_broker.topics.cursors.chunk_pieces import Pieces


class AckState:
    """The part of a consumer that its acknowledgements are read by."""

    __slots__ = ("acked_to", "epoch", "pieces")

    def __init__(self, epoch: Stamp) -> None:
        self.epoch = epoch
        """Epoch under which its messages are dispatched: its acknowledgements count there (R13)."""
        self.acked_to: Position = EARLIEST
        """Up to where it acknowledged cumulatively, also before it was sent away and came again."""
        self.pieces: Pieces | None = None
        """Exclusive, Failover: which entries it was sent are chunks, once there was one."""

    def acknowledges_to(self, position: Position, *, in_part: bool) -> Position:
        """It acknowledges everything up to ``position``; says behind which place that is about.

        Official clients drop what they are sent up to their last cumulative acknowledgement: what comes again after a
        rewind made elsewhere (R13), or of another region's share (R26). So the next one says nothing of that. A client
        that goes back has it, and drops nothing.

        :param in_part: the entry itself, a batch, is acknowledged in part.
        """
        before = self.acked_to
        if position < before or (position == before and not in_part):
            return EARLIEST
        self.acked_to = position
        return before
