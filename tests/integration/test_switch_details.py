# SPDX-License-Identifier: Apache-2.0
"""Corner cases of a switch between regions and of acknowledging, on real in-process brokers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from meridian_broker.gateway.client import PulsarClientConnection
from meridian_broker.gateway.roles import Consumer, Producer
from meridian_broker.ledgers.store import WhenDurable
from meridian_broker.metadata.view import Changed
from meridian_broker.positions import Progress
from meridian_broker.positions.position import Position
from meridian_broker.topics.service import creation, partition_growth
from meridian_broker.topics.subscriptions.subscription import Subscription
from meridian_broker.topics.topic import Topic
from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar import encode, topic_name
from meridian_broker.wire.pulsar.errors import ServerError
from meridian_broker.wire.pulsar.topic_name import TopicName
from support.brokers.broker_regions import Region, regions, until
from support.protocol.raw_connection import RawConnection

TOPIC = "persistent://public/default/flights"
EXCLUSIVE, SHARED, FAILOVER = pb.CommandSubscribe.Exclusive, pb.CommandSubscribe.Shared, pb.CommandSubscribe.Failover


async def publish(region: Region, count: int) -> None:
    connection = await region.connect()
    producer = await Producer.open(connection, TOPIC)
    for number in range(count):
        await producer.send(b"%d" % number)
    await producer.flush()
    await connection.close()


async def take(consumer: Consumer, count: int) -> list[Position]:
    async with asyncio.timeout(60):
        return [(await consumer.receive()).position for _ in range(count)]


def subscription(region: Region, name: str = "s") -> Subscription:
    return region.process.service.topics[TOPIC].subscriptions[name]


async def acknowledge(
    connection: PulsarClientConnection, consumer_id: int, place: Position, kind: int
) -> pb.CommandAckResponse:
    command = pb.CommandAck(
        consumer_id=consumer_id,
        ack_type=pb.CommandAck.AckType.Cumulative if kind else pb.CommandAck.AckType.Individual,
        message_id=[pb.MessageIdData(ledgerId=place.ledger, entryId=place.entry)],
        request_id=0,
    )
    answer: pb.CommandAckResponse = await connection.request(pb.BaseCommand.ACK, command)
    return answer


@pytest.mark.parametrize("kind", [EXCLUSIVE, FAILOVER])
async def test_a_cumulative_acknowledgement_of_an_unknown_entry_claims_nothing(
    tmp_path: Path, kind: pb.CommandSubscribe.SubType
) -> None:
    """An id of another region, or of a deleted topic: it must not stand for everything before it."""
    async with regions(tmp_path, "us-east") as (east,):
        await publish(east, 10)
        connection = await east.connect()
        consumer = await Consumer.subscribe(connection, TOPIC, "s", kind=kind)
        places = await take(consumer, 10)
        ledger = places[0].ledger
        for wrong in (Position(ledger + 1, 0), Position(ledger, 10), Position(1 << 52, 5)):
            answer = await acknowledge(connection, consumer._consumer_id, wrong, 1)
            assert answer.HasField("error"), f"{wrong} was acknowledged"
            assert "no entry" in answer.message
        assert subscription(east).backlog() == 10
        assert not (await acknowledge(connection, consumer._consumer_id, places[3], 1)).HasField("error")
        assert not (await acknowledge(connection, consumer._consumer_id, places[1], 1)).HasField("error")
        assert subscription(east).backlog() == 6
        await connection.close()


async def test_a_reader_that_acknowledges_nonsense_reads_on(tmp_path: Path) -> None:
    async with regions(tmp_path, "us-east") as (east,):
        await publish(east, 3)
        connection = await east.connect()
        command = pb.CommandSubscribe(
            topic=TOPIC,
            subscription="reader",
            subType=EXCLUSIVE,
            durable=False,
            initialPosition=pb.CommandSubscribe.Earliest,
            consumer_id=0,
            request_id=0,
        )
        reader = Consumer(connection, 100)
        consumer_id = reader._consumer_id = await connection.subscribe(command, reader)
        for kind in (0, 1):
            await acknowledge(connection, consumer_id, Position(1 << 52, 5), kind)
        connection.write([encode.flow(consumer_id, 100)])
        assert len(await take(reader, 3)) == 3
        await connection.close()


async def test_an_acknowledgement_for_a_closed_consumer_is_not_confirmed(tmp_path: Path) -> None:
    """The consumer was closed and its client does not know yet: it must not believe that this one counted."""
    async with regions(tmp_path, "us-east") as (east,):
        await publish(east, 3)
        connection = await east.connect()
        consumer = await Consumer.subscribe(connection, TOPIC, "s", kind=SHARED)
        places = await take(consumer, 3)
        subscription(east).disconnect_consumers()
        answer = await acknowledge(connection, consumer._consumer_id, places[0], 0)
        assert answer.error == ServerError.CONSUMER_NOT_FOUND
        assert subscription(east).backlog() == 3
        await connection.close()


async def test_a_consumers_flag_is_for_new_subscriptions(tmp_path: Path) -> None:
    """R17: switching an existing one skips messages somewhere, so an administrator does it and is told how many."""
    async with regions(tmp_path, "us-east") as (east,):
        for flags in ((False, True), (True, False, None), (None, True, False, True)):
            for flag in flags:
                connection = await east.connect()
                consumer = await Consumer.subscribe(connection, TOPIC, f"s{len(flags)}", kind=SHARED, replicated=flag)
                await consumer.close()
                await connection.close()
            assert subscription(east, f"s{len(flags)}").replicated == bool(flags[0])


async def turns() -> AsyncIterator[None]:
    """Runs at each loop turn: so soon after an event that no disk can have answered."""
    while True:
        yield
        await asyncio.sleep(0)


async def test_a_subscription_that_is_deleted_while_somebody_subscribes(tmp_path: Path) -> None:
    """R16: it is found, and deleted before it is on disk. The consumer must not get a deleted subscription, but one
    that is made after that."""
    async with regions(tmp_path, "us-east") as (east,):
        await publish(east, 1)
        topic = east.process.service.topics[TOPIC]
        connection = await east.connect()
        subscribing = asyncio.ensure_future(Consumer.subscribe(connection, TOPIC, "s", kind=SHARED, replicated=True))
        async with asyncio.timeout(60):
            async for _ in turns():
                if "s" in topic.subscriptions:
                    break
        gone = subscription(east)
        topic.subscription_registry.delete("s")
        consumer = await subscribing
        assert not gone.consumers and subscription(east) is not gone
        assert await take(consumer, 1)
        await connection.close()


class HeldBarriers:
    """Sits before the exchange and holds its answers back."""

    def __init__(self) -> None:
        self.passed: list[Callable[[], None]] = []

    def barrier(self, topic: str, subscription: str, passed: Callable[[], None]) -> None:
        del topic, subscription
        self.passed.append(passed)

    def flush(self, topic: str, subscription: str, passed: Callable[[], None]) -> None:
        del topic, subscription
        passed()

    def local_change(
        self, topic: str, subscription: str, delta: Progress, durable: WhenDurable, **changed: object
    ) -> None:
        pass

    def opened(self, topic: str) -> None:
        pass

    def send_pending(self) -> None:
        pass


class Listening(HeldBarriers):
    """Records what is asked of the exchange."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[str] = []

    def local_change(
        self, topic: str, subscription: str, delta: Progress, durable: WhenDurable, **changed: object
    ) -> None:
        durable(lambda _: self.heard.append("told"))

    def send_pending(self) -> None:
        self.heard.append("sent")


