# SPDX-License-Identifier: Apache-2.0
"""Reading a directory that another process writes: the export child reads what the broker stored.

It takes no lock and changes nothing. It sees the log as of the moment it was opened (`refresh` reads it again),
which may include entries that are not durable yet: the broker tells the caller up to which entry it may read.
"""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Final

from meridian_broker.engines.local.files import FilePort, OsFiles, unreadable
from meridian_broker.engines.local.places import INDEX_ENTRIES, Places
from meridian_broker.engines.local.reading import EntryReads
from meridian_broker.engines.local.recovery import recover
from meridian_broker.engines.local.replay import State
from meridian_broker.engines.local.stats import EngineStats
from meridian_broker.ledgers.store import LedgerInfo, LedgerNotFound, LedgerUnreadable

ATTEMPTS: Final = 5
"""Attempts to read the directory. The broker may remove files meanwhile, but writes a checkpoint between removals."""


class ReadonlyReader:
    """A `Reader` in a process other than the writer's."""

    def __init__(self, ledgers: LocalLedgerReader, ledger_id: int) -> None:
        self._ledgers = ledgers
        self._ledger_id = ledger_id

    @property
    def ledger_id(self) -> int:
        return self._ledger_id

    def last_confirmed(self) -> int:
        """Id of the last entry seen; it may not be durable yet."""
        return self._ledgers.info(self._ledger_id).entries - 1

    async def read(self, first: int, last: int, max_bytes: int) -> list[bytes]:
        """As `Reader.read`."""
        return await self._ledgers.read(self._ledger_id, first, last, max_bytes)


class LocalLedgerReader:
    """The ledgers of a directory, as another process left them a moment ago. Made by `open_readonly`."""

    def __init__(self, files: FilePort, index_entries: int) -> None:
        self._files = files
        self._index_entries = index_entries
        self._stats = EngineStats()
        self._state = State()
        self._reads: EntryReads | None = None

    @classmethod
    async def open_readonly(
        cls, directory: Path | str, *, files: FilePort | None = None, index_entries: int = INDEX_ENTRIES
    ) -> LocalLedgerReader:
        """Read the last checkpoint and the log after it.

        :raises SegmentFormatError: a newer broker wrote these files.
        :raises LedgerUnreadable: the directory does not exist, or cannot be read.
        """
        reader = cls(files if files is not None else OsFiles(Path(directory), make=False), index_entries)
        await reader.refresh()
        return reader

    async def refresh(self) -> None:
        """Read the directory again, including new entries. :raises LedgerUnreadable: the directory cannot be read."""
        loop = asyncio.get_running_loop()
        for attempt in range(1, ATTEMPTS + 1):
            try:
                self._state = await loop.run_in_executor(None, partial(recover, self._files, repair=False))
                break
            except OSError as error:
                if attempt == ATTEMPTS or not isinstance(error, FileNotFoundError):
                    raise unreadable(self._files.place, error) from error
        self._close_files()
        places = Places(self._files, self._state.segments, self._stats, self._index_entries)
        self._reads = EntryReads(self._files, places, self._stats)

    async def close(self) -> None:
        """Close the files."""
        self._close_files()

    def _close_files(self) -> None:
        if self._reads is not None:
            self._reads.files.close()

    async def open(self, ledger_id: int) -> ReadonlyReader:
        """:raises LedgerNotFound: no such ledger."""
        self.info(ledger_id)
        return ReadonlyReader(self, ledger_id)

    def info(self, ledger_id: int) -> LedgerInfo:
        """:raises LedgerNotFound: no such ledger."""
        ledger = self._state.ledgers.get(ledger_id)
        if ledger is None:
            raise LedgerNotFound(
                f"there is no ledger {ledger_id} in {self._files.place}: it was deleted or never created"
            )
        return ledger.info()

    async def read(self, ledger_id: int, first: int, last: int, max_bytes: int) -> list[bytes]:
        """Entries of a ledger. If the broker has moved them meanwhile, the directory is read again."""
        if first < 0:
            raise ValueError(f"entry ids start at 0, not {first}")
        for attempt in range(1, ATTEMPTS + 1):
            last_seen = min(last, self.info(ledger_id).entries - 1)
            assert self._reads is not None
            try:
                return await self._reads.read(self._state.ledgers[ledger_id], first, last_seen, max_bytes)
            except LedgerUnreadable as error:
                if attempt == ATTEMPTS or not isinstance(error.__cause__, FileNotFoundError):
                    raise
                await self.refresh()
        raise AssertionError("unreachable")

    async def list(self) -> list[LedgerInfo]:
        """Every ledger seen."""
        return [ledger.info() for ledger in self._state.ledgers.values()]
