# SPDX-License-Identifier: Apache-2.0
"""The progress exchange on simulated links, in place of a real broker's ``gateway/exchange.py``."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Final

from meridian_broker.ledgers.store import WhenDurable
from meridian_broker.positions import Progress
from meridian_broker.replication.progress.exchange import ProgressExchange
from meridian_broker.replication.progress.messages import Hello, PeerMessage
from meridian_broker.replication.progress.waits import WaitResult
from simulation import versions
from simulation.loop import Timer
from simulation.network import Connection

if TYPE_CHECKING:
    from simulation.stage import Broker

REDIAL_US: Final = 700_000


class ExchangeLinks:
    """``topics.topic.Exchange`` of one broker, and its links to the other regions."""

    def __init__(self, broker: Broker, core: ProgressExchange) -> None:
        self._broker = broker
        self._world = broker.world
        self.core = core
        self._ticking = False
        self._timer: Timer | None = None
        self._links: dict[str, Connection] = {}
        self._dialling: set[str] = set()
        for region in self._others():
            core.add_peer(region)
        core.set_wake(self._tick_soon)
        if core.leases is not None:
            core.leases.wake = self._tick_soon

    def _others(self) -> list[str]:
        return [name for name in self._world.names if name != self._broker.region]

    def start(self) -> None:
        for region in self._others():
            self.nudge(region)

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

    def send_pending(self) -> None:
        self.core.send_pending(self._broker.mono_ms())
        self._tick_soon()

    def barrier(self, topic: str, subscription: str, passed: Callable[[], None]) -> None:
        heard = self._world.model.barrier_begun(self._broker.home, topic, subscription)

        def done(result: WaitResult) -> None:
            heard(result)
            passed()

        self.core.barrier(topic, subscription, self._broker.mono_ms(), done)
        self._tick_soon()

    def flush(self, topic: str, subscription: str, passed: Callable[[], None]) -> None:
        heard = self._world.model.flush_begun(self._broker.home, topic, subscription)

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

    def nudge(self, region: str) -> None:
        """Try to reach the region now, unless there is a link."""
        link = self._links.get(region)
        if (link is None or not link.is_open) and region not in self._dialling:
            self._dialling.add(region)
            delay = 2 * self._world.weather.delay_us(self._broker.region, region)
            self._world.loop.after(delay, self._broker, lambda: self._dial(region))

    def _dial(self, region: str) -> None:
        self._dialling.discard(region)
        target = self._world.regions[region].broker_of("")
        if target is None or not self._world.network.can_dial(self._broker.region, region):
            self._later(region)
            return
        connection = self._links[region] = self._world.network.connect(self._broker, target)

        said = self._world.model.said

        def answer(message: PeerMessage) -> None:
            said(target, self._broker, message)
            put = versions.spoken(message, target.version)
            self._put(connection, 1, put, lambda: self._take(region, put, send))

        def send(message: PeerMessage) -> None:
            said(self._broker, self._broker, message)
            put = versions.spoken(message, self._broker.version)
            self._put(connection, 0, put, lambda: target.exchange.heard(self._broker.region, put, answer))

        connection.on_closed[0] = lambda: self._down(region, connection)
        self.core.connected(region, send, self._broker.mono_ms())
        self._tick_soon()

    def _put(self, connection: Connection, side: int, message: PeerMessage, arrive: Callable[[], None]) -> None:
        world = self._world
        world.sent[type(message).__name__] += 1
        if world.on_message is not None:
            source, target = connection.regions if side == 0 else connection.regions[::-1]
            tell, arrived = world.on_message, arrive

            def arrive() -> None:
                tell(source, target, message)
                arrived()

        connection.send(side, arrive, may_double=True)

    def _down(self, region: str, connection: Connection) -> None:
        if self._links.get(region) is connection:
            del self._links[region]
            self.core.disconnected(region, self._broker.mono_ms())
            self._tick_soon()
        self._later(region)

    def _later(self, region: str) -> None:
        self._world.loop.after(REDIAL_US, self._broker, lambda: self.nudge(region))

    def heard(self, region: str, message: PeerMessage, reply: Callable[[PeerMessage], None]) -> None:
        """On a connection that the region made."""
        if isinstance(message, Hello):
            self.nudge(region)
            self._broker.replication.nudge(region)
        self._take(region, message, reply)

    def _take(self, region: str, message: PeerMessage, reply: Callable[[PeerMessage], None]) -> None:
        if unknown := versions.beyond(message, self._broker.version):
            text = f"{region} sends {unknown} to {self._broker.region}, which speaks version {self._broker.version}"
            self._world.model.violate("a peer is told what it does not know", text)
        self.core.received(region, versions.spoken(message, self._broker.version), reply, self._broker.mono_ms())
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
            assert deadline > now or not self._world.weather.strict, "tick left something that is due undone"
            self._timer = self._world.loop.after(max(deadline - now, 1) * 1000, self._broker, self._tick)
