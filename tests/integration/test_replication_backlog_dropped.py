# SPDX-License-Identifier: Apache-2.0
"""An administrator drops the backlog for a region that is down: space is freed, and when the region returns it gets
only what follows, even after a restart of the sender. In-process regions, called over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import aiohttp
from meridian_broker.gateway.roles import Consumer
from meridian_broker.positions.position import EARLIEST, LATEST
from meridian_broker.positions.skipped import stretches
from meridian_broker.topics.backfill.answers import find
from meridian_broker.topics.backfill.questions import Want
from meridian_broker.topics.topic import Topic
from meridian_broker.wire.pulsar import topic_name
from support.brokers.broker_regions import Region, regions, until

TOPIC = "persistent://public/default/t"
PATH = "/admin/v2/persistent/public/default/t"
CURSOR = f"{PATH}/subscription/pulsar.repl.eu"


async def ask(region: Region, method: str, path: str, body: object = None) -> tuple[int, Any]:
    async with aiohttp.ClientSession() as session, session.request(method, region.admin_url + path, json=body) as said:
        return said.status, await said.json() if said.status != 204 else None


async def opened(region: Region) -> Topic:
    return await region.process.service.opener.topic(topic_name.parse(TOPIC), create=False)


async def backlog(region: Region) -> int:
    _, stats = await ask(region, "GET", f"{PATH}/stats")
    return int(stats["replication"]["eu"]["replicationBacklog"])


async def give_back(region: Region) -> None:
    await (await opened(region)).log.roll()
    assert (await ask(region, "POST", f"{PATH}/trim"))[0] == 204


async def texts(region: Region) -> list[bytes]:
    """The payloads of everything stored in the region, in order."""
    connection = await region.connect()
    reader = await Consumer.subscribe(connection, TOPIC, "reader", replicated=False)
    found = [payload for _ in range(region.stored(TOPIC)) for payload in (await reader.receive()).payloads]
    await connection.close()
    return found


def numbers(*ranges: range) -> list[bytes]:
    return [b"%d" % number for one in ranges for number in one]


async def test_the_backlog_of_a_region_that_is_down_is_dropped(tmp_path: Path) -> None:
    async with regions(tmp_path, "us", "eu") as (us, eu):
        await us.publish(TOPIC, 0, 3)
        await until(lambda: eu.stored(TOPIC) == 3)
        await eu.stop()
        await us.publish(TOPIC, 3, 4)
        await until(lambda: us.process.runner.status(TOPIC)["eu"].connected is False)
        assert await backlog(us) == 4
        await give_back(us)
        assert us.stored(TOPIC) == 7, "the backlog waits for eu"
        assert await ask(us, "POST", f"{CURSOR}/skip_all") == (204, None)
        assert await backlog(us) == 0
        await give_back(us)
        assert us.stored(TOPIC) == 0
        await us.publish(TOPIC, 7, 2)
        await us.stop()
        await us.start()
        await opened(us)
        assert await backlog(us) == 2
        await eu.start()
        await until(lambda: eu.stored(TOPIC) == 5)
        await us.publish(TOPIC, 9, 1)
        await until(lambda: eu.stored(TOPIC) == 6)
        assert await texts(eu) == numbers(range(3), range(7, 10))
        status = us.process.runner.status(TOPIC)["eu"]
        assert (status.hold, (await opened(eu)).gaps.open()) == (None, [])


async def test_a_restarted_sender_that_has_not_reached_the_region_keeps_what_was_skipped(tmp_path: Path) -> None:
    """Skip, restart, skip further while the region is still down; no space was freed in between."""
    async with regions(tmp_path, "us", "eu") as (us, eu):
        await Consumer.subscribe(await us.connect(), TOPIC, "keeping", replicated=False)
        await us.publish(TOPIC, 0, 3)
        await until(lambda: eu.stored(TOPIC) == 3)
        await eu.stop()
        await us.publish(TOPIC, 3, 4)
        assert await ask(us, "POST", f"{CURSOR}/skip/3") == (204, None)
        assert await backlog(us) == 1
        await us.stop()
        await us.start()
        await opened(us)
        assert await backlog(us) == 1
        await us.publish(TOPIC, 7, 2)
        assert await ask(us, "POST", f"{CURSOR}/skip/2") == (204, None)
        assert await backlog(us) == 1
        await eu.start()
        await until(lambda: eu.stored(TOPIC) == 4)
        assert await texts(eu) == numbers(range(3), range(8, 9))
        topic = await opened(us)
        assert topic.subscriptions["keeping"].backlog() == 9, "what was skipped for eu stays owed here"
        assert topic.metadata is not None
        record = topic.metadata.record
        ((remote, after, upto),) = stretches(record.skipped, record.skipped_before)
        assert (remote, topic.log.distance(EARLIEST, after), topic.log.distance(after, upto)) == ("eu", 3, 5)


async def test_a_region_that_asks_for_what_was_skipped_does_not_get_it(tmp_path: Path) -> None:
    async with regions(tmp_path, "us", "eu") as (us, eu):
        await Consumer.subscribe(await us.connect(), TOPIC, "keeping", replicated=False)
        await us.publish(TOPIC, 0, 3)
        await until(lambda: eu.stored(TOPIC) == 3)
        last = (await opened(eu)).log.last_origin["us"]
        await eu.stop()
        await us.publish(TOPIC, 3, 4)
        assert (await ask(us, "POST", f"{CURSOR}/skip/2"))[0] == 204
        topic = await opened(us)

        async def given(asker: str, want: Want) -> tuple[int, bool]:
            found = await find(topic, topic.backfill, asker, want)
            return len(found.entries), found.is_chained

        want = Want(TOPIC, "", "us", last, LATEST)
        assert await given("eu", want) == (2, True)
        assert await given("ap", want) == (4, True), "it was skipped for eu"
        assert await given("eu", want._replace(after=EARLIEST)) == (7, True), "it lost what it had stored"
        assert (await ask(us, "POST", f"{CURSOR}/skip_all"))[0] == 204
        assert await given("eu", want) == (0, True)


async def test_entries_older_than_a_given_age_are_skipped(tmp_path: Path) -> None:
    async with regions(tmp_path, "us", "eu") as (us, eu):
        await us.publish(TOPIC, 0, 3)
        await until(lambda: eu.stored(TOPIC) == 3)
        status, refused = await ask(us, "POST", f"{CURSOR}/expireMessages/0")
        assert (status, "nothing waits for eu" in refused["reason"]) == (409, True)
        await eu.stop()
        await us.publish(TOPIC, 3, 4)
        assert await ask(us, "POST", f"{CURSOR}/expireMessages/3600") == (204, None)
        assert await backlog(us) == 4
        topic = await opened(us)
        second = topic.log.last_confirmed.entry - 2
        place = {"ledgerId": topic.log.last_confirmed.ledger, "entryId": second}
        assert await ask(us, "POST", f"{CURSOR}/expireMessages", place) == (204, None)
        assert await backlog(us) == 2
        assert await ask(us, "POST", f"{CURSOR}/expireMessages/0") == (204, None)
        assert await backlog(us) == 0
        await us.publish(TOPIC, 7, 1)
        await eu.start()
        await until(lambda: eu.stored(TOPIC) == 4)
        assert await texts(eu) == numbers(range(3), range(7, 8))


async def test_a_region_to_which_the_topic_is_not_replicated_has_no_cursor(tmp_path: Path) -> None:
    async with regions(tmp_path, "us", "eu") as (us, _):
        await us.publish(TOPIC, 0, 1)
        for name in ("pulsar.repl.ap", "pulsar.repl.us", "pulsar.repl."):
            for what in ("skip_all", "skip/1", "expireMessages/0"):
                status, refused = await ask(us, "POST", f"{PATH}/subscription/{name}/{what}")
                assert (status, "but to eu" in refused["reason"]) == (404, True), refused


async def test_a_backlog_is_dropped_while_the_region_is_connected(tmp_path: Path) -> None:
    async with regions(tmp_path, "us", "eu") as (us, eu):
        await us.publish(TOPIC, 0, 3)
        await until(lambda: eu.stored(TOPIC) == 3)
        slow = {"dispatchThrottlingRateInMsg": 1, "ratePeriodInSecond": 3600}
        assert (await ask(us, "POST", f"{PATH}/replicatorDispatchRate", slow))[0] == 204
        topic = await opened(us)
        await until(lambda: topic.rules.replicator_dispatch_rate.messages == 1)
        await us.publish(TOPIC, 3, 20)
        before = us.process.runner.status(TOPIC)["eu"].connections
        assert await ask(us, "POST", f"{CURSOR}/skip_all") == (204, None)
        assert await backlog(us) == 0
        assert (await ask(us, "DELETE", f"{PATH}/replicatorDispatchRate"))[0] == 204
        await us.publish(TOPIC, 23, 2)
        await until(lambda: us.process.runner.status(TOPIC)["eu"].connections > before)
        await until(lambda: us.process.runner.status(TOPIC)["eu"].backlog == 0)
        found = await texts(eu)
        assert (found[:3], found[-2:]) == (numbers(range(3)), numbers(range(23, 25)))
        assert len(found) < 25
