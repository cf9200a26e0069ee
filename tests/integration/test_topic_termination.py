# SPDX-License-Identifier: Apache-2.0
"""Terminated topics: nothing more is accepted, everything can be read, and consumers are told of the end."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pulsar
import pytest
from meridian_broker.gateway.roles import Producer
from meridian_broker.topics.lifecycle.termination import terminate
from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar.errors import ServerError
from support.brokers.broker_process import BrokerProcess, wait_until
from support.brokers.broker_regions import regions, until
from support.brokers.region_clients import PATIENCE_MS, connect
from support.protocol.raw_connection import RawConnection, T

TOPICS = "/admin/v2/persistent/public/default"
FULL = "persistent://public/default"


def test_nothing_comes_after_the_end_and_all_before_it_is_read(broker: BrokerProcess) -> None:
    client = connect(broker.service_url)
    producer = client.create_producer("story", batching_enabled=False)
    consumer = client.subscribe("story", "s", initial_position=pulsar.InitialPosition.Earliest)
    ids = [producer.send(b"%d" % number) for number in range(5)]
    answer = broker.http("POST", f"{TOPICS}/story/terminate")
    assert answer.status == 200
    end = {"ledgerId": ids[-1].ledger_id(), "entryId": ids[-1].entry_id(), "partitionIndex": -1}
    assert answer.json == end
    with pytest.raises(pulsar.PulsarException):
        producer.send(b"too late")
    with pytest.raises(pulsar.TopicTerminated):
        client.create_producer("story")
    assert [consumer.receive(PATIENCE_MS).data() for _ in range(5)] == [b"%d" % number for number in range(5)]
    client.close()

    broker.kill()
    broker.start()
    client = connect(broker.service_url)
    assert broker.http("POST", f"{TOPICS}/story/terminate").json == end
    assert broker.http("GET", f"{TOPICS}/story/internalStats").json["state"] == "Terminated"
    with pytest.raises(pulsar.TopicTerminated):
        client.create_producer("story")
    reader = client.create_reader("story", pulsar.MessageId.earliest)
    read = []
    while reader.has_message_available():
        read.append(reader.read_next(PATIENCE_MS).data())
    assert read == [b"%d" % number for number in range(5)]
    client.close()
    # Deleting it is the way to start over.
    assert broker.http("DELETE", f"{TOPICS}/story").status == 204
    client = connect(broker.service_url)
    client.create_producer("story").send(b"a new one")
    client.close()


def test_consumers_are_told_of_the_end_when_everything_is_acknowledged(broker: BrokerProcess) -> None:
    topic = f"{FULL}/wire"

    async def subscribe(raw: RawConnection, number: int, **fields: Any) -> None:
        asked = pb.CommandSubscribe(topic=topic, subscription=f"s{number}", consumer_id=number, request_id=100 + number)
        asked.subType = fields.pop("kind", pb.CommandSubscribe.Exclusive)
        asked.initialPosition = pb.CommandSubscribe.Earliest
        for key, value in fields.items():
            setattr(asked, key, value)
        raw.say(T.SUBSCRIBE, asked)
        await raw.hear(T.SUCCESS)

    async def story() -> None:
        raw = await RawConnection.open(broker.port)
        name = (await raw.producer(topic)).producer_name
        for number in range(2):
            raw.send(name, number, b"x")
            await raw.receipt()
        await subscribe(raw, 1, kind=pb.CommandSubscribe.Shared)
        raw.say(T.FLOW, pb.CommandFlow(consumer_id=1, messagePermits=10))
        messages = [await raw.hear_any() for _ in range(2)]
        answer = await asyncio.to_thread(broker.http, "POST", f"{TOPICS}/wire/terminate")
        assert answer.status == 200
        assert (await raw.hear(T.CLOSE_PRODUCER)).producer_id == 1
        raw.ask_producer(topic, 2)
        assert (await raw.hear(T.ERROR)).error == ServerError.TOPIC_TERMINATED
        ids = [one.command.message_id for one in messages]
        raw.say(
            T.ACK, pb.CommandAck(consumer_id=1, ack_type=pb.CommandAck.Individual, message_id=[ids[1]], request_id=7)
        )
        await raw.hear(T.ACK_RESPONSE)  # one message is unacknowledged: nobody is told of the end
        raw.say(
            T.ACK, pb.CommandAck(consumer_id=1, ack_type=pb.CommandAck.Individual, message_id=[ids[0]], request_id=8)
        )
        heard = {(await raw.hear_any())[0] for _ in range(2)}
        assert heard == {T.ACK_RESPONSE, T.REACHED_END_OF_TOPIC}
        # A consumer that subscribes when all is acknowledged is told at once, after its success; others hear nothing.
        await subscribe(raw, 2, initialPosition=pb.CommandSubscribe.Latest)
        assert (await raw.hear(T.REACHED_END_OF_TOPIC)).consumer_id == 2
        await subscribe(raw, 3)
        raw.say(T.FLOW, pb.CommandFlow(consumer_id=3, messagePermits=10))
        for _ in range(2):
            assert (await raw.hear_any())[0] == T.MESSAGE
        raw.say(T.ACK, pb.CommandAck(consumer_id=3, ack_type=pb.CommandAck.Cumulative, message_id=[ids[1]]))
        assert (await raw.hear(T.REACHED_END_OF_TOPIC)).consumer_id == 3
        await raw.close()

    asyncio.run(story())


def test_a_client_that_does_not_know_the_end_keeps_its_connection(broker: BrokerProcess) -> None:
    """The C++, Python and Go clients close the connection at a command that they do not know."""

    def address() -> str:
        consumers = broker.http("GET", f"{TOPICS}/beside-it/stats").json["subscriptions"]["s"]["consumers"]
        return str(consumers[0]["address"])

    client = connect(broker.service_url)
    other = client.subscribe("beside-it", "s")
    before = address()
    producer = client.create_producer("ends", batching_enabled=False)
    consumer = client.subscribe("ends", "s", initial_position=pulsar.InitialPosition.Earliest)
    producer.send(b"last")
    assert broker.http("POST", f"{TOPICS}/ends/terminate").status == 200
    consumer.acknowledge(consumer.receive(PATIENCE_MS))
    stats = f"{TOPICS}/ends/stats"
    wait_until(
        lambda: broker.http("GET", stats).json["subscriptions"]["s"]["msgBacklog"] == 0,
        "the acknowledgement of the last message to be applied",
    )
    client.create_producer("beside-it").send(b"goes on")
    other.acknowledge(other.receive(PATIENCE_MS))
    assert address() == before
    client.close()


def test_a_partitioned_topic_is_terminated_partition_by_partition(broker: BrokerProcess) -> None:
    client = connect(broker.service_url)
    assert broker.http("PUT", f"{TOPICS}/parts/partitions", 2).status == 204
    assert broker.http("POST", f"{TOPICS}/parts/terminate").status == 405
    assert broker.http("POST", f"{TOPICS}/nowhere/terminate/partitions").status == 404
    answer = broker.http("POST", f"{TOPICS}/parts/terminate/partitions")
    assert answer.status == 200
    assert sorted(answer.json) == ["0", "1"]
    assert [answer.json[number]["partitionIndex"] for number in "01"] == [0, 1]
    with pytest.raises(pulsar.TopicTerminated):
        client.create_producer("parts")
    client.close()


async def test_messages_of_other_regions_wait_there_and_their_status_says_why(tmp_path: Path) -> None:
    topic = f"{FULL}/far"
    async with regions(tmp_path, "us-east", "us-west") as (east, west):
        connection = await east.connect()
        producer = await Producer.open(connection, topic)
        await producer.send(b"before")
        await until(lambda: topic in west.process.service.topics and len(_stored(west, topic)) == 1)
        ended = west.process.service.topics[topic]
        last = await terminate(ended)
        await producer.send(b"after")
        await producer.flush()

        def stuck() -> bool:
            status = east.process.runner.status(topic).get("us-west")
            return status is not None and status.backlog == 1 and "terminated in us-west" in (status.last_error or "")

        await until(stuck)
        assert ended.log.last_confirmed == last
        assert east.process.service.topics[topic].needed_from() < east.process.service.topics[topic].log.last_confirmed
        await connection.close()


def _stored(region: Any, topic: str) -> range:
    return range(region.process.service.topics[topic].log.entries)
