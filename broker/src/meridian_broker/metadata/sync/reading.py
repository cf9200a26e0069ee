# SPDX-License-Identifier: Apache-2.0
"""What the store holds about a path, and the checks that a transaction based on it has to contain."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from meridian_broker.metadata.records import decode
from meridian_broker.metadata.store import ABSENT, Check, Delete, MetadataStore, Put, Record
from meridian_broker.metadata.sync import paths
from meridian_broker.metadata.sync.stamped import BEGINNING, Moment, Stamped, caller_of, from_store, newest, to_store


@dataclass(frozen=True, slots=True)
class Seen:
    """Records by path, read one after another; None: nothing is there."""

    records: Mapping[str, Record | None]

    def value(self, path: str) -> Stamped | None:
        record = self.records[path]
        return None if record is None else from_store(path, record.value)

    def tombstone(self, path: str) -> Stamped | None:
        where = paths.tombstone(path)
        record = self.records[where]
        return None if record is None else from_store(where, record.value, is_deletion=True)

    def state(self, path: str) -> Stamped | None:
        """Value or tombstone, whichever is newer."""
        return newest(self.value(path), self.tombstone(path))

    def caller(self, path: str) -> str:
        """Who asked for the state, if this region wrote it and knows; else empty."""
        value, stone = self.value(path), self.tombstone(path)
        where = paths.tombstone(path) if stone is not None and newest(value, stone) is stone else path
        record = self.records[where]
        return "" if record is None else caller_of(where, record.value)

    def moment(self, path: str) -> Moment:
        """A stored moment; ``BEGINNING`` when there is none."""
        record = self.records[path]
        return BEGINNING if record is None else read_moment(path, record)

    def checks(self) -> dict[str, Check]:
        """By path: nothing was written there since."""
        return {path: Check(path, self.version(path)) for path in self.records}

    def version(self, path: str) -> int:
        record = self.records[path]
        return ABSENT if record is None else record.version

    def versions(self) -> dict[str, int]:
        return {path: self.version(path) for path in self.records}

    def storing(self, path: str, state: Stamped, caller: str = "") -> list[Put | Delete]:
        """The operations that make ``state`` the path's.

        :param caller: as for ``to_store``.
        """
        stone = paths.tombstone(path)
        if state.value is None:
            deletion = [Delete(path)] if self.records[path] is not None else []
            return [*deletion, Put(stone, to_store(state, caller))]
        return [Put(path, to_store(state, caller)), *([Delete(stone)] if self.records[stone] is not None else [])]


async def read(store: MetadataStore, wanted: Iterable[str]) -> Seen:
    """Records at these paths."""
    places = sorted(set(wanted))
    return Seen(dict(zip(places, await store.get_many(places), strict=True)))


def with_tombstones(some: Iterable[str]) -> list[str]:
    """Where the states of these paths are read."""
    return [place for path in some for place in (path, paths.tombstone(path))]


def read_moment(path: str, record: Record) -> Moment:
    """:raises MetadataError: the record is damaged."""
    value, _ = decode(path, record.value)
    return int(value[0]), int(value[1])
