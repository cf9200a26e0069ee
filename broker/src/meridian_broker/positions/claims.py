# SPDX-License-Identifier: Apache-2.0
"""The claims of an ``AckSet`` for one origin ledger above the floor. ``AckSet`` keeps the parts consistent."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from hashlib import blake2b
from typing import TYPE_CHECKING, Final, NamedTuple

from pyroaring import BitMap

from meridian_broker.positions.bitcodec import put_bits, take_bits
from meridian_broker.positions.bitruns import ENTRY_LIMIT, chunks
from meridian_broker.positions.position import Position
from meridian_broker.positions.varints import Reader, number_bytes, put_number

BATCH_LIMIT: Final = 1 << 20
"""Messages that one entry may contain. A batch of empty messages in the largest frame stays far below."""

COLD_FROM: Final = 64
"""With this many entry ids a bitmap is worth encoding."""
_DIGEST_BYTES: Final = 8

_BITS: Final = 1
_LINK: Final = 2
_PARTIAL: Final = 4


class Partial(NamedTuple):
    """A batch of which some messages are acked."""

    size: int
    """Messages in the batch. If two sources disagree, the smaller counts (brokers never do: it is in the entry)."""
    acked: int
    """Bit i: message i is acked. Never all of them: then the entry is claimed instead (R18)."""
    after: Position | None
    """The origin's previous own entry, if known: where the claim begins once the whole batch is acked."""


def join_partial(one: Partial, two: Partial) -> Partial:
    """The union. The result may be full: ``acked == (1 << size) - 1``."""
    size = min(one.size, two.size)
    known = [after for after in (one.after, two.after) if after is not None]
    after = min(known) if known else None
    return Partial(size, (one.acked | two.acked) & ((1 << size) - 1), after)


