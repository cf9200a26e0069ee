# SPDX-License-Identifier: Apache-2.0
"""Entries that the disk damaged: what is known about them, and what is read in their place.

A ledger is append-only, so a damaged entry cannot be rewritten in place. Another region's copy of it is
appended to the log in a marker that names the place (``entry.EXTRA_REPLACES``), and the topic's record says where that
marker is. From then on readers of the damaged place get the copy, at the same position, with the same origin
and ``prev``: dispatch order, acknowledgements, replication and the chain (R3) are not affected. A damaged entry that no
region has is *lost* once an operator has accepted that; the record says so, too.

Until then the place exists, but its content does not. Its origin can be determined:

- from the index, if that is in memory;
- otherwise from the remaining bytes, if they are the header of an entry that fits into the chain: a single wrong bit is
  nearly always in the body;
- otherwise from the entries after it. One whose ``prev`` names the place, or something that is stored nowhere else,
  identifies the entry that was there. So does the next ledger's record.

If nothing identifies it, it counts as one of this region's own. That claims nothing that another region may owe: the
next own entry then follows this place, and a region that lacks it asks for it instead of passing over it.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pyroaring import BitMap

from meridian_broker.ledgers.entry import (
    DAMAGED,
    MARKER,
    NO_ORIGIN,
    UNCHAINED,
    EntryFormatError,
    EntryHeader,
    before,
    pack_foreign,
    pack_own,
    unpack,
)
from meridian_broker.ledgers.holes import is_break
from meridian_broker.ledgers.index import LedgerIndex, Place
from meridian_broker.positions.position import EARLIEST, Position

log = logging.getLogger(__name__)

AT_ONCE: Final = 2000
"""Damaged entries processed before other tasks run."""
_NO_LINK: Final = MARKER | NO_ORIGIN


@dataclass(frozen=True, slots=True)
class Mend:
    """The record of consecutive damaged entries of one ledger."""

    first: Position
    count: int
    copies: Position | None
    """The marker with the copy of the first; the others follow it. None: they are lost."""


class Damage:
    """The known damaged entries of one topic's log. Work per entry is done in slices: other tasks may run wherever it
    yields."""

    def __init__(self) -> None:
        self.damaged: dict[Position, Place] = {}
        """Entries neither replaced nor lost, each with the claim that acknowledging it makes. Read only."""
        self.copies: dict[Position, Position] = {}
        """Positions of the copies that replace damaged entries."""
        self.lost: set[Position] = set()
        """Entries that were given up: readers pass over them."""
        self._mends: list[Mend] = []
        """The mends on record, and those being recorded, in order."""
        self._numbers: dict[int, BitMap] = {}
        """The damaged or lost entries, by ledger."""

    def found(self, places: Mapping[Position, Place]) -> int:
        """Add damaged entries. Returns how many were new."""
        new = {at: place for at, place in places.items() if at not in self.damaged and at not in self.lost}
        self.damaged.update(new)
        for ledger, entry in new:
            self._numbers_of(ledger).add(entry)
        return len(new)

    def forget(self, position: Position) -> None:
        """The entry is intact again, or no longer stored."""
        if self.damaged.pop(position, None) is not None:
            self._numbers_of(position.ledger).discard(position.entry)

    def restore(self, mends: Iterable[Mend]) -> Iterator[None]:
        """Apply the mends in the topic's record."""
        self._mends = sorted(mends, key=_first)
        yield from self._apply(self._mends)

    def mends(self, first: Position, more: Iterable[Mend]) -> tuple[Mend, ...]:
        """The mends to record, limited to what is still stored.

        :param first: the first stored entry.
        :param more: new mends.
        """
        runs: list[Mend] = []
        for mend in sorted([*more, *_outside(self._mends, sorted(more, key=_first))], key=_first):
            rest = _part(mend, max(mend.first, first), mend.count)
            if rest is None or mend.first.ledger < first.ledger:
                continue
            joined = _joined(runs[-1], rest) if runs else None
            if joined is None:
                runs.append(rest)
            else:
                runs[-1] = joined
        return tuple(runs)

    def plan(self, mends: tuple[Mend, ...]) -> None:
        """The mends are about to be recorded: the next record includes them."""
        self._mends = list(mends)

    def replace(self, more: Iterable[Mend]) -> Iterator[None]:
        """The mends are recorded: these entries are replaced by copies, or lost."""
        yield from self._apply(more)

    def _apply(self, mends: Iterable[Mend]) -> Iterator[None]:
        left = AT_ONCE
        for ledger, entry, copy in (one for mend in mends for one in _each(mend)):
            position = Position(ledger, entry)
            self.damaged.pop(position, None)
            if copy is None:
                self.copies.pop(position, None)
                self.lost.add(position)
                self._numbers_of(ledger).add(entry)
            else:
                self.copies[position] = copy
                self.lost.discard(position)
                self._numbers_of(ledger).discard(entry)
            left -= 1
            if not left:
                yield
                left = AT_ONCE

    def _numbers_of(self, ledger: int) -> BitMap:
        found = self._numbers.get(ledger)
        if found is None:
            found = self._numbers[ledger] = BitMap()
        return found

    def is_any_in(self, ledger: int, first: int, last: int) -> bool:
        """Whether one of these entries of a ledger is damaged and not replaced."""
        numbers = self._numbers.get(ledger)
        return numbers is not None and numbers.range_cardinality(first, last + 1) > 0

    def forget_below(self, ledger: int) -> None:
        """Ledgers before this one were trimmed."""
        for known in (self.damaged, self.copies):
            for position in [one for one in known if one.ledger < ledger]:
                del known[position]
        self.lost = {one for one in self.lost if one.ledger >= ledger}
        self._numbers = {one: numbers for one, numbers in self._numbers.items() if one >= ledger}


