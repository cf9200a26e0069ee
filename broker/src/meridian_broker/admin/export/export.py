# SPDX-License-Identifier: Apache-2.0
"""Export: snapshots of this region's state, and their tables as Arrow streams (``docs/export.md``).

The broker copies and writes a snapshot; a child process converts it to Arrow, and its output is relayed as fast as the
client reads it. Snapshots, children and requests waiting for a child are bounded in number, and a snapshot expires, so
a verifier that dies costs ten minutes of held ledgers and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import shutil
import sys
import time
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from meridian_broker.admin.export.capture import (
    Captured,
    SnapshotWriter,
    capture_subscription,
    capture_topic,
    capture_view,
)
from meridian_broker.admin.export.plan import FORMAT, topic_filter
from meridian_broker.admin.http.requests import Refused
from meridian_broker.admin.http.state import AdminState
from meridian_broker.ledgers.store import LedgerError
from meridian_broker.metadata import keys
from meridian_broker.metadata.sync import paths
from meridian_broker.topics.errors import TopicError
from meridian_broker.topics.journal.changes import Change
from meridian_broker.wire.pulsar import topic_name

log = logging.getLogger(__name__)

LIFE_MS: Final = 600_000
SNAPSHOTS_MAX: Final = 8
CHILDREN_MAX: Final = 2
WAITING_MAX: Final = 64
"""Requests that wait for a child; further ones are sent away."""
CHUNK: Final = 1 << 16
STALLED_SECONDS: Final = 120.0
"""The stream of a client that reads nothing for this long is ended: it occupies one of two children."""
STDERR_KEPT: Final = 4096
TURN_SECONDS: Final = 0.002
"""Maximum duration of one turn of copying."""
ATTEMPTS: Final = 3
"""A topic that is closed or rolled over while it is copied is copied again."""
CONTENT_TYPE: Final = "application/vnd.apache.arrow.stream"


class SnapshotGone(Refused):
    """There is no such snapshot, table or partition, or it has expired."""

    def __init__(self, reason: str) -> None:
        super().__init__(404, reason)


class ExportBusy(Refused):
    """Too many streams are open at once."""

    def __init__(self, reason: str) -> None:
        super().__init__(503, reason)


class ExportFailed(Refused):
    """The encoder gave nothing. The message is its last word."""

    def __init__(self, reason: str) -> None:
        super().__init__(500, reason)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One that can be read."""

    name: str
    path: Path
    taken_ms: int
    expires: int
    partitions: dict[str, int]
    ledgers: tuple[int, ...]


