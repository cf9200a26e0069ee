# SPDX-License-Identifier: Apache-2.0
"""The region's bookies: which are registered, the connections to them, and the clock of the ledgers on them.

A bookie that failed is not chosen for a while. One that is no longer registered is replaced in open ledgers even if it
still answers, because BookKeeper's AutoRecovery would soon fence every ledger that it is part of. But it is replaced
only if there is another one: after an outage of etcd, all bookies are unregistered for some seconds.

Bookies are chosen at random, in as many zones as possible (``zones``).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

from meridian_broker.engines.bookkeeper.connection import AddTarget, BookieConnection
from meridian_broker.engines.bookkeeper.fanning import Fan
from meridian_broker.engines.bookkeeper.packets import Answer, Code, Flags, Operation
from meridian_broker.engines.bookkeeper.ports import Packet
from meridian_broker.engines.bookkeeper.securing import Connect, connect_tcp
from meridian_broker.engines.bookkeeper.zones import Zones

log = logging.getLogger(__name__)

TICK_SECONDS: Final = 0.1
CONNECT_SECONDS: Final = 3.0
READ_SECONDS: Final = 5.0
"""Time limit of a request that a healthy bookie answers at once."""
AVOID_SECONDS: Final = 5.0
"""How long a bookie that failed is not chosen. One that hangs loses its registration a little later."""
UNREGISTERED_SECONDS: Final = 1.0
"""How long a bookie may be unregistered before it is replaced in open ledgers."""

Address = tuple[str, int]


class Bookies:
    """See the module's text. Runs on one event loop."""

    def __init__(
        self, connect: Connect = connect_tcp, draw: random.Random | None = None, zones: Zones | None = None
    ) -> None:
        """:param draw: the source of randomness for choosing bookies."""
        self.loop = asyncio.get_running_loop()
        self._connect = connect
        self._draw = draw or random.Random()
        self._zones = zones or Zones()
        self._are_apart = True
        """Whether the bookies chosen last are in several zones; also True if none were chosen yet."""
        self.addresses: dict[str, Address] = {}
        """The registered bookies that take new entries."""
        self._reachable: dict[str, Address] = {}
        """The addresses of all bookies that were ever registered, including read-only ones."""
        self._unregistered: dict[str, float] = {}
        """When bookies that open ledgers may still use lost their registration."""
        self._avoided: dict[str, float] = {}
        """Until when bookies that failed are not chosen."""
        self.connections: dict[str, BookieConnection] = {}
        self._fans: dict[tuple[str, ...], Fan] = {}
        """Keyed by the bookies, sorted."""
        self._connecting: set[asyncio.Task[None]] = set()
        self._targets: dict[int, AddTarget] = {}
        self._active: dict[int, None] = {}
        """Ledgers that need ticks, because something is under way."""
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False

    def start(self) -> None:
        self._task = self.loop.create_task(self._run(), name="time passes for ledgers on bookies")

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
            connection.close("this process is closing it")

    def now_ms(self) -> int:
        """The time of the loop's clock, which is monotonic."""
        return int(self.loop.time() * 1000)

    # -- registrations -------------------------------------------------------------------------------------------

    def registered(self, bookie: str, address: Address, *, is_writable: bool) -> None:
        """A bookie is registered."""
        self._reachable[bookie] = address
        if is_writable:
            self.addresses[bookie] = address
            self._unregistered.pop(bookie, None)

    def unregistered(self, bookie: str) -> None:
        """A bookie is no longer registered, or no longer takes new entries."""
        if self.addresses.pop(bookie, None) is not None:
            self._unregistered[bookie] = self.loop.time()

    def choose(self, wanted: str, exclude: Collection[str]) -> str | None:
        """As ``LinkPort.choose``."""
        others = self._well(bookie for bookie in self.addresses if bookie not in exclude)
        if not others:
            return wanted if self._well([wanted] if wanted in self.addresses else []) else None
        self._draw.shuffle(others)
        stay = [bookie for bookie in exclude if bookie != wanted]
        found = self._zones.next_to(stay, others)
        self._check_apart([*stay, found])
        return found

    def avoid(self, bookie: str) -> None:
        """As ``LinkPort.avoid``."""
        self._avoided[bookie] = self.loop.time() + AVOID_SECONDS

    def choose_ensemble(self, size: int) -> tuple[str, ...]:
        """Bookies for a new ledger; fewer than ``size`` if there are fewer."""
        well = self._well(self.addresses)
        others = [bookie for bookie in self.addresses if bookie not in well]
        self._draw.shuffle(well)
        found = self._zones.ensemble(others, size, self._zones.ensemble(well, size))
        self._check_apart(found)
        return found

    def _check_apart(self, chosen: Sequence[str]) -> None:
        """Warn if the bookies chosen are all in one zone: once, until a choice spans several zones again."""
        if not self._zones.are_known or len(chosen) < 2:
            return
        before, self._are_apart = self._are_apart, self._zones.number(chosen) > 1
        if before and not self._are_apart:
            log.warning(
                "bookies %s are all in zone %s, because no bookie of another zone takes entries: what is written to "
                "them now is lost if that zone is. Are the bookies of other zones running, and is bookieZones right?",
                ", ".join(sorted(chosen)),
                self._zones.of(chosen[0]) or "(none)",
            )

    def _well(self, bookies: Iterable[str]) -> list[str]:
        now = self.loop.time()
        return [bookie for bookie in bookies if self._avoided.get(bookie, 0.0) <= now]

    # -- ledgers -------------------------------------------------------------------------------------------------

    def attach(self, ledger: int, target: AddTarget) -> None:
        """Deliver the answers to this ledger's adds, and ticks, to a target from now on."""
        self._targets[ledger] = target
        self._active[ledger] = None

    def detach(self, ledger: int, target: AddTarget) -> None:
        """Undo ``attach``, unless another target has been attached since."""
        if self._targets.get(ledger) is target:
            del self._targets[ledger]
            self._active.pop(ledger, None)

    def wake(self, ledger: int) -> None:
        """As ``LinkPort.wake``."""
        self._active[ledger] = None

    def add(self, ledger: int, bookie: str, first: int, packets: Sequence[Packet]) -> int:
        """As ``LinkPort.send``."""
        connection = self.connections.get(bookie) or self._connection(bookie)
        if connection is None:
            self.loop.call_soon(self._not_sent, ledger, bookie, first)
            return len(packets)
        return connection.add(ledger, packets)

    def fan(self, bookies: Collection[str]) -> Fan | None:
        """Sends the same adds to all of these bookies. None: one of them cannot be reached."""
        key = tuple(sorted(bookies))
        found = self._fans.get(key)
        if found is None:
            connections = [self.connections.get(bookie) or self._connection(bookie) for bookie in key]
            reached = tuple(one for one in connections if one is not None)
            if len(reached) < len(key):
                return None
            found = self._fans[key] = Fan(reached)
        return found

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
            self.loop.call_soon(told, answer)
        else:
            connection.read(ledger, entry, flags, key, told, self.loop.time() + READ_SECONDS)

    def read_batch(
        self, ledger: int, bookie: str, first: int, count: int, max_bytes: int, told: Callable[[Answer], None]
    ) -> None:
        """As ``AskPort.read_batch``."""
        connection = self.connections.get(bookie) or self._connection(bookie)
        if connection is None:
            answer = Answer(Operation.BATCH_READ, Code.DISCONNECTED, ledger, first, -1, [])
            self.loop.call_soon(told, answer)
        else:
            connection.read_batch(ledger, first, count, max_bytes, told, self.loop.time() + READ_SECONDS)

    async def connect(self, protocol: Callable[[], asyncio.BaseProtocol], address: Address) -> asyncio.BaseTransport:
        """Open a connection for other requests. :raises OSError: the bookie cannot be reached."""
        return await self._connect(protocol, *address)

    def address(self, bookie: str) -> Address | None:
        """A bookie's last registered address."""
        return self._reachable.get(bookie)

    # -- inside --------------------------------------------------------------------------------------------------

    def _connection(self, bookie: str) -> BookieConnection | None:
        address = self._reachable.get(bookie)
        if address is None or self._is_closed:
            return None
        connection = BookieConnection(bookie, self._targets, self._lost)
        self.connections[bookie] = connection
        task = self.loop.create_task(self._open(connection, address), name=f"connect to bookie {bookie}")
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
        for key in [key for key in self._fans if bookie in key]:
            self._fans.pop(key).is_closed = True
        self.avoid(bookie)
        if not self._is_closed:
            log.info("lost the connection to bookie %s: %s", bookie, why)
        for ledger, target in list(self._targets.items()):
            if bookie in target.ensemble:
                target.lost(bookie, why)
                self._active[ledger] = None

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            try:
                self.pass_time(self.loop.time())
            except Exception:
                log.exception("checking the time limits of ledgers on bookies failed; trying again")

    def pass_time(self, now: float) -> None:
        """Do what is due by the loop's clock: time out requests, replace unregistered bookies, tick ledgers."""
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
                    target.lost(bookie, "it is no longer registered")
                    self._active[ledger] = None
        if not still_used:
            for bookie in late:
                del self._unregistered[bookie]
