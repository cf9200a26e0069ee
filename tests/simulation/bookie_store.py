# SPDX-License-Identifier: Apache-2.0
"""A broker's store on simulated bookies: the real BookKeeper engine, from the port's methods down to its frames.

Only what uses asyncio or etcd is replaced: tasks and timers run on the world's loop, connections are those of
``simulated_bookies.py``, and the ledgers' metadata is in the region's simulated metadata store, so that it shares the
store's delays, outages and lost answers.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from random import Random
from typing import TYPE_CHECKING, Any, Final, Protocol

from meridian_broker.engines.bookkeeper.bookies import TICK_SECONDS, Bookies
from meridian_broker.engines.bookkeeper.confirmed import OpenLedgers
from meridian_broker.engines.bookkeeper.connection import BookieConnection
from meridian_broker.engines.bookkeeper.context import BookKeeperSettings, StoreContext
from meridian_broker.engines.bookkeeper.handles import BookKeeperReader, BookKeeperWriter
from meridian_broker.engines.bookkeeper.ledger_metadata import (
    AVAILABLE,
    LedgerMetadata,
    decode,
    encode,
    ledger_key,
    ledger_of,
)
from meridian_broker.engines.bookkeeper.ledger_table import WATCH_AGAIN_SECONDS, LedgerTable
from meridian_broker.engines.bookkeeper.ports import AddLimits, Versioned
from meridian_broker.engines.bookkeeper.recoveries import Recoveries
from meridian_broker.engines.bookkeeper.store import BookKeeperLedgerStore
from meridian_broker.engines.bookkeeper.tailing import Tailing
from meridian_broker.ledgers.store import AppendDone, LedgerError, LedgerUnreadable
from meridian_broker.metadata.store import ABSENT, Change, Check, Delete, MetadataError, Put, Record
from simulation.engine_loop import EngineLoop
from simulation.loop import Event, Lock, Loop, Owner

if TYPE_CHECKING:
    from simulation.disks import Around
    from simulation.metadata import SimMetadata

SETTINGS: Final = BookKeeperSettings(ensemble=3, ack_quorum=2, limits=AddLimits(entries=16, bytes=4096))
"""Small limits, so that a lagging bookie soon delays entries."""
_TOMBSTONES: Final = "deleted-ledgers/"


class Shelf(Protocol):
    """The bookies of a region, as in ``bookie_volume.BookieVolume``."""

    @property
    def region(self) -> str: ...

    def connect(self, name: str, broker: str, owner: Owner, connection: BookieConnection, /) -> None: ...

    def last_confirmed(self, ledger: int, metadata: LedgerMetadata, /) -> int: ...

    def holds(self, ledger: int, entry: int, /) -> bool: ...

    def confirmed(self, ledger: int, entry: int, data: bytes, /) -> None: ...

    def has_read(self, ledger: int, first: int, found: list[bytes], /) -> None: ...

    def look_for(self, ledger: int, path: str, /) -> None: ...


class BrokerLoop(EngineLoop):
    """The loop of one broker: its callbacks are dropped once it is dead, and wait while it is suspended."""

    def __init__(self, loop: Loop, owner: Owner) -> None:
        super().__init__(loop)
        self._owner = owner

    def call_soon(self, callback: Callable[..., None], *arguments: Any) -> None:
        self._loop.soon(self._owner, lambda: callback(*arguments))

    def call_later(self, seconds: float, callback: Callable[..., None], *arguments: Any) -> Any:
        return self._loop.after(round(seconds * 1_000_000), self._owner, lambda: callback(*arguments))


class SimLedgerTable(LedgerTable):
    """Ledgers and registered bookies in the region's simulated metadata store."""

    def __init__(self, metadata: SimMetadata, region: str, loop: Loop) -> None:
        self.where = region
        self.region = region
        self.ready = Event()
        """Set once the bookies are known."""
        self._store = metadata
        self._loop = loop

    async def create(self, ledger: int, metadata: LedgerMetadata) -> Versioned | None:
        path, gone = _path(ledger), _tombstone(ledger)
        version = await self._revise([Check(path, ABSENT), Check(gone, ABSENT)], [Put(path, encode(metadata))])
        return None if version is None else Versioned(metadata, version)

    async def read(self, ledger: int) -> Versioned | None:
        record = await self._get(_path(ledger))
        return None if record is None else Versioned(decode(record.value), record.version)

    async def is_deleted(self, ledger: int) -> bool:
        return await self._get(_tombstone(ledger)) is not None

    async def write(self, ledger: int, metadata: LedgerMetadata, version: int) -> int | None:
        path = _path(ledger)
        return await self._revise([Check(path, version)], [Put(path, encode(metadata))])

    async def delete(self, ledger: int, version: int, now_ms: int) -> bool:
        path = _path(ledger)
        done = await self._revise([Check(path, version)], [Delete(path), Put(_tombstone(ledger), b"%d" % now_ms)])
        return done is not None

    async def ledgers(self) -> AsyncIterator[tuple[int, LedgerMetadata]]:
        for path, record in await self._store.scan("/ledgers/"):
            if (ledger := ledger_of(path.encode())) is not None:
                yield ledger, decode(record.value)

    def log_failure(self, error: LedgerError) -> None:
        """Nothing reads it."""

    async def follow_bookies(self, bookies: Bookies) -> None:
        """As ``follow``."""
        while True:
            try:
                async for changes in self._store.watch(AVAILABLE):
                    if not changes:
                        await self._tell_all(bookies)
                        self.ready.set()
                    for change in changes:
                        _tell(bookies, change)
            except MetadataError:
                await self._loop.sleep(round(WATCH_AGAIN_SECONDS * 1_000_000))

    async def _tell_all(self, bookies: Bookies) -> None:
        found = dict(await self._store.scan(AVAILABLE))
        for path, record in found.items():
            _tell(bookies, Change(path, record))
        for bookie in bookies.addresses.keys() - {path.removeprefix(AVAILABLE) for path in found}:
            bookies.unregistered(bookie)

    async def _get(self, path: str) -> Record | None:
        try:
            return await self._store.get(path)
        except MetadataError as error:
            raise LedgerUnreadable(str(error)) from error

    async def _revise(self, checks: list[Check], operations: list[Put | Delete]) -> int | None:
        try:
            done = await self._store.transact(checks, operations)
            return None if done is None else done.version
        except MetadataError as error:
            raise LedgerError(str(error)) from error


