# SPDX-License-Identifier: Apache-2.0
"""What waits in a region's store for its time or for a person; watches keep it current.

It is looked at every second, so looking costs nothing while nothing is due, however much waits: tombstones that some
region may still need, states of the future, conflicts.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final, Protocol

from meridian_broker.metadata.store import MetadataStore, MetadataUnavailable, Record
from meridian_broker.metadata.sync import paths
from meridian_broker.metadata.sync.earliest import Earliest
from meridian_broker.metadata.sync.known import Known
from meridian_broker.metadata.sync.parked import from_parked
from meridian_broker.metadata.sync.stamped import Moment, Stamped, moment

DUE_TOGETHER: Final = 4096
"""Most paths reported as due at a time; the others follow a moment later."""


class Waiting(Protocol):
    """What an applier asks. Each method may raise ``MetadataError``: the answer is not known yet."""

    async def tombstones(self, upto: Moment) -> Sequence[str]:
        """Paths with tombstones up to this moment that may go, some of them at least."""
        ...

    async def parked(self, upto: Moment) -> Sequence[str]:
        """Paths with a parked state up to this moment, some of them at least."""
        ...

    async def first_parked(self) -> Moment | None:
        """The earliest moment of a parked state; None: there is none."""
        ...

    def park(self, path: str, state: Stamped | None) -> None:
        """A state was parked just now; None: none is parked any longer."""
        ...

    def is_noted(self, path: str) -> bool:
        """Whether a tombstone or a parked state of it is probably stored."""
        ...

    def is_listed(self, path: str) -> bool:
        """Whether a conflict of it may be stored."""
        ...


class Kept:
    """See the module's text. A task runs each of ``follow_parked`` and ``follow_conflicts``, again when they fail."""

    def __init__(self, store: MetadataStore, known: Known) -> None:
        self._store = store
        self._known = known
        self._parked = Earliest()
        self._conflicts: set[str] = set()
        self._is_read = False
        self._conflicts_read = False

    async def follow_parked(self) -> None:
        """:raises MetadataError: the store does not answer, or changes may have been missed. Call it again."""
        self._is_read = False
        async for changes in _followed(self._store, paths.PARKED + "/", self._forget_parked):
            for where, record in changes:
                state = None if record is None else from_parked(where, record.value)
                self.park(where.removeprefix(paths.PARKED), state)
            self._is_read = True

    async def follow_conflicts(self) -> None:
        """:raises MetadataError: as ``follow_parked``."""
        self._conflicts_read = False
        async for changes in _followed(self._store, paths.CONFLICTS + "/", self._conflicts.clear):
            for where, record in changes:
                path = where.removeprefix(paths.CONFLICTS)
                if record is None:
                    self._conflicts.discard(path)
                else:
                    self._conflicts.add(path)
            self._conflicts_read = True

    @property
    def parked_paths(self) -> int:
        """How many there are."""
        return len(self._parked)

    @property
    def conflicts(self) -> set[str]:
        """Paths with a conflict that nobody has dismissed."""
        return self._conflicts

    # -- what an applier asks

    async def tombstones(self, upto: Moment) -> Sequence[str]:
        return self._known.forgettable.upto(upto, DUE_TOGETHER)

    async def parked(self, upto: Moment) -> Sequence[str]:
        self._check_read()
        return self._parked.upto(upto, DUE_TOGETHER)

    async def first_parked(self) -> Moment | None:
        self._check_read()
        return self._parked.first()

    def park(self, path: str, state: Stamped | None) -> None:
        self._parked.set(path, None if state is None else moment(state.stamp))

    def is_noted(self, path: str) -> bool:
        return self._known.is_deleted(path) or path in self._parked

    def is_listed(self, path: str) -> bool:
        return path in self._conflicts or not self._conflicts_read

    def _forget_parked(self) -> None:
        self._parked = Earliest()

    def _check_read(self) -> None:
        if not self._is_read:
            raise MetadataUnavailable("parked states are still being read from the metadata store")


async def _followed(
    store: MetadataStore, prefix: str, begin: Callable[[], None]
) -> AsyncIterator[list[tuple[str, Record | None]]]:
    """Everything below the prefix, once ``begin`` was called, and then every change."""
    async for changes in store.watch(prefix):
        if changes:
            yield [(change.path, change.record) for change in changes]
        else:
            found = await store.scan(prefix)
            begin()
            yield [*found]
