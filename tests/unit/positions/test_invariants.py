# SPDX-License-Identifier: Apache-2.0
"""What the algebra relies on is asserted: each test violates an assertion."""

from __future__ import annotations

import pytest
from meridian_broker.positions import Stamp, runset
from meridian_broker.positions.ackset import AckSet
from meridian_broker.positions.layer import Layer
from meridian_broker.positions.layers import Layers, known_of
from meridian_broker.positions.position import Position


def test_rewinds_are_in_the_order_of_their_epochs() -> None:
    early, late = (Layer(Stamp(time_ms, 0, "us"), {}, 1) for time_ms in (1, 2))
    assert list(Layers([early, late])) == [early, late]
    for wrong in ([late, early], [early, early]):
        with pytest.raises(AssertionError, match="in order of epochs"):
            Layers(wrong)


def test_foreign_bytes_out_of_order_are_refused_first() -> None:
    heads = [Layers([Layer(Stamp(time_ms, 0, "us"), {}, 1)]).heads[1:] for time_ms in (2, 1)]
    with pytest.raises(ValueError, match="not in order"):
        known_of(bytes([2]) + b"".join(heads))


def test_overlapping_spans_are_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spans across several ledgers are found by bisection."""

    def claimed() -> AckSet:
        acks = AckSet(Position(0, 0))
        acks.claim(Position(2, 0), Position(5, 3))
        acks.claim(Position(1, 4), Position(4, 0))
        return acks

    assert list(claimed().runs())[1:] == [(Position(1, 4), Position(5, 3))]
    monkeypatch.setattr(runset, "merge_runs", lambda *_: None)
    with pytest.raises(AssertionError, match="spans do not overlap"):
        claimed()


def test_nothing_is_kept_below_the_floor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runset, "advance", lambda *_: (9, 0))
    acks = AckSet(Position(0, 0))
    with pytest.raises(AssertionError, match="below the floor"):
        acks.claim(Position(2, 0), Position(5, 3))
