# SPDX-License-Identifier: Apache-2.0
"""Admission of other regions' entries: the whole table, and what every decision satisfies."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from meridian_broker.positions.position import Position
from meridian_broker.topics.backfill.intake import Offered, Standing, Verdict, decide

END = Position(7, 3)
OPEN = Standing(False, None, False, 1000)
FULL = Standing(False, None, True, 1000)
ENDING = Standing(True, None, False, 1000)
ENDED = Standing(True, END, False, 1000)
ENDED_AND_FULL = Standing(True, END, True, 1000)
FOREIGN, LARGE = Offered(1000), Offered(1001)
OWN, OWN_AFTER = Offered(1001, END, True), Offered(10, Position(7, 4), True)
FETCHED, FETCHED_AFTER = Offered(1001, END), Offered(10, Position(7, 4))

places = st.builds(Position, st.integers(0, 9), st.integers(0, 9))
offers = st.builds(Offered, st.integers(0, 2000), st.none() | places) | st.builds(
    Offered, st.integers(0, 2000), places, st.just(True)
)
standings = st.builds(Standing, st.booleans(), st.none() | places, st.booleans(), st.integers(0, 2000))


@pytest.mark.parametrize(
    ("offered", "standing", "verdict"),
    [
        (FOREIGN, OPEN, Verdict.STORE),
        (FOREIGN, FULL, Verdict.REFUSE_FULL),
        (FOREIGN, ENDING, Verdict.REFUSE_ENDED),
        (FOREIGN, ENDED, Verdict.REFUSE_ENDED),
        (FOREIGN, ENDED_AND_FULL, Verdict.REFUSE_ENDED),
        (LARGE, OPEN, Verdict.REFUSE_TOO_LARGE),
        (LARGE, FULL, Verdict.REFUSE_FULL),
        (LARGE, ENDED, Verdict.REFUSE_ENDED),
        (OWN, OPEN, Verdict.STORE),
        (OWN, FULL, Verdict.STORE),
        (OWN, ENDING, Verdict.REFUSE_ENDED),
        (OWN, ENDED, Verdict.STORE),
        (OWN_AFTER, ENDED, Verdict.REFUSE_ENDED),
        (FETCHED, FULL, Verdict.REFUSE_FULL),
        (FETCHED, OPEN, Verdict.REFUSE_TOO_LARGE),
        (FETCHED, ENDING, Verdict.REFUSE_ENDED),
        (FETCHED, ENDED, Verdict.STORE),
        (FETCHED, ENDED_AND_FULL, Verdict.STORE),
        (FETCHED_AFTER, ENDED, Verdict.REFUSE_ENDED),
    ],
)
def test_each_kind_of_entry_with_each_state_of_topic(offered: Offered, standing: Standing, verdict: Verdict) -> None:
    assert decide(offered, standing) is verdict


@settings(max_examples=500)
@given(offers, standings)
def test_no_foreign_entry_enters_a_terminated_or_full_topic_or_one_with_a_smaller_limit(
    offered: Offered, standing: Standing
) -> None:
    if decide(offered, standing) is not Verdict.STORE:
        return
    if standing.is_ended:
        assert offered.origin is not None and standing.end is not None and offered.origin <= standing.end
    elif not offered.is_own:
        assert not standing.is_full and offered.size <= standing.largest
