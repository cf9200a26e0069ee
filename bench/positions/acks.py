# SPDX-License-Identifier: Apache-2.0
"""One process that measures a broker's cost of acknowledgements: run by ``measure.py``, prints one JSON object.

A real topic, its log and its progress log on ledgers in memory, in a real loop. Two questions:

* Single acknowledgements of a subscription that was rewound often, each in its own turn, or a hundred at a time:
  processor time from the command to the receipt.
* One cumulative acknowledgement over a long backlog: the longest turn of the loop, and the processor time until the
  receipt and until the cursor has advanced. With only own entries, and with half of them from another region.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from meridian_broker.engines.memory.ledgers import MemoryLedgerStore
from meridian_broker.ledgers.chapters import CacheBudget, LogLimits, Span
from meridian_broker.ledgers.entry import FOREIGN, EntryHeader
from meridian_broker.ledgers.holes import Hole
from meridian_broker.ledgers.labels import Belonging
from meridian_broker.ledgers.log import TopicLog
from meridian_broker.positions import HybridClock, Position, Progress, Stamp
from meridian_broker.positions.layer import Layer
from meridian_broker.positions.layers import LAYERS_MAX, Layers
from meridian_broker.positions.position import EARLIEST
from meridian_broker.server.loop import LoopScheduler
from meridian_broker.topics.cursors import rewinding
from meridian_broker.topics.dispatch.consumer import Consumer
from meridian_broker.topics.journal.progress_log import ProgressLog
from meridian_broker.topics.lifecycle import replay
from meridian_broker.topics.limits import TopicLimits
from meridian_broker.topics.subscriptions.administration import NoClient
from meridian_broker.topics.subscriptions.subscription import Subscription
from meridian_broker.topics.topic import Topic

MANY = 4000
"""Rewinds of ranges: several regions may have this many together, or had them under an earlier version."""
TURN = 100


class Record:
    """The topic's record, not stored."""

    belonging = Belonging("topic", "")

    def __init__(self) -> None:
        self._last = 0

    async def allocate_ledger_id(self) -> int:
        self._last += 1
        return self._last

    async def save_spans(
        self,
        spans: list[Span],
        last_own: Position,
        last_origins: Mapping[str, Position],
        holes: Mapping[str, list[Hole]],
    ) -> None:
        """Nowhere."""

    async def save_progress_ledgers(self, ledgers: list[int], snapshot: tuple[bytes, ...] | None = None) -> None:
        """Nowhere."""


