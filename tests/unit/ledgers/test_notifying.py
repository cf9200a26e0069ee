# SPDX-License-Identifier: Apache-2.0
"""A callback that raises keeps no other from being called, in the same turn or later."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from meridian_broker.engines.memory.ledgers import MemoryDisk, MemoryLedgerStore
from meridian_broker.ledgers.chapters import CacheBudget, LogLimits
from meridian_broker.ledgers.log import TopicLog
from meridian_broker.ledgers.notifying import notify_all
from meridian_broker.ledgers.store import LedgerError
from meridian_broker.server.loop import LoopScheduler
from meridian_broker.topics.journal.changes import Kind
from meridian_broker.topics.journal.progress_log import ProgressLog
from support.worlds.topic_record import TopicRecord

ENTRY = (0, 1, 0, 0, 0, b"", b"x")


def wrong(*_: object) -> None:
    raise ValueError("a mistake")


def test_all_are_called_and_the_first_error_is_raised() -> None:
    heard: list[int] = []
    with pytest.raises(ValueError, match="a mistake") as raised:
        notify_all([heard.append, wrong, heard.append, wrong, heard.append], 1)
    assert heard == [1, 1, 1]
    assert raised.value.__notes__ == ["and another callback raised ValueError('a mistake')"]


@pytest.mark.logs_error("ValueError: a mistake")
async def test_receipts_after_a_callback_that_raised_are_delivered() -> None:
    store, scheduler = MemoryLedgerStore(MemoryDisk()), LoopScheduler()
    log = TopicLog("here", store, TopicRecord(), 1, LogLimits(), scheduler, CacheBudget(1 << 20))
    told: list[object] = []
    log.append_own([ENTRY], wrong, [0])
    log.append_own([ENTRY], lambda tokens, _: told.extend(tokens), [1])
    log.when_durable(wrong)
    log.when_durable(told.append)
    while not told:
        store.sync()
        await asyncio.sleep(0)
    assert told == [1, None]
    log.append_own([ENTRY, ENTRY], lambda tokens, _: told.extend(tokens), [2, 3])
    store.sync()
    await asyncio.sleep(0)
    assert told == [1, None, 2, 3], "the next turn goes on as usual"
    await scheduler.close()


@pytest.mark.logs_error("ValueError: a mistake")
async def test_refusals_after_a_callback_that_raised_are_delivered() -> None:
    store, scheduler = MemoryLedgerStore(MemoryDisk()), LoopScheduler()
    log = TopicLog("here", store, TopicRecord(), 1, LogLimits(), scheduler, CacheBudget(1 << 20))
    told: list[Any] = []
    store.fail_writes("no space")
    log.append_own([ENTRY], wrong, [0])
    log.append_own([ENTRY], lambda _, result: told.append(result), [1])
    while not told:
        store.sync()
        await asyncio.sleep(0)
    assert isinstance(told[0], LedgerError)
    await scheduler.close()


async def test_waiters_for_acknowledgements_are_told_after_one_that_raised() -> None:
    store, scheduler = MemoryLedgerStore(MemoryDisk()), LoopScheduler()
    log = ProgressLog(store, TopicRecord(), 1, scheduler, lambda: ())
    told: list[object] = []
    log.append(Kind.ACKED, "s", b"first", told.append)
    while not told:
        store.sync()
        await asyncio.sleep(0)
    log.append(Kind.ACKED, "s", b"second", wrong)
    log.append(Kind.ACKED, "s", b"third", told.append)
    log.when_durable(told.append)
    with pytest.raises(ValueError, match="a mistake"):
        store.sync()
    assert told == [None, None, None]
    await scheduler.close()
