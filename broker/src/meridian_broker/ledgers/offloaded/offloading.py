# SPDX-License-Identifier: Apache-2.0
"""Takes ledgers from state to state (``records.py``): copies them, deletes the originals, deletes the copies.

A topic's owner copies its ledgers and deletes the originals; any broker deletes copies that nobody needs. If two do the
same at once, because one has not noticed yet that it lost the topic, the result is the same: a ledger is sealed, each
copy has a name of its own, and only one of the brokers can write the record.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from meridian_broker.ledgers.offloaded.copies import Copies
from meridian_broker.ledgers.offloaded.records import Offloaded, State
from meridian_broker.ledgers.offloaded.table import OffloadTable
from meridian_broker.ledgers.scheduling import Scheduler
from meridian_broker.ledgers.store import LedgerInfo, LedgerStore
from meridian_broker.metadata.store import VersionConflict

log = logging.getLogger(__name__)

AGAIN_MS: Final = 24 * 3600 * 1000
"""By then an upload that was under way when its ledger was trimmed has ended, in whichever broker."""
ATTEMPTS: Final = 5


class Offloading:
    """See the module's text. One per broker."""

    def __init__(
        self,
        table: OffloadTable,
        copies: Copies,
        near: LedgerStore,
        scheduler: Scheduler,
        new_name: Callable[[], str],
    ) -> None:
        """
        :param near: the storage that ledgers are first written to.
        :param new_name: returns a new name for a copy each time.
        """
        self.table = table
        self.copies = copies
        self._near = near
        self._scheduler = scheduler
        self._new_name = new_name
        self._cleared: set[int] = set()
        """Doomed ledgers whose copies were deleted once and will be again later."""
        self.on_gone: Callable[[str], None] = lambda _copy: None
        """Called with the name of each copy that is no longer used."""

    def is_copied(self, ledger_id: int) -> bool:
        """Whether there is a whole copy, according to memory."""
        record = self.table.get(ledger_id)
        return record is not None and record.is_whole

    async def copy(self, ledger_id: int, fence: int) -> None:
        """Make a copy of a sealed ledger, unless there is one.

        :param ledger_id: a sealed one.
        :param fence: of the topic's owner.
        :raises LedgerError: the ledger cannot be read, or is another owner's.
        :raises ObjectStoreError: the copy cannot be written.
        :raises MetadataError: the record cannot be written.
        """
        record = self.table.get(ledger_id) or await self.table.fetch(ledger_id)
        if record is not None and record.state is not State.UPLOADING:
            return
        info = await self._near.recover(ledger_id, fence)
        name, now = self._new_name(), self._scheduler.now_ms()
        try:
            begun = await self.table.replace(record, _begun(info, record, name, now))
            reader = await self._near.open(ledger_id)
            await self.copies.write(ledger_id, name, info.label, reader, info.entries)
            await self.table.replace(begun, begun.follow(State.COPIED, self._scheduler.now_ms()))
        except VersionConflict:  # trimmed meanwhile, or another broker owns the topic
            await self.copies.delete_one(ledger_id, name)
            return
        log.info("ledger %d, %d bytes, was copied to %s", ledger_id, info.size, self.copies.where)

    async def leave(self, ledger_id: int) -> None:
        """Delete a copied ledger's original, if the copy is whole.

        :raises LedgerError: it cannot be deleted, or the copy cannot be read.
        :raises ObjectStoreError: the object store cannot be asked.
        :raises MetadataError: the record cannot be written.
        """
        record = self.table.get(ledger_id)
        if record is not None and record.state is State.COPIED:
            lacks = await self.copies.lacks(ledger_id, record.copy)
            if lacks is not None:
                log.error("ledger %d is copied again, because its copy is incomplete: %s", ledger_id, lacks)
                await self._follow(record, State.UPLOADING)
                return
            record = await self._follow(record, State.LEAVING)
        if record is not None and record.state is State.LEAVING:
            # What earlier attempts left. Only now, when no other copy can become the one on record.
            await self.copies.delete(ledger_id, but=record.copy)
            await self._near.delete(ledger_id)
            await self._follow(record, State.AWAY)

    async def adopt(self, ledger_id: int) -> Offloaded | None:
        """Put an unrecorded copy on record: the metadata is older than the deletion of the original. None: no copy.

        :raises LedgerError, ObjectStoreError: that cannot be found out now.
        :raises MetadataError: the record cannot be written.
        """
        found = await self.copies.find(ledger_id)
        if found is None:
            return None
        copy, index = found
        old = self.table.get(ledger_id)
        new = Offloaded(ledger_id, State.AWAY, copy, self._scheduler.now_ms(), index.entries, index.size, index.label)
        log.warning(
            "ledger %d is read from its copy, which the metadata, restored from an older backup, does not mention",
            ledger_id,
        )
        return await self.table.replace(old, new)

    async def doom(self, ledger_id: int) -> None:
        """Record that nobody needs the ledger any more.

        :raises MetadataError: the record cannot be written.
        """
        record = self.table.get(ledger_id) or await self.table.fetch(ledger_id)
        for _ in range(ATTEMPTS):
            if record is None or record.state is State.DOOMED:
                return
            try:
                await self._follow(record, State.DOOMED)
            except VersionConflict:
                record = await self.table.fetch(ledger_id)
            else:
                self.on_gone(record.copy)
                return
        raise VersionConflict(f"the record of offloaded ledger {ledger_id} keeps changing: try again")

    async def clear(self) -> None:
        """Delete the copies of doomed ledgers.

        :raises ObjectStoreError: the object store cannot delete them now.
        :raises MetadataError: a record cannot be removed.
        """
        for record in self.table:
            if record.state is not State.DOOMED:
                continue
            is_last = not record.was_uploading or self._scheduler.now_ms() - record.since_ms >= AGAIN_MS
            if not is_last and record.ledger_id in self._cleared:
                continue
            await self.copies.delete(record.ledger_id)
            self._cleared.add(record.ledger_id)
            if is_last:
                self._cleared.discard(record.ledger_id)
                try:
                    await self.table.remove(record)
                except VersionConflict:
                    continue  # another broker did it

    async def _follow(self, record: Offloaded, state: State) -> Offloaded:
        return await self.table.replace(record, record.follow(state, self._scheduler.now_ms()))


def _begun(info: LedgerInfo, record: Offloaded | None, name: str, now_ms: int) -> Offloaded:
    if record is not None:
        return record.follow(State.UPLOADING, now_ms, name)
    return Offloaded(info.ledger_id, State.UPLOADING, name, now_ms, info.entries, info.size, info.label)
