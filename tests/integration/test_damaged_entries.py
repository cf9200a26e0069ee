# SPDX-License-Identifier: Apache-2.0
"""A bit flips in a stored entry: the entry is fetched back from another region, or an administrator gives it up where
no region has it. Everything else goes on."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from meridian_broker.admin.export.child import SCHEMAS
from meridian_broker.admin.export.entries import entry_batches
from meridian_broker.admin.export.plan import Stretch
from meridian_broker.admin.export.rows import Row
from meridian_broker.gateway.client import PulsarClientConnection
from meridian_broker.gateway.roles import Consumer, Producer
from meridian_broker.positions import Cause
from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.server.broker import BrokerProcess
from meridian_broker.topics.backfill import repair
from meridian_broker.topics.compaction.compaction import Status
from meridian_broker.topics.topic import Topic
from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar.topic_name import parse
from support.brokers.broker_inside import broker_inside
from support.brokers.broker_regions import Region, regions, until

TOPIC = "persistent://public/default/t"
GAPS = "/meridian/v1/topics/persistent/public/default/t/gaps"
MARKER = SCHEMAS["entries"].names.index("marker")
EXCLUSIVE = pb.CommandSubscribe.Exclusive
PAYLOADS = [b"message number %d" % number for number in range(8)]


def flip(directory: Path, payload: bytes, *, last: bool = False) -> None:
    """Flip one bit of the first or the last copy that the engine wrote."""
    for path in (directory / "ledgers").glob("segment-*.log"):
        content = bytearray(path.read_bytes())
        at = content.rfind(payload) if last else content.find(payload)
        if at >= 0:
            content[at] ^= 1
            path.write_bytes(content)
            return
    raise AssertionError(f"{payload!r} is in no segment")


async def publish(connection: PulsarClientConnection, payloads: list[bytes]) -> None:
    producer = await Producer.open(connection, TOPIC)
    for payload in payloads:
        await producer.send(payload)
    await producer.flush()
    await producer.close()


async def take(consumer: Consumer, count: int) -> list[bytes]:
    return [payload for _ in range(count) for payload in (await consumer.receive()).payloads]


def entries(region: Region) -> int:
    topic = region.process.service.topics.get(TOPIC)
    return 0 if topic is None else topic.log.entries


async def opened(process: BrokerProcess) -> Topic:
    return await process.service.opener.topic(parse(TOPIC), create=False)


def exported(topic: Topic, directory: Path) -> list[Row]:
    """The rows of the table ``entries``."""
    stretches = [Stretch(TOPIC, "us", ledger, 0, count - 1) for ledger, count, _ in topic.log.counts()]
    batches = entry_batches(json.dumps({"directory": str(directory)}), stretches, 0, 100, topic.log.damage.copies)
    return [row for batch in batches for row in batch]


async def test_a_damaged_entry_comes_back_from_another_region(tmp_path: Path) -> None:
    """In the last ledger, of either region: one of our own entries, and our copy of one of theirs."""
    async with regions(tmp_path, "us", "eu") as (us, eu):
        await publish(await us.connect(), PAYLOADS[:4])
        await until(lambda: entries(eu) == 4)
        await publish(await eu.connect(), PAYLOADS[4:])
        await until(lambda: entries(us) == 8)
        await us.stop()
        for payload in (PAYLOADS[1], PAYLOADS[6]):
            flip(tmp_path / "us", payload)
        for start in range(2):
            await us.start()
            topic = await opened(us.process)
            positions = [Position(ledger, entry) for ledger, count, _ in topic.log.counts() for entry in range(count)][
                :8
            ]
            reading = await Consumer.subscribe(await us.connect(), TOPIC, f"s{start}", replicated=False, kind=EXCLUSIVE)
            assert await take(reading, 8) == PAYLOADS, "each at its position"
            assert topic.repair.replaced == (0 if start else 2), "the copies survive a restart"
            assert topic.gaps.all() == []
            await us.stop()
        rows = await asyncio.to_thread(exported, topic, tmp_path / "us" / "ledgers")
        assert [row[:5] for row in rows if not row[MARKER]] == [
            ("us", TOPIC, *position, "us" if number < 4 else "eu") for number, position in enumerate(positions)
        ]


async def test_a_lost_entry_is_skipped_once_an_administrator_accepts_the_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repair, "PATIENCE_MS", 0)
    settings = {"managedLedgerMaxEntriesPerLedger": 3}
    async with broker_inside(tmp_path, **settings) as inside:
        connection = await PulsarClientConnection.connect(
            f"pulsar://127.0.0.1:{inside.settings.network.broker_service_port}"
        )
        await Consumer.subscribe(connection, TOPIC, "s", replicated=False, kind=EXCLUSIVE)
        await publish(connection, PAYLOADS[:7])
        await connection.close()
    for payload in (PAYLOADS[1], PAYLOADS[6]):
        flip(tmp_path, payload)
    async with broker_inside(tmp_path, **settings) as inside:
        admin = f"http://127.0.0.1:{inside.settings.network.web_service_port}"
        connection = await PulsarClientConnection.connect(
            f"pulsar://127.0.0.1:{inside.settings.network.broker_service_port}"
        )
        topic = await opened(inside)
        await publish(connection, PAYLOADS[7:])
        reading = await Consumer.subscribe(connection, TOPIC, "s", replicated=False, kind=EXCLUSIVE)
        assert await take(reading, 1) == PAYLOADS[:1]
        async with aiohttp.ClientSession(admin) as session:

            async def missing() -> list[dict[str, Any]]:
                async with session.get(GAPS) as answer:
                    return list((await answer.json())["missing"])

            async def accept() -> None:
                await until(lambda: any(gap.is_judged for gap in topic.gaps.all()))
                gap = (await missing())[0]
                assert "damaged by inside's disk (owed to s) and no other region has them" in gap["detail"]
                async with session.post(f"{GAPS}/accept", json={"origin": "inside", "upto": gap["upto"]}) as answer:
                    assert (answer.status, (await answer.json())["subscriptions"]) == (200, ["s"])

            await until(lambda: len(topic.repair.for_a_person()) == 2)
            async with session.get("/meridian/v1/health") as answer:
                health = await answer.json()
            accepting = f"meridian topics accept-gap {TOPIC} --origin inside --up-to"
            assert not health["healthy"]
            assert health["damagedTopics"] == {
                "topics": 1,
                "first": [{"topic": TOPIC, "command": f"{accepting} {gap.upto}"} for gap in topic.gaps.all()],
            }
            async with session.get("/admin/v2/brokers/ready") as answer:
                assert answer.status == 200
            await accept()
            assert len(topic.repair.for_a_person()) == 1
            assert await take(reading, 4) == PAYLOADS[2:6]
            await until(lambda: bool(topic.gaps.all()))
            await accept()
            assert await take(reading, 1) == PAYLOADS[7:]
            assert await missing() == []
        assert topic.failure is None, "it was never fenced"
        dropped = topic.subscriptions["s"].cursor.dropped
        assert dropped is not None
        assert {cause for cause, _, _, _ in dropped.runs()} == {Cause.LOST}
        later = await Consumer.subscribe(connection, TOPIC, "later", replicated=False, kind=EXCLUSIVE)
        assert await take(later, 6) == [PAYLOADS[number] for number in (0, 2, 3, 4, 5, 7)]
        await connection.close()


async def test_a_damaged_acknowledgement_costs_a_repeat_and_not_the_topic(tmp_path: Path) -> None:
    def url(inside: BrokerProcess) -> str:
        return f"pulsar://127.0.0.1:{inside.settings.network.broker_service_port}"

    async with broker_inside(tmp_path) as inside:
        connection = await PulsarClientConnection.connect(url(inside))
        reading = await Consumer.subscribe(connection, TOPIC, "shelf", replicated=False, kind=EXCLUSIVE)
        await publish(connection, PAYLOADS[:4])
        subscription = (await opened(inside)).subscriptions["shelf"]
        for position in [(await reading.receive()).position for _ in range(3)]:
            reading.acknowledge(position)
            await until(lambda position=position: subscription.cursor.progress.is_acked("inside", position))
        await connection.close()
    acknowledgements = re.compile(rb"\x01\x02\x00\x05.{8}shelf", re.DOTALL)
    (path,) = (
        path for path in (tmp_path / "ledgers").glob("segment-*.log") if acknowledgements.search(path.read_bytes())
    )
    content = bytearray(path.read_bytes())
    second = list(acknowledgements.finditer(content))[1]
    content[second.end() + 3] ^= 1
    path.write_bytes(content)
    async with broker_inside(tmp_path) as inside:
        connection = await PulsarClientConnection.connect(url(inside))
        reading = await Consumer.subscribe(connection, TOPIC, "shelf", replicated=False, kind=EXCLUSIVE)
        assert await take(reading, 2) == [PAYLOADS[1], PAYLOADS[3]]
        async with (
            aiohttp.ClientSession(f"http://127.0.0.1:{inside.settings.network.web_service_port}") as session,
            session.get("/meridian/v1/health") as answer,
        ):
            health = await answer.json()
        (lost,) = health["lostRecords"]["first"]
        assert (lost["topic"], lost["records"], lost["subscriptions"]) == (TOPIC, 1, ["shelf"])
        assert (health["healthy"], lost["isSubscriptionMissing"]) == (False, False)
        await connection.close()


async def value(connection: PulsarClientConnection, key: str, payload: bytes) -> None:
    producer = await Producer.open(connection, TOPIC)
    await producer.send(payload, key=key)
    await producer.flush()
    await producer.close()


@pytest.mark.logs_error("compacted view")
@pytest.mark.parametrize("is_trimmed", [False, True])
async def test_a_damaged_compacted_view_is_rebuilt(tmp_path: Path, is_trimmed: bool) -> None:
    async def compacted(topic: Topic) -> list[bytes]:
        await topic.compaction.prepare()
        found, place = list[bytes](), EARLIEST
        while entries := await topic.compaction.read_after(place, 10, 1 << 20):
            found += [entry[-8:] for _, entry in entries]
            place = entries[-1][0]
        return found

    settings = {"managedLedgerMaxEntriesPerLedger": 2}
    async with broker_inside(tmp_path, **settings) as inside:
        connection = await PulsarClientConnection.connect(
            f"pulsar://127.0.0.1:{inside.settings.network.broker_service_port}"
        )
        for key, payload in (("a", b"--first-"), ("b", b"--second"), ("a", b"--third-"), ("c", b"--fourth")):
            await value(connection, key, payload)
        topic = await opened(inside)
        topic.compaction.start()
        await until(lambda: topic.compaction.status is Status.SUCCESS)
        assert await compacted(topic) == [b"--second", b"--third-", b"--fourth"]
        if is_trimmed:
            await value(connection, "d", b"--fifth-")
            first = topic.log.first.ledger
            await topic.log.trim(Position(first, 1), 0, None)
            assert topic.log.first.ledger > first
        await connection.close()
    flip(tmp_path, b"--third-", last=True)
    async with broker_inside(tmp_path, **settings) as inside:
        topic = await opened(inside)
        damaged = topic.compaction.view
        values = [b"--second", b"--third-", b"--fourth", b"--fifth-"][: 3 + is_trimmed]
        assert await compacted(topic) == values
        await until(lambda: topic.compaction.status is Status.SUCCESS)
        assert topic.compaction.view is not damaged
        assert await compacted(topic) == values
