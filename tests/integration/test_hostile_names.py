# SPDX-License-Identifier: Apache-2.0
"""Names, properties and epochs too large to store are refused before anything is created, and the topic serves on."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from meridian_broker.bounds import clients as bounds
from meridian_broker.metadata.topic_records import TopicRecord
from meridian_broker.positions import Progress
from meridian_broker.positions.position import EARLIEST
from meridian_broker.server.broker import BrokerProcess
from meridian_broker.server.log_lines import LogLines
from meridian_broker.topics.errors import InvalidName
from meridian_broker.topics.service import creation
from meridian_broker.topics.subscriptions.subscription import Subscription
from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar import encode, topic_name
from meridian_broker.wire.pulsar.errors import ServerError
from support.brokers.broker_process import http
from support.brokers.broker_regions import regions, until
from support.protocol.raw_connection import RawConnection, T

TOPIC = "persistent://public/default/names"


async def connect(broker: BrokerProcess) -> RawConnection:
    return await RawConnection.open(broker.settings.network.broker_service_port)


async def subscribed(wire: RawConnection, name: str, consumer_id: int = 1, **fields: Any) -> str:
    """Empty, or why not."""
    asked = pb.CommandSubscribe(topic=TOPIC, subscription=name, consumer_id=consumer_id, request_id=1)
    asked.subType = pb.CommandSubscribe.Shared
    asked.MergeFrom(pb.CommandSubscribe(**fields))
    wire.say(T.SUBSCRIBE, asked)
    answer = await wire.hear_any()
    if answer[0] == T.SUCCESS:
        return ""
    assert (answer[0], answer.message.error) == (T.ERROR, ServerError.NOT_ALLOWED)
    return str(answer.message.message)


async def produced(wire: RawConnection, producer_id: int, **fields: Any) -> str:
    """Empty, or why not."""
    wire.ask_producer(TOPIC, producer_id, **fields)
    answer = await wire.hear_any()
    if answer[0] == T.PRODUCER_SUCCESS:
        return ""
    assert (answer[0], answer.message.error) == (T.ERROR, ServerError.NOT_ALLOWED)
    return str(answer.message.message)


def pairs(size: int) -> list[pb.KeyValue]:
    return [pb.KeyValue(key="k", value="\x01" * (size - 1))]


async def test_names_and_properties_beyond_the_limits_keep_nobody_out(inside: BrokerProcess) -> None:
    """The topic has no progress log yet, and a refused client does not begin an unwritable one."""
    hostile = await connect(inside)
    for name in ("n" * 70_000, "n" * (bounds.NAME_BYTES + 1), "\x1b[2Jline\n"):
        assert "name of a subscription" in await subscribed(hostile, name)
        assert "name of a subscription" in await produced(hostile, 1, initial_subscription_name=name)
        assert "name of a consumer" in await subscribed(hostile, "s", consumer_name=name)
        assert "name of a producer" in await produced(hostile, 1, producer_name=name)
    large = pairs(bounds.SUBSCRIPTION_PROPERTIES_BYTES + 1)
    assert "properties of a subscription" in await subscribed(hostile, "s", subscription_properties=large)
    assert "properties of a consumer" in await subscribed(hostile, "s", metadata=large)
    assert "properties of a producer" in await produced(hostile, 1, metadata=large)
    assert TOPIC not in inside.service.topics
    honest = await connect(inside)
    assert await subscribed(honest, "s", subscription_properties=pairs(bounds.SUBSCRIPTION_PROPERTIES_BYTES)) == ""
    assert list(inside.service.topics[TOPIC].subscriptions) == ["s"]
    for wire in (hostile, honest):
        await wire.close()


async def test_the_largest_subscriptions_cross_and_one_that_is_too_large_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An older version let the oversized one in. An honest subscription's acknowledgements still cross."""
    async with regions(tmp_path, "us-east", "us-west") as (east, west):
        wire = await connect(east.process)
        largest = pairs(bounds.SUBSCRIPTION_PROPERTIES_BYTES)
        names = [f"{number}".rjust(bounds.NAME_BYTES, "n") for number in range(6)]
        for number, name in enumerate(names):
            fields = {"subscription_properties": largest, "replicate_subscription_state": True}
            assert await subscribed(wire, name, number, **fields) == ""
        assert await subscribed(wire, "honest", 10, replicate_subscription_state=True) == ""
        topic = east.process.service.topics[TOPIC]
        with monkeypatch.context() as patch:
            patch.setattr("meridian_broker.topics.validation.subscription", lambda *_: None)
            properties = {"k": "\x01" * 1_000_000}
            topic.subscribing.create_subscription("older", EARLIEST, replicated=True, properties=properties)
        await wire.producer(TOPIC, producer_name="p")
        wire.write(encode.flow(10, 10))

        def progress_of(subscription: Subscription | None) -> Progress | None:
            return None if subscription is None else subscription.cursor.progress

        def there(name: str) -> Subscription | None:
            found = west.process.service.topics.get(TOPIC)
            return None if found is None else found.subscriptions.get(name)

        for number in range(3):
            wire.send("p", number, b"one")
            told = {(one := await wire.hear_any())[0]: one for _ in range(2)}
            at = told[T.MESSAGE].command.message_id
            wire.write(encode.ack(10, 0, [(at.ledgerId, at.entryId)]))
            mine = topic.subscriptions["honest"]
            await until(lambda mine=mine: progress_of(there("honest")) == progress_of(mine))
            if number == 0:
                caplog.clear()
        for name in names:
            await until(lambda name=name: there(name) is not None)
            crossed = there(name)
            assert crossed is not None
            assert dict(crossed.record.properties) == {"k": "\x01" * (bounds.SUBSCRIPTION_PROPERTIES_BYTES - 1)}
        assert there("older") is None
        assert "is down" not in caplog.text
        await wire.close()


