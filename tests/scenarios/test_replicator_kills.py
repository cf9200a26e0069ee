# SPDX-License-Identifier: Apache-2.0
"""Two regions, killed in turn while one publishes: in the end both have the same entries, each once, in one order."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from pathlib import Path

from meridian_broker.gateway.client import PulsarClientConnection
from meridian_broker.gateway.client_errors import ClientError
from meridian_broker.gateway.roles import Consumer, Producer
from meridian_broker.positions.position import Position
from support.brokers.broker_process import BrokerProcess
from support.brokers.broker_regions import until

TOPIC = "persistent://public/default/killed"
KILLS = 8
SEED = 20131101


def region(name: str, directory: Path) -> BrokerProcess:
    return BrokerProcess(
        name,
        directory / name,
        regions_file=directory / "regions.json",
        peer_token_file=directory / "peer.token",
        settings={"logLevel": "error"},
    )


async def connect(broker: BrokerProcess) -> PulsarClientConnection:
    while True:
        with contextlib.suppress(ClientError):
            connection = await PulsarClientConnection.connect(broker.service_url)
            try:
                await connection.lookup(TOPIC)
                return connection
            except ClientError:
                await connection.close()
        await asyncio.sleep(0.05)


async def publish(broker: BrokerProcess, stop: asyncio.Event, stored: dict[int, Position]) -> int:
    """Publish numbers, each once, until told to stop; record the receipts. What a kill lost is not sent again."""
    number = 0
    receipts: list[tuple[int, asyncio.Future[Position]]] = []
    while not stop.is_set():
        connection = await connect(broker)
        try:
            producer = await Producer.open(connection, TOPIC)
            while not stop.is_set():
                receipts = []
                for _ in range(50):
                    receipts.append((number, await producer.send(b"%d" % number)))
                    number += 1
                for sent, receipt in receipts:
                    stored[sent] = await receipt
                await asyncio.sleep(0.005)  # the rate of the load, about 5,000 a second
        except ClientError:
            pass
        finally:
            await connection.close()
            await asyncio.gather(*(one for _, one in receipts), return_exceptions=True)
    return number


async def everything(broker: BrokerProcess, upto: int, subscription: str) -> list[int]:
    """The topic's messages there, until ``upto`` arrives."""
    connection = await connect(broker)
    consumer = await Consumer.subscribe(connection, TOPIC, subscription)
    found: list[int] = []
    async with asyncio.timeout(120):
        while not found or found[-1] != upto:
            found.append(int((await consumer.receive()).payloads[0]))
    await connection.close()
    return found


async def test_kill_minus_nine_of_either_region_loses_and_repeats_nothing(tmp_path: Path) -> None:
    east, west = (region(name, tmp_path) for name in ("us-east", "us-west"))
    listed = [{"name": one.region, "service_url": one.service_url, "admin_url": one.admin_url} for one in (east, west)]
    (tmp_path / "regions.json").write_text(json.dumps({"regions": listed}))
    (tmp_path / "peer.token").write_text("a secret that only this test knows\n")
    chance = random.Random(SEED)
    stop = asyncio.Event()
    stored: dict[int, Position] = {}
    try:
        for broker in (east, west):
            broker.start(wait=False)
        publishing = asyncio.create_task(publish(east, stop, stored))
        for number in range(KILLS):
            wanted = len(stored) + chance.randint(200, 900)
            await until(lambda wanted=wanted: len(stored) >= wanted or publishing.done(), 120)
            victim = (west, east)[number % 2]
            victim.kill()
            await asyncio.sleep(chance.uniform(0, 0.3))
            victim.start(wait=False)
        stop.set()
        end = await publishing

        connection = await connect(east)
        producer = await Producer.open(connection, TOPIC)
        await (await producer.send(b"%d" % end))
        await connection.close()
        here = await everything(east, end, "here")
        there = await everything(west, end, "there")
    finally:
        for broker in (east, west):
            broker.kill()
    assert there == here
    assert len(set(there)) == len(there)
    assert set(stored) <= set(there), "a message with a receipt is gone"
