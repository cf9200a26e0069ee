# SPDX-License-Identifier: Apache-2.0
"""The port to an object store: whole objects by key, as in S3 and whatever speaks its protocol.

An object appears whole or not at all, and never changes. The implementation retries, for a bounded time; its errors say
whose fault it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class ObjectStoreError(Exception):
    """The object store failed or refused. The message says whose fault it is and what to do."""


class ObjectStoreAway(ObjectStoreError):
    """It does not answer in time. Trying again later may work."""


class ObjectStoreRefused(ObjectStoreError):
    """It refuses: credentials, permissions, a bucket that does not exist or is full."""


class ObjectNotFound(ObjectStoreError):
    """There is no such object."""


class ObjectInfo(NamedTuple):
    """An object in a listing."""

    key: str
    size: int


class ObjectStore(Protocol):
    """One bucket, or a part of one. Every method may raise `ObjectStoreAway` and `ObjectStoreRefused`."""

    @property
    def where(self) -> str:
        """The bucket and the endpoint, for messages. Contains no secret."""
        ...

    async def put(self, key: str, data: bytes) -> None:
        """Write an object. It is durable on return."""
        ...

    async def read(self, key: str, first: int, length: int) -> bytes:
        """``length`` bytes from ``first`` on, fewer at the object's end; a negative ``length``: all of them.

        :raises ObjectNotFound: there is no such object.
        """
        ...

    async def list(self, prefix: str, after: str = "") -> list[ObjectInfo]:
        """Every object whose key begins with ``prefix`` followed by a slash, by key.

        :param after: only keys greater than this.
        """
        ...

    async def delete(self, keys: Sequence[str]) -> None:
        """Remove these objects. Those that do not exist are ignored."""
        ...

    async def close(self) -> None:
        """Later calls fail."""
        ...
