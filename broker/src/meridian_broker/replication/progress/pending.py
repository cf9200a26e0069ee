# SPDX-License-Identifier: Apache-2.0
"""Progress that waits to be sent to one peer, or is on its way there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from meridian_broker.positions.progress import Progress

PendingKey: TypeAlias = tuple[str, str, bool]
"""``(topic, subscription, passed on)``: progress learned from a third region is kept apart; it is not passed on
(R19)."""


@dataclass(slots=True)
class Pending:
    """Progress of one subscription that waits to be sent."""

    delta: Progress
    record: bytes | None
    """The subscription's record, if the peer may lack it; durable here, as the delta is."""
    incarnation: str
    """The topic's incarnation to which it applies (R8)."""
    entries: int = 0
    """Number of entries acknowledged in it."""
    since_ms: int = 0
    """When its first change was queued."""
    is_borrowed: bool = True
    """The delta is queued for other peers too: copied before anything is joined to it."""
