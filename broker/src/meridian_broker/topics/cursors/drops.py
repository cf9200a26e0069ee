# SPDX-License-Identifier: Apache-2.0
"""Entries removed without an acknowledgement: expired, evicted or truncated (R14).

A drop is local to this region: recorded durably next to Progress with its cause, passed over by the cursor here, and
never reported to other regions as an acknowledgement. Entries are dropped a page at a time for all subscriptions
together: the ranges are computed once, and other tasks run between pages, so that a long backlog blocks nothing.

A page's ranges include entries that are already acked, so that they join to one range per origin; an entry that is both
acked and dropped counts as acked. They are claimed along the chain (R3), so they never cover what is not stored here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterable
from typing import TYPE_CHECKING, Final

from meridian_broker.ledgers.block_times import BLOCK
from meridian_broker.ledgers.damage import is_damaged
from meridian_broker.ledgers.entry import unpack
from meridian_broker.ledgers.index import LedgerIndex
from meridian_broker.ledgers.scheduling import next_turn
from meridian_broker.ledgers.store import LedgerError
from meridian_broker.positions import Cause, Dropped
from meridian_broker.positions.position import Position
from meridian_broker.topics.errors import TopicFenced

if TYPE_CHECKING:
    from meridian_broker.ledgers.log import TopicLog
    from meridian_broker.topics.context import TopicContext
    from meridian_broker.topics.cursors.cursor import Cursor

PAGE: Final = 2000
"""Entries dropped in one step."""
PAGE_BYTES: Final = 1 << 20
"""Bytes read at a time to determine the age of entries."""

Page = tuple[LedgerIndex, list[int]]
"""Entries of one ledger, ascending, all of which are dropped."""


async def drop_old(
    context: TopicContext, cursors: Collection[Cursor], before_ms: int, cause: Cause = Cause.TTL
) -> dict[str, int]:
    """Drop what was published before ``before_ms``. Returns the number of entries dropped per subscription.

    Entries are examined from the first one that any subscription is owed, until one is younger both by its publisher's
    clock and by ours. An entry whose publish time is impossibly late is kept and does not end the search.

    :raises LedgerError: entries cannot be read.
    :raises TopicFenced: the topic was closed meanwhile; what was dropped until then stays dropped.
    """
    pages = _old_pages(context, _begin(cursors), before_ms)
    return await _drop(context, cursors, cause, pages)


async def drop_upto(context: TopicContext, cursors: Collection[Cursor], cause: Cause, upto: Position) -> dict[str, int]:
    """Drop everything up to and including a position. Returns and raises as ``drop_old``."""
    pages = _pages_upto(context.log, _begin(cursors), min(upto, context.log.last_confirmed))
    return await _drop(context, cursors, cause, pages)


def _begin(cursors: Collection[Cursor]) -> Position | None:
    return min((one.mark_delete for one in cursors), default=None)


async def _old_pages(context: TopicContext, after: Position | None, before_ms: int) -> AsyncIterator[Page]:
    log = context.log
    doubtful: list[Page] = []  # damaged, so of unknown age: those stored before an old entry are old, too
    while after is not None and (found := await log.read_after(after, PAGE, PAGE_BYTES)):
        index = await log.load_index(found[0][0].ledger)
        if is_damaged(found[0][1]):
            doubtful.append((index, [found[0][0].entry]))
            after = found[0][0]
            yield index, []
            continue
        old = []
        is_over = is_any_old = False
        for position, entry in found:
            header = unpack(entry)
            is_any_old |= header.stored_time_ms < before_ms
            if header.publish_time_ms < before_ms:
                old.append(position.entry)
            elif header.stored_time_ms >= before_ms:
                is_over = True
                break
        if is_any_old:
            for page in doubtful:
                yield page
            doubtful.clear()
        yield index, old
        if is_over:
            return
        after = found[-1][0]


async def _pages_upto(log: TopicLog, after: Position | None, upto: Position) -> AsyncIterator[Page]:
    following = None if after is None else log.after(after)
    while following is not None and following <= upto:
        index = await log.load_index(following.ledger)
        end = upto.entry if following.ledger == upto.ledger else len(index) - 1
        last = min(following.entry + PAGE - 1, end)
        yield index, list(range(following.entry, last + 1))
        following = log.after(Position(following.ledger, last))


async def _drop(
    context: TopicContext, cursors: Collection[Cursor], cause: Cause, pages: AsyncIterator[Page]
) -> dict[str, int]:
    counts = dict.fromkeys((one.name for one in cursors), 0)
    async for index, entries in pages:
        await _load_times(cursors, index.ledger_id, entries)
        if context.failure is not None:
            raise TopicFenced(f"{context.name} was closed in the meantime ({context.failure}): look it up again")
        if entries:
            ranges = _ranges(cause, index, entries)
            for one in cursors:
                if one.owner.is_there:
                    counts[one.name] += _drop_page(one, ranges, index, entries)
        await next_turn(context.scheduler)
    return counts


async def _load_times(cursors: Collection[Cursor], ledger: int, entries: list[int]) -> None:
    """After a seek by time, whether an entry is acknowledged depends on its publish time: load the times."""
    blocks = {entry // BLOCK: entry for entry in entries}
    for one in cursors:
        if one.times is not None:
            for last in blocks.values():
                await one.times.load(Position(ledger, last))


def _ranges(cause: Cause, index: LedgerIndex, entries: Iterable[int]) -> Dropped:
    ranges = Dropped()
    for entry in entries:
        place = index.place(entry)
        if place is not None:
            ranges.add(cause, place.region, place.prev, place.origin)
    return ranges


def _drop_page(cursor: Cursor, ranges: Dropped, index: LedgerIndex, entries: list[int]) -> int:
    """Drop the part of a page that one subscription is owed. Returns the number of entries."""
    ledger, mark_delete = index.ledger_id, cursor.mark_delete
    if (ledger, entries[-1]) <= mark_delete:
        return 0
    if not cursor.durable:
        owed = [entry for entry in entries if (ledger, entry) > mark_delete]
        owed = owed[: _run_length(owed)]
        if cursor.context.log.after(mark_delete) != (ledger, owed[0]):
            return 0  # a reader has one position and no holes
        cursor.pass_over(Position(ledger, owed[-1]))
        return len(owed)
    owed = []
    for entry in entries:
        origin = index.origin(entry)
        at = Position(ledger, entry)
        if origin is not None and at > mark_delete and cursor.is_owed(*origin, at):
            owed.append(entry)
    if owed:
        cursor.record_dropped(ranges)
        if cursor.owner.let_go(Position(ledger, entry) for entry in owed):
            cursor.context.late.note(index)
    return len(owed)


def _run_length(entries: list[int]) -> int:
    """The number of consecutive entries from the first one on."""
    return next((at for at, entry in enumerate(entries) if entry != entries[0] + at), len(entries))


async def durable(context: TopicContext) -> None:
    """Wait until everything recorded of the topic so far is on disk. :raises TopicFenced: it never will be."""
    try:
        await context.scheduler.answer(context.progress_log.when_durable)
    except LedgerError as error:
        raise TopicFenced(f"{context.name} was closed in the meantime, and the change may be lost: {error}") from error
