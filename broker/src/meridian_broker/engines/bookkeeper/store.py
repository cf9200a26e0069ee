# SPDX-License-Identifier: Apache-2.0
"""The BookKeeper `LedgerStore`: any broker of the region can open any ledger, and keeps nothing on disk itself.

A ledger has one writer, in the process that created it. Anybody else who wants to end it recovers it; a recovery in the
writer's own process first lets what is under way end, so that nobody is told an error about an entry that was stored.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from meridian_broker.engines.bookkeeper.bookies import READ_SECONDS, Bookies, Connect, connect_tcp
from meridian_broker.engines.bookkeeper.entries import EntryDamaged, parse_entry
from meridian_broker.engines.bookkeeper.lac import NoAnswer, exchange, last_confirmed, read_request, write_request
from meridian_broker.engines.bookkeeper.ledger_metadata import (
    FENCE,
    LABEL,
    LEDGER_ID_MAX,
    LedgerMetadata,
    LedgerState,
    Segment,
)
from meridian_broker.engines.bookkeeper.ledger_table import LedgerMetadataPort, LedgerTable
from meridian_broker.engines.bookkeeper.packets import Answer as Said
from meridian_broker.engines.bookkeeper.packets import Code, Flags, master_key
from meridian_broker.engines.bookkeeper.ports import AddLimits, Packet, Versioned
from meridian_broker.engines.bookkeeper.reading import Entries, Reading
from meridian_broker.engines.bookkeeper.recovering import Recovering
from meridian_broker.engines.bookkeeper.writing import Writing
from meridian_broker.engines.etcd.address import ANONYMOUS, Login, parse_endpoints
from meridian_broker.engines.etcd.client import EtcdChannel
from meridian_broker.ledgers.store import (
    LABEL_BYTES_MAX,
    AppendDone,
    LedgerDeleted,
    LedgerError,
    LedgerFenced,
    LedgerInfo,
    LedgerNotFound,
    LedgerUnreadable,
    LedgerWriteFailed,
)
from meridian_broker.metadata.store import MetadataError
from meridian_broker.wire.proto.bookkeeper_pb2 import Answer, Request

log = logging.getLogger(__name__)

START_SECONDS: Final = 10.0
"""How long etcd may take to say which bookies there are."""
CLOSE_SECONDS: Final = 5.0
"""How long a planned stop waits for entries that are under way."""
FRAME_OVERHEAD: Final = 64
"""Of a bookie's largest frame, what is not an entry's data."""
DELETE_ATTEMPTS: Final = 3
GONE_MAX: Final = 10_000
"""Deleted ledgers whose readers are told so, although bookies may still have the entries."""


@dataclass(frozen=True, slots=True)
class BookKeeperSettings:
    ensemble: int = 3
    """Bookies that store each entry; fewer if there are not so many, but never fewer than ``ack_quorum``."""
    ack_quorum: int = 2
    """So many have synced an entry when it is confirmed."""
    password: bytes = b""
    """Written into each new ledger's metadata. No secret: it keeps clients from mistaking one ledger for another."""
    frame_bytes_max: int = 5 * 1024 * 1024 + 10 * 1024
    """The bookies' ``nettyMaxFrameSizeBytes``. A bookie closes the connection of whoever sends more."""
    limits: AddLimits = field(default_factory=AddLimits)


