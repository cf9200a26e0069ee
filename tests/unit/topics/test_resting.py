# SPDX-License-Identifier: Apache-2.0
"""An idle progress log has no ledger, loses nothing, and revives nothing, wherever its broker dies."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Any

import pytest
from meridian_broker.ledgers.labels import Kind, Label
from meridian_broker.ledgers.store import LedgerError
from meridian_broker.metadata.store import MetadataUnavailable
from meridian_broker.positions import Cause
from meridian_broker.topics.cursors import drops
from meridian_broker.topics.journal.changes import Kind as Change
from meridian_broker.topics.journal.progress_log import REST_BYTES, REST_MS
from support.worlds.topic_of_one_region import Region, region


async def idle(**flags: bool) -> Region:
    """A topic with subscriptions, acknowledgements, a drop and a deleted subscription, unchanged for a long time."""
    one = await region(rests=True, gone=True, local=False, shared=True, **flags)
    await one.ack("local", [0, 1, 4], 10)
    await one.ack("shared", [2, 3], 20)
    await drops.drop_upto(one.topic, [one.topic.subscriptions["local"].cursor], Cause.TTL, one.stored[6])
    one.topic.subscription_registry.delete("gone")
    await one.settle()
    one.scheduler.ms += REST_MS
    return one


def progress_ledgers(one: Region) -> set[int]:
    """The progress ledgers on disk."""
    return {number for number, found in one.disk.ledgers.items() if Label.decode(found.label).kind is Kind.PROGRESS}


def may_rest(one: Region) -> bool:
    return one.topic.progress_log.may_rest


def begin(one: Region) -> asyncio.Task[None]:
    one.scheduler.spawn(one.topic.progress_log.rest(), "rest")
    (task,) = one.scheduler._tasks
    return task


async def test_a_topic_that_does_not_change_has_no_progress_ledger() -> None:
    one = await idle()
    before = one.state()
    assert len(progress_ledgers(one)) == 1
    assert may_rest(one)
    await one.topic.progress_log.rest()
    assert (one.record.progress, progress_ledgers(one)) == ([], set())
    assert not may_rest(one), "there is no space to free"
    await one.kill()
    await one.start()
    assert one.state() == before
    assert progress_ledgers(one) == set(), "opening a topic creates none"


async def test_an_unloaded_topic_is_put_to_rest_at_once_and_one_handed_over_is_not() -> None:
    one = await idle()
    before = one.state()
    await one.topic.close("to the next owner")
    assert len(progress_ledgers(one)) == 1
    await one.start()
    assert one.state() == before
    await one.topic.close("unloaded", to_rest=True)
    assert (one.record.progress, progress_ledgers(one)) == ([], set())
    await one.start()
    assert one.state() == before


async def test_a_topic_that_changes_now_and_then_keeps_its_ledger() -> None:
    one = await idle()
    await one.ack("shared", [5], 30)
    one.scheduler.ms += REST_MS - 1
    assert not may_rest(one)


async def test_a_log_at_rest_goes_on_with_the_next_change() -> None:
    one = await idle()
    for number in (5, 7, 8):
        await one.topic.progress_log.rest()
        await one.ack("shared", [number], 30)
        assert len(progress_ledgers(one)) == 1
        assert one.record.snapshot is None, "the ledger begins with its own snapshot"
        before = one.state()
        await one.kill()
        await one.start()
        assert one.state() == before


async def test_wherever_its_broker_dies_on_the_way_to_rest_nothing_is_lost() -> None:
    for turns in count():
        one = await idle()
        before, resting = one.state(), begin(one)
        for _ in range(turns):
            await asyncio.sleep(0)
        is_over = resting.done()
        await one.kill()
        await one.start()
        assert one.state() == before, f"ended after {turns} turns"
        named = set(one.record.progress)
        assert named <= progress_ledgers(one), "every recorded ledger can be fenced"
        await one.ack("shared", [5], 40)
        await one.kill()
        await one.start()
        assert one.state()["shared"] != before["shared"]
        assert one.state()["local"] == before["local"]
        if is_over:
            break
    assert turns > 3


async def test_wherever_its_broker_dies_when_a_resting_log_changes_nothing_confirmed_is_lost() -> None:
    for turns in count():
        one, told = await idle(), list[LedgerError | None]()
        await one.topic.progress_log.rest()
        before = one.state()
        one.acknowledge("shared", [5])
        one.topic.subscriptions["shared"].cursor.flush()
        one.topic.progress_log.when_durable(told.append)
        after = one.state()
        for _ in range(turns):
            await asyncio.sleep(0)
        is_over = not one.scheduler._tasks
        await one.kill()
        await one.start()
        assert one.state() in ([after] if told == [None] else [before, after]), f"ended after {turns} turns"
        if is_over:
            break
    assert turns > 5


async def test_changes_on_the_way_to_rest_are_written_after_it() -> None:
    for turns in range(8):
        one, told = await idle(), list[LedgerError | None]()
        resting = begin(one)
        for _ in range(turns):
            await asyncio.sleep(0)
        one.acknowledge("shared", [5])
        one.topic.subscriptions["shared"].cursor.flush()
        one.topic.progress_log.when_durable(told.append)
        after = one.state()
        await resting
        await one.settle()
        assert told == [None]
        await one.kill()
        await one.start()
        assert one.state() == after


async def test_a_large_snapshot_stays_in_its_ledger_and_is_not_rewritten_repeatedly() -> None:
    one = await idle(**{"x" * 200 + str(number): False for number in range(REST_BYTES // 200)})
    assert may_rest(one)
    await one.topic.progress_log.rest()
    assert len(one.record.progress) == 1
    assert one.record.snapshot is None
    assert not may_rest(one), "not before it has changed"
    await one.ack("shared", [5], 30)
    assert len(one.record.progress) == 1, "the same ledger goes on"
    one.scheduler.ms += REST_MS
    assert may_rest(one)


@pytest.mark.parametrize("writes", [0, 1])
async def test_a_topic_goes_on_although_its_record_cannot_be_written(
    writes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await idle()
    save, left = one.record.save_progress_ledgers, [None] * writes

    async def refuse(ledgers: list[int], snapshot: tuple[bytes, ...] | None = None) -> None:
        if not left:
            raise MetadataUnavailable("away")
        left.pop()
        await save(ledgers, snapshot)

    with monkeypatch.context() as away:
        away.setattr(one.record, "save_progress_ledgers", refuse)
        with pytest.raises(MetadataUnavailable):
            await one.topic.progress_log.rest()
        ledgers = list(one.record.progress)
        if not writes:
            await one.ack("shared", [7], 30)
            assert one.topic.failure is None, "the ledger still takes changes while the metadata store is unavailable"
    assert one.record.progress == ledgers
    await one.ack("shared", [5], 30)
    before = one.state()
    await one.kill()
    await one.start()
    assert one.state() == before


@pytest.mark.logs_error("the disk damaged")
async def test_a_ledger_deleted_since_the_metadata_backup_is_not_an_empty_log() -> None:
    """Restored metadata names ledgers whose entries bookies have deleted."""
    one = await idle()
    copy = list(one.record.progress), one.record.snapshot
    await one.kill()
    for number in copy[0]:
        one.disk.ledgers[number].entries.clear()
    one.record.progress, one.record.snapshot = copy
    await one.start()
    assert one.topic.subscription_registry.lost_records.in_doubt, "a subscription may be missing: nothing is trimmed"


async def test_the_very_first_ledger_may_be_empty() -> None:
    """A broker that dies before it has written anything to it leaves no doubt behind."""
    for turns in count():
        one = await region(rests=True)
        one.topic.progress_log._roll()
        for _ in range(turns):
            await asyncio.sleep(0)
        is_over = not one.scheduler._tasks
        await one.kill()
        await one.start()
        assert not one.topic.subscription_registry.lost_records.in_doubt, f"ended after {turns} turns"
        if is_over:
            break


async def test_a_disk_failure_while_a_log_is_put_to_rest_fails_its_topic() -> None:
    one, told = await idle(), list[LedgerError | None]()
    store: Any = one.topic.progress_log._chain._store
    one.topic.progress_log.append(Change.VOTES, "shared", b"{}", told.append)
    store.fail_writes("no disk")
    with pytest.raises(LedgerError, match="no disk"):
        await one.topic.progress_log.rest()
    assert one.topic.failure is not None
    assert len(one.record.progress) == 1
