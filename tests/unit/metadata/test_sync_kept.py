# SPDX-License-Identifier: Apache-2.0
"""Watches report what waits in a store; checking it reads nothing while nothing is due."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from meridian_broker.engines.sqlite.metadata import SqliteMetadataStore
from meridian_broker.metadata import keys
from meridian_broker.metadata.records import encode
from meridian_broker.metadata.store import Change, Check, Committed, Delete, MetadataUnavailable, Put, Record
from meridian_broker.metadata.sync import paths
from meridian_broker.metadata.sync.applying import Applier
from meridian_broker.metadata.sync.events import Changes, Event, Mark
from meridian_broker.metadata.sync.grouping import EVENTS_TOGETHER
from meridian_broker.metadata.sync.kept import Kept
from meridian_broker.metadata.sync.known import Known
from meridian_broker.metadata.sync.stamped import Stamped, canonical, to_store
from meridian_broker.positions.clock import HybridClock, Stamp
from support.contracts.metadata_contract import wait_until

NOW_MS = 1_000_000_000_000
STONES = 300


class Reads:
    """A store that records what is read from another store."""

    def __init__(self, store: SqliteMetadataStore) -> None:
        self._store = store
        self.paths: list[str] = []
        self.requests = 0

    async def get(self, path: str) -> Record | None:
        self.paths.append(path)
        return await self._store.get(path)

    async def get_many(self, some: Sequence[str]) -> list[Record | None]:
        self.paths += some
        self.requests += 1
        return await self._store.get_many(some)

    async def scan(self, prefix: str) -> list[tuple[str, Record]]:
        found = await self._store.scan(prefix)
        self.paths += [path for path, _ in found]
        return found

    async def transact(self, checks: Sequence[Check], operations: Sequence[Put | Delete]) -> Committed | None:
        return await self._store.transact(checks, operations)

    def watch(self, prefix: str) -> AsyncIterator[list[Change]]:
        return self._store.watch(prefix)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteMetadataStore]:
    opened = await SqliteMetadataStore.open(tmp_path / "metadata")
    yield opened
    await opened.close()


class World:
    """A region with an applier, and the tasks that follow its store."""

    def __init__(self, store: SqliteMetadataStore) -> None:
        self.now_ms = NOW_MS
        self.reads = Reads(store)
        self.known = Known(self.reads, lambda: asyncio.sleep(0))
        self.kept = Kept(self.reads, self.known)
        clock = HybridClock(lambda: self.now_ms, "eu")
        shared = lambda path: paths.scope_of(path) is not None  # noqa: E731
        self.applier = Applier(
            self.reads, clock, lambda: self.now_ms, shared, lambda: frozenset(("eu", "us")), self.kept
        )
        self.tasks = [
            asyncio.create_task(one())
            for one in (self.known.follow_deletions, self.kept.follow_parked, self.kept.follow_conflicts)
        ]

    async def look(self) -> list[str]:
        """One turn of the work done every second. Returns what it read of the waiting values."""
        self.reads.paths.clear()
        await self.applier.release()
        await self.applier.heard()
        await self.applier.forget()
        waiting = (paths.TOMBSTONES, paths.PARKED, paths.CONFLICTS)
        return [path for path in self.reads.paths if path.startswith(waiting)]


@pytest.fixture
async def world(store: SqliteMetadataStore) -> AsyncIterator[World]:
    for number in range(STONES):
        stone = Stamped(Stamp(NOW_MS - 1000 + number, 0, "us"), None)
        await store.put(paths.tombstone(keys.tenant(f"t{number:04d}")), to_store(stone))
    made = World(store)
    yield made
    for task in made.tasks:
        task.cancel()
    await asyncio.gather(*made.tasks, return_exceptions=True)


async def test_values_that_are_not_due_are_not_read(world: World) -> None:
    await wait_until(lambda: world.known.deletions == STONES)
    await wait_until(lambda: world.kept.parked_paths == 0 and world.kept._is_read)
    for _ in range(3):
        assert await world.look() == []


async def test_tombstones_are_deleted_once_every_region_is_past_them(world: World) -> None:
    await wait_until(lambda: world.known.deletions == STONES and world.kept._is_read)
    upto = (NOW_MS - 1000 + 99, 0)
    for region in ("eu", "us"):
        await world.applier.apply(Mark(region, upto, {"eu": upto, "us": upto}))
    assert len(set(await world.look())) == 100
    await wait_until(lambda: world.known.deletions == STONES - 100)
    assert await world.look() == []


async def test_a_parked_state_holds_its_regions_mark_and_is_applied_when_due(world: World) -> None:
    with pytest.raises(MetadataUnavailable, match="still being read"):
        await world.applier.heard()
    await wait_until(lambda: world.kept._is_read)
    path, later = keys.tenant("late"), NOW_MS + 60_000
    await world.applier.apply(Changes("us", (Event(path, Stamped(Stamp(later, 0, "us"), canonical({}))),)))
    assert world.kept.parked_paths == 1
    assert await world.look() == []
    world.now_ms = later
    await world.applier.apply(Mark("us", (later + 1, 0), {}))
    assert (await world.applier.heard())["us"] < (later, 0)
    await world.applier.release()
    assert await world.applier.heard() == {"us": (later + 1, 0)}
    assert await world.reads.get(path) is not None
    await wait_until(lambda: world.kept.parked_paths == 0)


async def test_conflicts_are_counted_as_they_come_and_go(world: World, store: SqliteMetadataStore) -> None:
    path = keys.tenant("both")
    await store.put(paths.conflict(path), encode({}))
    await wait_until(lambda: world.kept.conflicts == {path})
    await store.delete(paths.conflict(path))
    await wait_until(lambda: not world.kept.conflicts)


async def test_old_values_of_a_region_that_knows_every_deletion_are_taken_unread(
    world: World, store: SqliteMetadataStore
) -> None:
    await wait_until(lambda: world.known.deletions == STONES and world.kept._is_read and not world.kept.is_listed("/"))
    horizon = (NOW_MS - 5000, 0)
    await store.put(paths.HORIZON, encode(list(horizon)))
    states = [Stamped(Stamp(NOW_MS - 9000, number, "us"), canonical({})) for number in range(EVENTS_TOGETHER)]
    events = [Event(keys.tenant(f"old{state.stamp.counter:02d}"), state) for state in states]
    await world.applier.take(events, are_new=True, alive_upto=horizon)
    assert world.reads.requests == 1
    found = await store.get_many([event.path for event in events])
    assert None not in found
