# SPDX-License-Identifier: Apache-2.0
"""Which message of each key stays when a topic is compacted, in bounded memory.

The winner of a key is its message of the highest *rank*: the position in the log for a topic in one region, ``(publish
time, origin)`` for a topic in several, so that every region finds the same winners in whatever order messages arrived
(R50). Taking the maximum is associative, commutative and idempotent: compacting a view again with later messages, any
number of times, gives the same result as compacting everything at once. This requires that a *tombstone* (an empty
message, which deletes its key) is kept while an older message may still arrive: on replicated topics it stays in the
view, hidden from readers.

Keys are processed in as many passes as needed to never hold more than ``limit`` of them: a pass that finds too many
leaves half of them to a later one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import Final, NamedTuple

from pyroaring import BitMap64

DIGEST_BYTES: Final = 16
OPEN_MESSAGES: Final = 10_000
"""Incomplete chunked messages at a time; beyond that, the oldest are kept as they are."""
ENDED_AT_ONCE: Final = 1000
"""Keys that ``end_pass`` returns before others may run, and so the limit of a record of tombstones."""
SWEPT_AT_ONCE: Final = 4
"""Keys examined for each new one after a split: memory exceeds the limit by a quarter at most."""
_PART: Final = struct.Struct(">Q")


class Rank(NamedTuple):
    """What makes one message of a key later than another."""

    publish_time_ms: int
    """0 in a topic of one region, where only the position counts."""
    region: str
    ledger: int
    entry: int
    batch_index: int
    """0 outside of a batch."""


class Tombstone(NamedTuple):
    """A deleted key, and the message that deleted it."""

    digest: bytes
    rank: Rank


class Chunk(NamedTuple):
    """Which part of which message."""

    message: tuple[str, str]
    """Its producer's name and its uuid."""
    number: int
    of: int


def digest(key: str) -> bytes:
    """A key as it is remembered, of fixed size."""
    return blake2b(key.encode(), digest_size=DIGEST_BYTES).digest()


class LatestByKey:
    """Call ``begin_pass``, then ``offer`` everything; repeat until ``begin_pass`` returns False. Then ``kept`` is the
    result.

    A message is identified by its *ordinal*: messages are counted in the order in which they are offered, and every
    pass offers the same ones in the same order.

    :param limit: keys held at a time.
    :param keep_tombstones: return the deleted keys, see the module's docstring.
    """

    def __init__(self, limit: int, *, keep_tombstones: bool) -> None:
        self.kept = BitMap64()
        """Ordinals of the messages that are kept."""
        self.passes = 0
        self._limit = limit
        self._keep_tombstones = keep_tombstones
        self._parts = [(0, 1)]
        """The keys still to process: those whose digest modulo the second number is the first."""
        self._part, self._of = 0, 0
        self._best: dict[bytes, tuple[Rank, tuple[int, ...], bool]] = {}
        self._to_sweep: list[bytes] = []
        """Keys held when the pass was split: those of a later pass are removed, a few at a time."""
        self._chunks: dict[tuple[str, str], list[int]] = {}
        self._ordinal = 0

    @property
    def messages(self) -> int:
        """Messages offered in this pass."""
        return self._ordinal

    def begin_pass(self) -> bool:
        """Prepare for all messages to be offered from the start; False: nothing is left to do."""
        if not self._parts:
            return False
        self._part, self._of = self._parts.pop()
        self._ordinal = 0
        self._chunks.clear()
        self.passes += 1
        return True

    def offer_tombstone(self, found: Tombstone) -> None:
        """Offer a tombstone that an earlier compaction kept."""
        self._compete(found.digest, found.rank, (), True)

    def offer(self, key: str | None, rank: Rank, *, is_empty: bool = False) -> None:
        """Offer the next message. ``key`` None: it has no key, or an unreadable one, and is kept."""
        ordinal = self._ordinal
        self._ordinal += 1
        if key is None:
            self._keep((ordinal,))
        else:
            self._compete(digest(key), rank, (ordinal,), is_empty)

    def offer_nothing(self) -> None:
        """The next message was removed by an earlier compaction."""
        self._ordinal += 1

    def offer_chunk(self, key: str | None, rank: Rank, chunk: Chunk) -> None:
        """Offer the next message, which is a chunk; the last chunk decides for the whole message."""
        ordinal = self._ordinal
        self._ordinal += 1
        if chunk.number == 0 and (abandoned := self._chunks.pop(chunk.message, None)):
            self._keep(abandoned)
        parts = self._chunks.setdefault(chunk.message, [])
        parts.append(ordinal)
        if chunk.number + 1 >= chunk.of:
            del self._chunks[chunk.message]
            if key is None or len(parts) != chunk.of:
                self._keep(parts)
            else:
                self._compete(digest(key), rank, tuple(parts), False)
        elif len(self._chunks) > OPEN_MESSAGES:
            self._keep(self._chunks.pop(next(iter(self._chunks))))

    def _keep(self, ordinals: Iterable[int]) -> None:
        self.kept.update(ordinals)

    def _compete(self, of: bytes, rank: Rank, ordinals: tuple[int, ...], is_empty: bool) -> None:
        if not self._is_mine(of):
            return
        best = self._best.get(of)
        if best is not None:
            if rank > best[0]:
                self._best[of] = (rank, ordinals, is_empty)
            return
        self._best[of] = (rank, ordinals, is_empty)
        if self._to_sweep:
            self._sweep()
        elif len(self._best) > self._limit:
            self._split()

    def _is_mine(self, of: bytes) -> bool:
        return self._of == 1 or _PART.unpack_from(of)[0] % self._of == self._part

    def _split(self) -> None:
        self._parts.append((self._part + self._of, 2 * self._of))
        self._of *= 2
        self._to_sweep = list(self._best)

    def _sweep(self) -> None:
        for of in self._to_sweep[-SWEPT_AT_ONCE:]:
            if not self._is_mine(of):
                del self._best[of]
        del self._to_sweep[-SWEPT_AT_ONCE:]

    def end_pass(self) -> Iterator[list[Tombstone]]:
        """End the pass. Yields its deleted keys, some (or none) at a time."""
        for parts in self._chunks.values():
            self._keep(parts)
        self._to_sweep.clear()
        while self._best:
            deleted = []
            for _ in range(min(ENDED_AT_ONCE, len(self._best))):
                of, (rank, ordinals, is_empty) = self._best.popitem()
                if not self._is_mine(of):
                    continue
                if not is_empty:
                    self.kept.update(ordinals)
                elif self._keep_tombstones:
                    deleted.append(Tombstone(of, rank))
            yield deleted
