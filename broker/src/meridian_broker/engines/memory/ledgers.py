# SPDX-License-Identifier: Apache-2.0
"""A `LedgerStore` in memory that can lose unsynced data, as a disk does when the power fails.

The *disk* (`MemoryDisk`) outlives a store: a test crashes one store and starts the next on the same disk. Writes become
durable when the store syncs: soon, through a scheduler such as ``loop.call_soon``, or only when the owner of the
simulation requests it. There are no threads or clocks, so a simulation stays deterministic.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from meridian_broker.ledgers.notifying import notify_all
from meridian_broker.ledgers.store import (
    LABEL_BYTES_MAX,
    AppendDone,
    LedgerDeleted,
    LedgerError,
    LedgerFenced,
    LedgerInfo,
    LedgerNotFound,
    LedgerWriteFailed,
)

Schedule = Callable[[Callable[[], None]], object]
"""Runs a callback soon, never at once: `loop.call_soon`, or the simulator's own."""


@dataclass(slots=True)
class StoredLedger:
    """A ledger as the disk has it."""

    fence: int
    entries: list[bytes] = field(default_factory=list)
    sealed: bool = False
    label: bytes = b""


@dataclass(slots=True)
class MemoryDisk:
    """The durable state."""

    ledgers: dict[int, StoredLedger] = field(default_factory=dict)
    used: set[int] = field(default_factory=set)
    """Every id ever used (R1)."""


@dataclass(slots=True)
class Write:
    """Something on its way to the disk."""

    apply: Callable[[], None]
    done: Callable[[LedgerError | None], None]
    size: int
    refusal: LedgerError | None = None


class Handle:
    """The store's view of a ledger; ahead of the disk by the unsynced entries."""

    __slots__ = ("appended", "deleted", "fence", "ledger_id", "refusal", "size", "stored")

    def __init__(self, ledger_id: int, stored: StoredLedger) -> None:
        self.ledger_id = ledger_id
        self.stored = stored
        self.fence = stored.fence
        self.appended = len(stored.entries)
        self.size = sum(map(len, stored.entries))
        self.refusal: LedgerError | None = LedgerError(
            f"ledger {ledger_id} was opened, not created, by this process: its writer is gone"
        )
        self.deleted = False

    def info(self) -> LedgerInfo:
        entries = self.stored.entries
        return LedgerInfo(self.ledger_id, len(entries), sum(map(len, entries)), self.stored.sealed, self.stored.label)


class MemoryWriter:
    """See `meridian_broker.ledgers.store.Writer`."""

    def __init__(self, store: MemoryLedgerStore, handle: Handle) -> None:
        self._store = store
        self._handle = handle

    @property
    def ledger_id(self) -> int:
        return self._handle.ledger_id

    @property
    def next_entry(self) -> int:
        return self._handle.appended

    @property
    def size(self) -> int:
        return self._handle.size

    def append(self, buffer: bytes, done: AppendDone) -> int:
        return self._store.append(self._handle, buffer, done)

    def append_many(self, buffers: Sequence[bytes], done: AppendDone) -> int:
        first = self.next_entry
        for buffer in buffers:
            self.append(buffer, done)
        return first

    async def seal(self) -> LedgerInfo:
        return await self._store.seal(self._handle)


class MemoryReader:
    """See `meridian_broker.ledgers.store.Reader`."""

    def __init__(self, handle: Handle, store: MemoryLedgerStore | None = None) -> None:
        """:param store: tells when the ledger grows, and counts reads; None: neither."""
        self._store = store
        self._handle = handle

    @property
    def ledger_id(self) -> int:
        return self._handle.ledger_id

    def last_confirmed(self) -> int:
        return len(self._handle.stored.entries) - 1

    def follow(self, grown: Callable[[], None]) -> Callable[[], None]:
        return self._store.follow(grown) if self._store is not None else lambda: None

    def learn(self, confirmed: int) -> bool:
        """As ``FollowingReader.learn``: it knows already."""
        return confirmed > self.last_confirmed()

    async def read(self, first: int, last: int, max_bytes: int) -> list[bytes]:
        if self._store is not None:
            self._store.reads += 1
        if self._handle.deleted:
            raise LedgerNotFound(f"ledger {self.ledger_id} was deleted")
        if first < 0:
            raise ValueError(f"entry ids start at 0, not {first}")
        found: list[bytes] = []
        for entry in self._handle.stored.entries[first : last + 1]:
            max_bytes -= len(entry)
            if max_bytes < 0 and found:
                break
            found.append(entry)
        return found


