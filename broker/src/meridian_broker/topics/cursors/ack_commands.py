# SPDX-License-Identifier: Apache-2.0
"""The two kinds of ACK: individual, and cumulative on subscriptions whose consumers do not share entries.

Most acknowledgements are complete when these functions return. If an index has to be loaded first, or the work takes
several turns of the loop, they return the rest of it (``acknowledging.Rest``).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from meridian_broker.ledgers.store import LedgerNotFound
from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.topics.cursors import acknowledging, rewinding

if TYPE_CHECKING:
    from meridian_broker.ledgers.store import Done
    from meridian_broker.topics.cursors.ack_state import AckState
    from meridian_broker.topics.cursors.cursor import Cursor


def individual(
    cursor: Cursor,
    acker: AckState,
    positions: list[Position],
    batches: dict[Position, int] | None,
    confirmed: Done | None,
) -> acknowledging.Rest | None:
    """Acknowledge these entries. All ids of one command become one delta (R18).

    :param batches: for partly acked entries, the bits that are *not* acked yet.
    :param confirmed: called once it is durable.
    """
    if not cursor.durable:
        acknowledging.in_memory(cursor, acker, positions, confirmed, tracks_holders=cursor.owner.tracks_holders)
        return None
    stale = rewinding.stale(cursor, positions)
    if cursor.compacted is not None and positions:
        positions = cursor.compacted.acknowledge(acker, positions, stale, batches, confirmed)
        if not positions:
            return None
    parts = batches or {}
    missing = _attempt(cursor, acker, positions, stale, parts, confirmed)
    if missing is None:
        return None
    attempt = partial(_attempt, cursor, acker, positions, stale, parts, confirmed)
    return partial(acknowledging.once_indexed, cursor, missing, attempt)


def _attempt(
    cursor: Cursor,
    acker: AckState,
    positions: list[Position],
    stale: frozenset[Position],
    batches: dict[Position, int],
    confirmed: Done | None,
) -> int | None:
    """:returns: the ledger whose index has to be loaded first, if any; then nothing was done."""
    log = cursor.context.log
    for position in positions:
        if log.index(position.ledger) is None and log.holds(position):
            return position.ledger
    acknowledging.each(cursor, acker, positions, stale, batches, confirmed)
    return None


def cumulative(
    cursor: Cursor, acker: AckState, position: Position, part: int | None, confirmed: Done | None
) -> acknowledging.Rest | None:
    """Acknowledge everything up to ``position`` in this region's order. Without effect where consumers share entries.

    :param position: entry -1 of a ledger stands for everything before the ledger.
    :param part: bits of the last entry that are *not* acked; None: it is acked as a whole.
    """
    if cursor.owner.tracks_holders:
        if confirmed is not None:
            confirmed(None)
        return None
    log = cursor.context.log
    if not acknowledging.is_known(cursor, position):
        if confirmed is not None:
            confirmed(LedgerNotFound(f"there is no entry {position} here: the acknowledgement has no effect"))
        return None
    compacted = cursor.compacted
    if position.entry < 0:
        horizon = EARLIEST if compacted is None else compacted.horizon
        position = acknowledging.before_ledger(log, position, max(cursor.mark_delete, horizon))
    if not cursor.durable:
        acknowledging.in_memory(cursor, acker, [position], confirmed, tracks_holders=False)
        return None
    last = position
    if part is not None:  # the view may contain it when the log no longer does
        last = min(log.before(position), Position(position.ledger, position.entry - 1))
    behind = acker.acknowledges_to(last, in_part=part is not None)
    if compacted is not None and compacted.acknowledge_up_to(acker, behind, position, part, confirmed):
        return None
    return acknowledging.up_to(cursor, acker, behind, position, part, confirmed, cursor.resent)
