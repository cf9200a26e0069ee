# SPDX-License-Identifier: Apache-2.0
"""Walks over what lies ahead of a cursor: progress in the order of this region's log."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from meridian_broker.ledgers.damage import Damage
from meridian_broker.ledgers.index import LedgerIndex, Place
from meridian_broker.ledgers.log import TopicLog
from meridian_broker.ledgers.reading import ReadableLog
from meridian_broker.ledgers.scheduling import Scheduler, next_turn
from meridian_broker.ledgers.store import LedgerNotFound
from meridian_broker.positions import ZERO, Dropped, Progress, Stamp
from meridian_broker.positions.position import EARLIEST, LATEST, Position

if TYPE_CHECKING:
    from meridian_broker.topics.cursors.resent import Resent

SLICE: Final = 1000
"""Entries claimed individually in one turn of the loop: a few milliseconds."""
LEDGER_COSTS: Final = 10
"""Cost of claiming a whole ledger, in entries."""
LOOKS: Final = 3
BACKLOG_COSTS: Final = 3000
"""Cost limit of an exact backlog, in entries; beyond it, acknowledged entries count as well."""
BACKLOG_STRETCH: Final = 500
"""Entries that are checked together: whether all of them, or none, are acked or dropped."""

T = TypeVar("T")
Steps = Generator[int | None, None, T]
"""Work in slices. A step yields the id of a ledger whose index it needs, or None to let others run."""
Ranges = dict[str, tuple[Position, Position]]


def backlog(
    log: TopicLog,
    progress: Progress,
    dropped: Dropped | None,
    is_owed: Callable[[str, Position, Position], bool],
    mark_delete: Position,
) -> int:
    """The number of entries neither acknowledged nor dropped.

    Exact as far as ``BACKLOG_COSTS`` reaches and the ledgers' indexes are in memory; beyond, every entry counts. A
    stretch that is acked or dropped completely, or not at all, costs as much as its runs.
    """
    position, open_entries, left = mark_delete, 0, BACKLOG_COSTS
    while left > 0 and (following := log.after(position)) is not None:
        ledger, first = following
        index = log.index(ledger)
        if index is None:
            break
        last = min(first + BACKLOG_STRETCH, len(index)) - 1
        left -= LEDGER_COSTS + index.count_runs(first, last)
        done = are_done(log, progress, dropped, index, first, last)
        if done is None:
            left -= last - first
            open_entries += sum(
                is_owed(region, origin, Position(ledger, entry)) for entry, region, origin in index.origins(first, last)
            )
        elif not done:
            open_entries += index.count(first, last)
        position = Position(ledger, last)
    return open_entries + log.distance(position, log.last_confirmed)


def are_done(
    log: TopicLog, progress: Progress, dropped: Dropped | None, index: LedgerIndex, first: int, last: int
) -> bool | None:
    """Whether all entries of a stretch are acked (True), or none is acked, dropped or damaged (False). None: only a
    look at each can tell.

    The cost is proportional to the number of runs, not of entries.
    """
    runs = list(index.runs(first, last))
    if all(progress.all_acked(*run) for run in runs):
        return True
    if log.damage.is_any_in(index.ledger_id, first, last):
        return None
    return None if any(_may_be_done(progress, dropped, run) for run in runs) else False


def is_rest_acked(index: LedgerIndex, progress: Progress, position: Position) -> bool:
    """Whether a ledger of own entries is acknowledged from ``position`` to its end, as far as one lookup can tell."""
    place = index.place(position.entry) if index.is_own else None
    return place is not None and progress.all_acked(place.region, place.prev, Position(position.ledger, len(index) - 1))


async def carry_out(log: TopicLog, scheduler: Scheduler, steps: Steps[T]) -> T:
    """Execute all steps and let others run in between. Returns in the same turn of the loop as the last step.

    :raises LedgerError: an index that they need cannot be read.
    """
    while True:
        try:
            wanted = next(steps)
        except StopIteration as done:
            found: T = done.value
            return found
        await make_way(log, scheduler, wanted)


async def make_way(log: TopicLog, scheduler: Scheduler, wanted: int | None) -> None:
    """Do what the next step waits for. :raises LedgerError: the index cannot be read."""
    if wanted is None:
        await next_turn(scheduler)
    else:
        await load_index(log, wanted)


async def load_index(log: TopicLog, ledger: int) -> None:
    """Load the index of a ledger, as long as the ledger is stored. :raises LedgerError: it cannot be read."""
    try:
        await log.load_index(ledger)
    except LedgerNotFound:
        if log.holds(Position(ledger, 0)):
            raise  # otherwise it was trimmed meanwhile


def rewound(log: TopicLog, progress: Progress, dropped: Dropped | None, upto: Position) -> Steps[Ranges]:
    """What a rewind to right after ``upto`` rules (R12): per origin ``(prev of its first entry there, its last]``.

    Empty if nothing there is acknowledged or dropped, because there is nothing to take back. Acknowledgements that
    arrive during the search may concern entries already examined. So it searches again, ``LOOKS`` times at most,
    until a search finds something or takes a single turn of the loop.
    """
    ranges: Ranges = {}
    for _ in range(LOOKS):
        turns, found = yield from _look_back(log, progress, dropped, upto, ranges)
        if found or turns == 1:
            return ranges if found else {}
    return {}


def _look_back(
    log: TopicLog, progress: Progress, dropped: Dropped | None, upto: Position, ranges: Ranges
) -> Steps[tuple[int, bool]]:
    """Record in ``ranges`` what is after ``upto``. Returns how many turns it took, and whether anything is acked or
    dropped.
    """
    is_any, looked, turns = False, 0, 1
    while (following := log.after(upto)) is not None:
        ledger, first = following
        index = log.index(ledger)
        if index is None:
            yield ledger
            turns += 1
            continue
        last = index.last_of_runs(first, SLICE)
        some = list(index.runs(first, last))
        if not is_any and any(_may_be_done(progress, dropped, run) for run in some):
            last = min(last, first + SLICE - 1)
            some = list(index.runs(first, last))
            is_any = any(_is_any_done(progress, dropped, index, entry) for entry in range(first, last + 1))
            looked += last - first
        for region, low, high in some:
            # Entries that returned to their region late are stored after newer ones of it (R5).
            known = ranges.get(region, (low, high))
            ranges[region] = (min(low, known[0]), max(high, known[1]))
        upto, looked = Position(ledger, last), looked + LEDGER_COSTS + len(some)
        if looked >= SLICE:
            yield None
            looked = 0
            turns += 1
    return turns, is_any


def _may_be_done(progress: Progress, dropped: Dropped | None, run: Place) -> bool:
    """False: nothing of the run is acknowledged, in any epoch, or dropped."""
    return progress.touches(*run) or (dropped is not None and dropped.meets(*run))


def _is_any_done(progress: Progress, dropped: Dropped | None, index: LedgerIndex, entry: int) -> bool:
    """Whether an entry, or part of a batch, is acknowledged or dropped."""
    origin = index.origin(entry)
    if origin is None:
        return False
    if dropped is not None and dropped.contains(*origin):
        return True
    return progress.remaining(*origin, index.messages(entry)) is not None or progress.depends_on_time(*origin)


def claim_part(log: TopicLog, delta: Progress, epoch: Stamp, position: Position, place: Place, remaining: int) -> None:
    """Claim the messages of a batch whose bits in ``remaining`` are not set."""
    size = log.messages(position)
    acked = ~remaining & (1 << size) - 1
    delta.ack_batch(epoch, place.region, place.origin, size, acked, place.prev)


@dataclass(slots=True)
class Exceptions:
    """The entries that a cumulative acknowledgement does not cover, or covers in an older epoch."""

    dropped: Dropped | None = None
    """Dropped entries are not covered: the consumer was never sent them, and other regions may still owe them (R14)."""
    resent: Resent | None = None
    """Entries that were not sent since the newest rewind count in epoch zero (R13)."""
    only: frozenset[str] | None = None
    """Only entries of these origins are covered; None: of all."""
    withheld: frozenset[Position] = frozenset()
    """These entries are not covered."""
    damage: Damage | None = None
    """Damaged entries that were given up are not covered ..."""
    read: Position = EARLIEST
    """... nor other damaged ones after this position, because the consumer waits for them."""

    def counted(self, position: Position, epoch: Stamp) -> Stamp:
        """The epoch in which the acknowledgement of an entry counts."""
        return epoch if self.resent is None or self.resent.holds(position) else ZERO

    def is_unsent(self, position: Position) -> bool:
        """Whether an entry is damaged and was so before the consumer could be sent it."""
        damage = self.damage
        if damage is None:
            return False
        return position in damage.lost or (position > self.read and position in damage.damaged)

    def are_none_in(self, index: LedgerIndex, first: int, last: int) -> bool:
        """Whether the stretch has no exceptions: all its entries of the covered origins are claimed in the newest
        epoch.
        """
        ledger = index.ledger_id
        if self.resent is not None and (ledger, first) <= self.resent.border:
            return False
        if any(at.ledger == ledger and first <= at.entry <= last for at in self.withheld):
            return False
        if self.damage is not None and self.damage.is_any_in(ledger, first, last):
            return False
        dropped = self.dropped
        return dropped is None or not any(dropped.meets(*run) for run in index.runs(first, last))


def claim_between(
    log: ReadableLog, delta: Progress, epoch: Stamp, after: Position, upto: Position, exceptions: Exceptions
) -> Steps[int]:
    """Claim the covered entries of ``(after, upto]`` in this region's order. Returns their number.

    Runs without exceptions cost the same whatever their length; others are examined entry by entry. ``SLICE`` of
    either are claimed in one turn of the loop.
    """
    claimed = looked = 0
    while (following := log.after(after)) is not None and following <= upto:
        if (index := log.index(following.ledger)) is None:
            yield following.ledger
            continue
        first, last = following.entry, _end_of_slice(index, following, upto)
        if exceptions.are_none_in(index, first, last):
            looked += index.count_runs(first, last)
        else:
            last = min(last, first + SLICE - 1 - looked)
            looked += last - first
        claimed += _claim_stretch(delta, epoch, index, first, last, exceptions)
        after, looked = Position(following.ledger, last), looked + LEDGER_COSTS
        if looked >= SLICE:
            yield None
            looked = 0
    return claimed


def _claim_stretch(
    delta: Progress, epoch: Stamp, index: LedgerIndex, first: int, last: int, exceptions: Exceptions
) -> int:
    """Claim the covered entries from ``first`` to ``last`` of a ledger. Returns their number."""
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


def ruled_from(log: TopicLog, rules: Mapping[str, tuple[Position, Position]]) -> Position:
    """A position up to which nothing is ruled: no ledger up to here has an entry within ``rules``."""
    return log.below(log.region, {region: low for region, (low, _) in rules.items()}, LATEST)


def _end_of_slice(index: LedgerIndex, first: Position, upto: Position) -> int:
    """The last entry of the ledger to look at in this turn of the loop, no further than ``upto``."""
    last = min(upto.entry, len(index) - 1) if first.ledger == upto.ledger else len(index) - 1
    return min(last, index.last_of_runs(first.entry, SLICE))


def claim_ruled(
    log: TopicLog, delta: Progress, epoch: Stamp, upto: Position, rules: Mapping[str, tuple[Position, Position]]
) -> Steps[None]:
    """Claim what is stored before a rewind's position and is ruled by it, where entries of an origin are out of
    order.
    """
    after, looked = ruled_from(log, rules), 0
    while (following := log.after(after)) is not None and following <= upto:
        if (index := log.index(following.ledger)) is None:
            yield following.ledger
            continue
        first, last = following.entry, _end_of_slice(index, following, upto)
        if any(_may_rule(rules, run) for run in index.runs(first, last)):
            last = min(last, first + SLICE - 1)
            for entry in range(first, last + 1):
                place = index.place(entry)
                if place is not None and place.region in rules:
                    low, high = rules[place.region]
                    if low < place.origin <= high:
                        delta.ack(epoch, place.region, place.prev, place.origin)
            looked += last - first
        after, looked = Position(following.ledger, last), looked + LEDGER_COSTS + index.count_runs(first, last)
        if looked >= SLICE:
            yield None
            looked = 0


def _may_rule(rules: Mapping[str, tuple[Position, Position]], run: Place) -> bool:
    """False: none of the run's entries is ruled."""
    region, after, upto = run
    low, high = rules.get(region, (LATEST, LATEST))
    return low < upto and after < high
