# SPDX-License-Identifier: Apache-2.0
"""What lies ahead of a cursor: progress, read in the order of this region's log."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from meridian_broker.ledgers.index import Place
from meridian_broker.ledgers.log import TopicLog
from meridian_broker.positions import ZERO, Dropped, Progress, Stamp
from meridian_broker.positions.position import EARLIEST, LATEST, Position

if TYPE_CHECKING:
    from meridian_broker.topics.rewinding import Resent

BACKLOG_WALK: Final = 20_000
"""Entries looked at one by one for an exact backlog; of those beyond, acknowledged ones still count."""


def backlog(log: TopicLog, is_settled: Callable[[str, Position, Position], bool], mark_delete: Position) -> int:
    """Entries neither acknowledged nor dropped.

    Exact for the first ``BACKLOG_WALK`` entries whose ledgers' indexes are in memory; every entry beyond counts.
    """
    position, open_entries = mark_delete, 0
    following = log.after(position)
    for _ in range(BACKLOG_WALK):
        index = None if following is None else log.index(following.ledger)
        if following is None or index is None:
            break
        place = index.place(following.entry)
        if place is not None and not is_settled(place.region, place.origin, following):
            open_entries += 1
        position = following
        following = log.after(position)
    return open_entries + log.distance(position, log.last_confirmed)


def rewound(
    log: TopicLog, progress: Progress, dropped: Dropped | None, upto: Position
) -> dict[str, tuple[Position, Position]]:
    """What a rewind to right behind ``upto`` rules (R12): per origin ``(prev of its first entry there, its last]``.

    Empty when nothing there is acknowledged or dropped, for then there is nothing to take back. The indexes of what
    is stored there are in memory.
    """
    ranges: dict[str, tuple[Position, Position]] = {}
    for region, low, high in runs(log, upto, log.last_confirmed):
        # What came back to its region late stands behind newer entries of it (R5).
        known = ranges.get(region, (low, high))
        ranges[region] = (min(low, known[0]), max(high, known[1]))
    is_any_dropped = dropped is not None and not dropped.is_empty
    if not is_any_dropped and not progress.goes_beyond({region: low for region, (low, _) in ranges.items()}):
        return {}
    following = log.after(upto)
    while following is not None:
        place = log.place(following)
        if place is not None:  # a batch acknowledged in part counts
            remaining = progress.remaining(place.region, place.origin, log.messages(following))
            is_dropped = dropped is not None and dropped.contains(place.region, place.origin)
            if is_dropped or remaining is not None or progress.depends_on_time(place.region, place.origin):
                return ranges
        following = log.after(following)
    return {}


async def load_indexes(log: TopicLog, after: Position = EARLIEST) -> None:
    """Have the indexes of all ledgers in memory that hold anything behind a place."""
    for ledger, entries, _ in log.counts():
        if entries and ledger >= after.ledger:
            await log.load_index(ledger)


def runs(log: TopicLog, after: Position, upto: Position) -> Iterator[Place]:
    """What acknowledging all of ``(after, upto]`` claims, in runs. The indexes are in memory."""
    for ledger, entries, _ in log.counts():
        if entries and after.ledger <= ledger <= upto.ledger:
            index = log.index(ledger)
            if index is None:
                raise KeyError(ledger)
            first = after.entry + 1 if ledger == after.ledger else 0
            yield from index.runs(first, upto.entry if ledger == upto.ledger else entries - 1)


def claim_part(log: TopicLog, delta: Progress, epoch: Stamp, position: Position, place: Place, remaining: int) -> None:
    """Claim the messages of a batch whose bits in ``remaining`` are not set."""
    size = log.messages(position)
    acked = ~remaining & (1 << size) - 1
    delta.ack_batch(epoch, place.region, place.origin, size, acked, place.prev)


def claim_between(
    log: TopicLog,
    delta: Progress,
    epoch: Stamp,
    after: Position,
    upto: Position,
    unless: Dropped | None = None,
    resent: Resent | None = None,
    only: frozenset[str] | None = None,
    withheld: frozenset[Position] = frozenset(),
) -> int:
    """Claim each entry of ``(after, upto]`` in this region's order; says how many. The indexes are in memory.

    :param unless: but not what was dropped: the consumer was never sent it, and other regions may owe it still.
    :param resent: but what was not sent since the newest rewind counts before all of them (R13).
    :param only: and only what began in these regions; None: in any.
    :param withheld: and not these.
    """
    claimed = 0
    following = log.after(after)
    while following is not None and following <= upto:
        place = log.place(following)
        is_meant = place is not None and (only is None or place.region in only) and following not in withheld
        if place is not None and is_meant and (unless is None or not unless.contains(place.region, place.origin)):
            counted = epoch if resent is None or resent.holds(following) else ZERO
            delta.ack(counted, place.region, place.prev, place.origin)
            claimed += 1
        following = log.after(following)
    return claimed


def claim_all(log: TopicLog, delta: Progress, epoch: Stamp, after: Position, upto: Position) -> None:
    """Claim all of ``(after, upto]``. The indexes are in memory."""
    for region, low, high in runs(log, after, upto):
        delta.ack(epoch, region, low, high)


def ruled_from(log: TopicLog, rules: Mapping[str, tuple[Position, Position]]) -> Position:
    """Up to this place nothing is ruled: no ledger up to here has an entry that is high enough."""
    return log.below(log.region, {region: low for region, (low, _) in rules.items()}, LATEST)


def claim_ruled(
    log: TopicLog, delta: Progress, epoch: Stamp, upto: Position, rules: Mapping[str, tuple[Position, Position]]
) -> None:
    """Claim what stands before a rewind's place and is ruled by it: where entries of an origin are not in order.

    The indexes of what stands behind ``ruled_from`` are in memory.
    """
    following = log.after(ruled_from(log, rules))
    while following is not None and following <= upto:
        place = log.place(following)
        if place is not None and place.region in rules:
            low, high = rules[place.region]
            if low < place.origin <= high:
                delta.ack(epoch, place.region, place.prev, place.origin)
        following = log.after(following)


def index_missing(log: TopicLog, after: Position, upto: Position) -> int | None:
    """A ledger within ``(after, upto]`` whose index is not in memory."""
    for ledger, entries, _ in log.counts():
        if after.ledger <= ledger <= upto.ledger and entries and log.index(ledger) is None:
            return ledger
    return None
