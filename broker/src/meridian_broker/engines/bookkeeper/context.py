# SPDX-License-Identifier: Apache-2.0
"""What all parts of the store share: the ledger table in etcd, the bookies, this process's writers, and its tasks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple

from meridian_broker.engines.bookkeeper.bookies import Bookies
from meridian_broker.engines.bookkeeper.fanning import Fan
from meridian_broker.engines.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState
from meridian_broker.engines.bookkeeper.ledger_table import LedgerMetadataPort, LedgerTable
from meridian_broker.engines.bookkeeper.packets import Answer, Flags, master_key
from meridian_broker.engines.bookkeeper.ports import AddLimits, Packet, Versioned
from meridian_broker.engines.bookkeeper.writing import Writing
from meridian_broker.engines.bookkeeper.zones import Zones
from meridian_broker.ledgers.storage import StorageFigures
from meridian_broker.ledgers.store import LedgerDeleted, LedgerError, LedgerInfo, LedgerNotFound

FRAME_OVERHEAD: Final = 64
"""Bytes of a bookie's largest frame that are not an entry's data."""
GONE_MAX: Final = 10_000
"""Deleted ledgers to remember, so that their readers fail although bookies may still have the entries."""
RECOVERED_MAX: Final = 1000
"""How many ledgers' metadata is kept after their recovery."""
RECOVERED_MS: Final = 5_000
"""How long it is kept: a topic that is opened recovers each of its ledgers and then reads it."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BookKeeperSettings:
    ensemble: int = 3
    """Bookies that store each entry; fewer if fewer are available, but at least ``ack_quorum``."""
    ack_quorum: int = 2
    """How many bookies must have synced an entry before it is confirmed."""
    password: bytes = b""
    """Written into each new ledger's metadata. Not a secret: it keeps clients from confusing ledgers."""
    frame_bytes_max: int = 5 * 1024 * 1024 + 10 * 1024
    """The bookies' ``nettyMaxFrameSizeBytes``. A bookie closes the connection of a client that sends more."""
    limits: AddLimits = field(default_factory=AddLimits)
    zones: Zones = field(default_factory=Zones)


class BookiePorts:
    """One ledger's access to the bookies (``ports.LinkPort`` and ``ports.AskPort``)."""

    def __init__(self, ledger: int, key: bytes, bookies: Bookies) -> None:
        self._key = key
        self._bookies = bookies
        self._ledger = ledger
        self._connections = bookies.connections
        self._fan: Fan | None = None
        self._fanned: tuple[str, ...] = ()
        self.choose = bookies.choose
        self.avoid = bookies.avoid
        self._loop = bookies.loop

    def send(self, bookie: str, first: int, packets: Sequence[Packet]) -> int:
        connection = self._connections.get(bookie)
        if connection is not None:
            return connection.add(self._ledger, packets)
        return self._bookies.add(self._ledger, bookie, first, packets)

    def send_all(self, bookies: tuple[str, ...], entry: int, packet: Packet) -> bool:  # noqa: ARG002
        fan = self._fan
        if fan is None or fan.is_closed or self._fanned is not bookies:
            fan, self._fanned = self._bookies.fan(bookies), bookies
            self._fan = fan
        return fan is not None and fan.add(packet)

    def wake(self) -> None:
        self._bookies.wake(self._ledger)

    def defer(self, callback: Callable[[], None]) -> None:
        self._loop.call_soon(callback)

    def read(self, bookie: str, entry: int, flags: Flags, told: Callable[[Answer], None]) -> None:
        self._bookies.read(self._ledger, bookie, entry, flags, self._key, told)

    def read_batch(self, bookie: str, first: int, count: int, max_bytes: int, told: Callable[[Answer], None]) -> None:
        self._bookies.read_batch(self._ledger, bookie, first, count, max_bytes, told)

    def later(self, milliseconds: int, callback: Callable[[], None]) -> None:
        self._loop.call_later(milliseconds / 1000, callback)


class Counts(NamedTuple):
    """What writers have done."""

    entries: int = 0
    bytes: int = 0
    failures: int = 0

    def plus(self, other: Counts) -> Counts:
        return Counts(self.entries + other.entries, self.bytes + other.bytes, self.failures + other.failures)


@dataclass(slots=True)
class ReadCounts:
    """What readers have done."""

    reads: int = 0
    read_entries: int = 0
    read_bytes: int = 0


