# SPDX-License-Identifier: Apache-2.0
"""The thread that owns the SQLite file, and its operations.

One thread runs everything. It takes all queued jobs, runs them inside one SQLite transaction and commits once, so
that concurrent writers share an fsync. A job decides before it writes, so a refused job leaves nothing behind and its
neighbours in the batch go on; a failed commit fails the whole batch. Results and the changes they made return to the
event loop together and in commit order, and only after the commit: only durable changes are visible.
"""

from __future__ import annotations

import os
import queue
import sqlite3
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from meridian_broker.metadata.store import Change, MetadataError, MetadataFull, MetadataUnavailable
from meridian_broker.positions.formats import unreadable

FORMAT = 1
"""Version of the tables. A file with a newer one is refused; an older one would be upgraded here."""

APPLICATION_ID = 0x4D455244
"""Marks the file as ours ("MERD") for ``file`` and for us."""

MAX_BATCH = 256
"""Jobs that share one commit. Bounds how long the first of them waits for the last."""

MAX_QUEUED = 16384
"""Jobs waiting for the thread. More means the disk does not keep up: further requests are refused."""

_SCHEMA = """
CREATE TABLE entries (
    path TEXT PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL, lease INTEGER
) WITHOUT ROWID;
CREATE INDEX leased ON entries (lease, path) WHERE lease IS NOT NULL;
CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
INSERT INTO counters VALUES ('revision', 0);
"""


@dataclass(slots=True)
class Transaction:
    """The state available to one job: the tables, the next version, and the changes it made."""

    sql: sqlite3.Connection
    version: int
    """The version for this job's writes. Versions come from one counter, so a path created again never repeats one."""
    changes: list[Change] = field(default_factory=list)


Work = Callable[[Transaction], Any]


@dataclass(slots=True)
class Job:
    """Work for the thread, and its callback: ``done(result, error, changes)``, called on the thread."""

    work: Work
    result: Any = None
    error: Exception | None = None
    changes: list[Change] = field(default_factory=list)
    ticket: object = None
    """The caller's own note; it comes back with the batch."""


class Database:
    """Owns the file and the thread. ``deliver`` is called on the thread with every finished batch, in order."""

    def __init__(self, path: Path, deliver: Callable[[list[Job]], None]) -> None:
        self._path = path
        self._deliver = deliver
        self._queue: queue.Queue[Job | None] = queue.Queue(MAX_QUEUED)
        self._started: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()
        self._revision = 0
        self._thread = threading.Thread(target=self._run, name="metadata-sqlite", daemon=True)

    def start(self) -> None:
        """Open the file; blocks until that is done.

        :raises MetadataError: the file is in use, has a newer format or is not ours.
        """
        self._thread.start()
        error = self._started.get()
        if error is not None:
            self._thread.join()
            raise error

    def submit(self, job: Job) -> None:
        """Queue a job.

        :raises MetadataUnavailable: the queue is full.
        """
        try:
            self._queue.put_nowait(job)
        except queue.Full:
            raise MetadataUnavailable(
                f"{MAX_QUEUED} metadata requests are waiting for the disk under {self._path}: it is too slow or stuck"
            ) from None

    def stop(self) -> None:
        """Finish queued jobs and close the file; blocks."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            sql = _open(self._path)
            self._revision = sql.execute("SELECT value FROM counters WHERE name = 'revision'").fetchone()[0]
            self._forget_leased(sql)
        except MetadataError as error:
            self._started.put(error)
            return
        except sqlite3.Error as error:
            self._started.put(_translated(self._path, error))
            return
        except OSError as error:
            self._started.put(
                MetadataUnavailable(f"{self._path} cannot be created ({error}): check the disk and the permissions")
            )
            return
        self._started.put(None)
        try:
            while self._serve(sql):
                pass
        finally:
            sql.close()

    def _forget_leased(self, sql: sqlite3.Connection) -> None:
        """Leases end with the process that held them, so everything they protected is removed when the file is
        opened."""
        sql.execute("DELETE FROM entries WHERE lease IS NOT NULL")

    def _serve(self, sql: sqlite3.Connection) -> bool:
        """Run one batch. False: the thread was asked to stop."""
        jobs: list[Job] = []
        item = self._queue.get()
        while item is not None:
            jobs.append(item)
            if len(jobs) == MAX_BATCH:
                break
            try:
                item = self._queue.get_nowait()
            except queue.Empty:
                break
        if jobs:
            self._commit(sql, jobs)
            self._deliver(jobs)
        return item is not None

    def _commit(self, sql: sqlite3.Connection, jobs: list[Job]) -> None:
        revision = self._revision
        try:
            sql.execute("BEGIN")
            for job in jobs:
                transaction = Transaction(sql, revision + 1, job.changes)
                try:
                    job.result = job.work(transaction)
                except MetadataError as error:
                    job.error = error
                if job.changes:
                    revision += 1
            if revision != self._revision:
                sql.execute("UPDATE counters SET value = ? WHERE name = 'revision'", (revision,))
            sql.execute("COMMIT")
            self._revision = revision
        except Exception as error:
            with suppress(sqlite3.Error):  # on a failing disk, this may fail, too; the thread must go on
                if sql.in_transaction:
                    sql.execute("ROLLBACK")
            for job in jobs:
                job.changes.clear()
                job.error = _translated(self._path, error) if isinstance(error, sqlite3.Error) else error


def _for_this_user_only(path: Path) -> None:
    """Set the file's mode, which SQLite cannot do; its journal inherits it. SQLite reports any failure here again."""
    with suppress(OSError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        path.chmod(0o600)
        path.with_name(path.name + "-wal").chmod(0o600)


def _open(path: Path) -> sqlite3.Connection:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    _for_this_user_only(path)
    sql = sqlite3.connect(path, isolation_level=None, timeout=2.0, cached_statements=32)
    try:
        # Exclusive: a second process on the file would not be notified of our changes. This also saves the shared
        # memory.
        sql.execute("PRAGMA locking_mode = EXCLUSIVE")
        sql.execute("PRAGMA cache_size = -512")
        sql.execute("PRAGMA journal_mode = WAL")
        sql.execute("PRAGMA synchronous = FULL")
        sql.execute("PRAGMA journal_size_limit = 4194304")
        sql.execute("BEGIN EXCLUSIVE")
        application = sql.execute("PRAGMA application_id").fetchone()[0]
        found = sql.execute("PRAGMA user_version").fetchone()[0]
        empty = sql.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0] == 0
        if not empty and application != APPLICATION_ID:
            raise MetadataError(f"{path} is an SQLite file of another program: choose another data directory")
        if not empty and not 1 <= found <= FORMAT:
            raise MetadataError(unreadable(str(path), found, FORMAT, form="metadata format"))
        if empty:
            for statement in _SCHEMA.split(";"):
                sql.execute(statement)
            sql.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            sql.execute(f"PRAGMA user_version = {FORMAT}")
        sql.execute("COMMIT")
    except BaseException:
        sql.close()
        raise
    return sql


def _translated(path: Path, error: sqlite3.Error) -> MetadataError:
    text = str(error)
    if "locked" in text:
        return MetadataUnavailable(f"{path} is in use by another process: stop that one, or choose another directory")
    if "full" in text:
        return MetadataFull(f"{path}: the disk is full, nothing was written: free space")
    if isinstance(error, sqlite3.OperationalError):
        return MetadataUnavailable(f"{path}: SQLite says {text!r}: check the disk and the permissions of the file")
    return MetadataError(f"{path} is damaged or not a metadata file (SQLite says {text!r}): restore it from a backup")
