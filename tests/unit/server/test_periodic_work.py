# SPDX-License-Identifier: Apache-2.0
"""Periodic work survives any error of a turn, reports it once, and shows its state."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import pytest
from meridian_broker.ledgers.periodic import BACKOFF_SECONDS_MAX, PeriodicWork, SomeFailed, each
from meridian_broker.ledgers.store import LedgerError, LedgerUnreadable
from meridian_broker.server.loop import LoopScheduler


class Clock:
    """Time that passes only in pauses. After ``left`` pauses the work is cancelled."""

    def __init__(self, left: int) -> None:
        self.now = 0.0
        self.left = left
        self.pauses: list[float] = []

    async def sleep(self, seconds: float) -> None:
        if self.left == 0:
            raise asyncio.CancelledError
        self.left -= 1
        self.now += seconds
        self.pauses.append(seconds)


def work_of(clock: Clock, turn: Callable[[], object], seconds: float = 1.0) -> PeriodicWork:
    async def turned() -> None:
        turn()

    return PeriodicWork("tidy up", "it is untidy", turned, seconds, clock=lambda: clock.now, sleep=clock.sleep)


def raising(errors: list[Exception | None]) -> Callable[[], None]:
    """A turn that fails with each of these in order; with None it succeeds."""
    left = iter(errors)

    def turn() -> None:
        error = next(left)
        if error is not None:
            raise error

    return turn


async def run(work: PeriodicWork, *, at_once: bool = False) -> None:
    with pytest.raises(asyncio.CancelledError):
        await work.run(at_once=at_once)


@pytest.mark.logs_error("OSError: broken")
@pytest.mark.logs_error("a mistake")
async def test_no_error_of_a_turn_ends_the_work() -> None:
    clock = Clock(5)
    work = work_of(clock, raising([LedgerError("full"), OSError("broken"), ValueError("a mistake"), None, None]))
    await run(work)
    assert (work.state().turns, work.state().failures, work.state().problem) == (5, 3, None)


async def test_pauses_grow_to_a_limit_and_shrink_at_once() -> None:
    clock = Clock(9)
    await run(work_of(clock, raising([*[LedgerError("full")] * 7, None, None])))
    assert clock.pauses == [1.0, 2.0, 4.0, 8.0, 16.0, BACKOFF_SECONDS_MAX, BACKOFF_SECONDS_MAX, BACKOFF_SECONDS_MAX, 1]


async def test_infrequent_work_is_not_delayed_further() -> None:
    clock = Clock(3)
    await run(work_of(clock, raising([LedgerError("full")] * 3), seconds=300.0))
    assert clock.pauses == [300.0] * 3


async def test_work_that_fails_only_for_some_is_not_delayed_for_the_others() -> None:
    clock = Clock(4)
    await run(work_of(clock, raising([SomeFailed({"a": LedgerError("full")}, 2)] * 4)))
    assert clock.pauses == [1.0] * 4


async def test_a_problem_that_lasts_is_logged_once_and_its_end_too(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "meridian_broker")
    errors = [LedgerError("full"), LedgerError("full"), LedgerError("gone"), None, LedgerError("gone")]
    await run(work_of(Clock(5), raising([*errors])))
    assert [record.getMessage() for record in caplog.records] == [
        "failed to tidy up: full. Trying again; until it succeeds, it is untidy",
        "failed to tidy up: gone. Trying again; until it succeeds, it is untidy",
        "tidy up: works again",
        "failed to tidy up: gone. Trying again; until it succeeds, it is untidy",
    ]
    assert not any(record.exc_info for record in caplog.records)


@pytest.mark.logs_error("KeyError")
async def test_a_bug_is_logged_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "meridian_broker")
    await run(work_of(Clock(1), raising([SomeFailed({"a": LedgerError("full"), "b": KeyError("x")}, 9)])))
    assert caplog.records[0].exc_info is not None
    assert isinstance(caplog.records[0].exc_info[1], KeyError)


async def test_the_state_says_how_long_ago_it_succeeded() -> None:
    clock = Clock(3)
    work = work_of(clock, raising([None, LedgerError("full"), LedgerError("full")]))
    await run(work)
    state = work.state()
    assert (state.name, state.turns, state.failures, state.problem) == ("tidy up", 3, 2, "full")
    assert state.seconds_since_success == 3.0  # one second until the first failure, two until the second


async def test_the_first_turn_may_run_at_once() -> None:
    clock = Clock(0)
    work = work_of(clock, raising([None]))
    await run(work, at_once=True)
    assert work.state().turns == 1
    assert clock.pauses == []


async def test_each_gets_its_turn_whatever_happens_to_the_others() -> None:
    done: list[int] = []

    async def turn(number: int) -> None:
        if number % 2:
            raise LedgerUnreadable(f"sector {number}")
        done.append(number)

    with pytest.raises(
        SomeFailed, match=r"^5 of 10 failed: 1: sector 1; 3: sector 3; 5: sector 5; and 2 more$"
    ) as some:
        await each(LoopScheduler(), range(10), str, turn)
    assert done == [0, 2, 4, 6, 8]
    assert list(some.value.failures) == ["1", "3", "5", "7", "9"]
