# SPDX-License-Identifier: Apache-2.0
"""What regions accept: entries once and without gaps, origins from peers only, nothing withheld from a region."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pulsar
import pytest
import pytest_asyncio
from meridian_broker.gateway.client import PulsarClientConnection
from meridian_broker.gateway.client_errors import ConnectFailed, RequestRefused
from meridian_broker.gateway.roles import Consumer
from meridian_broker.positions import Progress
from meridian_broker.positions.position import Position
from meridian_broker.wire.proto import peer_pb2
from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar import encode, metadata, origin_fields
from support.brokers.broker_process import RegionsProcess, wait_until
from support.brokers.peers import as_region
from support.brokers.region_clients import (
    CENTRAL,
    EAST,
    EXCLUSIVE,
    PATIENCE_MS,
    WEST,
    client,
    new_topic,
    numbered,
    publish,
    stored,
    subscribe,
    take,
    take_numbers,
    wait_for_backlog,
)
from support.protocol.admin_paths import topic_path

REGIONS = (EAST, WEST, CENTRAL)
STRANGER = "ap-south"
"""A region that only these tests pretend to be."""


@pytest_asyncio.fixture
async def as_client(regions: RegionsProcess) -> AsyncIterator[PulsarClientConnection]:
    connection = await PulsarClientConnection.connect(regions.service_url(EAST))
    yield connection
    await connection.close()


@pytest_asyncio.fixture
async def as_peer(regions: RegionsProcess) -> AsyncIterator[PulsarClientConnection]:
    secret = (regions.data_dir / "peer.token").read_bytes().strip()
    connection = await PulsarClientConnection.connect(regions.service_url(EAST), as_region(STRANGER, EAST, secret))
    yield connection
    await connection.close()


class Outcomes:
    """A producer's answers, by sequence id: None is a receipt."""

    def __init__(self) -> None:
        self._heard: asyncio.Queue[tuple[int, pb.CommandSendError | None]] = asyncio.Queue()

    def receipt(self, receipt: pb.CommandSendReceipt) -> None:
        self._heard.put_nowait((receipt.sequence_id, None))

    def send_error(self, error: pb.CommandSendError) -> None:
        self._heard.put_nowait((error.sequence_id, error))

    def producer_closed(self, reason: str) -> None:
        self._heard.put_nowait((-1, pb.CommandSendError(producer_id=0, sequence_id=0, error=0, message=reason)))

    async def next(self) -> tuple[int, pb.CommandSendError | None]:
        async with asyncio.timeout(60):
            return await self._heard.get()


def body(number: int, **fields: Any) -> bytes:
    described = pb.MessageMetadata(producer_name="raw", sequence_id=number, publish_time=1_700_000_000_000, **fields)
    return metadata.build_body(described.SerializeToString(), b"%d" % number)


# -- what only peers may send (R7)

FORBIDDEN: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "an origin stamp": ({}, {"origin": peer_pb2.OriginStamp(region=STRANGER, ledger=1, entry=0)}),
    "a marker's flag": ({}, {"marker": True}),
    "a message id": ({}, {"shadow_message_id": encode.message_id(7, 7)}),
    "a marker": ({"marker_type": 10}, {}),
    "an origin": ({"replicated_from": STRANGER}, {}),
    "an empty origin": ({"replicated_from": ""}, {}),
}


@pytest.mark.parametrize("what", FORBIDDEN)
async def test_a_client_cannot_send(regions: RegionsProcess, as_client: PulsarClientConnection, what: str) -> None:
    topic = new_topic("forbidden")
    outcomes = Outcomes()
    opened = await as_client.open_producer(pb.CommandProducer(topic=topic, producer_id=0, request_id=0), outcomes)
    in_metadata, in_command = FORBIDDEN[what]
    as_client.write(encode.send(opened.producer_id, 0, body(0, **in_metadata), **in_command))
    as_client.write(encode.send(opened.producer_id, 1, body(1)))
    heard = dict([await outcomes.next(), await outcomes.next()])
    assert heard[0] is not None, f"{what} was stored"
    assert heard[0].error == pb.NotAllowedError
    assert heard[1] is None, "the refusal disturbed the next message"
    for region in REGIONS:
        assert await asyncio.to_thread(stored, regions, region, topic, 1) == [1]


