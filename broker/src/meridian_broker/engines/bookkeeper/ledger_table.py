# SPDX-License-Identifier: Apache-2.0
"""What BookKeeper keeps in etcd, ledger metadata and bookie registrations, and our list of deleted ledgers.

BookKeeper's keys are at the root of etcd, so an etcd holds one BookKeeper cluster. A deleted ledger leaves a
*tombstone* among our own keys, written in the same transaction: its id must not be used again (R1), because bookies
still have its fence and perhaps its entries.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from itertools import takewhile
from typing import Any, Final

from aetcd import rpc

from meridian_broker.engines.bookkeeper.bookies import Bookies
from meridian_broker.engines.bookkeeper.ledger_metadata import (
    AFTER_LEDGER_KEYS,
    AVAILABLE,
    FIRST_LEDGER_KEY,
    READ_ONLY,
    BadMetadata,
    LedgerMetadata,
    bookie_address,
    decode,
    encode,
    ledger_key,
    ledger_of,
)
from meridian_broker.engines.bookkeeper.ports import Unread, Unwritten, Versioned
from meridian_broker.engines.etcd.client import REQUEST_TIMEOUT, EtcdChannel
from meridian_broker.engines.etcd.keys import deleted_ledgers_of
from meridian_broker.engines.etcd.together import Together
from meridian_broker.engines.etcd.watching import EtcdWatch
from meridian_broker.ledgers.store import LedgerError, LedgerUnreadable
from meridian_broker.metadata.limits import after_prefix
from meridian_broker.metadata.store import Change, MetadataError, Record

log = logging.getLogger(__name__)

PAGE: Final = 500
"""Ledgers read in one request."""
WATCH_AGAIN_SECONDS: Final = 1.0


class LedgerTable:
    """See the module's text."""

    def __init__(self, channel: EtcdChannel, region: str) -> None:
        self.where = channel.where
        self.region = region
        self._channel = channel
        self._together = Together(channel)
        self._tombstones = deleted_ledgers_of(region)
        self._logged: BaseException | None = None

    async def close(self) -> None:
        await self._together.close()
        await self._channel.close()

    # -- one ledger ----------------------------------------------------------------------------------------------

    async def create(self, ledger: int, metadata: LedgerMetadata) -> Versioned | None:
        """Create it. None: the id is or was in use. :raises LedgerError: etcd failed, perhaps after it was created."""
        key = ledger_key(ledger)
        request = rpc.TxnRequest(
            compare=[_is_at(key, 0), _is_at(self._tombstone(ledger), 0)],
            success=[_put(key, encode(metadata))],
        )
        answer = await self._transact(request, f"creating ledger {ledger}")
        return Versioned(metadata, answer.header.revision) if answer.succeeded else None

    async def read(self, ledger: int) -> Versioned | None:
        """Its metadata. None: there is none. :raises LedgerError: etcd did not answer, or it cannot be understood."""
        try:
            answer = await self._together.read(ledger_key(ledger), f"reading ledger {ledger}", REQUEST_TIMEOUT)
        except MetadataError as error:
            raise LedgerUnreadable(str(error)) from error
        if not answer.kvs:
            return None
        return Versioned(_decoded(ledger, answer.kvs[0].value), answer.kvs[0].mod_revision)

    async def is_deleted(self, ledger: int) -> bool:
        """Whether the ledger existed and was deleted."""
        try:
            doing = f"asking for ledger {ledger}"
            answer = await self._together.read(self._tombstone(ledger), doing, REQUEST_TIMEOUT)
        except MetadataError as error:
            raise LedgerUnreadable(str(error)) from error
        return bool(answer.kvs)

    async def write(self, ledger: int, metadata: LedgerMetadata, version: int) -> int | None:
        """Write it. Returns the new version; None: the ledger is no longer at ``version``.

        :raises LedgerError: etcd failed, perhaps after it was written.
        """
        key = ledger_key(ledger)
        request = rpc.TxnRequest(compare=[_is_at(key, version)], success=[_put(key, encode(metadata))])
        answer = await self._transact(request, f"writing ledger {ledger}")
        return int(answer.header.revision) if answer.succeeded else None

    async def delete(self, ledger: int, version: int, now_ms: int) -> bool:
        """Delete it for good. False: it is no longer at ``version``. :raises LedgerError: as ``write``."""
        key = ledger_key(ledger)
        gone = rpc.RequestOp(request_delete_range=rpc.DeleteRangeRequest(key=key))
        request = rpc.TxnRequest(
            compare=[_is_at(key, version)], success=[gone, _put(self._tombstone(ledger), b"%d" % now_ms)]
        )
        return bool((await self._transact(request, f"deleting ledger {ledger}")).succeeded)

    # -- all of them ---------------------------------------------------------------------------------------------

    async def ledgers(self) -> AsyncIterator[tuple[int, LedgerMetadata]]:
        """Every ledger that the region created. One whose metadata cannot be understood is logged and left out.

        :raises LedgerError: etcd did not answer.
        """
        at = FIRST_LEDGER_KEY
        while True:
            request = rpc.RangeRequest(key=at, range_end=AFTER_LEDGER_KEYS, limit=PAGE)
            try:
                answer = await self._channel.read(request, "listing ledgers", REQUEST_TIMEOUT)
            except MetadataError as error:
                raise LedgerUnreadable(str(error)) from error
            for kv in answer.kvs:
                ledger = ledger_of(kv.key)
                if ledger is None:
                    continue
                try:
                    metadata = _decoded(ledger, kv.value)
                except LedgerError as error:
                    log.warning("leaving a ledger alone: %s", error)
                    continue
                if metadata.fence is not None and metadata.region == self.region:
                    yield ledger, metadata
            if not answer.more:
                return
            at = answer.kvs[-1].key + b"\x00"

    async def count(self) -> int:
        """How many ledgers there are, from all clients. :raises LedgerError: etcd did not answer."""
        request = rpc.RangeRequest(key=FIRST_LEDGER_KEY, range_end=AFTER_LEDGER_KEYS, count_only=True)
        try:
            answer = await self._channel.read(request, "counting ledgers", REQUEST_TIMEOUT)
        except MetadataError as error:
            raise LedgerUnreadable(str(error)) from error
        return int(answer.count)

    async def forget_deleted(self, before_ms: int) -> int:
        """Remove tombstones older than ``before_ms``, at most ``PAGE``. Returns how many.

        The ids of new ledgers follow the clock, so ids as low as these never come again.

        :raises LedgerError: etcd failed, perhaps after they were removed.
        """
        first = self._tombstones.encode()
        request = rpc.RangeRequest(key=first, range_end=after_prefix(self._tombstones).encode(), limit=PAGE)
        try:
            answer = await self._channel.read(request, "listing deleted ledgers", REQUEST_TIMEOUT)
        except MetadataError as error:
            raise LedgerUnreadable(str(error)) from error
        old = list(takewhile(lambda kv: int(kv.value or b"0") < before_ms, answer.kvs))
        if old:
            gone = rpc.DeleteRangeRequest(key=first, range_end=old[-1].key + b"\x00")
            request = rpc.TxnRequest(success=[rpc.RequestOp(request_delete_range=gone)])
            await self._transact(request, "forgetting deleted ledgers")
        return len(old)

    # -- bookies -------------------------------------------------------------------------------------------------

    async def follow(self, bookies: Bookies, ready: asyncio.Event) -> None:
        """Keep ``bookies`` informed of registrations, forever. ``ready`` is set once it knows all of them."""
        while True:
            try:
                async for changes in EtcdWatch(self._channel, AVAILABLE, len(AVAILABLE)).changes():
                    if not changes:
                        await self._tell_all(bookies)
                        ready.set()
                    for change in changes:
                        _tell(bookies, change)
            except MetadataError as error:
                log.warning("watching bookie registrations failed, so changes go unnoticed; retrying: %s", error)
                await asyncio.sleep(WATCH_AGAIN_SECONDS)

    async def _tell_all(self, bookies: Bookies) -> None:
        request = rpc.RangeRequest(key=AVAILABLE.encode(), range_end=after_prefix(AVAILABLE).encode())
        answer = await self._channel.read(request, "listing bookies", REQUEST_TIMEOUT)
        found = {kv.key.decode()[len(AVAILABLE) :]: kv for kv in answer.kvs}
        for path, kv in found.items():
            _tell(bookies, Change(path, Record(kv.value, kv.mod_revision)))
        for bookie in bookies.addresses.keys() - found.keys():
            bookies.unregistered(bookie)

    def log_failure(self, error: LedgerError) -> None:
        """Log it, once for all ledgers whose requests were sent together."""
        if error.__cause__ is None or error.__cause__ is not self._logged:
            self._logged = error.__cause__
            log.warning("%s", error)

    # -- inside --------------------------------------------------------------------------------------------------

    def _tombstone(self, ledger: int) -> bytes:
        return f"{self._tombstones}{ledger:019d}".encode()

    async def _transact(self, request: Any, doing: str) -> Any:
        try:
            return await self._together.write(request, doing, REQUEST_TIMEOUT)
        except MetadataError as error:
            raise LedgerError(str(error)) from error


