# SPDX-License-Identifier: Apache-2.0
"""Exact backlogs and holes: looks ahead of a cursor without blocking the loop, at single entries only where some are
done."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from meridian_broker.ledgers.index import LedgerIndex
from meridian_broker.ledgers.store import LedgerNotFound
from meridian_broker.positions.position import Position
from meridian_broker.topics.subscriptions.subscription import Subscription

WALK: Final = 100_000
"""Entries that are examined. Entries farther ahead all count as backlog."""
CHUNK: Final = 500
"""Entries looked at before other tasks run; no more than ``times.BLOCK``."""
HOLES_KEPT: Final = 1000


@dataclass(frozen=True, slots=True)
class Backlog:
    """The state of a subscription."""

    mark_delete: Position
    backlog: int
    """Entries neither acked nor dropped."""
    holes: list[tuple[Position, Position]]
    """Ranges ``(after, upto]`` acked or dropped beyond mark-delete, in this region's positions; only the first ones."""


async def backlog_of(subscription: Subscription, holes_kept: int = HOLES_KEPT, walk: int = WALK) -> Backlog:
    """Look ahead of the cursor. Entries acked meanwhile may or may not count; a rewind restarts the look.

    :param walk: number of entries examined.
    :raises LedgerError: a ledger cannot be read.
    """
    while True:
        epoch = subscription.cursor.progress.epoch
        found = await _look(subscription, holes_kept, walk)
        if subscription.cursor.progress.epoch == epoch:
            return found


async def _look(subscription: Subscription, holes_kept: int, walk: int) -> Backlog:
    log = subscription.topic.log
    mark_delete = subscription.cursor.mark_delete
    end = log.last_confirmed
    if not subscription.durable:
        return Backlog(mark_delete, log.distance(mark_delete, end), [])
    holes: list[tuple[Position, Position]] = []
    backlog = walked = 0
    unacked = last = mark_delete
    for ledger, entries, _ in log.counts():
        if ledger < mark_delete.ledger or not entries or walked >= walk:
            continue
        first = mark_delete.entry + 1 if ledger == mark_delete.ledger else 0
        while first < entries and walked < walk:
            upto = min(first + CHUNK, entries)
            try:
                index = log.index(ledger) or await log.load_index(ledger)
            except LedgerNotFound:
                break  # trimmed meanwhile
            if subscription.cursor.times is not None:
                for entry in (first, upto - 1):  # a chunk lies in two blocks at most
                    await subscription.cursor.times.load(Position(ledger, entry))
            for begin, stop in _owed(subscription, index, first, upto):
                backlog += stop - begin
                before = Position(ledger, begin - 1) if begin else last
                if before != unacked and len(holes) < holes_kept:
                    holes.append((unacked, before))
                unacked = Position(ledger, stop - 1)
            walked += upto - first
            first = upto
            last = Position(ledger, upto - 1)
            await asyncio.sleep(0)
    if last != unacked and len(holes) < holes_kept:
        holes.append((unacked, last))
    if holes and holes[0][0] == mark_delete:  # the cursor is still on its way, as after the topic was opened
        mark_delete = holes.pop(0)[1]
    return Backlog(mark_delete, backlog + log.distance(last, end), holes)


def _owed(subscription: Subscription, index: LedgerIndex, first: int, upto: int) -> Iterator[tuple[int, int]]:
    """Ranges of owed entries from ``first`` to before ``upto``; the ends of the ranges are excluded, too."""
    cursor, ledger = subscription.cursor, index.ledger_id
    done = cursor.are_done(index, first, upto - 1)
    if done:
        return
    if done is False and index.count(first, upto - 1) == upto - first:
        yield first, upto
        return
    for entry, region, origin in index.origins(first, upto - 1):
        if cursor.is_owed(region, origin, Position(ledger, entry)):
            yield entry, entry + 1
