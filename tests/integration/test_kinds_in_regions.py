# SPDX-License-Identifier: Apache-2.0
"""What regions report and refuse while one name means a partitioned topic in one and a plain topic in another."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import aiohttp
import pytest
from meridian_broker.engines.local.committer import Committer
from meridian_broker.metadata.errors import AlreadyExists
from meridian_broker.metadata.topic_catalog import Topics
from meridian_broker.positions import Stamp
from meridian_broker.positions.position import EARLIEST
from meridian_broker.server.broker import BrokerProcess
from meridian_broker.topics.errors import OtherKind
from meridian_broker.topics.service import creation, kinds
from meridian_broker.topics.service.kinds import Carried, Creation, Kind
from meridian_broker.topics.service.opener import TopicOpener
from meridian_broker.wire.pulsar.topic_name import TopicName, parse
from support.brokers.broker_regions import regions, until
from support.protocol.raw_connection import RawConnection, T

NAME = parse("persistent://public/default/t")
PATH = "/admin/v2/persistent/public/default/t/partitions"


async def keep_both(opener: TopicOpener, name: TopicName, theirs: Creation) -> list[Carried]:
    found = await kinds.creation(opener, name)
    if found is not None and found.kind is not theirs.kind:
        raise OtherKind("this test keeps them apart")
    return []


async def tell_nobody(*_: object) -> None:
    """As if the link were down."""


async def test_a_copy_is_not_ready_while_another_region_has_the_other_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kinds, "make_way", keep_both)
    monkeypatch.setattr(creation, "_tell", tell_nobody)
    async with regions(tmp_path, "us", "eu") as (us, eu):
        plain = await eu.process.service.opener.topic(NAME, create=True)
        await creation.create_partitioned(us.process.service.opener, NAME, 1, {})
        part = await us.process.service.opener.topic(NAME.with_partition(0), create=False)
        for topic, said in ((plain, "us has .* with partitions"), (part, "eu has .* without partitions")):
            backfill = topic.backfill
            assert backfill is not None
            await until(lambda backfill=backfill: " partitions" in backfill.joining.readiness().reason)
            is_ready, reason, _ = backfill.joining.readiness()
            assert not is_ready
            assert said.partition(" has ")[0] in reason
            assert said.rpartition(".* ")[2] in reason


async def test_a_creation_is_refused_where_another_region_made_the_other_kind_earlier(tmp_path: Path) -> None:
    """It is rolled back without a trace, and clients get the earlier topic."""
    async with regions(tmp_path, "us", "eu") as (us, eu):
        ours, theirs = us.process.service, eu.process.service
        await eu.process.catalog.topics.create(NAME)  # no broker has opened it yet, so nobody told us
        with pytest.raises(AlreadyExists, match="without partitions, created earlier"):
            await creation.create_partitioned(ours.opener, NAME, 3, {})
        assert await ours.parts.catalog.partitioned.find(NAME) is None
        assert await ours.registry.names("public/default") == []
        await theirs.opener.topic(NAME, create=False)
        await until(lambda: str(NAME) in ours.topics)


async def test_a_creation_reported_by_another_region_has_a_stamp_and_counts_until_the_deletion(
    tmp_path: Path,
) -> None:
    async with regions(tmp_path, "us", "eu") as (us, _), aiohttp.ClientSession() as http:
        for created, status in (("yesterday", 400), ("5.0@eu", 204), ("5.0@eu", 409)):
            url = f"{us.admin_url}{PATH}?incarnation=&created={created}"
            async with http.put(url, json=2) as answer:
                assert answer.status == status, await answer.text()
        later = f"{us.process.service.parts.scheduler.now_ms()}.0@eu"
        for method, known, status in (
            ("GET", "", 200),
            ("GET", later, 404),  # our topic was deleted there
            ("POST", later, 404),  # and so it is deleted here
            ("GET", later, 404),
            ("GET", "", 412),
            ("POST", "", 412),
        ):
            async with http.request(method, f"{us.admin_url}{PATH}?incarnation={known}", json=4) as answer:
                assert answer.status == status, await answer.text()


async def test_a_message_not_durable_yet_when_its_copy_gives_way_is_quarantined(
    inside: BrokerProcess, wire: RawConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log looks empty until the disk has answered; then the client gets a receipt."""
    sync, answers, asked = Committer._sync, threading.Event(), threading.Event()

    def slow(committer: Committer, seconds: list[float]) -> None:
        asked.set()
        assert answers.wait(60)
        sync(committer, seconds)

    await wire.producer(str(NAME), producer_name="p")
    topic = inside.service.topics[str(NAME)]
    take_back = Topics.take_back

    async def take_back_late(catalog: Topics, name: TopicName) -> None:
        await until(lambda: topic.log.last_confirmed != EARLIEST)
        await take_back(catalog, name)

    monkeypatch.setattr(Topics, "take_back", take_back_late)
    monkeypatch.setattr(Committer, "_sync", slow)
    wire.send("p", 0, b"x")
    await until(asked.is_set)
    earlier = Creation(Stamp(1, 0, "elsewhere"), Kind.PARTITIONED)
    giving_way = asyncio.ensure_future(kinds.make_way(inside.service.opener, NAME, earlier))
    await until(lambda: topic.failure is not None)
    answers.set()
    await giving_way
    await wire.hear(T.CLOSE_PRODUCER)
    assert (await wire.hear(T.SEND_RECEIPT)).sequence_id == 0
    (aside,) = await inside.service.registry.names("public/default")
    assert "-set-aside-" in aside
    assert (await inside.service.opener.topic(parse(aside), create=False)).log.entries == 1
