# SPDX-License-Identifier: Apache-2.0
"""Export: snapshots of this region's state, and their tables as Arrow streams (``docs/export.md``).

In a region of several brokers a snapshot has parts at the others (``region.py``), whose streams are passed on.

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
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from meridian_broker.admin.export.copying import Copying, Names
from meridian_broker.admin.export.missing_bundles import numbered
from meridian_broker.admin.export.plan import FORMAT, topic_filter
from meridian_broker.admin.export.refusals import ExportBusy, ExportFailed, SnapshotGone
from meridian_broker.admin.export.region import Collecting, Part, admin_url, release
from meridian_broker.admin.export.relaying import CONTENT_TYPE, Relays, break_off
from meridian_broker.admin.http.state import AdminState
from meridian_broker.bounds.http import STALLED_SECONDS
from meridian_broker.gateway.broker_calls import BrokerCalls
from meridian_broker.metadata.sync import paths
from meridian_broker.ownership.bundles import Bundle
from meridian_broker.ownership.records import BrokerRecord

log = logging.getLogger(__name__)

LIFE_MS: Final = 600_000
SNAPSHOTS_MAX: Final = 8
CHILDREN_MAX: Final = 2
WAITING_MAX: Final = 64
"""Requests that wait for a child; further ones are refused."""
PARTS_MAX: Final = 32
"""Parts of other brokers' snapshots: several of one snapshot, if bundles moved while it was taken."""
PART_LONGER_MS: Final = 120_000
"""How much longer than ``LIFE_MS`` a part lives: it is taken before its snapshot, and ends with it."""
CHUNK: Final = 1 << 16
STDERR_KEPT: Final = 4096


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot that can be read."""

    path: Path
    taken_ms: int
    expires: int
    own: Mapping[str, int]
    """The partitions that this broker has."""
    ledgers: tuple[int, ...]
    parts: tuple[Part, ...] = ()
    """Other brokers' partitions, numbered after this broker's, in this order."""
    authorization: str | None = None
    """The ``Authorization`` with which parts are requested and released."""
    is_part: bool = False

    @property
    def name(self) -> str:
        return self.path.stem

    def counts(self, table: str) -> list[int]:
        """How many partitions of a table this broker has, and each part. The metadata is this broker's alone."""
        parts = () if table == "metadata" else self.parts
        return [self.own[table], *(part.partitions[table] for part in parts)]

    @property
    def partitions(self) -> dict[str, int]:
        return {table: sum(self.counts(table)) for table in self.own}


