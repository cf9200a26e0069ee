# SPDX-License-Identifier: Apache-2.0
"""Waiting for what is in progress: for everything begun before, for nothing begun later, and not forever."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from meridian_broker.ledgers import under_way
from meridian_broker.ledgers.store import LedgerError
from meridian_broker.ledgers.under_way import UnderWay, all_over
from meridian_broker.server.loop import LoopScheduler


def test_a_waiter_is_told_at_once_if_nothing_is_in_progress() -> None:
    work, told = UnderWay(), list[LedgerError | None]()
    work.end(work.begin())
    work.when_over(told.append)
    assert told == [None]


@settings(max_examples=500)
@given(st.lists(st.tuples(st.sampled_from(("begin", "end", "fail", "wait")), st.integers(0, 50)), max_size=40))
def test_a_waiter_is_told_once_everything_begun_before_it_has_ended(steps: list[tuple[str, int]]) -> None:
    work, begun = UnderWay(), list[int]()
    owed: list[tuple[set[int], list[LedgerError | None], list[LedgerError]]] = []
    for step, number in steps:
        if step == "begin":
            begun.append(work.begin())
        elif step == "wait":
            heard: list[LedgerError | None] = []
            owed.append((set(begun), heard, []))
            work.when_over(heard.append)
        elif begun:
            ended = begun.pop(number % len(begun))
            failure = LedgerError(f"{ended}") if step == "fail" else None
            for left, _, failures in owed:
                if ended in left and failure is not None:
                    failures.append(failure)
                left.discard(ended)
            work.end(ended, failure)
        for left, heard, failures in owed:
            assert heard == ([] if left else [failures[0] if failures else None])
        assert work.is_idle == (not begun)


async def test_a_hundred_thousand_ending_in_any_order_take_no_time() -> None:
    work, told = UnderWay(), list[LedgerError | None]()
    numbers = [work.begin() for _ in range(100_000)]
    work.when_over(told.append)
    for number in numbers[1:]:
        work.end(number)
    assert told == []
    work.end(numbers[0])
    assert told == [None]


async def test_the_wait_for_something_that_hangs_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler, quick, hanging = LoopScheduler(), UnderWay(), UnderWay()
    number = quick.begin()
    asyncio.get_running_loop().call_soon(lambda: quick.end(number))
    assert await quick.wait(scheduler)
    monkeypatch.setattr(under_way, "PATIENCE_SECONDS", 0.001)
    hanging.begin()
    assert not await all_over((quick, hanging), scheduler)
    later = hanging.begin()
    asyncio.get_running_loop().call_soon(lambda: hanging.end(later))
    assert not await hanging.wait(scheduler)
