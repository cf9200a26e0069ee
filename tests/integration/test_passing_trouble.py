# SPDX-License-Identifier: Apache-2.0
"""A topic that cannot be served for a moment: official clients get what they asked for before they time out.

C++ clients, and those built on them, retry PRODUCER, lookups and PARTITIONED_METADATA by themselves. After a refused
SUBSCRIBE they do nothing until their own time-out, unless the broker closes the consumer, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pulsar
import pytest
from meridian_broker.gateway.pulsar import patience
from meridian_broker.ledgers.store import LedgerCorrupt, LedgerError
from meridian_broker.metadata.store import LeaseExpired, MetadataFull, MetadataUnavailable, VersionConflict
from meridian_broker.server.broker import BrokerProcess
from meridian_broker.topics.errors import TopicFenced
from meridian_broker.topics.service import creation, subscribing
from meridian_broker.topics.subscriptions.subscription import Subscription
from meridian_broker.topics.topic import Topic
from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar.errors import ServerError
from support.brokers.broker_inside import broker_inside
from support.brokers.region_clients import connected
from support.protocol.raw_connection import RawConnection, T

TIMES = 3
TIMEOUT_SECONDS = 30
"""The clients' default. Each test takes a second or two of it."""
TOPIC = "persistent://public/default/t"
MAKES: dict[str, Callable[[pulsar.Client], Any]] = {
    "producer": lambda client: client.create_producer(TOPIC),
    "consumer": lambda client: client.subscribe(TOPIC, "s"),
    "reader": lambda client: client.create_reader(TOPIC, pulsar.MessageId.earliest),
}


@pytest.fixture
async def inside(tmp_path: Path) -> AsyncIterator[BrokerProcess]:
    async with broker_inside(tmp_path) as broker:
        yield broker


async def make(inside: BrokerProcess, asked: str) -> None:
    """Have a real client create it, and close it again."""

    def made() -> None:
        with connected(f"pulsar://127.0.0.1:{port(inside)}", TIMEOUT_SECONDS) as client:
            MAKES[asked](client).close()

    await asyncio.to_thread(made)


def port(inside: BrokerProcess) -> int:
    return inside.settings.network.broker_service_port


def refuse_at_first(
    monkeypatch: pytest.MonkeyPatch, place: object, name: str, error: Exception, until: Callable[[int], bool]
) -> list[str]:
    """Replace a coroutine function by one that fails while ``until`` is false of the number of failures so far."""
    through, refused = getattr(place, name), list[str]()

    async def replaced(*arguments: Any, **options: Any) -> Any:
        if not until(len(refused)):
            refused.append(name)
            raise error
        return await through(*arguments, **options)

    monkeypatch.setattr(place, name, replaced)
    return refused


FENCED = TopicFenced("the topic is being closed: look it up again")


