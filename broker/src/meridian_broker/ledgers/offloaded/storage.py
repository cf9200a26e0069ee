# SPDX-License-Identifier: Apache-2.0
"""A `LedgerStorage` around another one: offloaded ledgers appear as if they had never left.

So nobody else has to know: opening a topic, trimming, deleting, the export and the repair of damaged entries ask for
ledgers as usual. Without an object store in the settings this layer does not exist and costs nothing.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import Final

from meridian_broker.ledgers.objects import ObjectStoreError
from meridian_broker.ledgers.offloaded.cache import BlockCache
from meridian_broker.ledgers.offloaded.offloading import Offloading
from meridian_broker.ledgers.offloaded.reading import CopyReader, OffloadableReader
from meridian_broker.ledgers.offloaded.records import Offloaded, State
from meridian_broker.ledgers.periodic import PeriodicWork
from meridian_broker.ledgers.scheduling import Scheduler
from meridian_broker.ledgers.storage import LedgerStorage, OldLedger, StorageFigures
from meridian_broker.ledgers.store import (
    LedgerDeleted,
    LedgerError,
    LedgerInfo,
    LedgerNotFound,
    LedgerUnreadable,
    Reader,
    Writer,
)
from meridian_broker.metadata.store import MetadataError

log = logging.getLogger(__name__)

NEAR_MS: Final = 30_000
"""How long originals are read instead of copies after a copy could not be read."""


class OffloadedLedgers:
    """See the module's text."""

    def __init__(
        self,
        near: LedgerStorage,
        offloading: Offloading,
        cache: BlockCache,
        scheduler: Scheduler,
        *,
        prefers_copies: bool,
        outside: str,
    ) -> None:
        """
        :param near: the storage that ledgers are first written to.
        :param prefers_copies: read ledgers that are in both places from the object store.
        :param outside: what `engines.outside` needs to open the object store. Contains no secret.
        """
        self._near = near
        self.offloading = offloading
        self._cache = cache
        self._scheduler = scheduler
        self._prefers_copies = prefers_copies
        self._near_until_ms = 0
        self._unrecorded: set[int] = set()
        """Ledgers with a whole copy that was not on record when it was found."""
        self._outside = outside
        offloading.on_gone = cache.forget

    # -- the port of stores --------------------------------------------------------------------------------------

    async def create(self, ledger_id: int, fence: int, label: bytes = b"") -> Writer:
        return await self._near.create(ledger_id, fence, label)

    async def open(self, ledger_id: int) -> Reader:
        record = self.offloading.table.get(ledger_id)
        if record is None or record.state in (State.UPLOADING, State.COPIED, State.DOOMED):
            try:
                near = await self._near.open(ledger_id)
            except LedgerNotFound as error:
                return OffloadableReader(ledger_id, None, await self._find(ledger_id, error), self)
            return OffloadableReader(ledger_id, near, None, self)
        return OffloadableReader(ledger_id, None, self._reader(record), self)

    async def recover(self, ledger_id: int, fence: int) -> LedgerInfo:
        try:
            return await self._near.recover(ledger_id, fence)
        except LedgerNotFound as error:
            return _info(await self._record(ledger_id, error))

    async def delete(self, ledger_id: int) -> None:
        try:
            await self.offloading.doom(ledger_id)
        except MetadataError as error:
            raise LedgerError(f"ledger {ledger_id} cannot be deleted now: {error}") from error
        await self._near.delete(ledger_id)

    # -- where a ledger is ---------------------------------------------------------------------------------------

    def copy_of(self, ledger_id: int) -> CopyReader | None:
        """See `Places`, also for the next three."""
        record = self.offloading.table.get(ledger_id)
        return self._reader(record) if record is not None and record.is_whole else None

    async def find_copy(self, ledger_id: int) -> CopyReader:
        return await self._find(ledger_id, LedgerNotFound(f"ledger {ledger_id} was deleted"))

    @property
    def prefers_copies(self) -> bool:
        return self._prefers_copies and self._scheduler.monotonic_ms() >= self._near_until_ms

    def failed(self) -> None:
        self._near_until_ms = self._scheduler.monotonic_ms() + NEAR_MS

    async def _find(self, ledger_id: int, error: LedgerNotFound) -> CopyReader:
        return self._reader(await self._record(ledger_id, error))

    async def _record(self, ledger_id: int, error: LedgerNotFound) -> Offloaded:
        """The record of a ledger whose original is gone.

        If a topic's record still names it, it may have been offloaded after the backup was made from which the metadata
        were restored (R5).

        :raises LedgerNotFound: there is no copy either.
        :raises LedgerUnreadable: that cannot be found out now.
        """
        try:
            record = await self.offloading.table.fetch(ledger_id)
            if record is not None and record.is_whole:
                return record
            is_doomed = record is not None and record.state is State.DOOMED
            may_be_copied = isinstance(error, LedgerDeleted) or ledger_id in self._unrecorded
            if is_doomed or not may_be_copied:
                raise error
            found = await self.offloading.adopt(ledger_id)
        except (MetadataError, ObjectStoreError) as away:
            raise LedgerUnreadable(f"cannot find out now where ledger {ledger_id} is stored: {away}") from away
        if found is None:
            raise error
        return found

    def _reader(self, record: Offloaded) -> CopyReader:
        return CopyReader(
            *(record.ledger_id, record.copy, record.entries),
            *(self.offloading.copies, self._cache, self._scheduler),
        )

    # -- the port of storages ------------------------------------------------------------------------------------

    @property
    def is_apart(self) -> bool:
        return self._near.is_apart

    def newest_fence(self) -> int:
        return self._near.newest_fence()

    async def older_than(self, age_ms: int, /) -> list[OldLedger]:
        return await self._near.older_than(age_ms)

    @property
    def damages(self) -> Sequence[str]:
        return self._near.damages

    @property
    def full(self) -> str | None:
        return self._near.full

    @property
    def works(self) -> Sequence[PeriodicWork]:
        return self._near.works

    def figures(self) -> StorageFigures:
        near = self._near.figures()
        whole = [record for record in self.offloading.table if record.is_whole]
        gauges = {
            "offloaded_ledgers": float(len(whole)),
            "offloaded_bytes": float(sum(record.size for record in whole)),
            "offload_cache_bytes": float(self._cache.used),
        }
        counters = {
            "offload_cache_hits": float(self._cache.hits),
            "offload_cache_misses": float(self._cache.misses),
        }
        return StorageFigures(
            {**near.gauges, **gauges}, {**near.counters, **counters}, near.sync_buckets, near.sync_seconds
        )

    @property
    def outside(self) -> str:
        return json.dumps({"near": self._near.outside, "offloaded": self._outside})

    async def copied(self, after: int) -> list[LedgerInfo]:
        """The ledgers with greater ids that have a whole copy, on record or not: metadata restored from an older copy
        do not know what was offloaded since (R5).

        :raises LedgerUnreadable: that cannot be found out now.
        """
        on_record = {record.ledger_id: record for record in self.offloading.table if record.ledger_id > after}
        found = [_info(record) for record in on_record.values() if record.is_whole]
        try:
            others = await self.offloading.copies.whole_after(after, but=on_record)
        except ObjectStoreError as away:
            raise LedgerUnreadable(f"cannot find out now which ledgers were offloaded: {away}") from away
        for ledger_id, index in others:
            self._unrecorded.add(ledger_id)
            found.append(LedgerInfo(ledger_id, index.entries, index.size, True, index.label))
        return found

    async def list(self) -> list[LedgerInfo]:
        """Without offloaded ledgers whose original is gone: the metadata names those, unless it is an older copy; see
        ``copied``."""
        return await self._near.list()

    async def close(self) -> None:
        await self.offloading.copies.close()
        await self._near.close()


def _info(record: Offloaded) -> LedgerInfo:
    return LedgerInfo(record.ledger_id, record.entries, record.size, True, record.label)
