# SPDX-License-Identifier: Apache-2.0
"""Which events are applied in one transaction: as many as stores accept, because a transaction costs more than an
event."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from meridian_broker.metadata.sync.events import Changes, Event, Message
from meridian_broker.metadata.sync.merging import is_merged
from meridian_broker.metadata.sync.outbox import MAX_BYTES

EVENTS_TOGETHER: Final = 31
"""Events of one transaction. Each takes four operations at most (value, tombstone, conflict, parked state) and is
checked in three places, and a store accepts 128 of either."""


def in_transactions(events: Sequence[Event]) -> list[Sequence[Event]]:
    """As few groups as stores allow, in order."""
    groups: list[list[Event]] = []
    number = size = 0
    for event in events:
        added, more = _cost([event])
        number, size = number + added, size + more
        if not groups or number > EVENTS_TOGETHER or size > MAX_BYTES:
            groups.append([])
            number, size = added, more
        groups[-1].append(event)
    return [*groups]


def in_bursts(messages: Sequence[Message]) -> list[list[Message]]:
    """Split messages, in order, into the fewest groups that a transaction can hold and in which no path occurs twice. A
    message that is too large for one transaction forms its own group, as does a mark, which is about everything before
    it."""
    bursts: list[list[Message]] = []
    touched: set[str] = set()
    number = size = 0
    for message in messages:
        events = message.events if isinstance(message, Changes) else ()
        added, more = _cost(events)
        number, size = number + added, size + more
        is_over = number > EVENTS_TOGETHER or size > MAX_BYTES
        if is_over or not events or not touched or any(event.path in touched for event in events):
            bursts.append([])
            touched = set()
            number, size = added, more
        bursts[-1].append(message)
        touched |= {event.path for event in events}
    return bursts


def _cost(events: Sequence[Event]) -> tuple[int, int]:
    """The operations that a store counts, and bytes. A merged event may become a write by this region."""
    return sum(1 + is_merged(event.path) for event in events), sum(len(event.state.value or b"") for event in events)
