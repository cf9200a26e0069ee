# SPDX-License-Identifier: Apache-2.0
"""Copies of ledgers as objects: written, opened, checked, deleted.

The objects of a copy are ``PREFIX/REGION/LEDGER/COPY/CHUNK`` and ``.../index``. Below ``COPY/heads`` are the entries'
headers once more, in the same format: the index of a ledger, which opening a topic or a seek may need, is built from
those alone; if they are missing or damaged, from the entries. An upload is not one large multipart object: the parts of
an interrupted one appear in no listing, and are kept and paid for until somebody ends it. Whole objects are all listed
below the ledger's name, so they can be deleted whoever left them.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Final

from meridian_broker.ledgers.entry import head_of
from meridian_broker.ledgers.objects import ObjectNotFound, ObjectStore, ObjectStoreError
from meridian_broker.ledgers.offloaded.format import (
    BlockContent,
    CopyDamaged,
    CopyIndex,
    CopyNewer,
    Packer,
    unpack_block,
)
from meridian_broker.ledgers.store import LedgerCorrupt, LedgerError, LedgerUnreadable, Reader

READ_BYTES: Final = 128 << 10
"""Bytes of a ledger's entries that are packed before other tasks run: a thousand small ones, some milliseconds."""
_INDEX: Final = "index"
_HEADS: Final = "heads"


