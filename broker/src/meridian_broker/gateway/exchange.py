# SPDX-License-Identifier: Apache-2.0
"""The progress exchange on real links: gives the core its time, its messages and its turns of the loop.

All acknowledgements of one turn leave as one DELTA, because the core's ``tick`` runs once at the end of the turn. The
timer is set to the core's next deadline only, so an idle broker wakes for digests and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from meridian_broker.gateway.client_errors import ConnectionLost
from meridian_broker.gateway.links import LinkStatus, PeerLinks, Resolver, Send
from meridian_broker.ledgers.store import WhenDurable
from meridian_broker.positions import Progress
from meridian_broker.replication.peers import peer_name, region_of
from meridian_broker.replication.progress.codec import command, decode, encode
from meridian_broker.replication.progress.exchange import ProgressExchange
from meridian_broker.replication.progress.messages import Hello, PeerMessage
from meridian_broker.replication.progress.statuses import PeerStatus
from meridian_broker.replication.progress.waits import BarrierResult

if TYPE_CHECKING:
    from meridian_broker.gateway.client_options import ClientOptions
    from meridian_broker.gateway.owners_feed import OwnersFeed
    from meridian_broker.gateway.pulsar.connected import Connected

CONTACT_POLL_SECONDS: Final = 0.005

log = logging.getLogger(__name__)


class ExchangeShell:
    """Implements ``topics.topic.Exchange`` for topics, and receives peer commands from connections."""

    def __init__(
        self,
        core: ProgressExchange,
        resolve: Resolver,
        options: ClientOptions,
        jitter: Callable[[], float],
        now_ms: Callable[[], int],
        on_heard: Callable[[str], None],
        owners: OwnersFeed | None = None,
    ) -> None:
        """
        :param resolve: region -> its addresses.
        :param now_ms: a monotonic clock.
        :param on_heard: a region's broker has just connected to us.
        :param owners: tells other regions who owns what here; None: this broker is its region's only one.
        """
        self.core = core
        self._owners = owners
        self._resolve = resolve
        self._by_tls = options.tls is not None
        self._now_ms = now_ms
        self._on_heard = on_heard
        self._loop = asyncio.get_running_loop()
        self._ticking = False
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._arrived: dict[Connected, str] = {}
        """Connections that peers opened to us -> the peer."""
        self.links = PeerLinks(
            *(self._place, options, jitter),
            on_up=self._up,
            on_down=self._down,
            on_command=self._came_back,
            on_problem=core.unreachable,
        )
        core.divided.open_link = lambda peer: self.links.open(region_of(peer), peer)
        core.divided.close_link = self.links.end
        core.set_wake(self._tick_soon)
        if core.leases is not None:
            core.leases.wake = self._tick_soon
            core.leases.is_foreign = self.links.is_foreign

    def set_regions(self, regions: Iterable[str]) -> None:
        """Keep links with exactly these regions."""
        wanted = set(regions)
        for region in wanted:
            self.core.add_peer(region)
        for region in set(self.links.status()) - wanted:
            self.core.remove_peer(region)
        self.links.set_regions(wanted)

    def _place(self, peer: str) -> tuple[str, str | None] | None:
        """:raises ConnectFailed: the peer has no address that may be used."""
        if peer == region_of(peer):
            return self._resolve(peer)
        found = self.core.broker(peer)
        url = "" if found is None else found.service_url_tls if self._by_tls else found.service_url
        return (url, None) if url else None

    async def first_contact(self, seconds: float) -> None:
        """Wait until every region, and in it every broker that owns topics of ours, is reached or found to be
        unreachable, at most ``seconds``.

        A broker that has just started must learn what was acknowledged elsewhere before it dispatches (R10), and the
        barrier asks only regions that are reached (R20).
        """
        until = self._loop.time() + seconds
        while any(map(self._is_coming, self.links.status().values())):
            if self._loop.time() >= until:
                return
            await asyncio.sleep(CONTACT_POLL_SECONDS)

    def _is_coming(self, link: LinkStatus) -> bool:
        return self.core.is_connecting(link.region) if link.connected else link.problem is None

    async def close(self) -> None:
        """Close the links; digests later find changes that were not confirmed."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        await self.links.close()

    # -- from topics ---------------------------------------------------------------------------------------------

    def local_change(
        self,
        topic: str,
        subscription: str,
        delta: Progress,
        durable: WhenDurable,
        *,
        record_changed: bool = False,
        entries: int = 0,
    ) -> None:
        now_ms = self._now_ms()
        self.core.local_ack(topic, subscription, delta, now_ms, durable, record_changed=record_changed, entries=entries)

    def opened(self, topic: str) -> None:
        self.core.opened(topic)

    def send_pending(self) -> None:
        self.core.send_pending(self._now_ms())
        self._tick_soon()

    def barrier(self, topic: str, subscription: str, passed: Callable[[], None]) -> None:
        def done(result: BarrierResult) -> None:
            for region in sorted(result.refused):
                log.warning(
                    "dispatching %s of %s without the newest acknowledgements of %s; messages may be redelivered: %s",
                    *(subscription, topic, region, result.missing[region]),
                )
            passed()

        self.core.barrier(topic, subscription, self._now_ms(), done)
        self._tick_soon()

    def flush(self, topic: str, subscription: str, passed: Callable[[], None]) -> None:
        self.core.flush(topic, subscription, self._now_ms(), lambda _: passed())
        self._tick_soon()

    def status(self, topic: str, subscription: str) -> tuple[PeerStatus, ...]:
        """A subscription's status with each other region."""
        return self.core.status(topic, subscription, self._now_ms())

    def lags(self) -> dict[tuple[str, str], tuple[int, int]]:
        """``(topic, region)`` -> entries and milliseconds that the region's progress is behind."""
        return self.core.lags(self._now_ms())

    def apart(self) -> dict[str, dict[str, str]]:
        """Region -> subject -> why its state differs from this region's."""
        return self.core.apart(self._now_ms())

    def behind_for(self) -> dict[str, int]:
        """Region -> for how many milliseconds it may have lacked something acknowledged here."""
        return self.core.behind_for(self._now_ms())

    def was_away(self, region: str, ago_ms: int) -> None:
        """The region became unreachable ``ago_ms`` ago, and did not return before this broker started."""
        self.core.was_away(region, self._now_ms() - ago_ms)

    def was_behind(self, region: str, topic: str, subscription: str, entries: int, ago_ms: int) -> None:
        """For ``ago_ms`` the region has lacked this many entries that were acknowledged before this broker started."""
        self.core.was_behind(region, (topic, subscription), entries, self._now_ms() - ago_ms)

    def compare_ends(self, origins: Collection[str]) -> None:
        """Compare with the other regions how far each of them has the entries of unreachable regions."""
        self.core.compare_ends(origins, self._now_ms())

    def compares_ends_with(self, region: str) -> bool:
        """Whether that region is included in this comparison."""
        return self.core.compares_ends_with(region)

    # -- from links and connections ------------------------------------------------------------------------------

    def _up(self, peer: str, send: Send) -> None:
        self.core.connected(peer, _sender(send), self._now_ms())
        self._tick_soon()

    def _down(self, peer: str) -> None:
        self.core.disconnected(peer, self._now_ms())
        self._tick_soon()

    def _came_back(self, peer: str, kind: int, message: Any, send: Send) -> None:
        decoded = self._decode(peer, kind, message)
        if decoded is not None:
            self.core.received(peer, decoded, _sender(send), self._now_ms())
            self._tick_soon()

    def received(self, connection: Connected, kind: int, message: Any) -> None:
        """A command on a connection that a peer opened. HELLO makes it a peer's link."""
        reply = partial(_write, connection)
        decoded = self._decode(connection.peer_region, kind, message)
        if isinstance(decoded, Hello) and not self._introduced(connection, decoded):
            return
        if decoded is None or not connection.peer_region:
            return
        if self._owners is not None and connection in self._owners:
            if isinstance(decoded, Hello):
                reply(self.core.greeting())
                self._owners.tell(connection)
            return
        self.core.received(connection.peer_region, decoded, reply, self._now_ms())
        self._tick_soon()

    def _introduced(self, connection: Connected, hello: Hello) -> bool:
        """The peer named itself. False: its credentials are another region's."""
        if hello.region != connection.peer_name:
            connection.end(f"region {connection.peer_name} introduced itself as {hello.region!r}")
            return False
        peer = peer_name(hello.region, hello.broker)
        if not connection.peer_region:
            self._on_heard(hello.region)
            self.links.nudge(peer)
        if hello.asks_owners and self._owners is not None:
            self._owners.add(connection)
        elif hello.region in self.links.status() and self._arrived.get(connection) != peer:
            self._hung_up(connection)
            self._arrived[connection] = peer
            self.core.divided.arrived(peer)
        connection.peer_region = peer
        return True

    def _hung_up(self, connection: Connected) -> None:
        if (peer := self._arrived.pop(connection, None)) is not None:
            self.core.divided.hung_up(peer)

    def gone(self, connection: Connected) -> None:
        """A peer's connection to us ended: it will open another one."""
        log.info("region %s closed its connection to this broker; it will open another one", connection.peer_region)
        self._hung_up(connection)
        if self._owners is not None:
            self._owners.discard(connection)

    def _decode(self, peer: str, kind: int, message: Any) -> PeerMessage | None:
        try:
            return decode(kind, message)
        except ValueError as error:
            log.warning(
                "ignoring command %d from %s, because it cannot be decoded: %s", kind, peer or "a new peer", error
            )
            return None

    # -- time ----------------------------------------------------------------------------------------------------

    def _tick_soon(self) -> None:
        if not self._ticking and not self._closed:
            self._ticking = True
            self._loop.call_soon(self._tick)

    def _tick(self) -> None:
        self._ticking = False
        if self._closed:
            return
        now = self._now_ms()
        self.core.tick(now)
        deadline = self.core.next_deadline()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if deadline is not None:
            self._timer = self._loop.call_later(max(deadline - now, 0) / 1000 + 0.0005, self._tick)


def _write(connection: Connected, message: PeerMessage) -> None:
    if connection.transport is not None:
        connection.write(encode(message))


def _sender(send: Send) -> Callable[[PeerMessage], None]:
    def send_message(message: PeerMessage) -> None:
        try:
            send(*command(message))
        except ConnectionLost:
            pass  # ``disconnected`` follows in a moment, and digests repair it

    return send_message
