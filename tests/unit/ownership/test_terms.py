# SPDX-License-Identifier: Apache-2.0
"""Terms of ownership: the documented table matches the code, and nothing is served outside a term."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from meridian_broker.ownership import terms
from meridian_broker.ownership.bundles import Bundle
from meridian_broker.ownership.terms import TRANSITIONS, Action, Event, State, Term, Terms
from support.checkout import printed_tables

ONE = Bundle("t/n", 0, 100)
OURS = {State.OWNED, State.GIVING_UP}


def test_the_documented_transitions_are_those_of_the_code() -> None:
    assert printed_tables.transitions(terms.__doc__, State, Event, Action) == TRANSITIONS


def test_ownership_ends_in_an_orderly_close_or_in_a_drop() -> None:
    for (before, event), (after, action) in TRANSITIONS.items():
        assert (before not in OURS and after in OURS) == (action is Action.SERVE)
        if before in OURS and after not in OURS:
            assert action is (Action.DROP if event is Event.ENDED else Action.RELEASE)
    assert all((state, Event.ENDED) in TRANSITIONS for state in State if state not in (State.FREE, State.LOST))


def test_a_record_is_only_removed_by_the_broker_that_still_owns_the_bundle() -> None:
    assert [before for (before, _), (_, action) in TRANSITIONS.items() if action is Action.RELEASE] == [State.GIVING_UP]


@settings(max_examples=500)
@given(st.lists(st.sampled_from(Event), max_size=12))
def test_topics_are_opened_only_in_a_term(events: list[Event]) -> None:
    held = Terms()
    for fence, event in enumerate(events):
        before = held.state(ONE)
        begins = TRANSITIONS.get((before, event), (None, None))[1] is Action.SERVE
        held.happens(ONE, event, Term(fence, 7) if begins else None)
        state = held.state(ONE)
        assert (held.term(ONE) is not None) == (state is State.OWNED)
        assert (held.held(ONE) is not None) == (state in OURS)
        assert list(held) == ([] if state is State.FREE else [ONE])


def test_a_past_term_is_not_taken_for_a_new_one() -> None:
    """The watch may report it late."""
    held = Terms()
    assert not held.is_over(ONE, 5)
    held.happens(ONE, Event.GIVEN, Term(5, 1))
    assert not held.is_over(ONE, 5)
    held.happens(ONE, Event.GIVE_UP)
    held.happens(ONE, Event.CLOSED)
    assert [held.is_over(ONE, fence) for fence in (4, 5, 6)] == [True, True, False]


def test_the_parts_of_a_split_bundle_go_on_in_its_term() -> None:
    held = Terms()
    held.happens(ONE, Event.WANTED)
    held.happens(ONE, Event.GRANTED, Term(5, 1))
    parts = [Bundle("t/n", 0, 50), Bundle("t/n", 50, 100)]
    held.split(ONE, parts, 2)
    assert held.state(ONE) is State.FREE
    assert [held.term(part) for part in parts] == [Term(5, 2)] * 2