ODD = "persistent://public/default/odd\u202e\u2028\x9b2J"


async def test_a_topic_whose_name_would_not_print_as_it_is_is_refused(inside: BrokerProcess) -> None:
    wire = await connect(inside)
    for domain in ("persistent", "non-persistent"):
        topic = ODD.replace("persistent", domain, 1)
        wire.ask_producer(topic)
        assert (await wire.hear(T.ERROR)).error == ServerError.INVALID_TOPIC_NAME
        asked = pb.CommandSubscribe(
            topic=topic, subscription="s", subType=pb.CommandSubscribe.Shared, consumer_id=1, request_id=1
        )
        wire.say(T.SUBSCRIBE, asked)
        assert (await wire.hear(T.ERROR)).error == ServerError.INVALID_TOPIC_NAME
    for name in (ODD, "persistent://public/default/.."):
        with pytest.raises(InvalidName):
            await creation.create_plain(inside.service.opener, topic_name.parse(name), {})
        with pytest.raises(InvalidName):
            await creation.create_partitioned(inside.service.opener, topic_name.parse(name), 2, {})
    assert await inside.catalog.topics.names("public/default") == []
    await wire.close()


async def test_a_topic_that_has_such_a_name_is_served_and_can_be_deleted(
    inside: BrokerProcess, caplog: pytest.LogCaptureFixture
) -> None:
    """An earlier version, or another region, accepted it."""
    await inside.catalog.topics.create(topic_name.parse(ODD), TopicRecord())
    wire = await connect(inside)
    await wire.producer(ODD, producer_name="p")
    wire.send("p", 0, b"kept")
    assert await wire.receipt() == (0, True)
    port = inside.settings.network.web_service_port
    url = f"http://127.0.0.1:{port}/admin/v2/{topic_name.in_path(ODD)}"
    assert (await asyncio.to_thread(http, "GET", f"{url}/stats")).json["msgInCounter"] == 1
    wire.close_producer()
    await wire.hear(T.SUCCESS)
    assert (await asyncio.to_thread(http, "DELETE", url)).status == 204
    assert ODD not in inside.service.topics
    lines = [LogLines().format(record) for record in caplog.records]
    assert all(part.isprintable() for line in lines for part in line.split("\n"))
    await wire.close()


async def test_a_connection_has_a_bounded_number_of_clients(
    inside: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meridian_broker.topics.validation.CLIENTS_PER_CONNECTION", 4)
    wire = await connect(inside)
    assert [await produced(wire, number) for number in range(2)] == ["", ""]
    assert [await subscribed(wire, "s", number) for number in range(2)] == ["", ""]
    assert "close some" in await produced(wire, 9)
    assert "close some" in await subscribed(wire, "s", 9)
    wire.close_producer(0)
    await wire.hear(T.SUCCESS)
    assert await subscribed(wire, "s", 9) == ""
    await wire.close()


async def test_an_epoch_that_no_topic_reached_leaves_room_for_those_who_come_next(inside: BrokerProcess) -> None:
    for claimed in ((1 << 64) - 1, None, (1 << 64) - 1):
        wire = await connect(inside)
        fields = {} if claimed is None else {"topic_epoch": claimed}
        made = await wire.producer(TOPIC, producer_access_mode=pb.Exclusive, **fields)
        assert made.topic_epoch < 3
        wire.close_producer()
        await wire.hear(T.SUCCESS)
        await wire.close()


async def test_a_topic_with_a_poisoned_epoch_record_counts_on(inside: BrokerProcess) -> None:
    wire = await connect(inside)
    await wire.producer(TOPIC, producer_id=7)
    admission = inside.service.topics[TOPIC].admission
    wire.close_producer(7)
    await wire.hear(T.SUCCESS)
    admission.restore((1 << 64) - 1)
    made = await wire.producer(TOPIC, producer_access_mode=pb.Exclusive)
    assert 1 << 62 <= made.topic_epoch < (1 << 62) + 2
    await wire.close()
