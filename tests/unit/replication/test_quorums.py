# SPDX-License-Identifier: Apache-2.0
"""Who votes on a stream while that changes (R26): regions' knowledge merges, and configurations end only when safe."""

from __future__ import annotations

from itertools import combinations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from meridian_broker.positions import ZERO, Stamp
from meridian_broker.replication.leases.quorums import (
    BEGUN,
    LISTS_MAX,
    VoterSets,
    from_json,
    majority,
    preferred_among,
    to_json,
)

# One draw of a ready-made value instead of several that make one.
REGIONS = ["ap", "eu", "sa", "us"]
NAMES = st.sampled_from([names for count in range(1, 5) for names in combinations(REGIONS, count)])
STAMP = st.sampled_from([Stamp(*parts) for parts in product(range(1, 7), range(2), ("eu", "us"))])


def said(lists: list[tuple[Stamp, tuple[str, ...]]], committed: Stamp) -> VoterSets:
    return VoterSets().joined(VoterSets(tuple(lists), committed))


KNOWN = st.builds(said, st.lists(st.tuples(STAMP, NAMES), max_size=4), st.sampled_from([ZERO, BEGUN]) | STAMP)


@settings(max_examples=500)
@given(KNOWN, KNOWN, KNOWN)
def test_knowledge_merges_in_any_order(one: VoterSets, two: VoterSets, three: VoterSets) -> None:
    assert one.joined(one) == one
    assert one.joined(two) == two.joined(one)
    assert one.joined(two).joined(three) == one.joined(two.joined(three))
    assert one.joined(two).knows(one)
    assert (one.mark == two.mark) == (one == two)
    assert from_json(to_json(one)) == one


@settings(max_examples=500)
@given(KNOWN, NAMES, STAMP)
def test_another_configuration_counts_besides_the_current_ones(
    known: VoterSets, voters: tuple[str, ...], stamp: Stamp
) -> None:
    more = known.also(voters, stamp)
    assert more.knows(known)
    if stamp > known.committed and len(known.lists) < LISTS_MAX:
        assert more.has(voters)
    assert {names for _, names in known.lists} <= {names for _, names in more.lists}


@settings(max_examples=500)
@given(KNOWN, NAMES, st.sets(st.sampled_from(REGIONS)))
def test_a_configuration_ends_only_when_no_quorum_of_it_is_uninformed(
    known: VoterSets, wanted: tuple[str, ...], heard: set[str]
) -> None:
    preferred = {voters: set(voters) for _, voters in known.lists}
    if not known.may_commit(wanted, heard, preferred):
        return
    for _, voters in known.lists:
        if voters == wanted and known.committed != ZERO:
            continue
        unheard = [voter for voter in voters if voter not in heard]
        for some in combinations(voters, known.enough(voters)):
            assert not set(some) <= set(unheard), "these do not know of the others, and form a quorum"
        if len(voters) == 2:
            assert not unheard, "each of two is the preferred holder of a stream"
    last = max(stamp for stamp, _ in known.lists)
    committed = known.commit(wanted, Stamp(last.time_ms + 1, 0, "us"))
    if not committed.is_committed:
        assert {voters for _, voters in committed.lists} == {voters for _, voters in known.lists}, (
            "first it is announced again"
        )
        committed = committed.commit(wanted, Stamp(last.time_ms + 2, 0, "us"))
    assert committed.is_committed
    assert committed.voters == wanted
    assert known.joined(committed) == committed, "nodes that knew as much follow"


def test_the_first_configuration_counts_once_all_its_voters_know_it() -> None:
    first = VoterSets().also(("eu", "us"), Stamp(7, 0, "us"))
    assert not first.is_committed
    assert first.enough(("eu", "us")) == 2
    assert not first.may_commit(("eu", "us"), {"us"}, {("eu", "us"): {"us"}})
    assert first.may_commit(("eu", "us"), {"eu", "us"}, {})
    committed = first.commit(("eu", "us"), Stamp(8, 0, "us"))
    assert committed == VoterSets(first.lists, BEGUN)


def test_of_two_voters_the_preferred_holders_must_know() -> None:
    both = VoterSets.of("eu", "us").also(("ap", "eu", "us"), Stamp(7, 0, "eu"))
    three, pair = ("ap", "eu", "us"), ("eu", "us")
    assert not both.may_commit(three, {"ap", "eu"}, {pair: {"eu", "us"}})
    assert both.may_commit(three, {"ap", "eu"}, {pair: {"eu"}}), "an administrator said that eu holds everything"
    assert both.commit(three, Stamp(8, 0, "eu")).voters == three


def test_the_number_of_configurations_is_bounded() -> None:
    known = VoterSets.of("us")
    for number in range(20):
        known = known.also(("us", f"r{number}"), Stamp(number + 1, 0, "us"))
    assert len(known.lists) == LISTS_MAX


def test_small_cases() -> None:
    assert [majority(("a",) * size) for size in (1, 2, 3, 4, 5)] == [1, 2, 2, 3, 3]
    assert preferred_among(("eu", "us"), "us") == "us"
    assert preferred_among(("eu", "us"), "ap") == "eu"
    for wrong in ({"lists": [["x", "us"]], "settled": ""}, {"lists": 7, "settled": ""}, {}, 7):
        with pytest.raises(ValueError, match=r"is not a list of voters|is not a stamp"):
            from_json(wrong)


def test_a_voter_is_listed_once() -> None:
    """Listed twice it would count twice towards a majority."""
    twice = {"lists": [["1.0@us", "us", "eu", "us"]], "settled": ""}
    assert from_json(twice).voters == ("eu", "us")
    assert VoterSets.of("us", "eu", "us").lists == VoterSets.of("eu", "us").lists
    for wrong in (("us", "us"), ("us", "eu")):
        with pytest.raises(AssertionError, match="without repeats"):
            VoterSets(((Stamp(1, 0, "us"), wrong),))
