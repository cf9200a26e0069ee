# SPDX-License-Identifier: Apache-2.0
"""Merges old rewinds that nothing depends on any more (R12): a job that seeks back every hour adds one each time.

An old rewind cannot simply be dropped. Another region may not know yet what has been acknowledged since, or may have a
rewind of its own that has not arrived. So the merge waits until every region has reported, as for floors (R11), that it
knows exactly the same rewinds, and up to which position it owes nothing. Then the newest rewind takes over the range
that is complete, and the older ones are overruled like any others (``Progress.merge_rewinds``). Regions exchange the
result as progress; it drops no messages and closes no consumers.

A subscription that other regions have never known needs no reports; entries that are stored and were only dropped do
not count as complete there, because a region added later will get them. A subscription whose replicated flag was
switched off keeps its rewinds: they are merged with the other regions' changes when the flag is on again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Final

from meridian_broker.positions import Position, Progress
from meridian_broker.positions.position import EARLIEST
from meridian_broker.positions.reports import agreed
from meridian_broker.topics.journal.changes import Kind

if TYPE_CHECKING:
    from meridian_broker.topics.cursors.cursor import Cursor

WORTH: Final = 4
"""Rewinds are merged from this number on, because regions have to report for it."""


def are_many(cursor: Cursor) -> bool:
    """Whether there are enough rewinds to merge some."""
    return cursor.progress.count_rewinds() >= WORTH


def are_kept(cursor: Cursor) -> bool:
    """Whether other regions knew of the subscription until its replicated flag was switched off."""
    return cursor.owner.record.is_known_elsewhere and not cursor.replicated


def merge(cursor: Cursor, regions: Collection[str]) -> None:
    """Merge as far as all of these regions, the topic's, agree."""
    progress = cursor.progress
    told = agreed(progress.reports, regions, progress.state())
    if told is not None:
        acked = progress.floors()
        ends = {region: max(told.get(region, EARLIEST), acked.get(region, EARLIEST)) for region in told | acked}
        merge_done(cursor, ends)


def merge_done(cursor: Cursor, done: Mapping[str, Position]) -> None:
    """Merge durably. What was acked and is no longer owed counts as acked afterwards, even where it was dropped.

    :param done: per origin the position up to which nothing is owed in any region that knows the subscription.
    """
    cursor.flush_pending()
    delta = cursor.progress.merge_rewinds(done)
    if delta is None:
        return
    context = cursor.context
    cursor.progress.join(delta)
    if cursor.first_hand is not None:
        cursor.first_hand.join(delta)
    context.progress_log.append(Kind.FLOORS, cursor.name, delta.encode())
    context.tell_others(cursor.name, delta)
    _look_at_fewer_times(cursor)


def merged_elsewhere(cursor: Cursor) -> None:
    """Another region merged rewinds: the record of first-hand acknowledgements forgets the same ones (R60)."""
    progress = cursor.progress
    _look_at_fewer_times(cursor)
    heads = progress.heads()
    for region in progress.regions():
        newest = progress.acks(progress.epoch, region)
        if newest is not None and newest.floor > EARLIEST:
            heads.raise_floor(region, newest.floor)
    tell_first_hand(cursor, heads)


def tell_first_hand(cursor: Cursor, heads: Progress) -> None:
    """Add rewinds made by other regions to the record of first-hand acknowledgements, durably."""
    if cursor.first_hand is not None:
        cursor.first_hand.join(heads)
        cursor.context.progress_log.append(Kind.FLOORS, cursor.name, heads.encode())


def _look_at_fewer_times(cursor: Cursor) -> None:
    if cursor.times is not None:
        cursor.follow_moments()
