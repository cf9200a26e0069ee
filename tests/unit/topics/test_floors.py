# SPDX-License-Identifier: Apache-2.0
"""Reports of what is owed nowhere: known in memory before they are written, sent once they are durable (R11, R60)."""

from __future__ import annotations

import asyncio
from typing import Any

from meridian_broker.positions import Cause, Progress
from meridian_broker.topics.cursors import drops, floors
from meridian_broker.topics.journal.changes import Kind
from meridian_broker.topics.journal.subscription_snapshot import Whole
from meridian_broker.topics.lifecycle import replay
from support.worlds.topic_of_one_region import Region, region


class Exchange:
    """Records what may be sent, when it may be."""

    def __init__(self) -> None:
        self.told: list[Progress] = []

    def local_change(self, _topic: str, _name: str, delta: Progress, durable: Any, **_: Any) -> None:
        durable(lambda error: self.told.append(delta) if error is None else None)


async def dropped_somewhere() -> tuple[Region, Exchange]:
    one, exchange = await region(sub=True), Exchange()
    await one.ack("sub", [0], 10)
    await drops.drop_upto(one.topic, [one.topic.subscriptions["sub"].cursor], Cause.TTL, one.stored[4])
    await one.settle()
    one.topic.regions = lambda: frozenset({"us", "eu"})
    one.topic.exchange = exchange  # type: ignore[assignment]
    return one, exchange


def hold(one: Region) -> Any:
    """Writes reach the disk only when the test says so."""
    store: Any = one.topic.progress_log._chain._store
    store._schedule = None
    return store


async def test_a_report_not_on_disk_yet_is_in_a_snapshot_and_sent_to_nobody() -> None:
    one, exchange = await dropped_somewhere()
    store = hold(one)
    await floors._report(one.topic.subscriptions["sub"].cursor)
    written = {name: Whole.decode(payload) for kind, name, payload in replay.snapshot(one.topic) if kind == Kind.WHOLE}
    assert Progress.decode(written["sub"].progress).reports.keys() == {"us"}
    assert exchange.told == []
    store.sync()
    assert [delta.reports.keys() for delta in exchange.told] == [{"us"}]


async def test_a_sent_report_survives_a_roll_over_and_a_crash() -> None:
    one, exchange = await dropped_somewhere()
    log, save = one.topic.progress_log, one.record.save_progress_ledgers

    async def slow(ledgers: list[int], snapshot: tuple[bytes, ...] | None = None) -> None:
        """A report arrives while the new ledger is being recorded, and its write takes longer than that."""
        if len(ledgers) == 2 and not one.topic.subscriptions["sub"].cursor.progress.reports:
            hold(one)
            await floors._report(one.topic.subscriptions["sub"].cursor)
        await save(ledgers, snapshot)

    one.record.save_progress_ledgers = slow  # type: ignore[method-assign]
    log._roll()
    store: Any = log._chain._store
    while not exchange.told:
        await asyncio.sleep(0)
        store.sync()
    while not log._rolls.is_idle:
        await asyncio.sleep(0)
        store.sync()
    store.crash()
    await one.start()
    assert one.topic.subscriptions["sub"].cursor.progress.reports.keys() == {"us"}
