# SPDX-License-Identifier: Apache-2.0
"""What one connection may do: frame and message sizes, silence, memory, how many there may be."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from meridian_broker.gateway.client import PulsarClientConnection
from meridian_broker.gateway.pulsar.connection import Connection
from meridian_broker.gateway.pulsar.flow import (
    UNSENT_BYTES,
    WRITE_BYTES,
    WRITE_BYTES_MIN,
    WRITE_BYTES_TOTAL,
    turn_bytes,
)
from meridian_broker.metadata.topic_records import TopicRecord
from meridian_broker.server.broker import BrokerProcess as Inside
from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar import encode, topic_name
from meridian_broker.wire.pulsar.errors import ServerError
from support.brokers.broker_inside import broker_inside
from support.brokers.broker_process import BrokerProcess
from support.brokers.peers import SECRET, as_region
from support.protocol.raw_connection import RawConnection

T = pb.BaseCommand
LARGEST = 100_000
SETTINGS = {"maxMessageSize": str(LARGEST), "keepAliveIntervalSeconds": "1", "maxConcurrentLookupRequest": "1"}
TOPIC = "persistent://public/default/limits"
PATIENCE = 60.0
QUESTIONS = 5000


@contextlib.asynccontextmanager
async def raw(port: int) -> AsyncIterator[RawConnection]:
    connection = await RawConnection.open(port)
    yield connection
    await connection.close()


async def closed(reader: asyncio.StreamReader) -> bytes:
    """Everything the broker sends until it closes the connection."""
    async with asyncio.timeout(PATIENCE):
        with contextlib.suppress(ConnectionError):
            return await reader.read()
        return b""


async def test_a_message_that_is_too_large_is_refused_alone(broker: BrokerProcess) -> None:
    async with raw(broker.port) as connection:
        await connection.producer(TOPIC)
        connection.send("p", 0, bytes(LARGEST + 5000))
        connection.send("p", 1, bytes(LARGEST - 100))
        refused = await connection.hear(T.SEND_ERROR)
        assert (refused.sequence_id, refused.error) == (0, ServerError.NOT_ALLOWED)
        assert await connection.receipt() == (1, True)


async def test_a_frame_that_is_too_large_ends_its_connection_alone(broker: BrokerProcess) -> None:
    async with raw(broker.port) as other:
        for beyond in (0, 1):
            reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
            writer.write(encode.simple(T.CONNECT, pb.CommandConnect(client_version="raw", protocol_version=21)))
            connected = await reader.readexactly(4)
            answer = pb.BaseCommand.FromString((await reader.readexactly(int.from_bytes(connected, "big")))[4:])
            assert answer.connected.max_message_size == LARGEST
            writer.write(struct.pack(">II", LARGEST + 10 * 1024 + beyond, 100))
            if beyond:
                await closed(reader)
            else:
                writer.write(encode.PING)  # still inside the announced frame: nothing to judge yet
                other.say(T.PING, pb.CommandPing())
                await other.hear(T.PONG)
            writer.close()
        other.say(T.PING, pb.CommandPing())
        await other.hear(T.PONG)


async def test_before_connect_a_client_gets_no_memory_and_no_time(broker: BrokerProcess) -> None:
    large, writer = await asyncio.open_connection("127.0.0.1", broker.port)
    writer.write(struct.pack(">II", LARGEST + 40_000, 100))
    assert await closed(large) == b""
    writer.close()
    dripped, dripping = await asyncio.open_connection("127.0.0.1", broker.port)
    ended = asyncio.ensure_future(closed(dripped))
    dripping.write(struct.pack(">II", 1000, 900))
    while not ended.done():  # single bytes are no sign of life
        with contextlib.suppress(ConnectionError):
            dripping.write(b"\0")
            await dripping.drain()
        await asyncio.wait([ended], timeout=0.05)
    assert await ended == b""
    dripping.close()


async def test_silence_is_asked_about_and_then_ended(broker: BrokerProcess) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
    writer.write(encode.simple(T.CONNECT, pb.CommandConnect(client_version="raw", protocol_version=21)))
    async with raw(broker.port) as answering:
        heard = asyncio.ensure_future(answering.hear(T.PONG))  # this read answers pings
        said = await closed(reader)
        assert said.endswith(encode.PING)
        answering.say(T.PING, pb.CommandPing())
        await heard
    writer.close()


async def test_lookups_beyond_the_limit(broker: BrokerProcess) -> None:
    async with raw(broker.port) as connection:
        asked = [
            pb.CommandPartitionedTopicMetadata(topic=f"{TOPIC}-{number}", request_id=number) for number in range(10)
        ]
        connection.write(b"".join(encode.simple(T.PARTITIONED_METADATA, one) for one in asked))  # all in one read
        answers = [await connection.hear(T.PARTITIONED_METADATA_RESPONSE) for _ in range(10)]
        refused = [answer.error for answer in answers if answer.response == answer.Failed]
        assert refused and set(refused) == {ServerError.TOO_MANY_REQUESTS}
        assert len(refused) < 10
        retried = pb.CommandPartitionedTopicMetadata(topic=f"{TOPIC}-9", request_id=11)
        connection.say(T.PARTITIONED_METADATA, retried)
        assert (await connection.hear(T.PARTITIONED_METADATA_RESPONSE)).response == answers[0].Success


async def test_connections_are_limited(tmp_path: Path) -> None:
    async def come(address: str) -> tuple[asyncio.StreamWriter, pb.BaseCommand]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))
        writer.write(encode.simple(T.CONNECT, pb.CommandConnect(client_version="raw", protocol_version=21)))
        size = int.from_bytes(await reader.readexactly(4), "big")
        return writer, pb.BaseCommand.FromString((await reader.readexactly(size))[4:])

    async with broker_inside(tmp_path, brokerMaxConnections=3, brokerMaxConnectionsPerIp=2) as inside:
        port = inside.settings.network.broker_service_port
        first, answer = await come("127.0.0.1")
        assert answer.type == T.CONNECTED
        second, answer = await come("127.0.0.1")
        assert answer.type == T.CONNECTED
        third, answer = await come("127.0.0.1")
        assert (answer.error.error, "brokerMaxConnectionsPerIp" in answer.error.message) == (
            ServerError.NOT_ALLOWED,
            True,
        )
        fourth, answer = await come("127.0.0.2")
        assert answer.type == T.CONNECTED
        fifth, answer = await come("127.0.0.3")
        assert (answer.error.error, "brokerMaxConnections)" in answer.error.message) == (ServerError.NOT_ALLOWED, True)
        second.close()
        await until(lambda: len(inside.gateway.connections) == 2)
        sixth, answer = await come("127.0.0.1")
        assert answer.type == T.CONNECTED
        for writer in (first, third, fourth, fifth, sixth):
            writer.close()
        await until(lambda: not inside.gateway.connections)
        assert not inside.gateway.addresses_connected


async def test_silent_connections_make_room_for_talking_ones(tmp_path: Path) -> None:
    async with broker_inside(tmp_path) as inside:
        port = inside.settings.network.broker_service_port
        inside.gateway.strangers_max = 3
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        await until(lambda: len(inside.gateway.strangers) == 3)
        for number in range(5):
            async with raw(port):
                await until(lambda: len(inside.gateway.clients) == 1)
            assert len(inside.gateway.strangers) <= 3, number
        silent += [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        await until(lambda: silent[0][0].at_eof() and silent[1][0].at_eof())
        assert len(inside.gateway.strangers) == 3, "the oldest two made room"
        for _, writer in silent:
            writer.close()


async def test_clients_that_take_all_places_keep_no_other_region_out(tmp_path: Path) -> None:
    token = tmp_path / "peer.token"
    token.write_bytes(SECRET)
    token.chmod(0o600)
    async with broker_inside(tmp_path, brokerMaxConnections=1, peerTokenFile=token) as inside:
        port = inside.settings.network.broker_service_port
        async with raw(port):
            link = await PulsarClientConnection.connect(f"pulsar://127.0.0.1:{port}", as_region("away", inside.region))
            assert link.is_proven
            await link.close()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 - no event tells of it
            await asyncio.sleep(0)


def only_connection(inside: Inside) -> Connection:
    (connection,) = inside.gateway.connections
    assert isinstance(connection, Connection)
    return connection


async def test_the_number_of_topics_opened_at_once_is_limited(tmp_path: Path) -> None:
    async with broker_inside(tmp_path, maxConcurrentTopicLoadRequest=3) as inside:
        open_one, opening, most = inside.service.opener._open, 0, 0

        async def counted(*arguments: Any) -> Any:
            nonlocal opening, most
            opening += 1
            most = max(most, opening)
            try:
                return await open_one(*arguments)
            finally:
                opening -= 1

        inside.service.opener._open = counted  # type: ignore[method-assign, assignment]
        names = [topic_name.parse(f"{TOPIC}-{number}") for number in range(20)]
        topics = await asyncio.gather(*(inside.service.opener.topic(name, create=True) for name in names))
        assert [topic.name for topic in topics] == [str(name) for name in names]
        assert most == 3


async def test_messages_on_their_way_to_the_disk_are_bounded(tmp_path: Path) -> None:
    """200 messages of 100 kB arrive at once; the broker takes 1 MiB of them at a time, plus what one read brings."""
    async with (
        broker_inside(tmp_path, maxMessagePublishBufferSizeInMB=1) as inside,
        raw(inside.settings.network.broker_service_port) as connection,
    ):
        await connection.producer(TOPIC)
        for number in range(200):
            connection.send("p", number, bytes(LARGEST))
        most = 0

        async def look() -> None:
            nonlocal most
            while True:
                most = max(most, inside.gateway.publish_bytes)
                await asyncio.sleep(0)

        looking = asyncio.ensure_future(look())
        for number in range(200):
            assert await connection.receipt() == (number, True)
        looking.cancel()
        assert 1 << 20 <= most <= (1 << 20) + (256 << 10) + LARGEST
        assert inside.gateway.publish_bytes == 0
        assert not inside.gateway.held_back


async def small_buffered(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection whose client side buffers little unread data."""
    plain = socket.socket()
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16384)
    plain.setblocking(False)
    await asyncio.get_running_loop().sock_connect(plain, ("127.0.0.1", port))
    return await asyncio.open_connection(sock=plain, limit=1 << 12)


