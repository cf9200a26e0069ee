# SPDX-License-Identifier: Apache-2.0
"""Seeks: where a subscription begins and where a seek moves it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from meridian_broker.bounds.clients import LATEST_TIME_MS
from meridian_broker.ledgers.log import TopicLog
from meridian_broker.ledgers.times import first_since
from meridian_broker.positions import Progress, Stamp
from meridian_broker.positions.layers import LAYERS_MAX
from meridian_broker.positions.position import EARLIEST, LATEST, Position
from meridian_broker.topics.cursors import log_walks, rewinding, trimmed
from meridian_broker.topics.cursors.log_walks import Ranges
from meridian_broker.topics.errors import LimitReached

if TYPE_CHECKING:
    from meridian_broker.topics.compaction.compaction import Compaction
    from meridian_broker.topics.context import TopicContext
    from meridian_broker.topics.cursors.cursor import Cursor
    from meridian_broker.topics.cursors.ports import ViewReading


def latest(log: TopicLog, region: str) -> dict[str, Position]:
    """The last entry of each origin. ``region``: the region of this log."""
    return _known({region: log.last_own, **log.last_origin})


async def before(log: TopicLog, region: str, position: Position) -> dict[str, Position]:
    """The last entry of each origin that is stored before a position: where a subscription that begins there begins
    in every region (R15).

    :raises LedgerError: the entries' headers cannot be read.
    """
    if position > log.last_confirmed:
        return latest(log, region)
    position = log.after(log.before(max(position, log.first))) or position
    span = next(span for span in log.spans() if span.ledger_id == position.ledger)
    index = await log.load_index(position.ledger)
    return _known({**span.origins_before, region: span.own_before, **index.last_of_each(position.entry)})


async def for_new(context: TopicContext, initial: Position) -> dict[str, Position] | None:
    """Prepare a new durable subscription, before anything changes: a ledger for its record, and the places of its
    first entry (``before``) if it begins at one.

    :raises MetadataUnavailable: no ledger can be created now.
    :raises LedgerError: the entries' headers cannot be read.
    """
    await context.progress_log.prepare()
    return None if initial in (EARLIEST, LATEST) else await before(context.log, context.region, initial)


async def position_at(log: TopicLog, compaction: Compaction | None, time_ms: int) -> Position:
    """The first entry published at or after ``time_ms``; after the last one if there is none.

    :param compaction: that of a reader of the compacted view.
    """
    if compaction is not None and (early := await compaction.first_at(time_ms)) is not None:
        return early
    found = await first_since(log, time_ms)
    return found or Position(log.last_confirmed.ledger, log.last_confirmed.entry + 1)


def _known(places: Mapping[str, Position]) -> dict[str, Position]:
    return {region: place for region, place in places.items() if place > EARLIEST}


def begin_reader(cursor: Cursor, initial: Position, *, read_compacted: bool) -> None:
    """Let a reader begin at ``initial``, which the compacted view may contain when the log no longer does."""
    log = cursor.context.log
    if initial == EARLIEST:
        cursor.start_cursor()
    else:
        cursor.start_at(log.last_confirmed if initial == LATEST else log.before(initial))
    if read_compacted and initial != LATEST:
        cursor.start_at(_before_in_view(initial, cursor.mark_delete))


async def seek(cursor: Cursor, target: Position) -> None:
    """Move so that ``target`` is the next entry: everything before it counts as acked, everything from it on does not
    (R12).

    :raises LedgerError: the entries' headers cannot be read.
    :raises LimitReached: it was rewound too often recently.
    """
    await _seek(cursor, target, None)


async def seek_to_time(cursor: Cursor, time_ms: int) -> None:
    """Move to the first entry published at ``time_ms`` or later: everything before it here counts as acked. Other
    entries published at that time or later do not, in any region, including those still to arrive (R12). Acknowledged
    entries that were trimmed here stay acknowledged in every region (``trimmed.py``).

    An entry after that position that was published earlier keeps its state.

    :raises LedgerError: the entries' headers cannot be read.
    :raises LimitReached: it was rewound too often recently.
    """
    time_ms, compacted = min(max(time_ms, 0), LATEST_TIME_MS + 1), cursor.compacted  # no entry counts as later
    target = await position_at(cursor.context.log, None if compacted is None else compacted.compaction, time_ms)
    await _seek(cursor, target, time_ms)


async def _seek(cursor: Cursor, target: Position, time_ms: int | None) -> None:
    log = cursor.context.log
    cursor.flush()
    end = Position(log.last_confirmed.ledger, log.last_confirmed.entry + 1)
    upto = log.last_confirmed if target > log.last_confirmed else log.before(min(max(target, log.first), end))
    if not cursor.durable:
        is_whole = cursor.compacted is None
        cursor.owner.disconnect_consumers()
        cursor.start_at(upto if is_whole else _before_in_view(target, upto))
        return
    delta = await _plan(cursor, target, upto, time_ms)
    rewinding.take_back(cursor, delta, upto)


async def _plan(cursor: Cursor, target: Position, upto: Position, time_ms: int | None) -> Progress:
    """The delta for a seek to right after ``upto``. It is valid in the turn in which this returns: it is computed
    again if the subscription was rewound meanwhile, another region reported an earlier beginning, or ledgers were
    trimmed.
    """
    context = cursor.context
    while True:
        delta, seen = cursor.progress.empty_delta(), Ranges()
        if cursor.compacted is not None:
            delta, seen = await _move_in_view(cursor, cursor.compacted, target)
        layers, beginning, first = cursor.progress.layers, cursor.progress.beginning, context.log.staying_from
        steps = _plan_log(cursor, delta, seen, upto, time_ms)
        await log_walks.carry_out(context.log, context.scheduler, steps)
        is_same = cursor.progress.layers is layers and cursor.progress.beginning == beginning
        if is_same and context.log.staying_from == first:
            return delta


def _plan_log(
    cursor: Cursor, delta: Progress, seen: Ranges, upto: Position, time_ms: int | None
) -> log_walks.Steps[None]:
    """Add to ``delta`` what the seek means for the entries of the log.

    :param seen: the ranges that it rules among entries that only the compacted view has.
    """
    log, progress = cursor.context.log, cursor.progress
    everything = log_walks.Exceptions()
    yield from log_walks.claim_between(log, delta, progress.epoch, _done_upto(cursor), upto, everything)
    is_back = time_ms is not None and (bool(seen) or _goes_back(cursor, upto))
    rules = {} if is_back else (yield from log_walks.rewound(log, progress, cursor.dropped, upto))
    if time_ms is not None:
        if is_back or rules:
            # Everything stored before the position was published earlier, so the rewind does not rule it.
            stays = yield from trimmed.stays_acknowledged(cursor, upto)
            delta.rewind(_next_epoch(cursor), {}, stays, publish_time_ms=time_ms)
    elif rules := _joined(seen, rules):
        epoch = _next_epoch(cursor)
        delta.rewind(epoch, rules)
        yield from log_walks.claim_ruled(log, delta, epoch, upto, rules)


def _next_epoch(cursor: Cursor) -> Stamp:
    """:raises LimitReached: there are too many rewinds that cannot be merged yet."""
    progress = cursor.progress
    if progress.count_rewinds() >= LAYERS_MAX:
        raise LimitReached(
            f"subscription {cursor.name!r} has {progress.count_rewinds()} unmerged rewinds, and {LAYERS_MAX} "
            "are the limit: seek again once they are merged. That happens within minutes once all regions of the topic "
            "can be reached and the rewound messages have been acknowledged again; remove a region that is lost for "
            "good from the topic"
        )
    return cursor.context.clock.next(progress.epoch)


async def _move_in_view(cursor: Cursor, compacted: ViewReading, target: Position) -> tuple[Progress, Ranges]:
    """Add to ``delta`` what the seek means for entries that only the compacted view has, see ``ViewReading.move``."""
    while True:
        delta = cursor.progress.empty_delta()
        seen = await compacted.move(delta, target)
        if cursor.progress.epoch == delta.epoch:  # otherwise another region rewound it meanwhile
            return delta, seen


def _done_upto(cursor: Cursor) -> Position:
    """The position up to which every entry is acknowledged, so that a seek need not claim it.

    A cursor is also past entries that were dropped or removed from a compacted view; a seek beyond those acknowledges
    them.
    """
    is_all_acked = cursor.compacted is None and (cursor.dropped is None or cursor.dropped.is_empty)
    log = cursor.context.log
    return cursor.mark_delete if is_all_acked else log.below(log.region, cursor.progress.floors())


def _goes_back(cursor: Cursor, upto: Position) -> bool:
    """Whether the cursor is past an entry after ``upto``, so that a seek takes something back; no read is needed to
    know. A position between two ledgers has two names: neither is before the other.
    """
    following = cursor.context.log.after(upto)
    return following is not None and following <= cursor.mark_delete


def _joined(one: Ranges, other: Ranges) -> Ranges:
    """The combined ranges that are ruled in two parts of a log, read one after the other."""
    ranges = dict(one)
    for region, (low, high) in other.items():
        before = ranges.get(region, (low, high))
        ranges[region] = (min(before[0], low), max(before[1], high))
    return ranges


def _before_in_view(target: Position, upto: Position) -> Position:
    """The position after which a reader of a compacted view continues with ``target``; ``upto``: its position in the
    log.
    """
    return min(upto, target if target.entry < 0 else Position(target.ledger, target.entry - 1))
