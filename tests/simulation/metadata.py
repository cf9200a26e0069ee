# SPDX-License-Identifier: Apache-2.0
"""A region's metadata store in memory: it outlives its brokers, and answers when the world says so.

Leases run on the world's clock and expire on time, even while the store cannot be reached.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from meridian_broker.metadata.store import (
    ABSENT,
    Change,
    Check,
    Committed,
    Delete,
    LeaseExpired,
    MetadataUnavailable,
    Put,
    Record,
    VersionConflict,
)
from simulation.disk_faults import DiskFaults
from simulation.loop import Future, Loop, Owner

UNREACHED_US: Final = 300_000
"""How long a watch waits before it checks again whether the store is reachable."""
MARGIN: Final = 0.2
"""Final part of a lease's time that its holder does not rely on, as with etcd."""


class Watch:
    """Changes below a prefix that one broker has yet to receive."""

    def __init__(self, owner: Owner, prefix: str) -> None:
        self.owner = owner
        self.prefix = prefix
        self.changes: deque[list[Change]] = deque()
        self.heard: Future[None] = Future()

    def tell(self, changes: list[Change]) -> None:
        if found := [one for one in changes if one.path.startswith(self.prefix)]:
            self.changes.append(found)
            self.heard.resolve(None)


@dataclass
class MetadataVolume:
    """What a region's metadata store holds. Every write that returned is durable."""

    records: dict[str, Record] = field(default_factory=dict)
    version: int = 0
    away: bool = False
    """Whether it cannot be reached at present."""
    leases: dict[int, int] = field(default_factory=dict)
    """Lease -> when it ends."""
    leased: dict[str, int] = field(default_factory=dict)
    """Path -> the lease with which it is removed."""
    watches: list[Watch] = field(default_factory=list)
    changes: int = 0
    """Transactions that were executed."""

    def tell(self, changes: list[Change]) -> None:
        """One transaction was executed."""
        self.changes += 1
        self.watches = [one for one in self.watches if one.owner.alive]
        for watch in self.watches:
            watch.tell(changes)

    def end(self, lease: int) -> None:
        """The lease is over, and everything put with it is removed."""
        self.leases.pop(lease, None)
        gone = sorted(path for path, one in self.leased.items() if one == lease)
        for path in gone:
            del self.leased[path]
            self.records.pop(path, None)
        if gone:
            self.tell([Change(path, None) for path in gone])

    def copy(self) -> MetadataVolume:
        return MetadataVolume(dict(self.records), self.version)


class SimLease:
    """`metadata.store.Lease`, renewed as in etcd. The holder counts from before each request."""

    def __init__(self, store: SimMetadata, lease_id: int, ttl_us: int, asked_us: int) -> None:
        self._store = store
        self._id = lease_id
        self._ttl_us = ttl_us
        self._until_us = self._counted(asked_us)

    def _counted(self, asked_us: int) -> int:
        return asked_us + round(self._ttl_us * (1 - MARGIN))

    @property
    def lease_id(self) -> int:
        return self._id

    def valid_until(self) -> float:
        return self._until_us / 1_000_000

    async def revoke(self) -> None:
        self._until_us = -1
        await self._store.end_lease(self._id)

    async def keep_alive(self, loop: Loop) -> None:
        pause = self._ttl_us // 3
        while True:
            await loop.sleep(pause)
            asked_us = loop.now_us
            if asked_us >= self._until_us:
                break
            pause = self._ttl_us // 20
            try:
                if not await self._store.renew(self._id, self._ttl_us):
                    break
            except MetadataUnavailable:
                continue
            if loop.now_us < self._until_us:
                self._until_us = self._counted(asked_us)
                pause = self._ttl_us // 3
        self._until_us = -1
        await self._store.end_lease(self._id)


