# SPDX-License-Identifier: Apache-2.0
"""The progress exchange on simulated links, in place of a real broker's ``gateway/exchange.py``."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Final, cast

from meridian_broker.ledgers.store import WhenDurable
from meridian_broker.positions import Progress
from meridian_broker.replication.peers import peer_name, region_of
from meridian_broker.replication.progress.exchange import ProgressExchange
from meridian_broker.replication.progress.messages import Hello, Owners, PeerMessage
from meridian_broker.replication.progress.waits import WaitResult
from simulation import versions
from simulation.loop import Timer
from simulation.network import Connection

if TYPE_CHECKING:
    from meridian_broker.gateway.pulsar.connected import Connected
    from simulation.owners_feed import SimFeed
    from simulation.stage import Broker

REDIAL_US: Final = 700_000


class PeerAsking:
    """The answering end of a connection that another region made, as ``gateway/exchange.py`` treats it."""

    def __init__(self, links: ExchangeLinks, reply: Callable[[PeerMessage], None], close: Callable[[], None]) -> None:
        self._links = links
        self.reply = reply
        self._close = close
        self.peer = ""
        """The region at the other end, once it has said so."""
        self.is_open = True
        self.listener = ""
        """The listener that it came through: there is only one."""

    @property
    def connection(self) -> Connected:
        """This connection, as the owners' feed expects it."""
        return cast("Connected", self)

    def heard(self, message: PeerMessage) -> None:
        """A message arrives."""
        if isinstance(message, Hello):
            self._links.introduced(message, self)
        if self.peer:
            self._links.heard(self, message)

    def end(self, _reason: str) -> None:
        """Close the connection."""
        self.is_open = False
        self._close()

    def gone(self) -> None:
        """The connection ended."""
        self.is_open = False
        if self._links.feed is not None:
            self._links.feed.discard(self.connection)


