# SPDX-License-Identifier: Apache-2.0
"""An unload, a drain and a consumer's close lose no acknowledgement that the broker has received (R20)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from meridian_broker.engines.local.store import LocalReader
from meridian_broker.ledgers import under_way
from meridian_broker.positions.position import Position
from meridian_broker.server.broker import BrokerProcess
from meridian_broker.topics.compaction.compaction import Status
from meridian_broker.topics.compaction.view import CompactedView
from meridian_broker.topics.service import closing
from meridian_broker.topics.topic import Topic
from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar.metadata import build_body
from meridian_broker.wire.pulsar.topic_name import parse
from support.brokers.broker_inside import broker_inside
from support.brokers.broker_regions import until
from support.protocol.raw_connection import RawConnection, T

NAME = "persistent://public/default/orders"
SMALL_LEDGERS = {"managedLedgerMaxEntriesPerLedger": 4}


async def unload(inside: BrokerProcess) -> None:
    await closing.unload(inside.service.opener, parse(NAME))


async def drain(inside: BrokerProcess) -> None:
    await inside.drain()


class Client:
    """A consumer of the subscription ``sub``."""

    def __init__(self, wire: RawConnection) -> None:
        self._wire = wire

    @classmethod
    async def subscribe(cls, inside: BrokerProcess, *, compacted: bool = False) -> Client:
        wire = await RawConnection.open(inside.settings.network.broker_service_port)
        asked = pb.CommandSubscribe(topic=NAME, subscription="sub", consumer_id=1, request_id=1)
        asked.subType = pb.CommandSubscribe.Exclusive if compacted else pb.CommandSubscribe.Shared
        asked.read_compacted = compacted
        wire.say(T.SUBSCRIBE, asked)
        await wire.hear(T.SUCCESS)
        return cls(wire)

    async def publish(self, count: int) -> list[Position]:
        await self._wire.producer(NAME, producer_name="p")
        stored = []
        for number in range(count):
            facts = pb.MessageMetadata(producer_name="p", sequence_id=number, publish_time=1, partition_key=f"{number}")
            self._wire.send_body(number, build_body(facts.SerializeToString(), b"x"))
            receipt = await self._wire.hear(T.SEND_RECEIPT)
            stored.append(Position(receipt.message_id.ledgerId, receipt.message_id.entryId))
        self._wire.close_producer()
        await self._wire.hear(T.SUCCESS)
        return stored

    async def acknowledge(self, *places: Position) -> None:
        """The broker has received it when this returns."""
        said = pb.CommandAck(consumer_id=1, ack_type=pb.CommandAck.Individual)
        for place in places:
            said.message_id.add(ledgerId=place.ledger, entryId=place.entry)
        self._wire.say(T.ACK, said)
        self._wire.say(T.PING, pb.CommandPing())
        await self._wire.hear(T.PONG)

    async def close_consumer(self) -> None:
        self._wire.say(T.CLOSE_CONSUMER, pb.CommandCloseConsumer(consumer_id=1, request_id=9))
        assert (await self._wire.hear(T.SUCCESS)).request_id == 9

    async def end(self) -> None:
        await self._wire.close()


async def published(directory: Path, count: int) -> list[Position]:
    async with broker_inside(directory, **SMALL_LEDGERS) as inside:
        client = await Client.subscribe(inside)
        stored = await client.publish(count)
        await client.end()
    return stored


async def opened(inside: BrokerProcess) -> Topic:
    return await inside.service.opener.topic(parse(NAME), create=False)


async def acked(directory: Path, places: list[Position]) -> list[bool]:
    """What the restarted broker knows as acknowledged."""
    async with broker_inside(directory, **SMALL_LEDGERS) as inside:
        progress = (await opened(inside)).subscriptions["sub"].cursor.progress
        return [progress.is_acked("inside", place) for place in places]


def slow(monkeypatch: pytest.MonkeyPatch, owner: type, method: str) -> tuple[asyncio.Event, asyncio.Event]:
    """Reads of this kind wait. The first event is set when one was requested; setting the second lets them go."""
    read: Callable[..., Awaitable[Any]] = getattr(owner, method)
    asked, ready = asyncio.Event(), asyncio.Event()

    async def waiting(*what: Any) -> Any:
        asked.set()
        await ready.wait()
        return await read(*what)

    monkeypatch.setattr(owner, method, waiting)
    return asked, ready


async def acknowledging(client: Client, position: Position, monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Acknowledge an entry that has to be looked up; setting the event lets the look-up proceed."""
    asked, ready = slow(monkeypatch, LocalReader, "read")
    await client.acknowledge(position)
    await asked.wait()
    return ready


