# SPDX-License-Identifier: Apache-2.0
"""The acknowledgement of one entry that many subscriptions make, built and encoded once.

A message that goes to thousands of subscriptions is acknowledged thousands of times, nearly always alone and in the
same words. The first two acknowledgements of an entry are made as any other; from then on they share one. The progress
log remembers those of its topic by the position of the entry.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from meridian_broker.positions import ZERO, Progress

if TYPE_CHECKING:
    from meridian_broker.ledgers.index import Place
    from meridian_broker.positions.position import Position

REMEMBERED: Final = 64
"""Entries that subscriptions are acknowledging at the same time; with more of them, some are built again."""


class CommonAck:
    """The acknowledgement of one entry by a subscription that was never rewound nor deleted."""

    __slots__ = ("after", "before", "delta", "encoded", "position", "region", "upto")

    def __init__(self, position: Position, place: Place, before: Position) -> None:
        """:param position: of the entry, in this region. :param before: the last entry before it."""
        self.position = position
        self.before = before
        self.region, self.after, self.upto = place
        self.delta: Final = Progress()
        """Shared: copy it before it is added to."""
        self.delta.ack(ZERO, *place)
        self.encoded: Final = self.delta.encode()