async def test_a_client_may_copy_what_came_from_another_region(
    regions: RegionsProcess, as_client: PulsarClientConnection
) -> None:
    """With all properties, as clients do for dead-letter and retry topics: the source position is ignored (R2)."""
    topic = new_topic("copied")
    outcomes = Outcomes()
    opened = await as_client.open_producer(pb.CommandProducer(topic=topic, producer_id=0, request_id=0), outcomes)
    for number in range(3):  # each with the source position of another one
        place = pb.KeyValue(key=metadata.SOURCE_POSITION_PROPERTY, value=f"{number % 2}:{2 - number}")
        as_client.write(encode.send(opened.producer_id, number, body(number, properties=[place])))
    assert [await outcomes.next() for _ in range(3)] == [(number, None) for number in range(3)]
    for region in REGIONS:
        assert await asyncio.to_thread(stored, regions, region, topic, 3) == [0, 1, 2]


@pytest.mark.parametrize(
    "fields",
    [
        {"producer_name": f"pulsar.repl.{STRANGER}-->{EAST}"},
        {"replication_source": peer_pb2.ReplicationSource(region=STRANGER)},
        {"replication_source": peer_pb2.ReplicationSource(region=WEST), "producer_name": "harmless"},
    ],
)
async def test_a_client_cannot_be_a_replicator(as_client: PulsarClientConnection, fields: dict[str, Any]) -> None:
    command = pb.CommandProducer(topic=new_topic("replicator"), producer_id=0, request_id=0, **fields)
    with pytest.raises(RequestRefused) as refused:
        await as_client.open_producer(command, Outcomes())
    assert refused.value.code == pb.NotAllowedError


async def test_a_client_cannot_tell_progress(regions: RegionsProcess) -> None:
    topic = new_topic("told")
    with client(regions, EAST) as east:
        await asyncio.to_thread(publish, east, topic, numbered(range(5)))
        (await asyncio.to_thread(subscribe, east, topic)).close()
        lie = Progress()
        lie.raise_floor(EAST, Position(1 << 50, 0))
        item = peer_pb2.DeltaItem(topic=topic, subscription="s", incarnation="", progress=lie.encode())
        hello = peer_pb2.ProgressHello(region=WEST, protocol_version=1, next_delta=1)
        delta = peer_pb2.Delta(number=1, items=[item])
        for commands in ([(1000, hello)], [(1001, delta)], [(1000, hello), (1001, delta)]):
            connection = await PulsarClientConnection.connect(regions.service_url(EAST))
            connection.write([encode.simple(kind, message) for kind, message in commands])
            async with asyncio.timeout(60):
                assert "closed the connection" in await connection.wait_lost()
        take_numbers(await asyncio.to_thread(subscribe, east, topic), range(5))


async def test_a_region_with_another_peer_secret_is_turned_away(regions: RegionsProcess) -> None:
    for secret in (b"", b"guess", (regions.data_dir / "peer.token").read_bytes().strip()[:-1]):
        with pytest.raises(ConnectFailed, match=r"different peer secrets.*\(AUTHENTICATION\)"):
            await PulsarClientConnection.connect(regions.service_url(EAST), as_region(STRANGER, EAST, secret))


# -- entries once and without gaps (R4)


class Replicator:
    """A replicator of a region that does not exist, and that may break the rules."""

    def __init__(self, connection: PulsarClientConnection, topic: str) -> None:
        self._connection = connection
        self.topic = topic
        self._sequence = 0
        self.outcomes: Outcomes
        self.opened: Any = None

    async def open(self, region: str = STRANGER) -> peer_pb2.ReplicationState:
        command = pb.CommandProducer(
            topic=self.topic,
            producer_name=f"pulsar.repl.{region}-->{EAST}",
            user_provided_producer_name=True,
            replication_source=peer_pb2.ReplicationSource(region=region, incarnation=""),
            producer_id=0,
            request_id=0,
        )
        self.outcomes = Outcomes()
        self.opened = await self._connection.open_producer(command, self.outcomes)
        state: peer_pb2.ReplicationState = self.opened.replication
        return state

    async def send(
        self,
        entry: int,
        *,
        after: int,
        prev: int | None = None,
        region: str = STRANGER,
        spoiled: bool = False,
        message_id: bytes | None = None,
    ) -> pb.CommandSendError | None:
        """Send one entry of ledger 1 whose body is its number; return the error, or None for a receipt."""
        plain = body(entry)
        appended, size = origin_fields.append_replication(plain, region, 1, entry)
        stamp = peer_pb2.OriginStamp(
            region=region,
            ledger=1,
            entry=entry,
            checksum=metadata.body_checksum(plain) ^ spoiled,
            appended_metadata_bytes=size,
            messages=1,
            publish_time_ms=1_700_000_000_000,
        )
        for name, number in (("prev", after if prev is None else prev), ("sent_prev", after)):
            if number >= 0:
                setattr(stamp, f"{name}_ledger", 1)
                setattr(stamp, f"{name}_entry", number)
        sequence, self._sequence = self._sequence, self._sequence + 1
        self._connection.write(
            encode.send(self.opened.producer_id, sequence, appended, shadow_message_id=message_id, origin=stamp)
        )
        heard, error = await self.outcomes.next()
        assert heard == sequence, f"expected the answer to {sequence}, got that to {heard}: {error}"
        return error