@contextlib.asynccontextmanager
async def many_answers(inside: Inside) -> AsyncIterator[asyncio.StreamReader]:
    """A client that has sent many requests and reads none of the answers yet."""
    namespace = "public/default"
    for number in range(20):
        name = f"persistent://{namespace}/{'n' * 200}{number}"
        await inside.catalog.topics.create(topic_name.parse(name), TopicRecord())
    reader, writer = await small_buffered(inside.settings.network.broker_service_port)
    writer.write(encode.simple(T.CONNECT, pb.CommandConnect(client_version="raw", protocol_version=21)))
    for number in range(QUESTIONS):
        asked = pb.CommandGetTopicsOfNamespace(namespace=namespace, request_id=number)
        writer.write(encode.simple(T.GET_TOPICS_OF_NAMESPACE, asked))
    await until(lambda: inside.gateway.connections and not only_connection(inside).writable())
    yield reader
    writer.close()


async def test_the_broker_stops_reading_from_a_client_that_reads_nothing(tmp_path: Path) -> None:
    """Earlier requests are answered once it reads: nothing is lost, and nothing piles up in the broker."""
    async with broker_inside(tmp_path) as inside, many_answers(inside) as reader:
        transport = only_connection(inside).transport
        assert transport is not None
        sizes = []
        for _ in range(2000):  # turns of the loop in which more could pile up
            await asyncio.sleep(0)
            sizes.append(transport.get_write_buffer_size())
        assert UNSENT_BYTES <= max(sizes) <= 2 * WRITE_BYTES
        answers = 0
        while answers < QUESTIONS:
            size = int.from_bytes(await reader.readexactly(4), "big")
            command = pb.BaseCommand.FromString((await reader.readexactly(size))[4:])
            answers += command.type == T.GET_TOPICS_OF_NAMESPACE_RESPONSE


