# SPDX-License-Identifier: Apache-2.0
"""The lease tables: their docstrings match the code, and each row is a rule of R26."""

from __future__ import annotations

from itertools import product

import pytest
from meridian_broker.replication.leases import transitions, verdicts
from meridian_broker.replication.leases.transitions import TRANSITIONS, Action, Event, State
from meridian_broker.replication.leases.verdicts import Asked, Promise, Verdict, VoterView, decide
from support.checkout import printed_tables


def test_the_documented_transitions_of_leases_are_those_of_the_code() -> None:
    assert printed_tables.transitions(transitions.__doc__, State, Event, Action) == TRANSITIONS


def test_a_stream_is_read_only_between_a_win_and_its_end() -> None:
    readable = {State.HELD, State.YIELDING}
    for (before, _), (after, action) in TRANSITIONS.items():
        assert (before not in readable and after in readable) == (action is Action.WIN)
        if before in readable and after not in readable:
            assert action in (Action.LOSE, Action.LET_GO)
    assert all((state, Event.ENDED) in TRANSITIONS and (state, Event.GIVEN_BACK) in TRANSITIONS for state in readable)


Kind = tuple[str, bool, bool]
"""Holder, released, over."""
ASKED = Asked("us#1", 5, 7, "us")
SAME = VoterView(7, "us")
KNOWN: dict[str, list[VoterView | None]] = {
    "not yet what it promised": [None],
    "other voters, or another preferred holder": [VoterView(8, "us"), VoterView(7, "eu")],
    "the same as the asker": [SAME, VoterView(7, "")],
}
PROMISES: dict[str, list[Kind | None]] = {
    "never": [None],
    "to another, who has it": [("eu#1", False, False)],
    "to another, until now": [("eu#1", False, True)],
    "to anybody, who gave it back": [("eu#1", True, True), ("us#1", True, True), ("eu#1", True, False)],
    "to the asker": [("us#1", False, False), ("us#1", False, True)],
}
TERMS = {"greater": [4, 1], "the same": [5], "less": [6, 99]}
"""The asker's term compared with the promise's -> terms of promises."""
VERDICTS = {one.name.lower().replace("_", " "): one for one in Verdict}


def promise(kind: Kind | None, term: int) -> Promise | None:
    return None if kind is None else Promise(kind[0], term, *kind[1:])


@pytest.mark.parametrize("row", printed_tables.rows(verdicts.__doc__)[1:], ids=" / ".join)
def test_a_voter_answers_as_the_documented_row_says(row: list[str]) -> None:
    known, promised, compared, verdict = row
    kinds = PROMISES[promised] if promised else [kind for each in PROMISES.values() for kind in each]
    words = [word for word in TERMS if word in compared] if compared not in ("", "any") else list(TERMS)
    terms = [term for word in words for term in TERMS[word]]
    for knows, kind, term in product(KNOWN[known], kinds, terms):
        assert decide(ASKED, knows, promise(kind, term)) is VERDICTS[verdict], (knows, kind, term)


def test_the_documented_rows_are_complete() -> None:
    told = [
        (row[1], word)
        for row in printed_tables.rows(verdicts.__doc__)[1:]
        if row[0] == "the same as the asker"
        for word in TERMS
        if row[2] == "any" or word in row[2]
    ]
    assert sorted(told) == sorted(product(PROMISES, TERMS))


def test_no_two_holders_are_promised_a_stream_at_once() -> None:
    """Whatever is asked: a node that is granted a stream held by another was promised it before, or the other released
    it, or its time has passed."""
    for term, other, released, over, knows in product(range(4, 7), ("us#1", "eu#1"), (0, 1), (0, 1), (SAME, None)):
        before = Promise(other, term, bool(released), bool(over))
        if decide(ASKED, knows, before) is Verdict.GRANTED:
            assert knows is SAME
            assert other == ASKED.holder or released or over
            assert ASKED.term > term or (other == ASKED.holder and ASKED.term == term)