async def test_repeats_are_dropped_and_gaps_refused(regions: RegionsProcess, as_peer: PulsarClientConnection) -> None:
    replicator = Replicator(as_peer, new_topic("gaps"))
    state = await replicator.open()
    assert (state.last_origin_ledger, state.last_origin_entry) == (-1, -1)
    assert await replicator.send(0, after=-1) is None
    assert await replicator.send(1, after=0) is None
    assert await replicator.send(1, after=0) is None, "a repeat is confirmed like the first time"
    gap = await replicator.send(3, after=2)
    assert gap is not None
    assert gap.error == pb.ProducerFenced
    assert "1:1" in gap.message, "the error names the entry to resume after"
    state = await replicator.open()
    assert (state.last_origin_ledger, state.last_origin_entry) == (1, 1)
    assert await replicator.send(2, after=1) is None
    assert await replicator.send(5, after=2, prev=4) is None, "entries withheld from this region are no gap"
    assert await asyncio.to_thread(stored, regions, EAST, replicator.topic, 4) == [0, 1, 2, 5]


async def test_other_bytes_and_other_names_are_refused(
    regions: RegionsProcess, as_peer: PulsarClientConnection
) -> None:
    replicator = Replicator(as_peer, new_topic("bytes"))
    await replicator.open()
    assert await replicator.send(0, after=-1) is None
    for refused, code in (
        (await replicator.send(1, after=0, spoiled=True), pb.ChecksumError),
        (await replicator.send(1, after=0, region="another"), pb.NotAllowedError),
        (await replicator.send(1, after=0, region=EAST), pb.NotAllowedError),
        (await replicator.send(1, after=0, prev=1), pb.NotAllowedError),
        (await replicator.send(1, after=0, prev=9), pb.NotAllowedError),
    ):
        assert refused is not None
        assert refused.error == code, refused.message
    assert await replicator.send(1, after=0) is None
    assert await asyncio.to_thread(stored, regions, EAST, replicator.topic, 2) == [0, 1]


async def test_a_replicator_neither_chooses_message_ids_nor_sends_to_shadows(
    regions: RegionsProcess, as_peer: PulsarClientConnection
) -> None:
    """The storing region assigns message ids, and a shadow uses its source's (R7)."""
    replicator = Replicator(as_peer, new_topic("ids"))
    shadow = f"{replicator.topic}-view"
    await replicator.open()
    assert await replicator.send(0, after=-1) is None
    path = f"{topic_path(replicator.topic)}/shadowTopics"
    made = await asyncio.to_thread(regions.http, EAST, "POST", path, shadow)
    assert made.status == 204, made.text
    for place in (encode.message_id(1, 1), encode.message_id((1 << 53) + 1, 0)):
        refused = await replicator.send(1, after=0, message_id=place)
        assert refused is not None, "the message id was ignored"
        assert refused.error == pb.NotAllowedError, refused.message
    with pytest.raises(RequestRefused, match="for a shadow of"):
        await Replicator(as_peer, shadow).open()
    assert await replicator.send(1, after=0) is None
    for topic in (replicator.topic, shadow):
        assert await asyncio.to_thread(stored, regions, EAST, topic, 2) == [0, 1]


async def test_a_replicator_of_another_incarnation_waits_and_makes_nothing(
    regions: RegionsProcess, as_peer: PulsarClientConnection
) -> None:
    topic = new_topic("incarnation")
    command = pb.CommandProducer(
        topic=topic,
        replication_source=peer_pb2.ReplicationSource(region=STRANGER, incarnation="1:0:elsewhere"),
        producer_name=f"pulsar.repl.{STRANGER}-->{EAST}",
        producer_id=0,
        request_id=0,
    )
    opened = await as_peer.open_producer(command, Outcomes())
    assert opened.replication is not None
    assert opened.replication.incarnation == "", "it learns the incarnation known here, and gets no producer"
    listed = await as_peer.request(
        pb.BaseCommand.GET_TOPICS_OF_NAMESPACE, pb.CommandGetTopicsOfNamespace(namespace="public/default", request_id=0)
    )
    assert topic not in listed.topics


