# SPDX-License-Identifier: Apache-2.0
"""All bookies of the region: which are registered, the connections to them, and the time that passes for ledgers.

A bookie that fails is left alone for a while when bookies are chosen. One that is no longer registered is replaced in
open ledgers although it still answers: soon BookKeeper's AutoRecovery would fence every ledger it is part of. But it is
replaced only if there is another one, since after an outage of etcd all of them are unregistered for some seconds.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Collection, Iterable
from typing import Final

from meridian_broker.engines.bookkeeper.connection import AddTarget, BookieConnection
from meridian_broker.engines.bookkeeper.packets import Answer, Code, Flags, Operation
from meridian_broker.engines.bookkeeper.ports import Packet
from meridian_broker.engines.bookkeeper.securing import Connect, connect_tcp

log = logging.getLogger(__name__)

TICK_SECONDS: Final = 0.1
CONNECT_SECONDS: Final = 3.0
READ_SECONDS: Final = 5.0
"""How long one request may take that a bookie answers at once when it is well."""
AVOID_SECONDS: Final = 5.0
"""For so long a bookie that failed is not chosen. One that hangs is unregistered a little later."""
UNREGISTERED_SECONDS: Final = 1.0
"""For so long a bookie may be unregistered before it is replaced in open ledgers."""

Address = tuple[str, int]


class Bookies:
    """See the module's text. Runs on one event loop."""

    def __init__(self, connect: Connect = connect_tcp, draw: random.Random | None = None) -> None:
        """:param draw: chooses among bookies."""
        self._loop = asyncio.get_running_loop()
        self._connect = connect
        self._draw = draw or random.Random()
        self.addresses: dict[str, Address] = {}
        """The registered bookies that take new entries."""
        self._reachable: dict[str, Address] = {}
        """All that were ever registered, and where; read-only ones too."""
        self._unregistered: dict[str, float] = {}
        """Bookies of open ledgers, and since when they are not registered."""
        self._avoided: dict[str, float] = {}
        """Until when a bookie is not chosen."""
        self.connections: dict[str, BookieConnection] = {}
        self._connecting: set[asyncio.Task[None]] = set()
        self._targets: dict[int, AddTarget] = {}
        self._active: dict[int, None] = {}
        """Ledgers that time passes for: something is under way there."""
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False

    def start(self) -> None:
        self._task = self._loop.create_task(self._run(), name="time passes for ledgers on bookies")

    async def close(self) -> None:
        """Close all connections."""
        self._is_closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for task in self._connecting:
            task.cancel()
        await asyncio.gather(*self._connecting, return_exceptions=True)
        for connection in list(self.connections.values()):
            connection.close("this process closes")

    def now_ms(self) -> int:
        """Of the loop's clock, which is monotonic."""
        return int(self._loop.time() * 1000)

    # -- registrations -------------------------------------------------------------------------------------------

    def registered(self, bookie: str, address: Address, *, is_writable: bool) -> None:
        """A bookie is there."""
        self._reachable[bookie] = address
        if is_writable:
            self.addresses[bookie] = address
            self._unregistered.pop(bookie, None)

    def unregistered(self, bookie: str) -> None:
        """A bookie is not there any more, or takes no new entries."""
        if self.addresses.pop(bookie, None) is not None:
            self._unregistered[bookie] = self._loop.time()

    def choose(self, wanted: str, exclude: Collection[str]) -> str | None:
        """As ``LinkPort.choose``."""
        others = self._well(bookie for bookie in self.addresses if bookie not in exclude)
        if others:
            return self._draw.choice(others)
        return wanted if self._well([wanted] if wanted in self.addresses else []) else None

    def avoid(self, bookie: str) -> None:
        """As ``LinkPort.avoid``."""
        self._avoided[bookie] = self._loop.time() + AVOID_SECONDS

    def choose_ensemble(self, size: int) -> tuple[str, ...]:
        """Bookies for a new ledger: fewer than ``size`` if there are not so many."""
        well = self._well(self.addresses)
        others = [bookie for bookie in self.addresses if bookie not in well]
        self._draw.shuffle(well)
        return tuple([*well, *others][:size])

    def _well(self, bookies: Iterable[str]) -> list[str]:
        now = self._loop.time()
        return [bookie for bookie in bookies if self._avoided.get(bookie, 0.0) <= now]

    # -- ledgers -------------------------------------------------------------------------------------------------

    def attach(self, ledger: int, target: AddTarget) -> None:
        """What bookies answer to this ledger's adds goes there from now on, and time passes for it."""
        self._targets[ledger] = target
        self._active[ledger] = None

    def detach(self, ledger: int, target: AddTarget) -> None:
        """Unless another one was attached meanwhile."""
        if self._targets.get(ledger) is target:
            del self._targets[ledger]
            self._active.pop(ledger, None)

    def wake(self, ledger: int) -> None:
        """As ``LinkPort.wake``."""
        self._active[ledger] = None

    def add(self, ledger: int, bookie: str, entry: int, packet: Packet) -> bool:
        """As ``LinkPort.send``."""
        connection = self.connections.get(bookie) or self._connection(bookie)
        if connection is None:
            self._loop.call_soon(self._not_sent, ledger, bookie, entry)
            return True
        return connection.add(ledger, packet)

    def _not_sent(self, ledger: int, bookie: str, entry: int) -> None:
        target = self._targets.get(ledger)
        if target is not None:
            target.answered(bookie, entry, Code.DISCONNECTED)

    def read(
        self, ledger: int, bookie: str, entry: int, flags: Flags, key: bytes, told: Callable[[Answer], None]
    ) -> None:
        """As ``AskPort.read``."""
        connection = self.connections.get(bookie) or self._connection(bookie)
        if connection is None:
            answer = Answer(Operation.READ, Code.DISCONNECTED, ledger, entry, -1, [])
            self._loop.call_soon(told, answer)
        else:
            connection.read(ledger, entry, flags, key, told, self._loop.time() + READ_SECONDS)

    def read_batch(
        self, ledger: int, bookie: str, first: int, count: int, max_bytes: int, told: Callable[[Answer], None]
    ) -> None:
        """As ``AskPort.read_batch``."""
        connection = self.connections.get(bookie) or self._connection(bookie)
        if connection is None:
            answer = Answer(Operation.BATCH_READ, Code.DISCONNECTED, ledger, first, -1, [])
            self._loop.call_soon(told, answer)
        else:
            connection.read_batch(ledger, first, count, max_bytes, told, self._loop.time() + READ_SECONDS)

    async def connect(self, protocol: Callable[[], asyncio.BaseProtocol], address: Address) -> asyncio.BaseTransport:
        """A connection for other requests. :raises OSError: the bookie cannot be reached."""
        return await self._connect(protocol, *address)

    def address(self, bookie: str) -> Address | None:
        """Where a bookie is, or was when it was last registered."""
        return self._reachable.get(bookie)

    # -- inside --------------------------------------------------------------------------------------------------

    def _connection(self, bookie: str) -> BookieConnection | None:
        address = self._reachable.get(bookie)
        if address is None or self._is_closed:
            return None
        connection = BookieConnection(bookie, self._targets, self._lost)
        self.connections[bookie] = connection
        task = self._loop.create_task(self._open(connection, address), name=f"connect to bookie {bookie}")
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)
        return connection

    async def _open(self, connection: BookieConnection, address: Address) -> None:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await self._connect(lambda: connection, *address)
        except OSError as error:  # a timeout is one
            connection.close(f"it cannot be reached at {address[0]}:{address[1]} ({error!r})")

    def _lost(self, connection: BookieConnection, why: str) -> None:
        bookie = connection.bookie
        if self.connections.get(bookie) is not connection:
            return
        del self.connections[bookie]
        self.avoid(bookie)
        if not self._is_closed:
            log.info("the connection to bookie %s ended: %s", bookie, why)
        for ledger, target in list(self._targets.items()):
            if bookie in target.ensemble:
                target.lost(bookie, why)
                self._active[ledger] = None

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            try:
                self.pass_time(self._loop.time())
            except Exception:
                log.exception("time could not pass for some ledgers on bookies")

    def pass_time(self, now: float) -> None:
        """What is due by the loop's clock: requests without an answer, bookies that went, ledgers that wait."""
        now_ms = int(now * 1000)
        for connection in list(self.connections.values()):
            connection.check_time(now)
        if self._unregistered:
            self._replace_unregistered(now)
        for ledger in list(self._active):
            target = self._targets.get(ledger)
            if target is not None:
                target.tick(now_ms)
            if target is None or target.is_idle:
                self._active.pop(ledger, None)

    def _replace_unregistered(self, now: float) -> None:
        late = {bookie for bookie, since in self._unregistered.items() if now - since >= UNREGISTERED_SECONDS}
        still_used = False
        for ledger, target in list(self._targets.items()):
            ensemble = target.ensemble
            for bookie in late.intersection(ensemble):
                still_used = True
                if any(other not in ensemble for other in self.addresses):
                    target.lost(bookie, "it is not registered any more")
                    self._active[ledger] = None
        if not still_used:
            for bookie in late:
                del self._unregistered[bookie]
