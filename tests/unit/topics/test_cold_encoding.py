# SPDX-License-Identifier: Apache-2.0
"""Whose acknowledgements are packed, and when: all within two rounds, a bounded number a second."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from meridian_broker.positions import ZERO, Position, Progress
from meridian_broker.topics.service.cold_encoding import ROUND_SECONDS, VISITS, ColdEncoding


class Watched(Progress):
    """Counts visits."""

    def __init__(self) -> None:
        super().__init__()
        self.visits = 0

    def cool(self, like: Progress | None = None) -> None:
        self.visits += 1
        super().cool(like)


def service(*sizes: int) -> tuple[Any, list[Watched]]:
    """Topics with these numbers of subscriptions."""
    made = [[Watched() for _ in range(size)] for size in sizes]
    topics = {
        f"t{number}": SimpleNamespace(
            subscriptions={
                f"s{n}": SimpleNamespace(cursor=SimpleNamespace(progress=one, first_hand=None, dropped=None))
                for n, one in enumerate(progress)
            }
        )
        for number, progress in enumerate(made)
    }
    return topics, [one for progress in made for one in progress]


@pytest.mark.parametrize("sizes", [(1,), (3, 0, 1), (2,) * (ROUND_SECONDS + 7), (VISITS // 2 + 1,) * 5, (7,) * 20_000])
def test_every_subscription_gets_its_turn_and_the_work_per_second_is_bounded(sizes: tuple[int, ...]) -> None:
    broker, progress = service(*sizes)
    cooling, before = ColdEncoding(), 0
    seconds = max(2 * ROUND_SECONDS, 2 * sum(sizes) // VISITS)
    for _ in range(seconds):
        cooling.look(broker)
        now = sum(one.visits for one in progress)
        assert now - before < VISITS + max(sizes)
        before = now
    assert min(one.visits for one in progress) >= 1
    assert max(one.visits for one in progress) <= 2


def test_what_did_not_change_for_two_rounds_is_cold() -> None:
    broker, (progress,) = service(1)
    for entry in range(0, 200, 2):
        progress.ack(ZERO, "us", Position(7, entry), Position(7, entry + 1))
    cooling, seconds = ColdEncoding(), 0
    acks = progress.acks(ZERO, "us")
    assert acks is not None
    while acks._cold is None:
        cooling.look(broker)
        seconds += 1
    assert seconds == 2 * ROUND_SECONDS
