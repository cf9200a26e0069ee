# SPDX-License-Identifier: Apache-2.0
"""What is acked of one origin region's stream: a set of positions that can only grow, and merges by union.

**Positions, not entries.** An origin's ledger holds its own entries and, between them, entries that came from
elsewhere and markers. Only own entries are acked here. An acked entry ``e`` whose previous own entry is ``p`` (rule R3)
is *claimed* as the interval ``(p, e]``: no own entry stands strictly between the two, so nothing unacked is claimed.
Two acked runs join only where the second's ``prev`` is the first's end. So a stream interleaved with two others still
becomes one run, and an entry that is withheld from a region is never claimed by its neighbours.

**Form.** ``floor``: everything up to it is claimed. Above it, per ledger that has anything to say (``Claims``):

* a bitmap of claimed entry ids;
* a *link*: everything after a position in an earlier ledger and before entry 0 of this one is claimed too. It comes
  from a first entry whose ``prev`` is in an earlier ledger. What lies under a link is not said again in bitmaps;
* partly acked batches.

The form is canonical: equal sets are equal in every part, whatever the order of what happened. Links reach as far down
as they can, the floor as far up, so runs are always maximal, and a position is claimed together with ``(after, upto]``
exactly if one run holds both.

**Speed.** In-order acks only move the floor; an ack out of order sets one bit. Both are written flat. Whatever touches
links, several ledgers or batches goes through ``_settle``, which restores the form in time linear in the ledgers with
detail.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from hashlib import blake2b
from typing import Final

from meridian_broker.positions.bitruns import ENTRY_LIMIT, run_end, run_start, runs
from meridian_broker.positions.canonical import advance, merge_runs
from meridian_broker.positions.claims import BATCH_LIMIT, Claims, Partial, put_position, take_position
from meridian_broker.positions.position import EARLIEST, LATEST, Position
from meridian_broker.positions.varints import Reader, put_number

FLOOR: Final = -1
"""The key under which ``digests`` shows the floor; ledger ids are never negative."""


class AckSet:
    """The acked positions of one origin. Changed in place; see the module for what it means."""

    __slots__ = ("_detail", "_entry", "_ledger", "_links")

    def __init__(self, floor: Position = EARLIEST) -> None:
        self._ledger, self._entry = floor
        self._detail: dict[int, Claims] | None = None
        self._links: list[tuple[int, Position]] | None = None
        """``(ledger, its link)``, ascending. Derived; spans never overlap."""

    # -- acks ----------------------------------------------------------------------------------------------------------

    def claim(self, after: Position, upto: Position) -> bool:
        """Claim ``(after, upto]``. ``upto`` is an own entry, ``after`` the one before the first that is acked.

        :returns: whether anything was new.
        :raises ValueError: no such interval, or an entry id from 2^32 on.
        """
        after_ledger, after_entry = after
        ledger, entry = upto
        floor_ledger = self._ledger
        if after_ledger < floor_ledger or (after_ledger == floor_ledger and after_entry <= self._entry):
            if ledger < floor_ledger or (ledger == floor_ledger and entry <= self._entry):
                return False
            if not 0 <= entry < ENTRY_LIMIT:
                raise _refused(after, upto)
            self._ledger = ledger
            self._entry = entry
            if self._detail is not None:
                claims = self._detail.get(ledger)
                if (
                    claims is None
                    or claims.tail is not None
                    or claims.partial is not None
                    or len(self._detail) > 1
                    or claims.bits.min() <= entry + 1
                ):
                    self._settle()
            return True
        if after_ledger == ledger and self._detail is not None:
            claims = self._detail.get(ledger)
            if claims is not None and claims.tail is None and claims.partial is None and after_entry + 1 == entry:
                if not 0 <= entry < ENTRY_LIMIT:
                    raise _refused(after, upto)
                if entry in claims.bits:
                    return False
                claims.bits.add(entry)
                return True
        return self._claim_detail(after, upto)

    def claim_point(self, position: Position) -> bool:
        """Claim one entry whose ``prev`` is not known. It joins its neighbours once somebody who knows claims it."""
        return self.claim(Position(position[0], position[1] - 1), position)

    def claim_batch(self, position: Position, size: int, acked: int, after: Position | None) -> bool:
        """Claim some messages of a batch of ``size``: those whose bits are set. All of them are the entry (R18).

        :raises ValueError: bits that the batch does not have, or a batch that cannot be.
        """
        if not 0 < size <= BATCH_LIMIT or acked < 0 or acked >> size:
            raise ValueError(f"acked bits {acked:#x} do not fit a batch of {size} messages at {_show(position)}")
        if not acked:
            return False
        whole = acked == (1 << size) - 1
        if whole or self.contains(position):
            if after is None:
                return whole and self.claim_point(position)
            return self.claim(after, position)
        ledger, entry = position
        if not 0 <= entry < ENTRY_LIMIT or (after is not None and not EARLIEST <= after < position):
            raise _refused(after if after is not None else position, position)
        one = AckSet()
        one._claims_of(ledger).partial = {entry: Partial(size, acked, after)}
        return self.join(one)

    def raise_floor(self, position: Position) -> bool:
        """Claim everything up to a position, and forget the detail below (R11)."""
        ledger, entry = position
        if (ledger, entry) <= (self._ledger, self._entry):
            return False
        if position > LATEST or entry < -1:
            raise _refused(EARLIEST, position)
        self._ledger, self._entry = ledger, entry
        if self._detail is not None:
            self._settle()
        return True

    # -- questions -----------------------------------------------------------------------------------------------------

    @property
    def floor(self) -> Position:
        """Everything up to here is claimed; ``EARLIEST``: nothing is known to be."""
        return Position(self._ledger, self._entry)

    @property
    def is_empty(self) -> bool:
        return self._ledger < 0 and self._detail is None

    def contains(self, position: Position) -> bool:
        """Whether the entry there is acked."""
        ledger, entry = position
        if ledger < self._ledger or (ledger == self._ledger and entry <= self._entry):
            return True
        if self._detail is None:
            return False
        claims = self._detail.get(ledger)
        if claims is None:
            if self._links is None:
                return False
            link = self._link_over(ledger)
            return link is not None and link < (ledger, entry)
        tail = claims.tail
        if tail is not None and entry > tail:
            return True
        try:
            return entry in claims.bits
        except OverflowError:  # -1, the place before the first entry, or beyond what can be claimed
            return entry < 0 and claims.link is not None

    def remaining(self, position: Position, size: int) -> int | None:
        """Which messages of a batch are *not* acked, as bits: 0 = the whole entry is acked, None = none of it is."""
        if self.contains(position):
            return 0
        claims = None if self._detail is None else self._detail.get(position[0])
        if claims is None or claims.partial is None:
            return None
        partial = claims.partial.get(position[1])
        if partial is None:
            return None
        return ((1 << size) - 1) & ~partial.acked

    def covers(self, after: Position, upto: Position) -> bool:
        """Whether all of ``(after, upto]`` is claimed."""
        start = self._start(upto[0], upto[1])
        return start is not None and start <= after

    def reach(self, after: Position) -> Position:
        """The end of the run that goes on right after a position; the position itself when none does."""
        ledger, entry = after
        floor = Position(self._ledger, self._entry)
        if after <= floor:
            return floor
        claims = None if self._detail is None else self._detail.get(ledger)
        if claims is not None and (claims.tail is None or entry < claims.tail):
            if entry + 1 < ENTRY_LIMIT and entry + 1 in claims.bits:
                return Position(ledger, run_end(claims.bits, entry + 1))
            return after
        for owner, link in self._links or ():
            if link <= after < (owner, 0):
                return Position(owner, run_end(self._claims_of(owner).bits, 0))
        return after

    def runs(self) -> Iterator[tuple[Position, Position]]:
        """All maximal runs ``(after, upto]``, ascending. Partly acked batches are not among them."""
        if self._ledger >= 0:
            yield EARLIEST, Position(self._ledger, self._entry)
        for ledger, claims in self._ledgers():
            for first, last in zip(*runs(claims.bits), strict=True):
                after = claims.link if first == 0 and claims.link is not None else Position(ledger, first - 1)
                yield after, Position(ledger, last)

    def partials(self) -> Iterator[tuple[Position, Partial]]:
        """All partly acked batches, ascending."""
        for ledger, claims in self._ledgers():
            for entry in sorted(claims.partial or ()):
                assert claims.partial is not None
                yield Position(ledger, entry), claims.partial[entry]

    def count_detail(self) -> int:
        """Entry ids and partly acked batches remembered above the floor."""
        return sum(len(claims.bits) + len(claims.partial or ()) for _, claims in self._ledgers())

    # -- the algebra ---------------------------------------------------------------------------------------------------

    def join(self, other: AckSet) -> bool:
        """Take over everything the other set has.

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
        self._settle()
        return True

    def within(self, other: AckSet) -> bool:
        """Whether the other set has everything this one has: ``other.join(self)`` would change nothing."""
        if (self._ledger, self._entry) > (other._ledger, other._entry):
            return False
        return all(other._lacks(ledger, claims) is None for ledger, claims in (self._detail or {}).items())

    def minus(self, other: AckSet) -> AckSet:
        """What this set has and the other lacks.

        A part of this set that is at most a little too large: where the floors differ the whole floor is in it, and
        where a link is missing so is the entry it leads to. Joined to the other it gives the union; it is empty exactly
        if this set is within the other.
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
            result._settle()
        return result

    def extract(self, ledgers: set[int]) -> AckSet:
        """The part under these keys of ``digests``."""
        result = AckSet(self.floor if FLOOR in ledgers else EARLIEST)
        detail = {ledger: claims.copy() for ledger, claims in self._ledgers() if ledger in ledgers}
        if detail:
            result._detail = detail
            result._settle()
        return result

    def copy(self) -> AckSet:
        other = AckSet(Position(self._ledger, self._entry))
        if self._detail is not None:
            other._detail = {ledger: claims.copy() for ledger, claims in self._detail.items()}
            other._links = None if self._links is None else list(self._links)
        return other

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, AckSet):
            return NotImplemented
        return (self._ledger, self._entry, self._detail) == (other._ledger, other._entry, other._detail)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<AckSet up to {self._ledger}:{self._entry}, {self.count_detail()} above>"

    # -- encoding ------------------------------------------------------------------------------------------------------

    def digest(self, ledger: int) -> int:
        """A stable 64-bit digest of what is known of one ledger above the floor, or with ``FLOOR`` of the floor.

        Equal parts have equal digests in every region. 0: nothing is known.
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
        """Append the encoding; it knows where it ends. Canonical; its version is that of what it is part of."""
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

        :raises ValueError: the bytes are no such set.
        """
        result = cls(take_position(reader))
        detail: dict[int, Claims] = {}
        ledger = 0
        for index in range(reader.count(2)):
            step = reader.number()
            ledger += step
            if (index and not step) or ledger > LATEST.ledger:
                raise reader.broken("ledgers are not in order")
            detail[ledger] = Claims.take(reader, ledger)
        if detail:
            result._detail = detail
            result._settle()
        return result

    def encode(self) -> bytes:
        out = bytearray()
        self.put(out)
        return bytes(out)

    @classmethod
    def decode(cls, data: bytes) -> AckSet:
        """:raises ValueError: the bytes are no such set."""
        reader = Reader(data)
        result = cls.take(reader)
        reader.end()
        return result

    # -- the canonical form --------------------------------------------------------------------------------------------

    def _ledgers(self) -> list[tuple[int, Claims]]:
        return sorted(self._detail.items()) if self._detail is not None else []

    def _claims_of(self, ledger: int) -> Claims:
        """A ledger's claims, made when missing. The caller fills them, or settles."""
        if self._detail is None:
            self._detail = {}
        claims = self._detail.get(ledger)
        if claims is None:
            claims = self._detail[ledger] = Claims()
        return claims

    def _link_over(self, ledger: int) -> Position | None:
        """The only link that may pass over a ledger or reach into it from above."""
        links = self._links
        if links is None:
            return None
        index = bisect_right(links, (ledger + 1,))
        return links[index][1] if index < len(links) else None

    def _start(self, ledger: int, entry: int) -> Position | None:
        """What the run with this position begins after; None when the position is not claimed."""
        if (ledger, entry) <= (self._ledger, self._entry):
            return EARLIEST
        claims = None if self._detail is None else self._detail.get(ledger)
        if claims is not None and (claims.tail is None or entry <= claims.tail):
            if entry < 0:
                return claims.link
            if entry >= ENTRY_LIMIT or entry not in claims.bits:
                return None
            first = run_start(claims.bits, entry)
            return claims.link if first == 0 and claims.link is not None else Position(ledger, first - 1)
        link = self._link_over(ledger)
        return link if link is not None and link < (ledger, entry) else None

    def _claim_detail(self, after: Position, upto: Position) -> bool:
        """``claim`` for what is above the floor and not simply the next bit."""
        if not EARLIEST <= after <= upto or not 0 <= upto[1] < ENTRY_LIMIT or not -1 <= after[1] < ENTRY_LIMIT:
            raise _refused(after, upto)
        if after == upto or self.covers(after, upto):
            return False
        ledger, entry = upto
        claims = None if self._detail is None else self._detail.get(ledger)
        if claims is not None and claims.tail is None and claims.partial is None and after[0] == ledger:
            claims.bits.add_range(after[1] + 1, entry + 1)
            return True
        self._claim_raw(after, upto)
        self._settle()
        return True

    def _claim_raw(self, after: Position, upto: Position) -> None:
        """Note an interval without regard to the form."""
        if after <= (self._ledger, self._entry):
            if upto > (self._ledger, self._entry):
                self._ledger, self._entry = upto
            return
        claims = self._claims_of(upto[0])
        if after[0] == upto[0]:
            claims.bits.add_range(after[1] + 1, upto[1] + 1)
        else:
            claims.bits.add_range(0, upto[1] + 1)
            if claims.link is None or after < claims.link:
                claims.link = after

    def _join_small(self, other: AckSet) -> bool | None:
        """``join`` for the usual delta: one run, or a few bits of one ledger that nothing complicates.

        :returns: what ``join`` returns, or None when it is no such delta; then nothing was done.
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
        """The part of another set's claims that this one has not; None when it has all."""
        if ledger < self._ledger:
            return None
        mine = None if self._detail is None else self._detail.get(ledger)
        lacking = Claims()
        if mine is not None:
            if not claims.bits <= mine.bits:
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

    def _settle(self) -> None:
        """Restore the canonical form."""
        detail = self._detail
        if detail is None:
            return
        again = True
        while again:
            order = sorted(detail)
            merge_runs(detail, order)
            self._ledger, self._entry = advance(detail, order, (self._ledger, self._entry))
            links = [(ledger, link) for ledger in order if (link := detail[ledger].link) is not None]
            self._links = links or None
            again = self._settle_batches(order)
        for ledger in order:
            if detail[ledger].is_empty:
                del detail[ledger]
        if not detail:
            self._detail = self._links = None

    def _settle_batches(self, order: list[int]) -> bool:
        """Turn whole batches into claims, and forget those that are claimed.

        :returns: whether that claimed anything, so that the form has to be restored once more.
        """
        detail = self._detail
        assert detail is not None
        changed = False
        for ledger in order:
            claims = detail[ledger]
            if claims.partial is None:
                continue
            found = list(claims.full_batches())
            claimed = [entry for entry in claims.partial or () if self.contains(Position(ledger, entry))]
            found += [(entry, claims.drop_partial(entry)) for entry in claimed]
            for entry, batch in found:
                upto = Position(ledger, entry)
                after = batch.after if batch.after is not None else Position(ledger, entry - 1)
                if not self.covers(after, upto):
                    self._claim_raw(after, upto)
                    changed = True
        return changed


def _show(position: Position) -> str:
    return f"{position[0]}:{position[1]}"


def _refused(after: Position, upto: Position) -> ValueError:
    return ValueError(
        f"({_show(after)}, {_show(upto)}] cannot be claimed: it has to end at an entry, after where it begins, "
        f"with entry ids below {ENTRY_LIMIT}"
    )
