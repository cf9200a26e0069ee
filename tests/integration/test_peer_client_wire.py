# SPDX-License-Identifier: Apache-2.0
"""The client side of the protocol on a real socket, against a server scripted by each test."""

from __future__ import annotations

import asyncio
import gc
import struct
from typing import Any

import pytest
from meridian_broker.gateway.client import PulsarClientConnection
from meridian_broker.gateway.client_errors import (
    ConnectFailed,
    ConnectionLost,
    MisbehavedPeer,
    RequestRefused,
    RequestTimedOut,
)
from meridian_broker.gateway.client_options import ClientOptions, split_url
from meridian_broker.gateway.roles import Consumer, Producer
from meridian_broker.positions.position import Position
from meridian_broker.wire.proto import peer_pb2
from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar import encode, metadata
from support.brokers.peers import SECRET, as_region
from support.brokers.toy_pulsar_server import ToyConnection, ToyServer, toy_server

T = pb.BaseCommand
TOPIC = "persistent://public/default/t"


async def connect(server: ToyServer, options: ClientOptions | None = None, **callbacks: Any) -> PulsarClientConnection:
    return await PulsarClientConnection.connect(server.url, options, **callbacks)


async def test_a_peer_identifies_itself_and_keeps_its_secret() -> None:
    async with toy_server() as server:
        connection = await connect(server, as_region("here", "there"))
        (said,) = [command.message for command in server.of(T.CONNECT)]
        assert said.auth_method_name == "meridian-peer"
        assert SECRET not in said.auth_data
        assert connection.is_proven
        assert said.feature_flags.peer_protocol_version == 1
        assert (connection.peer_version, connection.max_message_size) == (1, 1000)
        await connection.close()

        server.peer_version = 0
        connection = await connect(server)
        assert not server.of(T.CONNECT)[1].message.feature_flags.HasField("peer_protocol_version")
        assert connection.peer_version == 0
        await connection.close()


async def test_refused_connections_and_rejected_clients() -> None:
    async with toy_server() as server:
        url = server.url
        server.answers[T.CONNECT] = lambda connection, _: connection.transport.write(
            encode.error(-1, pb.AuthenticationError, "who are you")
        )
        with pytest.raises(ConnectFailed, match=r"who are you \(AUTHENTICATION\)"):
            await connect(server)
        del server.answers[T.CONNECT]
        with pytest.raises(ConnectFailed, match="did not answer"):
            await connect(server, ClientOptions(connect_timeout=0.1))
    with pytest.raises(ConnectFailed, match="cannot connect"):
        await PulsarClientConnection.connect(url)


async def test_of_several_addresses_the_one_that_answers_is_used() -> None:
    async with toy_server() as gone:
        dead = gone.port
    async with toy_server() as server:
        connection = await PulsarClientConnection.connect(f"pulsar://127.0.0.1:{dead},127.0.0.1:{server.port}")
        assert connection.is_open
        await connection.close()


async def test_an_attempt_cancelled_while_connecting_leaves_no_error_behind() -> None:
    left: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: left.append(context))

    class Cancelled(PulsarClientConnection):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            attempts.pop().cancel()

    async with toy_server() as server:
        attempts = [asyncio.ensure_future(Cancelled.connect(server.url))]
        with pytest.raises(asyncio.CancelledError):
            await attempts[0]
        await server.until(lambda: server.accepted == 1 and not server.connections)
    gc.collect()
    assert not left


async def test_answers_find_their_requests_in_any_order() -> None:
    async with toy_server() as server:
        asked: list[Any] = []

        def answer_backwards(connection: ToyConnection, command: Any) -> None:
            asked.append(command.message)
            if len(asked) == 3:
                for one in reversed(asked):
                    partitions = int(one.topic.rsplit("-", 1)[1])
                    connection.say(
                        T.PARTITIONED_METADATA_RESPONSE,
                        pb.CommandPartitionedTopicMetadataResponse(request_id=one.request_id, partitions=partitions),
                    )

        server.answers[T.PARTITIONED_METADATA] = answer_backwards
        connection = await connect(server)
        counts = await asyncio.gather(*(connection.partitions(f"{TOPIC}-{number}") for number in (4, 5, 6)))
        assert counts == [4, 5, 6]
        assert not asked[0].metadata_auto_creation_enabled
        await connection.close()


