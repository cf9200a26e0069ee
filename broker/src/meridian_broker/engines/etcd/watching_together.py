# SPDX-License-Identifier: Apache-2.0
"""One watch of etcd for all parts of this process that follow the same folder.

Several parts of a broker follow what regions share. With a watch for each of them, every change would cost etcd and
Python that many times as much.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import Final

from meridian_broker.engines.watcher import Watcher
from meridian_broker.metadata import keys
from meridian_broker.metadata.store import Change

FOLDERS: Final = (keys.GEO, keys.LOCAL + "sync/")
"""Each of these has one watch, whatever is followed below it."""

Open = Callable[[str], AsyncGenerator[list[Change], None]]
"""A watch of a prefix, as the port describes it."""


class WatchesTogether:
    """See the module's text."""

    def __init__(self, open_watch: Open) -> None:
        self._open = open_watch
        self._streams: dict[str, _Stream] = {}

    async def changes(self, prefix: str) -> AsyncIterator[list[Change]]:
        """As ``MetadataStore.watch``."""
        folder = next((one for one in FOLDERS if prefix.startswith(one)), prefix)
        stream = self._streams.get(folder)
        if stream is None or stream.task.done():
            stream = self._streams[folder] = _Stream(self._open(folder), f"watch {folder}")
        watcher = Watcher(prefix)
        stream.watchers.add(watcher)
        try:
            await asyncio.shield(stream.begun)
            yield []
            while True:
                yield await watcher.next()
        finally:
            stream.watchers.discard(watcher)
            if not stream.watchers:
                stream.task.cancel()
                if self._streams.get(folder) is stream:
                    del self._streams[folder]


class _Stream:
    """One watch and its followers."""

    def __init__(self, watch: AsyncGenerator[list[Change], None], name: str) -> None:
        loop = asyncio.get_running_loop()
        self.watchers: set[Watcher] = set()
        self.begun: asyncio.Future[None] = loop.create_future()
        """Done once the watch is established: followers miss nothing from then on."""
        self.task = loop.create_task(self._read(watch), name=name)

    async def _read(self, watch: AsyncGenerator[list[Change], None]) -> None:
        try:
            async with aclosing(watch):
                await anext(watch)
                self.begun.set_result(None)
                async for changes in watch:
                    for watcher in self.watchers:
                        watcher.offer(changes)
        except Exception as error:  # the followers handle it
            if not self.begun.done():
                self.begun.set_exception(error)
            for watcher in self.watchers:
                watcher.fail(error)
