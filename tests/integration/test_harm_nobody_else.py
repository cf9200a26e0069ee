# SPDX-License-Identifier: Apache-2.0
"""What goes wrong with one topic harms no other, and what a client gave up does not stay behind."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from meridian_broker.ledgers.periodic import SomeFailed
from meridian_broker.ledgers.store import LedgerError
from meridian_broker.replication.leases.quorums import VoterSets
from meridian_broker.server.broker import BrokerProcess
from meridian_broker.topics.service import closing, rounds
from meridian_broker.topics.service.witness import WitnessStore
from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar.topic_name import parse
from support.brokers.broker_regions import until
from support.protocol.raw_connection import RawConnection, T

ONE, OTHER = "persistent://public/default/a", "persistent://public/default/b"
SUBJECT = ("persistent://public/default/t", "sub")


def subscribe(request: int) -> pb.CommandSubscribe:
    return pb.CommandSubscribe(
        topic=ONE, subscription="sub", subType=pb.CommandSubscribe.Exclusive, consumer_id=1, request_id=request
    )


async def asked(wire: RawConnection, inside: BrokerProcess) -> None:
    """Wait until the broker has handled everything sent so far."""
    wire.say(T.CLOSE_PRODUCER, pb.CommandCloseProducer(producer_id=99, request_id=99))
    assert (await wire.hear(T.SUCCESS)).request_id == 99


async def test_a_consumer_closed_during_creation_is_gone_and_the_next_with_its_id_is_the_only_one(
    inside: BrokerProcess, wire: RawConnection
) -> None:
    """Clients close when an answer takes too long."""
    async with inside.service.registry.lock(ONE):
        wire.say(T.SUBSCRIBE, subscribe(1))
        wire.say(T.CLOSE_CONSUMER, pb.CommandCloseConsumer(consumer_id=1, request_id=2))
        wire.say(T.SUBSCRIBE, subscribe(3))
        wire.say(T.SUBSCRIBE, subscribe(4))
        assert (await wire.hear(T.SUCCESS)).request_id == 2
        refused = await wire.hear(T.ERROR)
        assert (refused.request_id, refused.message) == (4, "this consumer is still being created")
    assert (await wire.hear(T.SUCCESS)).request_id == 3
    subscription = inside.service.topics[ONE].subscriptions["sub"]
    assert len(subscription.consumers) == 1
    wire.say(T.CLOSE_CONSUMER, pb.CommandCloseConsumer(consumer_id=1, request_id=5))
    assert (await wire.hear(T.SUCCESS)).request_id == 5
    assert not subscription.consumers


async def test_a_producer_closed_during_creation_is_gone_and_the_next_with_its_id_is_the_only_one(
    inside: BrokerProcess, wire: RawConnection
) -> None:
    async with inside.service.registry.lock(ONE):
        first = wire.ask_producer(ONE, producer_name="p", producer_access_mode=pb.Exclusive)
        wire.close_producer()
        closed = await wire.hear(T.SUCCESS)
        second = wire.ask_producer(ONE, producer_name="p", producer_access_mode=pb.Exclusive)
        await asked(wire, inside)
    answer = await wire.hear(T.PRODUCER_SUCCESS)
    assert first < closed.request_id < answer.request_id == second
    assert len(inside.service.topics[ONE].producers) == 1
    wire.close_producer()
    await wire.hear(T.SUCCESS)
    assert not inside.service.topics[ONE].producers


def broken(*_: Any) -> Any:
    raise LedgerError("this disk is broken")


async def test_one_topic_whose_space_cannot_be_freed_does_not_stop_the_others(
    inside: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = [await inside.service.opener.topic(parse(name), create=True) for name in (ONE, OTHER)]
    looked: list[str] = []
    monkeypatch.setattr(one.log, "trim", broken)
    monkeypatch.setattr(other.log, "cool_indexes", lambda _: looked.append(OTHER))
    with pytest.raises(SomeFailed, match="this disk is broken"):
        await rounds.trim_all(inside.service)
    assert looked == [OTHER]


async def test_a_topic_that_cannot_be_sealed_does_not_stop_a_broker_from_closing_the_others(
    inside: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = [await inside.service.opener.topic(parse(name), create=True) for name in (ONE, OTHER)]
    monkeypatch.setattr(one.log, "close", broken)
    await closing.close(inside.service.opener)
    assert one.failure is not None
    assert other.failure is not None


async def test_a_stop_closes_its_topics_together(inside: BrokerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing thousands one after another would not end in time."""
    some = [await inside.service.opener.topic(parse(f"{ONE}-{number}"), create=True) for number in range(5)]
    everyone = asyncio.Barrier(len(some))

    def meeting_first(close: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
        async def closed() -> None:
            await everyone.wait()
            await close()

        return closed

    for topic in some:
        monkeypatch.setattr(topic.log, "close", meeting_first(topic.log.close))
    async with asyncio.timeout(60):
        await closing.close(inside.service.opener)


async def test_names_that_were_only_looked_up_leave_no_locks_behind(inside: BrokerProcess, wire: RawConnection) -> None:
    for number in range(10):
        asked_for = subscribe(number)
        asked_for.topic, asked_for.force_topic_creation = f"{ONE}-{number}", False
        wire.say(T.SUBSCRIBE, asked_for)
        assert (await wire.hear(T.ERROR)).request_id == number
    assert not [name for name in inside.service.registry._locks if name.startswith(ONE)]


async def test_a_witness_does_not_report_what_it_could_not_write(
    inside: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = WitnessStore(inside.service.registry)
    store.bind(inside.leases)
    await until(lambda: store.is_open)
    told: list[VoterSets] = []
    assert store._log is not None
    monkeypatch.setattr(store._log._chain._metadata, "allocate_ledger_id", broken)
    store.hear(SUBJECT, VoterSets.of("a", "b", "c"), told.append)
    await until(lambda: not store.is_open)
    store.open_soon()
    await until(lambda: store.is_open)
    assert store.known(SUBJECT) is None
    assert told == []
    store.hear(SUBJECT, VoterSets.of("a", "b", "c"), told.append)
    await until(lambda: bool(told))
    assert store.known(SUBJECT) == VoterSets.of("a", "b", "c")
    await store.close()