class Claims:
    """One ledger's detail.

    A bitmap takes 8 KiB for each 65,536 entry ids, however many of them a ledger has. So a ledger that did not change
    for a while is *cold*: kept as ``put_bits`` encodes it, near the entropy bound. Then the slot ``bits`` is empty, and
    accessing it decodes it: a warm bitmap costs no check on the acknowledgement path.
    """

    __slots__ = ("_cold", "_count", "bits", "link", "partial", "tail")

    def __init__(self, tail: int | None = None) -> None:
        self.bits: BitMap = BitMap()
        """Claimed entry ids, without those past ``tail``."""
        self.link: Position | None = None
        """The link: everything after this position, in an earlier ledger, and before entry 0 of this one is claimed
        too."""
        self.tail = tail
        """A later ledger's link reaches into this one: every entry id greater than this is claimed. Derived."""
        self.partial: dict[int, Partial] | None = None
        """Partly acked batches by entry id, none of them claimed."""
        self._cold: bytes | None = None
        """Digest and encoding of the bitmap while it is cold."""
        self._count = -1
        """Number of entry ids at the last ``cool``."""

    def rests(self) -> bool:
        """Called once in a while: whether it has as many entry ids as last time, and enough to be worth encoding."""
        if self._cold is not None:
            return True
        before, self._count = self._count, len(self.bits)
        return self._count == before and before >= COLD_FROM

    def cold_form(self) -> bytes:
        """The encoding in which cold claims are kept."""
        if self._cold is not None:
            return self._cold
        out = bytearray(_digest_of(self.bits))
        put_bits(out, self.bits)
        return bytes(out)

    def set_cold(self, cold: bytes, count: int) -> None:
        """Keep only this form of the bitmap. :param count: the number of entry ids in it."""
        self._cold, self._count = cold, count
        del self.bits
        object.__setattr__(self, "__class__", ColdClaims)

    @property
    def is_cold(self) -> bool:
        return self._cold is not None

    def count(self) -> int:
        """How many entry ids are claimed individually."""
        return self._count if self._cold is not None else len(self.bits)

    def has_bits_of(self, other: Claims) -> bool:
        """Whether all of the other's entry ids are claimed individually here; needs no bitmap if both are cold and
        equal."""
        if self._cold is not None and self._cold == other._cold:
            return True
        return bool(other.bits <= self.bits)

    def copy(self) -> Claims:
        other = Claims(self.tail)
        if self._cold is not None:
            other.set_cold(self._cold, self._count)
        else:
            other.bits = self.bits.copy()
        other.link = self.link
        other.partial = None if self.partial is None else dict(self.partial)
        return other

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Claims):
            return NotImplemented
        if self.link != other.link or self.partial != other.partial:
            return False
        if self._cold is not None and other._cold is not None:
            return self._cold == other._cold
        return bool(self.bits == other.bits)

    __hash__ = None  # type: ignore[assignment]

    @property
    def is_empty(self) -> bool:
        return self._cold is None and not self.bits and self.partial is None

    def absorb(self, other: Claims) -> None:
        """Add all that the other claims. The caller restores the set's canonical form afterwards."""
        self.bits |= other.bits
        if other.link is not None and (self.link is None or other.link < self.link):
            self.link = other.link
        if other.partial is not None:
            if self.partial is None:
                self.partial = {}
            for entry, partial in other.partial.items():
                mine = self.partial.get(entry)
                self.partial[entry] = partial if mine is None else join_partial(mine, partial)

    def full_batches(self) -> Iterator[tuple[int, Partial]]:
        """Batches that became whole. Each one is removed from ``partial`` as it is yielded."""
        for entry, partial in list((self.partial or {}).items()):
            if partial.acked == (1 << partial.size) - 1:
                yield entry, self.drop_partial(entry)

    def drop_partial(self, entry: int) -> Partial:
        assert self.partial is not None
        dropped = self.partial.pop(entry)
        if not self.partial:
            self.partial = None
        return dropped

    def lacking_partial(
        self, claimed: Callable[[int, Position | None], bool], theirs: Claims | None
    ) -> dict[int, Partial]:
        """Partly acked batches of which another set lacks something. ``claimed(entry, after)``: it has all of the
        entry."""
        known = {} if theirs is None or theirs.partial is None else theirs.partial
        lacking = {}
        for entry, mine in (self.partial or {}).items():
            if claimed(entry, mine.after):
                continue
            their = known.get(entry)
            if their is None or join_partial(mine, their) != their:
                lacking[entry] = mine
        return lacking

    # -- encoding ------------------------------------------------------------------------------------------------------

    def put(self, out: bytearray, ledger: int) -> None:
        """Append the canonical encoding. ``ledger`` is the ledger's id; ``take`` needs it as well."""
        link, partial, cold = self.link, self.partial, self._cold
        has_bits = cold is not None or bool(self.bits)
        out.append(
            (_BITS if has_bits else 0) | (_LINK if link is not None else 0) | (_PARTIAL if partial is not None else 0)
        )
        if link is not None:
            put_number(out, ledger - link.ledger - 1)
            put_number(out, link.entry + 1)
        if cold is not None:
            out += memoryview(cold)[_DIGEST_BYTES:]
        elif has_bits:
            put_bits(out, self.bits)
        if partial is not None:
            _put_partial(out, ledger, partial)

    @classmethod
    def take(cls, reader: Reader, ledger: int) -> Claims:
        """:raises ValueError: these bytes are not valid claims."""
        kinds = reader.byte()
        if not 0 < kinds <= _BITS | _LINK | _PARTIAL:
            raise reader.broken(f"claims are of the unknown kind {kinds}")
        claims = cls()
        if kinds & _LINK:
            claims.link = _take_before(reader, ledger - 1 - reader.number())
        if kinds & _BITS:
            claims.bits = take_bits(reader)
            if not claims.bits:
                raise reader.broken("a list of entry ids is empty")
        if claims.link is not None and 0 not in claims.bits:
            raise reader.broken("a link without the entry it leads to")
        if kinds & _PARTIAL:
            claims.partial = _take_partial(reader, ledger)
        return claims

    def digest(self, ledger: int) -> int:
        """A stable 64-bit digest: equal claims, equal digest, on every machine."""
        digest = blake2b(digest_size=8)
        out = bytearray()
        put_number(out, ledger)
        if self.link is not None:
            put_number(out, ledger - self.link.ledger)
            put_number(out, self.link.entry + 1)
        else:
            put_number(out, 0)
        if self.partial is not None:
            _put_partial(out, ledger, self.partial)
        out += _digest_of(self.bits) if self._cold is None else self._cold[:_DIGEST_BYTES]
        digest.update(out)
        return int.from_bytes(digest.digest(), "big")


