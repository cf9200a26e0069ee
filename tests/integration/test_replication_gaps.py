# SPDX-License-Identifier: Apache-2.0
"""R4: entries trimmed before a region that was down got them come from a third region; those that none has are a gap at
which replication stops, with an explanation, until an administrator accepts it; it is skipped if nobody is owed
them. Three in-process regions."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
from meridian_broker.gateway.roles import Consumer
from meridian_broker.positions import Cause
from meridian_broker.positions.position import Position
from meridian_broker.replication.entries.replicator_status import StopReason
from meridian_broker.topics.topic import Topic
from meridian_broker.wire.pulsar import topic_name
from support.brokers.broker_regions import Region, regions, until
from support.brokers.forked_meridian import meridian_text

TOPIC = "persistent://public/default/t"
GAPS = "/meridian/v1/topics/persistent/public/default/t/gaps"


def topic_of(region: Region) -> Topic:
    return region.process.service.topics[TOPIC]


async def take(consumer: Consumer, count: int) -> list[bytes]:
    async with asyncio.timeout(60):
        return [payload for _ in range(count) for payload in (await consumer.receive()).payloads]


async def ask(region: Region, method: str, path: str, body: object = None) -> tuple[int, Any]:
    async with aiohttp.ClientSession() as session, session.request(method, region.admin_url + path, json=body) as said:
        return said.status, await said.json()


async def lose(region: Region) -> None:
    """Delete everything stored so far from the region's disk, whoever still needs it."""
    log = topic_of(region).log
    await log.roll()
    await log.trim(log.last_confirmed, 0, None)


async def behind(us: Region, eu: Region, ap: Region) -> Consumer:
    """``eu`` has five messages, is down while five more come, and the first ten are lost in ``us``. A consumer of
    ``ap`` keeps them there."""
    await us.publish(TOPIC, 0, 5)
    keeping = await Consumer.subscribe(await ap.connect(), TOPIC, "keeping")
    reading = await Consumer.subscribe(await eu.connect(), TOPIC, "s", replicated=False)
    for number in range(5):
        message = await reading.receive()
        assert message.payloads == [b"%d" % number]
        reading.acknowledge(message.position)
    await until(lambda: eu.stored(TOPIC) == 5 and topic_of(eu).subscriptions["s"].backlog() == 0)
    await eu.stop()
    await us.publish(TOPIC, 5, 5)
    await until(lambda: ap.stored(TOPIC) == 10)
    await lose(us)
    await us.publish(TOPIC, 10, 3)
    await until(lambda: ap.stored(TOPIC) == 13)
    return keeping


async def test_a_third_region_fills_the_gap(tmp_path: Path) -> None:
    async with regions(tmp_path, "us", "eu", "ap") as (us, eu, ap):
        await behind(us, eu, ap)
        await eu.start()
        reading = await Consumer.subscribe(await eu.connect(), TOPIC, "s", replicated=False)
        assert await take(reading, 8) == [b"%d" % number for number in range(5, 13)]
        assert topic_of(eu).gaps.open() == []
        await until(lambda: us.process.runner.status(TOPIC)["eu"].hold is None)


