# SPDX-License-Identifier: Apache-2.0
"""What acknowledgements claim: individual, cumulative, and those of non-durable subscriptions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from meridian_broker.ledgers.store import LedgerError
from meridian_broker.positions import ZERO, Progress, Stamp
from meridian_broker.positions.position import Position
from meridian_broker.topics.cursors import log_walks

if TYPE_CHECKING:
    from meridian_broker.ledgers.log import TopicLog
    from meridian_broker.ledgers.store import Done
    from meridian_broker.topics.cursors.ack_state import AckState
    from meridian_broker.topics.cursors.cursor import Cursor
    from meridian_broker.topics.cursors.resent import Resent

log = logging.getLogger(__name__)

Rest = Callable[[], Coroutine[Any, Any, None]]
"""Finishes an acknowledgement whose entries have to be looked up first. Raises ``LedgerError`` if that fails."""


def go_on_later(cursor: Cursor, rest: Rest, confirmed: Done | None) -> None:
    """Do the rest of an acknowledgement in the background."""
    work = partial(_go_on, cursor, cursor.looking_up().begin(), rest, confirmed)
    cursor.context.serve(work, "look acknowledged entries up")


async def _go_on(cursor: Cursor, number: int, rest: Rest, confirmed: Done | None) -> None:
    """A waiting caller gets the failure as its answer. Without one the error is raised and fences the topic, so that
    the consumer reconnects and receives the entries again, instead of relying on a lost acknowledgement.
    """
    failure: LedgerError | None = None
    try:
        await rest()
    except Exception as error:
        failure = error if isinstance(error, LedgerError) else LedgerError(f"cannot look up the entry: {error}")
        log.warning(
            "%s: an acknowledgement for subscription %s was not recorded, so its messages may be delivered again: %s",
            cursor.context.name,
            cursor.name,
            failure,
        )
        if confirmed is not None:
            confirmed(failure)
        if confirmed is None or not isinstance(error, LedgerError):
            raise
    finally:
        cursor.looking_up().end(number, failure)


async def once_indexed(cursor: Cursor, ledger: int, attempt: Callable[[], int | None]) -> None:
    """Load the index of ``ledger``, then of each ledger that ``attempt`` names, until it names none."""
    missing: int | None = ledger
    while missing is not None:
        await log_walks.load_index(cursor.context.log, missing)
        missing = attempt()


def each(
    cursor: Cursor,
    acker: AckState,
    positions: list[Position],
    stale: frozenset[Position],
    batches: dict[Position, int],
    confirmed: Done | None,
) -> None:
    """Individual acknowledgements of a durable subscription. The entries' indexes are in memory.

    :param stale: positions of entries that this consumer holds only from before a rewind (R13).
    """
    log = cursor.context.log
    delta = cursor.open_delta()
    epoch, release = acker.epoch, cursor.owner.release
    parts: list[Position] = []
    for position in positions:
        if stale:
            epoch = ZERO if position in stale else acker.epoch
        if not log.holds(position):
            _late(cursor, delta, epoch, position, batches.get(position))
            release(acker, position)
            continue
        index = log.index(position.ledger)
        assert index is not None
        place = index.place(position.entry)
        part = batches.get(position) if batches else None
        if part is not None:
            if place is not None:
                log_walks.claim_part(log, delta, epoch, position, place, part)
            parts.append(position)
            continue
        if place is not None:
            delta.ack(epoch, place.region, place.prev, place.origin)
        release(acker, position)
    cursor.changed(confirmed, len(positions))
    if parts:
        cursor.flush()
        for position in parts:  # the last part may complete a batch
            place = log.place(position)
            if place is not None and cursor.progress.is_acked(place.region, place.origin):
                release(acker, position)


def _late(cursor: Cursor, delta: Progress, epoch: Stamp, position: Position, part: int | None = None) -> int:
    """Acknowledge an entry whose space was freed, or that was dropped while a consumer held it (R14). Returns the
    number of entries claimed: 0 if its origin is unknown.
    """
    index = cursor.context.late.index(position)
    place = None if index is None else index.place(position.entry)
    if index is None or place is None:
        return 0
    if part is None:
        delta.ack(epoch, place.region, place.prev, place.origin)
    else:
        size = index.messages(position.entry)
        delta.ack_batch(epoch, place.region, place.origin, size, ~part & (1 << size) - 1, place.prev)
    return 1


def is_known(cursor: Cursor, position: Position) -> bool:
    """Whether a cumulative acknowledgement of ``position`` may count: nothing before it is owed, or it is the id of
    an entry stored here or sent by this region.

    Any other id comes from another region, and says nothing about entries that happen to have smaller ids here.
    """
    if position <= cursor.start():
        return True
    if position.entry < 0:  # everything before a ledger, see before_ledger
        position = Position(position.ledger, 0)
    if cursor.context.log.holds(position):
        return True
    compacted = cursor.compacted
    if compacted is None or not cursor.durable:  # a reader's acknowledgements claim nothing
        return compacted is not None and position <= compacted.horizon
    return compacted.knows(position)


def up_to(
    cursor: Cursor,
    acker: AckState,
    behind: Position,
    position: Position,
    part: int | None,
    confirmed: Done | None,
    resent: Resent | None,
) -> Rest | None:
    """A cumulative acknowledgement, except for entries that are read from a compacted view.

    :param behind: it applies to entries after this position.
    :param part: the messages of the last entry that it does not cover, as bits; None: it covers all.
    :param resent: what had been sent since the newest rewind when it arrived; only those entries count in the newest
        epoch (R13).

    What it covers becomes one delta, even if computing it takes several turns of the loop: of the chunks of a message
    either all count or none (R18).

    :returns: the rest of the work, if it takes several turns or an index that is not in memory.
    """
    log = cursor.context.log
    after = max(cursor.mark_delete, behind)
    if cursor.compacted is not None:
        after = max(after, cursor.compacted.horizon)
    pieces = acker.pieces
    withheld, chunks = (frozenset(), []) if pieces is None else pieces.acknowledged(position)
    if pieces is not None:
        pieces.forget(position)
    read = cursor.owner.read_position
    exceptions = log_walks.Exceptions(cursor.dropped, resent, withheld=withheld, damage=log.damage, read=read)
    delta = cursor.progress.empty_delta()
    steps = _claim_up_to(cursor, acker.epoch, delta, after, position, part, chunks, exceptions)

    try:
        wanted = next(steps)
    except StopIteration as done:
        cursor.claim(delta, done.value, confirmed)
        return None
    if resent is not None:  # it does not cover what is sent from here on
        exceptions.resent = resent.copy()
    return partial(_take_steps, cursor, delta, steps, wanted, confirmed)


def _claim_up_to(
    cursor: Cursor,
    epoch: Stamp,
    delta: Progress,
    after: Position,
    position: Position,
    part: int | None,
    chunks: list[Position],
    exceptions: log_walks.Exceptions,
) -> log_walks.Steps[int]:
    """Claim in ``delta`` everything beyond ``after`` that an acknowledgement of ``position`` covers. Returns the number
    of entries.
    """
    log = cursor.context.log
    if cursor.owner.streams is not None:
        yield from _index_of(log, position)
    only = exceptions.only = _covered(cursor, position)
    upto = position if part is None else log.before(position)
    claimed = yield from log_walks.claim_between(log, delta, epoch, after, upto, exceptions)
    for chunk in chunks:  # of messages now complete, including chunks that earlier acknowledgements did not cover
        yield from _index_of(log, chunk)
        place = log.place(chunk) if log.holds(chunk) else None
        if place is not None and (only is None or place.region in only):
            delta.ack(exceptions.counted(chunk, epoch), place.region, place.prev, place.origin)
            claimed += 1
    counted = exceptions.counted(position, epoch)
    if cursor.dropped is not None and only is None:  # its consumer saw the entry that it names
        claimed += _late(cursor, delta, counted, position, part)
    if part is not None and position > after and log.holds(position):
        yield from _index_of(log, position)
        place = log.place(position)
        if place is not None:
            log_walks.claim_part(log, delta, counted, position, place, part)
            claimed += 1
    return claimed


def _index_of(log: TopicLog, position: Position) -> Iterator[int]:
    """Load the index of the entry's ledger, as long as it is stored."""
    while log.holds(position) and log.index(position.ledger) is None:
        yield position.ledger