class _Ports:
    """One ledger's way to the bookies (``ports.LinkPort`` and ``ports.AskPort``)."""

    def __init__(self, ledger: int, key: bytes, bookies: Bookies) -> None:
        self._key = key
        self._bookies = bookies
        self._ledger = ledger
        self._connections = bookies.connections
        self.choose = bookies.choose
        self.avoid = bookies.avoid
        self._loop = asyncio.get_running_loop()

    def send(self, bookie: str, entry: int, packet: Packet) -> bool:
        connection = self._connections.get(bookie)
        if connection is not None:
            return connection.add(self._ledger, packet)
        return self._bookies.add(self._ledger, bookie, entry, packet)

    def wake(self) -> None:
        self._bookies.wake(self._ledger)

    def defer(self, callback: Callable[[], None]) -> None:
        self._loop.call_soon(callback)

    def read(self, bookie: str, entry: int, flags: Flags, told: Callable[[Said], None]) -> None:
        self._bookies.read(self._ledger, bookie, entry, flags, self._key, told)

    def read_batch(self, bookie: str, first: int, count: int, max_bytes: int, told: Callable[[Said], None]) -> None:
        self._bookies.read_batch(self._ledger, bookie, first, count, max_bytes, told)

    def later(self, milliseconds: int, callback: Callable[[], None]) -> None:
        self._loop.call_later(milliseconds / 1000, callback)


class BookKeeperWriter:
    """See `meridian_broker.ledgers.store.Writer`."""

    __slots__ = ("_store", "append", "writing")

    def __init__(self, store: BookKeeperLedgerStore, writing: Writing) -> None:
        self._store = store
        self.writing = writing
        self.append: Callable[[bytes, AppendDone], int] = writing.append

    @property
    def ledger_id(self) -> int:
        return self.writing.ledger

    @property
    def next_entry(self) -> int:
        return self.writing.next_entry

    @property
    def size(self) -> int:
        return self.writing.size

    async def seal(self) -> LedgerInfo:
        return await self._store.seal(self.writing)


class BookKeeperReader:
    """See `meridian_broker.ledgers.store.Reader`. Of a ledger that another broker writes it knows what was confirmed
    when it was opened."""

    def __init__(self, store: BookKeeperLedgerStore, ledger: int, metadata: LedgerMetadata, confirmed: int) -> None:
        self._store = store
        self._ledger = ledger
        self._metadata = metadata
        self._confirmed = confirmed
        self._writing = store.writing(ledger)
        self._prefer = ""

    @property
    def ledger_id(self) -> int:
        return self._ledger

    def last_confirmed(self) -> int:
        return self._confirmed if self._writing is None else self._writing.adding.confirmed

    async def read(self, first: int, last: int, max_bytes: int) -> list[bytes]:
        if self._store.is_gone(self._ledger):
            raise LedgerDeleted(f"ledger {self._ledger} was deleted")
        if first < 0:
            raise ValueError(f"entry ids start at 0, not {first}")
        if self._writing is not None and not self._writing.is_closed:
            self._metadata = self._writing.metadata
        last = min(last, self.last_confirmed())
        if first > last:
            return []
        try:
            return await self._read(first, last, max_bytes)
        except LedgerError:
            if self._store.is_gone(self._ledger) or not await self._has_moved():
                raise
        return await self._read(first, last, max_bytes)

    async def _read(self, first: int, last: int, max_bytes: int) -> list[bytes]:
        found, self._prefer = await self._store.read(self._ledger, self._metadata, first, last, max_bytes, self._prefer)
        return found

    async def _has_moved(self) -> bool:
        """Whether other bookies store it now than this reader knew. :raises LedgerNotFound: it was deleted."""
        stored = await self._store.find(self._ledger)
        has_moved = stored.metadata.segments != self._metadata.segments
        self._metadata = stored.metadata
        return has_moved


