# SPDX-License-Identifier: Apache-2.0
"""Readers of offloaded ledgers: of a copy, and of a ledger that may be read from two places."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

from meridian_broker.ledgers.offloaded.cache import BlockCache
from meridian_broker.ledgers.offloaded.copies import Copies, heads_of
from meridian_broker.ledgers.offloaded.format import BlockContent, CopyIndex
from meridian_broker.ledgers.scheduling import Scheduler
from meridian_broker.ledgers.store import (
    FollowingReader,
    LedgerCorrupt,
    LedgerError,
    LedgerNotFound,
    LedgerUnreadable,
    Reader,
)

log = logging.getLogger(__name__)


class CopyReader:
    """Reads a copy block by block, and the next block ahead of a reader that reads on."""

    def __init__(
        self, ledger_id: int, copy: str, entries: int, copies: Copies, cache: BlockCache, scheduler: Scheduler | None
    ) -> None:
        """:param scheduler: runs the reading ahead; None: there is none."""
        self._ledger_id = ledger_id
        self._copy = copy
        self._entries = entries
        self._copies = copies
        self._cache = cache
        self._scheduler = scheduler
        self._index: CopyIndex | None = None
        self._heads: CopyReader | None = None
        self._before = -1
        """The block that was read last."""

    @property
    def ledger_id(self) -> int:
        return self._ledger_id

    @property
    def copy(self) -> str:
        """The name of the copy."""
        return self._copy

    def last_confirmed(self) -> int:
        """As `Reader.last_confirmed`."""
        return self._entries - 1

    async def read(self, first: int, last: int, max_bytes: int) -> list[bytes]:
        """As `Reader.read`."""
        if first < 0:
            raise ValueError(f"entry ids start at 0, not {first}")
        found: list[bytes] = []
        at, last = first, min(last, self._entries - 1)
        while at <= last:
            try:
                begin, content = await self._block_with(at)
            except LedgerError:
                if found:
                    return found
                raise
            for number in range(at - begin, min(last + 1 - begin, len(content.entries))):
                entry = content.entries[number]
                if entry is None and not found:
                    raise LedgerCorrupt(
                        f"entry {at} of ledger {self._ledger_id} is damaged in its copy in {self._copies.where}",
                        content.remains[number],
                    )
                max_bytes -= len(entry or b"")
                if entry is None or (max_bytes < 0 and found):
                    return found
                found.append(entry)
                at += 1
        return found

    async def read_heads(self, first: int, last: int, max_bytes: int) -> list[bytes]:
        """As `HeadReader.read_heads`: from the headers' own objects, or else from the entries."""
        if self._heads is None:
            self._heads = CopyReader(
                *(self._ledger_id, heads_of(self._copy), self._entries),
                *(self._copies, self._cache, self._scheduler),
            )
        try:
            return await self._heads.read(first, last, max_bytes)
        except LedgerCorrupt:
            return await self.read(first, last, max_bytes)

    async def _block_with(self, entry: int) -> tuple[int, BlockContent]:
        """The first entry of the block, and the block."""
        if self._index is None:
            self._index = await self._copies.index(self._ledger_id, self._copy)
        index = self._index
        number = index.block_of(entry)
        before, self._before = self._before, number
        following = number + 1
        is_reading_on = number == before + 1 and following < len(index.blocks)
        if is_reading_on and self._scheduler is not None and not self._cache.has((self._copy, following)):
            self._scheduler.spawn(self._read_ahead(index, following), "read ahead in an offloaded ledger")
        return index.blocks[number].first, await self._load(index, number)

    async def _load(self, index: CopyIndex, number: int) -> BlockContent:
        return await self._cache.get(
            (self._copy, number), lambda: self._copies.block(self._ledger_id, self._copy, index, number)
        )

    async def _read_ahead(self, index: CopyIndex, number: int) -> None:
        try:
            await self._load(index, number)
        except LedgerError:
            pass  # whoever needs the block gets the error


