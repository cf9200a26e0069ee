# SPDX-License-Identifier: Apache-2.0
"""Digests over what a region's store holds of synced paths, kept current by watches.

Values and deletions have trees of their own, because a write changes them at two paths of the store, which two watches
follow. For a moment a path may be in both trees or in neither: then a comparison asks for one path too many, and
whoever takes its state reads it from the store.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Final

from meridian_broker.metadata import keys
from meridian_broker.metadata.store import Change, MetadataStore, Record
from meridian_broker.metadata.sync import paths
from meridian_broker.metadata.sync.digests import BUCKETS, PARTS, DigestTree, Place, Summary
from meridian_broker.metadata.sync.earliest import Earliest
from meridian_broker.metadata.sync.stamped import from_store, moment

SLICE: Final = 200
"""Records read in one turn of the loop."""
_MASK: Final = (1 << 64) - 1


class Known:
    """See the module's text. A task runs each of ``follow_values`` and ``follow_deletions``, again when they fail."""

    def __init__(self, store: MetadataStore, pause: Callable[[], Awaitable[None]]) -> None:
        """:param pause: lets others run."""
        self._store = store
        self._pause = pause
        self._values: dict[str, DigestTree] = {scope: DigestTree() for scope in paths.SCOPES}
        self._deletions: dict[str, DigestTree] = {scope: DigestTree() for scope in paths.SCOPES}
        self.forgettable = Earliest()
        """Deletions by their moments, except those that stay."""
        self._read: set[str] = set()

    @property
    def is_ready(self) -> bool:
        """Everything was read once."""
        return len(self._read) == len((keys.GEO, paths.TOMBSTONES))

    async def follow_values(self) -> None:
        """:raises MetadataError: the store does not answer, or changes may have been missed. Call it again."""
        await self._follow(keys.GEO, self._values, "")

    async def follow_deletions(self) -> None:
        """:raises MetadataError: as ``follow_values``."""
        await self._follow(paths.TOMBSTONES + "/", self._deletions, paths.TOMBSTONES)

    # -- what is compared, in these scopes

    def buckets(self, scopes: Collection[str]) -> list[int]:
        return [sum(self._values[scope].buckets[at] for scope in scopes) & _MASK for at in range(BUCKETS)]

    def parts(self, scopes: Collection[str], bucket: int) -> list[int]:
        found = [self._values[scope].parts(bucket) for scope in scopes]
        return [sum(one[at] for one in found) & _MASK for at in range(PARTS)]

    def listing(self, scopes: Collection[str], places: Iterable[Place]) -> dict[str, Summary]:
        """The latest that is known of each path there, deletions included."""
        wanted = list(places)
        found: dict[str, Summary] = {}
        for scope in scopes:
            for tree in (self._values[scope], self._deletions[scope]):
                for path, one in tree.listing(wanted).items():
                    if path not in found or one > found[path]:
                        found[path] = one
        return found

    @property
    def values(self) -> int:
        """How many there are."""
        return sum(len(tree) for tree in self._values.values())

    @property
    def deletions(self) -> int:
        """How many are remembered."""
        return sum(len(tree) for tree in self._deletions.values())

    def is_deleted(self, path: str) -> bool:
        """Whether a deletion of it is remembered."""
        scope = paths.scope_of(path)
        return scope is not None and path in self._deletions[scope]

    async def _follow(self, prefix: str, trees: dict[str, DigestTree], folder: str) -> None:
        self._read.discard(folder or prefix)
        async for changes in self._store.watch(prefix):
            if changes:
                self._apply(changes, trees, folder)
            else:
                await self._read_all(prefix, trees, folder)

    async def _read_all(self, prefix: str, trees: dict[str, DigestTree], folder: str) -> None:
        read = {scope: DigestTree() for scope in trees}
        if folder:
            self.forgettable = Earliest()
        for number, (where, record) in enumerate(await self._store.scan(prefix)):
            if number % SLICE == 0:
                await self._pause()
            self._set(read, folder, where, record)
        trees.update(read)
        self._read.add(folder or prefix)

    def _apply(self, changes: Iterable[Change], trees: dict[str, DigestTree], folder: str) -> None:
        for change in changes:
            self._set(trees, folder, change.path, change.record)

    def _set(self, trees: dict[str, DigestTree], folder: str, where: str, record: Record | None) -> None:
        path = where.removeprefix(folder)
        scope = paths.scope_of(path)
        if scope is not None:
            state = None if record is None else from_store(where, record.value, is_deletion=bool(folder))
            trees[scope].set(path, state)
            if folder:
                self.forgettable.set(path, None if state is None or state.generation else moment(state.stamp))
