# SPDX-License-Identifier: Apache-2.0
"""A subscription is deleted only if nobody consumes it, even if a consumer comes while regions are asked (R16)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from meridian_broker.admin.elsewhere import users
from meridian_broker.admin.elsewhere.everywhere import ask
from meridian_broker.positions.position import EARLIEST
from meridian_broker.topics.topic import Topic
from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar.topic_name import parse
from support.brokers.broker_process import http
from support.brokers.broker_regions import Region, regions
from support.protocol.raw_connection import RawConnection, T

TOPIC = "persistent://public/default/t"
PATH = "/admin/v2/persistent/public/default/t/subscription/s"


class SlowAnswer:
    """Another region's answer, which arrives once the test lets it through."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked, self.arrives = asyncio.Event(), asyncio.Event()
        monkeypatch.setattr(users, "ask", self)

    async def __call__(self, *question: object) -> object:
        said = await ask(*question)  # type: ignore[arg-type]
        self.asked.set()
        await self.arrives.wait()
        return said


async def replicated(region: Region) -> Topic:
    topic = await region.process.service.opener.topic(parse(TOPIC), create=True)
    topic.subscribing.create_subscription("s", EARLIEST, replicated=True)
    return topic


async def consumer(region: Region) -> RawConnection:
    wire = await RawConnection.open(region.port)
    ask = pb.CommandSubscribe(topic=TOPIC, subscription="s", subType=pb.CommandSubscribe.Shared)
    ask.consumer_id = ask.request_id = 1
    wire.say(T.SUBSCRIBE, ask)
    await wire.hear(T.SUCCESS)
    return wire


async def test_a_consumer_that_comes_while_regions_are_asked_keeps_the_subscription(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with regions(tmp_path, "us", "eu") as (us, _):
        topic, answer = await replicated(us), SlowAnswer(monkeypatch)
        deletion = asyncio.create_task(asyncio.to_thread(http, "DELETE", us.admin_url + PATH))
        await answer.asked.wait()
        wire = await consumer(us)
        answer.arrives.set()
        refused = await deletion
        assert refused.status == 412
        assert "has 1 consumers" in refused.json["reason"]
        assert len(topic.subscriptions["s"].consumers) == 1
        await wire.close()


async def test_a_second_consumer_that_comes_meanwhile_stops_the_first_ones_unsubscribe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with regions(tmp_path, "us", "eu") as (us, _):
        topic, answer = await replicated(us), SlowAnswer(monkeypatch)
        first = await consumer(us)
        first.say(T.UNSUBSCRIBE, pb.CommandUnsubscribe(consumer_id=1, request_id=2))
        await answer.asked.wait()
        second = await consumer(us)
        answer.arrives.set()
        assert (await first.hear(T.ERROR)).error == pb.MetadataError
        assert len(topic.subscriptions["s"].consumers) == 2
        await second.close()
        await first.close()


async def test_a_subscription_created_meanwhile_under_the_name_is_not_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with regions(tmp_path, "us", "eu") as (us, _):
        topic, answer = await replicated(us), SlowAnswer(monkeypatch)
        deletion = asyncio.create_task(asyncio.to_thread(http, "DELETE", us.admin_url + PATH))
        await answer.asked.wait()
        topic.subscription_registry.delete("s")
        later = topic.subscribing.create_subscription("s", EARLIEST, replicated=True)
        answer.arrives.set()
        assert (await deletion).status == 404
        assert topic.subscriptions["s"] is later
