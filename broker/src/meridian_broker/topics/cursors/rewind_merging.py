# SPDX-License-Identifier: Apache-2.0
"""Rewinds that nothing depends on any more are forgotten (R12): a job that seeks back every hour makes one each time.

An old rewind cannot simply be left out. Another region may not know yet what was acknowledged since, or have made
a rewind of its own that nobody has heard of. So it waits until every region has reported, as it does for floors (R11),
that it knows exactly the same rewinds, and up to where it owes nothing. Then the newest one takes over what is done
with, and the older ones are overruled like any others (``Progress.merge_rewinds``). What regions tell each other of it
is a piece of progress; it takes nobody's messages away and closes no consumers.

A subscription that other regions never knew of needs nobody's word; what is stored and was only dropped is not done
with there, for a region that comes later gets it. One whose replicated flag was switched off keeps its rewinds: what
other regions did meanwhile is united with them when it is on again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Final

from meridian_broker.positions import Position, Progress
from meridian_broker.positions.position import EARLIEST
from meridian_broker.positions.reports import agreed
from meridian_broker.topics.journal.progress_log import Kind

if TYPE_CHECKING:
    from meridian_broker.topics.cursors.cursor import Cursor

WORTH: Final = 4
"""From so many rewinds on they are merged: regions have to report for it."""


def are_many(cursor: Cursor) -> bool:
    """Are there so many that some should go?"""
    return cursor.progress.count_rewinds() >= WORTH


def are_kept(cursor: Cursor) -> bool:
    """Did other regions know of it until its replicated flag was switched off?"""
    return cursor.owner.record.is_shared and not cursor.replicated


def merge(cursor: Cursor, regions: Collection[str]) -> None:
    """Merge what all these regions, the topic's, agree on."""
    progress = cursor.progress
    told = agreed(progress.reports, regions, progress.state())
    if told is not None:
        acked = progress.floors()
        ends = {region: max(told.get(region, EARLIEST), acked.get(region, EARLIEST)) for region in told | acked}
        merge_done(cursor, ends)


def merge_done(cursor: Cursor, done: Mapping[str, Position]) -> None:
    """Merge, durably. What was acked once, and is owed no more, counts as acked afterwards, also where it was dropped.

    :param done: per origin up to where nothing is owed in any region that knows the subscription.
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
    """Another region told that it merged some: the evidence of first-hand acknowledgements forgets as much (R60)."""
    progress = cursor.progress
    _look_at_fewer_times(cursor)
    heads = progress.heads()
    for region in progress.regions():
        newest = progress.acks(progress.epoch, region)
        if newest is not None and newest.floor > EARLIEST:
            heads.raise_floor(region, newest.floor)
    tell_first_hand(cursor, heads)


def tell_first_hand(cursor: Cursor, heads: Progress) -> None:
    """Let the evidence of first-hand acknowledgements know of rewinds that other regions made, durably."""
    if cursor.first_hand is not None:
        cursor.first_hand.join(heads)
        cursor.context.progress_log.append(Kind.FLOORS, cursor.name, heads.encode())


def _look_at_fewer_times(cursor: Cursor) -> None:
    if cursor.times is not None:
        cursor.follow_moments()
