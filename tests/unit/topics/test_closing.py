# SPDX-License-Identifier: Apache-2.0
"""A clean close loses nothing received before it, and does not wait forever."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from meridian_broker.engines.memory.ledgers import MemoryReader
from meridian_broker.ledgers import under_way
from meridian_broker.ledgers.store import LedgerError, LedgerNotFound
from meridian_broker.topics.dispatch.consumer import Consumer
from meridian_broker.topics.dispatch.types import EXCLUSIVE
from meridian_broker.topics.subscriptions import closing
from meridian_broker.topics.subscriptions.administration import NoClient
from support.worlds.topic_of_one_region import BEGAN_MS, Region, region


class SlowDisk:
    """Reads wait until the test lets them proceed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked = asyncio.Event()
        self.ready = asyncio.Event()
        self.refusal: Exception | None = None
        read = MemoryReader.read

        async def slow(reader: MemoryReader, first: int, last: int, max_bytes: int) -> list[bytes]:
            self.asked.set()
            await self.ready.wait()
            if self.refusal is not None:
                raise self.refusal
            return await read(reader, first, last, max_bytes)

        monkeypatch.setattr(MemoryReader, "read", slow)


async def started_again(one: Region) -> None:
    """A restarted topic: of its three ledgers, only the last one's index is in memory."""
    await one.topic.close("test")
    await one.start()
    await one.settle()


def single(one: Region, done: Callable[[LedgerError | None], None] | None = None) -> list[int]:
    sub = one.topic.subscriptions["sub"]
    nobody = Consumer(sub, NoClient(), 0, "", 0, BEGAN_MS, None, None, sub.cursor.progress.epoch)
    sub.acknowledge(nobody, [one.stored[1], one.stored[6]], None, done)
    return [1, 6]


def cumulative(one: Region, done: Callable[[LedgerError | None], None] | None = None) -> list[int]:
    sub = one.topic.subscriptions["sub"]
    sub.type = EXCLUSIVE
    nobody = Consumer(sub, NoClient(), 0, "", 0, BEGAN_MS, None, None, sub.cursor.progress.epoch)
    sub.acknowledge_cumulative(nobody, one.stored[7], None, done)
    return list(range(8))


def acked(one: Region) -> list[int]:
    progress = one.topic.subscriptions["sub"].cursor.progress
    return [number for number, place in enumerate(one.stored) if progress.is_acked("us", place)]


async def test_the_first_acknowledgements_are_in_the_ledger_created_for_them() -> None:
    one = await region(sub=False)
    await started_again(one)
    one.acknowledge("sub", [10])
    one.topic.subscriptions["sub"].cursor.flush()
    closing = asyncio.ensure_future(one.topic.close("test"))
    one.acknowledge("sub", [11])
    await closing
    await one.start()
    assert acked(one) == [10, 11]


async def test_no_roll_over_is_in_progress_after_a_close() -> None:
    one = await region(sub=False)
    one.topic.progress_log._roll()
    await one.topic.close("test")
    assert one.record.progress == one.topic.progress_log.ledgers
    assert len(one.record.progress) == 1
    assert one.scheduler._tasks == set()


@pytest.mark.parametrize("acknowledge", [single, cumulative])
async def test_a_close_waits_for_look_ups_of_entries(
    monkeypatch: pytest.MonkeyPatch, acknowledge: Callable[[Region], list[int]]
) -> None:
    one = await region(sub=False)
    await started_again(one)
    disk = SlowDisk(monkeypatch)
    wanted = acknowledge(one)
    await disk.asked.wait()
    closing = asyncio.ensure_future(one.topic.close("test"))
    await asyncio.sleep(0)
    disk.ready.set()
    await closing
    await one.start()
    assert acked(one) == wanted


@pytest.mark.parametrize("acknowledge", [single, cumulative])
async def test_a_consumer_that_leaves_is_told_once_its_acknowledgements_are_durable(
    monkeypatch: pytest.MonkeyPatch, acknowledge: Callable[[Region], list[int]]
) -> None:
    one = await region(sub=False)
    await started_again(one)
    disk = SlowDisk(monkeypatch)
    wanted = acknowledge(one)
    sub = one.topic.subscriptions["sub"]
    left: list[LedgerError | None] = []
    closing.leave(Consumer(sub, NoClient(), 0, "", 0, BEGAN_MS, None, None, sub.cursor.progress.epoch), left.append)
    await disk.asked.wait()
    assert left == []
    disk.ready.set()
    await one.settle()
    assert left == [None]
    store: Any = one.topic.progress_log._chain._store
    store.crash()
    await one.start()
    assert acked(one) == wanted


@pytest.mark.parametrize("acknowledge", [single, cumulative])
@pytest.mark.parametrize("refusal", [LedgerError("unreadable"), OSError(5, "Input/output error")])
@pytest.mark.logs_error("Input/output error")
async def test_acknowledging_what_cannot_be_read_gets_an_error(
    monkeypatch: pytest.MonkeyPatch, acknowledge: Callable[..., list[int]], refusal: Exception
) -> None:
    one = await region(sub=False)
    await started_again(one)
    disk = SlowDisk(monkeypatch)
    disk.refusal = refusal
    told: list[LedgerError | None] = []
    acknowledge(one, told.append)
    sub = one.topic.subscriptions["sub"]
    closing.leave(Consumer(sub, NoClient(), 0, "", 0, BEGAN_MS, None, None, sub.cursor.progress.epoch), told.append)
    disk.ready.set()
    await one.settle()
    assert [str(refusal) in str(error) for error in told] == [True, True]
    await one.topic.close("test")


async def test_acknowledgements_count_although_one_ledger_was_trimmed_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = await region(sub=False)
    await started_again(one)
    disk = SlowDisk(monkeypatch)
    single(one)
    await disk.asked.wait()
    del one.topic.log._chapters[1], one.topic.log._ids[1]
    disk.refusal = LedgerNotFound("it was deleted")
    monkeypatch.undo()
    disk.ready.set()
    await one.settle()
    assert acked(one) == [1]


async def test_a_hanging_disk_does_not_keep_a_topic_open(monkeypatch: pytest.MonkeyPatch) -> None:
    one = await region(sub=False)
    await started_again(one)
    SlowDisk(monkeypatch)
    single(one)
    monkeypatch.setattr(under_way, "PATIENCE_SECONDS", 0.01)
    await one.topic.close("test")
    monkeypatch.undo()
    await one.start()
    assert acked(one) == []


async def test_a_hanging_metadata_store_does_not_keep_a_topic_open(monkeypatch: pytest.MonkeyPatch) -> None:
    one = await region(sub=False)
    await started_again(one)

    async def hang(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(one.record, "save_progress_ledgers", hang)
    told: list[LedgerError | None] = []
    single(one, told.append)
    await asyncio.sleep(0)
    monkeypatch.setattr(under_way, "PATIENCE_SECONDS", 0.01)
    await one.topic.close("test")
    await asyncio.sleep(0)
    assert [type(error) for error in told] == [LedgerError]
