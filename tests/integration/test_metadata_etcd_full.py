# SPDX-License-Identifier: Apache-2.0
"""An etcd that reached its quota: what goes on, what is refused with which message, and that freeing space suffices."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from aetcd import rpc
from meridian_broker.gateway.pulsar import patience
from meridian_broker.server import chores
from meridian_broker.server.broker import BrokerProcess
from meridian_broker.topics.journal import topic_record
from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar import encode
from meridian_broker.wire.pulsar.errors import ServerError
from meridian_broker.wire.pulsar.topic_name import parse
from support.brokers.broker_inside import broker_inside
from support.brokers.broker_process import http
from support.brokers.broker_regions import until
from support.brokers.etcd_server import EtcdOfTest, etcd_missing
from support.protocol.raw_connection import RawConnection, T

_missing = etcd_missing()
pytestmark = pytest.mark.skipif(_missing is not None, reason=_missing or "")
QUOTA = 2 << 20
FILLER = b"/filler"
TOPIC, BARE, OTHER, PARTED = (f"persistent://public/default/{name}" for name in ("before", "bare", "other", "parted"))


class SmallEtcd:
    """An etcd with a small quota, filled up, and freed again as an administrator would do it."""

    def __init__(self, etcd: EtcdOfTest) -> None:
        self.url = etcd.url
        self._channel = grpc.aio.insecure_channel(f"127.0.0.1:{etcd.port}")
        self._kv = rpc.KVStub(self._channel)
        self._care = rpc.MaintenanceStub(self._channel)

    async def fill(self) -> None:
        """Write until etcd refuses."""
        with pytest.raises(grpc.aio.AioRpcError, match="space exceeded"):
            while True:
                await self._kv.Put(rpc.PutRequest(key=FILLER, value=bytes(100_000)), wait_for_ready=True)

    async def make_room(self) -> None:
        """Compact, defragment, and disarm the alarm."""
        newest = (await self._kv.Range(rpc.RangeRequest(key=FILLER))).header.revision
        await self._kv.Compact(rpc.CompactionRequest(revision=newest, physical=True))
        await self._care.Defragment(rpc.DefragmentRequest())
        raised = await self._care.Alarm(rpc.AlarmRequest(action=rpc.AlarmRequest.GET))
        for alarm in raised.alarms:
            off = rpc.AlarmRequest(action=rpc.AlarmRequest.DEACTIVATE, memberID=alarm.memberID, alarm=alarm.alarm)
            await self._care.Alarm(off)

    async def close(self) -> None:
        await self._channel.close()


@pytest.fixture
async def etcd(tmp_path: Path) -> AsyncIterator[SmallEtcd]:
    process = await EtcdOfTest.start(tmp_path / "etcd", f"--quota-backend-bytes={QUOTA}")
    made = SmallEtcd(process)
    yield made
    await made.close()
    await process.stop()


@pytest.fixture
async def inside(tmp_path: Path, etcd: SmallEtcd, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[BrokerProcess]:
    monkeypatch.setattr(topic_record, "ATTEMPTS", 1)  # no retries in which space might be freed
    monkeypatch.setattr(patience, "SECONDS", 0.1)
    monkeypatch.setattr(chores, "ROOM_SECONDS", 0.2)
    async with broker_inside(tmp_path / "data", metadataStoreUrl=f"etcd:{etcd.url}") as broker:
        yield broker


async def subscribed(wire: RawConnection, name: str, consumer_id: int, topic: str = TOPIC) -> pb.CommandError | None:
    """None, or why it was refused."""
    asked = pb.CommandSubscribe(
        topic=topic,
        subscription=name,
        subType=pb.CommandSubscribe.Shared,
        consumer_id=consumer_id,
        request_id=1,
        initialPosition=pb.CommandSubscribe.Earliest,
    )
    wire.say(T.SUBSCRIBE, asked)
    answer = await wire.hear_any()
    return None if answer[0] == T.SUCCESS else answer.message


async def health(broker: BrokerProcess) -> Any:
    return (await asyncio.to_thread(http, "GET", f"{broker.listeners.admin_url}/meridian/v1/health")).json


async def test_a_full_etcd_refuses_what_is_new_until_it_has_room(
    inside: BrokerProcess, etcd: SmallEtcd, caplog: pytest.LogCaptureFixture
) -> None:
    port = inside.settings.network.broker_service_port
    wire, other = await RawConnection.open(port), await RawConnection.open(port)
    for producer_id, topic in ((1, TOPIC), (2, BARE)):
        await wire.producer(topic, producer_id, producer_name="p")
        wire.send("p", 0, b"before", producer_id=producer_id)
        assert await wire.receipt() == (0, True)
    assert await subscribed(wire, "s", 1) is None
    await etcd.fill()
    assert (await health(inside))["metadataFull"] is None, "nothing was written yet"

    # What is new is refused, with the reason, and no topic is closed because of it.
    refused = await subscribed(other, "new", 1, BARE)
    assert refused is not None and refused.error == ServerError.METADATA
    assert "is full" in refused.message and "alarm disarm" in refused.message
    other.ask_producer(OTHER, 2)
    refused = await other.hear(T.ERROR)
    assert "is full" in refused.message
    tenant = f"{inside.listeners.admin_url}/admin/v2/tenants/t"
    answer = await asyncio.to_thread(http, "PUT", tenant, {"allowedClusters": ["inside"]})
    assert (answer.status, "is full" in answer.reason) == (503, True)
    assert "defragment" in (await health(inside))["metadataFull"]

    # What needs no metadata write goes on, on both topics, and so do reads, even many at once.
    for producer_id in (1, 2):
        wire.send("p", 1, b"while it is full", producer_id=producer_id)
        assert await wire.receipt() == (1, True)
    wire.write(encode.flow(1, 10))
    message = (await wire.hear_any()).command.message_id
    wire.write(encode.ack(1, 0, [(message.ledgerId, message.entryId)]))
    found = await asyncio.gather(*(inside.catalog.topics.find(parse(name)) for name in (TOPIC, BARE, OTHER)))
    assert [one is not None for one in found] == [True, True, False]

    await etcd.make_room()
    await until(lambda: inside._metadata.full is None)
    assert (await health(inside))["metadataFull"] is None
    assert await subscribed(other, "new", 1, BARE) is None
    await other.producer(OTHER, producer_id=2)
    assert (await asyncio.to_thread(http, "PUT", tenant, {"allowedClusters": ["inside"]})).status == 204
    assert "fenced" not in caplog.text
    await wire.close()
    await other.close()


async def test_while_etcd_is_full_subscriptions_can_be_deleted_and_topics_go_on_until_it_has_room(
    inside: BrokerProcess, etcd: SmallEtcd
) -> None:
    """A topic's deletion begins with a write to its record. Refused, it deletes nothing and disconnects nobody."""
    port = inside.settings.network.broker_service_port
    wire = await RawConnection.open(port)
    await wire.producer(TOPIC, 1, producer_name="p")
    wire.send("p", 0, b"before", producer_id=1)
    assert await wire.receipt() == (0, True)
    for name in ("s", "t"):
        assert await subscribed(wire, name, len(name)) is None
        wire.say(T.CLOSE_CONSUMER, pb.CommandCloseConsumer(consumer_id=len(name), request_id=2))
        await wire.hear(T.SUCCESS)
    await inside.catalog.partitioned.create(parse(PARTED), 2)
    partition = f"{PARTED}-partition-0"
    await wire.producer(partition, 2, producer_name="q")
    wire.send("q", 0, b"before", producer_id=2)
    assert await wire.receipt() == (0, True)
    await etcd.fill()

    admin = f"{inside.listeners.admin_url}/admin/v2"
    topics = f"{admin}/persistent/public/default"
    assert (await asyncio.to_thread(http, "DELETE", f"{topics}/before/subscription/s")).status == 204
    for path in ("before?force=true", "parted/partitions?force=true"):
        answer = await asyncio.to_thread(http, "DELETE", f"{topics}/{path}")
        assert (answer.status, "is full" in answer.reason) == (503, True)
    assert await inside.catalog.topics.find(parse(TOPIC)) is not None
    assert await inside.catalog.partitioned.find(parse(PARTED)) is not None
    for producer_id, name in ((1, "p"), (2, "q")):
        wire.send(name, 1, b"while it is full", producer_id=producer_id)
        assert await wire.receipt() == (1, True)
    await wire.producer(TOPIC, 3, producer_name="r")

    await etcd.make_room()
    topic = inside.service.topics[TOPIC]
    assert (list(topic.subscriptions), topic.log.entries) == (["t"], 2)
    for path in ("before?force=true", "parted/partitions?force=true"):
        assert (await asyncio.to_thread(http, "DELETE", f"{topics}/{path}")).status == 204
    assert {(await wire.hear(T.CLOSE_PRODUCER)).producer_id for _ in range(3)} == {1, 2, 3}
    assert await inside.catalog.topics.find(parse(TOPIC)) is None
    assert await inside.catalog.partitioned.find(parse(PARTED)) is None
    await wire.close()


