# SPDX-License-Identifier: Apache-2.0
"""Rates computed from counters."""

from __future__ import annotations

from meridian_broker.admin.figures import rates
from meridian_broker.admin.figures.rates import Rates


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_first_reading_gives_the_average_and_later_ones_the_growth() -> None:
    clock = Clock()
    seen = Rates(clock)
    assert seen.rate("in", 50, 10.0) == 5.0
    clock.now += 10
    assert seen.rate("in", 250, 20.0) == 20.0
    clock.now += 5
    assert seen.rate("in", 250, 25.0) == 0.0


def test_two_readings_within_a_second_give_the_same_rate() -> None:
    clock = Clock()
    seen = Rates(clock)
    seen.rate("in", 0, 1.0)
    clock.now += 2
    assert seen.rate("in", 10, 3.0) == 5.0
    clock.now += 0.1
    assert seen.rate("in", 11, 3.1) == 5.0


def test_a_counter_that_was_reset_is_measured_afresh() -> None:
    clock = Clock()
    seen = Rates(clock)
    seen.rate("in", 1000, 10.0)
    clock.now += 2
    assert seen.rate("in", 8, 2.0) == 4.0


def test_a_new_counter_has_no_huge_rate() -> None:
    assert Rates(Clock()).rate("in", 7, 0.0) == 7.0


def test_remembered_readings_are_bounded() -> None:
    clock = Clock()
    seen = Rates(clock)
    for number in range(rates.KEPT + 10):
        seen.rate(number, 1, 1.0)
    assert len(seen._seen) == rates.KEPT