class BookKeeperLedgerStore:
    """See `meridian_broker.ledgers.store.LedgerStore`. Made by `start`."""

    def __init__(self, table: LedgerTable, settings: BookKeeperSettings, connect: Connect) -> None:
        self._table = table
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._bookies = Bookies(connect)
        self._writings: dict[int, Writing] = {}
        """Of ledgers that this process created and nobody closed."""
        self._recoveries: dict[int, asyncio.Task[LedgerMetadata]] = {}
        self._making: set[int] = set()
        self._gone: dict[int, None] = {}
        """Ledgers that this process deleted."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._follower: asyncio.Task[None] | None = None
        self._is_closed = False

    @classmethod
    async def start(
        cls,
        urls: str,
        region: str,
        settings: BookKeeperSettings | None = None,
        *,
        login: Login = ANONYMOUS,
        connect: Connect = connect_tcp,
    ) -> BookKeeperLedgerStore:
        """
        :param urls: the region's etcd, as `EtcdMetadataStore.connect` takes them.
        :param connect: how bookies are connected to.
        :raises LedgerError: etcd does not answer.
        """
        try:
            table = LedgerTable(EtcdChannel(parse_endpoints(urls), login), region)
        except MetadataError as error:
            raise LedgerError(str(error)) from error
        store = cls(table, settings or BookKeeperSettings(), connect)
        try:
            await store._begin()
        except BaseException:
            await store.close()
            raise
        return store

    async def _begin(self) -> None:
        ready = asyncio.Event()
        self._bookies.start()
        self._follower = self._loop.create_task(self._table.follow(self._bookies, ready), name="follow the bookies")
        try:
            async with asyncio.timeout(START_SECONDS):
                await ready.wait()
        except TimeoutError:
            raise LedgerError(
                f"etcd at {self._table.where} did not say in {START_SECONDS:.0f} s which bookies there are"
            ) from None

    async def close(self) -> None:
        """Let what is under way end, leave on bookies how far open ledgers came, and close all connections."""
        if self._is_closed:
            return
        self._is_closed = True
        writings = list(self._writings.values())
        for writing in writings:
            writing.refuse(LedgerError(f"ledger {writing.ledger} was closed with its broker"))
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                for writing in writings:
                    await self._idle(writing)
        except TimeoutError:
            log.warning("entries of %d ledgers were still under way when their broker stopped", len(writings))
        await self._leave_confirmed(writings)
        for writing in writings:
            writing.adding.fail(LedgerError(f"ledger {writing.ledger} was closed with its broker"))
            self._forget(writing)
        owned = [*self._tasks, *self._recoveries.values(), *([self._follower] if self._follower else [])]
        for task in owned:
            task.cancel()
        await asyncio.gather(*owned, return_exceptions=True)
        await self._bookies.close()
        await self._table.close()

    @property
    def pending_bytes(self) -> int:
        """Bytes of entries that are not confirmed yet. The caller of ``append`` bounds it by reading less."""
        return sum(writing.adding.pending_bytes for writing in self._writings.values())

    # -- the port ------------------------------------------------------------------------------------------------

    async def create(self, ledger_id: int, fence: int, label: bytes = b"") -> BookKeeperWriter:
        self._check_open()
        if not 0 <= ledger_id <= LEDGER_ID_MAX or ledger_id in self._making:
            raise LedgerError(f"ledger id {ledger_id} was used before: take a new one from the metadata store")
        if len(label) > LABEL_BYTES_MAX:
            raise LedgerError(f"a label of {len(label)} bytes: the limit is {LABEL_BYTES_MAX}")
        settings = self._settings
        ensemble = self._bookies.choose_ensemble(settings.ensemble)
        if len(ensemble) < settings.ack_quorum:
            raise LedgerWriteFailed(
                f"ledger {ledger_id} cannot be created: {len(ensemble)} bookies are registered in etcd at "
                f"{self._table.where}, and it takes {settings.ack_quorum} at least: are the region's bookies running?"
            )
        metadata = LedgerMetadata(
            len(ensemble),
            settings.ack_quorum,
            (Segment(0, ensemble),),
            password=settings.password,
            created_ms=int(time.time() * 1000),
            custom=(("application", b"meridian"), (FENCE, b"%d" % fence), (LABEL, label)),
        )
        self._making.add(ledger_id)
        try:
            stored = await self._table.create(ledger_id, metadata)
        finally:
            self._making.discard(ledger_id)
        if stored is None:
            raise LedgerError(f"ledger id {ledger_id} was used before: take a new one from the metadata store")
        return BookKeeperWriter(self, self._begin_writing(ledger_id, stored))

    async def open(self, ledger_id: int) -> BookKeeperReader:
        self._check_open()
        stored = await self.find(ledger_id)
        if not stored.metadata.is_readable:
            raise LedgerUnreadable(f"ledger {ledger_id} has other checksums than CRC32C: this client does not read it")
        if self.writing(ledger_id) is not None:
            return BookKeeperReader(self, ledger_id, stored.metadata, -1)
        confirmed = await self._confirmed(ledger_id, stored.metadata)
        return BookKeeperReader(self, ledger_id, stored.metadata, confirmed)

    async def recover(self, ledger_id: int, fence: int) -> LedgerInfo:
        self._check_open()
        writing = self._writings.get(ledger_id)
        if writing is not None:
            _check_fence(ledger_id, writing.metadata, fence)
            writing.refuse(_taken_over(ledger_id, fence))
        stored = await self.find(ledger_id)
        _check_fence(ledger_id, stored.metadata, fence)
        if stored.metadata.state is LedgerState.CLOSED:
            return _info(ledger_id, stored.metadata)
        return _info(ledger_id, await self._recover(ledger_id, fence, stored.metadata))

    async def delete(self, ledger_id: int) -> None:
        self._check_open()
        for _ in range(DELETE_ATTEMPTS):
            stored = await self._table.read(ledger_id)
            if stored is None:
                return
            if stored.metadata.fence is None:
                raise LedgerError(f"ledger {ledger_id} was not made by Meridian: it is not deleted")
            writing = self._writings.get(ledger_id)
            if writing is not None:
                writing.refuse(LedgerNotFound(f"ledger {ledger_id} was deleted"))
            if stored.metadata.state is not LedgerState.CLOSED:
                # A writer elsewhere could go on without metadata: bookies have to refuse it first.
                await self._recover(ledger_id, stored.metadata.fence, stored.metadata)
                continue
            if await self._table.delete(ledger_id, stored.version):
                self._gone[ledger_id] = None
                if len(self._gone) > GONE_MAX:
                    del self._gone[next(iter(self._gone))]
                return
        raise LedgerError(f"ledger {ledger_id} could not be deleted: somebody else keeps changing it")

    async def list(self) -> list[LedgerInfo]:
        self._check_open()
        found: list[LedgerInfo] = []
        unknown: dict[int, LedgerMetadata] = {}
        async for ledger, metadata in self._table.ledgers():
            writing = self._writings.get(ledger)
            if metadata.state is LedgerState.CLOSED:
                found.append(_info(ledger, metadata))
            elif writing is not None:
                adding = writing.adding
                size = writing.size - adding.pending_bytes
                found.append(LedgerInfo(ledger, adding.confirmed + 1, size, False, metadata.label))
            else:
                unknown[ledger] = metadata
        for ledger, confirmed in (await self._all_confirmed(unknown)).items():
            size = await self._length(ledger, unknown[ledger], confirmed)
            found.append(LedgerInfo(ledger, confirmed + 1, size, False, unknown[ledger].label))
        return found

    # -- for writers and readers ---------------------------------------------------------------------------------

    def writing(self, ledger: int) -> Writing | None:
        """The writer of a ledger that this process writes."""
        return self._writings.get(ledger)

    def is_gone(self, ledger: int) -> bool:
        """This process deleted it."""
        return ledger in self._gone

    async def find(self, ledger: int) -> Versioned:
        """Its metadata. :raises LedgerNotFound: there is no such ledger; LedgerDeleted: not any more."""
        stored = await self._table.read(ledger)
        if stored is not None:
            return stored
        if await self._table.is_deleted(ledger):
            raise LedgerDeleted(f"ledger {ledger} was deleted")
        raise LedgerNotFound(f"there is no ledger {ledger} in etcd at {self._table.where}: it was never created")

    async def seal(self, writing: Writing) -> LedgerInfo:
        """As `Writer.seal`."""
        self._check_open()
        outcome = await self._answer(writing.seal)
        if isinstance(outcome, LedgerError):
            raise outcome
        self._forget(writing)
        return _info(writing.ledger, outcome)

    async def read(
        self, ledger: int, metadata: LedgerMetadata, first: int, last: int, max_bytes: int, prefer: str
    ) -> tuple[Entries, str]:
        """Entries, and the bookie that had them. :raises LedgerError: as `Reader.read`."""
        self._check_open()
        heard: asyncio.Future[tuple[Entries | LedgerError, str]] = self._loop.create_future()

        def told(entries: Entries | LedgerError, bookie: str) -> None:
            if not heard.done():
                heard.set_result((entries, bookie))

        ports = _Ports(ledger, b"", self._bookies)
        Reading(ledger, metadata, ports, first, last, max_bytes, told, prefer=prefer).start()
        entries, bookie = await heard
        if isinstance(entries, LedgerError):
            raise entries
        return entries, bookie

    # -- writing and recovering ----------------------------------------------------------------------------------

    def _begin_writing(self, ledger: int, stored: Versioned) -> Writing:
        settings = self._settings
        ports = _Ports(ledger, master_key(stored.metadata.password), self._bookies)
        writing = Writing(
            *(ledger, stored, ports, LedgerMetadataPort(self._table, ledger, self._spawn), settings.limits),
            data_bytes_max=settings.frame_bytes_max - FRAME_OVERHEAD,
            now_ms=self._bookies.now_ms(),
        )
        self._writings[ledger] = writing
        self._bookies.attach(ledger, writing.adding)
        return writing

    def _forget(self, writing: Writing) -> None:
        self._bookies.detach(writing.ledger, writing.adding)
        if self._writings.get(writing.ledger) is writing:
            del self._writings[writing.ledger]

    async def _recover(self, ledger: int, fence: int, metadata: LedgerMetadata) -> LedgerMetadata:
        """One recovery of a ledger at a time; who asks with the same epoch meanwhile gets its outcome."""
        while (before := self._recoveries.get(ledger)) is not None:
            await asyncio.wait([before])
        task = self._loop.create_task(self._run_recovery(ledger, fence, metadata), name=f"recover ledger {ledger}")
        self._recoveries[ledger] = task
        try:
            return await task
        finally:
            task.cancel()
            if self._recoveries.get(ledger) is task:
                del self._recoveries[ledger]

    async def _run_recovery(self, ledger: int, fence: int, metadata: LedgerMetadata) -> LedgerMetadata:
        writing = self._writings.get(ledger)
        if writing is not None:
            writing.refuse(_taken_over(ledger, fence))
            await self._idle(writing)
            self._forget(writing)
        heard: asyncio.Future[LedgerMetadata | LedgerError] = self._loop.create_future()

        def told(outcome: LedgerMetadata | LedgerError) -> None:
            if not heard.done():
                heard.set_result(outcome)

        ports = _Ports(ledger, master_key(metadata.password), self._bookies)
        port = LedgerMetadataPort(self._table, ledger, self._spawn)
        limits, now_ms = self._settings.limits, self._bookies.now_ms()
        recovering = Recovering(ledger, fence, ports, ports, port, limits, told, now_ms=now_ms)
        self._bookies.attach(ledger, recovering)
        try:
            recovering.start()
            outcome = await heard
        finally:
            recovering.stop(LedgerError(f"the recovery of ledger {ledger} was given up"))
            self._bookies.detach(ledger, recovering)
        if isinstance(outcome, LedgerError):
            raise outcome
        return outcome

    async def _idle(self, writing: Writing) -> None:
        """Wait until every entry of a writer is confirmed or failed. The core bounds that when bookies are away."""
        await self._answer(lambda told: writing.adding.when_idle(partial(told, None)))

    # -- ledgers that others write, or that are between two owners -------------------------------------------------

    async def _confirmed(self, ledger: int, metadata: LedgerMetadata) -> int:
        if metadata.state is LedgerState.CLOSED:
            return metadata.last_entry
        return (await self._all_confirmed({ledger: metadata}))[ledger]

    async def _all_confirmed(self, ledgers: dict[int, LedgerMetadata]) -> dict[int, int]:
        """How far each surely came, as far as the bookies that answer know; -1 when none of them does."""
        found = {ledger: metadata.segments[-1].first - 1 for ledger, metadata in ledgers.items()}
        asked: defaultdict[str, list[int]] = defaultdict(list)
        for ledger, metadata in ledgers.items():
            for bookie in metadata.segments[-1].ensemble:
                asked[bookie].append(ledger)

        async def ask(bookie: str) -> None:
            answers = await self._exchange(bookie, [read_request(ledger) for ledger in asked[bookie]])
            for ledger, answer in zip(asked[bookie], answers, strict=False):
                found[ledger] = max(found[ledger], last_confirmed(ledger, answer))

        await asyncio.gather(*map(ask, asked))
        return found

    async def _leave_confirmed(self, writings: Collection[Writing]) -> None:
        left: defaultdict[str, list[Request]] = defaultdict(list)
        for writing in writings:
            if writing.adding.confirmed >= 0 and not writing.is_closed:
                key = master_key(writing.metadata.password)
                request = write_request(writing.ledger, key, writing.adding.confirmed)
                for bookie in writing.adding.ensemble:
                    left[bookie].append(request)
        await asyncio.gather(*(self._exchange(bookie, requests) for bookie, requests in left.items()))

    async def _exchange(self, bookie: str, requests: Sequence[Request]) -> Sequence[Answer]:
        """The answers; none if the bookie does not answer, since others know as much."""
        address = self._bookies.address(bookie)
        if address is None:
            return []
        try:
            return await exchange(*address, requests, READ_SECONDS)
        except NoAnswer as error:
            log.info("%s", error)
            return []

    async def _length(self, ledger: int, metadata: LedgerMetadata, entry: int) -> int:
        """Bytes of all entries up to this one, which is confirmed."""
        if entry < 0:
            return 0
        for bookie in metadata.bookies_of(entry):
            answer = await self._answer(partial(self._bookies.read, ledger, bookie, entry, Flags.NONE, b""))
            if answer.code == Code.OK:
                try:
                    return parse_entry(ledger, answer.bodies[0], entry).length
                except EntryDamaged:
                    continue
        raise LedgerUnreadable(f"entry {entry} of ledger {ledger} cannot be read now: are the bookies running?")

    # -- inside --------------------------------------------------------------------------------------------------

    async def _answer(self, ask: Callable[[Callable[[Any], None]], object]) -> Any:
        """Call ``ask`` with a callback, and wait for the callback's argument."""
        heard: asyncio.Future[Any] = self._loop.create_future()

        def told(answer: Any) -> None:
            if not heard.done():
                heard.set_result(answer)

        ask(told)
        return await heard

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = self._loop.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s failed", task.get_name(), exc_info=error)

    def _check_open(self) -> None:
        if self._is_closed:
            raise LedgerError(f"the ledgers on the bookies of etcd at {self._table.where} were closed")


def _check_fence(ledger: int, metadata: LedgerMetadata, fence: int) -> None:
    """:raises LedgerFenced: a newer owner was there."""
    seen = metadata.fence
    if seen is not None and fence < seen:
        raise LedgerFenced(f"ledger {ledger} belongs to owner epoch {seen}, and {fence} is older: close the topic")


def _taken_over(ledger: int, fence: int) -> LedgerFenced:
    return LedgerFenced(f"ledger {ledger} was taken over by owner epoch {fence}: this writer must close its topic")


def _info(ledger: int, metadata: LedgerMetadata) -> LedgerInfo:
    is_closed = metadata.state is LedgerState.CLOSED
    return LedgerInfo(ledger, metadata.last_entry + 1, metadata.length, is_closed, metadata.label)
