# SPDX-License-Identifier: Apache-2.0
"""A topic of one region, stored on an in-memory disk, that tests open, restart and acknowledge."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from meridian_broker.engines.memory.ledgers import MemoryDisk, MemoryLedgerStore
from meridian_broker.ledgers.chapters import CacheBudget, LogLimits
from meridian_broker.ledgers.log import TopicLog
from meridian_broker.positions import HybridClock
from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.server.loop import LoopScheduler
from meridian_broker.topics.dispatch.consumer import Consumer
from meridian_broker.topics.journal.progress_log import ProgressLog
from meridian_broker.topics.lifecycle import replay
from meridian_broker.topics.lifecycle.replay import OnAcked
from meridian_broker.topics.limits import TopicLimits
from meridian_broker.topics.subscriptions.administration import NoClient
from meridian_broker.topics.topic import Topic
from support.worlds.topic_record import TopicRecord

BEGAN_MS = 1_700_000_000_000


async def load_indexes(log: TopicLog) -> None:
    """Load the indexes of all ledgers, so that a backlog is exact."""
    for ledger, entries, _ in log.counts():
        if entries:
            await log.load_index(ledger)


class Clocked(LoopScheduler):
    ms = BEGAN_MS

    def now_ms(self) -> int:
        return self.ms


class Region:
    """A topic of one region, its disk and its clock."""

    def __init__(self, *, rests: bool = False, name: str = "us", ledger_entries: int = 5) -> None:
        """:param rests: its progress log gives up its ledgers while it does not change.
        :param ledger_entries: number of entries in a ledger.
        """
        self.rests = rests
        self.name = name
        self.ledger_entries = ledger_entries
        self.scheduler = Clocked()
        self.disk = MemoryDisk()
        self.record = TopicRecord()
        self.fence = 0
        self.stored: list[Position] = []

    async def start(self, on_acked: OnAcked | None = None) -> None:
        self.fence += 1
        loop = asyncio.get_running_loop()
        self.store = store = MemoryLedgerStore(self.disk, schedule=lambda work: loop.call_soon(work))
        limits = LogLimits(max_entries=self.ledger_entries)
        log = TopicLog(self.name, store, self.record, self.fence, limits, self.scheduler, CacheBudget(1 << 20))
        await log.open(*self.record.spans)

        def new_log(topic: Topic) -> ProgressLog:
            return ProgressLog(
                *(store, self.record, self.fence, self.scheduler, lambda: replay.snapshot(topic)), rests=self.rests
            )

        clock = HybridClock(self.scheduler.now_ms, self.name)
        self.topic = Topic("t", -1, self.name, "", log, new_log, self.scheduler, clock, TopicLimits(), None)
        await self.topic.progress_log.open(list(self.record.progress), (), self.record.snapshot)
        self.changes = [change async for some in self.topic.progress_log.changes(lambda _: None) for change in some]
        await replay.recover(self.topic, on_acked)
        self.topic.subscription_registry.lost_records.report()

    async def kill(self) -> None:
        """Stop everything at once: what is not on the disk or in the record is lost."""
        self.store.crash()
        tasks = tuple(self.scheduler._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def state(self) -> dict[str, Any]:
        """The present state that its progress log must restore."""

        def now(what: Any) -> Any:
            return None if what is None else what.copy()

        return {
            name: (found.record, *map(now, (found.cursor.progress, found.cursor.first_hand, found.cursor.dropped)))
            for name, found in self.topic.subscriptions.items()
        } | {"graves": dict(self.topic.subscription_registry.tombstones), "votes": dict(self.topic.votes)}

    async def settle(self) -> None:
        quiet = 0
        while quiet < 4:
            await asyncio.sleep(0)
            quiet = 0 if self.scheduler._tasks else quiet + 1

    async def publish(self, count: int, extras: bytes = b"") -> None:
        def stored(_: Any, first: Any) -> None:
            self.stored.append(first)

        for _ in range(count):
            self.topic.log.append_own([(0, 1, 0, 0, self.scheduler.ms, extras, b"x")], stored, [0])
            await self.settle()

    async def ack(self, name: str, numbers: Iterable[int], at_ms: int) -> None:
        self.scheduler.ms = BEGAN_MS + at_ms
        self.acknowledge(name, numbers)
        await self.settle()

    def acknowledge(self, name: str, numbers: Iterable[int]) -> None:
        one = self.topic.subscriptions[name]
        nobody = Consumer(one, NoClient(), 0, "", 0, BEGAN_MS, None, None, one.cursor.progress.epoch)
        one.acknowledge(nobody, [self.stored[number] for number in numbers])


async def region(*, rests: bool = False, **flags: bool) -> Region:
    """A region with twelve entries in several ledgers."""
    one = Region(rests=rests)
    await one.start()
    for name, replicated in flags.items():
        one.topic.subscribing.create_subscription(name, EARLIEST, replicated=replicated)
    await one.publish(12)
    return one