class SimBookies(Bookies):
    """Connects to simulated bookies."""

    def __init__(self, loop: BrokerLoop, draw: Random, connect: Callable[[str, BookieConnection], None]) -> None:
        super().__init__(draw=draw)
        self._sim = loop
        self._to = connect

    def start(self) -> None:
        self._sim.call_later(TICK_SECONDS, self._tick)

    def _tick(self) -> None:
        self.pass_time(self._sim.time())
        self.start()

    def _connection(self, bookie: str) -> BookieConnection | None:
        if bookie not in self._reachable:
            return None
        with self._sim.running():
            connection = self.connections[bookie] = BookieConnection(bookie, self._targets, self._lost)
        self._to(bookie, connection)
        return connection


class SimContext(StoreContext):
    """Its tasks end with the broker."""

    def __init__(self, table: LedgerTable, bookies: Bookies, around: Around) -> None:
        super().__init__(table, bookies, SETTINGS)
        self._around = around

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self._around.loop.spawn(self._around.owner, work, name)


class SimRecoveries(Recoveries):
    """One recovery of a ledger at a time, without tasks."""

    def __init__(self, context: StoreContext) -> None:
        super().__init__(context)
        self._turns: dict[int, Lock] = {}

    async def recover(self, ledger: int, fence: int, known: Versioned) -> LedgerMetadata:
        async with self._turns.setdefault(ledger, Lock()):
            return await self._run_recovery(ledger, fence, known)