class Places(Protocol):
    """Tells readers where ledgers are."""

    def copy_of(self, ledger_id: int) -> CopyReader | None:
        """A reader of a whole copy; None: memory knows of none."""
        ...

    def find_copy(self, ledger_id: int) -> Awaitable[CopyReader]:
        """:raises LedgerNotFound: there is none."""
        ...

    @property
    def prefers_copies(self) -> bool:
        """Whether to read the copy of a ledger that is in both places."""
        ...

    def failed(self) -> None:
        """A copy could not be read."""
        ...


class OffloadableReader:
    """Reads a ledger where it is, even while it moves. What is damaged in one place is read from the other."""

    def __init__(self, ledger_id: int, near: Reader | None, copy: CopyReader | None, places: Places) -> None:
        """:param near: reads the original; None: that is gone, and ``copy`` is not None."""
        self._ledger_id = ledger_id
        self._near = near
        self._copy = copy
        self._places = places
        self._last_confirmed = -1 if copy is None else copy.last_confirmed()

    @property
    def ledger_id(self) -> int:
        return self._ledger_id

    def last_confirmed(self) -> int:
        """As `Reader.last_confirmed`."""
        return self._last_confirmed if self._near is None else self._near.last_confirmed()

    def follow(self, grown: Callable[[], None]) -> Callable[[], None]:
        """As `FollowingReader.follow`. A copy does not grow."""
        return self._near.follow(grown) if isinstance(self._near, FollowingReader) else lambda: None

    def learn(self, confirmed: int) -> bool:
        """As `FollowingReader.learn`. Of a copy everything is known."""
        return self._near.learn(confirmed) if isinstance(self._near, FollowingReader) else False

    async def read(self, first: int, last: int, max_bytes: int) -> list[bytes]:
        """As `Reader.read`."""
        near, copy = self._near, self._known_copy()
        if near is None:
            return await self._read_copy(first, last, max_bytes)
        if copy is not None and self._places.prefers_copies:
            try:
                return await copy.read(first, last, max_bytes)
            except (LedgerCorrupt, LedgerUnreadable) as error:
                log.warning("reading the original of ledger %d instead of its copy: %s", self._ledger_id, error)
                self._places.failed()
        try:
            return await near.read(first, last, max_bytes)
        except LedgerNotFound:
            self._near = None
            return await self._read_copy(first, last, max_bytes)
        except (LedgerCorrupt, LedgerUnreadable) as error:
            if copy is None:
                raise
            try:
                found = await copy.read(first, last, max_bytes)
            except LedgerError:
                raise error from None
            log.warning("ledger %d was read from its copy instead: %s", self._ledger_id, error)
            return found

    async def read_heads(self, first: int, last: int, max_bytes: int) -> list[bytes]:
        """As `HeadReader.read_heads`."""
        if self._near is None:
            return await self._from_copy(lambda copy: copy.read_heads(first, last, max_bytes))
        return await self.read(first, last, max_bytes)

    def _known_copy(self) -> CopyReader | None:
        """The copy on record. It may have changed: an incomplete copy is made again."""
        now = self._places.copy_of(self._ledger_id)
        if now is not None and (self._copy is None or self._copy.copy != now.copy):
            self._copy = now
        return self._copy

    async def _read_copy(self, first: int, last: int, max_bytes: int) -> list[bytes]:
        return await self._from_copy(lambda copy: copy.read(first, last, max_bytes))

    async def _from_copy(self, read: Callable[[CopyReader], Awaitable[list[bytes]]]) -> list[bytes]:
        copy = self._known_copy()
        if copy is None:
            copy = self._copy = await self._places.find_copy(self._ledger_id)
        self._last_confirmed = copy.last_confirmed()
        try:
            return await read(copy)
        except LedgerCorrupt:
            # Before calling that damage: another broker may have made another copy and deleted this one.
            now = await self._places.find_copy(self._ledger_id)
            if now.copy == copy.copy:
                raise
            self._copy = now
            return await read(now)
