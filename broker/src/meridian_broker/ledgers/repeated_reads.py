# SPDX-License-Identifier: Apache-2.0
"""Reads shared by many readers: the same entries, from the same one on.

After a restart thousands of subscriptions of a topic may be owed the same entries, none of which is in memory. Whoever
asks for what is being read already waits for that read; and what two have asked for is kept for later ones, as long as
there is room. For a reader alone at its place nothing is kept.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

from meridian_broker.ledgers.chapters import CacheBudget
from meridian_broker.ledgers.scheduling import Scheduler
from meridian_broker.ledgers.store import LedgerError
from meridian_broker.positions.position import Position

KEPT_BYTES: Final = 1 << 20
"""Limit on the entries that one log keeps; the broker's cache must have room for them, too."""
REMEMBERED: Final = 64
"""Reads that are remembered: readers at some distance from each other find what the first of them read."""

Stored = tuple[Position, bytes]


class Asked(NamedTuple):
    """What a read asks the store for."""

    first: Position
    most: int
    max_bytes: int


class _Read:
    """A read that is over."""

    __slots__ = ("count", "entries", "size")

    def __init__(self, count: int) -> None:
        self.count = count
        self.entries: list[Stored] | None = None
        """None: only one reader has asked for them so far, or there is no room."""
        self.size = 0


class RepeatedReads:
    """The reads of one log."""

    __slots__ = ("_cache", "_known", "_scheduler", "_size", "_under_way")

    def __init__(self, cache: CacheBudget, scheduler: Scheduler) -> None:
        self._cache = cache
        self._scheduler = scheduler
        self._known: dict[tuple[Position, int], _Read] = {}
        """By first entry and limit in bytes, the latest read last."""
        self._size = 0
        """Bytes kept."""
        self._under_way: dict[Asked, list[Callable[[Any], None]]] = {}
        """The readers that wait for each read."""

    def kept(self, first: Position, count: int, max_bytes: int) -> list[Stored] | None:
        """These entries, or the first of them; None: they are not kept. Not to be changed."""
        known = self._known.get((first, max_bytes))
        if known is None or known.entries is None or known.count < count:
            return None
        return known.entries if len(known.entries) <= count else known.entries[:count]

    async def read(self, asked: Asked, read: Callable[[], Awaitable[list[Stored]]]) -> list[Stored]:
        """The result of ``read``, or of another read of the same. :raises LedgerError: the store cannot read it."""
        while (others := self._under_way.get(asked)) is not None:
            answer: list[Stored] | None = await self._scheduler.answer(others.append)
            if answer is not None:
                return answer
        waiting = self._under_way[asked] = []
        outcome: list[Stored] | LedgerError | None = None  # if this task is cancelled, the others read for themselves
        try:
            outcome = found = await read()
        except LedgerError as error:
            outcome = error
            raise
        finally:
            del self._under_way[asked]
            for tell in waiting:
                tell(outcome)
        self._remember(asked, found, is_repeated=bool(waiting))
        return found

    def _remember(self, asked: Asked, found: list[Stored], *, is_repeated: bool) -> None:
        key = asked.first, asked.max_bytes
        before = self._known.get(key)
        self._drop(key)
        while len(self._known) >= REMEMBERED:
            self._drop(next(iter(self._known)))
        known = self._known[key] = _Read(asked.most)
        if is_repeated or before is not None:
            size = sum([len(entry) for _, entry in found])
            while self._size + size > KEPT_BYTES and len(self._known) > 1:
                self._drop(next(iter(self._known)))
            if size <= KEPT_BYTES and self._cache.used + size <= self._cache.limit:
                known.entries, known.size = found, size
                self._size += size
                self._cache.used += size

    def _drop(self, key: tuple[Position, int]) -> None:
        dropped = self._known.pop(key, None)
        if dropped is not None:
            self._size -= dropped.size
            self._cache.used -= dropped.size

    def forget(self) -> None:
        """Drop all that was read."""
        self._cache.used -= self._size
        self._known, self._size = {}, 0