async def test_entries_that_no_region_has_are_a_gap_until_it_is_accepted(tmp_path: Path) -> None:
    async with regions(tmp_path, "us", "eu", "ap") as (us, eu, ap):
        await behind(us, eu, ap)
        await lose(ap)
        await ap.stop()
        await eu.start()
        await until(lambda: eu.stored(TOPIC) == 5 and bool(topic_of(eu).gaps.open()))
        last = topic_of(eu).gaps.open()[0].after

        async def seen() -> dict[str, Any]:
            _, found = await ask(eu, "GET", GAPS)
            (gap,) = found["missing"]
            return dict(gap)

        async def judged(away: list[str]) -> bool:
            gap = await seen()
            return bool(gap["asked"]) and gap["away"] == away

        await until(lambda: judged(["ap"]))
        gap = await seen()
        assert (gap["origin"], gap["after"], gap["entries_at_most"]) == ("us", str(last), 5)
        assert gap["owed_to"] == ["s"]
        assert "(owed to s); ap may have them but cannot be asked" in gap["detail"]
        wanted = {"origin": "us", "upto": gap["upto"]}
        status, refused = await ask(eu, "POST", f"{GAPS}/accept", wanted)
        assert (status, "or force" in refused["reason"]) == (412, True)
        await ap.start()
        await until(lambda: judged([]))
        await until(lambda: us.process.runner.status(TOPIC)["eu"].hold is StopReason.GAP)
        assert (await seen())["detail"].endswith(f"accept-gap {TOPIC} --origin us --up-to {gap['upto']}")
        assert (await ask(eu, "POST", f"{GAPS}/accept", wanted | {"upto": str(last)}))[0] == 412
        assert (await ask(eu, "POST", f"{GAPS}/accept", wanted | {"origin": "ap"}))[0] == 404
        assert (await ask(eu, "POST", f"{GAPS}/accept", {"origin": "us"}))[0] == 412
        assert eu.stored(TOPIC) == 5, "nothing was skipped silently"
        line = ["topics", "accept-gap", TOPIC, "--origin", "us", "--up-to", gap["upto"], "--url", eu.admin_url]
        told = await asyncio.to_thread(meridian_text, *line)
        assert told.returncode == 0, told.stderr
        assert "recorded as dropped for: s" in told.stdout
        reading = await Consumer.subscribe(await eu.connect(), TOPIC, "s", replicated=False)
        assert await take(reading, 3) == [b"10", b"11", b"12"]
        subscription = topic_of(eu).subscriptions["s"]
        assert subscription.cursor.dropped is not None
        upto = Position(*map(int, gap["upto"].split(":")))
        assert subscription.cursor.dropped.cause("us", upto) is Cause.LOST
        assert subscription.cursor.dropped.cause("us", last) is None
        _, found = await ask(eu, "GET", GAPS)
        (accepted,) = found["accepted"]
        assert (found["missing"], accepted["by"]) == ([], "somebody at 127.0.0.1")
        await until(lambda: us.process.runner.status(TOPIC)["eu"].hold is None)


async def test_an_accepted_gap_survives_a_restart(tmp_path: Path) -> None:
    async with regions(tmp_path, "us", "eu") as (us, eu):
        await us.publish(TOPIC, 0, 3)
        await until(lambda: eu.stored(TOPIC) == 3)
        await Consumer.subscribe(await eu.connect(), TOPIC, "s", replicated=False)
        await eu.stop()
        await us.publish(TOPIC, 3, 3)
        await lose(us)
        await eu.start()
        await until(lambda: eu.stored(TOPIC) == 3 and any(gap.is_judged for gap in topic_of(eu).gaps.open()))
        (gap,) = topic_of(eu).gaps.open()
        await us.stop()
        await topic_of(eu).gaps.accept("us", gap.upto, "a test", forced=False)
        for _ in range(2):
            await eu.stop()
            await eu.start()
            topic = await eu.process.service.opener.topic(topic_name.parse(TOPIC), create=False)
            assert topic.log.last_origin["us"] == gap.upto
            assert [one.by for one in topic.gaps.accepted] == ["a test"]
        await us.start()
        await us.publish(TOPIC, 6, 2)
        await until(lambda: eu.stored(TOPIC) == 5)
        await eu.stop()
        await eu.start()
        topic = await eu.process.service.opener.topic(topic_name.parse(TOPIC), create=False)
        assert topic.log.last_origin["us"] > gap.upto


async def test_entries_that_no_region_has_and_nobody_is_owed_are_skipped(tmp_path: Path) -> None:
    """A replicated subscription acknowledged them elsewhere while the region was down; no command is needed."""
    async with regions(tmp_path, "us", "eu") as (us, eu):
        reading = await Consumer.subscribe(await us.connect(), TOPIC, "shared", replicated=True)
        await us.publish(TOPIC, 0, 3)
        await until(lambda: eu.stored(TOPIC) == 3 and "shared" in topic_of(eu).subscriptions)
        await eu.stop()
        await us.publish(TOPIC, 3, 3)
        for _ in range(6):
            reading.acknowledge((await reading.receive()).position)
        await until(lambda: topic_of(us).subscriptions["shared"].backlog() == 0)
        await lose(us)
        await us.publish(TOPIC, 6, 2)
        await eu.start()
        await until(lambda: eu.stored(TOPIC) == 5)
        _, found = await ask(eu, "GET", GAPS)
        (accepted,) = found["accepted"]
        assert (found["missing"], accepted["origin"]) == ([], "us")
        assert accepted["by"] == "the broker (owed to no subscription)"
        assert topic_of(eu).subscriptions["shared"].cursor.dropped is None, "nobody lost anything"
        await until(lambda: topic_of(eu).subscriptions["shared"].backlog() == 2)
