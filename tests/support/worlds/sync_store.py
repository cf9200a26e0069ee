# SPDX-License-Identifier: Apache-2.0
"""One region's metadata store in the synchronization world: durable, in memory, and one step per request.

It checks at each write what must hold whatever the regions do (see ``sync_world``).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator, Sequence
from dataclasses import dataclass
from types import coroutine

from meridian_broker.metadata.limits import check_transaction
from meridian_broker.metadata.store import (
    ABSENT,
    Change,
    Check,
    Committed,
    Delete,
    Lease,
    Put,
    Record,
    VersionConflict,
)
from meridian_broker.metadata.sync import paths
from meridian_broker.metadata.sync.conflicts import from_store as conflict_from_store
from meridian_broker.metadata.sync.parked import from_parked
from meridian_broker.metadata.sync.stamped import Moment, Stamped, from_store, moment, newest
from meridian_broker.positions.clock import Stamp
from support.worlds.sync_histories import Histories


@coroutine
def step() -> Generator[None]:
    """Let other tasks run here."""
    yield


class Broken(AssertionError):
    """A promise is broken."""


class StoreInMemory:
    """One region's store: durable, with one step per request."""

    def __init__(self, region: str, histories: Histories | None = None) -> None:
        self.region = region
        self.histories = histories or Histories()
        self.records: dict[str, Record] = {}
        self.highest: dict[str, Stamped] = {}
        """By path, the latest state that was ever stored here."""
        self.set_aside: set[tuple[str, Stamp]] = set()
        """Paths and stamps of values listed as conflicts because a forgotten deletion may be later."""
        self._version = 0

    async def get(self, path: str) -> Record | None:
        await step()
        return self.records.get(path)

    async def get_many(self, some: Sequence[str]) -> list[Record | None]:
        return [await self.get(path) for path in some]

    async def put(self, path: str, value: bytes, *, expected: int | None = None, lease: int | None = None) -> int:
        checks = [] if expected is None else [Check(path, expected)]
        if not await self.transact(checks, [Put(path, value, lease)]):
            raise VersionConflict(path)
        return self.records[path].version

    async def delete(self, path: str, *, expected: int | None = None) -> bool:
        was_there = path in self.records
        if not await self.transact([] if expected is None else [Check(path, expected)], [Delete(path)]):
            raise VersionConflict(path)
        return was_there

    async def children(self, path: str) -> list[str]:
        raise NotImplementedError("nothing in metadata/sync lists children")

    async def scan(self, prefix: str) -> list[tuple[str, Record]]:
        await step()
        return sorted((path, record) for path, record in self.records.items() if path.startswith(prefix))

    async def transact(self, checks: Sequence[Check], operations: Sequence[Put | Delete]) -> Committed | None:
        check_transaction(checks, operations)
        await step()
        if any(self._version_of(check.path) != check.version for check in checks):
            return None
        self._version += 1
        touched = {operation.path.removeprefix(paths.TOMBSTONES) for operation in operations}
        replaced = {path: self.state(path) for path in touched if paths.scope_of(path)}
        for operation in operations:
            if isinstance(operation, Put):
                self.records[operation.path] = Record(operation.value, self._version)
            else:
                self.records.pop(operation.path, None)
        self.histories.note(self.region, replaced, {path: self.state(path) for path in replaced})
        for path in touched:
            self._check(path)
        for operation in operations:
            if isinstance(operation, Put) and operation.path.startswith(paths.CONFLICTS):
                self._check_conflict(operation.path.removeprefix(paths.CONFLICTS), operation)
        done = Committed(self._version, [Change(one.path, self.records.get(one.path)) for one in operations])
        await step()
        return done

    async def watch(self, prefix: str) -> AsyncIterator[list[Change]]:
        """Ends at once: watchers read everything first, and nothing in this world needs later changes."""
        await step()
        yield []

    async def lease(self, ttl_seconds: float) -> Lease:
        raise NotImplementedError

    async def close(self) -> None:
        """Nothing to close."""

    def state(self, path: str) -> Stamped | None:
        value, stone = self.records.get(path), self.records.get(paths.tombstone(path))
        return newest(
            None if value is None else from_store(path, value.value),
            None if stone is None else from_store(path, stone.value, is_deletion=True),
        )

    def states(self) -> dict[str, Stamped]:
        """States of all paths with a value or a tombstone."""
        some = {path.removeprefix(paths.TOMBSTONES) for path in self.records}
        found = {path: self.state(path) for path in some if paths.scope_of(path)}
        return {path: state for path, state in found.items() if state is not None}

    def copy(self) -> StoreInMemory:
        other = StoreInMemory(self.region, self.histories)
        other.records, other.highest, other._version = dict(self.records), dict(self.highest), self._version
        return other

    def _version_of(self, path: str) -> int:
        record = self.records.get(path)
        return ABSENT if record is None else record.version

    def _check_conflict(self, path: str, put: Put) -> None:
        conflict = conflict_from_store(put.path, put.value)
        self.histories.note_listed(path, conflict)
        if not conflict.won.stamp.region:
            self.set_aside.add((path, conflict.lost.stamp))
        if self.histories.is_false(path, conflict):
            raise Broken(f"{self.region} lists a conflict at {path}: {conflict.won} knew {conflict.lost}")

    def _check(self, path: str) -> None:
        if paths.scope_of(path) is None:
            return
        now, highest = self.state(path), self.highest.get(path)
        if highest is not None and now is not None and highest.beats(now):
            raise Broken(f"{self.region} had {shown(highest)} at {path}, and has {shown(now)} now")
        if highest is not None and now is None and highest.value is not None:
            raise Broken(f"{self.region} forgot {shown(highest)} at {path} without a deletion")
        if now is not None:
            self.highest[path] = now


@dataclass
class WaitingInMemory:
    """Paths that wait in a region's store, read there each time."""

    store: StoreInMemory

    async def tombstones(self, upto: Moment) -> list[str]:
        """All tombstones: the applier decides which may be removed."""
        return [where.removeprefix(paths.TOMBSTONES) for where, _ in await self.store.scan(paths.TOMBSTONES + "/")]

    async def parked(self, upto: Moment) -> list[str]:
        return [path for path, state in await self._parked() if moment(state.stamp) <= upto]

    async def first_parked(self) -> Moment | None:
        return min((moment(state.stamp) for _, state in await self._parked()), default=None)

    def park(self, path: str, state: Stamped | None) -> None:
        """Nothing to do: parked states are always read from the store."""

    def is_noted(self, path: str) -> bool:
        """Constant, because the answer is allowed to be wrong."""
        return False

    def is_listed(self, path: str) -> bool:
        """Constant, like ``is_noted``."""
        return True

    async def _parked(self) -> list[tuple[str, Stamped]]:
        found = await self.store.scan(paths.PARKED + "/")
        return [(where.removeprefix(paths.PARKED), from_parked(where, record.value)) for where, record in found]


def shown(state: Stamped) -> str:
    generation = f", generation {state.generation}" if state.generation else ""
    return f"{'nothing' if state.value is None else state.value.decode()} of {state.stamp}{generation}"
