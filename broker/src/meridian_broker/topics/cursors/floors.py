# SPDX-License-Identifier: Apache-2.0
"""Floors: the position per origin below which no region owes a subscription anything, so that detail can go (R11).

Acks alone would leave a permanent hole in progress at each dropped entry (R14). So each region reports up to which
position of each origin it owes nothing: every entry stored here is acked or dropped, and no missing one will arrive.
A report is sent once it and the drops before it are durable. The minimum of the reports of all regions of the topic is
a floor; it joins progress, which all regions merge by maximum.

This never turns a drop into an ack: a region that still owes an entry keeps the floor below it. A report is valid only
while the subscription's beginning is unchanged and no rewind arrives; regions that know of different ones wait for each
other.

Regions removed from the topic are no longer waited for. A region that is alone in a topic keeps its detail: if it were
joined with others again, its own floors would take from them what only it dropped. For the same reason it merges old
rewinds (``rewind_merging.py``) only as far as its stored entries are acked.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from meridian_broker.ledgers.store import LedgerError
from meridian_broker.positions import Position
from meridian_broker.positions.position import EARLIEST
from meridian_broker.positions.reports import Report, vouched
from meridian_broker.topics.cursors import log_walks, rewind_merging
from meridian_broker.topics.journal.changes import Kind

if TYPE_CHECKING:
    from meridian_broker.ledgers.index import LedgerIndex, Place
    from meridian_broker.ledgers.log import TopicLog
    from meridian_broker.topics.cursors.cursor import Cursor

WALK: Final = 20_000
"""Entries after a cursor that are examined individually; all later ones count as owed."""


async def look_after(cursor: Cursor) -> None:
    """Called periodically: report what is new, and raise floors.

    :raises LedgerError: an index cannot be read.
    """
    cursor.forget_drops()
    has_old_rewinds = rewind_merging.are_many(cursor)
    if _is_of_many(cursor):
        if has_old_rewinds or cursor.progress.count_detail():
            await _report(cursor)
            rise(cursor)
    elif has_old_rewinds and not rewind_merging.are_kept(cursor):
        done = await _unless_rewound(cursor, _acked_or_gone_upto(cursor))
        if done is not None:
            rewind_merging.merge_done(cursor, done)


def rise(cursor: Cursor) -> None:
    """Raise the floors to what all regions reported durably, and forget the detail below."""
    if not cursor.progress.reports or not _is_of_many(cursor):
        return
    context, progress = cursor.context, cursor.progress
    floors = vouched(progress.reports, context.regions(), progress.state(), progress.floors())
    if floors:
        cursor.flush_pending()
        delta = progress.empty_delta()
        for region, position in floors.items():
            delta.raise_floor(region, position)
        cursor.join_floors(delta)
        context.progress_log.append(Kind.FLOORS, cursor.name, delta.encode())
        context.tell_others(cursor.name, delta)
        cursor.advance()
    if rewind_merging.are_many(cursor):
        rewind_merging.merge(cursor, context.regions())


def _is_of_many(cursor: Cursor) -> bool:
    return cursor.durable and cursor.replicated and len(cursor.context.regions()) > 1


async def _report(cursor: Cursor) -> None:
    """Report up to where nothing is owed here, if that is beyond what acks say and was not reported yet.

    If old rewinds are to be merged, report also that this region knows them.
    """
    context = cursor.context
    found = await _unless_rewound(cursor, owed_nothing_upto(cursor))
    if found is None:
        return
    progress, acked = cursor.progress, cursor.progress.floors()
    upto = {region: position for region, position in found.items() if position > acked.get(region, EARLIEST)}
    known, state = progress.reports.get(context.region), progress.state()
    is_worth_it = upto or rewind_merging.are_many(cursor)
    if not is_worth_it or (known is not None and known.state == state and known.upto == upto):
        return
    stamp = context.clock.next() if known is None else context.clock.next(after=known.stamp)
    delta = progress.empty_delta()
    delta.reports = {context.region: Report(stamp, state, upto)}

    def durable(error: LedgerError | None) -> None:
        if error is None and cursor.owner.is_there:
            rise(cursor)

    progress.join(delta)
    context.progress_log.append(Kind.MERGED, cursor.name, delta.encode(), durable)
    context.tell_others(cursor.name, delta)


def owed_nothing_upto(cursor: Cursor) -> log_walks.Steps[dict[str, Position]]:
    """Per origin: every entry up to here is acked or dropped, or is not stored in this region and will not arrive.

    Empty while a compacted view is read, because that passes entries which are neither. Void if a rewind or an
    earlier beginning arrives meanwhile.
    """
    log, progress = cursor.context.log, cursor.progress
    if cursor.compacted is not None:
        return {}
    at = cursor.mark_delete
    reached = yield from _stored_upto(log, at)
    owed: dict[str, Position] = {}
    left, looked = WALK, 0
    while (following := log.after(at)) is not None:
        ledger, first = following
        index = log.index(ledger)
        if index is None:
            yield ledger
            continue
        last = index.last_of_runs(first, log_walks.SLICE)
        some = list(index.runs(first, last))
        owed_runs = [run for run in some if not progress.all_acked(*run)]
        if owed_runs and left:
            last = min(last, first + min(left, log_walks.SLICE) - 1)
            some, owed_runs = list(index.runs(first, last)), list(_owed(cursor, index, first, last))
            left -= last - first + 1
            looked += last - first
        for region, _, end in some:
            reached[region] = max(reached.get(region, EARLIEST), end)
        for region, prev, _ in owed_runs:  # late arrivals are stored after later entries of their origin
            owed[region] = min(owed.get(region, prev), prev)
        at, looked = Position(ledger, last), looked + log_walks.LEDGER_COSTS + len(some)
        if looked >= log_walks.SLICE:
            yield None
            looked = 0
    for region, prev in owed.items():
        reached[region] = min(reached[region], prev)
    for region in reached:
        for missing_after, _ in log.holes.of(region):
            reached[region] = min(reached[region], missing_after)
    return reached


def _owed(cursor: Cursor, index: LedgerIndex, first: int, last: int) -> Iterator[Place]:
    """The entries from ``first`` to ``last`` of a ledger that are neither acked nor dropped."""
    for entry in range(first, last + 1):
        place = index.place(entry)
        if place is not None and cursor.is_owed(place.region, place.origin, Position(index.ledger_id, entry)):
            yield place


async def _unless_rewound(cursor: Cursor, steps: log_walks.Steps[dict[str, Position]]) -> dict[str, Position] | None:
    """The result of the steps; None: the subscription was deleted meanwhile, or the result is void.

    :raises LedgerError: an index cannot be read.
    """
    context, progress = cursor.context, cursor.progress
    state, reading = progress.state(), cursor.compacted
    found = await log_walks.carry_out(context.log, context.scheduler, steps)
    is_void = progress.state() != state or cursor.compacted is not reading
    return None if context.failure is not None or not cursor.owner.is_there or is_void else found


def _acked_or_gone_upto(cursor: Cursor) -> log_walks.Steps[dict[str, Position]]:
    """As ``owed_nothing_upto``, but before any entry that is stored here and was dropped without an ack: older acks
    of it, from before a rewind, must not count again. Regions that join the topic later get it, and owe it.
    """
    log, progress = cursor.context.log, cursor.progress
    upto = yield from owed_nothing_upto(cursor)
    first = next(iter(log.spans()), None)
    if cursor.dropped is None or first is None:
        return upto
    given_back, acked = {**first.origins_before, log.region: first.own_before}, progress.floors()
    for _, region, after, end in cursor.dropped.runs():
        after = max(after, given_back.get(region, EARLIEST), acked.get(region, EARLIEST))
        if after < min(end, upto.get(region, EARLIEST)) and not progress.all_acked(region, after, end):
            upto[region] = after
    return upto


def _stored_upto(log: TopicLog, upto: Position) -> log_walks.Steps[dict[str, Position]]:
    """The last entry of each origin that was ever stored at or before a position of the log."""
    found: dict[str, Position] = {}
    for span in log.spans():
        if span.ledger_id > upto.ledger:
            break
        found = {**span.origins_before, log.region: span.own_before}
    while log.holds(upto) and log.index(upto.ledger) is None:
        yield upto.ledger
    index, first = log.index(upto.ledger), 0
    while index is not None and first <= upto.entry:
        last = min(index.last_of_runs(first, log_walks.SLICE), upto.entry)
        for region, _, origin in index.runs(first, last):
            found[region] = max(found.get(region, EARLIEST), origin)
        first = last + 1
        if first <= upto.entry:
            yield None
    return found