async def test_refusals_carry_their_code_and_disturb_nothing_else() -> None:
    async with toy_server() as server:
        server.answers[T.PRODUCER] = lambda connection, command: connection.transport.write(
            encode.error(command.message.request_id, pb.ProducerBusy, "the name is taken")
        )
        connection = await connect(server)
        with pytest.raises(RequestRefused, match="the name is taken") as refused:
            await Producer.open(connection, TOPIC, "p")
        assert refused.value.code == pb.ProducerBusy
        assert (await connection.lookup(TOPIC)).url == server.url
        await connection.close()


async def test_an_unanswered_request_times_out_and_leaves_nothing_behind() -> None:
    async with toy_server() as server:
        del server.answers[T.PRODUCER]
        connection = await connect(server, ClientOptions(request_timeout=0.5))
        with pytest.raises(RequestTimedOut, match="PRODUCER"):
            await Producer.open(connection, TOPIC)
        await server.until(lambda: bool(server.of(T.CLOSE_PRODUCER)))  # it may have taken effect on the other side
        await connection.close()


async def test_more_requests_than_allowed_wait_for_their_turn() -> None:
    async with toy_server() as server:
        answer = server.answers.pop(T.LOOKUP)
        connection = await connect(server, ClientOptions(max_pending_requests=2))
        requests = [asyncio.ensure_future(connection.lookup(TOPIC)) for _ in range(5)]
        await server.until(lambda: len(server.of(T.LOOKUP)) == 2)
        server.answers[T.LOOKUP] = answer
        for command in server.of(T.LOOKUP):
            answer(server.connections[0], command)
        await asyncio.gather(*requests)
        assert len(server.of(T.LOOKUP)) == 5
        await connection.close()


async def test_losing_the_connection_ends_every_wait_and_tells_everyone_once() -> None:
    async with toy_server() as server:
        lost: list[str] = []
        connection = await connect(server, on_lost=lost.append)
        producer = await Producer.open(connection, TOPIC)
        consumer = await Consumer.subscribe(connection, TOPIC, "s")
        receipt = await producer.send(b"x")
        del server.answers[T.LOOKUP]
        waiting = [asyncio.ensure_future(connection.lookup(TOPIC)), asyncio.ensure_future(consumer.receive())]
        await server.until(lambda: bool(server.of(T.LOOKUP)))
        server.drop()
        results = await asyncio.gather(*waiting, receipt, return_exceptions=True)
        assert [type(result) for result in results] == [ConnectionLost] * 3
        assert len(lost) == 1
        with pytest.raises(ConnectionLost):
            connection.write([encode.PING])
        with pytest.raises(ConnectionLost):
            await connection.lookup(TOPIC)
        await connection.close()


async def test_silence_is_asked_about_and_then_ends_the_connection() -> None:
    async with toy_server() as server:
        connection = await connect(server, ClientOptions(keep_alive=0.3))
        await server.until(lambda: len(server.of(T.PING)) >= 3)
        assert connection.is_open
        del server.answers[T.PING]
        assert "silent" in await connection.wait_lost()
        await connection.close()


async def test_a_ping_is_answered() -> None:
    async with toy_server() as server:
        connection = await connect(server)
        server.connections[0].transport.write(encode.PING)
        await server.until(lambda: bool(server.of(T.PONG)))
        await connection.close()


@pytest.mark.parametrize("junk", [b"\xff" * 64, struct.pack(">II", 8, 4) + b"\xff\xff\xff\xff"])
async def test_invalid_bytes_end_the_connection_and_name_the_peer(junk: bytes) -> None:
    async with toy_server() as server:
        connection = await connect(server)
        server.connections[0].transport.write(encode.PING + junk)
        await connection.wait_lost()
        assert isinstance(connection.failure, MisbehavedPeer)
        await connection.close()


@pytest.mark.logs_error("RuntimeError: boom")
async def test_a_callback_that_raises_ends_only_its_connection() -> None:
    def explode(kind: int, message: Any) -> None:
        raise RuntimeError("boom")

    async with toy_server() as server:
        connection = await connect(server, on_command=explode)
        other = await connect(server)
        hello = peer_pb2.ProgressHello(region="r")
        server.connections[0].say(T.PROGRESS_HELLO, hello)
        assert "boom" in await connection.wait_lost()
        assert other.is_open
        await connection.close()
        await other.close()


