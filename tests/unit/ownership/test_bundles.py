# SPDX-License-Identifier: Apache-2.0
"""Bundles: whichever is split, each topic is in exactly one bundle, and only the split one changes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from meridian_broker.metadata.policies import MAX_BUNDLES
from meridian_broker.ownership.bundles import LAST, Bundle, Bundles, NotDivisible, place_of
from meridian_broker.wire.pulsar.topic_name import parse

PLACES = st.integers(0, LAST) | st.sampled_from([0, 1, LAST - 1, LAST])
BORDERS = st.sets(st.integers(1, LAST - 1), max_size=20).map(lambda inner: (0, *sorted(inner), LAST))
BUNDLES = BORDERS.map(lambda borders: Bundles("t/n", borders))


@settings(max_examples=500)
@given(BUNDLES, PLACES)
def test_each_hash_is_in_exactly_one_bundle(bundles: Bundles, place: int) -> None:
    assert [one for one in bundles.every() if place in one] == [bundles.at(place)]


@settings(max_examples=500)
@given(BUNDLES, st.sampled_from(["t/n", "t/n2", "t2/n"]), st.sampled_from(["", "non-"]), st.integers(0, 1000))
def test_a_full_name_tells_whether_a_topic_is_inside(
    bundles: Bundles, namespace: str, domain: str, number: int
) -> None:
    topic = parse(f"{domain}persistent://{namespace}/\u00e9-{number}")
    found = [bundle for bundle in bundles.every() if bundle.has(str(topic))]
    assert found == ([bundles.of(topic)] if namespace == "t/n" else [])
    assert not any(bundle.has(f"t/n/{number}") or bundle.has("t/n") for bundle in bundles.every())


@settings(max_examples=500)
@given(BUNDLES, PLACES, PLACES)
def test_a_split_changes_no_other_bundle(bundles: Bundles, border: int, place: int) -> None:
    bundle = bundles.at(border)
    if not bundle.lower < border < bundle.upper:
        with pytest.raises(NotDivisible):
            bundles.split(bundle, border)
        return
    after = bundles.split(bundle, border)
    assert set(after.every()) - set(bundles.every()) == {
        Bundle("t/n", bundle.lower, border),
        Bundle("t/n", border, bundle.upper),
    }
    assert after.at(place) == bundles.at(place) or (place in bundle and after.at(place).lower >= bundle.lower)


@settings(max_examples=500)
@given(BUNDLES, st.lists(PLACES, max_size=20))
def test_the_median_separates_topics_as_evenly_as_any_boundary_can(bundles: Bundles, places: list[int]) -> None:
    bundle = bundles.every()[0]
    inside = sorted(place for place in places if place in bundle)
    try:
        border = bundle.median(places)
    except NotDivisible:
        assert len({min(place, bundle.upper - 1) for place in inside}) < 2
        return
    lower, upper = bundles.split(bundle, border).every()[:2]

    def difference(low: int) -> int:
        return abs(len(inside) - 2 * low)

    in_lower = sum(place in lower for place in inside)
    assert in_lower
    assert any(place in upper for place in inside)
    possible = [sum(place < min(other, bundle.upper - 1) for place in inside) for other in inside]
    assert difference(in_lower) == min(difference(low) for low in possible if low)


@settings(max_examples=500)
@given(BUNDLES)
def test_boundaries_are_read_back_as_written(bundles: Bundles) -> None:
    assert Bundles.parse("t/n", bundles.texts()) == bundles
    assert all(bundles.named(one.range) == one for one in bundles.every())


def test_a_namespace_begins_with_equal_bundles_as_in_pulsar() -> None:
    assert Bundles.equal("t/n", 4).texts() == ["0x00000000", "0x40000000", "0x80000000", "0xc0000000", "0xffffffff"]
    assert Bundles.equal("t/n", 3).every()[1].range == "0x55555555_0xaaaaaaaa"
    assert Bundles.equal("t/n", 3).named("0x00000001_0x00000002") is None
    assert [one.range for one in Bundles.equal("t/n", 1).every()] == ["0x00000000_0xffffffff"]


def test_topics_are_hashed_by_their_whole_name_with_crc32() -> None:
    assert place_of(parse("persistent://public/default/orders")) == 0xB135B9DC
    assert place_of(parse("orders")) == place_of(parse("public/default/orders"))
    assert place_of(parse("orders-partition-1")) != place_of(parse("orders-partition-0"))


def test_halves_are_equal() -> None:
    assert Bundle("t/n", 0, 0x40000000).middle == 0x20000000
    with pytest.raises(NotDivisible, match="too narrow"):
        _ = Bundle("t/n", 5, 6).middle


def test_a_bundle_of_another_division_is_not_split() -> None:
    with pytest.raises(NotDivisible):
        Bundles.equal("t/n", 4).split(Bundle("t/n", 0, 0x20000000), 0x10000000)


def test_splitting_has_a_limit() -> None:
    bundles = Bundles.equal("t/n", MAX_BUNDLES)
    with pytest.raises(NotDivisible, match="limit"):
        bundles.split(bundles.every()[0], 1)


@pytest.mark.parametrize(
    "texts",
    [[], ["0x00000000"], ["0x0", "0x1"], ["0x1", "0xffffffff"], ["0x0", "0x5", "0x5", "0xffffffff"], ["0x0", "x"]],
)
def test_boundaries_that_do_not_cover_the_range_are_refused(texts: list[str]) -> None:
    with pytest.raises(ValueError, match=r"borders|invalid"):
        Bundles.parse("t/n", texts)
