# SPDX-License-Identifier: Apache-2.0
"""Connections to other regions that are kept up: reconnected whenever they end, for as long as they are wanted.

``Link`` is one such connection. ``PeerLinks`` keeps one per remote region for the exchange of progress, and for a
region of several brokers, one to each of them that owns topics of this broker. The replicators have links of their own
(``replication``), because a backlog of entries must not delay acknowledgements.

The first attempts after a loss follow each other quickly, since most losses are a restart; later ones are spread by a
random fraction, so that regions do not all reconnect at the same moment. ``nudge`` cuts a wait short: a region that has
just connected to us can be reached.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from meridian_broker.gateway.client import PulsarClientConnection
from meridian_broker.gateway.client_errors import ClientError, ConnectFailed, ConnectionLost
from meridian_broker.ledgers.backoff import Backoff
from meridian_broker.wire.pulsar import encode

if TYPE_CHECKING:
    from google.protobuf.message import Message as ProtoMessage

    from meridian_broker.gateway.client_options import ClientOptions

logger = logging.getLogger(__name__)

FIRST_DELAY: Final = 0.05
"""Seconds before the second attempt."""
LAST_DELAY: Final = 1.0
"""Seconds between attempts in the long run; one attempt a second costs almost nothing."""
STEADY: Final = 1.0
"""A connection that lasted this many seconds counts as good: after its loss the retry delays start again."""
UNSENT_LIMIT: Final = 32 * 1024 * 1024
"""A peer that leaves this many bytes unread counts as gone; digests later find what it missed."""

Resolver = Callable[[str], "tuple[str, str | None] | None"]
"""Region -> (service URL, admin URL); None: not known at present."""
Send = Callable[[int, "ProtoMessage"], None]
"""Send a command: its type and its message. Raises ``ConnectionLost`` when the link is down."""


@dataclass(frozen=True, slots=True)
class LinkStatus:
    """A snapshot of a link's state."""

    region: str
    url: str | None
    connected: bool
    problem: str | None
    """Why it is down, or why it was last down."""
    connections: int


