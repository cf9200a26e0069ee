# SPDX-License-Identifier: Apache-2.0
"""Simulated producers: they resend messages without a receipt.

Whenever a connection ends they look up their region's broker again, like client libraries.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from meridian_broker.bounds.clients import BATCHED_MESSAGE_BYTES
from meridian_broker.positions.position import Position
from meridian_broker.topics.errors import TopicTerminated
from meridian_broker.topics.publishing.producer import Producer
from meridian_broker.topics.retention import backlog_quotas
from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar import metadata
from meridian_broker.wire.pulsar.frames import Send
from simulation.broker import REFUSALS, NoPartition
from simulation.names import RETRY_US
from simulation.network import Connection

if TYPE_CHECKING:
    from simulation.stage import Broker, Stage


@dataclass(slots=True)
class Unreceipted:
    sequence: int
    payload: bytes
    messages: int
    body: bytes


class SimProducer:
    """One producer of one topic in one region."""

    def __init__(self, world: Stage, region: str, topic: str) -> None:
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
        """One entry with a number of messages."""
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
            payload = payload.ljust(BATCHED_MESSAGE_BYTES * messages, b".")
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
        self.world.regions[self.region].look_up(self, self.topic, self._found)

    def _found(self, broker: Broker | None) -> None:
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

    def ended(self, server: ProducerServer) -> None:
        """The topic accepts no more messages or is deleted: the application learns that nothing more will be stored."""
        if self._asked is server:
            self._asked = self._server = None
            self._connecting = False
            self.pending.clear()

    def receipt(self, server: ProducerServer, sequence: int, position: Position) -> None:
        if self._server is server and self.pending and self.pending[0].sequence == sequence:
            sent = self.pending.popleft()
            if server.is_of_now:
                self.world.model.receipted(self.world.regions[self.region], self.topic, position, sent.payload)


class ProducerServer:
    """The broker's side of a producer's connection, ``topics.producer.ProducerPort``."""

    def __init__(self, client: SimProducer, broker: Broker, connection: Connection, epoch: int) -> None:
        self._client = client
        self._broker = broker
        self._connection = connection
        self._epoch = epoch
        self._producer: Producer | None = None
        self._is_gone = False

    async def open(self) -> None:
        try:
            topic = await self._broker.open_topic(self._client.topic)
            if topic.backfill is not None:
                await topic.scheduler.answer(topic.backfill.ready)
            made = Producer(
                topic, self, 1, f"p-{self._client.region}", name_is_given=False, epoch=self._epoch, connected_since_ms=0
            )
            await backlog_quotas.check_producer(topic)
            topic.admission.add(made)
        except (TopicTerminated, NoPartition):
            self._connection.send(1, lambda: self._client.ended(self))
            return
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
        """Whether the region has not been restored since."""
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
        """The client sends it again."""

    def has_read(self, *_: object) -> None: ...

    def repeated(self, producer: Producer, send: Send) -> None:
        """Deduplication is off here."""

    def hold(self, wait_ms: Callable[[], int]) -> None:
        """No rate limits are set here."""

    def refused(self, producer: Producer, send: Send, error: Exception) -> None:
        raise error

    def disconnect_producer(self, producer: Producer) -> None:
        if self._producer is producer:
            self._producer = None
            self._connection.send(1, lambda: self._client.closed(self))
