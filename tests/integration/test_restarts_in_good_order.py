# SPDX-License-Identifier: Apache-2.0
"""A planned restart: clients finish what is in flight before the broker stops, and wait for the next one."""

from __future__ import annotations

import asyncio
import socket
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from meridian_broker.engines.local.store import LocalWriter
from meridian_broker.positions.position import Position
from meridian_broker.server.broker import BrokerProcess
from meridian_broker.server.early import EarlyPorts
from meridian_broker.server.settings import Settings
from meridian_broker.topics.context import WindingDown
from meridian_broker.topics.service import closing, winding_down
from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar.metadata import build_body
from meridian_broker.wire.pulsar.topic_name import parse
from support.brokers.broker_inside import broker_inside
from support.brokers.broker_regions import until
from support.brokers.free_ports import free_port
from support.protocol.raw_connection import RawConnection, T

NAME = "persistent://public/default/orders"


async def connected(inside: BrokerProcess) -> RawConnection:
    return await RawConnection.open(inside.settings.network.broker_service_port)


def send(wire: RawConnection, number: int) -> None:
    facts = pb.MessageMetadata(producer_name="p", sequence_id=number, publish_time=1)
    wire.send_body(number, build_body(facts.SerializeToString(), b"x"))


async def publish(wire: RawConnection, number: int) -> Position:
    send(wire, number)
    receipt = await wire.hear(T.SEND_RECEIPT)
    return Position(receipt.message_id.ledgerId, receipt.message_id.entryId)