async def test_a_receipt_is_sent_after_the_acknowledgement_left_for_the_others(tmp_path: Path) -> None:
    """R19: a broker killed right after the receipt has left nothing unsent to other regions."""
    async with regions(tmp_path, "us-east") as (east,):
        await publish(east, 3)
        connection = await east.connect()
        consumer = await Consumer.subscribe(connection, TOPIC, "s", kind=SHARED, replicated=True)
        places = await take(consumer, 3)
        exchange = east.process.service.topics[TOPIC].exchange = Listening()
        for place in places[:2]:
            exchange.heard.clear()
            await acknowledge(connection, consumer._consumer_id, place, 0)
            assert exchange.heard == ["told", "sent"], "the receipt came before the acknowledgement had left"
        exchange.heard.clear()
        await acknowledge(connection, consumer._consumer_id, places[1], 0)
        assert exchange.heard == ["sent"], "a repeat tells the others nothing new"
        await connection.close()


class Broken(HeldBarriers):
    """Raises an unexpected error."""

    def __init__(self, at: str) -> None:
        super().__init__()
        self.at = at

    def local_change(
        self, topic: str, subscription: str, delta: Progress, durable: WhenDurable, **changed: object
    ) -> None:
        if self.at == "told":
            raise ValueError("the exchange has a mistake")

    def send_pending(self) -> None:
        if self.at == "sent":
            raise ValueError("the exchange has a mistake")


@pytest.mark.logs_error("the exchange has a mistake")
@pytest.mark.parametrize("at", ["told", "sent"])
async def test_an_acknowledgement_not_sent_to_others_still_has_its_receipt(tmp_path: Path, at: str) -> None:
    """It is durable here, and the next comparison tells the others: no error in the exchange makes a client wait."""
    async with regions(tmp_path, "us-east") as (east,):
        await publish(east, 4)
        connection = await east.connect()
        consumer = await Consumer.subscribe(connection, TOPIC, "s", kind=SHARED, replicated=True)
        places = await take(consumer, 4)
        topic = east.process.service.topics[TOPIC]
        right, topic.exchange = topic.exchange, Broken(at)
        assert not (await acknowledge(connection, consumer._consumer_id, places[0], 0)).HasField("error")
        topic.exchange = right
        assert not (await acknowledge(connection, consumer._consumer_id, places[1], 0)).HasField("error")
        await consumer.close()
        await connection.close()