def taken(connection: Connection) -> int:
    """How many of the written bytes the client side has taken."""
    return connection._written - connection._not_taken()


async def test_a_client_that_reads_slowly_is_alive_and_one_that_reads_nothing_is_not(tmp_path: Path) -> None:
    """Neither sends anything. The ping is queued after everything written, so the slow client has not reached it yet.

    The test decides when the broker checks: otherwise the load would decide how much is read between two checks."""
    async with broker_inside(tmp_path, keepAliveIntervalSeconds=3600) as inside, many_answers(inside) as reader:
        connection = only_connection(inside)
        transport = connection.transport
        assert transport is not None
        connection.keep_alive()  # it has sent requests since the last check
        for _ in range(3):
            before = taken(connection)
            while taken(connection) == before:
                await reader.readexactly(100)
                await asyncio.sleep(0)
            connection.keep_alive()
            assert not transport.is_closing(), "it read something since the last check"
        for _ in range(2):  # the first check ends it, the second stops waiting for it to read the rest
            connection.keep_alive()
        await until(lambda: not inside.gateway.connections)


async def slow_client(inside: Inside) -> tuple[RawConnection, asyncio.Transport]:
    """The broker's only client, which buffers little unread data, and the broker's side of its connection."""
    slow = RawConnection(*await small_buffered(inside.settings.network.broker_service_port))
    slow.say(T.CONNECT, pb.CommandConnect(client_version="raw", protocol_version=21))
    await slow.hear(T.CONNECTED)
    transport = only_connection(inside).transport
    assert transport is not None
    return slow, transport


