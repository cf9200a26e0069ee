# SPDX-License-Identifier: Apache-2.0
"""What a connection writes while its consumers are served: in order, early, and as much as one turn allows."""

from __future__ import annotations

import asyncio
import struct
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meridian_broker.gateway.pulsar.connection import Connection
from meridian_broker.gateway.pulsar.flow import EARLY_BYTES, WRITE_BYTES
from meridian_broker.ledgers.entry import HEADER
from meridian_broker.positions.position import Position
from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar.encode import BroadcastMessages
from meridian_broker.wire.pulsar.frames import FrameDecoder
from meridian_broker.wire.pulsar.metadata import build_body

METADATA = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1).SerializeToString()


class Transport:
    """Accepts everything, and remembers each write."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []

    def set_write_buffer_limits(self, high: int) -> None: ...

    def get_extra_info(self, _: str) -> None: ...

    def write(self, data: bytes) -> None:
        self.writes.append(data)

    def writelines(self, data: list[bytes]) -> None:
        self.writes.append(b"".join(data))


class Consumer:
    """The part of a consumer that a connection uses for delivery."""

    consumer_epoch = 0
    subscription = SimpleNamespace(topic=SimpleNamespace(partition=-1))

    def __init__(self, consumer_id: int) -> None:
        self.consumer_id = consumer_id
        self.resumed = 0

    def resume(self) -> None:
        self.resumed += 1


def connected() -> tuple[Connection, Transport, Any]:
    broker: Any = SimpleNamespace(connected=lambda _: None, turn_bytes=WRITE_BYTES, delivered=BroadcastMessages())
    connection, transport = Connection(broker, {}, {}, asyncio.get_running_loop()), Transport()
    connection.connection_made(transport)  # type: ignore[arg-type]
    return connection, transport, broker


def entry(size: int) -> bytes:
    return struct.pack(">BBH", 1, 0, HEADER.size).ljust(HEADER.size, b"\0") + build_body(METADATA, bytes(size))


def deliver(connection: Connection, consumer: Any, number: int, stored: bytes, redeliveries: int = 0) -> None:
    connection.deliver(consumer, Position(7, number), stored, redeliveries, None)


@given(st.lists(st.tuples(st.integers(0, 20_000), st.sampled_from((1, 100, 30_000, 300_000)), st.integers(0, 1))))
async def test_messages_are_sent_whole_and_in_order(sent: list[tuple[int, int, int]]) -> None:
    connection, transport, _ = connected()
    for number, (consumer_id, size, redeliveries) in enumerate(sent):
        deliver(connection, Consumer(consumer_id), number, entry(size), redeliveries)
    await asyncio.sleep(0)
    heard: list[Any] = [message for data in transport.writes for message in FrameDecoder().feed(data)]
    assert [(one.command.consumer_id, one.command.message_id.entryId) for one in heard] == [
        (consumer_id, number) for number, (consumer_id, _, _) in enumerate(sent)
    ]
    assert all(one.checksum_ok for one in heard)


async def test_a_client_gets_the_first_messages_before_the_last_consumer_is_served() -> None:
    connection, transport, _ = connected()
    stored = entry(100)
    consumers: Any = {number: Consumer(number) for number in range(2000)}
    connection.consumers = consumers
    for consumer in consumers.values():
        deliver(connection, consumer, 0, stored)
        assert connection._out_bytes - sum(map(len, transport.writes)) < EARLY_BYTES
    assert len(transport.writes) >= 2
    assert all(EARLY_BYTES <= len(data) < EARLY_BYTES + 200 for data in transport.writes)


@pytest.mark.parametrize("size", [100, EARLY_BYTES])
async def test_a_turn_keeps_its_limit_although_everything_was_sent(size: int) -> None:
    connection, transport, _ = connected()
    consumer, other = consumers = Consumer(1), Consumer(2)
    both: Any = {one.consumer_id: one for one in consumers}
    connection.consumers = both
    stored, number = entry(size), 0
    while connection.writable():
        deliver(connection, consumer, number, stored)
        number += 1
    assert WRITE_BYTES <= connection._out_bytes < WRITE_BYTES + len(stored) + 100
    assert sum(map(len, transport.writes)) > WRITE_BYTES - EARLY_BYTES
    assert not consumer.resumed
    await asyncio.sleep(0)
    assert connection.writable() and consumer.resumed == other.resumed == 1
