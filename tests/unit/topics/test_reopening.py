# SPDX-License-Identifier: Apache-2.0
"""How long a topic that fails stays closed."""

from __future__ import annotations

import pytest
from meridian_broker.topics.errors import TopicFenced
from meridian_broker.topics.reopening import FIRST_MS, LAST_MS, WELL_MS, Failing


def pauses(failing: Failing, count: int, now_ms: int) -> list[int]:
    """The pauses of a topic that fails whenever it is opened."""
    found = []
    for _ in range(count):
        found.append(failing.failed("t", "it cannot be read", now_ms))
        now_ms += found[-1] + 1
    return found


def test_the_first_failure_causes_no_pause_and_each_later_one_twice_the_last() -> None:
    found = pauses(Failing(), 2000, now_ms=5)
    assert found[:5] == [0, FIRST_MS, 2 * FIRST_MS, 4 * FIRST_MS, 8 * FIRST_MS]
    assert set(found[9:]) == {LAST_MS}


def test_a_topic_that_stayed_open_for_a_while_starts_over() -> None:
    failing = Failing()
    opens_ms = sum(pauses(failing, 4, now_ms=0)) + 3
    assert failing.failed("t", "again", opens_ms + WELL_MS - 1) == 8 * FIRST_MS
    opens_ms += WELL_MS - 1 + 8 * FIRST_MS
    assert failing.failed("t", "again", opens_ms + WELL_MS) == 0


def test_a_request_during_a_pause_is_told_why_and_for_how_long() -> None:
    failing = Failing()
    pauses(failing, 5, now_ms=0)
    (one,) = failing.all(now_ms=one_before(failing))
    with pytest.raises(TopicFenced, match=r"t failed 5 times .*it cannot be read.* will be opened again in 0\.4 s"):
        failing.check("t", one.opens_ms - 400)
    failing.check("t", one.opens_ms)
    failing.check("other", 0)


def one_before(failing: Failing) -> int:
    return failing.all(now_ms=0)[0].opens_ms - 1


def test_a_pause_can_be_ended_and_the_failures_still_count() -> None:
    failing = Failing()
    pauses(failing, 5, now_ms=0)
    failing.end_pause("t", 1000)
    failing.end_pause("other", 1000)
    failing.check("t", 1000)
    assert failing.failed("t", "again", 1001) == 16 * FIRST_MS


def test_a_single_failure_is_not_shown() -> None:
    failing = Failing()
    failing.failed("t", "once", 0)
    assert failing.all(now_ms=1) == []
    failing.failed("t", "twice", 10)
    assert [(one.name, one.reason, one.failures) for one in failing.all(now_ms=11)] == [("t", "twice", 2)]
    assert failing.all(now_ms=10 + FIRST_MS + WELL_MS) == []


def test_recovered_topics_are_forgotten() -> None:
    failing = Failing()
    for number in range(10_000):
        failing.failed(f"t{number}", "once", number * 100)
    assert len(failing) <= WELL_MS / 100 + 1
