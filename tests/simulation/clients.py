# SPDX-License-Identifier: Apache-2.0
"""Simulated clients: producers that send again what has no receipt, consumers that ack as they are told.

They behave as client libraries do: on any end of the connection they look for the broker of their region again. What a
consumer holds when its broker *sends it away* or it was rewound meanwhile it does not work on any more (the library
empties its queue), but the application may have taken it before, and ack it late; what it holds when the connection
breaks it keeps and may still ack.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from meridian_broker.ledgers.entry import MARKER
from meridian_broker.ledgers.store import LedgerError
from meridian_broker.positions import ZERO, Stamp
from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.topics.consumer import Consumer
from meridian_broker.topics.producer import Producer
from meridian_broker.topics.subscription import SubscriptionType
from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar import metadata
from meridian_broker.wire.pulsar.frames import Send
from simulation.broker import REFUSALS, SimBroker
from simulation.facts import rewinds_of, subscription_of
from simulation.network import Connection
from simulation.sharing import delivering

if TYPE_CHECKING:
    from simulation.world import World

RETRY_US: Final = 500_000
PERMITS: Final = 40
LATE_MAX: Final = 20
SHARING: Final = (SubscriptionType.SHARED, SubscriptionType.KEY_SHARED)


@dataclass(slots=True)
class Unreceipted:
    sequence: int
    payload: bytes
    messages: int
    body: bytes


class SimProducer:
    """One producer of one topic in one region."""

    def __init__(self, world: World, region: str, topic: str) -> None:
        self.world = world
        self.alive = True
        self.region = region
        self.topic = topic
        self.pending: deque[Unreceipted] = deque()
        self._sequence = 0
        self._epoch = 0
        self._server: ProducerServer | None = None
        self._asked: ProducerServer | None = None
        self._connecting = False

    def produce(self, messages: int, key: str | None = None) -> None:
        """One entry of so many messages."""
        world = self.world
        world.payloads += 1
        payload = b"#%d" % world.payloads
        fields = pb.MessageMetadata(
            producer_name="p",
            sequence_id=self._sequence,
            publish_time=world.regions[self.region].wall_ms(),
        )
        if key is not None:
            fields.partition_key = key
        if messages > 1:
            fields.num_messages_in_batch = messages
        body = metadata.build_body(fields.SerializeToString(), payload)
        sent = Unreceipted(self._sequence, payload, messages, body)
        self._sequence += 1
        self.pending.append(sent)
        if self._server is not None:
            self._server.transmit(sent)
        else:
            self.connect()

    def connect(self) -> None:
        if self._connecting or self._server is not None:
            return
        self._connecting = True
        broker = self.world.regions[self.region].broker_of(self.topic)
        if broker is None:
            self._again()
            return
        self._epoch += 1
        connection = self.world.network.connect(self, broker)
        server = self._asked = ProducerServer(self, broker, connection, self._epoch)
        connection.on_closed[0] = lambda: self.closed(server)
        connection.on_closed[1] = server.gone
        connection.send(0, lambda: broker.spawn(server.open(), "open a producer"))

    def _again(self) -> None:
        self.world.loop.after(RETRY_US, self, self._retry)

    def _retry(self) -> None:
        self._connecting = False
        self.connect()

    def opened(self, server: ProducerServer) -> None:
        if self._asked is not server:
            return
        self._connecting = False
        self._server = server
        for sent in self.pending:
            server.transmit(sent)

    def closed(self, server: ProducerServer) -> None:
        if self._asked is server:
            self._asked = self._server = None
            self._connecting = True
            self._again()

    def receipt(self, server: ProducerServer, sequence: int, position: Position) -> None:
        if self._server is server and self.pending and self.pending[0].sequence == sequence:
            sent = self.pending.popleft()
            if server.is_of_now:
                self.world.model.receipted(self.world.regions[self.region], self.topic, position, sent.payload)


class ProducerServer:
    """The broker's side of a producer's connection, ``topics.producer.ProducerPort``."""

    def __init__(self, client: SimProducer, broker: SimBroker, connection: Connection, epoch: int) -> None:
        self._client = client
        self._broker = broker
        self._connection = connection
        self._epoch = epoch
        self._producer: Producer | None = None
        self._is_gone = False

    async def open(self) -> None:
        try:
            topic = await self._broker.open_topic(self._client.topic)
            if topic.recall is not None:
                await topic.scheduler.answer(topic.recall.ready)
            made = Producer(
                topic, self, 1, f"p-{self._client.region}", name_is_given=False, epoch=self._epoch, connected_since_ms=0
            )
            topic.add_producer(made)
        except REFUSALS:
            self._connection.send(1, lambda: self._client.closed(self))
            return
        if self._is_gone:
            topic.remove_producer(made)
            return
        self._producer = made
        self._connection.send(1, lambda: self._client.opened(self))

    @property
    def is_of_now(self) -> bool:
        """The region was not restored since."""
        return self._broker.restores == self._broker.home.restores

    def transmit(self, sent: Unreceipted) -> None:
        send = Send(6, 1, sent.sequence, None, sent.messages, False, False, None, None, False, True, sent.body)
        self._connection.send(0, lambda: self._take(send))

    def _take(self, send: Send) -> None:
        producer = self._producer
        if producer is not None:
            producer.topic.publish(producer, [send])

    def gone(self) -> None:
        self._is_gone = True
        if self._producer is not None:
            self._producer.topic.remove_producer(self._producer)
            self._producer = None

    def stored(self, producer: Producer, sends: list[Send], first: Position) -> None:
        for entry, send in enumerate(sends, first.entry):
            self._receipt(send.sequence_id, Position(first.ledger, entry))

    def _receipt(self, sequence: int, position: Position) -> None:
        self._broker.world.model.stored(self._broker.home, position)
        self._connection.send(1, lambda: self._client.receipt(self, sequence, position))

    def dropped(self, sends: list[Send]) -> None:
        """It is sent again."""

    def repeated(self, producer: Producer, send: Send) -> None:
        """Deduplication is off here."""

    def hold(self, wait_ms: Callable[[], int]) -> None:
        """No rates are set here."""

    def refused(self, producer: Producer, send: Send, error: Exception) -> None:
        raise error

    def disconnect_producer(self, producer: Producer) -> None:
        if self._producer is producer:
            self._producer = None
            self._connection.send(1, lambda: self._client.closed(self))


@dataclass(slots=True)
class Held:
    """A message at a client."""

    position: Position
    messages: int
    missing: int
    """Bits of the messages in it that are still to be acked here."""
    epoch: Stamp


class SimConsumer:
    """One consumer. It holds what it got until it is told to ack."""

    def __init__(
        self, world: World, name: str, region: str, topic: str, subscription: str, kind: SubscriptionType
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
        self.probe: dict[Position, int] | None = None
        """Given: only looks; what it got, with the bits."""
        self.held: dict[Position, Held] = {}
        self.late: dict[Position, Held] = {}
        """What the application still has from before it was sent away."""
        self.is_narrow = False
        """On its next connection it has room for one message only."""
        self._refills = True
        self.server: ConsumerServer | None = None
        self._asked: ConsumerServer | None = None
        self._connecting = False
        self._received = 0
        self.closing: Callable[[], None] | None = None
        self.is_closed = False
        self.got: list[tuple[Position, int]] = []
        """Since somebody looked last: for stories."""

    # -- connection

    def connect(self) -> None:
        if self._connecting or self.server is not None or self.is_closed:
            return
        self._connecting = True
        broker = self.world.regions[self.region].broker_of(self.topic)
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
        """The connection broke, or could not be made."""
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
        """The connection breaks under it; it comes back by itself."""
        if self.server is not None:
            self.server.connection.snap()

    def close(self, then: Callable[[], None]) -> None:
        """In good order: ``then`` once the broker answered."""
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
        """One ACK. ``parts``: of entries acked in part, the bits that *are* acked by it."""
        server = self.server
        chosen = [self.held[position] for position in positions if position in self.held]
        if server is None or not chosen:
            return
        whole: dict[Position, int] = {}
        batches: dict[Position, int] = {}
        for held in chosen:
            bits = held.missing if parts is None else parts.get(held.position, held.missing) & held.missing
            held.missing &= ~bits
            # A client that has all of a batch, over several ACK, acks the entry; else it says what is missing still.
            if held.missing:
                batches[held.position] = held.missing
            else:
                del self.held[held.position]
            whole[held.position] = bits
        server.ack([held.position for held in chosen], batches, {h.position: h.messages for h in chosen})

    def ack_late(self, count: int) -> None:
        """One ACK of the oldest it has from before it was sent away, whatever came again meanwhile."""
        server = self.server
        chosen = [self.late.pop(position) for position in list(self.late)[:count]] if server is not None else []
        if server is not None and chosen:
            for held in chosen:
                self.held.pop(held.position, None)
            server.ack([held.position for held in chosen], {}, {h.position: h.messages for h in chosen})

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
        """Some of what is held: the oldest, the newest, or every other one."""
        held = list(self.held)
        if which == "newest":
            return held[-count:]
        if which == "every2":
            return held[::2][:count]
        return held[:count]


class ConsumerServer:
    """The broker's side of a consumer's connection, ``topics.consumer.ConsumerPort``."""

    def __init__(self, client: SimConsumer, broker: SimBroker, connection: Connection) -> None:
        self._client = client
        self._broker = broker
        self._model = broker.world.model
        self.connection = connection
        self._consumer: Consumer | None = None
        self._is_gone = False
        self._acked_to: Position = EARLIEST
        self._order: dict[Position, int] = {}
        """When each entry was sent first, in this connection's count."""

    async def open(self) -> None:
        """SUBSCRIBE."""
        client, broker = self._client, self._broker
        topic = None
        try:
            topic = await broker.open_topic(client.topic)
            if client.subscription not in topic.subscriptions:
                self._model.subscription_made(broker.home, client.topic, client.subscription, client.initial, topic)
            subscription = await broker.service.subscription(
                topic, client.subscription, durable=True, replicated=True, initial=client.initial, properties={}
            )
            self._model.subscription_seen(broker.home, client.topic, subscription)
            if self._is_gone:
                return
            self._consumer = topic.add_consumer(subscription, self, 1, client.name, client.kind, 0, None)
        except REFUSALS:
            self._model.subscription_refused(client.topic, client.subscription, client.initial, topic)
            self.connection.send(1, lambda: client.lost(self))
            return
        epoch = self._consumer.epoch
        self.connection.send(1, lambda: client.opened(self, epoch))

    # -- what the client asks

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
        """Behind which place a cumulative ack is: what comes again before the last one it says nothing of."""
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
                )
                consumer.subscription.acknowledge_cumulative(consumer, position, None, _all(told))

        self.connection.send(0, arrive)

    def _was_sent(self, consumer: Consumer, position: Position) -> bool:
        """Did this life of the broker send it since the last rewind? Only then an ack counts after that (R13)."""
        subscription = subscription_of(consumer)
        return self._broker.sent.get((subscription, position)) == rewinds_of(subscription.progress)

    def nack(self, positions: list[Position] | None) -> None:
        def arrive() -> None:
            if self._consumer is not None:
                self._consumer.subscription.send_again(self._consumer, positions, 0)

        self.connection.send(0, arrive)

    def close(self) -> None:
        """CLOSE_CONSUMER, as ``gateway/pulsar/consumers.py`` answers it."""

        def arrive() -> None:
            consumer, self._consumer = self._consumer, None
            if consumer is None:
                self._answer_close()
                return
            subscription = subscription_of(consumer)
            topic = subscription.topic
            subscription.claims.flush()
            topic.remove_consumer(consumer)

            def durable(error: LedgerError | None) -> None:
                if error is not None or not subscription.replicated or topic.exchange is None:
                    self._answer_close()
                else:
                    topic.exchange.flush(topic.name, subscription.name, self._answer_close)

            topic.progress_log.when_durable(durable)

        self.connection.send(0, arrive)

    def _answer_close(self) -> None:
        self.connection.send(1, lambda: self._client.close_answered(self))

    def gone(self) -> None:
        self._is_gone = True
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.subscription.topic.remove_consumer(consumer)

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
        if self._broker.is_owner:  # nothing but a lease of its own keeps an earlier owner from what it has in memory
            home, topic = self._broker.home, self._client.topic
            model.delivering(home, topic, subscription_of(consumer), position, entry, missing)
        subscription = subscription_of(consumer)
        self._broker.sent[subscription, position] = rewinds_of(subscription.progress)
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
        """Nothing the client has to do."""

    def reached_end(self, consumer: Consumer) -> None:
        """Topics are not terminated here."""


def _all(told: list[Callable[[LedgerError | None], None]]) -> Callable[[LedgerError | None], None]:
    def heard(error: LedgerError | None) -> None:
        for one in told:
            one(error)

    return heard
