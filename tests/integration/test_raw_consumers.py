# SPDX-License-Identifier: Apache-2.0
"""What the Python client does not show: acknowledgement receipts, epochs, the active consumer, statistics."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import Any

import pytest
from meridian_broker.bounds.clients import LATEST_TIME_MS
from meridian_broker.gateway.client import PulsarClientConnection
from meridian_broker.gateway.client_errors import RequestRefused
from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar import encode
from meridian_broker.wire.pulsar.commands import Message
from meridian_broker.wire.pulsar.errors import ServerError
from meridian_broker.wire.pulsar.metadata import build_body
from support.brokers.broker_process import BrokerProcess
from support.protocol.raw_connection import batch_of

T = pb.BaseCommand
SUBSCRIBE = pb.CommandSubscribe
QUIET_SECONDS = 0.3
_numbers = itertools.count()


class Client:
    """A connection with everything that the broker pushed to it."""

    connection: PulsarClientConnection

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.messages: asyncio.Queue[Message] = asyncio.Queue()
        self.pushed: asyncio.Queue[tuple[int, Any]] = asyncio.Queue()
        self.receipts: asyncio.Queue[pb.CommandSendReceipt] = asyncio.Queue()

    # received as a consumer and a producer:

    def message(self, message: Message) -> None:
        self.messages.put_nowait(message)

    def consumer_closed(self, reason: str) -> None:
        pass

    def producer_closed(self, reason: str) -> None:
        pass

    def receipt(self, receipt: pb.CommandSendReceipt) -> None:
        self.receipts.put_nowait(receipt)

    def send_error(self, error: pb.CommandSendError) -> None:
        raise AssertionError(error)

    async def subscribe(self, kind: int, name: str = "c", subscription: str = "s", **fields: Any) -> int:
        command = SUBSCRIBE(
            topic=self.topic,
            subscription=subscription,
            subType=kind,  # type: ignore[arg-type]
            consumer_name=name,
            consumer_id=0,
            request_id=0,
            initialPosition=SUBSCRIBE.Earliest,
            **fields,
        )
        return await self.connection.subscribe(command, self)

    async def publish(self, count: int, batch: int | None = None) -> None:
        """:param batch: messages per entry."""
        command = pb.CommandProducer(topic=self.topic, producer_id=0, request_id=0)
        made = await self.connection.open_producer(command, self)
        for number in range(count):
            metadata = pb.MessageMetadata(producer_name=made.name, sequence_id=number, publish_time=1)
            payload = b"%d" % number
            if batch is not None:
                metadata.num_messages_in_batch = batch
                payload = batch_of(payload, batch)
            body = build_body(metadata.SerializeToString(), payload)
            self.connection.write(encode.send(made.producer_id, number, body, batch or 1))
        async with asyncio.timeout(60):
            for _ in range(count):
                await self.receipts.get()
        await self.connection.close_producer(made.producer_id)

    def flow(self, consumer: int, permits: int) -> None:
        self.connection.write([encode.flow(consumer, permits)])

    async def take(self, count: int) -> list[pb.CommandMessage]:
        async with asyncio.timeout(60):
            return [(await self.messages.get()).command for _ in range(count)]

    async def next_push(self) -> tuple[int, Any]:
        async with asyncio.timeout(60):
            return await self.pushed.get()

    async def becomes_active(self) -> tuple[int, bool]:
        kind, change = await self.next_push()
        assert kind == T.ACTIVE_CONSUMER_CHANGE
        return change.consumer_id, change.is_active

    async def redeliver(self, consumer: int, epoch: int, ids: list[pb.MessageIdData] | None = None) -> None:
        command = pb.CommandRedeliverUnacknowledgedMessages(
            consumer_id=consumer, message_ids=ids or [], consumer_epoch=epoch
        )
        self.connection.write([encode.simple(T.REDELIVER_UNACKNOWLEDGED_MESSAGES, command)])

    async def acknowledge(self, consumer: int, ids: list[pb.MessageIdData], kind: int = 0) -> pb.CommandAckResponse:
        command = pb.CommandAck(consumer_id=consumer, ack_type=kind, message_id=ids)  # type: ignore[arg-type]
        answer: pb.CommandAckResponse = await self.connection.request(T.ACK, command)
        return answer


@pytest.fixture
async def client(broker: BrokerProcess) -> AsyncIterator[Client]:
    made = Client(f"persistent://public/default/raw-{next(_numbers)}")
    made.connection = await PulsarClientConnection.connect(
        broker.service_url, on_command=lambda kind, message: made.pushed.put_nowait((kind, message))
    )
    yield made
    await made.connection.close()


async def assert_quiet(queue: asyncio.Queue[Any]) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(queue.get(), QUIET_SECONDS)


async def test_an_acknowledgement_with_a_request_id_is_answered_and_durable(
    client: Client, broker: BrokerProcess
) -> None:
    consumer = await client.subscribe(SUBSCRIBE.Shared)
    await client.publish(3)
    client.flow(consumer, 10)
    messages = await client.take(3)
    answer = await client.acknowledge(consumer, [messages[0].message_id, messages[2].message_id])
    assert (answer.consumer_id, answer.HasField("error")) == (consumer, False)
    # A cumulative one has no meaning on a Shared subscription: it is answered, and acknowledges nothing.
    answer = await client.acknowledge(consumer, [messages[1].message_id], kind=1)
    assert not answer.HasField("error")
    broker.kill()
    broker.start()
    again = Client(client.topic)
    again.connection = await PulsarClientConnection.connect(broker.service_url)
    consumer = await again.subscribe(SUBSCRIBE.Shared)
    again.flow(consumer, 10)
    (left,) = await again.take(1)
    assert left.message_id == messages[1].message_id
    await assert_quiet(again.messages)
    await again.connection.close()


@pytest.mark.parametrize(
    ("sets", "left"),
    [
        ([0b1110, 0b0111], 0b0110),
        ([0b0111, 0b1110, 0b0111], 0b0110),
        ([0b1010, 0b0101], None),
        ([None, 0b0111], None),
        ([0b0111, None], None),
    ],
)
async def test_r18_one_command_names_a_batch_more_than_once(
    client: Client, sets: list[int | None], left: int | None
) -> None:
    """C++ clients do so when they hold messages of a batch and of its redelivery: each id's acknowledgement counts."""
    consumer = await client.subscribe(SUBSCRIBE.Shared)
    await client.publish(1, batch=4)
    client.flow(consumer, 10)
    (message,) = await client.take(1)
    ids = []
    for remaining in sets:
        one = pb.MessageIdData()
        one.CopyFrom(message.message_id)
        if remaining is not None:
            one.ack_set.append(remaining)
            one.batch_size = 4
        ids.append(one)
    await client.acknowledge(consumer, ids)
    await client.redeliver(consumer, 0)
    if left is None:
        await assert_quiet(client.messages)
    else:
        (again,) = await client.take(1)
        assert list(again.ack_set) == [left]


