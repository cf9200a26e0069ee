# SPDX-License-Identifier: Apache-2.0
"""The acked entries of one origin region's stream: a set of positions that only grows and merges by union.

**Positions, not entries.** An origin's ledger holds its own entries and, between them, entries of other regions
and markers. Only own entries are acked here. An acked entry ``e`` whose previous own entry is ``p`` (rule R3)
is *claimed* as the interval ``(p, e]``: no own entry lies strictly between the two, so nothing unacked is claimed.
Two acked runs join only where the second's ``prev`` is the first's end. So a stream interleaved with two others still
becomes one run, and an entry withheld from a region is never claimed along with its neighbours.

``RunSet`` keeps the positions; this module merges, compares and encodes them.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from meridian_broker.positions.bitruns import ENTRY_LIMIT
from meridian_broker.positions.claims import Claims, put_position, take_position
from meridian_broker.positions.cold import cool_claims, put_cold, take_cold
from meridian_broker.positions.position import EARLIEST, LATEST, Position
from meridian_broker.positions.runset import RunSet
from meridian_broker.positions.varints import Reader, put_number

FLOOR: Final = -1
"""The key under which ``digests`` shows the floor; ledger ids are never negative."""


class AckSet(RunSet):
    """The acked positions of one origin. Mutable; the module docstring defines the semantics."""

    __slots__ = ()

    # -- the algebra ---------------------------------------------------------------------------------------------------

    def join(self, other: AckSet) -> bool:
        """Add everything the other set has.

        :returns: whether anything was new.
        """
        if other._detail is None:
            return self.raise_floor(Position(other._ledger, other._entry))
        small = self._join_small(other)
        if small is not None:
            return small
        if other.within(self):
            return False
        if (other._ledger, other._entry) > (self._ledger, self._entry):
            self._ledger, self._entry = other._ledger, other._entry
        for ledger, theirs in other._detail.items():
            self._claims_of(ledger).absorb(theirs)
        self._normalise()
        return True

    def within(self, other: AckSet) -> bool:
        """Whether the other set has everything this one has: ``other.join(self)`` would change nothing."""
        if (self._ledger, self._entry) > (other._ledger, other._entry):
            return False
        return all(other._lacks(ledger, claims) is None for ledger, claims in (self._detail or {}).items())

    def minus(self, other: AckSet) -> AckSet:
        """The part of this set that the other lacks.

        It may be slightly too large: where the floors differ it contains the whole floor, and where a link is missing
        it contains the entry that the link leads to. Joined to the other set it gives the union; it is empty exactly if
        this set is within the other.
        """
        result = AckSet()
        if (self._ledger, self._entry) > (other._ledger, other._entry):
            result._ledger, result._entry = self._ledger, self._entry
        detail = {}
        for ledger, claims in (self._detail or {}).items():
            lacking = other._lacks(ledger, claims)
            if lacking is not None:
                detail[ledger] = lacking
        if detail:
            result._detail = detail
            result._normalise()
        return result

    def extract(self, ledgers: set[int]) -> AckSet:
        """The part under these keys of ``digests``."""
        result = AckSet(self.floor if FLOOR in ledgers else EARLIEST)
        detail = {ledger: claims.copy() for ledger, claims in self._ledgers() if ledger in ledgers}
        if detail:
            result._detail = detail
            result._normalise()
        return result

    def last(self) -> Position | None:
        """The last entry that is claimed individually; None if there is none."""
        if not self._detail:
            return None
        ledger = max(self._detail)
        bits = self._detail[ledger].bits
        return Position(ledger, bits.max()) if bits else None

    def upto(self, position: Position) -> AckSet:
        """The claims up to a position, without partly acked batches."""
        result = AckSet(min(self.floor, position))
        for after, end in self.runs():
            if after < position and (last := min(end, position)).entry >= 0:
                result.claim(after, last)
        return result

    def copy(self) -> AckSet:
        other = AckSet(Position(self._ledger, self._entry))
        if self._cold is not None:
            object.__setattr__(other, "_links", self._cold)
            del other._detail
            object.__setattr__(other, "__class__", ColdAckSet)
        elif self._detail is not None:
            other._detail = {ledger: claims.copy() for ledger, claims in self._detail.items()}
            other._links = None if self._links is None else list(self._links)
        return other

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, AckSet):
            return NotImplemented
        if self._cold is not None and self._cold == other._cold:
            return (self._ledger, self._entry) == (other._ledger, other._entry)
        return (self._ledger, self._entry, self._detail) == (other._ledger, other._entry, other._detail)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<AckSet up to {self._ledger}:{self._entry}, {self.count_detail()} above>"

    def cool(self, like: AckSet | None = None) -> None:
        """Called periodically: encode parts that did not change since the last call; share them with ``like`` if equal.

        Queries still give the same results; parts that are accessed are decoded again, ledger by ledger.
        """
        if self._cold is None:
            if self._detail is None or not cool_claims(self._detail):
                return
            object.__setattr__(self, "_links", put_cold(self._detail))
            del self._detail
            object.__setattr__(self, "__class__", ColdAckSet)
        if like is not None and self._cold is not None and like._cold == self._cold:
            object.__setattr__(self, "_links", like._cold)

    # -- encoding ------------------------------------------------------------------------------------------------------

    def digest(self, ledger: int) -> int:
        """A stable 64-bit digest of one ledger's claims above the floor, or, with ``FLOOR``, of the floor.

        Equal parts have equal digests in every region. 0: nothing is claimed.
        """
        if ledger == FLOOR:
            out = bytearray()
            put_position(out, Position(self._ledger, self._entry))
            return int.from_bytes(blake2b(out, digest_size=8).digest(), "big") if self._ledger >= 0 else 0
        claims = None if self._detail is None else self._detail.get(ledger)
        return 0 if claims is None else claims.digest(ledger)

    def digests(self) -> dict[int, int]:
        """All digests that are not 0, by ledger or ``FLOOR``. Equal sets, equal digests."""
        result = {} if self._ledger < 0 else {FLOOR: self.digest(FLOOR)}
        for ledger, claims in self._ledgers():
            result[ledger] = claims.digest(ledger)
        return result

    def put(self, out: bytearray) -> None:
        """Append the encoding. It is canonical and self-delimiting; the version is that of the enclosing format."""
        put_position(out, Position(self._ledger, self._entry))
        put_number(out, len(self._detail or ()))
        last = 0
        for ledger, claims in self._ledgers():
            put_number(out, ledger - last)
            claims.put(out, ledger)
            last = ledger

    @classmethod
    def take(cls, reader: Reader) -> AckSet:
        """Read what ``put`` wrote.

        :raises ValueError: the bytes are not a valid set.
        """
        result = cls(take_position(reader))
        detail: dict[int, Claims] = {}
        ledger = 0
        for index in range(reader.count(2)):
            step = reader.number()
            ledger += step
            if (index and not step) or ledger > LATEST.ledger:
                raise reader.broken("ledgers are not in order")
            claims = detail[ledger] = Claims.take(reader, ledger)
        if detail:
            result._detail = detail
            # The usual delta, one ledger's entries and no floor, arrives in canonical form.
            if result._ledger >= 0 or len(detail) > 1 or claims.link is not None or claims.partial is not None:
                result._normalise()
        return result

    def encode(self) -> bytes:
        out = bytearray()
        self.put(out)
        return bytes(out)

    @classmethod
    def decode(cls, data: bytes) -> AckSet:
        """:raises ValueError: the bytes are not a valid set."""
        reader = Reader(data)
        result = cls.take(reader)
        reader.end()
        return result

    def _join_small(self, other: AckSet) -> bool | None:
        """``join`` for the usual delta: one run, or a few bits of one ledger without links or batches.

        :returns: as ``join``, or None if the delta is not that simple; then nothing was done.
        """
        if other._ledger >= 0 or other._detail is None or len(other._detail) > 1:
            return None
        ((ledger, theirs),) = other._detail.items()
        if theirs.partial is not None:
            return None
        bits = theirs.bits
        first, last, count = bits.min(), bits.max(), len(bits)
        if last - first + 1 == count:
            return self.claim(
                theirs.link if theirs.link is not None else Position(ledger, first - 1), Position(ledger, last)
            )
        mine = None if self._detail is None else self._detail.get(ledger)
        if mine is None or mine.tail is not None or mine.partial is not None or theirs.link is not None:
            return None
        if ledger == self._ledger and first <= self._entry + 1:
            return None
        before = len(mine.bits)
        mine.bits |= bits
        return bool(len(mine.bits) > before)

    def _lacks(self, ledger: int, claims: Claims) -> Claims | None:
        """The part of another set's claims that this set lacks; None if it has all."""
        if ledger < self._ledger:
            return None
        mine = None if self._detail is None else self._detail.get(ledger)
        lacking = Claims()
        if mine is not None:
            if not mine.has_bits_of(claims):
                lacking.bits = claims.bits - mine.bits
                if mine.tail is not None:
                    lacking.bits.remove_range(mine.tail + 1, ENTRY_LIMIT)
        else:
            link = self._link_over(ledger)
            if link is None or link >= (ledger, -1):
                lacking.bits = claims.bits.copy()
                if link is not None and link[0] == ledger:
                    lacking.bits.remove_range(link[1] + 1, ENTRY_LIMIT)
        if ledger == self._ledger:
            lacking.bits.remove_range(0, min(self._entry + 1, ENTRY_LIMIT))
        if claims.link is not None and not self.covers(claims.link, Position(ledger, -1)):
            lacking.link = claims.link
            lacking.bits.add(0)
        if claims.partial is not None:

            def claimed(entry: int, after: Position | None) -> bool:
                upto = Position(ledger, entry)
                return self.contains(upto) if after is None else self.covers(after, upto)

            lacking.partial = claims.lacking_partial(claimed, mine) or None
        return None if lacking.is_empty else lacking


class ColdAckSet(AckSet):
    """A set whose slot ``_detail`` is empty, see ``ColdClaims``. The slot of the links has everything as one blob."""

    __slots__ = ()

    @property
    def _cold(self) -> bytes | None:
        return self._links  # type: ignore[return-value]

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> dict[int, Claims] | None:
            """The detail is accessed: the set becomes warm, ledger by ledger."""
            if name != "_detail" or self._cold is None:
                raise AttributeError(name)
            self._detail, self._links = take_cold(self._cold)
            object.__setattr__(self, "__class__", AckSet)
            return self._detail