async def test_peer_commands_go_to_whoever_asked_for_them() -> None:
    async with toy_server() as server:
        heard: list[tuple[int, Any]] = []
        connection = await connect(server, on_command=lambda kind, message: heard.append((kind, message)))
        server.connections[0].say(T.PROGRESS_HELLO, peer_pb2.ProgressHello(region="us-west"))
        await connection.lookup(TOPIC)
        assert [(kind, message.region) for kind, message in heard] == [(T.PROGRESS_HELLO, "us-west")]
        await connection.close()


async def test_writes_of_one_turn_leave_together_and_a_slow_reader_holds_the_writer_back() -> None:
    async with toy_server() as server:
        connection = await connect(server, ClientOptions(write_buffer=64 * 1024))
        server.connections[0].transport.pause_reading()
        frame = encode.simple(T.PROGRESS_HELLO, peer_pb2.ProgressHello(region="x" * 60_000))
        while connection.writable:
            connection.write([frame])
            await asyncio.sleep(0)
        held = asyncio.ensure_future(connection.drain())
        await asyncio.sleep(0)
        assert not held.done()
        server.connections[0].transport.resume_reading()
        await held
        await connection.close()


async def test_what_was_written_before_close_still_arrives() -> None:
    async with toy_server() as server:
        connection = await connect(server)
        for _ in range(3):
            connection.write([encode.simple(T.PROGRESS_HELLO, peer_pb2.ProgressHello(region="bye"))])
        await connection.close()
        await server.until(lambda: not server.connections)
        assert len(server.of(T.PROGRESS_HELLO)) == 3


async def test_producer_and_consumer_roles() -> None:
    async with toy_server() as server:
        connection = await connect(server)
        producer = await Producer.open(connection, TOPIC)
        assert producer.name == "toy-1"
        futures = [await producer.send(b"one", key="k"), await producer.send(b"two", properties={"a": "b"})]
        await server.until(lambda: len(server.of(T.SEND)) == 2)
        first, second = server.of(T.SEND)
        assert metadata.scan(first.body).partition_key == "k"
        toy = server.connections[0]
        toy.transport.write(encode.send_receipt(first.producer_id, first.sequence_id, 5, 0))
        toy.transport.write(encode.send_error(second.producer_id, second.sequence_id, pb.PersistenceError, "disk full"))
        assert await futures[0] == Position(5, 0)
        with pytest.raises(RequestRefused, match="disk full"):
            await futures[1]
        await producer.close()

        consumer = await Consumer.subscribe(connection, TOPIC, "s", replicated=True, queue=4)
        subscribe = server.of(T.SUBSCRIBE)[0].message
        assert subscribe.replicate_subscription_state
        await server.until(lambda: bool(server.of(T.FLOW)))
        assert server.of(T.FLOW)[0].permits == 4
        for entry, send in enumerate((first, second)):
            toy.transport.write(b"".join(encode.message(subscribe.consumer_id, 5, entry, send.body)))
        assert (await consumer.receive()).payloads == [b"one"]
        delivery = await consumer.receive()
        assert (delivery.position, delivery.payloads) == (Position(5, 1), [b"two"])
        assert delivery.metadata.properties[0].value == "b"
        consumer.acknowledge(Position(5, 0), Position(5, 1))
        await server.until(lambda: bool(server.of(T.ACK)) and len(server.of(T.FLOW)) == 2)
        assert server.of(T.ACK)[0].ids == [(5, 0), (5, 1)]
        toy.say(T.CLOSE_CONSUMER, pb.CommandCloseConsumer(consumer_id=subscribe.consumer_id, request_id=1))
        with pytest.raises(ConnectionLost, match="closed the consumer"):
            await consumer.receive()
        await connection.close()


def test_service_urls() -> None:
    assert split_url("pulsar://a,b:1/") == [("a", 6650, False), ("b", 1, False)]
    assert split_url("pulsar+ssl://[::1]:7") == [("::1", 7, True)]
    for wrong in ("http://a", "a:6650", "pulsar://", "pulsar://:1"):
        with pytest.raises(ValueError, match=r"service URL|no host"):
            split_url(wrong)
