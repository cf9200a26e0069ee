# SPDX-License-Identifier: Apache-2.0
"""Simulated consumers: they hold what they received, and ack on command.

They behave like client libraries: whenever a connection ends they look up their region's broker again. When the broker
*disconnects* a consumer, or after a rewind, the library empties its queue, but the application may have taken messages
before and ack them late. When the connection breaks, the consumer keeps its messages and may still ack them.
``consuming.py`` is the broker's side.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from meridian_broker.positions import Stamp
from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.topics.dispatch.types import KEY_SHARED, SHARED, SubscriptionType
from simulation.consuming import ConsumerServer, Held
from simulation.names import RETRY_US

if TYPE_CHECKING:
    from simulation.stage import Broker, Stage

PERMITS: Final = 40
LATE_MAX: Final = 20
SHARING: Final = (SHARED, KEY_SHARED)


class SimConsumer:
    """A consumer. It holds its messages until told to ack."""

    def __init__(
        self, world: Stage, name: str, region: str, topic: str, subscription: str, kind: SubscriptionType
    ) -> None:
        self.world = world
        self.alive = True
        self.name = name
        self.region = region
        self.topic = topic
        self.subscription = subscription
        self.kind = kind
        self.initial: Position = EARLIEST
        self.auto = False
        self.compacted = False
        """Whether it reads the compacted view."""
        self.probe: dict[Position, int] | None = None
        """If given, the consumer only reads, and this is what it received, with the bits."""
        self.held: dict[Position, Held] = {}
        self.late: dict[Position, Held] = {}
        """Messages that the application still has from before a disconnection."""
        self.is_narrow = False
        """On its next connection it takes only one message."""
        self._refills = True
        self.server: ConsumerServer | None = None
        self._asked: ConsumerServer | None = None
        self._connecting = False
        self._looks = 0
        self._received = 0
        self.closing: Callable[[], None] | None = None
        self.is_closed = False
        self.got: list[tuple[Position, int]] = []
        """Received since a story last asked."""

    # -- connection

    def connect(self) -> None:
        if self._connecting or self.server is not None or self.is_closed:
            return
        self._connecting = True
        self._looks += 1
        look = self._looks
        self.world.regions[self.region].look_up(self, self.topic, lambda broker: self._found(look, broker))

    def _found(self, look: int, broker: Broker | None) -> None:
        if look != self._looks or not self._connecting:
            return  # it was closed meanwhile
        if broker is None:
            self._again()
            return
        connection = self.world.network.connect(self, broker)
        server = self._asked = ConsumerServer(self, broker, connection)
        connection.on_closed[0] = lambda: self.lost(server)
        connection.on_closed[1] = server.gone
        connection.send(0, lambda: broker.spawn(server.open(), "subscribe"))

    def _again(self) -> None:
        self.world.loop.after(RETRY_US, self, self._retry)

    def _retry(self) -> None:
        self._connecting = False
        self.connect()

    def opened(self, server: ConsumerServer, epoch: Stamp) -> None:
        if self._asked is not server or self.is_closed:
            server.connection.close(0)
            return
        self._connecting = False
        self.server = server
        self._received = 0
        kept = {position: held for position, held in self.held.items() if held.epoch == epoch}
        self._lose({position: held for position, held in self.held.items() if position not in kept})
        self.held = kept
        server.flow(1 if self.is_narrow else PERMITS)
        self.is_narrow, self._refills = False, not self.is_narrow

    def lost(self, server: ConsumerServer) -> None:
        """The connection broke or could not be opened."""
        if self._asked is server:
            self._asked = self.server = None
            if self.closing is not None:
                self._closed()
                return
            self._connecting = True
            self._again()

    def sent_away(self, server: ConsumerServer) -> None:
        """CLOSE_CONSUMER from the broker: subscribe again."""
        if self.server is server:
            self._lose(self.held)
            self.held = {}
            self.lost(server)

    def _lose(self, held: dict[Position, Held]) -> None:
        self.late |= held
        while len(self.late) > LATE_MAX:
            del self.late[next(iter(self.late))]

    def kill(self) -> None:
        """Its connection breaks; it reconnects by itself."""
        if self.server is not None:
            self.server.connection.snap()

    def close(self, then: Callable[[], None]) -> None:
        """Close cleanly; ``then`` is called once the broker has answered."""
        self.held.clear()
        self.closing = then
        if self.server is None:
            self._asked = None
            self._connecting = False
            self._closed()
        else:
            self.server.close()

    def close_answered(self, server: ConsumerServer) -> None:
        if self.server is server and self.closing is not None:
            server.connection.close(0)
            self._asked = self.server = None
            self._closed()

    def _closed(self) -> None:
        self.is_closed = True
        then, self.closing = self.closing, None
        if then is not None:
            then()

    def reopen(self, region: str) -> None:
        self.region = region
        self.is_closed = False
        self.connect()

    # -- messages

    def receive(self, server: ConsumerServer, held: Held) -> None:
        if self.server is not server:
            return
        self._received += held.messages
        if self._received >= PERMITS // 2 and self._refills:
            server.flow(self._received)
            self._received = 0
        self.got.append((held.position, held.missing))
        if self.probe is not None:
            self.probe[held.position] = self.probe.get(held.position, 0) | held.missing
            return
        self.held[held.position] = held
        if self.auto:
            self.world.loop.soon(self, lambda: self.ack([held.position]))

    def ack(self, positions: list[Position], parts: dict[Position, int] | None = None) -> None:
        """Send one ACK. ``parts``: for partly acked entries, the bits that it acks."""
        server = self.server
        chosen = [self.held[position] for position in positions if position in self.held]
        if server is None or not chosen:
            return
        whole: dict[Position, int] = {}
        batches: dict[Position, int] = {}
        for held in chosen:
            bits = held.missing if parts is None else parts.get(held.position, held.missing) & held.missing
            held.missing &= ~bits
            # A client that has acked a whole batch, over several ACKs, acks the entry; else it sends what is missing.
            if held.missing:
                batches[held.position] = held.missing
            else:
                del self.held[held.position]
            whole[held.position] = bits
        server.ack([held.position for held in chosen], batches, {h.position: h.messages for h in chosen})

    def ack_late(self, count: int, bits: int = -1) -> None:
        """Send one ACK of its oldest messages from before a disconnection, even if they were delivered again since.

        :param bits: which messages of each batch; default: all that it has not acked yet.
        """
        server = self.server
        chosen = [self.late[position] for position in list(self.late)[:count]] if server is not None else []
        batches: dict[Position, int] = {}
        for held in chosen:
            held.missing &= ~bits
            if held.missing:
                batches[held.position] = held.missing
            else:
                del self.late[held.position]
                self.held.pop(held.position, None)
        if server is not None and chosen:
            server.ack([held.position for held in chosen], batches, {h.position: h.messages for h in chosen})

    def ack_cumulative(self, position: Position) -> None:
        server, held = self.server, self.held.get(position)
        if server is None or held is None:
            return
        behind = server.acknowledges_to(position)
        for before in [one for one in self.held if behind < one <= position]:
            del self.held[before]
        server.ack_cumulative(position, behind)

    def nack(self, positions: list[Position]) -> None:
        server = self.server
        if server is None:
            return
        if self.kind not in SHARING:
            self.held.clear()
            server.nack(None)
            return
        chosen = [position for position in positions if self.held.pop(position, None) is not None]
        if chosen:
            server.nack(chosen)

    def choose(self, count: int, which: str) -> list[Position]:
        """Some of the held messages: the oldest, the newest, or every other one."""
        held = list(self.held)
        if which == "newest":
            return held[-count:]
        if which == "every2":
            return held[::2][:count]
        return held[:count]
