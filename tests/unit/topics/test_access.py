# SPDX-License-Identifier: Apache-2.0
"""Access modes of producers: the whole table, and what every decision satisfies."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from meridian_broker.bounds.clients import EPOCH_LEAP
from meridian_broker.topics.publishing import access_modes
from meridian_broker.topics.publishing.access_modes import (
    VERDICTS,
    AccessMode,
    Asked,
    Company,
    Decision,
    Present,
    Verdict,
    decide,
    next_epoch,
)
from support.checkout import printed_tables

SHARED, EXCLUSIVE, WAIT, FENCING = AccessMode
EMPTY = Present(None)
SHARED_THERE = Present(4, producers=2)
EXCLUSIVE_THERE = Present(4, producers=1, exclusive=True)
COMING = Present(4, producers=0, exclusive=True)
QUEUE = Present(4, producers=1, waiting=1)

REFUSALS = {Verdict.REFUSE_SHARED, Verdict.REFUSE_TAKEN, Verdict.REFUSE_OLD}


def test_the_printed_verdicts_are_those_that_are_given() -> None:
    (_, *companies), *modes = printed_tables.rows(access_modes.__doc__)
    printed = {
        (AccessMode[mode.upper().replace(" ", "_")], Company(company)): Verdict[cell.upper().replace(" ", "_")]
        for mode, *cells in modes
        for company, cell in zip(companies, cells, strict=True)
    }
    assert printed == VERDICTS
    assert len(printed) == len(AccessMode) * len(Company)


epochs = st.none() | st.integers(0, 5)
asks = st.builds(Asked, st.sampled_from(AccessMode), epochs)
presences = st.builds(Present, epochs, st.integers(0, 3), st.booleans(), st.integers(0, 2))


@pytest.mark.parametrize(
    ("mode", "present", "verdict", "epoch"),
    [
        (SHARED, EMPTY, Verdict.SHARE, None),
        (SHARED, SHARED_THERE, Verdict.SHARE, 4),
        (SHARED, EXCLUSIVE_THERE, Verdict.REFUSE_SHARED, 4),
        (SHARED, COMING, Verdict.REFUSE_SHARED, 4),
        (SHARED, QUEUE, Verdict.REFUSE_SHARED, 4),
        (EXCLUSIVE, EMPTY, Verdict.SEIZE, 0),
        (EXCLUSIVE, Present(4), Verdict.SEIZE, 5),
        (EXCLUSIVE, SHARED_THERE, Verdict.REFUSE_TAKEN, 4),
        (EXCLUSIVE, EXCLUSIVE_THERE, Verdict.REFUSE_TAKEN, 4),
        (EXCLUSIVE, COMING, Verdict.REFUSE_TAKEN, 4),
        (EXCLUSIVE, QUEUE, Verdict.REFUSE_TAKEN, 4),
        (WAIT, EMPTY, Verdict.SEIZE, 0),
        (WAIT, SHARED_THERE, Verdict.WAIT, 4),
        (WAIT, EXCLUSIVE_THERE, Verdict.WAIT, 4),
        (WAIT, COMING, Verdict.WAIT, 4),
        (WAIT, QUEUE, Verdict.WAIT, 4),
        (FENCING, EMPTY, Verdict.SEIZE, 0),
        (FENCING, SHARED_THERE, Verdict.FENCE_OTHERS, 5),
        (FENCING, EXCLUSIVE_THERE, Verdict.FENCE_OTHERS, 5),
        (FENCING, COMING, Verdict.FENCE_OTHERS, 5),
        (FENCING, QUEUE, Verdict.FENCE_OTHERS, 5),
    ],
)
def test_each_mode_with_each_set_of_other_producers(
    mode: AccessMode, present: Present, verdict: Verdict, epoch: int | None
) -> None:
    assert decide(Asked(mode), present) == Decision(verdict, epoch)


@pytest.mark.parametrize("mode", [EXCLUSIVE, WAIT, FENCING])
def test_a_producer_that_returns_continues_only_in_the_topics_current_epoch(mode: AccessMode) -> None:
    assert decide(Asked(mode, 4), Present(4)) == Decision(Verdict.SEIZE, 4)
    assert decide(Asked(mode, 3), Present(4)) == Decision(Verdict.REFUSE_OLD, 4)
    assert decide(Asked(mode, 6), Present(4)) == Decision(Verdict.SEIZE, 6)  # a topic that lost its epoch record


@pytest.mark.parametrize("mode", [EXCLUSIVE, WAIT, FENCING])
@pytest.mark.parametrize("present", [EMPTY, Present(4)])
def test_an_epoch_beyond_any_topics_leaves_room_for_later_producers(mode: AccessMode, present: Present) -> None:
    for named in ((1 << 64) - 1, 1 << 62, 4 + EPOCH_LEAP + 1):
        _, epoch = decide(Asked(mode, named), present)
        assert epoch == (0 if present.epoch is None else 5)


def test_a_fencer_of_an_older_epoch_fences_nobody() -> None:
    assert decide(Asked(FENCING, 3), EXCLUSIVE_THERE).verdict is Verdict.REFUSE_OLD


@settings(max_examples=500)
@given(asks, presences)
def test_nobody_is_admitted_beside_an_exclusive_producer(asked: Asked, present: Present) -> None:
    verdict, epoch = decide(asked, present)
    if present.exclusive or present.producers:
        assert verdict is not Verdict.SEIZE
    if present.exclusive or present.waiting:
        assert verdict is not Verdict.SHARE
    if verdict in REFUSALS or verdict in (Verdict.SHARE, Verdict.WAIT):
        assert epoch == present.epoch
    if asked.mode in (WAIT, FENCING):
        assert verdict not in (Verdict.REFUSE_SHARED, Verdict.REFUSE_TAKEN)


@settings(max_examples=500)
@given(asks, presences)
def test_an_epoch_never_goes_back_and_two_new_producers_never_share_one(asked: Asked, present: Present) -> None:
    verdict, epoch = decide(asked, present)
    if verdict in (Verdict.SEIZE, Verdict.FENCE_OTHERS):
        before = -1 if present.epoch is None else present.epoch
        assert epoch is not None
        assert epoch >= before
        assert epoch == next_epoch(asked, present.epoch)
        if asked.topic_epoch is None:
            assert epoch == before + 1
