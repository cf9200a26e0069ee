# SPDX-License-Identifier: Apache-2.0
"""The broker's side of a simulated consumer, in place of a real broker's ``gateway/pulsar/consumers.py``.

It reports each arriving acknowledgement and each delivered message to the model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from meridian_broker.ledgers.entry import MARKER
from meridian_broker.ledgers.store import LedgerError
from meridian_broker.positions import ZERO, Stamp
from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.topics.dispatch.consumer import Consumer
from meridian_broker.topics.dispatch.types import SubscriptionType
from meridian_broker.topics.service import subscribing
from meridian_broker.topics.subscriptions.closing import leave
from simulation.broker import REFUSALS
from simulation.facts import rewinds_of, subscription_of
from simulation.network import Connection
from simulation.origin_streams import delivering

if TYPE_CHECKING:
    from simulation.stage import Broker


@dataclass(slots=True)
class Held:
    """A message held by a client."""

    position: Position
    messages: int
    missing: int
    """Bits of its messages that are not acked here yet."""
    epoch: Stamp


class ConsumerClient(Protocol):
    """The client's side, as seen by the broker's side."""

    topic: str
    subscription: str
    name: str
    kind: SubscriptionType
    initial: Position
    compacted: bool

    def opened(self, server: ConsumerServer, epoch: Stamp, /) -> None:
        """The broker created the consumer."""

    def lost(self, server: ConsumerServer, /) -> None:
        """It could not be created."""

    def sent_away(self, server: ConsumerServer, /) -> None:
        """The broker closed it."""

    def close_answered(self, server: ConsumerServer, /) -> None:
        """The broker released it, as requested."""

    def receive(self, server: ConsumerServer, held: Held, /) -> None:
        """A message arrives."""


class ConsumerServer:
    """The broker's side of a consumer's connection, ``topics.consumer.ConsumerPort``."""

    def __init__(self, client: ConsumerClient, broker: Broker, connection: Connection) -> None:
        self._client = client
        self._broker = broker
        self._model = broker.world.model
        self.connection = connection
        self._consumer: Consumer | None = None
        self._is_gone = False
        self._acked_to: Position = EARLIEST
        self._order: dict[Position, int] = {}
        """When each entry was first sent, in this connection's count."""

    async def open(self) -> None:
        """SUBSCRIBE."""
        client, broker = self._client, self._broker
        topic = None
        try:
            topic = await broker.open_topic(client.topic)
            if client.subscription not in topic.subscriptions:
                self._model.creation_asked(broker.home, client.topic, client.subscription, client.initial, topic)
            subscription = await subscribing.subscription(
                broker.service.parts,
                *(topic, client.subscription),
                durable=True,
                replicated=True,
                initial=client.initial,
                properties={},
                read_compacted=client.compacted,
            )
            self._model.creation_seen(broker.home, client.topic, subscription)
            if self._is_gone:
                return
            self._consumer = topic.subscribing.add_consumer(
                *(subscription, self, 1, client.name, client.kind, 0, None), read_compacted=client.compacted
            )
        except REFUSALS:
            self._model.creation_refused(client.topic, client.subscription, client.initial, topic)
            self.connection.send(1, lambda: client.lost(self))
            return
        epoch = self._consumer.epoch
        self.connection.send(1, lambda: client.opened(self, epoch))

    # -- requests of the client

    def flow(self, permits: int) -> None:
        self.connection.send(0, lambda: self._consumer.flow(permits) if self._consumer is not None else None)

    def ack(self, positions: list[Position], batches: dict[Position, int], messages: dict[Position, int]) -> None:
        def arrive() -> None:
            consumer = self._consumer
            if consumer is None:
                return
            bits = {p: (1 << messages[p]) - 1 & ~batches.get(p, 0) for p in positions}
            model, home, topic = self._model, self._broker.home, self._client.topic
            late = {p: acked for p, acked in bits.items() if not self._was_sent(consumer, p)}
            counting = {p: acked for p, acked in bits.items() if p not in late}
            told = [
                model.acking(home, topic, consumer, part, epoch)
                for part, epoch in ((counting, consumer.epoch), (late, ZERO))
                if part
            ]
            consumer.subscription.acknowledge(consumer, positions, batches or None, _all(told))

        self.connection.send(0, arrive)

    def acknowledges_to(self, position: Position) -> Position:
        """The position after which a cumulative ack counts: it does not cover redeliveries before the last one."""
        before, self._acked_to = self._acked_to, max(self._acked_to, position)
        return before if position > before else EARLIEST

    def ack_cumulative(self, position: Position, behind: Position) -> None:
        def arrive() -> None:
            consumer = self._consumer
            if consumer is not None:
                model, home, topic = self._model, self._broker.home, self._client.topic
                told = model.acking_up_to(
                    *(home, topic, consumer, behind, position),
                    lambda p: self._was_sent(consumer, p),
                    lambda p: self._order.get(p, 0) > self._order.get(position, 0) > 0,
                    self._order.keys() if consumer.read_compacted else None,
                )
                consumer.subscription.acknowledge_cumulative(consumer, position, None, _all(told))

        self.connection.send(0, arrive)

    def ack_stray(self, position: Position) -> None:
        """A cumulative ack with another region's id: it names nothing here, so it acknowledges nothing."""

        def arrive() -> None:
            if self._consumer is not None:
                self._consumer.subscription.acknowledge_cumulative(self._consumer, position, None, lambda _: None)

        self.connection.send(0, arrive)

    def _was_sent(self, consumer: Consumer, position: Position) -> bool:
        """Has this run of the broker sent it since the last rewind? Only then does an ack count afterwards (R13)."""
        subscription = subscription_of(consumer)
        return self._broker.sent.get((subscription, position)) == rewinds_of(subscription.cursor.progress)

    def nack(self, positions: list[Position] | None) -> None:
        def arrive() -> None:
            if self._consumer is not None:
                self._consumer.subscription.send_again(self._consumer, positions, 0)

        self.connection.send(0, arrive)

    def close(self) -> None:
        """CLOSE_CONSUMER, answered like ``gateway/pulsar/consumers.py``."""

        def arrive() -> None:
            consumer, self._consumer = self._consumer, None
            if consumer is None:
                self._answer_close()
                return
            leave(consumer, lambda _: self._answer_close())

        self.connection.send(0, arrive)

    def _answer_close(self) -> None:
        self.connection.send(1, lambda: self._client.close_answered(self))

    def gone(self) -> None:
        self._is_gone = True
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.subscription.leave(consumer)

    # -- topics.consumer.ConsumerPort

    def deliver(
        self, consumer: Consumer, position: Position, entry: bytes, redeliveries: int, remaining: int | None
    ) -> None:
        messages = int.from_bytes(entry[4:8], "big")
        missing = (1 << messages) - 1 if remaining is None else remaining
        model = self._model
        if entry[1] & MARKER:
            model.violate("a client saw a marker", f"{self._broker.region} sent {position}")
        delivering(self._broker, self._client.topic, consumer, position)
        if self._broker.delivers(
            self._client.topic
        ):  # only its lease keeps an earlier owner from delivering what it has in memory
            topic = self._client.topic
            model.delivering(self._broker, topic, subscription_of(consumer), position, entry, missing)
        subscription = subscription_of(consumer)
        self._broker.sent[subscription, position] = rewinds_of(subscription.cursor.progress)
        self._order.setdefault(position, len(self._order) + 1)
        held = Held(position, messages, missing, consumer.epoch)
        self.connection.send(1, lambda: self._client.receive(self, held))

    def writable(self) -> bool:
        return True

    def disconnect_consumer(self, consumer: Consumer) -> None:
        if self._consumer is consumer:
            self._consumer = None
            self.connection.send(1, lambda: self._client.sent_away(self))

    def active_consumer_changed(self, consumer: Consumer, active: bool) -> None:
        """The client ignores it."""

    def reached_end(self, consumer: Consumer) -> None:
        """Nothing may be delivered after this: ``Model.delivering`` checks."""


def _all(told: list[Callable[[LedgerError | None], None]]) -> Callable[[LedgerError | None], None]:
    def heard(error: LedgerError | None) -> None:
        for one in told:
            one(error)

    return heard