class SimMetadata:
    """`metadata.store.MetadataStore` as one broker sees it. ``delay_us`` is asked before and after each operation."""

    def __init__(
        self,
        owner: Owner,
        loop: Loop,
        volume: MetadataVolume,
        delay_us: Callable[[], int],
        on_put: Callable[[str, bytes], None],
        on_move: Callable[[str, bytes, str], None],
        on_take_back: Callable[[str], None],
        faults: DiskFaults,
    ) -> None:
        """:param on_put: called for every write.
        :param on_move: called when something is renamed, with the old name, the content, and the new name.
        :param on_take_back: called when something is removed as if it had never existed, without replacement."""
        self.is_cut_off = False
        """Whether this broker alone cannot reach the store."""
        self._owner = owner
        self._loop = loop
        self._volume = volume
        self._delay_us = delay_us
        self._on_put = on_put
        self._on_move = on_move
        self._on_take_back = on_take_back
        self._faults = faults

    async def _arrive(self) -> None:
        await self._loop.sleep(self._delay_us())
        if self._volume.away or self.is_cut_off or self._faults.fails("metadata"):
            raise MetadataUnavailable("the metadata store does not answer")

    async def _answer(self) -> None:
        await self._loop.sleep(self._delay_us())
        if self.is_cut_off or self._faults.fails("answer"):
            raise MetadataUnavailable("the answer of the metadata store is lost")

    async def get(self, path: str) -> Record | None:
        await self._arrive()
        return self._volume.records.get(path)

    async def get_many(self, paths: Sequence[str]) -> list[Record | None]:
        return [await self.get(path) for path in paths]

    async def put(self, path: str, value: bytes, *, expected: int | None = None, lease: int | None = None) -> int:
        await self._arrive()
        if expected is not None and self._version(path) != expected:
            raise VersionConflict(f"{path} is at version {self._version(path)}, not {expected}")
        self._check_leases([Put(path, value, lease)])
        self._execute([Put(path, value, lease)])
        version = self._version(path)
        await self._answer()
        return version

    async def delete(self, path: str, *, expected: int | None = None) -> bool:
        await self._arrive()
        if expected is not None and self._version(path) != expected:
            raise VersionConflict(f"{path} is at version {self._version(path)}, not {expected}")
        self._on_take_back(path)
        was_there = path in self._volume.records
        self._execute([Delete(path)])
        return was_there

    async def children(self, path: str) -> list[str]:
        await self._arrive()
        start = path.rstrip("/") + "/"
        return sorted({key[len(start) :].split("/", 1)[0] for key in self._volume.records if key.startswith(start)})

    async def scan(self, prefix: str) -> list[tuple[str, Record]]:
        await self._arrive()
        return sorted((key, record) for key, record in self._volume.records.items() if key.startswith(prefix))

    async def transact(self, checks: Sequence[Check], operations: Sequence[Put | Delete]) -> Committed | None:
        await self._arrive()
        if any(self._version(check.path) != check.version for check in checks):
            return None
        self._check_leases(operations)
        done = Committed(self._volume.version + 1, self._execute(operations))
        await self._answer()
        return done

    async def watch(self, prefix: str) -> AsyncIterator[list[Change]]:
        await self._arrive()
        watch = Watch(self._owner, prefix)
        self._volume.watches.append(watch)
        yield []
        while True:
            await watch.heard
            await self._loop.sleep(self._delay_us())
            while self._volume.away or self.is_cut_off:  # nothing is missed meanwhile
                await self._loop.sleep(UNREACHED_US)
            watch.heard = Future()
            while watch.changes:
                yield watch.changes.popleft()

    async def lease(self, ttl_seconds: float) -> SimLease:
        asked_us = self._loop.now_us
        await self._arrive()
        ttl_us = round(ttl_seconds * 1_000_000)
        self._volume.version += 1
        number = self._volume.version
        self._hold(number, ttl_us)
        await self._answer()
        lease = SimLease(self, number, ttl_us, asked_us)
        self._loop.spawn(self._owner, lease.keep_alive(self._loop), "keep a lease alive")
        return lease

    async def renew(self, lease: int, ttl_us: int) -> bool:
        """Whether it still existed. :raises MetadataUnavailable: unknown."""
        await self._arrive()
        if lease not in self._volume.leases:
            return False
        self._hold(lease, ttl_us)
        await self._answer()
        return True

    def _hold(self, lease: int, ttl_us: int) -> None:
        until_us = self._volume.leases[lease] = self._loop.now_us + ttl_us

        def expire() -> None:
            if self._volume.leases.get(lease) == until_us:
                self._volume.end(lease)

        self._loop.after(ttl_us, None, expire)

    async def end_lease(self, lease: int) -> None:
        """End the lease; if this fails, it expires by itself."""
        with contextlib.suppress(MetadataUnavailable):
            await self._arrive()
            self._volume.end(lease)

    async def close(self) -> None:
        """There is nothing to release."""

    def _version(self, path: str) -> int:
        record = self._volume.records.get(path)
        return ABSENT if record is None else record.version

    def _check_leases(self, operations: Sequence[Put | Delete]) -> None:
        for one in operations:
            if isinstance(one, Put) and one.lease is not None and one.lease not in self._volume.leases:
                raise LeaseExpired("the lease is gone")

    def _execute(self, operations: Sequence[Put | Delete]) -> list[Change]:
        volume, removed = self._volume, dict[str, Record]()
        volume.version += 1
        for one in operations:
            volume.leased.pop(one.path, None)
            if isinstance(one, Delete):
                if (found := volume.records.pop(one.path, None)) is not None:
                    removed[one.path] = found
                continue
            for before, held in removed.items():
                self._on_move(before, held.value, one.path)
            volume.records[one.path] = Record(one.value, volume.version)
            if one.lease is not None:
                volume.leased[one.path] = one.lease
            self._on_put(one.path, one.value)
        changes = [Change(one.path, volume.records.get(one.path)) for one in operations]
        volume.tell(changes)
        return changes