async def topic_of(entries: int, mixed: bool, step: int = 1) -> tuple[Topic, Subscription]:
    """A topic with this many entries in ledgers of 50,000, and a replicated subscription that is owed all of them.

    :param mixed: every other entry is from another region, which with ``step`` 2 withholds every other one of its own.
    """
    scheduler, record, loop = LoopScheduler(), Record(), asyncio.get_running_loop()
    store = MemoryLedgerStore(schedule=lambda work: loop.call_soon(work))
    log = TopicLog("us", store, record, 1, LogLimits(), scheduler, CacheBudget(1 << 20))
    await log.open([], EARLIEST, {})

    def progress_log(topic: Topic) -> ProgressLog:
        return ProgressLog(store, record, 1, scheduler, lambda: replay.snapshot(topic))

    clock = HybridClock(scheduler.now_ms, "us")
    topic = Topic("t", -1, "us", "", log, progress_log, scheduler, clock, TopicLimits(), None)
    await topic.progress_log.open([])
    subscription = topic.subscribing.create_subscription("s", EARLIEST, replicated=True)
    body, last, now_ms = b"x" * 8, EARLIEST, scheduler.now_ms()
    own = (0, 1, 0, 0, now_ms, b"", body)
    for _ in range(entries // 2000):
        if not mixed:
            log.append_own([own] * 1999, lambda *_: None, [0] * 1999)
        for _ in range(999 if mixed else 0):
            log.append_own([own], lambda *_: None, [0])
            prev, last = Position(9, last.entry + step - 1), Position(9, last.entry + step)
            header = EntryHeader(FOREIGN, 0, 1, 0, 0, now_ms, now_ms, prev, "eu", last, None, None)
            log.append_foreign(header, body, lambda *_: None, 0)
        await scheduler.answer(lambda ready: log.append_own([own], lambda *_: ready(None), [0]))
    gc.collect()
    gc.freeze()
    return topic, subscription


def consumer_of(subscription: Subscription) -> Consumer:
    return Consumer(subscription, NoClient(), 0, "c", 0, 0, None, None, subscription.cursor.progress.epoch)


def rewinds(kind: str, count: int) -> Progress:
    """Rewinds, none of which covers all of an older one; if of ranges, none covers what is acknowledged here."""
    made = Progress()
    if kind == "time":
        made._layers = Layers(Layer(Stamp(1000 + n, 0, "eu"), {}, 1 + n) for n in range(count))
    else:
        ranges = ({"us": (Position(0, 2 * n), Position(0, 2 * n + 1))} for n in range(count))
        made._layers = Layers(Layer(Stamp(1000 + n, 0, "eu"), one, None) for n, one in enumerate(ranges))
    return made


async def single(kind: str, count: int, commands: int, at_once: int) -> float:
    """Microseconds of processor time per entry."""
    topic, subscription = await topic_of(max(2000, commands * at_once), mixed=False)
    if count:
        made = rewinds(kind, count)
        made.beginning = subscription.cursor.progress.beginning.bare()
        rewinding.merge(subscription.cursor, made, lambda _: None)
        assert subscription.cursor.progress.count_rewinds() == count
    consumer, first = consumer_of(subscription), topic.log.first
    places = [Position(first.ledger, entry) for entry in range(commands * at_once)]
    resent = subscription.cursor.resent
    if resent is not None:  # everything was sent since
        resent.border = EARLIEST
    best = float("inf")
    third = len(places) // 3
    for begin in range(0, 3 * third, third):
        began = time.process_time_ns()
        for at in range(begin, begin + third, at_once):
            some = places[at : at + at_once]
            await topic.scheduler.answer(partial(subscription.acknowledge, consumer, some, None))
        best = min(best, (time.process_time_ns() - began) / 1000 / third)
    assert subscription.cursor.progress.is_acked("us", places[3 * third - 1 - third % at_once], 1 << 40)
    return best


async def cumulative(entries: int, mixed: bool) -> dict[str, float]:
    """Milliseconds: the longest turn of the loop; processor time until the receipt, and until the cursor arrives."""
    topic, subscription = await topic_of(entries, mixed)
    last, answers, longest = topic.log.last_confirmed, list[Any](), 0

    async def until(is_so: Callable[[], bool]) -> None:
        nonlocal longest
        while not is_so():
            began = time.process_time_ns()
            await asyncio.sleep(0)
            longest = max(longest, time.process_time_ns() - began)

    begin = time.process_time_ns()
    subscription.acknowledge_cumulative(consumer_of(subscription), last, None, answers.append)
    longest = time.process_time_ns() - begin
    await until(lambda: bool(answers))
    durable = time.process_time_ns() - begin
    await until(lambda: subscription.cursor.mark_delete == last)
    whole = time.process_time_ns() - begin
    assert answers == [None]
    return {name: round(ns / 1e6, 2) for name, ns in (("longest", longest), ("durable", durable), ("whole", whole))}


async def main() -> None:
    commands, entries = int(sys.argv[1]), int(sys.argv[2])
    cases = [("none", 0), ("place", LAYERS_MAX), ("place", MANY), ("time", 1), ("time", LAYERS_MAX)]
    singles = []
    for kind, count in cases:
        alone = await single(kind, count, commands, 1)
        together = await single(kind, count, commands // 20, TURN)
        singles.append({"kind": kind, "rewinds": count, "alone_us": round(alone, 1), "together_us": round(together, 2)})
    print(
        json.dumps(
            {
                "singles": singles,
                "cumulative": {
                    "own": await cumulative(entries, mixed=False),
                    "mixed": await cumulative(entries, mixed=True),
                },
                "entries": entries,
            }
        )
    )


if __name__ == "__main__":
    asyncio.run(main())
