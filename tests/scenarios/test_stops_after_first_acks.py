# SPDX-License-Identifier: Apache-2.0
"""A broker process that is stopped, or unloads its topics, right after their first acknowledgements (R20)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from meridian_broker.wire.proto import pulsar_pb2 as pb
from support.brokers.broker_process import BrokerProcess
from support.protocol.raw_connection import RawConnection, T

TOPICS = [f"persistent://public/default/orders-{number}" for number in range(40)]
"""Enough that not all their progress ledgers are created before the stop begins."""

Places = dict[int, tuple[int, int]]
"""Consumer -> ledger and entry of a message."""


async def publish(wire: RawConnection, payload: bytes) -> Places:
    places = {}
    for number, topic in enumerate(TOPICS):
        await wire.producer(topic, number, producer_name="p")
        wire.send("p", 0, payload, producer_id=number)
        stored = (await wire.hear(T.SEND_RECEIPT)).message_id
        places[number] = (stored.ledgerId, stored.entryId)
        wire.close_producer(number)
        await wire.hear(T.SUCCESS)
    return places


async def subscribe(wire: RawConnection) -> None:
    for number, topic in enumerate(TOPICS):
        asked = pb.CommandSubscribe(topic=topic, subscription="sub", consumer_id=number, request_id=number)
        asked.subType, asked.initialPosition = pb.CommandSubscribe.Shared, pb.CommandSubscribe.Earliest
        wire.say(T.SUBSCRIBE, asked)
        await wire.hear(T.SUCCESS)


async def next_of_each(wire: RawConnection) -> Places:
    for number in range(len(TOPICS)):
        wire.say(T.FLOW, pb.CommandFlow(consumer_id=number, messagePermits=1))
    came = [(await wire.hear_any()).command for _ in TOPICS]
    return {one.consumer_id: (one.message_id.ledgerId, one.message_id.entryId) for one in came}


async def acknowledge(wire: RawConnection, places: Places) -> None:
    """On return the broker has read the acknowledgements, but had no time to do more."""
    for number, (ledger, entry) in places.items():
        said = pb.CommandAck(consumer_id=number, ack_type=pb.CommandAck.Individual)
        said.message_id.add(ledgerId=ledger, entryId=entry)
        wire.say(T.ACK, said)
    wire.say(T.PING, pb.CommandPing())
    await wire.hear(T.PONG)


def restart(broker: BrokerProcess) -> None:
    assert broker.stop() == 0
    broker.start()


def unload(broker: BrokerProcess) -> None:
    assert broker.http("PUT", "/admin/v2/namespaces/public/default/unload").status == 204


@pytest.mark.slow
@pytest.mark.parametrize("planned", [restart, unload])
def test_what_was_acknowledged_just_before_does_not_come_again(
    tmp_path: Path, planned: Callable[[BrokerProcess], None]
) -> None:
    async def story(broker: BrokerProcess) -> None:
        wire = await RawConnection.open(broker.port)
        await subscribe(wire)
        first, second = await publish(wire, b"1"), await publish(wire, b"2")
        await wire.close()
        restart(broker)  # since this start nothing has been acknowledged
        wire = await RawConnection.open(broker.port)
        await subscribe(wire)
        assert await next_of_each(wire) == first
        await acknowledge(wire, first)
        planned(broker)
        await wire.close()
        wire = await RawConnection.open(broker.port)
        await subscribe(wire)
        assert await next_of_each(wire) == second
        await wire.close()

    with BrokerProcess("one", tmp_path) as broker:
        asyncio.run(story(broker))
