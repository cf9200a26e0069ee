# SPDX-License-Identifier: Apache-2.0
"""Acknowledgements of entries that this region has trimmed, and seeks by time (R12).

A seek goes back over what its region stores. A seek by place names these entries. A seek by time rules by publish time,
in every region, so it would take back trimmed entries as well: regions that trimmed less would owe them again, and this
one, where the consumers are, could not deliver them. The backlogs would differ for good, and no floor would pass those
entries. So a seek by time keeps what is trimmed here acknowledged, as far as it was.

A trimmed entry takes its publish time with it, which after earlier seeks by time decides whether it is acknowledged. So
before a ledger is trimmed, acknowledgements in it are recorded as valid whatever the entries' publish times.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from meridian_broker.ledgers.block_times import BLOCK
from meridian_broker.ledgers.scheduling import next_turn
from meridian_broker.ledgers.store import LedgerError
from meridian_broker.positions import AckSet, Progress
from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.topics.cursors.log_walks import SLICE, Steps
from meridian_broker.topics.journal.changes import Kind

if TYPE_CHECKING:
    from meridian_broker.ledgers.chapters import Chapter
    from meridian_broker.ledgers.index import LedgerIndex
    from meridian_broker.ledgers.log import TopicLog
    from meridian_broker.topics.cursors.cursor import Cursor


def stays_acknowledged(cursor: Cursor, upto: Position) -> Steps[dict[str, AckSet]]:
    """Per origin the acknowledgements that a seek by time to right after ``upto`` keeps: of entries that are stored
    before, or are not stored here any more.

    Entries that may still arrive are not among them, nor those that came back late, as far as indexes in memory show
    them (R5). Nothing is kept while a compacted view is read, because that has entries that the log does not have.
    """
    found: dict[str, AckSet] = {}
    if cursor.compacted is not None:
        return found
    log = cursor.context.log
    for region, end in _ends(log, upto).items():
        here = [(after, _right_before(before)) for after, before in log.holes.of(region)]
        here += yield from _stored_behind(log, upto, region, end)
        acks = cursor.progress.acked_whenever(region, end, here)
        if not acks.is_empty:
            found[region] = acks
    return found


def _ends(log: TopicLog, upto: Position) -> dict[str, Position]:
    """The last entry of each origin that is stored at or before ``upto``, or was stored before what is here; as far as
    that is in memory.
    """
    if upto.ledger <= log.staying_from or not log.holds(Position(upto.ledger, 0)):
        ends = log.gone_upto()
    else:
        ends = log.origins_before(upto.ledger)
    index = log.index(upto.ledger) if upto.ledger >= log.staying_from else None
    for region, last in ({} if index is None else index.last_of_each(upto.entry + 1)).items():
        ends[region] = max(ends.get(region, EARLIEST), last)
    return ends


def _stored_behind(log: TopicLog, upto: Position, region: str, end: Position) -> Steps[list[tuple[Position, Position]]]:
    """What is stored of a region after a position although it lies at or before ``end``: it came back late (R5)."""
    found: list[tuple[Position, Position]] = []
    for ledger, _, _ in log.counts():
        index = log.index(ledger)
        if index is None or ledger < max(upto.ledger, log.staying_from):
            continue
        late = index.between(region, EARLIEST, Position(end.ledger, end.entry + 1), len(index))
        for origin, entry in late:
            place = index.place(entry)
            if place is not None and (ledger, entry) > upto:
                found.append((place.prev, origin))
        if late:
            yield None
    return found


def _right_before(position: Position) -> Position:
    return Position(position.ledger, max(position.entry - 1, -1))


async def note_acknowledged(cursor: Cursor, going: Sequence[Chapter]) -> None:
    """Before ledgers are trimmed: record acknowledgements in them as valid whatever the entries' publish times.

    Entries that cannot be read are left out: a region that still stores them may deliver them again after a seek.
    """
    context, progress = cursor.context, cursor.progress
    if cursor.times is None or not going:
        return
    while True:
        delta, layers = progress.empty_delta(), progress.layers
        try:
            for ledger in _with_times(cursor, {chapter.ledger_id for chapter in going}):
                await _claim_ledger(cursor, delta, ledger)
        except LedgerError:
            return
        if context.failure is not None or not cursor.owner.is_there:
            return
        if progress.layers is layers:
            break  # otherwise it was rewound meanwhile
    if cursor.join(delta):
        context.progress_log.append(Kind.MERGED, cursor.name, delta.encode())
        if cursor.replicated:
            context.tell_others(cursor.name, delta)


def _with_times(cursor: Cursor, ledgers: set[int]) -> list[int]:
    """The ledgers with entries that are not acknowledged whatever their publish times; this needs no index."""
    log, progress, found = cursor.context.log, cursor.progress, []
    for span, following in pairwise(log.spans()):
        if span.ledger_id in ledgers:
            ends = {**following.origins_before, log.region: following.own_before}
            before = {**span.origins_before, log.region: span.own_before}
            if not all(progress.all_acked(region, before.get(region, EARLIEST), end) for region, end in ends.items()):
                found.append(span.ledger_id)
    return found


async def _claim_ledger(cursor: Cursor, delta: Progress, ledger: int) -> None:
    """:raises LedgerError: its entries cannot be read, or it was trimmed meanwhile."""
    log, progress, first = cursor.context.log, cursor.progress, 0
    index = await log.load_index(ledger)
    while first < len(index):
        last = index.last_of_runs(first, SLICE)
        if not all(progress.all_acked(*run) for run in index.runs(first, last)):
            last = min(last, first + SLICE - 1)
            for entry in {one // BLOCK: one for one in range(first, last + 1)}.values():
                if cursor.times is not None:
                    await cursor.times.load(Position(ledger, entry))
            _claim_entries(cursor, delta, index, first, last)
        first = last + 1
        await next_turn(cursor.context.scheduler)


def _claim_entries(cursor: Cursor, delta: Progress, index: LedgerIndex, first: int, last: int) -> None:
    progress, times = cursor.progress, cursor.times
    if times is None or progress.epoch != delta.epoch:
        return
    for entry in range(first, last + 1):
        place = index.place(entry)
        time_ms = times.of(Position(index.ledger_id, entry))
        if place is None or not time_ms or place.origin <= progress.start(place.region):
            continue
        region, prev, origin = place
        if progress.is_acked(region, origin, time_ms) and not progress.is_acked(region, origin):
            delta.ack(progress.epoch, region, prev, origin)