class ColdClaims(Claims):
    """Claims whose slot ``bits`` is empty. A separate class, because ``__getattr__`` slows down every attribute access
    of its class, and warm claims are accessed for every message."""

    __slots__ = ()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> BitMap:
            """The bitmap is accessed: the claims become warm."""
            if name != "bits" or self._cold is None:
                raise AttributeError(name)
            self.bits = bits = take_bits(Reader(self._cold[_DIGEST_BYTES:]))
            self._cold = None
            object.__setattr__(self, "__class__", Claims)
            return bits


def _digest_of(bits: BitMap) -> bytes:
    """Not a digest of the encoding: this is many times faster for large sets, and just as canonical."""
    digest = blake2b(digest_size=_DIGEST_BYTES)
    for key, members, data in chunks(bits):
        digest.update(struct.pack("<II", key, members))
        digest.update(data)
    return digest.digest()


def put_position(out: bytearray, position: Position) -> None:
    out += number_bytes(position[0] + 1)
    put_number(out, position[1] + 1)


def take_position(reader: Reader) -> Position:
    """Read what ``put_position`` wrote."""
    ledger = reader.number() - 1
    entry = reader.number() - 1
    if ledger >= 1 << 63 or entry >= 1 << 63 or (ledger < 0 <= entry):
        raise reader.broken(f"{ledger}:{entry} is not a position")
    return Position(ledger, entry)


def _take_before(reader: Reader, ledger: int) -> Position:
    """The entry id of a position before some claim, in a ledger already known."""
    entry = reader.number() - 1
    if ledger < -1 or (ledger < 0 <= entry) or entry >= ENTRY_LIMIT:
        raise reader.broken(f"{ledger}:{entry} is not the position of an entry")
    return Position(ledger, entry)


def _put_partial(out: bytearray, ledger: int, partial: dict[int, Partial]) -> None:
    put_number(out, len(partial))
    last = -1
    for entry in sorted(partial):
        size, acked, after = partial[entry]
        put_number(out, entry - last - 1)
        put_number(out, size)
        out += acked.to_bytes((size + 7) // 8, "little")
        if after is None:
            put_number(out, 0)
        else:
            put_number(out, ledger - after.ledger + 1)
            put_number(out, after.entry + 1)
        last = entry


def _take_partial(reader: Reader, ledger: int) -> dict[int, Partial]:
    partial = {}
    entry = -1
    for _ in range(reader.count(4)):
        entry += reader.number() + 1
        size = reader.number()
        if entry >= ENTRY_LIMIT or not 0 < size <= BATCH_LIMIT:
            raise reader.broken(f"a batch of {size} messages at entry {entry} is impossible")
        acked = int.from_bytes(reader.take((size + 7) // 8), "little")
        if not 0 < acked < (1 << size) - 1:
            raise reader.broken("a batch recorded as partly acked is not")
        distance = reader.number()
        after = None if not distance else _take_before(reader, ledger + 1 - distance)
        if after is not None and after >= (ledger, entry):
            raise reader.broken("a batch comes before the entry before it")
        partial[entry] = Partial(size, acked, after)
    if not partial:
        raise reader.broken("a list of batches is empty")
    return partial