@pytest.mark.parametrize("kind", ["Shared", "Exclusive"])
async def test_consumers_may_acknowledge_what_they_hold_before_they_are_disconnected(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(winding_down, "ACK_SECONDS", 30.0)
    async with broker_inside(tmp_path) as inside:
        producing, consuming = await connected(inside), await connected(inside)
        asked = pb.CommandSubscribe(topic=NAME, subscription="sub", consumer_id=1, request_id=1)
        asked.subType = getattr(pb.CommandSubscribe, kind)
        consuming.say(T.SUBSCRIBE, asked)
        await consuming.hear(T.SUCCESS)
        consuming.say(T.FLOW, pb.CommandFlow(consumer_id=1, messagePermits=10))
        await producing.producer(NAME, producer_name="p")
        first = await publish(producing, 0)
        assert (await consuming.hear_any())[0] == T.MESSAGE
        drain = asyncio.ensure_future(inside.drain())
        await until(lambda: inside.gateway.draining)
        second = await publish(producing, 1)
        said = pb.CommandAck(consumer_id=1, ack_type=pb.CommandAck.Individual)
        said.message_id.add(ledgerId=first.ledger, entryId=first.entry)
        consuming.say(T.ACK, said)
        await consuming.hear(T.CLOSE_CONSUMER)
        await producing.hear(T.CLOSE_PRODUCER)
        await drain
        await producing.close()
        await consuming.close()
    async with broker_inside(tmp_path) as inside:
        topic = await inside.service.opener.topic(parse(NAME), create=False)
        progress = topic.subscriptions["sub"].cursor.progress
        assert [progress.is_acked("inside", one) for one in (first, second)] == [True, False]


async def test_every_message_read_has_a_receipt_before_its_producer_is_disconnected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(winding_down, "RECEIPT_SECONDS", 30.0)
    durable = asyncio.Event()
    monkeypatch.setattr(LocalWriter, "append_many", held_up(LocalWriter.append_many, durable))
    async with broker_inside(tmp_path) as inside:
        wire = await connected(inside)
        await wire.producer(NAME, producer_name="p")
        for number in range(3):
            send(wire, number)
        await until(lambda: inside.service.topics[NAME].stored.messages_in == 3)
        drain = asyncio.ensure_future(inside.drain())
        await until(lambda: inside.gateway.draining)
        durable.set()
        heard = [(await wire.hear_any())[0] for _ in range(4)]
        assert heard == [T.SEND_RECEIPT] * 3 + [T.CLOSE_PRODUCER]
        await drain
        await wire.close()


async def test_a_topic_that_moves_stores_nothing_without_a_receipt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(winding_down, "RECEIPT_SECONDS", 30.0)
    durable = asyncio.Event()
    monkeypatch.setattr(LocalWriter, "append_many", held_up(LocalWriter.append_many, durable))
    async with broker_inside(tmp_path) as inside:
        wire, topics = await connected(inside), inside.service.topics
        await wire.producer(NAME, producer_name="p")
        send(wire, 0)
        await until(lambda: topics[NAME].stored.messages_in == 1)
        unloading = asyncio.ensure_future(closing.unload(inside.service.opener, parse(NAME)))
        await until(lambda: topics[NAME].winding_down is WindingDown.IGNORES_MESSAGES)
        send(wire, 1)
        wire.say(T.PING, pb.CommandPing())
        await wire.hear(T.PONG)
        durable.set()
        await wire.hear(T.SEND_RECEIPT)
        await wire.hear(T.CLOSE_PRODUCER)
        await unloading
        await wire.producer(NAME, producer_name="p")
        assert (await publish(wire, 1)).entry == 0
        assert [span.entries for span in topics[NAME].log.spans()] == [1, -1]
        await wire.close()


def held_up(append: Any, durable: asyncio.Event) -> Any:
    """Appends are durable only once the event is set."""
    tasks: set[asyncio.Task[None]] = set()

    async def tell(done: Any, answer: tuple[Any, ...]) -> None:
        await durable.wait()
        done(*answer)

    def waiting(writer: LocalWriter, buffers: list[bytes], done: Any) -> int:
        return int(append(writer, buffers, lambda *answer: tasks.add(asyncio.ensure_future(tell(done, answer)))))

    return waiting


async def test_a_client_of_a_starting_broker_is_answered_once_it_serves(tmp_path: Path) -> None:
    async with broker_inside(tmp_path) as inside:
        inside.gateway.ready = False
        wire = RawConnection(*await asyncio.open_connection("127.0.0.1", inside.settings.network.broker_service_port))
        hasty = RawConnection(*await asyncio.open_connection("127.0.0.1", inside.settings.network.broker_service_port))
        for one in (wire, hasty, hasty):
            one.say(T.CONNECT, pb.CommandConnect(client_version="raw", protocol_version=21))
        assert await hasty.ended(), "a second CONNECT ends the connection"
        await until(lambda: len(inside.gateway.waiting) == 1)
        inside.gateway.admit()
        await wire.hear(T.CONNECTED)
        assert not inside.gateway.waiting
        await wire.close()


async def test_no_more_clients_wait_for_a_start_than_may_connect(tmp_path: Path) -> None:
    async with broker_inside(tmp_path, brokerMaxConnections=2) as inside:
        inside.gateway.ready = False
        port = inside.settings.network.broker_service_port
        wires = [RawConnection(*await asyncio.open_connection("127.0.0.1", port)) for _ in range(3)]
        for number, wire in enumerate(wires):
            wire.say(T.CONNECT, pb.CommandConnect(client_version="raw", protocol_version=21))
            await until(lambda number=number: len(inside.gateway.waiting) == min(number + 1, 2))
        assert "is starting" in (await wires[2].hear(T.ERROR)).message
        assert not inside.gateway.strangers, "waiting clients keep nobody else from sending CONNECT"
        await wires[0].close()
        await until(lambda: len(inside.gateway.waiting) == 1)
        inside.gateway.admit()
        await wires[1].hear(T.CONNECTED)
        for wire in wires[1:]:
            await wire.close()


async def test_ports_are_open_before_the_broker_is_ready(tmp_path: Path) -> None:
    port = free_port()
    early = EarlyPorts("127.0.0.1", (port,))
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    wire = RawConnection(reader, writer)
    wire.say(T.CONNECT, pb.CommandConnect(client_version="raw", protocol_version=21))
    names = ("clusterName", "dataDirectory", "brokerServicePort", "webServicePort")
    pairs = dict(zip(names, ("inside", str(tmp_path), str(port), str(free_port())), strict=True))
    async with AsyncExitStack() as stack:
        process = await BrokerProcess.start(Settings.of(pairs), stack, early=early)
        await wire.hear(T.CONNECTED)
        early.close()
        other = await RawConnection.open(port)
        await other.close()
        await process.drain()
    await wire.close()


def test_a_port_in_use_is_left_for_the_broker_to_report() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        early = EarlyPorts("127.0.0.1", (taken.getsockname()[1], 0))
        assert early.take("127.0.0.1", taken.getsockname()[1]) is None


def test_clients_that_wait_too_long_are_refused() -> None:
    port = free_port()
    early = EarlyPorts("127.0.0.1", (port,))
    with socket.create_connection(("127.0.0.1", port)) as waiting:
        early.close()
        waiting.settimeout(10)
        with pytest.raises(ConnectionResetError):
            waiting.recv(1)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))