class Link:
    """Keeps one connection to a region. ``start`` it, then ``await close()`` it."""

    def __init__(
        self,
        region: str,
        resolve: Resolver,
        options: ClientOptions,
        jitter: Callable[[], float],
        purpose: str,
        *,
        on_up: Callable[[PulsarClientConnection], None] | None = None,
        on_down: Callable[[], None] | None = None,
        on_command: Callable[[int, Any], None] | None = None,
        on_problem: Callable[[], None] | None = None,
        peer: str = "",
    ) -> None:
        """
        :param options: towards any region, or within this one.
        :param purpose: what the link carries, for the log.
        :param on_problem: called when a connection could not be made.
        :param peer: what to pass to ``resolve``, if not the region.
        """
        self.region = region
        self._peer = peer or region
        self._name = f"{purpose} link to {self._peer}"
        self.connection: PulsarClientConnection | None = None
        """The connection while it is up."""
        self.problem: str | None = None
        self.is_foreign = False
        """The last answer at that address came from a broker that is not Meridian."""
        self._resolve = resolve
        self._options = options if options.own_broker else options.towards(region)
        self._backoff = Backoff(jitter, FIRST_DELAY, LAST_DELAY)
        self._on_up = on_up
        self._on_down = on_down
        self._on_command = on_command
        self._on_problem = on_problem
        self._up = asyncio.Event()
        self._nudge = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._url: str | None = None
        self._connections = 0

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name=self._name)

    async def close(self) -> None:
        """Close the connection and stop making new ones."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def nudge(self) -> None:
        """Try now, because the region can probably be reached."""
        self._backoff.reset()
        self._nudge.set()

    async def ready(self) -> PulsarClientConnection:
        """The connection, as soon as it is up."""
        while self.connection is None:
            await self._up.wait()
        return self.connection

    def status(self) -> LinkStatus:
        return LinkStatus(self.region, self._url, self.connection is not None, self.problem, self._connections)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            try:
                await self._hold_one()
            except (ClientError, ValueError) as error:
                self._tell(str(error))
            except Exception as error:
                logger.exception("%s: unexpected error; connecting again", self._name)
                self._tell(repr(error))
            if loop.time() - began >= STEADY:
                self._backoff.reset()
            self._nudge.clear()
            try:
                async with asyncio.timeout(self._backoff.next()):
                    await self._nudge.wait()
            except TimeoutError:
                pass

    async def _hold_one(self) -> None:
        """One connection, from start to end."""
        place = self._resolve(self._peer)
        if place is None:
            raise ConnectFailed(f"no address is known for {self._peer}")
        self._url = place[0]
        connection = await PulsarClientConnection.connect(self._url, self._options, on_command=self._on_command)
        try:
            self.is_foreign = self._options.peer is not None and not connection.is_proven
            if self.is_foreign:
                raise ConnectFailed(f"{self._url} is {connection.server_version}, not a Meridian broker")
            self.connection, self.problem = connection, None
            self._connections += 1
            self._up.set()
            logger.info("%s is up (%s)", self._name, self._url)
            try:
                if self._on_up is not None:
                    self._on_up(connection)
                raise ConnectionLost(await connection.wait_lost())
            finally:
                self.connection = None
                self._up.clear()
                if self._on_down is not None:
                    self._on_down()
        finally:
            await connection.close()

    def _tell(self, problem: str) -> None:
        """Log a problem if it differs from the last one: a region may be unreachable for days."""
        if problem != self.problem:
            logger.warning("%s is down: %s", self._name, problem)
        self.problem = problem
        if self._on_problem is not None:
            self._on_problem()


class PeerLinks:
    """One outgoing link per peer (``replication/progress/routes.py``), for everything brokers say to each other besides
    entries."""

    def __init__(
        self,
        resolve: Resolver,
        options: ClientOptions,
        jitter: Callable[[], float],
        *,
        on_up: Callable[[str, Send], None],
        on_down: Callable[[str], None],
        on_command: Callable[[str, int, Any, Send], None],
        on_problem: Callable[[str], None] = lambda _: None,
    ) -> None:
        """
        :param resolve: asked for the addresses of a peer.
        :param on_up: (peer, send) when a link came up.
        :param on_down: (peer) when it went down; ``send`` must not be used afterwards.
        :param on_command: (peer, type, message, reply) for each command that arrived over a link.
        :param on_problem: (peer) when a link could not be made, or broke.
        """
        self._resolve = resolve
        self._options = options
        self._jitter = jitter
        self._on_up = on_up
        self._on_down = on_down
        self._on_command = on_command
        self._on_problem = on_problem
        self._links: dict[str, Link] = {}
        """Links to regions."""
        self._to_brokers: dict[str, Link] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def set_regions(self, regions: Iterable[str]) -> None:
        """Keep links to exactly these regions: open missing ones, close others."""
        wanted = set(regions)
        for region in wanted - self._links.keys():
            self._links[region] = self._make(region, region)
            self._links[region].start()
        for region in self._links.keys() - wanted:
            self._end(self._links.pop(region))

    def open(self, region: str, broker: str) -> None:
        """Also keep a link to one of a region's several brokers. :param broker: the peer's name."""
        if broker not in self._to_brokers:
            self._to_brokers[broker] = self._make(region, broker)
            self._to_brokers[broker].start()

    def end(self, broker: str) -> None:
        """Close the link to a broker that is gone."""
        if (link := self._to_brokers.pop(broker, None)) is not None:
            self._end(link)

    def _end(self, link: Link) -> None:
        task = asyncio.get_running_loop().create_task(link.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def nudge(self, peer: str) -> None:
        """The peer has shown a sign of life: try to reach it now."""
        link = self._to_brokers.get(peer) or self._links.get(peer)
        if link is not None and link.connection is None:
            link.nudge()

    def is_foreign(self, region: str) -> bool:
        """Whether the region is known not to run Meridian."""
        link = self._links.get(region)
        return link is not None and link.is_foreign

    def status(self) -> dict[str, LinkStatus]:
        """Status of the links to regions."""
        return {region: link.status() for region, link in self._links.items()}

    def brokers(self) -> dict[str, LinkStatus]:
        """Status of the links to single brokers, by peer."""
        return {peer: link.status() for peer, link in self._to_brokers.items()}

    async def close(self) -> None:
        self.set_regions(())
        for broker in list(self._to_brokers):
            self.end(broker)
        await asyncio.gather(*self._closing)

    def _make(self, region: str, peer: str) -> Link:
        def send(kind: int, message: ProtoMessage) -> None:
            connection = link.connection
            if connection is None:
                raise ConnectionLost(f"the link to {peer} is down: {link.problem}")
            if connection.unsent_bytes > UNSENT_LIMIT:
                connection.fail(ConnectionLost(f"{peer} is not reading: {UNSENT_LIMIT} bytes are waiting for it"))
                return
            connection.write([encode.simple(kind, message)])

        link = Link(
            region,
            self._resolve,
            self._options,
            self._jitter,
            "progress",
            on_up=lambda _: self._on_up(peer, send),
            on_down=lambda: self._on_down(peer),
            on_command=lambda kind, message: self._on_command(peer, kind, message, send),
            on_problem=lambda: self._on_problem(peer),
            peer=peer,
        )
        return link