class SimOpenLedgers(OpenLedgers):
    """Bookies report at once what the headers of the newest entries say."""

    def __init__(self, context: StoreContext, volume: Shelf) -> None:
        super().__init__(context)
        self._volume = volume

    async def confirmed(self, ledgers: dict[int, LedgerMetadata]) -> dict[int, int]:
        return {ledger: self._volume.last_confirmed(ledger, metadata) for ledger, metadata in ledgers.items()}


class CheckedReader:
    """A reader whose results are compared with the mirror."""

    def __init__(self, reader: BookKeeperReader, volume: Shelf) -> None:
        self._reader = reader
        self._volume = volume
        self.last_confirmed = reader.last_confirmed

    @property
    def ledger_id(self) -> int:
        return self._reader.ledger_id

    def follow(self, grown: Callable[[], None]) -> Callable[[], None]:
        return self._reader.follow(grown)

    def learn(self, confirmed: int) -> bool:
        return self._reader.learn(confirmed)

    async def read(self, first: int, last: int, max_bytes: int) -> list[bytes]:
        found = await self._reader.read(first, last, max_bytes)
        self._volume.has_read(self.ledger_id, first, found)
        return found


class BookieStore(BookKeeperLedgerStore):
    """`ledgers.store.LedgerStore` over the bookies of a region, for one run of a broker."""

    def __init__(self, volume: Shelf, around: Around) -> None:
        loop, owner, name = BrokerLoop(around.loop, around.owner), around.owner, around.name
        self.volume = volume
        self._around = around
        self._table = self._sim_table = SimLedgerTable(around.metadata, volume.region, around.loop)
        self._settings = SETTINGS
        self._making = set()
        draw = Random(f"{volume.region} {name} {around.loop.now_us}")
        with loop.running():
            self._bookies = bookies = SimBookies(loop, draw, lambda to, one: volume.connect(to, name, owner, one))
            self._context = SimContext(self._table, bookies, around)
            self._recoveries = SimRecoveries(self._context)
        self._open = SimOpenLedgers(self._context, volume)
        self._tailing = Tailing(self._context)
        bookies.start()
        around.loop.spawn(owner, self._sim_table.follow_bookies(bookies), "follow the bookies")

    async def create(self, ledger_id: int, fence: int, label: bytes = b"") -> BookKeeperWriter:
        await self._sim_table.ready.wait()
        self._around.on_create(ledger_id)
        writer = await super().create(ledger_id, fence, label)
        append = writer.append

        def told(buffer: bytes, done: AppendDone) -> int:
            def heard(result: int | LedgerError) -> None:
                if isinstance(result, int):
                    self.volume.confirmed(ledger_id, result, bytes(buffer))
                done(result)

            return append(buffer, heard)

        writer.append = told
        return writer

    async def open(self, ledger_id: int, confirmed: int | None = None) -> CheckedReader:  # type: ignore[override]
        await self._sim_table.ready.wait()
        return CheckedReader(await super().open(ledger_id, confirmed), self.volume)

    async def delete(self, ledger_id: int) -> None:
        await self._sim_table.ready.wait()
        if self.volume.holds(ledger_id, -1):
            self._around.on_delete(ledger_id)
        try:
            await super().delete(ledger_id)
        finally:
            self.volume.look_for(ledger_id, _path(ledger_id))

    # -- what the world does to it

    def arrive(self, _: Random | None) -> None:
        """What is in flight to bookies arrives anyway."""

    def power_cut(self, _: Random | None) -> None:
        """Its process ends; bookies need no notice of that."""

    def fail_writes(self, _: str) -> None:
        """Brokers have no disk here."""

    def repair(self) -> None:
        """See ``bookie_volume``."""


def _path(ledger: int) -> str:
    return ledger_key(ledger).decode()


def _tombstone(ledger: int) -> str:
    return f"{_TOMBSTONES}{ledger:019d}"


def _tell(bookies: Bookies, change: Change) -> None:
    bookie = change.path.removeprefix(AVAILABLE)
    if change.record is None:
        bookies.unregistered(bookie)
    else:
        bookies.registered(bookie, (bookie, 0), is_writable=True)
