# SPDX-License-Identifier: Apache-2.0
"""A region's metadata store in memory: it outlives its brokers, and answers when the world says so."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

from meridian_broker.metadata.store import (
    ABSENT,
    Change,
    Check,
    Delete,
    Lease,
    MetadataUnavailable,
    Put,
    Record,
    VersionConflict,
)
from simulation.disk_faults import DiskFaults
from simulation.loop import Loop


@dataclass
class MetadataVolume:
    """What a region's metadata store holds. Every write that returned is durable."""

    records: dict[str, Record] = field(default_factory=dict)
    version: int = 0
    away: bool = False
    """Not reachable at present."""

    def copy(self) -> MetadataVolume:
        return MetadataVolume(dict(self.records), self.version)


class SimMetadata:
    """`metadata.store.MetadataStore` as one broker sees it. ``delay_us`` is asked before and after each operation."""

    def __init__(
        self,
        loop: Loop,
        volume: MetadataVolume,
        delay_us: Callable[[], int],
        on_put: Callable[[str, bytes], None],
        on_move: Callable[[str, bytes, str], None],
        on_take_back: Callable[[str], None],
        faults: DiskFaults,
    ) -> None:
        """:param on_put: hears of every write.
        :param on_move: hears when something gets another name: the one before, what it held, and the new one.
        :param on_take_back: hears when something goes as if it had never been there, with nothing in its place."""
        self._loop = loop
        self._volume = volume
        self._delay_us = delay_us
        self._on_put = on_put
        self._on_move = on_move
        self._on_take_back = on_take_back
        self._faults = faults

    async def _arrive(self) -> None:
        await self._loop.sleep(self._delay_us())
        if self._volume.away or self._faults.fails("metadata"):
            raise MetadataUnavailable("the metadata store does not answer")

    async def _answer(self) -> None:
        await self._loop.sleep(self._delay_us())
        if self._faults.fails("answer"):
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
        self._put(path, value)
        version = self._version(path)
        await self._answer()
        return version

    async def delete(self, path: str, *, expected: int | None = None) -> bool:
        await self._arrive()
        if expected is not None and self._version(path) != expected:
            raise VersionConflict(f"{path} is at version {self._version(path)}, not {expected}")
        self._on_take_back(path)
        return self._volume.records.pop(path, None) is not None

    async def children(self, path: str) -> list[str]:
        await self._arrive()
        start = path.rstrip("/") + "/"
        return sorted({key[len(start) :].split("/", 1)[0] for key in self._volume.records if key.startswith(start)})

    async def scan(self, prefix: str) -> list[tuple[str, Record]]:
        await self._arrive()
        return sorted((key, record) for key, record in self._volume.records.items() if key.startswith(prefix))

    async def transact(self, checks: Sequence[Check], operations: Sequence[Put | Delete]) -> bool:
        await self._arrive()
        if any(self._version(check.path) != check.version for check in checks):
            return False
        removed: dict[str, Record] = {}
        for operation in operations:
            if isinstance(operation, Put):
                for before, held in removed.items():
                    self._on_move(before, held.value, operation.path)
                self._put(operation.path, operation.value)
            elif (found := self._volume.records.pop(operation.path, None)) is not None:
                removed[operation.path] = found
        await self._answer()
        return True

    def watch(self, prefix: str) -> AsyncIterator[list[Change]]:
        raise NotImplementedError("one broker a region: it sees its own writes")

    async def lease(self, ttl_seconds: float) -> Lease:
        raise NotImplementedError("nothing built so far takes a lease")

    async def close(self) -> None:
        """Nothing to let go of."""

    def _version(self, path: str) -> int:
        record = self._volume.records.get(path)
        return ABSENT if record is None else record.version

    def _put(self, path: str, value: bytes) -> None:
        self._volume.version += 1
        self._volume.records[path] = Record(value, self._volume.version)
        self._on_put(path, value)
