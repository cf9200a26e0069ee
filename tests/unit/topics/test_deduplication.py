# SPDX-License-Identifier: Apache-2.0
"""Deduplication is reported as on or off once that is on disk: producers then rely on it."""

from __future__ import annotations

import asyncio

import pytest
from meridian_broker.ledgers.store import LedgerError
from support.worlds.topic_record import TopicRecord
from support.worlds.topic_world import TopicWorld


class Slow(TopicRecord):
    """Another log's state, in a store that is slow to say where the next ledger goes."""

    def __init__(self, before: TopicRecord) -> None:
        vars(self).update(vars(before))
        self.asked, self.goes_on = asyncio.Event(), asyncio.Event()
        self.is_broken = False

    async def allocate_ledger_id(self) -> int:
        self.asked.set()
        await self.goes_on.wait()
        if self.is_broken:
            raise LedgerError("no space left")
        return await super().allocate_ledger_id()


async def opened_again() -> tuple[TopicWorld, Slow]:
    """Its progress log has had nothing to write since, so it has no ledger yet."""
    world = TopicWorld()
    await world.open()
    world.record = record = Slow(world.record)
    await world._open_topic()
    return world, record


async def test_a_switch_is_reported_once_it_is_durable() -> None:
    world, record = await opened_again()
    known = world.topic.deduplication
    assert known.status == "Disabled"
    known.follow(True)
    assert known.enabled, "producers are checked from now on"
    assert known.status == "Recovering"
    record.goes_on.set()
    await world.settle()
    assert known.status == "Enabled"
    known.follow(False)
    assert known.status == "Removing"
    await world.settle()
    assert known.status == "Disabled"


async def test_only_the_last_switch_counts() -> None:
    """Ids started over while it was off: after a crash they must not be compared with earlier ones."""
    world, record = await opened_again()
    record.goes_on.set()
    known = world.topic.deduplication
    known.follow(True)
    written = world.topic.progress_log
    await world.settle()
    assert known.status == "Enabled"
    asked = written._asked
    for wanted in (False, True):
        known.follow(wanted)
    seen = []
    while written._finished < asked + 2:
        seen.append((written._finished - asked, known.status))
        await asyncio.sleep(0)
    assert {status for _, status in seen} == {"Recovering"}
    assert known.status == "Enabled"


@pytest.mark.parametrize("wanted", [True, False])
async def test_a_topic_is_opened_once_the_switch_is_durable(wanted: bool) -> None:
    """Its first message may come at once, and be sent again after a crash."""
    world, record = await opened_again()
    known = world.topic.deduplication
    if not wanted:
        record.goes_on.set()
        known.follow(True)
        await world.settle()
        record.goes_on.clear()
        record.asked.clear()
        await world._open_topic()
        known = world.topic.deduplication
    opening = asyncio.create_task(known.open(wanted))
    await record.asked.wait()
    assert not opening.done()
    record.goes_on.set()
    await opening
    assert known.status == ("Enabled" if wanted else "Disabled")


async def test_a_topic_whose_switch_cannot_be_written_is_not_opened() -> None:
    world, record = await opened_again()
    record.is_broken = True
    record.goes_on.set()
    with pytest.raises(LedgerError, match="no space left"):
        await world.topic.deduplication.open(True)