async def _take_steps(
    cursor: Cursor,
    delta: Progress,
    steps: log_walks.Steps[int],
    wanted: int | None,
    confirmed: Done | None,
) -> None:
    """Execute the remaining steps and let others run in between."""
    while True:
        await log_walks.make_way(cursor.context.log, cursor.context.scheduler, wanted)
        try:
            wanted = next(steps)
        except StopIteration as done:
            cursor.open_delta()  # the subscription may have been rewound
            cursor.claim(delta, done.value, confirmed)
            return


def before_ledger(log: TopicLog, position: Position, floor: Position) -> Position:
    """The last entry before a ledger of which ``position`` names entry -1. C++ clients send that when they
    acknowledge cumulatively some messages of a batch that is the ledger's first entry. A ledger that is not stored
    here is returned unchanged.

    :param floor: everything up to here is acknowledged, or no longer in the log.
    """
    first = Position(position.ledger, 0)
    if not log.holds(first):
        return position
    before = log.before(first)
    return before if log.holds(before) else min(before, floor)


def _covered(cursor: Cursor, position: Position) -> frozenset[str] | None:
    """Origins that a cumulative acknowledgement of this entry applies to; None: all."""
    streams, log = cursor.owner.streams, cursor.context.log
    if streams is None:
        return None
    place = log.place(position) if log.holds(position) else None
    return frozenset() if place is None else streams.covered_by(place.region, position)


def in_memory(
    cursor: Cursor,
    acker: AckState,
    positions: list[Position],
    confirmed: Done | None,
    *,
    tracks_holders: bool,
) -> None:
    """Acknowledgements of a reader, which has no progress but only a position in memory."""
    for position in positions:
        cursor.owner.release(acker, position)
        if not tracks_holders and cursor.context.log.holds(position):
            cursor.mark_delete = max(cursor.mark_delete, position)
    if cursor.context.terminated is not None:
        cursor.owner.dispatch_soon()
    if confirmed is not None:
        confirmed(None)
