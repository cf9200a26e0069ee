# SPDX-License-Identifier: Apache-2.0
"""What a rewind does to a subscription (R12, R13), whether a seek made it here or another region reported it.

An acknowledgement counts in the epoch in which its entry was sent (R13). ACK does not contain the epoch, and a client
may still hold entries from before the rewind. So a rewound subscription remembers which of the entries that existed
before the rewind were sent again (``Resent``). An acknowledgement of any other belongs to an older epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from meridian_broker.positions import Progress
from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.topics.cursors import floors, rewind_merging
from meridian_broker.topics.journal.changes import Kind

if TYPE_CHECKING:
    from meridian_broker.topics.cursors.cursor import Cursor


NONE_STALE: Final[frozenset[Position]] = frozenset()


def stale(cursor: Cursor, positions: Iterable[Position]) -> frozenset[Position]:
    """Which of the positions that a client acknowledges it holds from before a rewind: they count in an older epoch
    (R13).

    Once an entry was sent again, any consumer's acknowledgement counts, because its copies cannot be distinguished.
    """
    resent = cursor.resent
    if resent is None:
        return NONE_STALE
    return frozenset(position for position in positions if not resent.holds(position))


def merge(cursor: Cursor, delta: Progress, done: Callable[[str | None], None]) -> None:
    """Join progress of another region, make it durable, and act on it.

    A rewind disconnects the consumers (R13), and so does an earlier creation, which may begin further back (R15).
    """
    cursor.flush_pending()
    progress, log = cursor.progress, cursor.context.progress_log
    before, beginning = progress.layers, progress.beginning
    if not cursor.join(delta):
        log.when_durable(lambda error: done(None if error is None else str(error)))
        return
    log.append(Kind.MERGED, cursor.name, delta.encode(), lambda error: done(None if error is None else str(error)))
    is_rewound = False
    if progress.layers is not before:
        # An older rewind may arrive after a newer one, and rules other entries.
        known = {layer.epoch for layer in before or ()}
        is_rewound = any(layer.epoch not in known for layer in progress.layers or ())
    if is_rewound or progress.beginning != beginning:
        cursor.owner.disconnect_consumers()
        if is_rewound:
            cursor.rewound()
            rewind_merging.tell_first_hand(cursor, progress.heads())
        cursor.start_cursor()
    else:
        if progress.layers is not before:
            rewind_merging.merged_elsewhere(cursor)
        cursor.advance()
        cursor.owner.acked_elsewhere()
    if delta.reports:
        floors.rise(cursor)


def acknowledge_for(cursor: Cursor, delta: Progress, done: Callable[[str | None], None]) -> None:
    """Join what was acknowledged in a region of Apache Pulsar, and make it durable. Only this region was told, so it
    tells the other Meridian regions, and answers for it as for what its own consumers acknowledge (R60)."""
    cursor.flush_pending()
    if not cursor.join(delta):
        cursor.context.progress_log.when_durable(lambda error: done(None if error is None else str(error)))
        return
    cursor.make_known(delta, [lambda error: done(None if error is None else str(error))])
    cursor.advance()
    cursor.owner.acked_elsewhere()


def take_back(cursor: Cursor, delta: Progress, done_upto: Position = EARLIEST) -> None:
    """Carry out a seek: disconnect the consumers, join, write and send ``delta``, and restart the cursor.

    :param done_upto: nothing is owed up to here afterwards, except what a compacted view may show again.
    :raises TopicFenced: the topic was closed, or the subscription deleted, while the position was looked up.
    """
    cursor.owner.check_open()
    cursor.owner.disconnect_consumers()
    before = cursor.progress.epoch
    cursor.join(delta)
    if cursor.progress.epoch != before:
        cursor.rewound()
    cursor.make_known(delta)
    cursor.start_cursor(done_upto)
