# SPDX-License-Identifier: Apache-2.0
"""Where another region's replicator is refused, its entries are not fetched either, from any region.
Real brokers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from meridian_broker.gateway.roles import Producer
from meridian_broker.ledgers.entry import unpack
from meridian_broker.metadata import policy_table
from meridian_broker.metadata.policy_values import BacklogQuota
from meridian_broker.positions.position import EARLIEST
from meridian_broker.topics.backfill import backfill
from meridian_broker.topics.directory.schemas import VERSION
from meridian_broker.topics.lifecycle.termination import terminate
from meridian_broker.topics.retention import backlog_quotas
from meridian_broker.topics.service import rounds
from meridian_broker.topics.subscriptions import administration
from meridian_broker.topics.topic import Topic
from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar import metadata as message_metadata
from meridian_broker.wire.pulsar.topic_name import parse
from support.brokers.broker_regions import Region, regions, until

TOPIC = "persistent://public/default/orders"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A copy that no replicator feeds fetches entries at once."""
    monkeypatch.setattr(backfill, "UNFED_MS", 0)
    yield


async def publish(region: Region, count: int, size: int = 100) -> None:
    connection = await region.connect()
    producer = await Producer.open(connection, TOPIC)
    for _ in range(count):
        await producer.send(b"x" * size)
    await producer.flush()
    await connection.close()


async def opened(region: Region, entries: int) -> Topic:
    """The topic in that region, once it has that many entries."""
    topic = await region.process.service.opener.topic(parse(TOPIC), create=True)
    await until(lambda: topic.log.entries == entries)
    return topic


async def nothing_comes(topic: Topic, remote: Region, why: str) -> None:
    """The remote's replicator was refused, and this region does not fetch what it lacks although asked to."""
    before = topic.log.last_confirmed
    await until(lambda: why in topic.intake.refusals().get(remote.name, ""))
    assert topic.backfill is not None
    assert remote.name not in topic.backfill.absent({remote.name}), "it can connect to us: we do not fetch"
    backfill = topic.backfill

    def refused() -> bool:
        """Ask again as if the replicator had not tried for a while: nothing is fetched while it is connected."""
        if why in backfill.problem:
            return True
        topic.intake._turned_away.clear()
        backfill.start()
        return False

    await until(refused)
    assert topic.log.last_confirmed == before


def status_of(region: Region, remote: Region) -> Any:
    return region.process.runner.status(TOPIC)[remote.name]


async def test_a_backlog_quota_holds_for_what_other_regions_publish(tmp_path: Path) -> None:
    async with regions(tmp_path, "us", "eu") as (us, eu):
        await publish(us, 20)
        here = await opened(us, 20)
        await opened(eu, 20)
        here.subscribing.create_subscription("slow", EARLIEST)
        service = us.process.service
        quota = BacklogQuota(1000, -1, backlog_quotas.HOLD).to_json()
        await service.parts.catalog.topic_policies.set_policy(
            parse(TOPIC), policy_table.BACKLOG_QUOTAS, quota, backlog_quotas.SIZE
        )
        await until(lambda: bool(here.rules.backlog_quotas))
        await rounds.check_quotas(service)
        await publish(eu, 50)
        await nothing_comes(here, eu, "backlog quota")
        assert status_of(eu, us).backlog == 50
        await administration.skip(here.subscriptions["slow"], None)
        await until(lambda: here.log.entries == 70)


async def test_a_terminated_topic_does_not_grow(tmp_path: Path) -> None:
    async with regions(tmp_path, "us", "eu") as (us, eu):
        await publish(us, 2)
        here = await opened(us, 2)
        await opened(eu, 2)
        last = await terminate(here)
        await publish(eu, 5)
        await nothing_comes(here, eu, "terminated in us")
        assert here.log.last_confirmed == last


async def test_messages_larger_than_this_broker_accepts_are_not_copied_here(tmp_path: Path) -> None:
    async with regions(tmp_path, "us", "eu") as (us, eu):
        await publish(eu, 3)
        here = await opened(us, 3)
        here.limits = replace(here.limits, message_bytes=1000)
        await publish(eu, 1, size=6000)
        await publish(eu, 3)
        await nothing_comes(here, eu, "maxMessageSize")
        here.limits = replace(here.limits, message_bytes=10_000)
        await until(lambda: here.log.entries == 7)


async def test_what_is_fetched_names_its_schema_by_this_regions_number(tmp_path: Path) -> None:
    """Each of three regions numbers the schemas in another order; the messages come from eu, or from each other."""
    schemas = [
        pb.Schema(name="orders", type=pb.Schema.Json, schema_data=b'{"type":"record","name":"%s","fields":[]}' % name)
        for name in (b"A", b"B", b"C")
    ]
    async with regions(tmp_path, "us", "eu", "ap") as (us, eu, ap):
        for region, order in ((us, (1, 0)), (eu, (0, 1, 2)), (ap, (2, 1, 0))):
            await region.process.service.opener.topic(parse(TOPIC), create=True)
            for number in order:
                await region.process.service.parts.schemas.add(parse(TOPIC), schemas[number])
        eu.process.runner.stop(TOPIC)  # eu does not announce its messages
        connection = await eu.connect()
        producer = await Producer.open(connection, TOPIC)
        for number in range(3):
            version = await connection.get_or_create_schema(TOPIC, schemas[number])
            await producer.send(b"%d" % number, schema_version=version)
        await producer.send(b"none")
        await producer.flush()
        await connection.close()
        assert await numbers(us) == [1, 0, 2, None], "the third schema was new in that region"
        await eu.stop()
        assert await numbers(ap) == [2, 1, 0, None]
        await eu.start()


async def numbers(region: Region) -> list[int | None]:
    """The schema versions of a region's messages, once all have arrived."""
    topic = await opened(region, 4)
    entries = await topic.log.read_after(EARLIEST, 10, 1 << 20)
    found = [message_metadata.scan(stored[unpack(stored).body_offset :]).schema_version for _, stored in entries]
    return [VERSION.unpack(version)[0] if version else None for version in found]
