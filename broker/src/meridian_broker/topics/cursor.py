# SPDX-License-Identifier: Apache-2.0
"""What lies ahead of a cursor: progress, read in the order of this region's log."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from meridian_broker.ledgers.damage import Damage
from meridian_broker.ledgers.index import LedgerIndex, Place
from meridian_broker.ledgers.log import TopicLog
from meridian_broker.ledgers.reading import ReadableLog
from meridian_broker.positions import ZERO, Dropped, Progress, Stamp
from meridian_broker.positions.position import EARLIEST, LATEST, Position

if TYPE_CHECKING:
    from meridian_broker.topics.rewinding import Resent

SLICE: Final = 2000
"""Entries claimed one by one in one turn of the loop: some milliseconds."""
LEDGER_COSTS: Final = 10
"""What claiming a ledger as a whole costs, in entries."""
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


def is_rest_acked(index: LedgerIndex, progress: Progress, position: Position) -> bool:
    """Whether a ledger of own entries is acknowledged from ``position`` to its end, as one look can tell."""
    place = index.place(position.entry) if index.is_own else None
    return place is not None and progress.all_acked(place.region, place.prev, Position(position.ledger, len(index) - 1))


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
    for ledger, first, last in log.stretches(after, upto):
        index = log.index(ledger)
        if index is None:
            raise KeyError(ledger)
        yield from index.runs(first, last)


def claim_part(log: TopicLog, delta: Progress, epoch: Stamp, position: Position, place: Place, remaining: int) -> None:
    """Claim the messages of a batch whose bits in ``remaining`` are not set."""
    size = log.messages(position)
    acked = ~remaining & (1 << size) - 1
    delta.ack_batch(epoch, place.region, place.origin, size, acked, place.prev)


@dataclass(slots=True)
class Exceptions:
    """What of a stretch of the log a cumulative acknowledgement does not mean, or means in an older epoch."""

    dropped: Dropped | None = None
    """Not what was dropped: the consumer was never sent it, and other regions may owe it still (R14)."""
    resent: Resent | None = None
    """What was not sent since the newest rewind counts before all of them (R13)."""
    only: frozenset[str] | None = None
    """Only what began in these regions; None: in any."""
    withheld: frozenset[Position] = frozenset()
    """Not these entries."""
    damage: Damage | None = None
    """Not damaged entries that are given up, ..."""
    read: Position = EARLIEST
    """... nor others that stand behind this place: the consumer waits for them."""

    def counted(self, position: Position, epoch: Stamp) -> Stamp:
        """The epoch in which the acknowledgement of an entry counts."""
        return epoch if self.resent is None or self.resent.holds(position) else ZERO

    def is_unsent(self, position: Position) -> bool:
        """Whether an entry is damaged, and was so before the consumer could be sent it."""
        damage = self.damage
        if damage is None:
            return False
        return position in damage.lost or (position > self.read and position in damage.damaged)

    def are_none_in(self, index: LedgerIndex, first: int, last: int) -> bool:
        """Whether all entries of the stretch that began in the regions meant are claimed in the newest epoch."""
        ledger = index.ledger_id
        if self.resent is not None and (ledger, first) <= self.resent.border:
            return False
        if any(at.ledger == ledger and first <= at.entry <= last for at in self.withheld):
            return False
        if self.damage is not None and self.damage.is_any_in(ledger, first, last):
            return False
        dropped = self.dropped
        return dropped is None or not any(dropped.meets(*run) for run in index.runs(first, last))


Steps = Generator[int | None, None, int]
"""Work in slices. Before it goes on it wants a ledger's index loaded, or, None, that others run; says how many entries
it claimed."""


def claim_between(
    log: ReadableLog, delta: Progress, epoch: Stamp, after: Position, upto: Position, exceptions: Exceptions
) -> Steps:
    """Claim the entries of ``(after, upto]`` in this region's order, those meant.

    A ledger of nothing but own entries, of which all are meant, costs the same however many they are; others are looked
    at entry by entry, ``SLICE`` of them in one turn of the loop.
    """
    claimed = looked = 0
    while (following := log.after(after)) is not None and following <= upto:
        ledger, first = following
        index = log.index(ledger)
        if index is None:
            yield ledger
            continue
        last = min(upto.entry, len(index) - 1) if ledger == upto.ledger else len(index) - 1
        if not (index.is_own and exceptions.are_none_in(index, first, last)):
            last = min(last, first + SLICE - 1 - looked)
            looked += last - first
        claimed += _claim_stretch(delta, epoch, index, first, last, exceptions)
        after, looked = Position(ledger, last), looked + LEDGER_COSTS
        if looked >= SLICE:
            yield None
            looked = 0
    return claimed


def _claim_stretch(
    delta: Progress, epoch: Stamp, index: LedgerIndex, first: int, last: int, exceptions: Exceptions
) -> int:
    """Claim what is meant of entries ``first`` to ``last`` of a ledger; says how many."""
    only = exceptions.only
    if exceptions.are_none_in(index, first, last):
        for region, prev, origin in index.runs(first, last):
            if only is None or region in only:
                delta.ack(epoch, region, prev, origin)
        return index.count(first, last, only)
    dropped, claimed = exceptions.dropped, 0
    for entry in range(first, last + 1):
        place, position = index.place(entry), Position(index.ledger_id, entry)
        if place is None or position in exceptions.withheld or (only is not None and place.region not in only):
            continue
        if exceptions.is_unsent(position):
            continue
        if dropped is None or not dropped.contains(place.region, place.origin):
            delta.ack(exceptions.counted(position, epoch), place.region, place.prev, place.origin)
            claimed += 1
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
    return next((ledger for ledger, _, _ in log.stretches(after, upto) if log.index(ledger) is None), None)
