# SPDX-License-Identifier: Apache-2.0
"""The two ends of the event topic inside a broker: a producer and a consumer that are not clients."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from meridian_broker.gateway.pulsar.refusals import REFUSALS
from meridian_broker.ledgers.entry import unpack
from meridian_broker.metadata.store import MetadataUnavailable
from meridian_broker.positions.position import Position
from meridian_broker.topics.dispatch.consumer import Consumer
from meridian_broker.topics.publishing.producer import Producer
from meridian_broker.topics.service.service import TopicService
from meridian_broker.topics.topic import Topic
from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar import metadata, topic_name
from meridian_broker.wire.pulsar.frames import SEND, Send

SEND_SECONDS: Final = 30.0
"""A message whose receipt takes longer is sent again, over a new producer."""
PERMITS: Final = 50
"""Messages taken from the topic ahead of the one that is being applied."""


@dataclass(frozen=True, slots=True)
class Arrived:
    """A message of the topic."""

    position: Position
    region: str
    payload: bytes | None
    """None: it is a batch or compressed, so no broker of a region wrote it."""


class Sender:
    """A producer inside the broker that sends one message at a time. Implements ``ProducerPort``."""

    def __init__(self, topic: str, name: str, service: TopicService) -> None:
        self._topic = topic
        self._names = (f"{name}-metadata-{number}" for number in itertools.count())
        self._service = service
        self._producer: Producer | None = None
        self._sequence = 0
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._wait_ms: Callable[[], int] = lambda: 0
        self._lock = asyncio.Lock()

    async def send(self, payload: bytes, properties: dict[str, str] | None = None, only_to: str = "") -> None:
        """Returns once it is durable. :raises MetadataError: it may or may not be stored."""
        async with self._lock:
            producer = await self._opened()
            if (wait_ms := self._wait_ms()) > 0:
                await asyncio.sleep(wait_ms / 1000)
            sequence, self._sequence = self._sequence, self._sequence + 1
            body = self._body(producer.name, sequence, payload, properties or {}, only_to)
            receipt = self._waiting[sequence] = asyncio.get_running_loop().create_future()
            sent = Send(SEND, 0, sequence, None, 1, False, False, None, None, False, True, body)
            try:
                producer.topic.publish(producer, [sent])
                async with asyncio.timeout(SEND_SECONDS):
                    await receipt
            except TimeoutError:
                self.close(f"{self._topic} did not store a message within {SEND_SECONDS:.0f} s")
                raise MetadataUnavailable(f"{self._topic} did not store an event in time") from None
            finally:
                self._waiting.pop(sequence, None)

    async def _opened(self) -> Producer:
        if self._producer is not None:
            return self._producer
        try:
            topic = await self._service.opener.topic(topic_name.parse(self._topic), create=True)
            send_clients_away(topic)
            made = Producer(
                topic,
                self,
                0,
                next(self._names),
                name_is_given=False,
                epoch=0,
                connected_since_ms=topic.scheduler.now_ms(),
            )
            await topic.scheduler.answer(lambda told: topic.admit(made, told))
        except REFUSALS as error:
            raise MetadataUnavailable(f"{self._topic} does not accept events now: {error}") from error
        self._producer = made
        return made

    def _body(self, name: str, sequence: int, payload: bytes, properties: dict[str, str], only_to: str) -> bytes:
        described = pb.MessageMetadata(
            producer_name=name,
            sequence_id=sequence,
            publish_time=self._service.parts.scheduler.now_ms(),
            replicate_to=[only_to] if only_to else [],
        )
        for key, value in properties.items():
            described.properties.add(key=key, value=value)
        return metadata.build_body(described.SerializeToString(), payload)

    def close(self, reason: str) -> None:
        """Messages without a receipt fail."""
        made, self._producer = self._producer, None
        if made is not None:
            made.topic.remove_producer(made)
        for receipt in self._waiting.values():
            if not receipt.done():
                receipt.set_exception(MetadataUnavailable(reason))

    # -- ProducerPort

    def stored(self, producer: Producer, sends: list[Send], first: Position) -> None:  # noqa: ARG002
        for send in sends:
            self._answer(send, None)

    def dropped(self, sends: list[Send]) -> None:
        for send in sends:
            self._answer(send, MetadataUnavailable(f"{self._topic} was closed before an event was stored"))

    def repeated(self, producer: Producer, send: Send) -> None:  # noqa: ARG002
        self._answer(send, None)

    def refused(self, producer: Producer, send: Send, error: Exception) -> None:  # noqa: ARG002
        self._answer(send, MetadataUnavailable(f"{self._topic} refused an event: {error}"))

    def has_read(self, producer: Producer, send: Send, position: Position) -> None:
        """Only shadow replicators are told."""

    def hold(self, wait_ms: Callable[[], int]) -> None:
        self._wait_ms = wait_ms

    def disconnect_producer(self, producer: Producer) -> None:
        if self._producer is producer:
            self._producer = None

    def _answer(self, send: Send, error: Exception | None) -> None:
        receipt = self._waiting.get(send.sequence_id)
        if receipt is None or receipt.done():
            return
        if error is None:
            receipt.set_result(None)
        else:
            receipt.set_exception(error)


class Reader:
    """A consumer inside the broker. Implements ``ConsumerPort``."""

    def __init__(self, region: str) -> None:
        self.consumer: Consumer | None = None
        self._region = region
        self.is_active = False
        self._arrived: asyncio.Queue[Arrived | None] = asyncio.Queue(2 * PERMITS)
        self._is_ended = False

    async def next(self) -> list[Arrived]:
        """All that has arrived, in order, waiting for the first message; empty: the topic was closed."""
        some: list[Arrived] = []
        while not self._is_ended and not (some and self._arrived.empty()):
            arrived = await self._arrived.get()
            if arrived is None:
                self._is_ended = True
            else:
                some.append(arrived)
        return some

    def done(self, some: Sequence[Arrived]) -> None:
        """Acknowledge messages that are applied."""
        if self.consumer is not None:
            self.consumer.subscription.acknowledge(self.consumer, [one.position for one in some])
            self.consumer.flow(len(some))

    def close(self) -> None:
        consumer, self.consumer = self.consumer, None
        self.is_active = False
        if consumer is not None:
            consumer.subscription.leave(consumer)

    # -- ConsumerPort

    def deliver(
        self,
        consumer: Consumer,  # noqa: ARG002
        position: Position,
        entry: bytes,
        redeliveries: int,  # noqa: ARG002
        remaining: int | None,  # noqa: ARG002
    ) -> None:
        header = unpack(entry)
        payload = _payload(entry[header.body_offset :])
        self._arrived.put_nowait(Arrived(position, header.region or self._region, payload))

    def writable(self) -> bool:
        return True

    def disconnect_consumer(self, consumer: Consumer) -> None:
        if self.consumer is consumer:
            self.consumer = None
        self.is_active = False
        self._arrived.put_nowait(None)

    def active_consumer_changed(self, consumer: Consumer, active: bool) -> None:  # noqa: ARG002
        self.is_active = active

    def reached_end(self, consumer: Consumer) -> None:
        """The topic was terminated. Status shows it when the next event cannot be published."""


def send_clients_away(topic: Topic) -> None:
    """Disconnect clients that connected before the topic was chosen. Replicators of other regions stay."""
    for producer in list(topic.producers.values()):
        if producer.remote_region is None and not isinstance(producer.port, Sender):
            topic.remove_producer(producer)
            producer.port.disconnect_producer(producer)
    for subscription in topic.subscriptions.values():
        if not all(isinstance(consumer.port, Reader) for consumer in subscription.consumers):
            subscription.disconnect_consumers()


def _payload(body: bytes) -> bytes | None:
    """The payload of a message as ``Sender`` makes it; None: it has another form."""
    try:
        view = metadata.scan(body)
    except metadata.BodyError:
        return None
    if view.is_batch or view.compression or view.encrypted or view.uuid is not None:
        return None
    return body[view.payload_offset :]
