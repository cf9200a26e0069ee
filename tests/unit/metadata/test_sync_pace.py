# SPDX-License-Identifier: Apache-2.0
"""When a region sends what was written: soon, but less often the longer sending takes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meridian_broker.metadata.sync.pace import (
    AVERAGED,
    GATHER_SECONDS,
    PAUSE_SECONDS,
    PAUSE_SECONDS_MAX,
    PAUSE_SHARE,
    Pace,
)

NOW = 0.0


def after(*took: float) -> Pace:
    """Messages were sent, each of which took this long, the last one until now."""
    pace = Pace()
    for seconds in took:
        pace.sent(NOW - seconds, NOW)
    return pace


def test_the_first_write_is_sent_once_its_writer_has_the_answer() -> None:
    assert Pace().wait(NOW) == GATHER_SECONDS


def test_a_write_after_a_pause_does_not_wait_for_another_one() -> None:
    assert after(0.001).wait(NOW + 1) == GATHER_SECONDS


@given(st.floats(0, 60))
def test_a_region_in_which_sending_takes_long_sends_less_often(took: float) -> None:
    pause = after(*[took] * 10 * AVERAGED).wait(NOW)
    assert PAUSE_SECONDS <= pause <= PAUSE_SECONDS_MAX
    assert pause == pytest.approx(min(max(PAUSE_SECONDS, PAUSE_SHARE * took), PAUSE_SECONDS_MAX), rel=0.01)


def test_one_slow_message_does_not_delay_the_next_ones_much() -> None:
    assert after(*[0.001] * AVERAGED, PAUSE_SECONDS_MAX).wait(NOW) < 2 * PAUSE_SECONDS