def mends_of(copies: Mapping[Position, Position | None]) -> list[Mend]:
    """The entries as ranges. :param copies: the position of each entry's copy; None: it is lost."""
    runs: list[Mend] = []
    for position in sorted(copies):
        one = Mend(position, 1, copies[position])
        joined = _joined(runs[-1], one) if runs else None
        if joined is None:
            runs.append(one)
        else:
            runs[-1] = joined
    return runs


def _first(mend: Mend) -> Position:
    return mend.first


def _each(mend: Mend) -> Iterator[tuple[int, int, Position | None]]:
    """Each entry, and the position of its copy."""
    ledger, first = mend.first
    for step in range(mend.count):
        copy = None if mend.copies is None else Position(mend.copies.ledger, mend.copies.entry + step)
        yield ledger, first + step, copy


def _joined(one: Mend, other: Mend) -> Mend | None:
    """Both joined into one range; None: the second does not follow the first."""
    if other.first != (one.first.ledger, one.first.entry + one.count) or (one.copies is None) != (other.copies is None):
        return None
    if one.copies is not None and other.copies != (one.copies.ledger, one.copies.entry + one.count):
        return None
    return Mend(one.first, one.count + other.count, one.copies)


def _part(mend: Mend, begin: Position, end: int) -> Mend | None:
    """The part from ``begin`` up to, not including, entry ``end`` of its ledger; None if empty."""
    skipped = begin.entry - mend.first.entry if begin.ledger == mend.first.ledger else 0
    if end <= skipped:
        return None
    copies = None if mend.copies is None else Position(mend.copies.ledger, mend.copies.entry + skipped)
    return Mend(Position(mend.first.ledger, mend.first.entry + skipped), end - skipped, copies)


def _outside(mends: Iterable[Mend], others: Sequence[Mend]) -> Iterator[Mend]:
    """The parts of ``mends`` that none of ``others`` covers. Both are in order."""
    ends = [Position(other.first.ledger, other.first.entry + other.count) for other in others]
    for mend in mends:
        ledger, begin = mend.first
        end, at = begin + mend.count, bisect_right(ends, mend.first)
        while at < len(others) and others[at].first < (ledger, end):
            cut = others[at]
            part = _part(mend, Position(ledger, begin), cut.first.entry - mend.first.entry)
            if part is not None:
                yield part
            begin, at = max(begin, cut.first.entry + cut.count), at + 1
        part = _part(mend, Position(ledger, begin), mend.count) if begin < end else None
        if part is not None:
            yield part


def stand_in(place: Place | None, region: str, position: Position, time_ms: int) -> bytes:
    """The bytes read in place of a damaged entry: a marker with the entry's origin and no content.

    :param place: None: it takes no part in progress.
    :param region: this region.
    :param time_ms: approximate publish time.
    """
    if place is None:
        return pack_own(MARKER, 1, 0, 0, time_ms, time_ms, *EARLIEST)
    if place.region == region and place.origin == position:
        return pack_own(MARKER | DAMAGED, 1, 0, 0, time_ms, time_ms, *place.prev)
    return pack_foreign(
        EntryHeader(
            MARKER | DAMAGED,
            0,
            1,
            0,
            0,
            time_ms,
            time_ms,
            place.prev,
            place.region,
            place.origin,
            replicate_to=None,
            deliver_at_ms=None,
        )
    )


def published_ms(place: Place, region: str, remains: bytes) -> int | None:
    """Publish time of a damaged entry, if the remaining bytes are its header."""
    try:
        header = unpack(remains)
    except EntryFormatError:
        return None
    is_it = header.prev == place.prev and (header.region or region) == place.region
    return header.publish_time_ms if is_it and header.origin in (None, place.origin) else None


def is_damaged(entry: bytes) -> bool:
    """Whether this stands for an entry that cannot be read."""
    return bool(entry[1] & DAMAGED)