class LedgerMetadataPort:
    """One ledger's metadata, as the core asks for it (``ports.MetadataPort``)."""

    def __init__(self, table: LedgerTable, ledger: int, spawn: Callable[[Any, str], None]) -> None:
        """:param spawn: runs a coroutine as a named task that has an owner."""
        self._table = table
        self._ledger = ledger
        self._spawn = spawn

    def read(self, told: Callable[[Versioned | Unread], None]) -> None:
        self._spawn(self._read(told), f"read the metadata of ledger {self._ledger}")

    def write(self, metadata: LedgerMetadata, version: int, told: Callable[[int | Unwritten], None]) -> None:
        self._spawn(self._write(metadata, version, told), f"write the metadata of ledger {self._ledger}")

    async def _read(self, told: Callable[[Versioned | Unread], None]) -> None:
        try:
            found: Versioned | Unread = await self._table.read(self._ledger) or Unread.ABSENT
        except LedgerError as error:
            self._table.log_failure(error)
            found = Unread.UNKNOWN
        told(found)

    async def _write(self, metadata: LedgerMetadata, version: int, told: Callable[[int | Unwritten], None]) -> None:
        try:
            written = await self._table.write(self._ledger, metadata, version)
            outcome: int | Unwritten = Unwritten.CONFLICT if written is None else written
        except LedgerError as error:
            self._table.log_failure(error)
            outcome = Unwritten.UNKNOWN
        told(outcome)


def _is_at(key: bytes, version: int) -> Any:
    """The key was last written with this revision; 0: it does not exist."""
    return rpc.Compare(target=rpc.Compare.MOD, result=rpc.Compare.EQUAL, key=key, mod_revision=version)


def _put(key: bytes, value: bytes) -> Any:
    return rpc.RequestOp(request_put=rpc.PutRequest(key=key, value=value))


def _decoded(ledger: int, value: bytes) -> LedgerMetadata:
    try:
        return decode(value)
    except BadMetadata as error:
        raise LedgerUnreadable(f"ledger {ledger} cannot be used: {error}") from error


def _tell(bookies: Bookies, change: Change) -> None:
    """A registration was added, changed or removed. Its path is the bookie's id, in a folder if it is read-only."""
    folder, _, bookie = change.path.rpartition("/")
    if not bookie or bookie == READ_ONLY or folder not in ("", READ_ONLY):
        return
    if change.record is None:
        if not folder:
            bookies.unregistered(bookie)
        return
    try:
        address = bookie_address(change.record.value, bookie)
    except BadMetadata as error:
        log.warning("ignoring a bookie with an invalid registration: %s", error)
        return
    bookies.registered(bookie, address, is_writable=not folder)