async def let_go_during(stop: Awaitable[None], ready: asyncio.Event) -> None:
    """Let the reads go on once the stop has begun, and wait until it has ended."""
    stopping = asyncio.ensure_future(stop)
    await asyncio.sleep(0)
    ready.set()
    await stopping


@pytest.mark.parametrize("stop", [unload, drain])
async def test_the_first_acknowledgements_after_a_start_survive_a_planned_stop(
    tmp_path: Path, stop: Callable[[BrokerProcess], Awaitable[None]]
) -> None:
    stored = await published(tmp_path, 3)
    async with broker_inside(tmp_path, **SMALL_LEDGERS) as inside:
        client = await Client.subscribe(inside)
        await client.acknowledge(*stored)
        await stop(inside)
        await client.end()
    assert await acked(tmp_path, stored) == [True] * 3


@pytest.mark.parametrize("stop", [unload, drain])
async def test_a_planned_stop_waits_for_look_ups_of_acknowledged_entries(
    tmp_path: Path, stop: Callable[[BrokerProcess], Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = await published(tmp_path, 10)
    async with broker_inside(tmp_path, **SMALL_LEDGERS) as inside:
        client = await Client.subscribe(inside)
        assert (await opened(inside)).log.index(stored[5].ledger) is None
        ready = await acknowledging(client, stored[5], monkeypatch)
        await let_go_during(stop(inside), ready)
        await client.end()
    assert await acked(tmp_path, stored[4:7]) == [False, True, False]


async def test_a_close_is_answered_after_look_ups_of_acknowledged_entries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = await published(tmp_path, 10)
    async with broker_inside(tmp_path, **SMALL_LEDGERS) as inside:
        client = await Client.subscribe(inside)
        ready = await acknowledging(client, stored[5], monkeypatch)
        closing = asyncio.ensure_future(client.close_consumer())
        topic = await opened(inside)
        await until(lambda: not topic.subscriptions["sub"].consumers)
        assert not closing.done()
        ready.set()
        await closing
        assert topic.subscriptions["sub"].cursor.progress.is_acked("inside", stored[5])
        await client.end()


@pytest.mark.parametrize("stop", [unload, drain])
async def test_a_planned_stop_waits_for_acknowledgements_of_a_compacted_view(
    tmp_path: Path, stop: Callable[[BrokerProcess], Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with broker_inside(tmp_path, **SMALL_LEDGERS) as inside:
        client = await Client.subscribe(inside, compacted=True)
        stored = await client.publish(6)
        topic = await opened(inside)
        topic.compaction.start()
        await until(lambda: topic.compaction.status is Status.SUCCESS)
        asked, ready = slow(monkeypatch, CompactedView, "read_one")
        await client.acknowledge(*stored[:3])
        await asked.wait()
        await let_go_during(stop(inside), ready)
        await client.end()
    assert await acked(tmp_path, stored[:4]) == [True, True, True, False]


@pytest.mark.parametrize("stop", [unload, drain])
async def test_a_disk_that_hangs_does_not_block_a_planned_stop_forever(
    tmp_path: Path, stop: Callable[[BrokerProcess], Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = await published(tmp_path, 10)
    async with broker_inside(tmp_path, **SMALL_LEDGERS) as inside:
        client = await Client.subscribe(inside)
        ready = await acknowledging(client, stored[5], monkeypatch)
        monkeypatch.setattr(under_way, "PATIENCE_SECONDS", 0.01)
        await stop(inside)
        ready.set()
        await client.end()
    assert await acked(tmp_path, stored[5:6]) == [False]