class Exports:
    """All snapshots of this broker. ``await close()`` at the end."""

    def __init__(self, state: AdminState) -> None:
        self._state = state
        self._directory = state.data_directory / "export"
        self._snapshots: OrderedDict[str, Snapshot] = OrderedDict()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._taking = asyncio.Lock()
        self._children = asyncio.Semaphore(CHILDREN_MAX)
        self._waiting = 0
        self._running: set[asyncio.subprocess.Process] = set()
        shutil.rmtree(self._directory, ignore_errors=True)  # of the process before this one

    @property
    def count(self) -> int:
        """Snapshots that can be read."""
        return len(self._snapshots)

    # -- taking --------------------------------------------------------------------------------------------------

    async def take(self, topics: str | None) -> dict[str, Any]:
        """Take a snapshot; returns the answer to the POST.

        :raises ValueError: ``topics`` is not a valid pattern.
        """
        wanted = topic_filter(topics)
        async with self._taking:
            taken_ms = time.time_ns() // 1_000_000
            name = secrets.token_hex(8)
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            path = self._directory / f"{name}.jsonl"
            held: list[int] = []
            try:
                partitions = await self._write(path, await self._names(wanted), held)
            except BaseException:
                self._state.held.release(held)
                path.unlink(missing_ok=True)
                raise
            expires = time.time_ns() // 1_000_000 + LIFE_MS
            snapshot = Snapshot(name, path, taken_ms, expires, partitions, tuple(held))
            while len(self._snapshots) >= SNAPSHOTS_MAX:
                self._end(next(iter(self._snapshots)))
            self._snapshots[name] = snapshot
            self._timers[name] = asyncio.get_running_loop().call_later(LIFE_MS / 1000, self._end, name)
        return {
            "snapshot": name,
            "region": self._state.region,
            "taken_ms": taken_ms,
            "expires": expires,
            "format": FORMAT,
            "partitions": partitions,
            "metadata": self._shared(),
        }

    def _shared(self) -> dict[str, Any] | None:
        """Which metadata this region keeps equal with which others; None: none."""
        sharing = self._state.sharing
        session = sharing.session
        if session is None:
            return None
        folders = [paths.SCOPES[scope] for scope in sorted(sharing.choice.scopes)]
        return {"topic": sharing.choice.topic, "folders": folders, "regions": sorted(session.regions())}

    async def _names(self, wanted: Any) -> list[str]:
        catalog = self._state.catalog
        found: list[str] = []
        began = time.monotonic()
        for namespace in catalog.known_namespaces():
            for name in await catalog.topics.names(namespace):
                if not name.local_name.startswith("__") and wanted(full := str(name)):
                    found.append(full)
                if time.monotonic() - began > TURN_SECONDS:
                    await asyncio.sleep(0)
                    began = time.monotonic()
        return sorted(found)

    async def _write(self, path: Path, names: list[str], held: list[int]) -> dict[str, int]:
        writer = await asyncio.to_thread(SnapshotWriter, path)
        try:
            for name in names:
                copied = await self._copy(name, held)
                if copied is not None:
                    await asyncio.to_thread(writer.add, *copied)
            store, stones = self._state.sharing.store, paths.TOMBSTONES
            values = await store.scan(keys.GEO)  # first: what is deleted in between is a tombstone then
            deleted = [(path.removeprefix(stones), record) for path, record in await store.scan(stones + "/")]
            return await asyncio.to_thread(
                writer.finish, self._state.region, values, deleted, self._state.sharing.choice.is_synced
            )
        finally:
            await asyncio.to_thread(writer.close)

    async def _copy(self, name: str, held: list[int]) -> tuple[Captured, list[Change]] | None:
        """One topic, durable as copied; None when it is gone."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                topic = await self._state.service.opener.topic(topic_name.parse(name), create=False)
                captured = capture_topic(self._state, topic)
                self._state.held.hold(captured.ledgers)
                held += captured.ledgers
                began = time.monotonic()
                for subscription in list(topic.subscriptions.values()):
                    await capture_subscription(captured, subscription)
                    if time.monotonic() - began > TURN_SECONDS:
                        await asyncio.sleep(0)
                        began = time.monotonic()
                capture_view(captured, topic)
                # Deltas are merged in memory before they are durable: an exported state must survive a crash.
                await topic.scheduler.answer(topic.progress_log.when_durable)
                return captured, [change async for some in topic.progress_log.changes() for change in some]
            except (TopicError, LedgerError) as error:
                if attempt == ATTEMPTS:
                    log.warning("%s is left out of the export: %s", name, error)
        return None

    # -- reading -------------------------------------------------------------------------------------------------

    def find(self, name: str, table: str, partition: int) -> Snapshot:
        """:raises SnapshotGone: it cannot be read; the message says why."""
        snapshot = self._snapshots.get(name)
        if snapshot is None:
            raise SnapshotGone(f"there is no snapshot {name}, or it has expired: take another one")
        if table not in snapshot.partitions:
            raise SnapshotGone(f"there is no table {table}, only {', '.join(snapshot.partitions)}")
        if not 0 <= partition < snapshot.partitions[table]:
            raise SnapshotGone(
                f"table {table} has {snapshot.partitions[table]} partitions, there is no number {partition}"
            )
        return snapshot

    async def stream(
        self, request: web.Request, snapshot: Snapshot, table: str, partition: int, after: int
    ) -> web.StreamResponse:
        """Relay one partition.

        :raises ExportBusy: too many wait already.
        :raises ExportFailed: the encoder ended before its first byte.
        """
        if self._waiting >= WAITING_MAX:
            raise ExportBusy(f"{WAITING_MAX} exports are already waiting: try again in a moment")
        self._waiting += 1
        try:
            await self._children.acquire()
        finally:
            self._waiting -= 1
        try:
            return await self._relay(request, snapshot, table, partition, after)
        finally:
            self._children.release()

    async def _relay(
        self, request: web.Request, snapshot: Snapshot, table: str, partition: int, after: int
    ) -> web.StreamResponse:
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "meridian_broker.admin.export.child"),
            *("--snapshot-file", str(snapshot.path), "--ledgers", self._state.ledgers.outside),
            *("--table", table, "--partition", str(partition), "--after", str(after)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=CHUNK,
        )
        self._running.add(child)
        said = asyncio.create_task(_last_words(child), name="hear the export's encoder")
        response = web.StreamResponse(headers={"Content-Type": CONTENT_TYPE})
        assert child.stdout is not None
        try:
            data = await child.stdout.read(CHUNK)
            if not data and await child.wait() != 0:
                log.warning("the encoder of the export of %s ended: %s", table, words := await said)
                raise ExportFailed(f"export of {table}: {words}")
            await response.prepare(request)
            while data:
                async with asyncio.timeout(STALLED_SECONDS):
                    await response.write(data)
                data = await child.stdout.read(CHUNK)
            if await child.wait() == 0:
                await response.write_eof()
            else:
                log.warning("export of %s ended early: %s", table, await said)
                _break_off(request)
        except (ConnectionError, TimeoutError):
            _break_off(request)  # the client is gone
        finally:
            self._running.discard(child)
            with suppress(ProcessLookupError):
                child.kill()
            await child.wait()
            await said
        return response

    # -- the end -------------------------------------------------------------------------------------------------

    def _end(self, name: str) -> None:
        snapshot = self._snapshots.pop(name)
        self._timers.pop(name).cancel()
        snapshot.path.unlink(missing_ok=True)
        self._state.held.release(snapshot.ledgers)

    async def close(self) -> None:
        """End the children and remove all snapshots."""
        for child in tuple(self._running):
            with suppress(ProcessLookupError):
                child.kill()
        for name in list(self._snapshots):
            self._end(name)


async def _last_words(child: asyncio.subprocess.Process) -> str:
    """The end of the child's standard error."""
    assert child.stderr is not None
    kept = b""
    while data := await child.stderr.read(STDERR_KEPT):
        kept = (kept + data)[-STDERR_KEPT:]
    return kept.decode(errors="replace").strip() or "the encoder exited without a message"


def _break_off(request: web.Request) -> None:
    """End the response without its last chunk: it is incomplete."""
    if request.transport is not None:
        request.transport.abort()


EXPORTS: Final = web.AppKey("exports", Exports)
"""Where the admin server keeps those of its broker."""