class StoreContext:
    """See the module's text."""

    def __init__(self, table: LedgerTable, bookies: Bookies, settings: BookKeeperSettings) -> None:
        self.table = table
        self.bookies = bookies
        self.settings = settings
        self._loop = asyncio.get_running_loop()
        self.writings: dict[int, Writing] = {}
        """Writers of the ledgers that this process created and that are still open."""
        self._ended = Counts()
        """Totals of closed writers."""
        self.reads = ReadCounts()
        self.ledgers: int | None = None
        """How many ledgers are in etcd; None: not known yet."""
        self._gone: dict[int, None] = {}
        self._recovered: dict[int, tuple[int, LedgerMetadata]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self.is_closed = False

    def check_open(self) -> None:
        """:raises LedgerError: the store was closed."""
        if self.is_closed:
            raise LedgerError(f"the BookKeeper ledger store of etcd at {self.table.where} is closed")

    async def find(self, ledger: int) -> Versioned:
        """A ledger's metadata. :raises LedgerNotFound: it never existed; LedgerDeleted: it was deleted."""
        stored = await self.table.read(ledger)
        if stored is not None:
            return stored
        if await self.table.is_deleted(ledger):
            raise LedgerDeleted(f"ledger {ledger} was deleted")
        raise LedgerNotFound(f"there is no ledger {ledger} in etcd at {self.table.where}: it was never created")

    def is_gone(self, ledger: int) -> bool:
        """Whether this process deleted it."""
        return ledger in self._gone

    def gone(self, ledger: int) -> None:
        """Note that it was deleted."""
        self._recovered.pop(ledger, None)
        self._gone[ledger] = None
        if len(self._gone) > GONE_MAX:
            del self._gone[next(iter(self._gone))]

    def recovered(self, ledger: int, metadata: LedgerMetadata) -> LedgerInfo:
        """Note that it is closed: most likely it will be read now. Returns the facts about it."""
        self._recovered.pop(ledger, None)
        self._recovered[ledger] = self.bookies.now_ms(), metadata
        if len(self._recovered) > RECOVERED_MAX:
            del self._recovered[next(iter(self._recovered))]
        return info_of(ledger, metadata)

    def just_recovered(self, ledger: int) -> LedgerMetadata | None:
        """The metadata of a ledger that this process recovered a moment ago and has not opened since.

        If a bookie was replaced meanwhile, the others are read.
        """
        at_ms, metadata = self._recovered.pop(ledger, (0, None))
        return metadata if self.bookies.now_ms() - at_ms < RECOVERED_MS else None

    # -- writers -------------------------------------------------------------------------------------------------

    def begin_writing(self, ledger: int, stored: Versioned) -> Writing:
        """Make the writer of a ledger that was just created."""
        ports = BookiePorts(ledger, master_key(stored.metadata.password), self.bookies)
        writing = Writing(
            *(ledger, stored, ports, self.metadata_port(ledger), self.settings.limits),
            data_bytes_max=self.settings.frame_bytes_max - FRAME_OVERHEAD,
            now_ms=self.bookies.now_ms(),
        )
        self.writings[ledger] = writing
        self.bookies.attach(ledger, writing.adding)
        return writing

    def forget(self, writing: Writing) -> None:
        """Forget a writer whose ledger is closed or was taken over."""
        self.bookies.detach(writing.ledger, writing.adding)
        if self.writings.get(writing.ledger) is writing:
            del self.writings[writing.ledger]
            self._ended = self._ended.plus(_count(writing))

    async def idle(self, writing: Writing) -> None:
        """Wait until every entry of a writer is confirmed or failed. The core bounds the wait if bookies fail."""
        await self.answer(lambda told: writing.adding.when_idle(partial(told, None)))

    def metadata_port(self, ledger: int) -> LedgerMetadataPort:
        return LedgerMetadataPort(self.table, ledger, self.spawn)

    def figures(self) -> StorageFigures:
        """Numbers for metrics. Adding does no counting of its own: they derive from the state of the writers."""
        total, pending = self._ended, 0
        for writing in self.writings.values():
            total = total.plus(_count(writing))
            pending += writing.adding.pending_bytes
        counters = {"appends": total.entries, "append_bytes": total.bytes, "write_failures": total.failures}
        gauges = {"pending_bytes": pending, "bookies": len(self.bookies.addresses)}
        if self.ledgers is not None:
            gauges["ledgers"] = self.ledgers
        return StorageFigures(gauges, counters | asdict(self.reads))

    # -- waiting and tasks ---------------------------------------------------------------------------------------

    async def answer(self, ask: Callable[[Callable[[Any], None]], object]) -> Any:
        """Call ``ask`` with a callback, and wait for the argument that the callback gets."""
        heard: asyncio.Future[Any] = self._loop.create_future()

        def told(answer: Any) -> None:
            if not heard.done():
                heard.set_result(answer)

        ask(told)
        return await heard

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Run it as a task that ``end_tasks`` cancels."""
        task = self._loop.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)

    async def end_tasks(self) -> None:
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("failed to %s", task.get_name(), exc_info=error)


def info_of(ledger: int, metadata: LedgerMetadata) -> LedgerInfo:
    """Facts about a ledger that is closed."""
    is_closed = metadata.state is LedgerState.CLOSED
    return LedgerInfo(ledger, metadata.last_entry + 1, metadata.length, is_closed, metadata.label)


def _count(writing: Writing) -> Counts:
    adding = writing.adding
    stored = writing.size - adding.pending_bytes - adding.unconfirmed_bytes
    return Counts(adding.confirmed + 1, stored, int(adding.failure is not None))
