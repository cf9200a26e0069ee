# SPDX-License-Identifier: Apache-2.0
"""What regions that are away lacked before a restart, as the progress log tells it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest
from meridian_broker.engines.memory.ledgers import MemoryDisk, MemoryLedgerStore
from meridian_broker.ledgers.chapters import CacheBudget, LogLimits
from meridian_broker.ledgers.log import TopicLog
from meridian_broker.positions import HybridClock
from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.server.loop import LoopScheduler
from meridian_broker.topics import progress_log, recovery, unconfirmed
from meridian_broker.topics.administration import _Nobody
from meridian_broker.topics.consumer import Consumer
from meridian_broker.topics.limits import TopicLimits
from meridian_broker.topics.progress_log import ProgressLog
from meridian_broker.topics.topic import Topic
from topic_record import TopicRecord

BEGAN_MS = 1_700_000_000_000


class Clocked(LoopScheduler):
    ms = BEGAN_MS

    def now_ms(self) -> int:
        return self.ms


class Before:
    """What the life before left."""

    def __init__(self, **since_ms: int) -> None:
        self.since_ms = since_ms
        self.said: dict[tuple[str, str], tuple[int, int]] = {}

    def found(self, topic: str, subscription: str, region: str, entries: int, since_ms: int) -> None:
        assert topic == "t"
        self.said[subscription, region] = entries, since_ms - BEGAN_MS


class Region:
    """A topic of one region, its disk, and its time."""

    def __init__(self) -> None:
        self.scheduler = Clocked()
        self.disk = MemoryDisk()
        self.record = TopicRecord()
        self.fence = 0
        self.stored: list[Position] = []

    async def start(self) -> None:
        self.fence += 1
        loop = asyncio.get_running_loop()
        store = MemoryLedgerStore(self.disk, schedule=lambda work: loop.call_soon(work))
        limits = LogLimits(max_entries=5)
        log = TopicLog("us", store, self.record, self.fence, limits, self.scheduler, CacheBudget(1 << 20))
        await log.open(*self.record.spans)

        def new_log(topic: Topic) -> ProgressLog:
            return ProgressLog(store, self.record, self.fence, self.scheduler, lambda: recovery.snapshot(topic))

        clock = HybridClock(self.scheduler.now_ms, "us")
        self.topic = Topic("t", -1, "us", "", log, new_log, self.scheduler, clock, TopicLimits(), None)
        self.changes = await self.topic.progress_log.open(list(self.record.progress))
        recovery.recover(self.topic, self.changes)

    async def settle(self) -> None:
        quiet = 0
        while quiet < 4:
            await asyncio.sleep(0)
            quiet = 0 if self.scheduler._tasks else quiet + 1

    async def publish(self, count: int) -> None:
        def stored(_: Any, first: Any) -> None:
            self.stored.append(first)

        for _ in range(count):
            self.topic.log.append_own([(0, 1, 0, 0, self.scheduler.ms, b"", b"x")], stored, [0])
            await self.settle()

    async def ack(self, name: str, numbers: Iterable[int], at_ms: int) -> None:
        self.scheduler.ms = BEGAN_MS + at_ms
        one = self.topic.subscriptions[name]
        nobody = Consumer(one, _Nobody(), 0, "", 0, BEGAN_MS, None, None, one.progress.epoch)
        one.acknowledge(nobody, [self.stored[number] for number in numbers])
        await self.settle()

    async def recall(self, **since_ms: int) -> dict[tuple[str, str], tuple[int, int]]:
        before = Before(**{region: BEGAN_MS + ms for region, ms in since_ms.items()})
        await unconfirmed.recall(self.topic, self.changes, {"us", "eu", "ap"}, before)
        return before.said


async def region(**flags: bool) -> Region:
    """With twelve entries in several ledgers."""
    one = Region()
    await one.start()
    for name, replicated in flags.items():
        one.topic.create_subscription(name, EARLIEST, replicated=replicated)
    await one.publish(12)
    return one


def test_entries_and_age_are_those_since_the_region_went() -> None:
    async def story() -> None:
        one = await region(s=True, other=True, alone=False)
        await one.ack("s", [0, 1], 100)
        await one.ack("s", [3, 7, 11], 400)
        await one.ack("s", [5], 900)
        await one.ack("other", [2], 700)
        await one.ack("alone", [2], 700)
        await one.start()
        assert await one.recall(eu=300) == {("s", "eu"): (4, 400), ("other", "eu"): (1, 700)}
        assert await one.recall(eu=300, ap=800) == await one.recall(eu=300) | {("s", "ap"): (1, 900)}
        assert await one.recall(eu=1000) == await one.recall() == await one.recall(nobody=0) == {}

    asyncio.run(story())


def test_of_a_subscription_that_is_gone_nothing_is_owed() -> None:
    async def story() -> None:
        one = await region(s=True)
        await one.ack("s", [0], 100)
        one.topic.lives.delete("s")
        await one.settle()
        await one.start()
        assert await one.recall(eu=0) == {}

    asyncio.run(story())


def test_a_log_that_was_rolled_over_since_says_less_and_nothing_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        one = await region(s=True)
        await one.ack("s", [0, 1], 100)
        monkeypatch.setattr(progress_log, "ROLL_BYTES", 1)
        await one.ack("s", [2], 200)
        monkeypatch.undo()
        await one.ack("s", [3, 4], 300)
        await one.start()
        assert await one.recall(eu=0) == {("s", "eu"): (2, 300)}

    asyncio.run(story())


def test_of_a_long_log_the_newest_entries_count(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        one = await region(s=True)
        await one.ack("s", range(12), 100)
        await one.start()
        monkeypatch.setattr(unconfirmed, "LOOKS", 4)
        assert 0 < (await one.recall(eu=0))["s", "eu"][0] <= 4

    asyncio.run(story())
