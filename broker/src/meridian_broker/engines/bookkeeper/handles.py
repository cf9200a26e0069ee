# SPDX-License-Identifier: Apache-2.0
"""The handles of one ledger that callers get: its writer, and its readers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from meridian_broker.engines.bookkeeper.context import BookiePorts, StoreContext, info_of
from meridian_broker.engines.bookkeeper.ledger_metadata import LedgerMetadata
from meridian_broker.engines.bookkeeper.reading import Entries, Reading
from meridian_broker.engines.bookkeeper.tailing import Tailing
from meridian_broker.engines.bookkeeper.writing import Writing
from meridian_broker.ledgers.store import AppendDone, LedgerDeleted, LedgerError, LedgerInfo


class BookKeeperWriter:
    """See `meridian_broker.ledgers.store.Writer`."""

    __slots__ = ("_context", "_tailing", "append", "writing")

    def __init__(self, context: StoreContext, writing: Writing, tailing: Tailing) -> None:
        self._context = context
        self._tailing = tailing
        self.writing = writing
        self.append: Callable[[bytes, AppendDone], int] = writing.append

    @property
    def ledger_id(self) -> int:
        return self.writing.ledger

    @property
    def next_entry(self) -> int:
        return self.writing.next_entry

    @property
    def size(self) -> int:
        return self.writing.size

    def append_many(self, buffers: Sequence[bytes], done: AppendDone) -> int:
        first = self.next_entry
        for buffer in buffers:
            self.append(buffer, done)
        return first

    def announce(self) -> None:
        self._tailing.announce(self.writing)

    async def seal(self) -> LedgerInfo:
        self._context.check_open()
        outcome = await self._context.answer(self.writing.seal)
        if isinstance(outcome, LedgerError):
            raise outcome
        self._context.forget(self.writing)
        return info_of(self.writing.ledger, outcome)


class BookKeeperReader:
    """See `meridian_broker.ledgers.store.FollowingReader`. If another broker writes the ledger, the reader sees only
    what was confirmed when it was opened, unless it follows it."""

    def __init__(
        self,
        context: StoreContext,
        ledger: int,
        metadata: LedgerMetadata,
        confirmed: int,
        writing: Writing | None,
        tailing: Tailing,
    ) -> None:
        """:param writing: the ledger's writer if it is in this process, because it knows what is confirmed now."""
        self._context = context
        self._ledger = ledger
        self._metadata = metadata
        self._confirmed = confirmed
        self._writing = writing
        self._prefer = ""
        self._tailing = tailing

    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger's metadata as last read."""
        return self._metadata

    def follow(self, grown: Callable[[], None]) -> Callable[[], None]:
        return self._tailing.follow(self, grown)

    def learn(self, confirmed: int, metadata: LedgerMetadata | None = None) -> bool:
        """As ``tailing.Tail``."""
        self._metadata = metadata or self._metadata
        is_more = confirmed > self.last_confirmed()
        self._confirmed = max(self._confirmed, confirmed)
        return is_more

    @property
    def ledger_id(self) -> int:
        return self._ledger

    def last_confirmed(self) -> int:
        return self._confirmed if self._writing is None else self._writing.adding.confirmed

    async def read(self, first: int, last: int, max_bytes: int) -> list[bytes]:
        if self._context.is_gone(self._ledger):
            raise LedgerDeleted(f"ledger {self._ledger} was deleted")
        if first < 0:
            raise ValueError(f"entry ids start at 0, not {first}")
        if self._writing is not None and not self._writing.is_closed:
            self._metadata = self._writing.metadata
        last = min(last, self.last_confirmed())
        if first > last:
            return []
        try:
            return await self._read(first, last, max_bytes)
        except LedgerError:
            if self._context.is_gone(self._ledger) or not await self._has_moved():
                raise
        return await self._read(first, last, max_bytes)

    async def _read(self, first: int, last: int, max_bytes: int) -> list[bytes]:
        context, ledger = self._context, self._ledger
        context.check_open()
        ports = BookiePorts(ledger, b"", context.bookies)

        def ask(told: Callable[[tuple[Entries | LedgerError, str]], None]) -> None:
            def heard(entries: Entries | LedgerError, bookie: str) -> None:
                told((entries, bookie))

            Reading(ledger, self._metadata, ports, first, last, max_bytes, heard, prefer=self._prefer).start()

        answer: tuple[Entries | LedgerError, str] = await context.answer(ask)
        entries, self._prefer = answer
        if isinstance(entries, LedgerError):
            raise entries
        reads = context.reads
        reads.reads += 1
        reads.read_entries += len(entries)
        reads.read_bytes += sum(map(len, entries))
        return entries

    async def _has_moved(self) -> bool:
        """Whether its ensembles changed since this reader last looked. :raises LedgerNotFound: it was deleted."""
        stored = await self._context.find(self._ledger)
        has_moved = stored.metadata.segments != self._metadata.segments
        self._metadata = stored.metadata
        return has_moved