class ExchangeLinks:
    """``topics.topic.Exchange`` of one broker, and its links to the other regions."""

    def __init__(self, broker: Broker, core: ProgressExchange) -> None:
        self._broker = broker
        self._world = broker.world
        self.core = core
        self._ticking = False
        self._timer: Timer | None = None
        self._links: dict[str, Connection] = {}
        """By peer, like the next two."""
        self._dialling: set[str] = set()
        self._wanted = set(self._others())
        self.feed: SimFeed | None = None
        """None for a region's only broker."""
        for region in self._others():
            core.add_peer(region)
        core.divided.open_link = self._open
        core.divided.close_link = self._end
        core.set_wake(self._tick_soon)
        if core.leases is not None:
            core.leases.wake = self._tick_soon

    def _others(self) -> list[str]:
        return [name for name in self._world.names if name != self._broker.region]

    def start(self) -> None:
        for region in self._others():
            self.nudge(region)

    @property
    def is_coming(self) -> bool:
        """Whether a connected region, or a broker there that owns topics of ours, has not yet said all it must."""
        return any(self.core.is_connecting(region) for region in self._links if region == region_of(region))

    # -- from topics

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
        self.core.local_ack(
            topic,
            subscription,
            delta,
            self._broker.mono_ms(),
            durable,
            record_changed=record_changed,
            entries=entries,
        )

    def opened(self, topic: str) -> None:
        self.core.opened(topic)

    def send_pending(self) -> None:
        self.core.send_pending(self._broker.mono_ms())
        self._tick_soon()

    def barrier(self, topic: str, subscription: str, passed: Callable[[], None]) -> None:
        heard = self._world.model.barrier_begun(self._broker, topic, subscription)

        def done(result: WaitResult) -> None:
            heard(result)
            passed()

        self.core.barrier(topic, subscription, self._broker.mono_ms(), done)
        self._tick_soon()

    def flush(self, topic: str, subscription: str, passed: Callable[[], None]) -> None:
        heard = self._world.model.flush_begun(self._broker, topic, subscription)

        def done(result: WaitResult) -> None:
            heard(result)
            passed()

        self.core.flush(topic, subscription, self._broker.mono_ms(), done)
        self._tick_soon()

    def compare_ends(self, origins: Collection[str]) -> None:
        self.core.compare_ends(origins, self._broker.mono_ms())

    def compares_ends_with(self, region: str) -> bool:
        return self.core.compares_ends_with(region)

    # -- links

    def _open(self, peer: str) -> None:
        self._wanted.add(peer)
        self.nudge(peer)

    def _end(self, peer: str) -> None:
        self._wanted.discard(peer)
        if (connection := self._links.pop(peer, None)) is not None:
            connection.close(0)

    def nudge(self, peer: str) -> None:
        """Try to reach the peer now, unless there is a link."""
        link = self._links.get(peer)
        if peer in self._wanted and (link is None or not link.is_open) and peer not in self._dialling:
            self._dialling.add(peer)
            delay = 2 * self._world.weather.delay_us(self._broker.region, region_of(peer))
            self._world.loop.after(delay, self._broker, lambda: self._dial(peer))

    def _at(self, peer: str) -> Broker | None:
        """Who accepts connections there."""
        region, _, broker = peer.partition("/")
        if (broker and self.core.broker(peer) is None) or not self._world.network.can_dial(self._broker.region, region):
            return None
        return self._world.regions[region].reached(broker)

    def _dial(self, peer: str) -> None:
        self._dialling.discard(peer)
        if peer not in self._wanted:
            return
        target = self._at(peer)
        if target is None:
            self.core.unreachable(peer)
            self._later(peer)
            return
        connection = self._links[peer] = self._world.network.connect(self._broker, target)

        said = self._world.model.said

        def answer(message: PeerMessage) -> None:
            said(target, self._broker, message)
            put = versions.spoken(message, target.version)
            self._put(connection, 1, put, lambda: self._answered(peer, connection, put, send))

        def send(message: PeerMessage) -> None:
            said(self._broker, self._broker, message)
            put = versions.spoken(message, self._broker.version)
            self._put(connection, 0, put, lambda: asked.heard(put))

        asked = target.exchange.asked(answer, lambda: connection.close(1))
        connection.on_closed[0] = lambda: self._down(peer, connection)
        connection.on_closed[1] = asked.gone
        self.core.connected(peer, send, self._broker.mono_ms())
        self._tick_soon()

    def _answered(
        self, peer: str, connection: Connection, message: PeerMessage, send: Callable[[PeerMessage], None]
    ) -> None:
        if isinstance(message, Owners) and self._links.get(peer) is not connection:
            return  # a closed socket reports nothing; no later event would correct this one
        self._take(peer, message, send)

    def _put(self, connection: Connection, side: int, message: PeerMessage, arrive: Callable[[], None]) -> None:
        world = self._world
        world.sent[type(message).__name__] += 1
        if world.on_message is not None:
            source, target = connection.regions if side == 0 else connection.regions[::-1]
            tell, arrived = world.on_message, arrive

            def arrive() -> None:
                tell(source, target, message)
                arrived()

        connection.send(side, arrive, may_double=not isinstance(message, Owners))

    def _down(self, peer: str, connection: Connection) -> None:
        if self._links.get(peer) is connection:
            del self._links[peer]
            self.core.disconnected(peer, self._broker.mono_ms())
            self._tick_soon()
        self._later(peer)

    def _later(self, peer: str) -> None:
        self._world.loop.after(REDIAL_US, self._broker, lambda: self.nudge(peer))

    def asked(self, reply: Callable[[PeerMessage], None], close: Callable[[], None]) -> PeerAsking:
        """Another region's broker has connected."""
        return PeerAsking(self, reply, close)

    def introduced(self, hello: Hello, asking: PeerAsking) -> None:
        """A peer identifies itself, on a connection that it made."""
        peer = peer_name(hello.region, hello.broker)
        self.nudge(peer)
        self._broker.replication.nudge(hello.region)
        if hello.asks_owners and self.feed is not None:
            self.feed.add(asking.connection)
        elif hello.region in self._wanted:
            self.core.add_peer(peer)
        asking.peer = peer

    def heard(self, asking: PeerAsking, message: PeerMessage) -> None:
        """On a connection that a peer made."""
        if self.feed is not None and asking.connection in self.feed:
            if isinstance(message, Hello):
                asking.reply(self.core.greeting())
                self.feed.tell(asking.connection)
            return
        self._take(asking.peer, message, asking.reply)

    def _take(self, peer: str, message: PeerMessage, reply: Callable[[PeerMessage], None]) -> None:
        if unknown := versions.beyond(message, self._broker.version):
            text = f"{peer} sends {unknown} to {self._broker.region}, which speaks version {self._broker.version}"
            self._world.model.violate("a peer is sent what its version does not know", text)
        self.core.received(peer, versions.spoken(message, self._broker.version), reply, self._broker.mono_ms())
        self._tick_soon()

    # -- time

    def _tick_soon(self) -> None:
        if not self._ticking:
            self._ticking = True
            self._world.loop.soon(self._broker, self._tick)

    def _tick(self) -> None:
        self._ticking = False
        now = self._broker.mono_ms()
        self.core.tick(now)
        deadline = self.core.next_deadline()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if deadline is not None:
            assert deadline > now or not self._world.weather.strict, "something is still due after tick"
            self._timer = self._world.loop.after(max(deadline - now, 1) * 1000, self._broker, self._tick)
