# SPDX-License-Identifier: Apache-2.0
"""The port to a region's metadata store: a small, consistent tree of versioned values.

Paths look like files (``/namespaces/public/default``); a value is bytes; a version is a number that grows with each
write of its path. Regions share no store: nothing here crosses a region's border.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from meridian_broker.positions.clock import Stamp

ABSENT = 0
"""``expected=ABSENT``: the path must not exist. Real versions start at 1."""


class MetadataError(Exception):
    """The metadata store refused or failed. The message says whose fault it is and what to do."""


class VersionConflict(MetadataError):
    """Another writer changed the path first: read it again and decide again."""


class MetadataUnavailable(MetadataError):
    """The store does not answer (down, cut off, too slow). Retry later."""


class MetadataFull(MetadataUnavailable):
    """The store is full: it answers reads and refuses writes until space is freed."""


class MetadataLoginRefused(MetadataError):
    """The store rejects this process's login or denies it its keys: users are being set up, or a setting is wrong."""


class MetadataWentBack(MetadataError):
    """The store is older than before: a backup was restored while this process was running. It is inconsistent with
    this process's memory, so it is no longer read or written: restart, as after a crash (R5)."""


class LeaseExpired(MetadataError):
    """The lease is gone: what it protected may belong to another process by now."""


@dataclass(frozen=True, slots=True)
class Record:
    """A value and its version."""

    value: bytes
    version: int


@dataclass(frozen=True, slots=True)
class Put:
    """Write ``value`` at ``path``; with ``lease`` it is removed when that lease ends."""

    path: str
    value: bytes
    lease: int | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove ``path`` (that path alone, nothing below it). If it does not exist, nothing happens."""

    path: str
    stamp: Stamp | None = None
    """Of the event that this deletion follows from, in whichever region (``metadata.sync.recording``); stores ignore
    it."""


@dataclass(frozen=True, slots=True)
class Check:
    """``path`` must be at ``version`` (``ABSENT``: must not exist) for a transaction to go through."""

    path: str
    version: int


@dataclass(frozen=True, slots=True)
class Change:
    """One change seen by a watch; ``record`` is None for a deletion."""

    path: str
    record: Record | None


@dataclass(frozen=True, slots=True)
class Committed:
    """What a transaction has written."""

    version: int
    """Version of everything it has put. Later transactions have no smaller one."""
    changes: Sequence[Change] = ()


class Lease(Protocol):
    """A right that expires unless its holder keeps renewing it. The store renews it in the background."""

    @property
    def lease_id(self) -> int: ...

    def valid_until(self) -> float:
        """Until when the holder may rely on the lease, margin included: seconds on the clock of
        ``Scheduler.monotonic_ms``, which runs on while the machine is suspended."""
        ...

    async def revoke(self) -> None:
        """End it now; everything put with it is removed."""
        ...


class MetadataStore(Protocol):
    """One region's metadata. All methods may raise :class:`MetadataUnavailable`."""

    async def get(self, path: str) -> Record | None: ...

    async def get_many(self, paths: Sequence[str]) -> list[Record | None]:
        """What is at each path, in one round trip or a few. Not of one moment: writers check the versions."""
        ...

    async def put(self, path: str, value: bytes, *, expected: int | None = None, lease: int | None = None) -> int:
        """Write and return the new version. ``expected``: the version that must be there, ``ABSENT`` for none.

        :raises VersionConflict: another version is there.
        :raises LeaseExpired: the lease is unknown or gone.
        """
        ...

    async def delete(self, path: str, *, expected: int | None = None) -> bool:
        """Remove a path. Returns whether it existed.

        :raises VersionConflict: another version is there.
        """
        ...

    async def children(self, path: str) -> list[str]:
        """Sorted names one level below ``path`` (also of paths that only have descendants)."""
        ...

    async def scan(self, prefix: str) -> list[tuple[str, Record]]:
        """Every path that starts with ``prefix``, sorted, from one consistent moment."""
        ...

    async def transact(self, checks: Sequence[Check], operations: Sequence[Put | Delete]) -> Committed | None:
        """All operations or none: None when a check fails (nothing was written).

        :raises LeaseExpired: a lease is unknown or gone.
        """
        ...

    def watch(self, prefix: str) -> AsyncIterator[list[Change]]:
        """Changes below ``prefix`` from now on, one list per transaction, in order; none is missed when the store
        restarts.

        The first item is always an empty list: it is yielded once the watch is in place, so that a caller can scan
        after it and miss nothing. If the store compacted changes that were missed, the iterator raises
        :class:`MetadataError`, and the caller scans and watches again.
        """
        ...

    async def lease(self, ttl_seconds: float) -> Lease: ...

    async def close(self) -> None: ...