class MemoryLedgerStore:
    """See `meridian_broker.ledgers.store.LedgerStore`.

    :param disk: state left by earlier stores; a new one when None.
    :param schedule: how a sync is scheduled; None: only `sync` makes anything durable.
    """

    def __init__(self, disk: MemoryDisk | None = None, *, schedule: Schedule | None = None) -> None:
        self.disk = disk if disk is not None else MemoryDisk()
        self._schedule = schedule
        self._due = False
        self._queue: list[Write] = []
        self._handles = {number: Handle(number, stored) for number, stored in self.disk.ledgers.items()}
        self._taken: set[int] = set()
        self._stopped: str | None = None
        self._failure: str | None = None
        self._followers: list[Callable[[], None]] = []
        self.reads = 0
        """Reads so far, of entries."""
        self.pending_bytes = 0
        """Bytes of entries that are not durable yet."""

    # -- controls for tests --------------------------------------------------------------------------------------

    def sync(self, writes: int | None = None) -> int:
        """Make the oldest ``writes`` queued writes durable, all of them when None, and confirm. Returns how many."""
        self._due = False
        if self._stopped is not None:
            return 0
        part, self._queue = (self._queue, []) if writes is None else (self._queue[:writes], self._queue[writes:])
        notify_all([*(partial(self._finish, write) for write in part), *self._followers])
        return len(part)

    def follow(self, grown: Callable[[], None]) -> Callable[[], None]:
        """As ``FollowingReader.follow``, for all ledgers."""
        self._followers.append(grown)
        return lambda: self._followers.remove(grown) if grown in self._followers else None

    def _finish(self, write: Write) -> None:
        self.pending_bytes -= write.size
        if write.refusal is None and self._failure is None:
            write.apply()
            write.done(None)
        else:
            write.done(write.refusal or LedgerWriteFailed(f"the memory disk refused a write: {self._failure}"))

    def fail_writes(self, reason: str) -> None:
        """The disk refuses everything queued, and everything new until `repair`."""
        self._failure = reason
        failed = LedgerWriteFailed(f"the memory disk refused a write: {reason}")
        for handle in self._handles.values():
            if handle.appended > len(handle.stored.entries) and handle.refusal is None:
                handle.refusal = failed
        for write in self._queue:
            write.refusal = write.refusal or failed

    def repair(self) -> None:
        """The disk takes writes again; writers that failed stay failed."""
        self.sync()
        self._failure = None
        for handle in self._handles.values():
            handle.appended = len(handle.stored.entries)
            handle.size = sum(map(len, handle.stored.entries))

    def crash(self) -> MemoryDisk:
        """Power cut: unsynced data is lost, no callback is called any more. Returns the disk."""
        self._stopped = "crashed"
        self._queue.clear()
        return self.disk

    async def close(self) -> None:
        """Sync, then refuse everything."""
        self.sync()
        self._stopped = "closed"

    # -- the port ------------------------------------------------------------------------------------------------

    async def create(self, ledger_id: int, fence: int, label: bytes = b"") -> MemoryWriter:
        self._check_open()
        if ledger_id < 0 or ledger_id in self.disk.used or ledger_id in self._taken:
            raise LedgerError(f"ledger id {ledger_id} was used before: take a new one from the metadata store")
        if len(label) > LABEL_BYTES_MAX:
            raise LedgerError(f"a label of {len(label)} bytes is too long: the limit is {LABEL_BYTES_MAX}")
        self._taken.add(ledger_id)
        handle = Handle(ledger_id, StoredLedger(fence, label=label))
        handle.refusal = None

        def apply() -> None:
            self.disk.used.add(ledger_id)
            self.disk.ledgers[ledger_id] = handle.stored
            self._handles[ledger_id] = handle

        try:
            await self._write(apply)
        finally:
            self._taken.discard(ledger_id)
        return MemoryWriter(self, handle)

    async def open(self, ledger_id: int) -> MemoryReader:
        return MemoryReader(self._find(ledger_id), self)

    async def recover(self, ledger_id: int, fence: int) -> LedgerInfo:
        self._check_open()
        handle = self._find(ledger_id)
        if fence < handle.fence:
            raise LedgerFenced(
                f"ledger {ledger_id} belongs to owner epoch {handle.fence}, and {fence} is older: close the topic"
            )
        handle.fence = fence
        if not handle.stored.sealed:
            handle.refusal = LedgerFenced(
                f"ledger {ledger_id} was taken over by owner epoch {fence}: this writer must close its topic"
            )
            await self._seal(handle)
        return handle.info()

    async def delete(self, ledger_id: int) -> None:
        self._check_open()
        handle = self._handles.get(ledger_id)
        if handle is None:
            return
        handle.refusal = LedgerNotFound(f"ledger {ledger_id} was deleted")

        def apply() -> None:
            handle.deleted = True
            self._handles.pop(ledger_id, None)
            self.disk.ledgers.pop(ledger_id, None)

        await self._write(apply)

    async def list(self) -> list[LedgerInfo]:
        return [handle.info() for handle in self._handles.values()]

    # -- for the writer ------------------------------------------------------------------------------------------

    def append(self, handle: Handle, buffer: bytes, done: AppendDone) -> int:
        """As `Writer.append`."""
        entry = handle.appended
        refusal = handle.refusal
        if self._stopped is not None:
            refusal = LedgerError(f"the memory ledgers were {self._stopped}")
        elif refusal is None and self._failure is not None:
            refusal = handle.refusal = LedgerWriteFailed(f"the memory disk refused a write: {self._failure}")
        if refusal is None:
            handle.appended += 1
            handle.size += len(buffer)
            self.pending_bytes += len(buffer)

        def tell(error: LedgerError | None) -> None:
            done(entry if error is None else error)

        size = len(buffer) if refusal is None else 0
        self._add(Write(lambda: handle.stored.entries.append(buffer), tell, size, refusal))
        return entry

    async def seal(self, handle: Handle) -> LedgerInfo:
        """As `Writer.seal`."""
        self._check_open()
        if isinstance(handle.refusal, LedgerFenced | LedgerNotFound):
            raise handle.refusal
        if not handle.stored.sealed:
            handle.refusal = LedgerError(f"ledger {handle.ledger_id} is sealed: open a new one")
            await self._seal(handle)
        return handle.info()

    # -- inside --------------------------------------------------------------------------------------------------

    async def _seal(self, handle: Handle) -> None:
        fence = handle.fence

        def apply() -> None:
            handle.stored.sealed = True
            handle.stored.fence = fence

        await self._write(apply)

    async def _write(self, apply: Callable[[], None]) -> None:
        heard: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def tell(error: LedgerError | None) -> None:
            if heard.done():
                return
            if error is None:
                heard.set_result(None)
            else:
                heard.set_exception(error)

        self._add(Write(apply, tell, 0))
        await heard

    def _add(self, write: Write) -> None:
        self._queue.append(write)
        if self._schedule is not None and not self._due:
            self._due = True
            self._schedule(self._sync_all)

    def _sync_all(self) -> None:
        self.sync()

    def _find(self, ledger_id: int) -> Handle:
        handle = self._handles.get(ledger_id)
        if handle is None and ledger_id in self.disk.used:
            raise LedgerDeleted(f"ledger {ledger_id} was deleted")
        if handle is None:
            raise LedgerNotFound(f"there is no ledger {ledger_id} in memory: it was never created")
        return handle

    def _check_open(self) -> None:
        if self._stopped is not None:
            raise LedgerError(f"the memory ledgers were {self._stopped}")
