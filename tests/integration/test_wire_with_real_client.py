# SPDX-License-Identifier: Apache-2.0
"""The real Pulsar client (C++ inside) against a toy server made of nothing but the wire room.

This is the proof that the field numbers in ``pulsar.proto`` are the protocol's: a connection, metadata, lookup,
producer, entries (single, batched, keyed, chunked), subscription, delivery, acknowledgement, seek and close.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pulsar
import pytest
from meridian_broker.bounds.clients import MESSAGE_BYTES
from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar import encode, frames, metadata, origin_fields
from meridian_broker.wire.pulsar.errors import ServerError
from meridian_broker.wire.pulsar.versions import PROTOCOL_VERSION
from support.brokers.region_clients import PATIENCE_MS

LEDGER = 750_000_000_000_123
"""As large as real ledger ids (R1)."""

Base = pb.BaseCommand


class ToyServer:
    """One topic log per name, one consumer per subscription; the commands it received are kept for the tests."""

    def __init__(self) -> None:
        self.logs: dict[str, list[bytes]] = {}
        self.seen: list[Any] = []
        self.acked: set[tuple[int, int]] = set()
        self.url = ""
        self.wrong: list[str] = []

    async def serve(self, started: threading.Event, stop: asyncio.Event) -> None:
        server = await asyncio.start_server(self._connection, "127.0.0.1", 0)
        self.url = f"pulsar://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        started.set()
        async with server:
            await stop.wait()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = ToyConnection(self, writer)
        decoder = frames.FrameDecoder()
        try:
            while data := await reader.read(65536):
                for command in decoder.feed(data):
                    self.seen.append(command)
                    connection.handle(command)
                await writer.drain()
        except ConnectionError:
            pass
        except Exception as error:  # kept, so that the test fails with the reason and not with a client timeout
            self.wrong.append(repr(error))
            raise
        finally:
            writer.close()

    def commands(self, kind: int) -> list[Any]:
        return [command for command in self.seen if command[0] == kind]


class ToyConnection:
    def __init__(self, server: ToyServer, writer: asyncio.StreamWriter) -> None:
        self.server = server
        self.writer = writer
        self.producers: dict[int, str] = {}
        self.consumers: dict[int, tuple[str, int]] = {}
        self.permits: dict[int, int] = {}

    def handle(self, command: Any) -> None:
        kind = command[0]
        if kind == Base.SEND:
            self.send(command)
        elif kind == Base.FLOW:
            self.permits[command.consumer_id] += command.permits
            self.deliver(command.consumer_id)
        elif kind == Base.ACK:
            self.server.acked.update(command.ids)
            if command.request_id is not None:
                reply = pb.CommandAckResponse(consumer_id=command.consumer_id, request_id=command.request_id)
                self.reply(Base.ACK_RESPONSE, reply)
        else:
            getattr(self, "on_" + Base.Type.Name(kind).lower())(command.message)

    def reply(self, kind: int, message: Any) -> None:
        self.writer.write(encode.simple(kind, message))

    def on_connect(self, connect: pb.CommandConnect) -> None:
        assert connect.feature_flags.supports_auth_refresh
        assert not connect.feature_flags.HasField("peer_protocol_version")
        flags = pb.FeatureFlags(peer_protocol_version=1, supports_get_partitioned_metadata_without_auto_creation=True)
        self.reply(
            Base.CONNECTED,
            pb.CommandConnected(
                server_version="toy",
                protocol_version=min(PROTOCOL_VERSION, connect.protocol_version),
                max_message_size=MESSAGE_BYTES,
                feature_flags=flags,
            ),
        )

    def on_ping(self, _: pb.CommandPing) -> None:
        self.writer.write(encode.PONG)

    def on_pong(self, _: pb.CommandPong) -> None:
        pass

    def on_partitioned_metadata(self, ask: pb.CommandPartitionedTopicMetadata) -> None:
        answer = pb.CommandPartitionedTopicMetadataResponse(request_id=ask.request_id)
        if "forbidden" in ask.topic:
            answer.response, answer.error = answer.Failed, ServerError.AUTHORIZATION
            answer.message = "not for you"
        else:
            answer.response, answer.partitions = answer.Success, 0
        self.reply(Base.PARTITIONED_METADATA_RESPONSE, answer)

    def on_lookup(self, ask: pb.CommandLookupTopic) -> None:
        answer = pb.CommandLookupTopicResponse(request_id=ask.request_id, brokerServiceUrl=self.server.url)
        answer.response, answer.authoritative = answer.Connect, True
        self.reply(Base.LOOKUP_RESPONSE, answer)

    def on_producer(self, ask: pb.CommandProducer) -> None:
        if "busy" in ask.topic:
            self.writer.write(encode.error(ask.request_id, ServerError.PRODUCER_BUSY, "name taken"))
            return
        self.producers[ask.producer_id] = ask.topic
        self.server.logs.setdefault(ask.topic, [])
        success = pb.CommandProducerSuccess(
            request_id=ask.request_id, producer_name=ask.producer_name or "toy-0-1", last_sequence_id=-1
        )
        success.replication.incarnation = "a field only peers know"
        self.reply(Base.PRODUCER_SUCCESS, success)

    def send(self, send: frames.Send) -> None:
        assert send.checksum_ok
        log = self.server.logs[self.producers[send.producer_id]]
        body = send.body
        if "replicated" in self.producers[send.producer_id]:  # what a replicator would have sent
            body, appended = origin_fields.append_replication(body, "west", LEDGER, len(log))
            assert origin_fields.origin_checksum(body, appended) == metadata.body_checksum(send.body)
        log.append(bytes(body))
        self.writer.write(
            encode.send_receipt(
                send.producer_id, send.sequence_id, LEDGER, len(log) - 1, send.highest_sequence_id or send.sequence_id
            )
        )
        for consumer_id in self.consumers:
            self.deliver(consumer_id)

    def on_subscribe(self, ask: pb.CommandSubscribe) -> None:
        start = ask.start_message_id.entryId if ask.HasField("start_message_id") else 0
        self.consumers[ask.consumer_id] = (ask.topic, start if start < len(self.server.logs.get(ask.topic, ())) else 0)
        self.permits[ask.consumer_id] = 0
        self.server.logs.setdefault(ask.topic, [])
        self.writer.write(encode.success(ask.request_id))

    def deliver(self, consumer_id: int) -> None:
        topic, at = self.consumers[consumer_id]
        log = self.server.logs[topic]
        while at < len(log) and self.permits[consumer_id] > 0:
            self.writer.writelines(encode.message(consumer_id, LEDGER, at, log[at], redelivery_count=at))
            self.permits[consumer_id] -= metadata.scan(log[at]).num_messages
            at += 1
        self.consumers[consumer_id] = (topic, at)

    def on_seek(self, ask: pb.CommandSeek) -> None:
        self.reply(Base.CLOSE_CONSUMER, pb.CommandCloseConsumer(consumer_id=ask.consumer_id, request_id=0))
        self.writer.write(encode.success(ask.request_id))

    def on_get_last_message_id(self, ask: pb.CommandGetLastMessageId) -> None:
        log = self.server.logs[self.consumers[ask.consumer_id][0]]
        last = pb.MessageIdData(ledgerId=LEDGER, entryId=len(log) - 1)
        answer = pb.CommandGetLastMessageIdResponse(last_message_id=last, request_id=ask.request_id)
        self.reply(Base.GET_LAST_MESSAGE_ID_RESPONSE, answer)

    def on_redeliver_unacknowledged_messages(self, _: Any) -> None:
        pass

    def on_unsubscribe(self, ask: pb.CommandUnsubscribe) -> None:
        self.writer.write(encode.success(ask.request_id))

    def on_close_producer(self, ask: pb.CommandCloseProducer) -> None:
        del self.producers[ask.producer_id]
        self.writer.write(encode.success(ask.request_id))

    def on_close_consumer(self, ask: pb.CommandCloseConsumer) -> None:
        del self.consumers[ask.consumer_id]
        self.writer.write(encode.success(ask.request_id))


@pytest.fixture
def server() -> Iterator[ToyServer]:
    toy = ToyServer()
    started = threading.Event()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    def run() -> None:
        asyncio.set_event_loop(loop)
        loop.run_until_complete(toy.serve(started, stop))
        leftover = asyncio.all_tasks(loop)
        for task in leftover:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*leftover, return_exceptions=True))
        loop.close()

    thread = threading.Thread(target=run)
    thread.start()
    assert started.wait(60)
    yield toy
    loop.call_soon_threadsafe(stop.set)
    thread.join(60)
    assert not toy.wrong


@pytest.fixture
def client(server: ToyServer) -> Iterator[pulsar.Client]:
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    made = pulsar.Client(server.url, logger=quiet, operation_timeout_seconds=60)
    yield made
    made.close()


def test_single_messages_go_round(server: ToyServer, client: pulsar.Client) -> None:
    producer = client.create_producer("round", producer_name="me", batching_enabled=False)
    consumer = client.subscribe("round", "sub", consumer_type=pulsar.ConsumerType.Shared)
    ids = [
        producer.send(b"m%d" % n, properties={"n": str(n)}, partition_key=f"k{n}", event_timestamp=n + 1)
        for n in range(3)
    ]
    assert [(i.ledger_id(), i.entry_id()) for i in ids] == [(LEDGER, 0), (LEDGER, 1), (LEDGER, 2)]
    for n in range(3):
        message = consumer.receive(PATIENCE_MS)
        assert message.data() == b"m%d" % n
        assert message.properties() == {"n": str(n)}
        assert message.redelivery_count() == n
        assert (message.message_id().ledger_id(), message.message_id().entry_id()) == (LEDGER, n)
        consumer.acknowledge(message)
    consumer.close()
    producer.close()
    assert server.acked == {(LEDGER, 0), (LEDGER, 1), (LEDGER, 2)}
    (asked,) = server.commands(Base.PRODUCER)
    assert asked.message.topic == "persistent://public/default/round"
    assert asked.message.producer_name == "me"
    views = [metadata.scan(send.body) for send in server.commands(Base.SEND)]
    assert [(v.producer_name, v.partition_key, v.num_messages, v.is_batch) for v in views] == [
        ("me", f"k{n}", 1, False) for n in range(3)
    ]


def test_a_batch_stays_one_entry(server: ToyServer, client: pulsar.Client) -> None:
    producer = client.create_producer("batch", batching_enabled=True, batching_max_publish_delay_ms=200)
    consumer = client.subscribe("batch", "sub", consumer_type=pulsar.ConsumerType.Exclusive)
    for n in range(10):
        producer.send_async(b"b%d" % n, None)
    producer.flush()
    received = [consumer.receive(PATIENCE_MS) for _ in range(10)]
    assert [message.data() for message in received] == [b"b%d" % n for n in range(10)]
    (send,) = server.commands(Base.SEND)
    assert (send.num_messages, send.sequence_id) == (10, 0)
    consumer.acknowledge_cumulative(received[-1])
    consumer.close()
    (ack,) = server.commands(Base.ACK)
    assert (ack.ack_type, ack.ids) == (frames.CUMULATIVE, [(LEDGER, 0)])


def test_a_replicated_body_is_accepted(server: ToyServer, client: pulsar.Client) -> None:
    producer = client.create_producer("replicated", batching_enabled=False)
    consumer = client.subscribe("replicated", "sub")
    producer.send(b"from afar", properties={"a": "b"})
    message = consumer.receive(PATIENCE_MS)
    assert message.data() == b"from afar"
    assert message.properties() == {"a": "b", metadata.SOURCE_POSITION_PROPERTY: f"{LEDGER}:0"}


def test_chunks(server: ToyServer, client: pulsar.Client) -> None:
    producer = client.create_producer("chunks", batching_enabled=False, chunking_enabled=True)
    consumer = client.subscribe("chunks", "sub")
    big = bytes(range(256)) * 4 * 11 * 1024  # 11 MiB
    producer.send(big)
    assert consumer.receive(PATIENCE_MS).data() == big
    sends = server.commands(Base.SEND)
    views = [metadata.scan(send.body) for send in sends]
    assert len(sends) == 3
    assert [v.chunk_id for v in views] == [0, 1, 2]
    assert {(v.num_chunks, v.total_chunk_bytes, v.uuid) for v in views} == {(3, len(big), views[0].uuid)}
    assert all(send.is_chunk for send in sends)


def test_seek_and_last_message_id(server: ToyServer, client: pulsar.Client) -> None:
    producer = client.create_producer("seek", batching_enabled=False)
    reader = client.create_reader("seek", pulsar.MessageId.earliest, start_message_id_inclusive=True)
    sent = [producer.send(b"s%d" % n) for n in range(3)]
    assert reader.has_message_available()
    assert [reader.read_next(PATIENCE_MS).data() for _ in range(3)] == [b"s0", b"s1", b"s2"]
    reader.seek(sent[1])
    assert reader.read_next(PATIENCE_MS).data() == b"s1"
    (asked,) = server.commands(Base.SEEK)
    assert (asked.message.message_id.ledgerId, asked.message.message_id.entryId) == (LEDGER, 1)
    subscribed = server.commands(Base.SUBSCRIBE)[0].message
    assert not subscribed.durable
    assert subscribed.subType == subscribed.Exclusive
    reader.close()


def test_errors_reach_the_client(client: pulsar.Client) -> None:
    with pytest.raises(pulsar.AuthorizationError):
        client.create_producer("forbidden")
    with pytest.raises(pulsar.ProducerBusy):
        client.create_producer("busy")