class Rebuilding:
    """Builds the index of a ledger that contains damaged entries."""

    def __init__(
        self, index: LedgerIndex, region: str, own_before: Position, origins_before: Mapping[str, Position]
    ) -> None:
        """:param own_before: ``prev`` of the ledger's first own entry."""
        self._index = index
        self._region = region
        self._last: dict[str, Position] = {**origins_before, region: own_before}
        """Per region the last entry of its chain so far."""
        self._unknown: list[int] = []
        """Damaged entries that are not identified yet, in order."""
        self._guessed: set[int] = set()
        """Those, and those that only another region's chain explains."""
        self._not_own: set[int] = set()
        """Those of them that the chain of own entries skips."""

    def add(self, header: EntryHeader) -> None:
        """Add the next entry: it is intact, or its header is beyond doubt."""
        number = len(self._index)
        self._index.add(header)
        if header.flags & _NO_LINK or (header.region == self._region and header.origin is not None):
            return
        if header.region is None or header.origin is None:
            region, origin = self._region, Position(self._index.ledger_id, number)
        else:
            region, origin = header.region, header.origin
        last = self._last.get(region, EARLIEST)
        if origin < last:
            return  # fetched back late
        if self._guessed and not header.flags & UNCHAINED:
            self._explain(region, header.prev, last)
        self._last[region] = origin

    def add_damaged(self, known: Place | None, remains: bytes) -> EntryHeader | None:
        """Add a damaged entry. Returns the rest of its header, if that is plausible.

        :param known: its place, if it was known before.
        :param remains: the remaining bytes of the entry.
        """
        header = self._plausible(remains)
        if header is not None:
            self.add(header)
        elif known is not None:
            self.add(_of_place(known, self._region, self._index.ledger_id, len(self._index)))
        else:
            self._unknown.append(len(self._index))
            self._guessed.add(len(self._index))
            self._index.add_unknown()
        return header

    def finish(
        self, own_then: Position, origins_then: Mapping[str, Position], *, is_sure: bool = True
    ) -> Iterator[None]:
        """All entries were added. Other tasks may run wherever it yields.

        :param own_then: like ``origins_then``, where the chains ended when the next ledger was created.
        :param is_sure: False: that is a snapshot, and there may have been more.
        """
        for region, last in origins_then.items():
            if region in self._index.codes.unchained:
                continue  # no chain names these entries, and no other region has them
            if self._unknown and last > self._last.get(region, EARLIEST):
                self._explain(region, last, self._last.get(region, EARLIEST))
        if self._guessed and (is_sure or own_then > self._last[self._region]):
            self._explain(self._region, own_then, self._last[self._region])
        nameless = BitMap(self._unknown) & BitMap(self._not_own)
        if nameless:
            log.error(
                "%d entries of ledger %d are damaged, the first is %d. Their contents are unknown, but none of "
                "them was first stored in %s: they are markers, or entries that their origins will send again",
                *(len(nameless), self._index.ledger_id, nameless.min(), self._region),
            )
        for count, number in enumerate(self._unknown, 1):
            if number not in nameless:
                self._index.identify_own(number)
            if count % AT_ONCE == 0:
                yield

    def _explain(self, region: str, prev: Position, last: Position) -> None:
        """The next entry of a chain, or its end, names the previous one."""
        if region == self._region:
            unknown, named = self._unknown, self._entry_here(prev)
            # Of many consecutive damaged entries most stay unknown: examine only those after the named one.
            behind = bisect_right(unknown, named)
            if named in self._guessed:
                self._index.identify_own(named)
                if behind and unknown[behind - 1] == named:
                    behind -= 1
                    del unknown[behind]
            self._not_own.update(unknown[behind:])
        elif prev > last and self._unknown:
            self._index.identify_foreign(self._unknown.pop(), region, prev, last)

    def _entry_here(self, position: Position) -> int:
        """Its number in this ledger; -1 for an earlier ledger, the number of entries for a later one."""
        ledger = self._index.ledger_id
        return position.entry if position.ledger == ledger else -1 if position.ledger < ledger else len(self._index)

    def _plausible(self, remains: bytes) -> EntryHeader | None:
        """The remaining header, if it fits into the chain."""
        try:
            header = unpack(remains)
        except EntryFormatError:
            return None
        if header.flags & (_NO_LINK | DAMAGED) or not 1 <= header.body_offset <= len(remains):
            return None
        if header.region is None or header.origin is None:
            return header if header.prev == self._last[self._region] else None
        last = self._last.get(header.region, EARLIEST)
        if header.region == self._region:
            return header if header.prev < header.origin < (self._index.ledger_id, 0) else None
        if header.flags & UNCHAINED:
            return header if header.origin > last and header.prev == before(header.origin) else None
        is_next = header.origin > last and (header.prev == last or is_break(header.prev, header.origin))
        return header if is_next else None


def _of_place(place: Place, region: str, ledger: int, number: int) -> EntryHeader:
    if place.region == region and place.origin == (ledger, number):
        return EntryHeader(0, 0, 1, 0, 0, 0, 0, place.prev, None, None, None, None)
    return EntryHeader(0, 0, 1, 0, 0, 0, 0, place.prev, place.region, place.origin, None, None)
