# SPDX-License-Identifier: Apache-2.0
"""The ledgers of a progress log, and the topic's record that names them.

At every moment the record names all there is: the ledgers, oldest first, and perhaps a snapshot that precedes them. A
replaced owner can neither add nor delete a ledger, because its write of the record fails (R10).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection
from contextlib import suppress
from typing import Final, NamedTuple, Protocol

from meridian_broker.ledgers.labels import Belonging, Label
from meridian_broker.ledgers.labels import Kind as LedgerKind
from meridian_broker.ledgers.scheduling import Scheduler, next_turn
from meridian_broker.ledgers.store import LedgerCorrupt, LedgerNotFound, LedgerStore, Writer
from meridian_broker.topics.journal.changes import Change, expand

READ_BYTES: Final = 64 << 10
SLICE: Final = 128
"""Changes decoded before others run: with the cost of joining them, a few milliseconds (``bench/recovery``)."""


class Damaged(NamedTuple):
    """A record that the disk damaged."""

    ledger: int
    entry: int
    remains: bytes
    """What is left of the record; empty if nothing is."""


class ProgressLogMetadata(Protocol):
    """Where a topic's list of progress ledgers is kept."""

    @property
    def belonging(self) -> Belonging: ...

    async def allocate_ledger_id(self) -> int: ...

    async def save_progress_ledgers(self, ledgers: list[int], snapshot: tuple[bytes, ...] | None = None) -> None:
        """:param snapshot: records that precede the ledgers; None: the first ledger begins with a snapshot."""
        ...


