# SPDX-License-Identifier: Apache-2.0
"""An `ObjectStore` in memory, which can fail as the real ones do. Its objects outlive it, as a bucket does."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from meridian_broker.ledgers.objects import ObjectInfo, ObjectNotFound, ObjectStoreAway

Fault = Callable[[str, str], None]
"""Called before each operation, with its name and the key; may raise."""


class MemoryObjects:
    """See `meridian_broker.ledgers.objects.ObjectStore`."""

    def __init__(self, bucket: dict[str, bytes] | None = None) -> None:
        """:param bucket: what an earlier store left; None: an empty one."""
        self.bucket = bucket if bucket is not None else {}
        self.fault: Fault = lambda _operation, _key: None
        self.requests = 0
        self._is_closed = False

    @property
    def where(self) -> str:
        return "bucket test in memory"

    async def put(self, key: str, data: bytes) -> None:
        self._begin("put", key)
        self.bucket[key] = bytes(data)

    async def read(self, key: str, first: int, length: int) -> bytes:
        self._begin("read", key)
        if key not in self.bucket:
            raise ObjectNotFound(f"there is no object {key} in {self.where}")
        return self.bucket[key][first : None if length < 0 else first + length]

    async def list(self, prefix: str, after: str = "") -> list[ObjectInfo]:
        self._begin("list", prefix)
        found = sorted((key, len(data)) for key, data in self.bucket.items() if key.startswith(f"{prefix}/"))
        return [ObjectInfo(key, size) for key, size in found if key > after]

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._begin("delete", key)
            self.bucket.pop(key, None)

    async def close(self) -> None:
        self._is_closed = True

    def _begin(self, operation: str, key: str) -> None:
        if self._is_closed:
            raise ObjectStoreAway(f"{self.where} was closed")
        self.requests += 1
        self.fault(operation, key)