@pytest.mark.parametrize(("size", "count"), [(1000, 4000), (1 << 20, 16)])
async def test_what_a_slow_consumer_does_not_read_stays_in_the_log(tmp_path: Path, size: int, count: int) -> None:
    """It has permits for many MiB; the broker buffers one write buffer and one message, and sends the rest later."""
    async with broker_inside(tmp_path) as inside:
        port = inside.settings.network.broker_service_port
        slow, transport = await slow_client(inside)
        sizes: list[int] = []
        slow.say(
            T.SUBSCRIBE,
            pb.CommandSubscribe(
                topic=TOPIC, subscription="s", subType=pb.CommandSubscribe.Exclusive, consumer_id=1, request_id=1
            ),
        )
        await slow.hear(T.SUCCESS)
        slow.say(T.FLOW, pb.CommandFlow(consumer_id=1, messagePermits=1_000_000))
        async with raw(port) as quick:
            await quick.producer(TOPIC)
            for number in range(count):
                quick.send("p", number, bytes(size))
                if number % 8 == 7:
                    for _ in range(8):
                        await quick.receipt()
                    sizes.append(transport.get_write_buffer_size())
            for _ in range(count % 8):
                await quick.receipt()
        assert 0 < max(sizes) <= UNSENT_BYTES + WRITE_BYTES + size
        for number in range(count):
            assert (await slow.hear_any())[0] == T.MESSAGE, number
        await slow.close()


async def test_a_client_that_does_not_read_delays_no_other_subscription_of_its_topic(tmp_path: Path) -> None:
    """Each message reaches all the others before the next one is published; the broker holds one buffer for the slow
    client, which gets everything in order once it reads."""
    subscriptions, messages, size = 40, 60, 4000
    async with broker_inside(tmp_path) as inside:
        port = inside.settings.network.broker_service_port
        slow, transport = await slow_client(inside)
        sizes: list[int] = []
        async with raw(port) as quick, raw(port) as producer:
            for connection, name in ((slow, "slow"), (quick, "quick")):
                for number in range(subscriptions):
                    await connection.subscribed(TOPIC, f"{name}-{number}", number)
                    connection.write(encode.flow(number, 1_000_000))
            await producer.producer(TOPIC)
            for number in range(messages):
                producer.send("p", number, bytes(size))
                heard = set[int]()
                while len(heard) < subscriptions:
                    message = (await quick.hear_any()).command
                    heard.add(message.consumer_id)
                    place = message.message_id
                    quick.write(encode.ack(message.consumer_id, 0, [(place.ledgerId, place.entryId)]))
                    quick.write(encode.flow(message.consumer_id, 1))
                sizes.append(transport.get_write_buffer_size())
            assert 0 < max(sizes) <= UNSENT_BYTES + WRITE_BYTES + size
            there = inside.service.topics[TOPIC].subscriptions
            await until(lambda: not any(there[f"quick-{number}"].backlog() for number in range(subscriptions)))
            assert all(there[f"slow-{number}"].backlog() == messages for number in range(subscriptions))
        got: dict[int, list[tuple[int, int]]] = {number: [] for number in range(subscriptions)}
        for _ in range(subscriptions * messages):
            message = (await slow.hear_any()).command
            got[message.consumer_id].append((message.message_id.ledgerId, message.message_id.entryId))
        assert all(places == got[0] == sorted(set(places)) for places in got.values())
        await slow.close()


def test_many_connections_write_little_each() -> None:
    assert turn_bytes(1) == WRITE_BYTES
    for count in range(1, 20_000, 7):
        assert turn_bytes(count) * count <= max(WRITE_BYTES_TOTAL, WRITE_BYTES_MIN * count)
        assert WRITE_BYTES_MIN <= turn_bytes(count + 1) <= turn_bytes(count)
