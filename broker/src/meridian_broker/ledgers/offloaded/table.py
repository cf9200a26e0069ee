# SPDX-License-Identifier: Apache-2.0
"""The records of offloaded ledgers in the region's metadata.

Memory may be outdated if another broker of the region owned the topic meanwhile. That does no harm: a write against an
old version is refused, and a ledger that is not where memory says is looked up again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from meridian_broker.ledgers.offloaded.records import Offloaded
from meridian_broker.metadata import keys
from meridian_broker.metadata.records import decode, encode
from meridian_broker.metadata.store import ABSENT, MetadataStore, Record, VersionConflict


class _Known(NamedTuple):
    """A record and its version."""

    record: Offloaded
    version: int


class OffloadTable:
    """See the module's text. ``await load()`` once before use."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._known: dict[int, _Known] = {}
        self._changed: set[int] = set()
        """Ledgers whose records changed since ``load`` began."""

    async def load(self) -> None:
        """Read all records. :raises MetadataError: the store does not answer, or a newer version wrote one."""
        self._changed.clear()
        found = await self._store.scan(f"{keys.OFFLOADED}/")
        scanned = {known.record.ledger_id: known for known in (_known(path, record) for path, record in found)}
        for ledger_id in self._changed:
            scanned.pop(ledger_id, None)
            if ledger_id in self._known:
                scanned[ledger_id] = self._known[ledger_id]
        self._known = scanned

    def __iter__(self) -> Iterator[Offloaded]:
        return (known.record for known in list(self._known.values()))

    def __len__(self) -> int:
        return len(self._known)

    def get(self, ledger_id: int) -> Offloaded | None:
        """The record in memory, if any."""
        known = self._known.get(ledger_id)
        return None if known is None else known.record

    async def fetch(self, ledger_id: int) -> Offloaded | None:
        """The record in the store, if any. :raises MetadataError: the store does not answer."""
        path = keys.offloaded(ledger_id)
        found = await self._store.get(path)
        self._changed.add(ledger_id)
        if found is None:
            self._known.pop(ledger_id, None)
            return None
        self._known[ledger_id] = known = _known(path, found)
        return known.record

    async def replace(self, old: Offloaded | None, new: Offloaded) -> Offloaded:
        """Write the record that follows ``old``; returns it.

        :raises VersionConflict: it has been changed; the newer one is in memory now.
        :raises MetadataError: it may have been written.
        """
        known = self._known.get(new.ledger_id)
        if (None if known is None else known.record) != old:
            raise VersionConflict(f"the state of ledger {new.ledger_id} has changed meanwhile: {known}")
        path = keys.offloaded(new.ledger_id)
        expected = ABSENT if known is None else known.version
        try:
            version = await self._store.put(path, encode(new.to_json()), expected=expected)
        except VersionConflict:
            if await self.fetch(new.ledger_id) != new:  # an earlier try may have succeeded without an answer
                raise
            return new
        self._changed.add(new.ledger_id)
        self._known[new.ledger_id] = _Known(new, version)
        return new

    async def remove(self, old: Offloaded) -> None:
        """:raises VersionConflict: as for ``replace``. :raises MetadataError: it may have been removed."""
        known = self._known.get(old.ledger_id)
        if known is None or known.record != old:
            raise VersionConflict(f"the state of ledger {old.ledger_id} has changed meanwhile: {known}")
        try:
            await self._store.delete(keys.offloaded(old.ledger_id), expected=known.version)
        except VersionConflict:
            await self.fetch(old.ledger_id)
            raise
        self._changed.add(old.ledger_id)
        self._known.pop(old.ledger_id, None)


def _known(path: str, record: Record) -> _Known:
    ledger_id = int(path.rpartition("/")[2])
    return _Known(Offloaded.from_json(ledger_id, decode(path, record.value)[0]), record.version)