@pytest.mark.parametrize("asked", MAKES)
async def test_clients_get_in_once_the_topic_is_served_again(
    inside: BrokerProcess, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    refused = refuse_at_first(monkeypatch, inside.service.opener, "served", FENCED, lambda times: times >= TIMES)
    await make(inside, asked)
    assert len(refused) == TIMES


@pytest.mark.parametrize("asked", MAKES)
@pytest.mark.parametrize(
    "error",
    [FENCED, LedgerError("slow"), MetadataUnavailable("away"), VersionConflict("raced"), LeaseExpired("over")],
    ids=lambda error: type(error).__name__,
)
async def test_clients_get_in_although_the_broker_lost_patience(
    inside: BrokerProcess, monkeypatch: pytest.MonkeyPatch, asked: str, error: Exception
) -> None:
    monkeypatch.setattr(patience, "SECONDS", 0.2)
    end = asyncio.get_running_loop().time() + 1.0
    refused = refuse_at_first(
        *(monkeypatch, inside.service.opener, "served", error),
        lambda _: asyncio.get_running_loop().time() > end,
    )
    await make(inside, asked)
    assert len(refused) > TIMES


@pytest.mark.parametrize("asked", ["consumer", "reader"])
async def test_a_topic_that_closes_while_its_subscription_is_created_is_subscribed_again(
    inside: BrokerProcess, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    """As it does when its bundle moves: the subscription becomes durable while the topic is closed."""
    through, closed = subscribing.subscription, list[str]()

    async def closes(parts: Any, topic: Topic, *rest: Any, **options: Any) -> Subscription:
        found = await through(parts, topic, *rest, **options)
        if not closed:
            closed.append(topic.name)
            topic.fence("another broker is taking the topic over: look it up again")
        return found

    monkeypatch.setattr(subscribing, "subscription", closes)
    await make(inside, asked)
    assert closed == [TOPIC]


@pytest.mark.parametrize("asked", MAKES)
async def test_a_topic_that_takes_long_to_open_keeps_no_client_waiting_without_an_answer(
    inside: BrokerProcess, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    """Another broker may serve it by then, and only an answer makes the client look it up again."""
    opener, hung = inside.service.opener, asyncio.Event()
    through, waiting = opener.served, list[str]()

    async def served(name: Any, **options: Any) -> Any:
        if not waiting:
            waiting.append(str(name))
            await hung.wait()
        return await through(name, **options)

    monkeypatch.setattr(patience, "LATE_SECONDS", 0.2)
    monkeypatch.setattr(opener, "served", served)
    await make(inside, asked)
    hung.set()
    assert waiting == [TOPIC]


def opens_late(inside: BrokerProcess, monkeypatch: pytest.MonkeyPatch) -> tuple[asyncio.Event, asyncio.Event]:
    """Clients are answered before the topic opens. Returns what lets it open, and what is set once it has."""
    opener, hung, is_over = inside.service.opener, asyncio.Event(), asyncio.Event()
    through = opener.served

    async def served(name: Any, **options: Any) -> Any:
        await hung.wait()
        try:
            return await through(name, **options)
        finally:
            asyncio.get_running_loop().call_soon(is_over.set)

    monkeypatch.setattr(patience, "LATE_SECONDS", 0.2)
    monkeypatch.setattr(opener, "served", served)
    return hung, is_over


async def test_a_late_attempt_adds_no_consumer_for_a_client_that_has_its_answer(
    inside: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    hung, is_over = opens_late(inside, monkeypatch)
    wire = await RawConnection.open(port(inside))
    wire.say(T.SUBSCRIBE, subscription(1))
    refused = await wire.hear(T.ERROR)
    assert (refused.request_id, refused.error) == (1, ServerError.SERVICE_NOT_READY)
    assert "look it up again" in refused.message
    hung.set()
    await is_over.wait()
    assert "s" not in inside.service.topics[TOPIC].subscriptions, "nothing is created for it"
    wire.say(T.SUBSCRIBE, subscription(2))
    assert (await wire.hear(T.SUCCESS)).request_id == 2
    assert len(inside.service.topics[TOPIC].subscriptions["s"].consumers) == 1
    await wire.close()


def subscription(request_id: int) -> pb.CommandSubscribe:
    return pb.CommandSubscribe(topic=TOPIC, subscription="s", consumer_id=1, request_id=request_id, subType="Shared")


@pytest.mark.parametrize(
    ("version", "answers"),
    [("Pulsar-CPP-v4.2.0", [T.CLOSE_CONSUMER, T.ERROR]), ("Pulsar-Java-v4.1.0", [T.ERROR])],
    ids=["C++", "Java"],
)
async def test_a_subscribe_repeated_while_it_is_pending_is_refused_and_the_first_one_answered(
    inside: BrokerProcess, monkeypatch: pytest.MonkeyPatch, version: str, answers: list[int]
) -> None:
    """As by Apache Pulsar; and here, too, a C++ client has to be told to come again."""
    opener, hung = inside.service.opener, asyncio.Event()
    through = opener.served

    async def served(name: Any, **options: Any) -> Any:
        await hung.wait()
        return await through(name, **options)

    monkeypatch.setattr(opener, "served", served)
    wire = await RawConnection.open(port(inside), version)
    wire.say(T.SUBSCRIBE, subscription(1))
    wire.say(T.SUBSCRIBE, subscription(2))
    said = [await wire.hear_any() for _ in answers]
    assert [command[0] for command in said] == answers
    assert (said[-1].message.request_id, said[-1].message.error) == (2, ServerError.SERVICE_NOT_READY)
    hung.set()
    assert (await wire.hear(T.SUCCESS)).request_id == 1
    wire.say(T.SUBSCRIBE, subscription(3))
    assert (await wire.hear(T.SUCCESS)).request_id == 3
    assert len(inside.service.topics[TOPIC].subscriptions["s"].consumers) == 1
    await wire.close()


async def test_a_late_attempt_creates_nothing_for_a_producer_that_has_its_answer(
    inside: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    hung, is_over = opens_late(inside, monkeypatch)
    wire = await RawConnection.open(port(inside))
    asked = pb.CommandProducer(topic=TOPIC, producer_id=1, request_id=1, initial_subscription_name="s")
    wire.say(T.PRODUCER, asked)
    assert (await wire.hear(T.ERROR)).error == ServerError.SERVICE_NOT_READY
    hung.set()
    await is_over.wait()
    asked.request_id, asked.initial_subscription_name = 2, ""
    wire.say(T.PRODUCER, asked)
    assert (await wire.hear(T.PRODUCER_SUCCESS)).request_id == 2
    assert "s" not in inside.service.topics[TOPIC].subscriptions
    await wire.close()


@pytest.mark.parametrize("what", ["lookup", "partitions"])
async def test_a_lookup_that_takes_too_long_is_answered(
    inside: BrokerProcess, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    async def hangs(*_: Any, **__: Any) -> Any:
        await asyncio.Event().wait()

    monkeypatch.setattr(patience, "LATE_SECONDS", 0.2)
    monkeypatch.setattr(inside.gateway, "locate", hangs)
    monkeypatch.setattr(creation, "partitions", hangs)
    wire = await RawConnection.open(port(inside))
    if what == "lookup":
        wire.say(T.LOOKUP, pb.CommandLookupTopic(topic=TOPIC, request_id=1))
        answer = await wire.hear(T.LOOKUP_RESPONSE)
    else:
        wire.say(T.PARTITIONED_METADATA, pb.CommandPartitionedTopicMetadata(topic=TOPIC, request_id=1))
        answer = await wire.hear(T.PARTITIONED_METADATA_RESPONSE)
    assert (answer.request_id, answer.error) == (1, ServerError.SERVICE_NOT_READY)
    assert inside.gateway.lookups == 0
    await wire.close()


@pytest.mark.parametrize("error", [MetadataFull("full"), LedgerCorrupt("damaged")], ids=lambda one: type(one).__name__)
async def test_what_does_not_pass_is_said_at_once(
    inside: BrokerProcess, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    refused = refuse_at_first(monkeypatch, inside.service.opener, "served", error, lambda _: False)
    wire = await RawConnection.open(port(inside))
    wire.say(T.SUBSCRIBE, subscription(1))
    assert str(error) in (await wire.hear(T.ERROR)).message
    assert len(refused) == 1
    await wire.close()


async def test_no_client_hears_of_a_store_that_is_away_for_a_moment(
    inside: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Go client retries neither lookups nor PARTITIONED_METADATA, and C++ and Java clients close the whole
    connection when a lookup is refused with ServiceNotReady."""
    away = MetadataUnavailable("away")
    partitions = refuse_at_first(monkeypatch, creation, "partitions", away, lambda times: times >= TIMES)
    wire = await RawConnection.open(port(inside), "Pulsar Go 0.20.0")
    wire.say(T.PARTITIONED_METADATA, pb.CommandPartitionedTopicMetadata(topic=TOPIC, request_id=1))
    answer = await wire.hear(T.PARTITIONED_METADATA_RESPONSE)
    assert (answer.response, answer.partitions) == (pb.CommandPartitionedTopicMetadataResponse.Success, 0)
    assert len(partitions) == TIMES
    refused = list[str]()

    async def locate(name: Any, *_: Any) -> None:
        if len(refused) < TIMES:
            refused.append(str(name))
            raise FENCED

    monkeypatch.setattr(inside.gateway, "locate", locate)
    wire.say(T.LOOKUP, pb.CommandLookupTopic(topic=TOPIC, request_id=2))
    assert (await wire.hear(T.LOOKUP_RESPONSE)).response == pb.CommandLookupTopicResponse.Connect
    assert refused == [TOPIC] * TIMES
    await wire.close()
