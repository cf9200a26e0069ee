# SPDX-License-Identifier: Apache-2.0
"""Who asks other regions for entries, and how often: a bounded number of topics a second, and each in its turn (R6)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from meridian_broker.topics.missing import LOOKS, POLLS, Missing
from meridian_broker.topics.recall import Due


class Asking:
    """What is asked of a topic here."""

    def __init__(self, due: Due) -> None:
        self._due = due
        self.looks = self.asked = 0

    def due(self) -> Due:
        self.looks += 1
        return self._due

    def start(self) -> None:
        self.asked += 1


def service(**counts: int) -> tuple[Any, list[Asking]]:
    asking = [Asking(Due[name]) for name, count in counts.items() for _ in range(count)]
    topics = {f"t{n}": SimpleNamespace(failure=None, recall=one) for n, one in enumerate(asking)}
    return SimpleNamespace(topics=topics), asking


@pytest.mark.parametrize("count", [1, 50, POLLS, POLLS + 1, 3 * POLLS, LOOKS, 2 * LOOKS + 7])
def test_polls_are_bounded_and_everybody_has_a_turn(count: int) -> None:
    broker, asking = service(POLL=count)
    missing, before = Missing(), 0
    rounds = -(-count // POLLS)
    for _ in range(2 * rounds + 1):
        missing.look(broker)
        now = sum(one.asked for one in asking)
        assert now - before <= POLLS
        before = now
    assert min(one.asked for one in asking) >= 1


def test_what_is_missing_does_not_wait_for_polls() -> None:
    broker, asking = service(POLL=3 * POLLS, NOW=50, NOT=50)
    Missing().look(broker)
    assert all(one.asked == 1 for one in asking if one._due is Due.NOW)
    assert all(one.asked == 0 for one in asking if one._due is Due.NOT)


def test_a_few_topics_are_looked_at_each_time() -> None:
    broker, asking = service(POLL=3, NOT=3)
    missing = Missing()
    for _ in range(4):
        missing.look(broker)
    assert [one.looks for one in asking] == [4] * 6
