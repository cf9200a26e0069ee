# SPDX-License-Identifier: Apache-2.0
"""One in-process watch of a metadata store: a bounded queue of transactions, or the reason why it ended."""

from __future__ import annotations

import asyncio
from typing import Final

from meridian_broker.metadata.store import Change, MetadataError

WATCH_QUEUE: Final = 1024
"""Transactions that a watcher may lag behind. Beyond that, it has to scan again."""


class Watcher:
    """See the module's text."""

    __slots__ = ("_failure", "_prefix", "_queue")

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._queue: asyncio.Queue[list[Change] | None] = asyncio.Queue(WATCH_QUEUE + 1)
        self._failure: Exception | None = None

    def offer(self, changes: list[Change]) -> None:
        """Queue the changes of one transaction below the prefix."""
        mine = [change for change in changes if change.path.startswith(self._prefix)]
        if not mine or self._failure is not None:
            return
        if self._queue.qsize() >= WATCH_QUEUE:
            self.fail(
                MetadataError(
                    f"the watch of {self._prefix} fell {WATCH_QUEUE} transactions behind: scan and watch again"
                )
            )
            return
        self._queue.put_nowait(mine)

    def fail(self, error: Exception) -> None:
        """End the watch: ``next`` raises this from now on."""
        if self._failure is None:
            self._failure = error
            self._queue.put_nowait(None)  # wake the waiting caller; one place is reserved for this

    async def next(self) -> list[Change]:
        """:raises MetadataError: the watch has ended."""
        if self._failure is None:
            changes = await self._queue.get()
            if changes is not None and self._failure is None:
                return changes
        assert self._failure is not None
        raise self._failure
