# SPDX-License-Identifier: Apache-2.0
"""The BookKeeper `LedgerStore`: any broker of the region can open any ledger, and keeps nothing on its own disk.

A ledger has one writer, in the process that created it. Any other broker that wants to close it recovers it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final

from meridian_broker.engines.bookkeeper.bookies import Bookies
from meridian_broker.engines.bookkeeper.certificates import BookieTls
from meridian_broker.engines.bookkeeper.confirmed import OpenLedgers
from meridian_broker.engines.bookkeeper.context import BookKeeperSettings, StoreContext, info_of
from meridian_broker.engines.bookkeeper.description import described
from meridian_broker.engines.bookkeeper.handles import BookKeeperReader, BookKeeperWriter
from meridian_broker.engines.bookkeeper.ledger_metadata import (
    FENCE,
    LABEL,
    LEDGER_ID_MAX,
    REGION,
    LedgerMetadata,
    LedgerState,
    Segment,
)
from meridian_broker.engines.bookkeeper.ledger_table import LedgerTable
from meridian_broker.engines.bookkeeper.recoveries import Recoveries, taken_over
from meridian_broker.engines.bookkeeper.securing import Connect, connect_tcp, encrypted
from meridian_broker.engines.bookkeeper.tailing import Tailing
from meridian_broker.engines.bookkeeper.upkeep import Upkeep
from meridian_broker.engines.etcd.address import ANONYMOUS, Login, parse_endpoints
from meridian_broker.engines.etcd.client import EtcdChannel
from meridian_broker.ledgers.periodic import PeriodicWork
from meridian_broker.ledgers.storage import OldLedger, StorageFigures
from meridian_broker.ledgers.store import (
    LABEL_BYTES_MAX,
    LedgerError,
    LedgerFenced,
    LedgerInfo,
    LedgerNotFound,
    LedgerUnreadable,
    LedgerWriteFailed,
)
from meridian_broker.metadata.store import MetadataError

log = logging.getLogger(__name__)

START_SECONDS: Final = 10.0
"""How long etcd may take to list the bookies."""
CLOSE_SECONDS: Final = 5.0
"""How long a planned stop waits for entries in flight."""
DELETE_ATTEMPTS: Final = 3


class BookKeeperLedgerStore:
    """See `meridian_broker.ledgers.store.LedgerStore`. Made by `start`."""

    def __init__(self, table: LedgerTable, settings: BookKeeperSettings, connect: Connect, outside: str) -> None:
        self._table = table
        self._settings = settings
        self._outside = outside
        self._bookies = Bookies(connect, zones=settings.zones)
        self._context = StoreContext(table, self._bookies, settings)
        self._recoveries = Recoveries(self._context)
        self._open = OpenLedgers(self._context)
        self._tailing = Tailing(self._context)
        self._upkeep = Upkeep(self._context)
        self._making: set[int] = set()
        self._follower: asyncio.Task[None] | None = None

    @classmethod
    async def start(
        cls,
        urls: str,
        region: str,
        settings: BookKeeperSettings | None = None,
        *,
        login: Login = ANONYMOUS,
        tls: BookieTls | None = None,
        connect: Connect | None = None,
    ) -> BookKeeperLedgerStore:
        """
        :param urls: the region's etcd, as `EtcdMetadataStore.connect` takes them.
        :param tls: certificates for connections to bookies. None: they are not encrypted.
        :param connect: connects to bookies by other means than TCP.
        :raises LedgerError: etcd does not answer.
        """
        try:
            table = LedgerTable(EtcdChannel(parse_endpoints(urls), login), region)
        except MetadataError as error:
            raise LedgerError(str(error)) from error
        if connect is None:
            connect = connect_tcp if tls is None else encrypted(tls)
        store = cls(table, settings or BookKeeperSettings(), connect, described(urls, region, login, tls))
        try:
            await store._begin()
        except BaseException:
            await store.close()
            raise
        return store

    async def _begin(self) -> None:
        ready = asyncio.Event()
        self._bookies.start()
        following = self._table.follow(self._bookies, ready)
        self._follower = asyncio.get_running_loop().create_task(following, name="follow the bookies")
        try:
            async with asyncio.timeout(START_SECONDS):
                await ready.wait()
        except TimeoutError:
            raise LedgerError(
                f"etcd at {self._table.where} did not list the bookies within {START_SECONDS:.0f} s"
            ) from None
        self._context.spawn(self._upkeep.work.run(at_once=True), self._upkeep.work.name)

    async def close(self) -> None:
        """Wait for entries in flight, write the LAC of open ledgers to their bookies, and close all connections."""
        if self._context.is_closed:
            return
        self._context.is_closed = True
        writings = list(self._context.writings.values())
        for writing in writings:
            writing.refuse(LedgerError(f"ledger {writing.ledger} was closed with its broker"))
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                for writing in writings:
                    await self._context.idle(writing)
        except TimeoutError:
            log.warning(
                "stopping while %d ledgers have unconfirmed entries; the next opening of their topics recovers them",
                len(writings),
            )
        await self._open.leave(writings)
        for writing in writings:
            writing.adding.fail(LedgerError(f"ledger {writing.ledger} was closed with its broker"))
            self._context.forget(writing)
        await self._recoveries.close()
        await self._context.end_tasks()
        self._tailing.close()
        if self._follower is not None:
            self._follower.cancel()
            await asyncio.gather(self._follower, return_exceptions=True)
        await self._bookies.close()
        await self._table.close()

    @property
    def pending_bytes(self) -> int:
        """Bytes of unconfirmed entries. Callers of ``append`` bound it by reading less from their clients."""
        return sum(writing.adding.pending_bytes for writing in self._context.writings.values())

    # -- for the process around it: see `meridian_broker.ledgers.storage.LedgerStorage` ---------------------------

    @property
    def is_apart(self) -> bool:
        """False: ledgers are listed in the same etcd as the metadata, so both are restored together or not at all."""
        return False

    def newest_fence(self) -> int:
        return 0

    async def older_than(self, age_ms: int, /) -> list[OldLedger]:
        self._context.check_open()
        before_ms = time.time_ns() // 1_000_000 - age_ms
        return [
            OldLedger(ledger, metadata.fence, metadata.label)
            async for ledger, metadata in self._table.ledgers()
            if metadata.fence is not None and metadata.created_ms < before_ms and metadata.label
        ]

    @property
    def damages(self) -> tuple[str, ...]:
        return ()

    @property
    def full(self) -> str | None:
        """Why nothing can be written: too few bookies take new entries."""
        return self._too_few(len(self._bookies.addresses))

    @property
    def works(self) -> tuple[PeriodicWork, ...]:
        return (self._upkeep.work,)

    def figures(self) -> StorageFigures:
        return self._context.figures()

    @property
    def outside(self) -> str:
        return self._outside

    # -- the port ------------------------------------------------------------------------------------------------

    async def create(self, ledger_id: int, fence: int, label: bytes = b"") -> BookKeeperWriter:
        self._context.check_open()
        if not 0 <= ledger_id <= LEDGER_ID_MAX or ledger_id in self._making:
            raise LedgerError(f"ledger id {ledger_id} was used before: take a new one from the metadata store")
        if len(label) > LABEL_BYTES_MAX:
            raise LedgerError(f"a label of {len(label)} bytes is too long: the limit is {LABEL_BYTES_MAX}")
        settings = self._settings
        ensemble = self._bookies.choose_ensemble(settings.ensemble)
        if (too_few := self._too_few(len(ensemble))) is not None:
            raise LedgerWriteFailed(f"ledger {ledger_id} cannot be created: {too_few}")
        metadata = LedgerMetadata(
            len(ensemble),
            settings.ack_quorum,
            (Segment(0, ensemble),),
            password=settings.password,
            created_ms=int(time.time() * 1000),
            custom=(
                ("application", b"meridian"),
                (REGION, self._table.region.encode()),
                (FENCE, b"%d" % fence),
                (LABEL, label),
            ),
        )
        self._making.add(ledger_id)
        try:
            stored = await self._table.create(ledger_id, metadata)
        finally:
            self._making.discard(ledger_id)
        if stored is None:
            raise LedgerError(f"ledger id {ledger_id} was used before: take a new one from the metadata store")
        return BookKeeperWriter(self._context, self._context.begin_writing(ledger_id, stored), self._tailing)

    async def open(self, ledger_id: int, confirmed: int | None = None) -> BookKeeperReader:
        """As `LedgerStore.open`.

        :param confirmed: the last confirmed entry of an open ledger, if known. None: bookies are asked.
        """
        self._context.check_open()
        metadata = self._context.just_recovered(ledger_id) or (await self._context.find(ledger_id)).metadata
        if not metadata.is_readable:
            raise LedgerUnreadable(f"ledger {ledger_id} does not use CRC32C checksums: this client cannot read it")
        writing = self._context.writings.get(ledger_id) if metadata.state is LedgerState.OPEN else None
        if writing is not None or metadata.state is LedgerState.CLOSED:
            confirmed = metadata.last_entry
        elif confirmed is None:
            confirmed = (await self._open.confirmed({ledger_id: metadata}))[ledger_id]
        return BookKeeperReader(self._context, ledger_id, metadata, confirmed, writing, self._tailing)

    async def recover(self, ledger_id: int, fence: int) -> LedgerInfo:
        self._context.check_open()
        writing = self._context.writings.get(ledger_id)
        if writing is not None:
            _check_fence(ledger_id, writing.metadata, fence)
            writing.refuse(taken_over(ledger_id, fence))
        stored = await self._context.find(ledger_id)
        _check_fence(ledger_id, stored.metadata, fence)
        if stored.metadata.state is LedgerState.CLOSED:
            return self._context.recovered(ledger_id, stored.metadata)
        return self._context.recovered(ledger_id, await self._recoveries.recover(ledger_id, fence, stored))

    async def delete(self, ledger_id: int) -> None:
        self._context.check_open()
        for _ in range(DELETE_ATTEMPTS):
            stored = await self._table.read(ledger_id)
            if stored is None:
                return
            if stored.metadata.fence is None:
                raise LedgerError(f"ledger {ledger_id} was not created by Meridian, so it is not deleted")
            writing = self._context.writings.get(ledger_id)
            if writing is not None:
                writing.refuse(LedgerNotFound(f"ledger {ledger_id} was deleted"))
            if stored.metadata.state is not LedgerState.CLOSED:
                # A writer elsewhere could go on without metadata: its bookies must be fenced first.
                await self._recoveries.recover(ledger_id, stored.metadata.fence, stored)
                continue
            if await self._table.delete(ledger_id, stored.version, time.time_ns() // 1_000_000):
                self._context.gone(ledger_id)
                return
        raise LedgerError(f"ledger {ledger_id} could not be deleted: another client keeps changing it")

    async def list(self) -> list[LedgerInfo]:
        self._context.check_open()
        found: list[LedgerInfo] = []
        unknown: dict[int, LedgerMetadata] = {}
        async for ledger, metadata in self._table.ledgers():
            writing = self._context.writings.get(ledger)
            if metadata.state is LedgerState.CLOSED:
                found.append(info_of(ledger, metadata))
            elif writing is not None:
                adding = writing.adding
                size = writing.size - adding.pending_bytes
                found.append(LedgerInfo(ledger, adding.confirmed + 1, size, False, metadata.label))
            else:
                unknown[ledger] = metadata
        for ledger, confirmed in (await self._open.confirmed(unknown)).items():
            size = await self._open.length(ledger, unknown[ledger], confirmed)
            found.append(LedgerInfo(ledger, confirmed + 1, size, False, unknown[ledger].label))
        return found

    def _too_few(self, bookies: int) -> str | None:
        if bookies >= self._settings.ack_quorum:
            return None
        return (
            f"{bookies} bookies are registered in etcd at {self._table.where}, and at least "
            f"{self._settings.ack_quorum} are needed: are the region's bookies running?"
        )


def _check_fence(ledger: int, metadata: LedgerMetadata, fence: int) -> None:
    """:raises LedgerFenced: a newer owner has the ledger."""
    seen = metadata.fence
    if seen is not None and fence < seen:
        raise LedgerFenced(f"ledger {ledger} belongs to owner epoch {seen}, and {fence} is older: close the topic")