class ProgressLedgers:
    """Reads and extends the chain of ledgers; the log decides when."""

    def __init__(
        self, store: LedgerStore, metadata: ProgressLogMetadata, fence: int, scheduler: Scheduler, *, rests: bool
    ) -> None:
        """:param rests: ledgers are scarce, and listed by the metadata store."""
        self._store = store
        self._metadata = metadata
        self._fence = fence
        self._scheduler = scheduler
        self.rests = rests
        self.ids: list[int] = []
        """Those on record, oldest first."""
        self._at_rest: tuple[bytes, ...] | None = None
        """The snapshot in the topic's record, which precedes the ledgers; None: they hold everything."""
        self._emptied: int | None = None
        """A ledger that began with a snapshot and is empty now: deleted since the metadata was copied (R5)."""
        self._spare: tuple[int, Writer] | None = None
        """A ledger that was created but not recorded, because the metadata store refused the write."""

    async def open(
        self, ledgers: list[int], unnamed: Collection[int] = (), snapshot: tuple[bytes, ...] | None = None
    ) -> None:
        """Fence the earlier owner (R10). ``changes`` returns what is on record.

        :param snapshot: that of the record, as given to ``save_progress_ledgers``.
        :param unnamed: progress ledgers of the topic on the volume that are not among ``ledgers``. Later ones were
            created after this metadata was copied. Earlier ones were superseded, and their owner stopped before it
            deleted them: they are deleted now, unless one of ``ledgers`` is missing. In that case the volume is the
            older copy, and if it has none of ``ledgers``, the earlier ones are all there is.
        """
        self._at_rest = snapshot
        found: list[int] = []
        for ledger_id in ledgers:
            entries = 0
            with suppress(LedgerNotFound):
                entries = (await self._store.recover(ledger_id, self._fence)).entries
                found.append(ledger_id)
            if self.rests and snapshot is None and ledger_id == ledgers[0] and not entries:
                self._emptied = ledger_id
        after = max(ledgers) if found else -1
        is_whole = len(found) == len(ledgers)
        for ledger_id in unnamed:
            if ledger_id > after:
                with suppress(LedgerNotFound):  # opened before without success, and deleted
                    found.append((await self._store.recover(ledger_id, self._fence)).ledger_id)
        self.ids = sorted(found)
        if not set(found) <= set(ledgers):
            await self._metadata.save_progress_ledgers(self.ids, snapshot)
        if is_whole:
            for ledger_id in unnamed:
                if ledger_id <= after:
                    await self._store.delete(ledger_id)

    async def changes(
        self, met: Callable[[Damaged], None] | None, on_damage: Callable[[], None]
    ) -> AsyncIterator[list[Change]]:
        """Every recorded change, oldest first, ``SLICE`` at a time; others run in between.

        :param met: called with each damaged record, in order with the others. None: damage is an error.
        :param on_damage: called before that error is raised.
        :raises LedgerError: a ledger cannot be read, or was deleted by a roll-over meanwhile.
        :raises ProgressLogError: a record cannot be read.
        """
        if self._at_rest:
            yield [change for record in self._at_rest for change in expand(record)]
        if self._emptied is not None and met is not None:
            met(Damaged(self._emptied, 0, b""))
        for ledger_id in list(self.ids):
            reader = await self._store.open(ledger_id)
            at, end = 0, reader.last_confirmed() + 1
            while at < end:
                try:
                    records = await reader.read(at, end - 1, READ_BYTES)
                except LedgerCorrupt as error:
                    if met is None:
                        on_damage()
                        raise
                    met(Damaged(ledger_id, at, error.remains))
                    at += 1
                    if at % SLICE == 0:
                        await next_turn(self._scheduler)
                    continue
                at += len(records)
                changes: list[Change] = []
                for record in records:
                    changes += expand(record)
                    if len(changes) >= SLICE:
                        yield changes
                        changes = []
                        await next_turn(self._scheduler)
                if changes:
                    yield changes
                    await next_turn(self._scheduler)

    async def extend(self) -> Writer:
        """Create and record another ledger. :raises MetadataUnavailable: nothing changed."""
        if self._spare is None:
            ledger_id = await self._metadata.allocate_ledger_id()
            label = Label(LedgerKind.PROGRESS, self._metadata.belonging).encode()
            self._spare = ledger_id, await self._store.create(ledger_id, self._fence, label)
        ledger_id, writer = self._spare
        # Recorded only after creation: a later owner that reads the record must find the ledger, or it could not
        # fence it.
        if self.rests and not self.ids and self._at_rest is None:
            self._at_rest = ()  # nothing precedes the first ledger of all, which has no snapshot yet
        await self._metadata.save_progress_ledgers([*self.ids, ledger_id], self._at_rest)
        self.ids, self._spare = [*self.ids, ledger_id], None
        return writer

    async def forget(self, old: list[int], *, begins_with_snapshot: bool) -> None:
        """Delete ledgers that the last one replaces.

        :param begins_with_snapshot: whether it does; if not, nothing precedes it.
        """
        precedes = () if self.rests and not begins_with_snapshot else None
        await self._write_record(self.ids[-1:], precedes, old)

    async def move_into_record(self, snapshot: tuple[bytes, ...]) -> None:
        """Let the record hold everything. Every ledger is sealed."""
        await self._write_record([], snapshot, self.ids)

    async def _write_record(self, ledgers: list[int], snapshot: tuple[bytes, ...] | None, old: list[int]) -> None:
        await self._metadata.save_progress_ledgers(ledgers, snapshot)
        self.ids, self._at_rest = ledgers, snapshot
        for ledger_id in old:
            await self._store.delete(ledger_id)

    async def confirm(self) -> None:
        """Write the record as it is. :raises MetadataError: it was not written."""
        await self._metadata.save_progress_ledgers(self.ids, self._at_rest)

    async def drop_spare(self) -> None:
        """Delete what ``extend`` created and could not record."""
        if self._spare is not None:
            (ledger_id, unused), self._spare = self._spare, None
            await unused.seal()
            await self._store.delete(ledger_id)

    async def delete(self) -> None:
        """Delete every ledger."""
        for ledger_id in self.ids:
            await self._store.delete(ledger_id)
        self.ids = []
