# SPDX-License-Identifier: Apache-2.0
"""The acknowledgement of one entry, or of a few in a row, that many subscriptions make, built and encoded once.

A message that goes to thousands of subscriptions is acknowledged thousands of times, nearly always alone and in the
same words. The first two acknowledgements of an entry are made as any other; from then on they share one. The progress
log remembers those of its topic by the position of the entry.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from meridian_broker.ledgers.index import Place
from meridian_broker.positions import ZERO, Progress

if TYPE_CHECKING:
    from meridian_broker.positions.position import Position

REMEMBERED: Final = 64
"""Entries that subscriptions are acknowledging at the same time; with more of them, some are built again."""


class CommonAck:
    """The acknowledgement of an entry, or of some in a row, by a subscription that was never rewound nor deleted."""

    __slots__ = ("_longer", "after", "before", "delta", "encoded", "position", "region", "upto")

    def __init__(self, position: Position, place: Place, before: Position) -> None:
        """:param position: of the last entry, in this region. :param before: the last entry before the first one."""
        self.position = position
        self.before = before
        self.region, self.after, self.upto = place
        self.delta: Final = Progress()
        """Shared: copy it before it is added to."""
        self.delta.ack(ZERO, *place)
        self.encoded: Final = self.delta.encode()
        self._longer: CommonAck | None = None

    def and_then(self, following: CommonAck) -> CommonAck | None:
        """Both, if the other one follows right behind this one; None: it does not."""
        if following.region != self.region or following.after != self.upto or following.before != self.position:
            return None
        longer = self._longer
        if longer is None or longer.upto != following.upto:
            place = Place(self.region, self.after, following.upto)
            longer = self._longer = CommonAck(following.position, place, self.before)
        return longer