async def test_each_barrier_opens_for_its_own_consumers_only(tmp_path: Path) -> None:
    """R20: consumers that left and returned wait for the answers to their own question."""
    async with regions(tmp_path, "us-east") as (east,):
        await publish(east, 3)
        held = HeldBarriers()
        east.process.service.topics[TOPIC].exchange = held
        connection = await east.connect()
        first = await Consumer.subscribe(connection, TOPIC, "s", kind=SHARED, replicated=True)
        await first.close()
        second = await Consumer.subscribe(connection, TOPIC, "s", kind=SHARED, replicated=True)
        assert len(held.passed) == 2
        held.passed[0]()
        assert subscription(east).barrier, "the answer to an older question opened the gate"
        held.passed[1]()
        assert len(await take(second, 3)) == 3
        await connection.close()


async def test_a_drain_waits_until_the_other_regions_know(tmp_path: Path) -> None:
    async with regions(tmp_path, "us-east", "us-west") as (east, west):
        await publish(east, 100)
        connection = await east.connect()
        consumer = await Consumer.subscribe(connection, TOPIC, "s", kind=SHARED, replicated=True)
        places = await take(consumer, 100)
        await until(
            lambda: TOPIC in west.process.service.topics and "s" in west.process.service.topics[TOPIC].subscriptions
        )
        flushes = east.process.exchange.core.counters.flushes
        consumer.acknowledge(*places[:90])
        await until(lambda: subscription(east).backlog() == 10)
        await east.process.drain()
        assert east.process.exchange.core.counters.flushes > flushes, "the drain asked nobody"
        await until(lambda: subscription(west).backlog() == 10)
        found = await east.process.catalog.topics.find(topic_name.parse(TOPIC))
        assert found is not None
        assert all(ledger.sealed_ms for ledger in found[0].ledgers), "a ledger is left to be recovered"
        await connection.close()


async def test_new_partitions_have_their_subscriptions_before_anybody_learns_of_them(tmp_path: Path) -> None:
    """R15: a client that subscribed to a new partition by itself would begin at its latest message."""
    async with regions(tmp_path, "us-east", "us-west") as (east, west):
        name = topic_name.parse("persistent://public/default/grows")
        await creation.create_partitioned(east.process.service.opener, name, 2, {})
        connection = await east.connect()
        await Consumer.subscribe(connection, str(name.with_partition(0)), "s", kind=SHARED, replicated=True)
        missing: dict[str, list[int]] = {}
        """At the last change of the topic's record, by region; one before says that partitions are being added."""
        for region in (east, west):
            topics = region.process.service.topics

            def heard(changed: Changed, region: Region = region, topics: dict[str, Topic] = topics) -> None:
                if changed.kind == "partitioned":
                    missing[region.name] = [
                        index
                        for index in range(2, 5)
                        if "s" not in subscriptions_of(topics, name.with_partition(index))
                    ]

            await until(lambda topics=topics: "s" in subscriptions_of(topics, name.with_partition(0)))
            region.process.catalog.subscribe(heard)
        await partition_growth.grow(east.process.service.opener, name, 5)

        async def grown() -> bool:
            return await creation.partitions(west.process.service.opener, name, create=False) == 5

        await until(grown)
        assert missing == {"us-east": [], "us-west": []}
        await connection.close()


def subscriptions_of(topics: dict[str, Topic], name: TopicName) -> dict[str, Subscription]:
    topic = topics.get(str(name))
    return {} if topic is None else topic.subscriptions


async def test_r18_a_cumulative_acknowledgement_covers_chunked_messages_whole_or_not_at_all(tmp_path: Path) -> None:
    """Chunks of two producers are interleaved. One that ends after the acknowledged message comes whole, anywhere."""
    async with regions(tmp_path, "us-east", "us-west") as (east, west):
        connection = await east.connect()
        consumer = await Consumer.subscribe(connection, TOPIC, "s", kind=EXCLUSIVE, replicated=True)
        wire = await RawConnection.open(east.port)
        for number, name in enumerate("xyz"):
            await wire.producer(TOPIC, number, producer_name=name)
        sent = [("x", 0, 3), ("y", 0, 2), ("y", 1, 2), ("x", 1, 3), ("z", 0, 2), ("x", 2, 3), ("z", 1, 2)]
        for name, number, of in sent:
            wire.send(name, 0, b"%d" % number, producer_id="xyz".index(name), chunk=(number, of))
            await wire.receipt()
        await wire.close()
        places = await take(consumer, len(sent))
        await acknowledge(connection, consumer._consumer_id, places[2], True)
        assert subscription(east).backlog() == 5, "all but x, as a whole, and y"
        await acknowledge(connection, consumer._consumer_id, places[5], True)
        assert subscription(east).backlog() == 2, "and z, as a whole"
        await connection.close()
        there = await west.connect()
        other = await Consumer.subscribe(there, TOPIC, "s", kind=EXCLUSIVE, replicated=True)
        async with asyncio.timeout(60):
            assert [(await other.receive()).payloads for _ in range(2)] == [[b"0"], [b"1"]]
        await there.close()
