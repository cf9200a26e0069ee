# SPDX-License-Identifier: Apache-2.0
"""The positions that an ``AckSet`` claims, in canonical form. ``ackset.py`` defines what they mean.

**Form.** ``floor``: everything up to it is claimed. Above it, per ledger that has detail (``Claims``):

* a bitmap of claimed entry ids;
* a *link*: everything after a position in an earlier ledger and before entry 0 of this one is claimed too. It comes
  from a first entry whose ``prev`` is in an earlier ledger. Bitmaps do not repeat what a link covers;
* partly acked batches.

Equal sets are equal in every part, in whatever order claims were made. Links reach as far down as they can, the floor
as far up, so runs are always maximal, and ``(after, upto]`` is claimed exactly if one run covers all of it.

**Speed.** In-order acks only move the floor; an ack out of order sets one bit. Both are fast paths. Everything that
  involves links, several ledgers or batches goes through ``_normalise``, which restores the form in time linear in the
  ledgers with detail.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise

from meridian_broker.positions.bitruns import ENTRY_LIMIT, run_end, run_start, runs
from meridian_broker.positions.canonical import advance, merge_runs
from meridian_broker.positions.claims import BATCH_LIMIT, Claims, Partial, join_partial
from meridian_broker.positions.cold import count_cold
from meridian_broker.positions.position import EARLIEST, LATEST, Position


class RunSet:
    """Claimed positions: adds and queries them. Mutable."""

    __slots__ = ("_detail", "_entry", "_ledger", "_links")

    def __init__(self, floor: Position = EARLIEST) -> None:
        self._ledger, self._entry = floor
        self._detail: dict[int, Claims] | None = None
        self._links: list[tuple[int, Position]] | None = None
        """``(ledger, its link)``, ascending. Derived; spans never overlap."""

    @property
    def _cold(self) -> bytes | None:
        """Detail and links as one blob, for a set that has been idle for a while (``ColdAckSet``)."""
        return None

    # -- claims --------------------------------------------------------------------------------------------------------

    def claim(self, after: Position, upto: Position) -> bool:
        """Claim ``(after, upto]``. ``upto`` is an own entry, ``after`` the one before the first that is acked.

        :returns: whether anything was new.
        :raises ValueError: no such interval, or an entry id from 2^32 on.
        """
        after_ledger, after_entry, ledger, entry = after[0], after[1], upto[0], upto[1]  # quicker than two tuples
        floor_ledger = self._ledger
        if after_ledger < floor_ledger or (after_ledger == floor_ledger and after_entry <= self._entry):
            if ledger < floor_ledger or (ledger == floor_ledger and entry <= self._entry):
                return False
            if not 0 <= entry < ENTRY_LIMIT:
                raise _refused(after, upto)
            self._ledger = ledger
            self._entry = entry
            if self._detail is not None:
                self._rise()
            return True
        if after_ledger == ledger and self._detail is not None:
            claims = self._detail.get(ledger)
            if claims is not None and claims.tail is None and claims.partial is None and -1 <= after_entry < entry:
                if not entry < ENTRY_LIMIT:
                    raise _refused(after, upto)
                if after_entry + 1 == entry:
                    if entry in claims.bits:
                        return False
                    claims.bits.add(entry)
                    return True
                if claims.bits.contains_range(after_entry + 1, entry + 1):
                    return False
                claims.bits.add_range(after_entry + 1, entry + 1)
                return True
        return self._claim_detail(after, upto)

    def claim_point(self, position: Position) -> bool:
        """Claim one entry whose ``prev`` is unknown. It joins its neighbours once it is claimed with its ``prev``."""
        return self.claim(Position(position[0], position[1] - 1), position)

    def claim_batch(self, position: Position, size: int, acked: int, after: Position | None) -> bool:
        """Claim some messages of a batch of ``size``: those whose bits are set. All bits claim the entry (R18).

        :raises ValueError: bits that the batch does not have, or an impossible batch.
        """
        if not 0 < size <= BATCH_LIMIT or acked < 0 or acked >> size:
            bits = acked.bit_length()  # the bits themselves may be megabytes, and this is logged
            raise ValueError(f"{bits} bits of acked messages do not fit a batch of {size} at {_show(position)}")
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
        claims = self._claims_of(ledger)
        batch = Partial(size, acked, after)
        if claims.partial is None:
            claims.partial = {entry: batch}
            return True
        known = claims.partial.get(entry)
        joined = batch if known is None else join_partial(batch, known)
        claims.partial[entry] = joined
        if joined.acked == (1 << joined.size) - 1:
            self._normalise()
        return joined != known

    def raise_floor(self, position: Position) -> bool:
        """Claim everything up to a position, and forget the detail below (R11)."""
        ledger, entry = position
        if (ledger, entry) <= (self._ledger, self._entry):
            return False
        if position > LATEST or entry < -1:
            raise _refused(EARLIEST, position)
        self._ledger, self._entry = ledger, entry
        if self._detail is not None:
            self._normalise()
        return True

    # -- questions -----------------------------------------------------------------------------------------------------

    @property
    def floor(self) -> Position:
        """Everything up to here is claimed; ``EARLIEST``: nothing is."""
        return Position(self._ledger, self._entry)

    @property
    def is_empty(self) -> bool:
        return self._ledger < 0 and self._cold is None and self._detail is None

    def contains(self, position: Position) -> bool:
        """Whether the entry at a position is acked."""
        ledger, entry = position[0], position[1]  # quicker than comparing tuples
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
        """The messages of a batch that are *not* acked, as bits: 0 = the whole entry is acked, None = none of it is."""
        if self.contains(position):
            return 0
        claims = None if self._detail is None else self._detail.get(position[0])
        if claims is None or claims.partial is None:
            return None
        partial = claims.partial.get(position[1])
        if partial is None:
            return None
        return ((1 << size) - 1) & ~partial.acked

    def goes_beyond(self, position: Position) -> bool:
        """Whether anything after a position is claimed, or part of a batch there."""
        if (self._ledger, self._entry) > position:
            return True
        if not self._detail:
            return False
        ledger = max(self._detail)
        claims = self._detail[ledger]
        last = max(claims.bits.max() if claims.bits else -1, *(claims.partial or ()), -1)
        return (ledger, last) > position

    def covers(self, after: Position, upto: Position) -> bool:
        """Whether all of ``(after, upto]`` is claimed."""
        start = self._start(upto[0], upto[1])
        return start is not None and start <= after

    def meets(self, after: Position, upto: Position) -> bool:
        """Whether anything of ``(after, upto]`` is claimed."""
        if self.floor > after:
            return True
        for ledger, claims in (self._detail or {}).items():
            if ledger < after[0]:
                continue
            if claims.link is not None and claims.link < upto and (ledger, -1) > after:
                return True
            first = after[1] + 1 if ledger == after[0] else 0
            end = ENTRY_LIMIT if ledger < upto[0] else upto[1] + 1 if ledger == upto[0] else 0
            if first < end and claims.bits.range_cardinality(first, end):
                return True
        return False

    def touches(self, after: Position, upto: Position) -> bool:
        """Whether anything of ``(after, upto]`` is claimed, or part of a batch there."""
        return self.meets(after, upto) or any(
            after < (ledger, entry) <= upto
            for ledger, claims in (self._detail or {}).items()
            if after[0] <= ledger <= upto[0]
            for entry in claims.partial or ()
        )

    def reach(self, after: Position) -> Position:
        """The end of the run that continues right after a position; the position itself if there is none."""
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
        """All maximal runs ``(after, upto]``, ascending, without partly acked batches."""
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
        if self._cold is not None:
            return count_cold(self._cold)
        return sum(claims.count() + len(claims.partial or ()) for _, claims in self._ledgers())

    # -- the canonical form --------------------------------------------------------------------------------------------

    def _ledgers(self) -> list[tuple[int, Claims]]:
        return sorted(self._detail.items()) if self._detail is not None else []

    def _claims_of(self, ledger: int) -> Claims:
        """A ledger's claims, created if missing; the caller must fill them or normalise."""
        if self._detail is None:
            self._detail = {}
        claims = self._detail.get(ledger)
        if claims is None:
            link = self._link_over(ledger)
            tail = None if link is None or link[0] > ledger else link[1] if link[0] == ledger else -1
            claims = self._detail[ledger] = Claims(tail)
        return claims

    def _link_over(self, ledger: int) -> Position | None:
        """The only link that may span a ledger or reach into it from above."""
        links = self._links
        if links is None:
            return None
        index = bisect_right(links, (ledger + 1,))
        return links[index][1] if index < len(links) else None

    def _start(self, ledger: int, entry: int) -> Position | None:
        """The position after which the run that contains this one begins; None if it is not claimed."""
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
        """``claim`` for anything above the floor that is not simply the next bit."""
        if not EARLIEST <= after <= upto or not 0 <= upto[1] < ENTRY_LIMIT or not -1 <= after[1] < ENTRY_LIMIT:
            raise _refused(after, upto)
        if after == upto:
            return False
        ledger, entry = upto
        if self._detail is None and after[0] == ledger:
            claims = self._claims_of(ledger)
            claims.bits.add_range(after[1] + 1, entry + 1)
            return True
        if self.covers(after, upto):
            return False
        self._claim_raw(after, upto)
        self._normalise()
        return True

    def _claim_raw(self, after: Position, upto: Position) -> None:
        """Add an interval without restoring the form."""
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

    def _rise(self) -> None:
        """Restore the form after the floor rose to an entry."""
        detail = self._detail
        assert detail is not None
        claims = detail.get(self._ledger)
        plain = claims is not None and claims.link is None and claims.tail is None and claims.partial is None
        if claims is None or not plain or len(detail) > 1:
            self._normalise()
            return
        bits = claims.bits
        following = self._entry + 1
        first = bits.min()
        if first > following:
            return
        if first == following or (following < ENTRY_LIMIT and following in bits):
            self._entry = run_end(bits, following)
        bits.remove_range(0, self._entry + 1)
        if not bits:
            self._detail = None

    def _normalise(self) -> None:
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
            again = self._normalise_batches(order)
        for ledger in order:
            if detail[ledger].is_empty:
                del detail[ledger]
        assert not detail or min(detail) >= self._ledger, "nothing is kept below the floor"
        assert _are_apart(self._links or ()), "spans do not overlap"
        if not detail:
            self._detail = self._links = None

    def _normalise_batches(self, order: list[int]) -> bool:
        """Turn whole batches into claims, and forget batches that are claimed.

        :returns: whether that claimed anything, so that the form must be restored again.
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


def _are_apart(links: Sequence[tuple[int, Position]]) -> bool:
    """Whether each span begins where the one before it ends, or later."""
    return all(ended <= link[0] < ledger for (ended, _), (ledger, link) in pairwise(links))


def _show(position: Position) -> str:
    return f"{position[0]}:{position[1]}"


def _refused(after: Position, upto: Position) -> ValueError:
    return ValueError(
        f"({_show(after)}, {_show(upto)}] cannot be claimed: it has to end at an entry, after where it begins, "
        f"with entry ids below {ENTRY_LIMIT}"
    )