async def test_a_topic_without_a_ledger_closes_until_a_full_etcd_has_room(
    inside: BrokerProcess, etcd: SmallEtcd
) -> None:
    """Messages without a receipt are stored once, when the producer sends them again."""
    port = inside.settings.network.broker_service_port
    wire, other = await RawConnection.open(port), await RawConnection.open(port)
    await wire.producer(BARE, 1, producer_name="p")
    await other.producer(TOPIC, 2, producer_name="q")
    other.send("q", 0, b"before", producer_id=2)
    assert await other.receipt() == (0, True)
    await etcd.fill()

    wire.send("p", 0, b"first", producer_id=1)
    assert (await wire.hear(T.CLOSE_PRODUCER)).producer_id == 1
    wire.ask_producer(BARE, 1, producer_name="p")
    assert "is full" in (await wire.hear(T.ERROR)).message
    other.send("q", 1, b"while it is full", producer_id=2)
    assert await other.receipt() == (1, True)

    await etcd.make_room()

    async def is_let_in() -> bool:
        wire.ask_producer(BARE, 1, producer_name="p")
        return bool((await wire.hear_any())[0] == T.PRODUCER_SUCCESS)

    await until(is_let_in)
    wire.send("p", 0, b"first", producer_id=1)
    assert await wire.receipt() == (0, True)
    assert await subscribed(wire, "s", 1, BARE) is None
    wire.write(encode.flow(1, 10))
    assert (await wire.hear_any()).body.endswith(b"first")
    assert inside.service.topics[BARE].log.entries == 1
    for one in (wire, other):
        await one.close()