# -- entries for some regions only (R3)


def test_withheld_entries_are_not_claimed(regions: RegionsProcess) -> None:
    """A region cannot acknowledge entries withheld from it, not even cumulatively."""
    topic = new_topic("withheld")
    targets = [None, [WEST], [CENTRAL], None, [EAST], [WEST, CENTRAL], [WEST], None]
    with client(regions, EAST) as east, client(regions, WEST) as west:
        producer = east.create_producer(topic, batching_enabled=False)
        for number, target in enumerate(targets * 3):
            producer.send(b"%d" % number, replication_clusters=target)
        everything = range(3 * len(targets))
        for_west = [n for n in everything if targets[n % 8] is None or WEST in (targets[n % 8] or ())]
        for_central = [n for n in everything if targets[n % 8] is None or CENTRAL in (targets[n % 8] or ())]
        assert stored(regions, WEST, topic, len(for_west)) == for_west
        assert stored(regions, CENTRAL, topic, len(for_central)) == for_central
        there = subscribe(west, topic, kind=EXCLUSIVE)
        messages = take(there, len(for_west))
        there.acknowledge_cumulative(messages[-1])
        there.close()
        take_numbers(subscribe(east, topic), set(everything) - set(for_west))
    with client(regions, CENTRAL) as central:
        take_numbers(subscribe(central, topic), [])
    for region in REGIONS:
        wait_for_backlog(regions, region, topic, 0)


# -- partitions and schemas


def test_partitions_follow_and_grow(regions: RegionsProcess) -> None:
    topic = new_topic("partitioned")
    path = f"{topic_path(topic)}/partitions"
    made = regions.http(EAST, "PUT", path, 3)
    assert made.status == 204, made.text
    with client(regions, EAST) as east, client(regions, WEST) as west:
        producer = east.create_producer(topic, batching_enabled=False)
        for number in range(60):
            producer.send(b"%d" % number)
        consumer = subscribe(west, topic)
        take_numbers(consumer, range(60))
        consumer.close()
        assert len(west.get_topic_partitions(topic)) == 3
        producer.close()

        grown = regions.http(EAST, "POST", path, 5)
        assert grown.status == 204, grown.text
        producer = east.create_producer(topic, batching_enabled=False)
        for number in range(60, 120):
            producer.send(b"%d" % number)
        for region in (WEST, CENTRAL):
            with client(regions, region) as one:
                wait_until(lambda one=one: len(one.get_topic_partitions(topic)) == 5, f"{region} to have 5 partitions")
        consumer = subscribe(east, topic)
        take_numbers(consumer, range(60, 120))
        consumer.close()
    with client(regions, CENTRAL) as central:
        take_numbers(subscribe(central, topic), [])


class Flight(pulsar.schema.Record):  # type: ignore[misc]
    carrier = pulsar.schema.String()
    number = pulsar.schema.Integer()


def test_a_schema_follows_its_messages(regions: RegionsProcess) -> None:
    topic = new_topic("schema")
    schema = pulsar.schema.JsonSchema(Flight)
    with client(regions, EAST) as east, client(regions, WEST) as west:
        producer = east.create_producer(topic, schema=schema)
        producer.send(Flight(carrier="UA", number=1545))
        consumer = west.subscribe(topic, "s", schema=schema, initial_position=pulsar.InitialPosition.Earliest)
        received = consumer.receive(PATIENCE_MS)
        assert (received.value().carrier, received.value().number) == ("UA", 1545)


async def test_a_reader_in_another_region_can_ask_for_the_schema_by_its_version(regions: RegionsProcess) -> None:
    topic = new_topic("schema-version")
    with client(regions, EAST) as east:
        producer = await asyncio.to_thread(east.create_producer, topic, schema=pulsar.schema.JsonSchema(Flight))
        await asyncio.to_thread(producer.send, Flight(carrier="UA", number=1545))
    connection = await PulsarClientConnection.connect(regions.service_url(WEST))
    consumer = await Consumer.subscribe(connection, topic, "s")
    async with asyncio.timeout(60):
        delivery = await consumer.receive()
    answer = await connection.request(
        pb.BaseCommand.GET_SCHEMA,
        pb.CommandGetSchema(topic=topic, schema_version=delivery.metadata.schema_version, request_id=0),
    )
    assert answer.schema.type == pb.Schema.Json
    assert b"carrier" in answer.schema.schema_data
    await connection.close()