@pytest.mark.parametrize("kind", [SUBSCRIBE.Exclusive, SUBSCRIBE.Failover])
async def test_messages_after_a_redelivery_carry_the_consumers_new_epoch(client: Client, kind: int) -> None:
    consumer = await client.subscribe(kind, consumer_epoch=4)
    await client.publish(5)
    client.flow(consumer, 100)
    messages = await client.take(5)
    assert [message.consumer_epoch for message in messages] == [4] * 5
    await client.acknowledge(consumer, [messages[1].message_id], kind=1)
    await client.redeliver(consumer, 5)
    again = await client.take(3)
    assert [message.message_id for message in again] == [message.message_id for message in messages[2:]]
    assert [message.consumer_epoch for message in again] == [5] * 3
    assert all(message.redelivery_count == 0 for message in again)
    await client.redeliver(consumer, 3)  # late: the client has a newer epoch already
    assert {message.consumer_epoch for message in await client.take(3)} == {5}


@pytest.mark.parametrize("kind", [SUBSCRIBE.Shared, SUBSCRIBE.Key_Shared])
async def test_ids_are_redelivered_singly_and_counted_on_shared_subscriptions(client: Client, kind: int) -> None:
    consumer = await client.subscribe(kind)
    await client.publish(4)
    client.flow(consumer, 100)
    messages = {message.message_id.entryId: message for message in await client.take(4)}
    ids = [messages[1].message_id, messages[3].message_id]
    await client.redeliver(consumer, 0, ids)
    again = await client.take(2)
    assert [(message.message_id.entryId, message.redelivery_count) for message in again] == [(1, 1), (3, 1)]
    await client.redeliver(consumer, 0)
    counts = {message.message_id.entryId: message.redelivery_count for message in await client.take(4)}
    assert counts == {0: 1, 1: 2, 2: 1, 3: 2}


async def test_failover_consumers_are_told_who_is_active(client: Client) -> None:
    kind = SUBSCRIBE.Failover
    second = await client.subscribe(kind, "m", priority_level=1)
    assert await client.becomes_active() == (second, True)
    third = await client.subscribe(kind, "a", priority_level=2)
    assert await client.becomes_active() == (third, False)
    first = await client.subscribe(kind, "z", priority_level=0)
    heard = {await client.becomes_active() for _ in range(3)}
    assert heard == {(first, True), (second, False), (third, False)}
    await client.connection.close_consumer(third)
    await assert_quiet(client.pushed)  # nothing changed for any consumer
    await client.publish(1)
    client.flow(second, 10)
    await assert_quiet(client.messages)
    client.flow(first, 10)
    (message,) = await client.take(1)
    assert message.consumer_id == first
    await client.connection.close_consumer(first)
    assert await client.becomes_active() == (second, True)
    (again,) = await client.take(1)
    assert (again.consumer_id, again.message_id) == (second, message.message_id)