class Exports:
    """All snapshots of this broker. ``await close()`` at the end."""

    def __init__(self, state: AdminState) -> None:
        self._state = state
        self._directory = state.data_directory / "export"
        self._snapshots: OrderedDict[str, Snapshot] = OrderedDict()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._taking = asyncio.Lock()
        self._taking_part = asyncio.Lock()
        """A lock of its own: two brokers may ask each other for parts at the same time."""
        self._children = asyncio.Semaphore(CHILDREN_MAX)
        self._waiting = 0
        self._relays = Relays()
        self._running: set[asyncio.subprocess.Process] = set()
        self._releasing: set[asyncio.Task[None]] = set()
        shutil.rmtree(self._directory, ignore_errors=True)  # of the previous process

    @property
    def count(self) -> int:
        """Snapshots that can be read."""
        return len(self._snapshots)

    # -- taking --------------------------------------------------------------------------------------------------

    async def take(self, topics: str | None, authorization: str | None = None) -> dict[str, Any]:
        """Take a snapshot of the region; returns the answer to the POST.

        :param authorization: the client's ``Authorization`` header.
        :raises ValueError: ``topics`` is not a valid pattern.
        :raises NotWhole: not all of the region's topics can be exported now.
        """
        wanted = topic_filter(topics)
        async with self._taking:
            taken_ms = _now_ms()
            names = await Names.listed(self._state, wanted, self._state.catalog.known_namespaces())
            owner = self._state.owner
            collecting = None if owner is None else Collecting(owner, self._calls, topics, authorization)
            copying = await Copying.begin(self._state, self._path())
            parts: list[Part] = [] if collecting is None else collecting.parts
            try:
                if collecting is None:
                    await copying.topics(names.every())
                else:
                    await collecting.collect(copying, names)
                own = await copying.finish(with_metadata=True)
            except BaseException:
                copying.abandon()
                self._release(parts, authorization)
                raise
            finally:
                await copying.close()
            expires = min(_now_ms() + LIFE_MS, taken_ms + LIFE_MS + PART_LONGER_MS)
            held = tuple(copying.held)
            kept = Snapshot(copying.path, taken_ms, expires, own, held, tuple(parts), authorization)
            self._keep(kept)
        return self._answer(kept) | {"metadata": self._synced()}

    async def take_part(self, topics: str | None, bundles: Iterable[Bundle]) -> dict[str, Any]:
        """Take a snapshot of those of the bundles that this broker owns; the answer says which.

        :raises ValueError: ``topics`` is not a valid pattern.
        """
        wanted, bundles = topic_filter(topics), sorted(set(bundles))
        async with self._taking_part:
            taken_ms = _now_ms()
            known = set(self._state.catalog.known_namespaces())  # it cannot open topics of others yet
            here = [bundle for bundle in bundles if bundle.namespace in known]
            names = await Names.listed(self._state, wanted, sorted({bundle.namespace for bundle in here}))
            copying = await Copying.begin(self._state, self._path())
            try:
                had = [bundle for bundle in here if await copying.bundle(bundle, names.within(bundle))]
                own = await copying.finish(with_metadata=False)
            except BaseException:
                copying.abandon()
                raise
            finally:
                await copying.close()
            expires = _now_ms() + LIFE_MS + PART_LONGER_MS
            kept = Snapshot(copying.path, taken_ms, expires, own, tuple(copying.held), is_part=True)
            if had:
                self._keep(kept)
            else:
                copying.abandon()
        return self._answer(kept) | {"bundles": [str(bundle) for bundle in had]}

    def _path(self) -> Path:
        """Path of a new snapshot. In a region of several brokers its name says which broker has it."""
        owner = self._state.owner
        return self._directory / f"{'' if owner is None else f'{owner.name}.'}{secrets.token_hex(16)}.jsonl"

    def _keep(self, snapshot: Snapshot) -> None:
        alike = [name for name, one in self._snapshots.items() if one.is_part == snapshot.is_part]
        for name in alike[: max(0, len(alike) + 1 - (PARTS_MAX if snapshot.is_part else SNAPSHOTS_MAX))]:
            self.end(name)
        self._snapshots[snapshot.name] = snapshot
        seconds = (snapshot.expires - _now_ms()) / 1000
        self._timers[snapshot.name] = asyncio.get_running_loop().call_later(seconds, self.end, snapshot.name)

    def _answer(self, snapshot: Snapshot) -> dict[str, Any]:
        return {
            "snapshot": snapshot.name,
            "region": self._state.region,
            "taken_ms": snapshot.taken_ms,
            "expires": snapshot.expires,
            "format": FORMAT,
            "partitions": snapshot.partitions,
        }

    def _synced(self) -> dict[str, Any] | None:
        """Which metadata this region keeps equal with which others; None: none."""
        sync = self._state.metadata_sync
        session = sync.session
        if session is None:
            return None
        folders = [paths.SCOPES[scope] for scope in sorted(sync.choice.scopes)]
        return {"topic": sync.choice.topic, "folders": folders, "regions": sorted(session.regions())}

    # -- reading -------------------------------------------------------------------------------------------------

    def find(self, name: str, table: str, partition: int) -> Snapshot:
        """:raises SnapshotGone: it cannot be read; the message says why."""
        snapshot = self._snapshots.get(name)
        if snapshot is None:
            raise SnapshotGone(f"there is no snapshot {name}, or it has expired: take another one")
        if table not in snapshot.own:
            raise SnapshotGone(f"there is no table {table}, only {', '.join(snapshot.own)}")
        if not 0 <= partition < (count := sum(snapshot.counts(table))):
            raise SnapshotGone(f"table {table} has {count} partitions: there is no number {partition}")
        return snapshot

    def keeper(self, name: str) -> BrokerRecord | None:
        """The other broker that has a snapshot, going by the name; None: this one, or none of the region."""
        owner, broker = self._state.owner, name.rpartition(".")[0]
        if owner is None or name in self._snapshots or broker == owner.name:
            return None
        return next((one for one in owner.view.brokers.values() if one.broker == broker), None)

    async def pass_on(self, request: web.Request, keeper: BrokerRecord) -> web.StreamResponse:
        """Have the broker answer that has the snapshot. :raises Refused: it does not."""
        return await self._relays.pass_on(
            request, self._calls, keeper.broker, admin_url(keeper), request.rel_url.raw_path_qs
        )

    async def end_at(self, keeper: BrokerRecord, name: str, authorization: str | None) -> None:
        """End a snapshot of another broker, if that can be reached."""
        await release(self._calls, [Part(keeper.broker, admin_url(keeper), name, {})], authorization)

    @property
    def _calls(self) -> BrokerCalls:
        calls = self._state.brokers
        assert calls is not None, "a broker that is one of several can call the others"
        return calls

    async def stream(
        self, request: web.Request, snapshot: Snapshot, table: str, partition: int, after: int
    ) -> web.StreamResponse:
        """Relay one partition.

        :raises ExportBusy: too many wait already.
        :raises ExportFailed: the encoder ended before its first byte.
        :raises Refused: the broker that has it refuses, or cannot be reached.
        """
        number, partition = numbered(snapshot.counts(table), partition)
        if number:
            there = snapshot.parts[number - 1]
            path = f"{there.path(table)}?partition={partition}&after={after}"
            try:
                return await self._relays.pass_on(request, self._calls, there.broker, there.url, path)
            except SnapshotGone:
                self.end(snapshot.name)
                raise
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
                log.warning("the export of %s is refused, because its encoder failed: %s", table, words := await said)
                raise ExportFailed(f"export of {table}: {words}")
            await response.prepare(request)
            while data:
                async with asyncio.timeout(STALLED_SECONDS):
                    await response.write(data)
                data = await child.stdout.read(CHUNK)
            if await child.wait() == 0:
                await response.write_eof()
            else:
                log.warning("the export of %s broke off, and has to be requested again: %s", table, await said)
                break_off(request)
        except (ConnectionError, TimeoutError):
            break_off(request)  # the client is gone
        finally:
            self._running.discard(child)
            with suppress(ProcessLookupError):
                child.kill()
            await child.wait()
            await said
        return response

    # -- the end -------------------------------------------------------------------------------------------------

    def end(self, name: str) -> None:
        """Remove a snapshot, if there still is one, and its parts."""
        snapshot = self._snapshots.pop(name, None)
        if snapshot is None:
            return
        self._timers.pop(name).cancel()
        snapshot.path.unlink(missing_ok=True)
        self._state.held.release(snapshot.ledgers)
        self._release(list(snapshot.parts), snapshot.authorization)

    def _release(self, parts: list[Part], authorization: str | None) -> None:
        if parts:
            releasing = release(self._calls, parts, authorization)
            task = asyncio.create_task(releasing, name="release the parts of an export")
            self._releasing.add(task)
            task.add_done_callback(self._releasing.discard)

    async def close(self) -> None:
        """End the children and remove all snapshots. What other brokers have of them ends later."""
        for child in tuple(self._running):
            with suppress(ProcessLookupError):
                child.kill()
        for name in list(self._snapshots):
            self.end(name)
        releasing = tuple(self._releasing)
        for task in releasing:
            task.cancel()
        await asyncio.gather(*releasing, return_exceptions=True)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


async def _last_words(child: asyncio.subprocess.Process) -> str:
    """The last part of the child's standard error."""
    assert child.stderr is not None
    kept = b""
    while data := await child.stderr.read(STDERR_KEPT):
        kept = (kept + data)[-STDERR_KEPT:]
    return kept.decode(errors="replace").strip() or "the encoder exited without a message"


EXPORTS: Final = web.AppKey("exports", Exports)
"""Where the admin server keeps its broker's exports."""
