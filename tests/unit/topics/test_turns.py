# SPDX-License-Identifier: Apache-2.0
"""What waits for the next turn of the loop: in order, once, and without harm from one that fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meridian_broker.topics.turns import Turns


class Loop:
    """The scheduler's next turn."""

    def __init__(self) -> None:
        self.soon: list[Callable[[], None]] = []

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


def test_who_asks_again_waits_for_another_turn() -> None:
    waiting, loop = turns()
    done: list[int] = []
    again = One(2, done)
    waiting.add(One(1, done, lambda: waiting.add(again)))
    loop.turn()
    assert done == [1]
    loop.turn()
    assert done == [1, 2]


def test_who_is_to_be_first_comes_before_those_who_asked_earlier() -> None:
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
