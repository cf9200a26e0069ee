# SPDX-License-Identifier: Apache-2.0
"""What a rewound subscription remembers as redelivered: exactly what an acknowledgement may count by (R13)."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from meridian_broker.positions.position import Position
from meridian_broker.topics.cursors.resent import Resent

PLACES = [Position(ledger, entry) for ledger in (3, 7, 8) for entry in range(6)]
BORDERS = [Position(3, 2), Position(7, 0), Position(7, 5), Position(8, 3)]


@settings(max_examples=500, deadline=None)
@given(
    st.sampled_from(BORDERS),
    st.lists(st.tuples(st.sampled_from(["note", "note", "note", "copy", "pass"]), st.sampled_from(PLACES))),
)
def test_only_what_was_sent_counts(border: Position, steps: list[tuple[str, Position]]) -> None:
    resent, sent = Resent(border), set[Position]()
    copies: list[tuple[Resent, set[Position]]] = []
    for what, place in steps:
        if what == "note":
            resent.note(place)
            sent.add(place)
        elif what == "copy":
            copies.append((resent.copy(), set(sent)))
        else:
            resent.passed(place)
            if place >= border:
                sent.clear()
    for one, noted in [(resent, sent), *copies]:
        assert [p for p in PLACES if one.holds(p)] == [p for p in PLACES if p > border or p in noted]
