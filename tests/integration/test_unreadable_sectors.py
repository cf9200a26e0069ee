# SPDX-License-Identifier: Apache-2.0
"""Entries that the storage cannot read: a bad sector stops the subscriptions that read there, a lost ledger the
topic. Both are retried after growing pauses."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from meridian_broker.gateway.pulsar import patience
from meridian_broker.ledgers.log import TopicLog
from meridian_broker.ledgers.reading import Stored
from meridian_broker.ledgers.store import LedgerNotFound
from meridian_broker.server.broker import BrokerProcess
from meridian_broker.wire.proto import pulsar_pb2 as pb
from support.brokers.broker_inside import broker_inside, broker_on
from support.brokers.broker_process import HttpAnswer, http
from support.brokers.broker_regions import until
from support.contracts.ledger_disks import BadSector
from support.protocol.raw_connection import RawConnection, T

TOPIC = "persistent://public/default/t"
STATS = "/admin/v2/persistent/public/default/t"
BACKOFF_SECONDS = 0.005
"""Settings for impatient clients."""


async def publish(inside: BrokerProcess, count: int) -> None:
    wire = await RawConnection.open(inside.settings.network.broker_service_port)
    await wire.producer(TOPIC, producer_name="first")
    for number in range(count):
        wire.send("first", number, b"message number %d" % number)
        await wire.receipt()
    await wire.close()


async def consume(inside: BrokerProcess, got: list[tuple[int, int]]) -> None:
    """Subscribe again whenever the broker closes the consumer, until cancelled."""
    wire = await RawConnection.open(inside.settings.network.broker_service_port)
    asked = pb.CommandSubscribe(topic=TOPIC, subscription="sub", consumer_id=1, request_id=1)
    asked.subType, asked.initialPosition = pb.CommandSubscribe.Exclusive, pb.CommandSubscribe.Earliest
    try:
        wire.say(T.SUBSCRIBE, asked)
        while True:
            command = await wire.hear_any()
            if command[0] == T.SUCCESS:
                wire.say(T.FLOW, pb.CommandFlow(consumer_id=1, messagePermits=1000))
            elif command[0] == T.MESSAGE:
                place = command.command.message_id
                got.append((place.ledgerId, place.entryId))
            elif command[0] in (T.CLOSE_CONSUMER, T.ERROR):
                await asyncio.sleep(BACKOFF_SECONDS)
                wire.say(T.SUBSCRIBE, asked)
    finally:
        await wire.close()


async def refusal(inside: BrokerProcess) -> pb.CommandError | None:
    """The error a new producer gets; None: it is admitted."""
    wire = await RawConnection.open(inside.settings.network.broker_service_port)
    wire.ask_producer(TOPIC)
    command: Any = await wire.hear_any()
    await wire.close()
    return None if command[0] == T.PRODUCER_SUCCESS else command.message


async def admin(inside: BrokerProcess, method: str, path: str) -> HttpAnswer:
    return await asyncio.to_thread(http, method, inside.listeners.admin_url + path)


@pytest.mark.parametrize("deletes", [False, True])
async def test_a_bad_sector_stops_only_the_subscription_that_reads_it(tmp_path: Path, deletes: bool) -> None:
    disk, got = BadSector(), list[tuple[int, int]]()
    async with broker_on(tmp_path, lambda _: disk, {"managedLedgerMaxEntriesPerLedger": 5}) as inside:
        await publish(inside, 12)
        inside.service.topics[TOPIC].log.drop_tail()
        (at,) = [found for content in disk.content().values() if (found := content.find(b"message number 2")) >= 0]
        disk.bad = (at, at + 1)
        consumer = asyncio.create_task(consume(inside, got))

        topic = inside.service.topics[TOPIC]
        await until(lambda: bool(topic.unread.all(topic.scheduler.monotonic_ms())))
        health = (await admin(inside, "GET", "/meridian/v1/health")).json
        (first,) = health["unreadSubscriptions"]["first"]
        assert (health["healthy"], first["topic"], first["subscription"]) == (False, TOPIC, "sub")
        assert "Input/output error" in first["reason"]
        await publish(inside, 2)
        assert topic.failure is None
        assert len(set(got)) == 2
        disk.bad = None
        if deletes:
            assert (await admin(inside, "DELETE", f"{STATS}?force=true")).status == 204
        else:
            await until(lambda: len(set(got)) == 14)
        consumer.cancel()
        await asyncio.gather(consumer, return_exceptions=True)


async def test_a_topic_that_fails_again_and_again_pauses(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def gone(*_: object) -> list[Stored]:
        raise LedgerNotFound("there is no ledger 7")

    got = list[tuple[int, int]]()
    async with broker_inside(tmp_path) as inside:
        await publish(inside, 3)
        inside.service.topics[TOPIC].log.drop_tail()
        monkeypatch.setattr(TopicLog, "read_after", gone)
        monkeypatch.setattr(patience, "SECONDS", 0.0)  # otherwise the producer waits until it is opened again
        consumer = asyncio.create_task(consume(inside, got))
        refused = None
        async with asyncio.timeout(30):
            while refused is None or "4 times" not in refused.message:
                refused = await refusal(inside)
        assert refused.error == pb.ServiceNotReady
        assert "there is no ledger 7" in refused.message
        assert "will be opened again in" in refused.message
        answer = await admin(inside, "GET", f"{STATS}/stats")
        assert answer.status == 503
        assert "will be opened again in" in answer.reason
        health = (await admin(inside, "GET", "/meridian/v1/health")).json
        assert not health["healthy"]
        assert health["failingTopics"]["topics"] == 1
        assert health["failingTopics"]["first"][0]["topic"] == TOPIC
        assert (await admin(inside, "GET", "/admin/v2/brokers/ready")).status == 200
        monkeypatch.undo()
        await until(lambda: len(set(got)) == 3)
        consumer.cancel()
        await asyncio.gather(consumer, return_exceptions=True)
    assert sum("is fenced: entries cannot be read" in record.message for record in caplog.records) < 10
