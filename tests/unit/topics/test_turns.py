# SPDX-License-Identifier: Apache-2.0
"""Work that waits for the next loop turn: done in order, once, unharmed by one that fails."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from meridian_broker.topics.turns import FIRST_WAIT_MS, LOOK_EVERY, TURN_MS, Turns


class Loop:
    """The scheduler's next turn."""

    def __init__(self) -> None:
        self.soon: list[Callable[[], None]] = []
        self.now_ms = 0

    def monotonic_ms(self) -> int:
        return self.now_ms

    def defer(self, callback: Callable[[], None]) -> None:
        self.soon.append(callback)

    def turn(self) -> list[Exception]:
        """Run what is due; as a loop does, a failure ends nothing else."""
        due, self.soon, failures = self.soon, [], list[Exception]()
        for callback in due:
            try:
                callback()
            except Exception as error:
                failures.append(error)
        return failures


class One:
    def __init__(self, number: int, done: list[int], after: Callable[[], None] | None = None) -> None:
        self.number, self.done, self.after = number, done, after

    def next_turn(self) -> None:
        self.done.append(self.number)
        if self.after is not None:
            self.after()


def turns() -> tuple[Turns, Loop]:
    loop: Any = Loop()
    return Turns(loop), loop


@given(st.lists(st.sampled_from(("add", "turn")), max_size=40))
def test_each_is_called_once_in_the_next_turn_and_in_order(steps: list[str]) -> None:
    waiting, loop = turns()
    done: list[int] = []
    added = 0
    for step in steps:
        if step == "add":
            waiting.add(One(added, done))
            added += 1
            assert len(loop.soon) == 1
        else:
            loop.turn()
            assert done == list(range(added))


def test_asking_again_means_another_turn() -> None:
    waiting, loop = turns()
    done: list[int] = []
    again = One(2, done)
    waiting.add(One(1, done, lambda: waiting.add(again)))
    loop.turn()
    assert done == [1]
    loop.turn()
    assert done == [1, 2]


@example(took=[TURN_MS] * 8 * LOOK_EVERY, asks_again=True)
@given(took=st.lists(st.integers(0, 2 * TURN_MS), max_size=8 * LOOK_EVERY), asks_again=st.booleans())
def test_the_loop_does_other_work_if_a_turn_takes_long(took: list[int], asks_again: bool) -> None:
    waiting, loop = turns()
    done: list[int] = []
    turn_ms: list[int] = []

    def takes(number: int) -> None:
        loop.now_ms += took[number]
        if asks_again and not number:
            waiting.add(One(len(took), done))

    for number in range(len(took)):
        waiting.add(One(number, done, partial(takes, number)))
    while loop.soon:
        assert len(loop.soon) == 1
        began = loop.now_ms
        loop.turn()
        turn_ms.append(loop.now_ms - began)
    assert done == list(range(len(took) + (asks_again and bool(took)))), "each once, and in order"
    assert all(one < TURN_MS + 2 * TURN_MS * LOOK_EVERY for one in turn_ms)


def test_a_first_in_line_request_runs_before_earlier_ones() -> None:
    waiting, loop = turns()
    done: list[int] = []
    for number, add in enumerate((waiting.add, waiting.add_first, waiting.add, waiting.add_first)):
        add(One(number, done))
    assert len(loop.soon) == 1
    loop.turn()
    assert done == [1, 3, 0, 2]
    waiting.add_first(One(4, done))
    waiting.add(One(5, done))
    assert len(loop.soon) == 1
    loop.turn()
    assert done[4:] == [4, 5]


def test_a_turn_under_way_goes_on_before_a_later_first_in_line_request() -> None:
    waiting, loop = turns()
    done: list[int] = []

    def takes_long() -> None:
        loop.now_ms += TURN_MS

    for number in range(LOOK_EVERY + 1):
        waiting.add(One(number, done, takes_long))
    loop.turn()
    assert done == list(range(LOOK_EVERY))
    waiting.add(One(-2, done))
    waiting.add_first(One(-1, done))
    loop.turn()
    assert done[LOOK_EVERY:] == [LOOK_EVERY]
    loop.turn()
    assert done[LOOK_EVERY + 1 :] == [-1, -2]
    assert not loop.soon


def test_a_first_in_line_request_does_not_wait_long_for_a_turn_under_way() -> None:
    waiting, loop = turns()
    done: list[int] = []

    def takes_long() -> None:
        loop.now_ms += TURN_MS

    for number in range(LOOK_EVERY * FIRST_WAIT_MS):
        waiting.add(One(number, done, takes_long))
    loop.turn()
    waiting.add_first(One(-1, done))
    asked_ms = loop.now_ms
    while -1 not in done:
        assert loop.now_ms - asked_ms <= FIRST_WAIT_MS + TURN_MS * LOOK_EVERY
        loop.turn()
    while loop.soon:
        loop.turn()
    assert [one for one in done if one >= 0] == list(range(LOOK_EVERY * FIRST_WAIT_MS)), "each once, and in order"


@pytest.mark.parametrize("failing", [{0}, {2}, {4}, {0, 1, 4}, {0, 1, 2, 3, 4}])
def test_one_that_fails_is_reported_and_the_others_go_on(failing: set[int]) -> None:
    waiting, loop = turns()
    done: list[int] = []

    def fail() -> None:
        raise ZeroDivisionError

    for number in range(5):
        waiting.add(One(number, done, fail if number in failing else None))
    failures = list[Exception]()
    while loop.soon:
        failures += loop.turn()
    assert done == [0, 1, 2, 3, 4]
    assert len(failures) == len(failing)
