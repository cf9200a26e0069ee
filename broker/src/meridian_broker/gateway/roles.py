# SPDX-License-Identifier: Apache-2.0
"""A producer and a consumer for our own programs: ``meridian produce`` and ``consume``, examples, benches.

Minimal on purpose. They live and die with one connection; for lookup, reconnecting and resending there are the real
client libraries. Both are bounded: the producer by messages without a receipt, the consumer by its permits.
"""

from __future__ import annotations

import asyncio
import struct
import time
import zlib
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from meridian_broker.gateway.client_errors import ClientError, ConnectionLost, RequestRefused
from meridian_broker.positions.position import Position
from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar import encode, metadata

if TYPE_CHECKING:
    from meridian_broker.gateway.client import PulsarClientConnection
    from meridian_broker.wire.pulsar.frames import Message

PENDING: Final = 1000
"""Messages sent without a receipt yet."""
RECEIVER_QUEUE: Final = 1000
"""Messages prefetched."""
LARGEST: Final = 64 * 1024 * 1024
"""Bytes of a decompressed payload at most: a few kilobytes on the wire could expand to gigabytes."""
_U32: Final = struct.Struct(">I")


class UnreadablePayload(ClientError):
    """The message is encrypted, or compressed in a way that these small programs do not support."""


class Received(NamedTuple):
    """One message as its producer sent it."""

    batch_index: int
    """Index in its batch; -1 if it was sent alone."""
    payload: bytes
    key: str | None
    properties: dict[str, str]
    event_time_ms: int | None


class Delivery(NamedTuple):
    """One delivered entry, with its messages."""

    position: Position
    redelivery_count: int
    metadata: pb.MessageMetadata
    messages: list[Received]
    """One message, or the messages of a batch that are not acknowledged yet."""

    @property
    def payloads(self) -> list[bytes]:
        return [message.payload for message in self.messages]


class Producer:
    """Sends single messages. Make it with ``open``."""

    def __init__(self, connection: PulsarClientConnection, topic: str) -> None:
        self.topic = topic
        self.name = ""
        self._connection = connection
        self._producer_id = 0
        self._sequence = 0
        self._pending: deque[tuple[int, asyncio.Future[Position]]] = deque()
        self._room = asyncio.Semaphore(PENDING)
        self._closed: str | None = None
        self._over = asyncio.Event()

    @classmethod
    async def open(cls, connection: PulsarClientConnection, topic: str, name: str | None = None) -> Producer:
        """:raises ClientError: the broker refuses."""
        producer = cls(connection, topic)
        command = pb.CommandProducer(
            topic=topic,
            producer_name=name,
            user_provided_producer_name=name is not None,
            producer_id=0,
            request_id=0,
        )
        opened = await connection.open_producer(command, producer)
        producer._producer_id, producer.name = opened.producer_id, opened.name
        return producer

    async def send(
        self,
        payload: bytes,
        *,
        key: str | None = None,
        properties: Mapping[str, str] | None = None,
        replicate_to: Sequence[str] = (),
        schema_version: bytes | None = None,
    ) -> asyncio.Future[Position]:
        """Send one message; waits for room. The future returns its position, or raises why it was not stored.

        :param replicate_to: only to these regions; empty: to all.
        """
        await self._room.acquire()
        if self._closed is not None:
            self._room.release()
            raise ConnectionLost(self._closed)
        sequence, self._sequence = self._sequence, self._sequence + 1
        described = pb.MessageMetadata(
            producer_name=self.name,
            sequence_id=sequence,
            publish_time=time.time_ns() // 1_000_000,
            partition_key=key,
            replicate_to=replicate_to,
            schema_version=schema_version,
        )
        for name, value in (properties or {}).items():
            described.properties.add(key=name, value=value)
        body = metadata.build_body(described.SerializeToString(), payload)
        receipt: asyncio.Future[Position] = asyncio.get_running_loop().create_future()
        receipt.add_done_callback(lambda _: self._room.release())
        self._pending.append((sequence, receipt))
        try:
            self._connection.write(encode.send(self._producer_id, sequence, body))
        except ClientError as error:
            self.producer_closed(str(error))
        return receipt

    async def flush(self) -> None:
        """Wait until everything sent so far is stored.

        :raises ClientError: something was not.
        """
        if self._pending:
            await asyncio.gather(*(receipt for _, receipt in self._pending))

    async def wait_closed(self) -> str:
        """Wait until this producer can no longer be used, and return the reason."""
        await self._over.wait()
        return str(self._closed)

    async def close(self) -> None:
        await self._connection.close_producer(self._producer_id)
        self.producer_closed("the producer was closed")

    def receipt(self, receipt: pb.CommandSendReceipt) -> None:
        if self._pending and self._pending[0][0] == receipt.sequence_id:
            _, future = self._pending.popleft()
            if not future.done():
                future.set_result(Position(receipt.message_id.ledgerId, receipt.message_id.entryId))

    def send_error(self, error: pb.CommandSendError) -> None:
        for pending in self._pending:
            if pending[0] == error.sequence_id:
                self._pending.remove(pending)
                if not pending[1].done():
                    pending[1].set_exception(RequestRefused(error.error, error.message))
                return

    def producer_closed(self, reason: str) -> None:
        self._closed = reason
        self._over.set()
        while self._pending:
            _, future = self._pending.popleft()
            if not future.done():
                future.set_exception(ConnectionLost(reason))


