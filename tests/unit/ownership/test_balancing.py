# SPDX-License-Identifier: Apache-2.0
"""Balance: bundles move when brokers join, leave or are overloaded; few of them move, and never back and
forth; bundles moved by hand stay."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from meridian_broker.ownership.balancing import MEASURE_SECONDS, Balance
from meridian_broker.ownership.bundles import Bundle, Bundles
from meridian_broker.ownership.placement import BUSY, RELIEF, Candidate

LOADS = st.lists(st.lists(st.floats(0.0, 0.5), max_size=8), min_size=1, max_size=4)
"""The cost of each bundle, by broker."""


class Region:
    """Brokers that see each other's bundles and loads without delay."""

    def __init__(self, loads: list[list[float]]) -> None:
        bundles = iter(Bundles.equal("t/n", 64).every())
        self.owned = {f"broker-{at}": {next(bundles): one for one in some} for at, some in enumerate(loads)}
        self.balances = {name: Balance() for name in self.owned}
        self.now = 0.0
        self.moved: list[tuple[Bundle, str, str]] = []

    def usage(self, name: str) -> float:
        return sum(self.owned[name].values())

    def candidates(self) -> list[Candidate]:
        return [Candidate(name, len(mine), self.usage(name)) for name, mine in self.owned.items()]

    def look(self) -> int:
        """Every broker checks once. Returns the number of bundles that moved."""
        before = len(self.moved)
        self.now += 1
        for name, balance in self.balances.items():
            members = frozenset(self.owned)
            if (move := balance.next_move(self.owned[name], name, self.candidates(), members, self.now)) is not None:
                self.move(move[0], name, move[1])
        return len(self.moved) - before

    def move(self, bundle: Bundle, broker: str, to: str) -> None:
        self.owned[to][bundle] = self.owned[broker].pop(bundle)
        self.moved.append((bundle, broker, to))

    def measure(self) -> None:
        """Check until nothing moves, even after the periods that brokers wait."""
        for _ in range(1000):
            if not self.look():
                self.now += MEASURE_SECONDS
                if not self.look():
                    return
        pytest.fail("bundles never stop moving")


@settings(max_examples=500)
@given(LOADS)
def test_movement_ends_and_each_move_for_load_relieves_the_busiest_broker(loads: list[list[float]]) -> None:
    region = Region(loads)
    while region.look():
        pass
    owned = [len(mine) for mine in region.owned.values()]
    assert max(owned) - min(owned) < 2
    before, usages = len(region.moved), {name: region.usage(name) for name in region.owned}
    for _ in range(200):
        region.now += MEASURE_SECONDS
        if not region.look():
            break
        now = {name: region.usage(name) for name in region.owned}
        assert max(now.values()) <= max(usages.values()) + 1e-9
        assert sum(one * one for one in now.values()) < sum(one * one for one in usages.values())
        usages = now
    else:
        pytest.fail("bundles never stop moving")
    trail: dict[Bundle, list[str]] = {}
    for bundle, broker, to in region.moved[before:]:
        trail.setdefault(bundle, [broker]).append(to)
    assert all(first != second for places in trail.values() for first, second in itertools.pairwise(places))
    assert len(region.moved) - before <= sum(owned)


@settings(max_examples=500)
@given(LOADS, st.data())
def test_few_bundles_move_within_the_time_of_a_measurement(loads: list[list[float]], data: st.DataObject) -> None:
    region = Region(loads)
    while region.look():
        pass
    region.now += MEASURE_SECONDS
    moves = sum(region.look() for _ in range(data.draw(st.integers(1, int(MEASURE_SECONDS) - 1))))
    assert moves <= len(region.owned) // 2 + 1


@settings(max_examples=500)
@given(st.lists(st.integers(1, 8), min_size=2, max_size=4), st.data())
def test_bundles_moved_by_hand_stay_until_the_set_of_brokers_changes(counts: list[int], data: st.DataObject) -> None:
    region = Region([[0.01] * count for count in counts])
    region.measure()
    by_hand = data.draw(st.integers(1, 6))
    for _ in range(by_hand):
        broker, to = data.draw(st.permutations(sorted(region.owned)))[:2]
        if region.owned[broker]:
            region.move(min(region.owned[broker]), broker, to)
    moved = len(region.moved)
    region.measure()
    assert len(region.moved) == moved
    region.owned["late"], region.balances["late"] = {}, Balance()
    region.measure()
    owned = [len(mine) for mine in region.owned.values()]
    assert max(owned) - min(owned) < 2


def test_a_broker_is_relieved_of_the_largest_bundle_that_does_not_overload_the_other() -> None:
    region = Region([[0.5, 0.3, 0.2], [0.1, 0.1]])
    region.measure()
    small, middle, large = sorted(load for load in (0.2, 0.3, 0.5))
    assert sorted(region.owned["broker-0"].values()) == [small, large]
    assert middle in region.owned["broker-1"].values()


@pytest.mark.parametrize(
    "loads",
    [
        [[0.4, 0.4], [0.0, 0.0]],  # not busy
        [[0.5, 0.4], [0.4, 0.3]],  # the other is nearly as busy
        [[0.95], [0.0]],  # one bundle is the whole load: moving it would not help
    ],
)
def test_nothing_moves_if_that_would_not_help(loads: list[list[float]]) -> None:
    region = Region(loads)
    region.measure()
    assert region.moved == []
    assert BUSY - RELIEF > 0.5
