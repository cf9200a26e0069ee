# SPDX-License-Identifier: Apache-2.0
"""Entries that were removed without an ack: ranges per origin region, each with its cause (rule R14).

Drops resemble acks but must never become acks: expiry in one region says nothing about the others, which may still
hold the message and owe it to a consumer. So they are kept in a set of their own, of another type, that no ``Progress``
can join. Each region applies its own. Only a rewind withdraws drops: the entries it rules are owed again (R12), and are
delivered again as long as they are stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import IntEnum
from typing import Final

from meridian_broker.positions.ackset import AckSet
from meridian_broker.positions.formats import unreadable
from meridian_broker.positions.position import EARLIEST, LATEST, Position
from meridian_broker.positions.varints import Reader, put_name, put_number

FORMAT_VERSION: Final = 1


class Cause(IntEnum):
    """Why entries were dropped. The numbers are part of the format."""

    TTL = 1
    """Older than the message TTL."""
    QUOTA = 2
    """Evicted because a backlog quota was exceeded."""
    TRUNCATED = 3
    """An operator truncated the topic."""
    LOST = 4
    """The ledger that held them is lost."""


class Dropped:
    """The entries of a subscription that one region dropped. Grows until a rewind; changed in place."""

    __slots__ = ("_ranges", "_unconditional")

    def __init__(self) -> None:
        self._ranges: dict[tuple[str, Cause], AckSet] = {}
        self._unconditional: dict[str, AckSet] = {}
        """Per region, all causes together. Derived: dispatch looks it up for every entry."""

    def add(self, cause: Cause, region: str, after: Position, upto: Position) -> bool:
        """Record that the origin's entries in ``(after, upto]`` were dropped, except those already acked.

        :returns: whether anything was new.
        :raises ValueError: no such interval, see ``AckSet.claim``.
        """
        ranges = self._ranges.get((region, cause))
        if ranges is None:
            fresh = AckSet()
            fresh.claim(after, upto)
            if fresh.is_empty:
                return False
            self._ranges[region, cause] = fresh
            self._count(region, fresh)
            return True
        if not ranges.claim(after, upto):
            return False
        self._unconditional[region].claim(after, upto)
        return True

    def contains(self, region: str, position: Position) -> bool:
        ranges = self._unconditional.get(region)
        return ranges is not None and ranges.contains(position)

    def meets(self, region: str, after: Position, upto: Position) -> bool:
        """Whether anything of the origin's ``(after, upto]`` was dropped."""
        ranges = self._unconditional.get(region)
        return ranges is not None and ranges.meets(after, upto)

    def cause(self, region: str, position: Position) -> Cause | None:
        """Why an entry was dropped; of several causes, the first in ``Cause``. None: it was not."""
        for cause in Cause:
            ranges = self._ranges.get((region, cause))
            if ranges is not None and ranges.contains(position):
                return cause
        return None

    def join(self, other: Dropped) -> bool:
        """Add the other's ranges, for example those of another owner of the same subscription in this region."""
        changed = False
        for key, theirs in other._ranges.items():
            mine = self._ranges.get(key)
            if mine is None:
                self._ranges[key] = theirs.copy()
            elif not mine.join(theirs):
                continue
            changed = True
            self._count(key[0], theirs)
        return changed

    def take_back(self, rules: Mapping[str, tuple[Position, Position]]) -> bool:
        """Withdraw drops that a rewind rules: entries in ``(low, high]`` of these regions are owed again (R12).

        The bounds are entries, or ``EARLIEST``.

        :returns: whether anything was dropped there.
        """
        kept = Dropped()
        for cause, region, after, upto in self.runs():
            low, high = rules.get(region, (LATEST, LATEST))
            for start, end in ((after, min(upto, low)), (max(after, high), upto)):
                if start < end and end.entry >= 0:
                    kept.add(cause, region, start, end)
        changed = kept != self
        self._ranges, self._unconditional = kept._ranges, kept._unconditional
        return changed

    def forget(self, region: str, floor: Position) -> bool:
        """Nothing of a region is owed up to a floor (R11). :returns: whether anything was dropped there."""
        return self.take_back({region: (EARLIEST, floor)})

    def runs(self) -> Iterator[tuple[Cause, str, Position, Position]]:
        """``(cause, region, after, upto)``, by region and cause, ascending."""
        for region, cause in sorted(self._ranges):
            for after, upto in self._ranges[region, cause].runs():
                yield cause, region, after, upto

    @property
    def is_empty(self) -> bool:
        return not self._ranges

    def cool(self) -> None:
        """As ``Progress.cool``."""
        for ranges in (*self._ranges.values(), *self._unconditional.values()):
            ranges.cool()

    def copy(self) -> Dropped:
        other = Dropped()
        other._ranges = {key: ranges.copy() for key, ranges in self._ranges.items()}
        other._unconditional = {region: ranges.copy() for region, ranges in self._unconditional.items()}
        return other

    def _count(self, region: str, ranges: AckSet) -> None:
        known = self._unconditional.get(region)
        if known is None:
            self._unconditional[region] = ranges.copy()
        else:
            known.join(ranges)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Dropped):
            return NotImplemented
        return self._ranges == other._ranges

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return (
            f"<Dropped: {', '.join(f'{cause.name} of {region}' for region, cause in sorted(self._ranges)) or 'none'}>"
        )

    def encode(self) -> bytes:
        """Canonical: equal drops, equal bytes. The first byte is the format's version."""
        out = bytearray((FORMAT_VERSION,))
        put_number(out, len(self._ranges))
        for region, cause in sorted(self._ranges):
            put_name(out, region)
            out.append(cause)
            self._ranges[region, cause].put(out)
        return bytes(out)

    @classmethod
    def decode(cls, data: bytes) -> Dropped:
        """:raises ValueError: another format, or bytes that are not valid drops."""
        reader = Reader(data)
        version = reader.byte()
        if version != FORMAT_VERSION:
            raise ValueError(unreadable("the record of drops", version, FORMAT_VERSION))
        result = cls()
        for _ in range(reader.count(5)):
            region = reader.name()
            cause = Cause(reader.byte())
            ranges = AckSet.take(reader)
            if ranges.is_empty or (region, cause) in result._ranges or any(True for _ in ranges.partials()):
                raise reader.broken("ranges are empty, come twice, or hold batches")
            result._ranges[region, cause] = ranges
            result._count(region, ranges)
        reader.end()
        return result