async def test_consumer_stats(client: Client) -> None:
    consumer = await client.subscribe(SUBSCRIBE.Key_Shared, "counted")
    await client.publish(6)
    client.flow(consumer, 4)
    messages = await client.take(4)
    client.flow(consumer, 9)
    await client.take(2)
    await client.acknowledge(consumer, [messages[0].message_id])
    command = pb.CommandConsumerStats(consumer_id=consumer, request_id=0)
    stats: pb.CommandConsumerStatsResponse = await client.connection.request(T.CONSUMER_STATS, command)
    assert (stats.consumerName, stats.type) == ("counted", "Key_Shared")
    assert (stats.availablePermits, stats.unackedMessages, stats.msgBacklog) == (7, 5, 5)
    assert not stats.blockedConsumerOnUnackedMsgs
    assert stats.address.startswith("/127.0.0.1:")
    assert stats.connectedSince.startswith("20")
    command = pb.CommandConsumerStats(consumer_id=consumer + 1000, request_id=0)
    unknown: pb.CommandConsumerStatsResponse = await client.connection.request(T.CONSUMER_STATS, command)
    assert unknown.error_code == ServerError.CONSUMER_NOT_FOUND


@pytest.mark.parametrize(
    "ranges", [[], [(5, 4)], [(0, 65536)], [(-1, 4)], [(0, 10), (10, 20)], [(n, n) for n in range(0, 4000, 2)]]
)
async def test_invalid_ranges_are_refused(client: Client, ranges: list[tuple[int, int]]) -> None:
    listed = [pb.IntRange(start=start, end=end) for start, end in ranges]
    meta = pb.KeySharedMeta(keySharedMode=pb.STICKY, hashRanges=listed)
    with pytest.raises(RequestRefused) as refused:
        await client.subscribe(SUBSCRIBE.Key_Shared, keySharedMeta=meta)
    assert refused.value.code == ServerError.CONSUMER_ASSIGN
    good = pb.KeySharedMeta(keySharedMode=pb.STICKY, hashRanges=[pb.IntRange(start=0, end=65535)])
    await client.subscribe(SUBSCRIBE.Key_Shared, keySharedMeta=good)


async def test_an_impossible_deliver_time_means_no_delay(client: Client) -> None:
    consumer = await client.subscribe(SUBSCRIBE.Shared)
    command = pb.CommandProducer(topic=client.topic, producer_id=0, request_id=0)
    made = await client.connection.open_producer(command, client)
    for number, deliver_at in enumerate((-1, -(1 << 63), 0, 1, LATEST_TIME_MS)):
        metadata = pb.MessageMetadata(
            producer_name=made.name, sequence_id=number, publish_time=1, deliver_at_time=deliver_at
        )
        body = build_body(metadata.SerializeToString(), b"")
        client.connection.write(encode.send(made.producer_id, number, body))
    client.flow(consumer, 10)
    assert [message.message_id.entryId for message in await client.take(4)] == [0, 1, 2, 3]
    await assert_quiet(client.messages)


@pytest.mark.parametrize("kind", [SUBSCRIBE.Shared, SUBSCRIBE.Exclusive])
async def test_r13_messages_sent_before_a_rewind_cannot_be_acknowledged_after_it(client: Client, kind: int) -> None:
    """After another client's seek, a consumer reconnects by itself and acknowledges what it still holds."""
    consumer = await client.subscribe(kind)
    await client.publish(4)
    client.flow(consumer, 10)
    messages = await client.take(4)
    await client.acknowledge(consumer, [message.message_id for message in messages])
    seek = pb.CommandSeek(consumer_id=consumer, request_id=0, message_id=messages[0].message_id)
    await client.connection.request(T.SEEK, seek)
    consumer = await client.subscribe(kind)
    await client.acknowledge(consumer, [messages[0].message_id, messages[1].message_id])
    if kind == SUBSCRIBE.Exclusive:
        await client.acknowledge(consumer, [messages[2].message_id], kind=1)
    client.flow(consumer, 3)
    again = await client.take(3)
    assert [message.message_id for message in again] == [message.message_id for message in messages[:3]]
    await client.acknowledge(consumer, [message.message_id for message in again])
    client.flow(consumer, 3)
    (last,) = await client.take(1)
    assert last.message_id == messages[3].message_id
    await assert_quiet(client.messages)
