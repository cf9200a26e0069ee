# SPDX-License-Identifier: Apache-2.0
"""Placement: brokers choose alike and evenly, and little moves when a broker joins or leaves."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from meridian_broker.ownership.bundles import Bundle, Bundles
from meridian_broker.ownership.placement import BUSY, SLACK, Candidate, choose, divide, to_hand_over

CANDIDATES = st.lists(
    st.builds(Candidate, st.text("abc0-", min_size=1, max_size=4), st.integers(0, 50), st.floats(0, 2)),
    unique_by=lambda one: one.broker,
    max_size=6,
)
BUNDLE = st.sampled_from(Bundles.equal("t/n", 64).every())


@settings(max_examples=500)
@given(BUNDLE, CANDIDATES, st.randoms())
def test_all_brokers_choose_alike(bundle: Bundle, candidates: list[Candidate], random: st.DataObject) -> None:
    chosen = choose(bundle, candidates)
    assert (chosen is None) == (not candidates)
    shuffled = sorted(candidates, key=lambda _: random.random())  # type: ignore[attr-defined]
    assert choose(bundle, shuffled) == chosen


@settings(max_examples=500)
@given(BUNDLE, CANDIDATES)
def test_a_busy_broker_gets_nothing_while_another_is_idle(bundle: Bundle, candidates: list[Candidate]) -> None:
    usage = {one.broker: one.usage for one in candidates}
    chosen = choose(bundle, candidates)
    if any(value < BUSY for value in usage.values()):
        assert chosen is not None
        assert usage[chosen] < BUSY


def spread(bundles: list[Bundle], brokers: list[str], owners: dict[Bundle, str] | None = None) -> dict[Bundle, str]:
    """Owners after every unowned bundle was acquired, one after another."""
    owners = dict(owners or {})
    for bundle in bundles:
        if bundle not in owners:
            counts = Counter(owners.values())
            chosen = choose(bundle, [Candidate(one, counts[one]) for one in brokers])
            assert chosen is not None
            owners[bundle] = chosen
    return owners


def test_bundles_are_spread_evenly() -> None:
    bundles = [bundle for number in range(16) for bundle in Bundles.equal(f"t/{number}", 16).every()]
    for count in range(1, 8):
        owned = Counter(spread(bundles, [f"broker-{number}" for number in range(count)]).values())
        assert len(owned) == count
        assert max(owned.values()) <= SLACK * len(bundles) / count + 1


def test_a_stopping_brokers_bundles_are_divided_evenly() -> None:
    bundles = [bundle for number in range(16) for bundle in Bundles.equal(f"t/{number}", 16).every()]
    owned = Counter(divide(bundles, [Candidate("a", 40), Candidate("b", 40), Candidate("c", 0)]).values())
    assert owned.total() == len(bundles)
    assert max(owned["a"] + 40, owned["b"] + 40, owned["c"]) <= SLACK * (len(bundles) + 80) / 3 + 1
    assert divide(bundles, []) == {}


def test_only_a_brokers_own_bundles_move_when_it_leaves() -> None:
    bundles = Bundles.equal("t/n", 256).every()
    before = spread(bundles, ["a", "b", "c"])
    left = {bundle: owner for bundle, owner in before.items() if owner != "b"}
    after = spread(bundles, ["a", "c"], left)
    assert all(after[bundle] == owner for bundle, owner in left.items())
    back = spread(bundles, ["a", "b", "c"])
    assert back == before


@settings(max_examples=500)
@given(st.lists(st.integers(0, 12), min_size=1, max_size=5))
def test_brokers_hand_over_as_many_as_they_must_and_then_stop(counts: list[int]) -> None:
    bundles = iter(Bundles.equal("t/n", 64).every())
    owned = {f"broker-{at}": {next(bundles) for _ in range(count)} for at, count in enumerate(counts)}
    each, more = divmod(sum(counts), len(counts))
    fair = sorted([each + 1] * more + [each] * (len(counts) - more), reverse=True)
    moves = 0

    def one_round() -> bool:
        for broker, mine in owned.items():
            handed = to_hand_over(mine, broker, [Candidate(name, len(theirs)) for name, theirs in owned.items()])
            if handed is not None:
                bundle, to = handed
                mine.remove(bundle)
                owned[to].add(bundle)
                return True
        return False

    while one_round():
        moves += 1
    assert sorted(map(len, owned.values()), reverse=True) == fair
    assert moves == sum(max(0, have - due) for have, due in zip(sorted(counts, reverse=True), fair, strict=True))