class Consumer:
    """Receives entries and acknowledges them. Make it with ``subscribe``."""

    def __init__(self, connection: PulsarClientConnection, queue: int) -> None:
        self._connection = connection
        self._consumer_id = 0
        self._queue = queue
        self._taken = 0
        self._arrived: deque[Message] = deque()
        self._news = asyncio.Event()
        self._closed: str | None = None

    @classmethod
    async def subscribe(
        cls,
        connection: PulsarClientConnection,
        topic: str,
        subscription: str,
        *,
        kind: pb.CommandSubscribe.SubType = pb.CommandSubscribe.Shared,
        earliest: bool = True,
        replicated: bool | None = None,
        queue: int = RECEIVER_QUEUE,
    ) -> Consumer:
        """:raises ClientError: the broker refuses."""
        consumer = cls(connection, queue)
        command = pb.CommandSubscribe(
            topic=topic,
            subscription=subscription,
            subType=kind,
            initialPosition=pb.CommandSubscribe.Earliest if earliest else pb.CommandSubscribe.Latest,
            consumer_id=0,
            request_id=0,
        )
        if replicated is not None:
            command.replicate_subscription_state = replicated
        consumer._consumer_id = await connection.subscribe(command, consumer)
        connection.write([encode.flow(consumer._consumer_id, queue)])
        return consumer

    async def receive(self) -> Delivery:
        """Wait for the next entry and return it.

        :raises ConnectionLost: the consumer was closed, so there will be none.
        :raises UnreadablePayload: its content cannot be read; it stays unacknowledged.
        """
        while not self._arrived:
            if self._closed is not None:
                raise ConnectionLost(self._closed)
            self._news.clear()
            await self._news.wait()
        delivery = self._arrived.popleft()
        described = metadata.parse(delivery.body)
        self._taken += described.num_messages_in_batch
        if self._taken * 2 >= self._queue and self._closed is None:
            self._connection.write([encode.flow(self._consumer_id, self._taken)])
            self._taken = 0
        place = delivery.command.message_id
        return Delivery(
            Position(place.ledgerId, place.entryId),
            delivery.command.redelivery_count,
            described,
            _messages(delivery, described),
        )

    def acknowledge(self, *positions: Position, cumulative: bool = False) -> None:
        """Acknowledge whole entries, without waiting for an answer."""
        self._connection.write([encode.ack(self._consumer_id, 1 if cumulative else 0, positions)])

    def acknowledge_first(self, delivery: Delivery, count: int) -> None:
        """Acknowledge the first ``count`` messages of a delivery and leave the rest of its batch open."""
        if count >= len(delivery.messages):
            self.acknowledge(delivery.position)
            return
        words = [0] * ((delivery.metadata.num_messages_in_batch + 63) // 64)
        for message in delivery.messages[count:]:
            words[message.batch_index // 64] |= 1 << (message.batch_index % 64)
        place = pb.MessageIdData(
            ledgerId=delivery.position.ledger,
            entryId=delivery.position.entry,
            ack_set=(word - (1 << 64) if word >> 63 else word for word in words),
        )
        part = pb.CommandAck(consumer_id=self._consumer_id, ack_type=pb.CommandAck.Individual, message_id=[place])
        self._connection.write([encode.simple(pb.BaseCommand.ACK, part)])

    async def close(self) -> None:
        """When this returns, everything acknowledged before is durable."""
        await self._connection.close_consumer(self._consumer_id)
        self.consumer_closed("the consumer was closed")

    def message(self, message: Message) -> None:
        self._arrived.append(message)
        self._news.set()

    def consumer_closed(self, reason: str) -> None:
        self._closed = reason
        self._news.set()


def _messages(delivery: Message, described: pb.MessageMetadata) -> list[Received]:
    payload = _payload(delivery, described)
    if not described.HasField("num_messages_in_batch"):
        return [_received(-1, payload, described)]
    found, at = [], 0
    remaining = delivery.command.ack_set
    for index in range(described.num_messages_in_batch):
        (size,) = _U32.unpack_from(payload, at)
        single = pb.SingleMessageMetadata.FromString(payload[at + 4 : at + 4 + size])
        at += 4 + size
        wanted = not remaining or (index // 64 < len(remaining) and remaining[index // 64] >> (index % 64) & 1)
        if wanted:
            found.append(_received(index, payload[at : at + single.payload_size], single))
        at += single.payload_size
    return found


def _payload(delivery: Message, described: pb.MessageMetadata) -> bytes:
    _, start = metadata.metadata_bounds(delivery.body)
    payload = delivery.body[start:]
    place = delivery.command.message_id
    if described.encryption_keys:
        raise UnreadablePayload(f"message {place.ledgerId}:{place.entryId} is encrypted")
    if described.compression == pb.ZLIB:
        return zlib.decompressobj().decompress(payload, LARGEST)
    if described.compression != pb.NONE:
        kind = pb.CompressionType.Name(described.compression)
        raise UnreadablePayload(f"message {place.ledgerId}:{place.entryId} is compressed with {kind}")
    return payload


def _received(index: int, payload: bytes, described: pb.MessageMetadata | pb.SingleMessageMetadata) -> Received:
    return Received(
        index,
        payload,
        described.partition_key if described.HasField("partition_key") else None,
        {pair.key: pair.value for pair in described.properties},
        described.event_time or None,
    )