class Copies:
    """See the module's text. No other region uses the folder."""

    def __init__(self, objects: ObjectStore, folder: str, block_bytes: int, chunk_bytes: int) -> None:
        """
        :param folder: of all copies of this region.
        :param block_bytes: like ``chunk_bytes``, see `Packer`.
        """
        self._objects = objects
        self._folder = folder
        self._block_bytes = block_bytes
        self._chunk_bytes = chunk_bytes

    @property
    def where(self) -> str:
        return self._objects.where

    async def close(self) -> None:
        """Make no more requests."""
        await self._objects.close()

    async def write(self, ledger_id: int, copy: str, label: bytes, reader: Reader, entries: int) -> CopyIndex:
        """Copy a sealed ledger.

        :param entries: how many it has.
        :raises LedgerError: it cannot be read, or has fewer entries.
        :raises ObjectStoreError: it cannot be written.
        """
        whole = self._upload(ledger_id, copy)
        heads: _Upload | None = self._upload(ledger_id, heads_of(copy))
        while whole.next_entry < entries:
            some = await reader.read(whole.next_entry, entries - 1, READ_BYTES)
            if not some:
                raise LedgerError(f"ledger {ledger_id} ends before entry {whole.next_entry} of {entries}")
            for entry in some:
                await whole.add(entry)
                head = head_of(entry)
                if head is None:
                    heads = None
                elif heads is not None:
                    await heads.add(head)
        if heads is not None:
            await heads.finish(b"")
        return await whole.finish(label)

    def _upload(self, ledger_id: int, copy: str) -> _Upload:
        packer = Packer(ledger_id, self._block_bytes, self._chunk_bytes)
        return _Upload(self._objects, self._copy(ledger_id, copy), packer)

    async def index(self, ledger_id: int, copy: str) -> CopyIndex:
        """:raises LedgerCorrupt: it is missing or damaged. :raises LedgerUnreadable: it cannot be read now."""
        key = f"{self._copy(ledger_id, copy)}/{_INDEX}"
        try:
            return CopyIndex.decode(await self._objects.read(key, 0, -1), ledger_id)
        except (ObjectNotFound, CopyDamaged) as error:
            raise LedgerCorrupt(f"the copy of ledger {ledger_id} in {self.where} is damaged: {error}") from error
        except (CopyNewer, ObjectStoreError) as error:
            raise LedgerUnreadable(f"ledger {ledger_id} cannot be read from {self.where} now: {error}") from error

    async def block(self, ledger_id: int, copy: str, index: CopyIndex, number: int) -> BlockContent:
        """One block, damaged or not. :raises LedgerUnreadable: it cannot be read now."""
        block, count = index.blocks[number], index.end_of(number) - index.blocks[number].first
        try:
            data = await self._objects.read(
                _chunk(self._copy(ledger_id, copy), block.chunk), block.offset, block.length
            )
        except ObjectNotFound:
            data = b""
        except ObjectStoreError as error:
            raise LedgerUnreadable(f"ledger {ledger_id} cannot be read from {self.where} now: {error}") from error
        return unpack_block(ledger_id, block.first, count, data)

    async def lacks(self, ledger_id: int, copy: str) -> str | None:
        """What a copy lacks, judging by the sizes of its objects; None: nothing.

        :raises LedgerUnreadable, ObjectStoreError: that cannot be found out now.
        """
        folder = self._copy(ledger_id, copy)
        sizes = {one.key: one.size for one in await self._objects.list(folder)}
        try:
            index = await self.index(ledger_id, copy)
        except LedgerCorrupt as error:
            return str(error)
        for number, size in enumerate(index.chunks):
            if sizes.get(key := _chunk(folder, number)) != size:
                return f"{key} in {self.where} has {sizes.get(key, 'no')} bytes instead of {size}"
        return None

    async def find(self, ledger_id: int) -> tuple[str, CopyIndex] | None:
        """A whole copy that is not on record; None: there is none.

        :raises LedgerUnreadable, ObjectStoreError: that cannot be found out now.
        """
        for one in await self._objects.list(self._ledger(ledger_id)):
            folder, _, name = one.key.rpartition("/")
            copy = folder.rpartition("/")[2]
            if name == _INDEX and await self.lacks(ledger_id, copy) is None:
                return copy, await self.index(ledger_id, copy)
        return None

    async def whole_after(self, ledger_id: int, but: Container[int]) -> list[tuple[int, CopyIndex]]:
        """The ledgers with greater ids that have a whole copy. :param but: these are not looked at.

        :raises LedgerUnreadable, ObjectStoreError: that cannot be found out now.
        """
        listed = await self._objects.list(self._folder, after=self._ledger(ledger_id + 1))
        names = {one.key.removeprefix(f"{self._folder}/").partition("/")[0] for one in listed}
        others = [number for number in sorted(int(name) for name in names if name.isdecimal()) if number not in but]
        return [(number, copy[1]) for number in others if (copy := await self.find(number)) is not None]

    async def delete(self, ledger_id: int, *, but: str | None = None) -> None:
        """Delete all copies of a ledger. :param but: the name of one to keep.

        :raises ObjectStoreError: some may be left.
        """
        kept = None if but is None else f"{self._copy(ledger_id, but)}/"
        keys = [one.key for one in await self._objects.list(self._ledger(ledger_id))]
        keys = [key for key in keys if kept is None or not key.startswith(kept)]
        if keys:
            await self._objects.delete(keys)

    async def delete_one(self, ledger_id: int, copy: str) -> None:
        """Delete one copy. :raises ObjectStoreError: a part of it may be left."""
        if keys := [one.key for one in await self._objects.list(self._copy(ledger_id, copy))]:
            await self._objects.delete(keys)

    def _ledger(self, ledger_id: int) -> str:
        return f"{self._folder}/{ledger_id:016d}"

    def _copy(self, ledger_id: int, copy: str) -> str:
        return f"{self._ledger(ledger_id)}/{copy}"


def heads_of(copy: str) -> str:
    """The name of a copy's headers, which are stored like a copy."""
    return f"{copy}/{_HEADS}"


class _Upload:
    """A copy that is being written."""

    def __init__(self, objects: ObjectStore, folder: str, packer: Packer) -> None:
        self._objects = objects
        self._folder = folder
        self._packer = packer
        self._chunks = 0

    @property
    def next_entry(self) -> int:
        return self._packer.next_entry

    async def add(self, entry: bytes) -> None:
        await self._put(self._packer.add(entry))

    async def finish(self, label: bytes) -> CopyIndex:
        last, index = self._packer.finish(label)
        await self._put(last)
        await self._objects.put(f"{self._folder}/{_INDEX}", index.encode())
        return index

    async def _put(self, chunk: bytes | None) -> None:
        if chunk is not None:
            await self._objects.put(_chunk(self._folder, self._chunks), chunk)
            self._chunks += 1


def _chunk(folder: str, number: int) -> str:
    return f"{folder}/{number:06d}"
