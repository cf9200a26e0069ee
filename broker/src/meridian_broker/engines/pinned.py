# SPDX-License-Identifier: Apache-2.0
"""A ledger store that never forgets a deletion, even of a ledger that is still being read or when the disk refuses.

The export names ledgers to a child process that reads them from disk later. Trimming and topic deletion must neither
wait for it nor delete the ledgers while it reads. So the deletion is recorded, also in a file, and carried out when the
last hold ends, or at the next start: ids are never reused (R1), so a late deletion hits nothing else. A deletion that
the disk refuses is recorded, too, and retried later, because its caller no longer references the ledger.

Each line of the file is an id and its checksum. Without the checksum, a damaged digit could name a ledger in use.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from crc32c import crc32c

from meridian_broker.ledgers.scheduling import Scheduler
from meridian_broker.ledgers.store import LedgerError, LedgerInfo, LedgerStore, Reader, Writer

log = logging.getLogger(__name__)


RETRIES: Final = 100
"""Failed deletions that one call retries."""


class PinnedLedgers:
    """Any ``LedgerStore`` with holds. See the module's text."""

    def __init__(self, store: LedgerStore, note: Path | None, scheduler: Scheduler) -> None:
        """
        :param note: file with the ids of ledgers to be deleted. None: the store finds interrupted deletions otherwise.
        """
        self._store = store
        self._note = note
        self._scheduler = scheduler
        self._holds: Counter[int] = Counter()
        self._waiting: set[int] = set()
        self._noted: set[int] = set()
        """The content of the file."""
        self._is_noting = False
        self._refused = False
        """The last attempt to write the note failed."""

    async def finish_deletions(self) -> None:
        """Carry out the deletions that were pending when the process ended. Call it once, before anything is held."""
        if self._note is None:
            return
        try:
            lines = self._note.read_bytes().splitlines()
        except FileNotFoundError:
            return
        except OSError as error:
            log.warning("%s cannot be read (%s): the space of the ledgers listed in it is not freed", self._note, error)
            return
        noted = {int(line.split()[0]) for line in lines if _is_whole(line)}
        if len(noted) < len(lines):
            damaged = len(lines) - len(noted)
            log.warning(
                "%s has %d damaged lines of %d: the space of their ledgers is not freed",
                self._note,
                damaged,
                len(lines),
            )
        self._waiting |= noted
        self._noted = noted | {-1}  # whatever the file contains, rewrite it
        await self._delete(noted)
        self._write_note()

    async def retry_deletions(self) -> None:
        """Retry deletions that the disk refused: at most ``RETRIES`` ledgers. Call it periodically."""
        refused = sorted(self._waiting - self._holds.keys())[:RETRIES]
        if refused:
            await self._delete(set(refused))
            self._write_note()

    def hold(self, ledgers: Iterable[int]) -> None:
        """Keep these ledgers until ``release``; holds are counted."""
        self._holds.update(ledgers)

    def is_held(self, ledger_id: int) -> bool:
        """Whether somebody reads it."""
        return self._holds[ledger_id] > 0

    def release(self, ledgers: Iterable[int]) -> None:
        """End one hold of each; deletions that waited for it begin."""
        self._holds.subtract(ledgers)
        self._holds = +self._holds
        free = self._waiting - self._holds.keys()
        if free:
            self._scheduler.spawn(self._delete(free), "delete ledgers that were held")

    async def _delete(self, ledgers: set[int]) -> None:
        for ledger_id in sorted(ledgers):
            try:
                await self._store.delete(ledger_id)
            except LedgerError as error:
                log.warning("the space of ledger %d cannot be freed now; trying again later: %s", ledger_id, error)
                self._write_note()
                break
            self._waiting.discard(ledger_id)
        self._write_note_soon()

    def _write_note_soon(self) -> None:
        """Once for all deletions of this turn of the loop: opening a file costs more than deleting a ledger."""
        if not self._is_noting:
            self._is_noting = True
            self._scheduler.defer(self._write_note)

    def _write_note(self) -> None:
        """Write ``_waiting`` to the file. It is a hint: if the last write is lost, ledgers whose deletion a stop
        interrupted keep their space. So it is not synced, and a full disk, where deleting matters most, is no obstacle.
        """
        self._is_noting = False
        if self._note is None or self._waiting == self._noted:
            return
        try:
            if self._waiting:
                self._note.write_bytes(b"".join(map(_line, sorted(self._waiting))))
            else:
                self._note.unlink(missing_ok=True)
        except OSError as error:
            if not self._refused:
                log.warning(
                    "%s cannot be written (%s): deletions that a stop interrupts are not resumed", self._note, error
                )
            self._refused = True
        else:
            self._refused = False
            self._noted = set(self._waiting)

    # -- the port ------------------------------------------------------------------------------------------------

    async def create(self, ledger_id: int, fence: int, label: bytes = b"") -> Writer:
        return await self._store.create(ledger_id, fence, label)

    async def open(self, ledger_id: int) -> Reader:
        return await self._store.open(ledger_id)

    async def recover(self, ledger_id: int, fence: int) -> LedgerInfo:
        return await self._store.recover(ledger_id, fence)

    async def delete(self, ledger_id: int) -> None:
        """Delete it now, or record that it must be deleted once the last hold ends or the disk allows it."""
        self._waiting.add(ledger_id)
        if self._holds[ledger_id]:
            self._write_note()
        else:
            self._write_note_soon()
            await self._delete({ledger_id})

    async def list(self) -> list[LedgerInfo]:
        return [info for info in await self._store.list() if info.ledger_id not in self._waiting]


def _line(ledger_id: int) -> bytes:
    number = b"%d" % ledger_id
    return b"%s %08x\n" % (number, crc32c(number))


def _is_whole(line: bytes) -> bool:
    number, _, checksum = line.partition(b" ")
    return number.isdigit() and checksum == b"%08x" % crc32c(number)
