# SPDX-License-Identifier: Apache-2.0
"""Ledger labels: they are read back, and anything else is refused."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from meridian_broker.ledgers.labels import Belonging, Kind, Label
from meridian_broker.positions.position import EARLIEST, Position

i64 = st.integers(-1, (1 << 63) - 1)
positions = st.builds(Position, i64, i64)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=80)
belongings = st.builds(Belonging, texts, texts)
regions = st.text("abc-é", min_size=1, max_size=20)
labels = st.one_of(
    st.builds(Label, st.just(Kind.PROGRESS), belongings),
    st.builds(Label, st.just(Kind.COMPACTED), belongings, horizon=positions),
    st.builds(
        Label,
        st.just(Kind.MESSAGES),
        belongings,
        positions,
        st.dictionaries(regions, positions, max_size=5),
        st.booleans(),
    ),
)


@settings(max_examples=500, deadline=None)
@given(labels)
def test_a_label_is_read_back(label: Label) -> None:
    assert Label.decode(label.encode()) == label


@settings(max_examples=500, deadline=None)
@given(labels, st.data())
def test_a_truncated_label_is_refused(label: Label, data: st.DataObject) -> None:
    whole = label.encode()
    with pytest.raises(ValueError, match="label"):
        Label.decode(whole[: data.draw(st.integers(0, len(whole) - 1))])


@settings(max_examples=500, deadline=None)
@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_else(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        Label.decode(b"\x01" + data)


def test_newer_labels_are_refused_with_an_explanation() -> None:
    label = Label(Kind.MESSAGES, Belonging("persistent://public/default/orders", ""), EARLIEST)
    with pytest.raises(ValueError, match=r"newer version of Meridian \(format 2, .*upgrade"):
        Label.decode(b"\x02" + label.encode()[1:])
    with pytest.raises(ValueError, match="the ledger label is damaged: it has format 0"):
        Label.decode(b"\x00" + label.encode()[1:])
