# SPDX-License-Identifier: Apache-2.0
"""The embedded metadata store: for one broker per region, with nothing else to run.

This is the event loop's side: requests become jobs for the thread in ``database``; results are passed to the
watchers, then to the callers. Leases live in memory: only this process holds them, so they end with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from meridian_broker.engines.clock import monotonic
from meridian_broker.engines.sqlite.database import Database, Job, Transaction
from meridian_broker.engines.watcher import Watcher
from meridian_broker.metadata.limits import (
    after_prefix,
    check_path,
    check_prefix,
    check_transaction,
    check_value,
    collect_children,
)
from meridian_broker.metadata.store import (
    Change,
    Check,
    Committed,
    Delete,
    Lease,
    LeaseExpired,
    MetadataError,
    MetadataUnavailable,
    Put,
    Record,
    VersionConflict,
)

T = TypeVar("T")

CHILDREN_PAGE = 512
"""Paths read at once while listing children."""

LEASE_MARGIN = 0.2
"""Fraction of a lease's time, at its end, during which the holder must not rely on it."""


class SqliteMetadataStore:
    """A region's metadata in one SQLite file (WAL, ``synchronous = FULL``); implements ``MetadataStore``."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._loop = asyncio.get_running_loop()
        self._database = Database(path, self._deliver_from_thread)
        self._watchers: set[Watcher] = set()
        self._leases: dict[int, _HeldLease] = {}
        self._last_lease = 0
        self._closed = False

    @classmethod
    async def open(cls, path: Path | str) -> SqliteMetadataStore:
        """Open or create the file.

        :raises MetadataUnavailable: another process uses it, or the disk refuses.
        :raises MetadataError: it has a newer format, is damaged, or is not ours.
        """
        store = cls(Path(path))
        await asyncio.to_thread(store._database.start)
        return store

    async def get(self, path: str) -> Record | None:
        check_path(path)
        return await self._ask(lambda transaction: _read(transaction, path))

    async def get_many(self, paths: Sequence[str]) -> list[Record | None]:
        for path in paths:
            check_path(path)
        return await self._ask(lambda transaction: [_read(transaction, path) for path in paths])

    async def put(self, path: str, value: bytes, *, expected: int | None = None, lease: int | None = None) -> int:
        check_path(path)
        check_value(path, value)
        self._check_lease(lease)

        def work(transaction: Transaction) -> int:
            if expected is not None:
                _expect(transaction, path, expected)
            _write(transaction, Put(path, value, lease))
            return transaction.version

        return await self._ask(work)

    async def delete(self, path: str, *, expected: int | None = None) -> bool:
        check_path(path)

        def work(transaction: Transaction) -> bool:
            if expected is not None:
                _expect(transaction, path, expected)
            return _write(transaction, Delete(path))

        return await self._ask(work)

    async def children(self, path: str) -> list[str]:
        base = "/" if path == "/" else check_path(path) + "/"
        return await self._ask(lambda transaction: _children(transaction, base))

    async def scan(self, prefix: str) -> list[tuple[str, Record]]:
        check_prefix(prefix)

        def work(transaction: Transaction) -> list[tuple[str, Record]]:
            rows = transaction.sql.execute(
                "SELECT path, value, version FROM entries WHERE path >= ? AND path < ? ORDER BY path",
                (prefix, after_prefix(prefix)),
            )
            return [(path, Record(value, version)) for path, value, version in rows]

        return await self._ask(work)

    async def transact(self, checks: Sequence[Check], operations: Sequence[Put | Delete]) -> Committed | None:
        check_transaction(checks, operations)
        for operation in operations:
            if isinstance(operation, Put):
                self._check_lease(operation.lease)

        def work(transaction: Transaction) -> Committed | None:
            if any(_version(transaction, check.path) != check.version for check in checks):
                return None
            for operation in operations:
                _write(transaction, operation)
            return Committed(transaction.version, [*transaction.changes])

        return await self._ask(work)

    async def watch(self, prefix: str) -> AsyncIterator[list[Change]]:
        check_prefix(prefix)
        self._check_open()
        watcher = Watcher(prefix)
        self._watchers.add(watcher)
        try:
            yield []
            while True:
                yield await watcher.next()
        finally:
            self._watchers.discard(watcher)

    async def lease(self, ttl_seconds: float) -> Lease:
        self._check_open()
        self._last_lease += 1
        held = _HeldLease(self._last_lease, ttl_seconds, self._end_lease)
        self._leases[held.lease_id] = held
        held.start()
        return held

    async def close(self) -> None:
        """Give up every lease, finish queued jobs, close the file. Watchers get a :class:`MetadataError`."""
        if self._closed:
            return
        for held in list(self._leases.values()):
            with suppress(MetadataError):  # a full disk must not keep the file open; leases end with the process anyway
                await held.revoke()
        self._closed = True
        for watcher in self._watchers:
            watcher.fail(self._closed_error())
        await asyncio.to_thread(self._database.stop)

    # -- the way to the thread and back

    async def _ask(self, work: Callable[[Transaction], T]) -> T:
        self._check_open()
        future: asyncio.Future[T] = self._loop.create_future()
        self._database.submit(Job(work, ticket=future))
        return await future

    def _deliver_from_thread(self, jobs: list[Job]) -> None:
        try:
            self._loop.call_soon_threadsafe(self._deliver, jobs)
        except RuntimeError:  # the loop is gone, and with it every caller
            return

    def _deliver(self, jobs: list[Job]) -> None:
        for job in jobs:
            if job.changes:
                for watcher in self._watchers:
                    watcher.offer(job.changes)
            future: asyncio.Future[Any] = job.ticket  # type: ignore[assignment]
            if future.done():
                continue  # the caller was cancelled; its request is executed all the same
            if job.error is not None:
                future.set_exception(job.error)
            else:
                future.set_result(job.result)

    def _check_open(self) -> None:
        if self._closed:
            raise self._closed_error()

    def _closed_error(self) -> MetadataError:
        return MetadataError(f"the metadata store {self._path} was closed by this process")

    def _check_lease(self, lease: int | None) -> None:
        if lease is not None and (lease not in self._leases or self._leases[lease].lost()):
            raise LeaseExpired(f"lease {lease} is gone: take a new one and create again what it protected")

    async def _end_lease(self, lease_id: int) -> None:
        """Forget a lease and remove everything put with it, as one transaction."""
        if lease_id not in self._leases:
            return

        def work(transaction: Transaction) -> None:
            rows = transaction.sql.execute("SELECT path FROM entries WHERE lease = ? ORDER BY path", (lease_id,))
            for (path,) in rows.fetchall():
                _write(transaction, Delete(path))

        await self._ask(work)
        self._leases.pop(lease_id, None)


class _HeldLease:
    """A lease of this process. Its task renews it; a process that stalls past the end finds it gone, as with etcd."""

    def __init__(self, lease_id: int, ttl: float, end: Callable[[int], Any]) -> None:
        self._id = lease_id
        self._ttl = ttl
        self._end = end
        self._expires = monotonic() + ttl
        self._gone = False
        self._task: asyncio.Task[None] | None = None

    @property
    def lease_id(self) -> int:
        return self._id

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._renew(), name=f"lease-{self._id}")

    def valid_until(self) -> float:
        return float("-inf") if self._gone else self._expires - LEASE_MARGIN * self._ttl

    def lost(self) -> bool:
        return monotonic() >= self.valid_until()

    async def revoke(self) -> None:
        self._gone = True
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._end(self._id)

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._ttl / 3)
            if not self.lost():
                self._expires = monotonic() + self._ttl
                continue
            self._gone = True
            with suppress(MetadataUnavailable):  # what it protected must be removed: try until the disk allows it
                await self._end(self._id)
                return


def _read(transaction: Transaction, path: str) -> Record | None:
    row = transaction.sql.execute("SELECT value, version FROM entries WHERE path = ?", (path,)).fetchone()
    return None if row is None else Record(row[0], row[1])


def _version(transaction: Transaction, path: str) -> int:
    row = transaction.sql.execute("SELECT version FROM entries WHERE path = ?", (path,)).fetchone()
    return 0 if row is None else row[0]


def _expect(transaction: Transaction, path: str, expected: int) -> None:
    found = _version(transaction, path)
    if found != expected:
        raise VersionConflict(f"{path} is at version {found}, not {expected}: read it again")


def _write(transaction: Transaction, operation: Put | Delete) -> bool:
    """Execute it and note the change. Returns whether anything changed."""
    if isinstance(operation, Put):
        transaction.sql.execute(
            "INSERT INTO entries VALUES (?, ?, ?, ?) ON CONFLICT (path) DO UPDATE"
            " SET value = excluded.value, version = excluded.version, lease = excluded.lease",
            (operation.path, operation.value, transaction.version, operation.lease),
        )
        transaction.changes.append(Change(operation.path, Record(operation.value, transaction.version)))
        return True
    gone = transaction.sql.execute("DELETE FROM entries WHERE path = ?", (operation.path,)).rowcount > 0
    if gone:
        transaction.changes.append(Change(operation.path, None))
    return gone


def _children(transaction: Transaction, base: str) -> list[str]:
    names: set[str] = set()
    at, end = base, after_prefix(base)
    while True:
        rows = transaction.sql.execute(
            "SELECT path FROM entries WHERE path >= ? AND path < ? ORDER BY path LIMIT ?", (at, end, CHILDREN_PAGE)
        )
        page = [path for (path,) in rows]
        at = collect_children(base, page, names)
        if len(page) < CHILDREN_PAGE:
            return sorted(names)
