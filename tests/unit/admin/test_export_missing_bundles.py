# SPDX-License-Identifier: Apache-2.0
"""Bundles that move or are split while a region is exported: each topic is exported once, or the export is refused."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meridian_broker.admin.export.copying import Names
from meridian_broker.admin.export.missing_bundles import BordersChanged, MissingBundles, numbered, parse_bundle
from meridian_broker.ownership.bundles import LAST, Bundle, Bundles
from meridian_broker.wire.pulsar.topic_name import parse

NAMESPACES = ("public/default", "public/other")
BROKERS = ("", "a", "b", "c")


class World:
    """The owners of bundles, and what each broker has exported."""

    def __init__(self) -> None:
        self.bundles = {name: Bundles.equal(name, 2) for name in NAMESPACES}
        self.owners: dict[Bundle, str] = {}
        self.exported: list[Bundle] = []

    def every(self) -> list[Bundle]:
        return [bundle for bundles in self.bundles.values() for bundle in bundles.every()]

    def owner(self, bundle: Bundle) -> str:
        return self.owners.get(bundle, "")

    def happen(self, data: st.DataObject) -> None:
        """Move or split a few bundles; one half of a split bundle may move."""
        for _ in range(data.draw(st.integers(0, 3))):
            bundle = data.draw(st.sampled_from(self.every()))
            owner = self.owners.pop(bundle, "")
            if data.draw(st.booleans()) and bundle.upper - bundle.lower > 1:
                border = data.draw(st.integers(bundle.lower + 1, min(bundle.upper, LAST) - 1))
                self.bundles[bundle.namespace] = self.bundles[bundle.namespace].split(bundle, border)
                self.owners |= dict.fromkeys(bundle.parts(border), owner)
            else:
                self.owners[bundle] = data.draw(st.sampled_from(BROKERS))

    def export(self, broker: str, asked: list[Bundle]) -> list[Bundle]:
        """A broker's answer; the broker that asks acquires unowned bundles."""
        there = self.every()
        had = [one for one in asked if one in there and self.owner(one) == broker]
        self.exported += had
        return had


@given(st.data())
def test_whatever_moves_each_topic_is_exported_once_or_the_export_is_incomplete(data: st.DataObject) -> None:
    world = World()
    bundles = MissingBundles(world.every())
    for _ in range(data.draw(st.integers(1, 5))):
        world.happen(data)
        seen = dict(world.bundles), dict(world.owners)  # the asking broker's knowledge soon goes stale
        if data.draw(st.booleans()):
            world.happen(data)
        bundles.follow(seen[0])
        for broker, asked in bundles.by_owner(lambda bundle, known=seen[1]: known.get(bundle, "")).items():  # type: ignore[misc]
            world.happen(data)
            bundles.had(asked, world.export(broker, asked))
    covered = sorted(world.exported)
    assert all(
        one.namespace != following.namespace or one.upper <= following.lower for one, following in pairwise(covered)
    )
    lacking = sorted([*covered, *bundles.missing])
    assert [one.lower for one in lacking if one.lower == 0] == [0, 0]
    for one, following in pairwise(lacking):
        assert one.upper == (following.lower if one.namespace == following.namespace else LAST)
    assert bundles.is_whole == (sum(one.upper - one.lower for one in covered) == 2 * LAST)


def test_bundles_that_were_not_requested_do_not_count() -> None:
    one, two = Bundles.equal("public/default", 2).every()
    bundles = MissingBundles([one, two])
    for got in ([two], [one, one], [one, two]):
        with pytest.raises(ValueError, match="other bundles"):
            bundles.had([one], got)
    bundles.had([one], [one])
    with pytest.raises(ValueError, match="other bundles"):
        bundles.had([one], [one])
    assert bundles.missing == {two}


def test_a_namespace_that_was_divided_differently_is_refused() -> None:
    bundles = MissingBundles(Bundles.equal("public/default", 3).every())
    with pytest.raises(BordersChanged, match="public/default/0x"):
        bundles.follow({"public/default": Bundles.equal("public/default", 2)})


@given(st.sets(st.integers(0, 500), max_size=60), st.sampled_from([1, 3, 4, 300, 1024]))
def test_each_name_is_within_one_bundle(numbers: set[int], count: int) -> None:
    every = [f"persistent://public/default/topic-{number}" for number in numbers]
    names = Names()
    for name in every:
        names.add(parse(name))
    bundles = Bundles.equal("public/default", count)
    found = {bundle: names.within(bundle) for bundle in bundles.every()}
    assert sorted(name for some in found.values() for name in some) == names.every() == sorted(every)
    for bundle, some in found.items():
        assert some == sorted(some)
        assert names.has(bundle) == bool(some)
        assert {bundles.of(parse(name)) for name in some} <= {bundle}
    assert names.within(Bundle("public/other", 0, LAST)) == []


def test_a_namespace_that_is_gone_stays_missing() -> None:
    bundles = MissingBundles(Bundles.equal("public/default", 1).every())
    bundles.follow({})
    assert not bundles.is_whole


@given(st.lists(st.integers(1, 4), min_size=1, max_size=5))
def test_partitions_are_numbered_consecutively(counts: list[int]) -> None:
    expected = [(part, number) for part, count in enumerate(counts) for number in range(count)]
    assert [numbered(counts, number) for number in range(sum(counts))] == expected
    with pytest.raises(IndexError):
        numbered(counts, sum(counts))


@given(st.sampled_from(Bundles.equal("public/default", 16).every()))
def test_bundles_are_parsed_as_they_are_written(bundle: Bundle) -> None:
    assert parse_bundle(str(bundle)) == bundle


@pytest.mark.parametrize(
    "text", ["", "public/default", "public/default/0x0_0x1", "a/b/0x80000000_0x80000000", "a/b/c/0x00000000_0xffffffff"]
)
def test_invalid_bundles_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a bundle"):
        parse_bundle(text)
