# SPDX-License-Identifier: Apache-2.0
"""What the unmodified client from PyPI does with a broker: publish, consume, acknowledge, seek, reconnect."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import struct
from pathlib import Path
from typing import Any

import pulsar
import pytest
from support.brokers.broker_process import BrokerProcess, http
from support.brokers.region_clients import PATIENCE_MS, connect, drain

EARLIEST = pulsar.InitialPosition.Earliest
QUIET_MS = 400
"""How long silence must last before a test believes that nothing comes."""


def publish(client: pulsar.Client, topic: str, bodies: list[bytes], **options: Any) -> list[pulsar.MessageId]:
    producer = client.create_producer(topic, block_if_queue_full=True, **options)
    ids: list[pulsar.MessageId] = []

    def sent(result: pulsar.Result, message_id: pulsar.MessageId) -> None:
        assert result == pulsar.Result.Ok
        ids.append(message_id)

    for body in bodies:
        producer.send_async(body, sent)
    producer.flush()
    producer.close()
    return ids


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def take(consumer: pulsar.Consumer, count: int) -> list[pulsar.Message]:
    return [consumer.receive(PATIENCE_MS) for _ in range(count)]


@pytest.mark.parametrize("batching", [True, False])
@pytest.mark.parametrize(
    "compression",
    [pulsar.CompressionType.NONE, pulsar.CompressionType.LZ4, pulsar.CompressionType.ZLib, pulsar.CompressionType.ZSTD],
)
def test_messages_come_as_they_were_sent(
    client: pulsar.Client, topic: str, batching: bool, compression: pulsar.CompressionType
) -> None:
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    publish(client, topic, numbered(3000), batching_enabled=batching, compression_type=compression)
    assert drain(consumer, 3000) == numbered(3000)


def test_keys_properties_and_times_arrive(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, producer_name="named", batching_enabled=False)
    sent = producer.send(
        b"x", properties={"a": "1", "ü": "é"}, partition_key="key", ordering_key="order", event_timestamp=12345
    )
    message = consumer.receive(PATIENCE_MS)
    assert message.properties() == {"a": "1", "ü": "é"}
    assert (message.partition_key(), message.ordering_key(), message.event_timestamp()) == ("key", "order", 12345)
    assert message.producer_name() == "named"
    assert message.publish_timestamp() > 0
    assert (message.message_id().ledger_id(), message.message_id().entry_id()) == (sent.ledger_id(), sent.entry_id())


def test_a_message_of_the_announced_maximum_passes_and_a_larger_one_does_not(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, batching_enabled=False)
    largest = os.urandom(5 * 1024 * 1024 - 200)
    producer.send(largest)
    assert consumer.receive(PATIENCE_MS).data() == largest
    with pytest.raises(pulsar.MessageTooBig):
        producer.send(bytes(5 * 1024 * 1024 + 1))
    producer.send(b"after")
    assert consumer.receive(PATIENCE_MS).data() == b"after"


def test_two_producers_of_one_name_exclude_each_other(client: pulsar.Client, topic: str) -> None:
    client.create_producer(topic, producer_name="p")
    with pytest.raises(pulsar.ProducerBusy):
        client.create_producer(topic, producer_name="p")


def test_exclusive_has_one_consumer(client: pulsar.Client, topic: str) -> None:
    client.subscribe(topic, "s")
    with pytest.raises(pulsar.ConsumerBusy):
        client.subscribe(topic, "s")
    with pytest.raises(pulsar.ConsumerBusy):
        client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)


def test_shared_deals_messages_to_all(client: pulsar.Client, topic: str) -> None:
    consumers = [
        client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared, receiver_queue_size=10) for _ in range(3)
    ]
    publish(client, topic, numbered(300), batching_enabled=False)
    per_consumer: list[list[bytes]] = [[] for _ in consumers]
    while sum(map(len, per_consumer)) < 300:
        for found, consumer in zip(per_consumer, consumers, strict=True):
            with contextlib.suppress(pulsar.Timeout):
                message = consumer.receive(50)
                found.append(message.data())
                consumer.acknowledge(message)
    assert sorted(itertools.chain(*per_consumer)) == sorted(numbered(300))
    assert all(len(found) > 30 for found in per_consumer)


def test_failover_hands_over_to_the_next(client: pulsar.Client, topic: str) -> None:
    kind = pulsar.ConsumerType.Failover
    first = client.subscribe(topic, "s", consumer_type=kind, consumer_name="a", initial_position=EARLIEST)
    second = client.subscribe(topic, "s", consumer_type=kind, consumer_name="b", initial_position=EARLIEST)
    publish(client, topic, numbered(20), batching_enabled=False)
    for message in take(first, 10):
        first.acknowledge(message)
    with pytest.raises(pulsar.Timeout):
        second.receive(QUIET_MS)
    first.close()
    assert [message.data() for message in take(second, 10)] == numbered(20)[10:]


def test_a_reader_reads_all_and_says_when_it_is_at_the_end(client: pulsar.Client, topic: str) -> None:
    ids = publish(client, topic, numbered(500))
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    found = []
    while reader.has_message_available():
        found.append(reader.read_next(PATIENCE_MS).data())
    assert found == numbered(500)
    reader.seek(ids[100])
    assert reader.read_next(PATIENCE_MS).data() in (b"100", b"101")
    latest = client.create_reader(topic, pulsar.MessageId.latest)
    assert not latest.has_message_available()


def test_acknowledged_messages_do_not_come_again_and_others_do(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
    publish(client, topic, numbered(100), batching_enabled=False)
    for message in take(consumer, 100):
        if int(message.data()) % 7:
            consumer.acknowledge(message)
    consumer.close()
    again = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
    assert drain(again, 15) == [b"%d" % n for n in range(0, 100, 7)]


def test_a_batch_acknowledged_in_part_comes_again_in_part(client: pulsar.Client, topic: str) -> None:
    options = {"consumer_type": pulsar.ConsumerType.Shared, "batch_index_ack_enabled": True}
    consumer = client.subscribe(topic, "s", **options)
    publish(client, topic, numbered(500), batching_enabled=True, batching_max_publish_delay_ms=200)
    for message in take(consumer, 500):
        if int(message.data()) % 10:
            consumer.acknowledge(message)
    consumer.close()
    again = client.subscribe(topic, "s", **options)
    assert drain(again, 50) == [b"%d" % n for n in range(0, 500, 10)]
    again.close()
    assert drain(client.subscribe(topic, "s", **options)) == []


def test_cumulative_acknowledgement_covers_everything_before(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    publish(client, topic, numbered(100), batching_enabled=False)
    consumer.acknowledge_cumulative(take(consumer, 60)[-1])
    consumer.close()
    assert drain(client.subscribe(topic, "s"), 40) == numbered(100)[60:]


def test_negative_acknowledgement_brings_a_message_again(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(
        topic, "s", consumer_type=pulsar.ConsumerType.Shared, negative_ack_redelivery_delay_ms=100
    )
    publish(client, topic, [b"a", b"b"], batching_enabled=False)
    first, second = take(consumer, 2)
    consumer.negative_acknowledge(first)
    consumer.acknowledge(second)
    again = consumer.receive(PATIENCE_MS)
    assert again.data() == first.data()
    assert again.redelivery_count() == 1
    consumer.acknowledge(again)
    assert drain(consumer) == []


def test_unacknowledged_messages_come_again_after_the_ack_timeout(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(
        topic, "s", consumer_type=pulsar.ConsumerType.Shared, unacked_messages_timeout_ms=10_000
    )
    publish(client, topic, [b"a"], batching_enabled=False)
    consumer.receive(PATIENCE_MS)
    consumer.redeliver_unacknowledged_messages()
    assert consumer.receive(PATIENCE_MS).data() == b"a"


def test_seek_by_id_goes_back_and_forward(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST, start_message_id_inclusive=True)
    ids = publish(client, topic, numbered(50), batching_enabled=False)
    assert drain(consumer, 50) == numbered(50)
    consumer.seek(ids[20])
    assert drain(consumer, 30) == numbered(50)[20:]
    consumer.seek(pulsar.MessageId.earliest)
    assert drain(consumer, 50) == numbered(50)
    consumer.seek(pulsar.MessageId.latest)
    assert drain(consumer) == []
    consumer.seek(ids[45])
    assert drain(consumer, 5) == numbered(50)[45:]


def test_seek_back_brings_a_batch_acknowledged_in_part_whole(client: pulsar.Client, topic: str) -> None:
    options = {"consumer_type": pulsar.ConsumerType.Shared, "batch_index_ack_enabled": True}
    consumer = client.subscribe(topic, "s", start_message_id_inclusive=True, **options)
    publish(client, topic, numbered(10), batching_enabled=True, batching_max_publish_delay_ms=200)
    for message in take(consumer, 10)[::2]:
        consumer.acknowledge(message)
    consumer.close()
    again = client.subscribe(topic, "s", start_message_id_inclusive=True, **options)
    again.seek(pulsar.MessageId.earliest)
    assert [message.data() for message in take(again, 10)] == numbered(10)


def test_seek_by_time(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    publish(client, topic, numbered(20), batching_enabled=False)
    messages = take(consumer, 20)
    since = messages[10].publish_timestamp()
    expected = [m.data() for m in messages if m.publish_timestamp() >= since]
    consumer.seek(since)
    assert drain(consumer, len(expected)) == expected


def test_last_message_id(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    ids = publish(client, topic, numbered(30), batching_enabled=False)
    last = consumer.get_last_message_id()
    assert (last.ledger_id(), last.entry_id()) == (ids[-1].ledger_id(), ids[-1].entry_id())


def test_a_partitioned_topic_keeps_keys_together(client: pulsar.Client, broker: BrokerProcess, topic: str) -> None:
    made = http("PUT", f"{broker.admin_url}/admin/v2/persistent/public/default/{topic}/partitions", 4)
    assert made.status == 204, made.text
    assert len(client.get_topic_partitions(topic)) == 4
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    producer = client.create_producer(topic, batching_enabled=False, block_if_queue_full=True)
    for number in range(400):
        producer.send_async(b"%d" % number, lambda _r, _m: None, partition_key=f"key-{number % 10}")
    producer.flush()
    partitions: dict[str, set[str]] = {}
    orders: dict[str, list[int]] = {}
    for message in take(consumer, 400):
        partitions.setdefault(message.partition_key(), set()).add(message.topic_name())
        orders.setdefault(message.partition_key(), []).append(int(message.data()))
        consumer.acknowledge(message)
    assert all(len(names) == 1 for names in partitions.values())
    assert len(set().union(*partitions.values())) > 1
    assert all(order == sorted(order) and len(order) == 40 for order in orders.values())


def test_unsubscribe_forgets_the_subscription(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    publish(client, topic, numbered(5), batching_enabled=False)
    assert drain(consumer, 5) == numbered(5)
    consumer.unsubscribe()
    assert drain(client.subscribe(topic, "s", initial_position=EARLIEST), 5) == numbered(5)


def test_a_schema_is_registered_and_read_back(client: pulsar.Client, topic: str) -> None:
    class Flight(pulsar.schema.Record):  # type: ignore[misc]
        carrier = pulsar.schema.String()
        number = pulsar.schema.Integer()

    schema = pulsar.schema.JsonSchema(Flight)
    consumer = client.subscribe(topic, "s", schema=schema)
    producer = client.create_producer(topic, schema=schema)
    producer.send(Flight(carrier="UA", number=7))
    received = consumer.receive(PATIENCE_MS)
    assert (received.value().carrier, received.value().number) == ("UA", 7)


def test_clients_go_on_after_a_restart_of_the_broker(tmp_path: Path) -> None:
    with BrokerProcess("one", tmp_path) as broker:
        client = connect(broker.service_url)
        consumer = client.subscribe("t", "s", consumer_type=pulsar.ConsumerType.Shared, initial_position=EARLIEST)
        producer = client.create_producer("t", batching_enabled=False, block_if_queue_full=True)
        for body in numbered(100):
            producer.send(body)
        for message in take(consumer, 50):
            consumer.acknowledge(message)
        consumer.close()
        for stop in (broker.stop, broker.kill):
            stop()
            broker.start()
            producer.send(b"after a restart")
        again = client.subscribe("t", "s", consumer_type=pulsar.ConsumerType.Shared)
        assert drain(again, 52) == [*numbered(100)[50:], b"after a restart", b"after a restart"]
        client.close()


@pytest.mark.parametrize(
    "garbage",
    [
        struct.pack(">II", 1 << 30, 5),
        struct.pack(">II", 8, 100) + b"abcd",
        struct.pack(">II", 6, 2) + b"\xff\xff",
        b"GET / HTTP/1.1\r\n\r\n",
        os.urandom(4000),
    ],
)
async def test_bad_frames_end_their_connection_and_disturb_nothing_else(
    broker: BrokerProcess, client: pulsar.Client, topic: str, garbage: bytes
) -> None:
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    host, port = broker.service_url.removeprefix("pulsar://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(garbage)
    with contextlib.suppress(ConnectionError):
        await writer.drain()
        if garbage[:4] != struct.pack(">I", 6):
            writer.write_eof()
        assert await asyncio.wait_for(reader.read(), 60) is not None
    writer.close()
    await asyncio.to_thread(publish, client, topic, numbered(10))
    assert await asyncio.to_thread(drain, consumer, 10) == numbered(10)


def test_a_client_may_not_pretend_to_be_a_replicator(client: pulsar.Client, topic: str) -> None:
    """R7: the names of replicators are for brokers of other regions."""
    with pytest.raises(pulsar.PulsarException):
        client.create_producer(topic, producer_name="pulsar.repl.us-west-->one")
