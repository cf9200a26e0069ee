# SPDX-License-Identifier: Apache-2.0
"""The local <-> origin index of one ledger: for each entry stored here, where it was first stored (R2, R10).

A cursor is the image of a subscription's progress under this index, and an acknowledgement, which names a local
position, becomes a claim in origin coordinates through it. It is rebuilt from the entries' headers whenever it is not
in memory, so it is as durable as the entries themselves.

A ledger with only its own region's entries costs one byte per entry; the first foreign entry adds four columns. Sealed
ledgers are packed after a while, and ledgers with only own entries share their bytes: see ``packed.py``.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator
from typing import Any, Final, NamedTuple

from meridian_broker.ledgers.entry import MARKER, NO_ORIGIN, UNCHAINED, EntryHeader, sound_count
from meridian_broker.ledgers.packed import Columns, PackedOrigins, zeros
from meridian_broker.positions.position import EARLIEST, Position

OWN: Final = 0
RETURNED: Final = 254
"""Region code of entries that were first stored here, lost, and fetched back from another region (R5)."""
NO_PLACE: Final = 255
"""Region code of markers and of entries that have no common origin: they take no part in progress."""


_NO_BREAKS: Final = array("I")
_NO_CHAINS: Final[dict[int, Any]] = {}
"""Shared by all ledgers with only own entries; never changed."""
_new: Final = tuple.__new__
"""Half the cost of calling a ``NamedTuple`` class: dispatch, acknowledgements and cursors ask about every entry."""


class Place(NamedTuple):
    """The claim that acknowledging one entry makes: ``(prev, origin]`` of ``region`` (R3)."""

    region: str
    prev: Position
    origin: Position


class RegionCodes:
    """Region names of one topic as small numbers; 0 is this region."""

    __slots__ = ("names", "unchained")

    def __init__(self, own: str) -> None:
        self.names: list[str] = [own]
        self.unchained: set[str] = set()
        """Regions of Apache Pulsar: their entries claim only themselves."""

    def code(self, region: str) -> int:
        try:
            return self.names.index(region)
        except ValueError:
            if len(self.names) >= RETURNED:
                raise ValueError(f"a topic cannot have more than {RETURNED} regions") from None
            self.names.append(region)
            return len(self.names) - 1

    def name(self, kind: int) -> str:
        """The region of a code that stands for one."""
        return self.names[0 if kind == RETURNED else kind]


class LedgerIndex:
    """Origins of the entries of one ledger, in entry order."""

    __slots__ = (
        "_breaks",
        "_chain_ends",
        "_columns",
        "_is_packed",
        "_last",
        "_own_before",
        "_packed",
        "_sizes",
        "_unordered",
        "codes",
        "kinds",
        "ledger_id",
    )

    def __init__(self, ledger_id: int, codes: RegionCodes, own_before: Position) -> None:
        self.ledger_id = ledger_id
        self.codes = codes
        self._own_before = own_before
        self.kinds: bytearray | bytes = bytearray()
        self._columns: Columns | None = None
        self._packed: PackedOrigins | None = None
        """In place of the columns, once nothing more is added."""
        self._is_packed = False
        self._last: dict[int, tuple[int, int, int, int]] = {}
        """Per other region the highest origin, with its ``prev``."""
        self._breaks: dict[int, array[int]] = _NO_CHAINS
        """Per other region the entries, ascending, whose ``prev`` is not the previous one."""
        self._chain_ends: dict[int, tuple[int, int]] = _NO_CHAINS
        """Per such region the origin of the entry added last. Both are created with the columns."""
        self._unordered: frozenset[int] = frozenset()
        """Regions with an entry stored after a later one: it came back late (R5)."""
        self._sizes: array[int] | None = None
        """Number of messages in each entry; None while all have one."""

    def __len__(self) -> int:
        return len(self.kinds)

    def add_own(self, messages: int) -> None:
        """The next entry was first stored here."""
        if messages > 1 or self._sizes is not None:
            self._size(messages)
        self._own()

    def _own(self) -> None:
        assert isinstance(self.kinds, bytearray)
        self.kinds.append(OWN)
        if self._columns is not None:
            for column in self._columns:
                column.append(0)

    def add_all(self, facts: list[EntryHeader | int]) -> None:
        """The next entries; for one first stored here, its number of messages is enough."""
        count = len(facts)
        if self._sizes is None and facts.count(1) == count:
            assert isinstance(self.kinds, bytearray)
            self.kinds += bytes(count)
            for column in self._columns or ():
                column.frombytes(bytes(8 * count))
            return
        for fact in facts:
            if isinstance(fact, int):
                self.add_own(fact)
            else:
                self.add(fact)

    def add(self, header: EntryHeader) -> None:
        """Add the next entry, of any kind."""
        if header.messages > 1 or self._sizes is not None:
            self._size(header.messages)
        if header.flags & (MARKER | NO_ORIGIN):
            self._append(NO_PLACE, (0, 0, 0, 0))
        elif header.region is None or header.origin is None:
            self._own()
        else:
            kind = RETURNED if header.region == self.codes.names[0] else self.codes.code(header.region)
            if header.flags & UNCHAINED:
                self.codes.unchained.add(header.region)
            self._append(kind, (*header.origin, *header.prev))

    def add_unknown(self) -> None:
        """Add a damaged entry to be identified later. Until then it has no place."""
        if self._sizes is not None:
            self._size(1)
        self._append(NO_PLACE, (0, 0, 0, 0))

    def identify_own(self, entry: int) -> None:
        """The entry that ``add_unknown`` added was first stored here."""
        assert isinstance(self.kinds, bytearray)
        self.kinds[entry] = OWN

    def identify_foreign(self, entry: int, region: str, origin: Position, prev: Position) -> None:
        """The entry that ``add_unknown`` added was first stored in another region."""
        assert isinstance(self.kinds, bytearray) and self._columns is not None
        kind, values = self.codes.code(region), (*origin, *prev)
        self.kinds[entry] = kind
        for column, value in zip(self._columns, values, strict=True):
            column[entry] = value
        if kind not in self._last or values > self._last[kind]:
            self._last[kind] = values
        self._link(kind, entry)

    def _link(self, kind: int, entry: int) -> None:
        """An entry took its place among those of its region: note whether it continues the chain, and the next one
        too."""
        wanted, breaks = bytes((kind,)), self._breaks.setdefault(kind, array("I"))
        before, behind = self.kinds.rfind(wanted, 0, entry), self.kinds.find(wanted, entry + 1)
        for one, other in ((before, entry), (entry, behind)):
            if other < 0:
                self._chain_ends[kind] = self._foreign(one)
                continue
            at = bisect_left(breaks, other)
            if at < len(breaks) and breaks[at] == other:
                del breaks[at]
            place = self.place(other)
            if one >= 0 and place is not None and place.prev != self._foreign(one):
                breaks.insert(at, other)

    def _append(self, kind: int, values: tuple[int, int, int, int]) -> None:
        columns = self._columns
        if columns is None:
            empty = bytes(8 * len(self.kinds))
            columns = self._columns = (array("q", empty), array("q", empty), array("q", empty), array("q", empty))
            self._breaks, self._chain_ends = {}, {}
        assert isinstance(self.kinds, bytearray)
        self.kinds.append(kind)
        if self._chain_ends.get(kind, values[2:]) != values[2:]:
            self._breaks.setdefault(kind, array("I")).append(len(self.kinds) - 1)
        self._chain_ends[kind] = values[:2]
        if kind not in self._last or values > self._last[kind]:
            self._last[kind] = values
        elif kind not in self._unordered:
            self._unordered |= {kind}
        for column, value in zip(columns, values, strict=True):
            column.append(value)

    def _size(self, messages: int) -> None:
        if self._sizes is None:
            self._sizes = array("I", [1]) * len(self.kinds)
        self._sizes.append(sound_count(messages))

    def messages(self, entry: int) -> int:
        """How many messages the entry contains: more than one if it is a client's batch."""
        return 1 if self._sizes is None else self._sizes[entry]

    def place(self, entry: int) -> Place | None:
        """The claim of acknowledging ``entry``; None for markers and entries without a common origin.

        :raises IndexError: the ledger has no such entry.
        """
        kind = self.kinds[entry]
        if kind == OWN:
            kinds = self.kinds
            before = entry - 1 if entry and kinds[entry - 1] == OWN else kinds.rfind(b"\0", 0, entry)
            ledger = self.ledger_id
            prev = _new(Position, (ledger, before)) if before >= 0 else self._own_before
            return _new(Place, (self.codes.names[0], prev, _new(Position, (ledger, entry))))
        if kind == NO_PLACE:
            return None
        columns = self._columns
        if columns is None:
            assert self._packed is not None
            prev, origin = self._packed.prev(self.kinds, entry), self._packed.origin(self.kinds, entry)
        else:
            ledgers, entries, prev_ledgers, prev_entries = columns
            prev = Position(prev_ledgers[entry], prev_entries[entry])
            origin = Position(ledgers[entry], entries[entry])
        return Place(self.codes.name(kind), prev if prev.ledger >= 0 else EARLIEST, origin)

    def _foreign(self, entry: int) -> Position:
        columns = self._columns
        if columns is None:
            assert self._packed is not None
            return self._packed.origin(self.kinds, entry)
        return _new(Position, (columns[0][entry], columns[1][entry]))

    @property
    def is_packed(self) -> bool:
        return self._is_packed

    def pack(self) -> None:
        """Nothing more is added: use less memory."""
        self._is_packed = True
        if not self.kinds.strip(b"\0"):
            self.kinds, self._columns = zeros(len(self.kinds)), None
        elif self._columns is not None and PackedOrigins.fits(self._columns):
            unchained = {at for at, region in enumerate(self.codes.names) if region in self.codes.unchained}
            self._packed = PackedOrigins(self.kinds, self._columns, (OWN, NO_PLACE), unchained)
            self._columns = None
        if self._sizes is not None and self._sizes.typecode == "I":
            most = max(self._sizes, default=0)
            self._sizes = array("B" if most < 1 << 8 else "H" if most < 1 << 16 else "I", self._sizes)

    def origin(self, entry: int) -> tuple[str, Position] | None:
        """Where an entry was first stored; None for markers and entries without a common origin.

        :raises IndexError: the ledger has no such entry.
        """
        kind = self.kinds[entry]
        if kind == OWN:
            return self.codes.names[0], _new(Position, (self.ledger_id, entry))
        if kind == NO_PLACE:
            return None
        columns = self._columns
        if columns is None:
            return self.codes.name(kind), self._foreign(entry)
        return self.codes.name(kind), _new(Position, (columns[0][entry], columns[1][entry]))

    def origins(self, first: int, last: int) -> Iterator[tuple[int, str, Position]]:
        """``(entry, region, origin)`` of entries ``first`` to ``last`` that have an origin."""
        for entry in range(max(first, 0), min(last, len(self.kinds) - 1) + 1):
            kind = self.kinds[entry]
            if kind == OWN:
                yield entry, self.codes.names[0], Position(self.ledger_id, entry)
            elif kind != NO_PLACE:
                yield entry, self.codes.name(kind), self._foreign(entry)

    @property
    def is_own(self) -> bool:
        """Whether it has only this region's own entries."""
        return self._columns is None and self._packed is None

    def count(self, first: int, last: int, regions: Collection[str] | None = None) -> int:
        """How many of entries ``first`` to ``last`` have a place and are of these regions (None: of any)."""
        kinds, names = self.kinds, self.codes.names
        wanted = [OWN, RETURNED, *range(1, len(names))]
        return sum(
            kinds.count(kind, first, last + 1) for kind in wanted if regions is None or self.codes.name(kind) in regions
        )

    def runs(self, first: int, last: int) -> Iterator[Place]:
        """The claims of acknowledging entries ``first`` to ``last``, joined where one follows another in its chain.

        The cost is proportional to the number of runs, not of entries.
        A run of own entries spans everything that is not ``OWN``: markers and other regions' entries are not links
        of the own chain (R3). Anything that might hide an own entry would have to end the run, or be claimed with it.
        """
        kinds, last = self.kinds, min(last, len(self.kinds) - 1)
        own = kinds.find(OWN, first, last + 1)
        if own >= 0:
            begin, end = self.place(own), self.place(kinds.rfind(OWN, first, last + 1))
            assert begin is not None and end is not None
            yield begin._replace(origin=end.origin)
        for kind in self._foreign_kinds():
            wanted = bytes((kind,))
            at, final = kinds.find(wanted, first, last + 1), kinds.rfind(wanted, first, last + 1)
            if at < 0:
                continue
            breaks = self._breaks.get(kind, _NO_BREAKS)
            for number in breaks[bisect_right(breaks, at) : bisect_right(breaks, final)]:
                yield self._run(at, kinds.rfind(wanted, at, number))
                at = number
            yield self._run(at, final)

    def _run(self, first: int, last: int) -> Place:
        begin = self.place(first)
        assert begin is not None
        return begin if first == last else begin._replace(origin=self._foreign(last))

    def _foreign_kinds(self) -> list[int]:
        """Codes of the other regions with entries here, and of own entries that came back."""
        return [kind for kind in self._chain_ends if kind != NO_PLACE]

    def count_runs(self, first: int, last: int) -> int:
        """An upper bound on the number of ``runs`` of entries ``first`` to ``last``."""
        found = 1
        for kind in self._foreign_kinds():
            breaks = self._breaks.get(kind, _NO_BREAKS)
            found += 1 + bisect_right(breaks, last) - bisect_left(breaks, first)
        return found

    def last_of_runs(self, first: int, most: int) -> int:
        """An entry such that from ``first`` to it there are at most about ``most`` runs: the last, or ``most`` entries
        ahead."""
        last = len(self.kinds) - 1
        return last if self.count_runs(first, last) <= most + len(self.codes.names) else min(last, first + most - 1)

    def last_of_each(self, end: int) -> dict[str, Position]:
        """Per region the origin of its last entry before entry ``end``, in this region's order."""
        found: dict[str, tuple[int, Position]] = {}
        for kind in (OWN, *self._foreign_kinds()):
            at, region = self.kinds.rfind(bytes((kind,)), 0, max(end, 0)), self.codes.name(kind)
            if at >= 0 and (region not in found or at > found[region][0]):
                found[region] = at, Position(self.ledger_id, at) if kind == OWN else self._foreign(at)
        return {region: origin for region, (_, origin) in found.items()}

    def is_foreign_from(self, first: int) -> bool:
        """Whether one of the entries from ``first`` on was published in another region."""
        return bool(self.kinds[first:].translate(None, bytes((OWN, RETURNED, NO_PLACE))))

    def between(self, region: str, after: Position, before: Position, most: int) -> list[tuple[Position, int]]:
        """``(origin, entry)`` of a region's entries strictly between the two; the first ``most`` of them, or more.

        Entries in order, as nearly all are, are not scanned from the beginning: a caller that reads a whole ledger a
        thousand entries at a time would scan it fifty times.
        """
        names, found = self.codes.names, list[tuple[Position, int]]()
        if region == names[0]:
            first = after.entry + 1 if after.ledger == self.ledger_id else 0 if after.ledger < self.ledger_id else None
            if first is not None:
                self._collect(OWN, max(first, 0), before, most, found)
            self._collect(RETURNED, self._behind(RETURNED, after), before, most, found)
        elif region in names:
            code = names.index(region)
            self._collect(code, self._behind(code, after), before, most, found)
        return [one for one in found if after < one[0] < before]

    def _collect(self, kind: int, first: int, before: Position, most: int, found: list[tuple[Position, int]]) -> None:
        kinds, wanted, is_ordered = self.kinds, bytes((kind,)), kind not in self._unordered
        at = kinds.find(wanted, first)
        left = most if is_ordered else len(kinds)
        while at >= 0 and left:
            origin = _new(Position, (self.ledger_id, at)) if kind == OWN else self._foreign(at)
            if is_ordered and origin >= before:
                break
            found.append((origin, at))
            left -= 1
            at = kinds.find(wanted, at + 1)

    def _behind(self, kind: int, after: Position) -> int:
        """The first entry from which a region's entries may lie after a position."""
        if kind in self._unordered:
            return 0
        wanted, low, high = bytes((kind,)), 0, len(self.kinds)
        while low < high:
            middle = (low + high) // 2
            at = self.kinds.find(wanted, middle, high)
            if at < 0 or self._foreign(at) > after:
                high = middle
            else:
                low = at + 1
        return low

    def own_from(self, entry: int) -> int:
        """How many entries from this one on were first stored here."""
        return self.kinds.count(OWN, entry)

    def last_own(self) -> Position | None:
        """The highest own entry in this ledger, fetched back or not; None: there is none."""
        at = self.kinds.rfind(b"\0")
        found = Position(self.ledger_id, at) if at >= 0 else None
        if RETURNED in self._last:
            back = Position(*self._last[RETURNED][:2])
            found = back if found is None else max(found, back)
        return found

    def last_origins(self) -> dict[str, Position]:
        """The highest entry of every other region in this ledger."""
        name = self.codes.name
        return {name(kind): Position(*last[:2]) for kind, last in self._last.items() if kind < RETURNED}

    def memory(self) -> int:
        """Approximate bytes of memory, not counting what other ledgers share."""
        count = len(self.kinds)
        sizes = 0 if self._sizes is None else self._sizes.itemsize * count
        breaks = 4 * sum(map(len, self._breaks.values()))
        if self._packed is not None:
            return count + self._packed.memory() + sizes + breaks + 250
        if self._columns is not None:
            return 33 * count + sizes + breaks + 250
        return (0 if isinstance(self.kinds, bytes) else count) + sizes + 250
