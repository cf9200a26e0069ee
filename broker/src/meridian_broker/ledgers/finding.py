# SPDX-License-Identifier: Apache-2.0
"""Finds the entries of one origin in a topic's log, for other regions that ask for them (R5, R6)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Final

from meridian_broker.ledgers.entry import unpack
from meridian_broker.ledgers.index import LedgerIndex
from meridian_broker.ledgers.log import TopicLog
from meridian_broker.ledgers.reading import Stored
from meridian_broker.ledgers.store import LedgerNotFound
from meridian_broker.positions.position import EARLIEST, LATEST, Position

READ_BYTES: Final = 1 << 20
"""Most bytes of one read; one entry is always read, however large."""


async def origins_between(
    log: TopicLog, region: str, after: Position, before: Position, most: int
) -> list[tuple[Position, Position]]:
    """``(origin, stored position)`` of a region's entries strictly between the two, in the origin's order.

    At least ``most`` of them, if there are that many. Entries that arrived late are in later ledgers: this region's own
    are always found, those of others only when no upper bound stops the search.

    :raises LedgerError: a ledger cannot be read.
    """
    spans = log.spans()
    is_own = region == log.region
    known = [span.own_before if is_own else span.origins_before.get(region, EARLIEST) for span in spans]
    first = max((number for number, last in enumerate(known) if last <= after), default=0)
    found: list[tuple[Position, Position]] = []
    for number in range(first, len(spans)):
        is_past = known[number] >= before if not is_own else before == LATEST and len(found) >= most
        if is_past or (before == LATEST and len(found) >= most):
            break
        index = await log.load_index(spans[number].ledger_id)
        found += [
            (origin, Position(index.ledger_id, entry)) for origin, entry in index.between(region, after, before, most)
        ]
    return sorted(found)


async def goes_on_behind(log: TopicLog, end: Position, ends: Mapping[str, Position]) -> bool:
    """Whether messages were accepted after ``end``. Entries from before it do not count, even if a restore or a repair
    of damaged entries stored copies of them after it.

    :param ends: per other region, its last entry before the end.
    :raises LedgerError: a ledger cannot be read.
    """
    for span in log.spans():
        if span.ledger_id < end.ledger:
            continue
        index = await log.load_index(span.ledger_id)
        first = end.entry + 1 if span.ledger_id == end.ledger else 0
        if index.between(log.region, end, LATEST, 1) or _is_foreign_behind(index, first, ends):
            return True
    return False


def _is_foreign_behind(index: LedgerIndex, first: int, ends: Mapping[str, Position]) -> bool:
    """Whether an entry from ``first`` on comes from another region and is later than that region's end."""
    if not index.is_foreign_from(first):
        return False
    for region in index.codes.names[1:]:
        later = index.between(region, ends.get(region, EARLIEST), LATEST, len(index.kinds))
        if any(entry >= first for _, entry in later):
            return True
    return False


async def stored_at(log: TopicLog, places: list[tuple[Position, Position]]) -> AsyncIterator[tuple[Position, Stored]]:
    """``(origin, stored entry)`` for results of ``origins_between``; neighbours are read together.

    :raises LedgerError: an entry cannot be read.
    """
    at = 0
    while at < len(places):
        first, count = places[at][1], 1
        while at + count < len(places) and places[at + count][1] == (first.ledger, first.entry + count):
            count += 1
        if not log.holds(first):
            raise LedgerNotFound(f"entry {first} is no longer stored here: it was trimmed")
        for stored in await log.read_after(Position(first.ledger, first.entry - 1), count, READ_BYTES):
            yield places[at][0], stored
            at += 1


async def last_message(log: TopicLog) -> Position:
    """The last entry a client may see: markers do not count. -1:-1 when there is none.

    :raises LedgerError: the entries' headers cannot be read.
    """
    position = log.last_confirmed
    while log.holds(position):
        index = await log.load_index(position.ledger)
        if index.place(position.entry) is not None or not unpack(await log.read_one(position)).is_marker:
            return position
        before = log.before(position)
        if before >= position:
            break
        position = before
    return Position(-1, -1)
