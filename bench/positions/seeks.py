# SPDX-License-Identifier: Apache-2.0
"""One process that measures how long seeks and lookaheads block a broker's loop: run by ``measure.py``, prints one JSON
object.

A real topic as in ``acks.py``, with alternating entries of two regions; in one of two worlds the other region withholds
every other one of its own, so that no entry follows the one before. For each operation the longest turn of the loop,
and its processor time, in milliseconds.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Coroutine
from typing import Any

from acks import consumer_of, topic_of
from meridian_broker.positions import Position
from meridian_broker.positions.position import EARLIEST, LATEST
from meridian_broker.topics.cursors import floors, log_walks, seeking
from meridian_broker.topics.subscriptions.subscription import Subscription


async def measured(work: Coroutine[Any, Any, None]) -> dict[str, float]:
    task, longest, begin = asyncio.ensure_future(work), 0, time.process_time_ns()
    while not task.done():
        began = time.process_time_ns()
        await asyncio.sleep(0)
        longest = max(longest, time.process_time_ns() - began)
    await task
    return {"longest": round(longest / 1e6, 2), "whole": round((time.process_time_ns() - begin) / 1e6, 1)}


async def acknowledge(subscription: Subscription, position: Position) -> None:
    await subscription.topic.scheduler.answer(
        lambda ready: subscription.acknowledge(consumer_of(subscription), [position], None, lambda _: ready(None))
    )


async def report(one: Subscription) -> None:
    """The position up to which nothing is owed (R11)."""
    topic = one.topic
    await log_walks.carry_out(topic.log, topic.scheduler, floors.owed_nothing_upto(one.cursor))


async def backlog(one: Subscription) -> None:
    """The consumer statistics of a client."""
    one.backlog()


async def begin_at_the_last_entry(one: Subscription) -> None:
    """A subscription that is created there."""
    await seeking.before(one.topic.log, one.topic.region, one.topic.log.last_confirmed)


async def world(entries: int, step: int) -> dict[str, dict[str, float]]:
    """First only the last entry is acknowledged, then everything, then only the last entry again."""
    topic, one = await topic_of(entries, mixed=True, step=step)
    await acknowledge(one, topic.log.last_confirmed)
    return {
        "statistics of a consumer": await measured(backlog(one)),
        "report": await measured(report(one)),
        "begin at the last entry": await measured(begin_at_the_last_entry(one)),
        "seek to the beginning, one acknowledged": await measured(seeking.seek(one.cursor, EARLIEST)),
        "seek to the end": await measured(seeking.seek(one.cursor, LATEST)),
        "seek to the beginning, all acknowledged": await measured(seeking.seek(one.cursor, EARLIEST)),
        "seek to a time": await measured(seek_to_a_time(one)),
    }


async def seek_to_a_time(one: Subscription) -> None:
    await acknowledge(one, one.topic.log.last_confirmed)
    await seeking.seek_to_time(one.cursor, 1)


async def main() -> None:
    entries = int(sys.argv[1])
    worlds = {"in turns": await world(entries, 1), "withheld": await world(entries, 2)}
    print(json.dumps({"worlds": worlds, "entries": entries}))


if __name__ == "__main__":
    asyncio.run(main())
