# SPDX-License-Identifier: Apache-2.0
"""A path's states have a total order, so their arrival order does not matter; when tombstones may be deleted."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice, permutations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from meridian_broker.metadata import keys
from meridian_broker.metadata.store import MetadataError
from meridian_broker.metadata.sync import paths
from meridian_broker.metadata.sync.converging import (
    Verdict,
    before,
    decide,
    expelled,
    hidden,
    horizon_of,
    is_forgettable,
    overwrites_unseen,
)
from meridian_broker.metadata.sync.events import MAX_COUNTER, Event
from meridian_broker.metadata.sync.shapes import fault_of
from meridian_broker.metadata.sync.stamped import (
    BEGINNING,
    MAX_KNOWN,
    Stamped,
    canonical,
    from_store,
    moment,
    newest,
    to_store,
)
from meridian_broker.positions.clock import Stamp

many = settings(max_examples=500, deadline=None)
# One draw of a ready-made value instead of several that make one.
stamps = st.sampled_from([Stamp(*parts) for parts in product(range(4), range(3), ("a", "b", "eu"))])
values = st.none() | st.sampled_from([b"1", b"2", b'{"a":[]}'])
states = st.builds(Stamped, stamps, values, st.integers(0, 2))
moments = st.sampled_from([*product(range(6), range(4))])
FOREVER = 1 << 60


@many
@given(states, states, states)
def test_the_order_is_total(one: Stamped, two: Stamped, three: Stamped) -> None:
    assert one.beats(two) + two.beats(one) + (one == two) == 1
    assert one.beats(two) == (one.rank > two.rank)
    if one.beats(two) and two.beats(three):
        assert one.beats(three)


@many
@given(st.lists(states, min_size=1, max_size=4), st.data())
def test_the_latest_state_remains_in_any_order_and_with_repeats(some: list[Stamped], data: st.DataObject) -> None:
    arriving = data.draw(st.lists(st.sampled_from(some), max_size=4)) + some
    for order in islice(permutations(arriving), 0, 5040, 700):
        present: Stamped | None = None
        for state in order:
            verdict = decide(present, state, (-1, 0), FOREVER)
            if verdict is Verdict.APPLIED:
                present = state
            elif verdict is Verdict.DUPLICATE:
                assert state == present
            else:
                assert verdict is Verdict.STALE and present is not None and present.beats(state)
        assert present == newest(*some)


def test_a_tie_goes_to_the_smaller_region_and_then_to_the_content() -> None:
    assert Stamped(Stamp(1, 0, "a"), b"1").beats(Stamped(Stamp(1, 0, "b"), b"2"))
    assert Stamped(Stamp(1, 0, "a"), b"1").beats(Stamped(Stamp(1, 0, "a"), None))
    assert Stamped(Stamp(0, 0, "b"), None, 1).beats(Stamped(Stamp(9, 9, "a"), b"1"))


def test_a_timestamp_in_the_future_waits_unless_it_has_lost_already() -> None:
    future = Stamped(Stamp(1001, 0, "eu"), b"1")
    assert decide(None, future, BEGINNING, 1000) is Verdict.PARKED
    assert decide(None, future, BEGINNING, 1001) is Verdict.APPLIED
    assert decide(Stamped(Stamp(1, 0, "us"), b"2", 1), future, BEGINNING, 1000) is Verdict.STALE


@many
@given(states, moments)
def test_an_unknown_path_from_before_the_horizon_was_deleted_since(state: Stamped, horizon: tuple[int, int]) -> None:
    verdict = decide(None, state, horizon, FOREVER)
    assert verdict is (Verdict.STALE if moment(state.stamp) <= horizon else Verdict.APPLIED)
    if is_forgettable(state, horizon):
        assert verdict is Verdict.STALE


@many
@given(stamps)
def test_nothing_lies_between_a_state_and_the_moment_before_it(stamp: Stamp) -> None:
    if moment(stamp) > BEGINNING:
        assert before(moment(stamp)) < moment(stamp)
        assert before(moment(stamp))[0] in (stamp.time_ms, stamp.time_ms - 1)
        assert before(moment(stamp))[1] <= MAX_COUNTER, "a deletion that stands for forgotten ones has such a stamp"


@many
@given(st.dictionaries(st.sampled_from("abc"), st.dictionaries(st.sampled_from("abc"), moments)))
def test_the_horizon_is_what_every_region_knows_of_every_region(
    heard: dict[str, dict[str, tuple[int, int]]],
) -> None:
    horizon = horizon_of("abc", heard)
    assert all(horizon <= heard.get(one, {}).get(other, BEGINNING) for one in "abc" for other in "abc")
    assert horizon == BEGINNING or any(horizon in marks.values() for marks in heard.values())


@many
@given(st.dictionaries(st.sampled_from("abcd"), st.dictionaries(st.sampled_from("abcd"), moments)), st.integers(0, 5))
def test_a_majority_expels_regions_that_none_of_it_hears(
    heard: dict[str, dict[str, tuple[int, int]]], since_ms: int
) -> None:
    gone = expelled("abcd", heard, since_ms)
    last = {one: [marks[one] for marks in heard.values() if one in marks] for one in "abcd"}
    assert all(last[one] and max(last[one]) < (since_ms, 0) for one in gone)
    fresh = [one for one in "abcd" if any(mark >= (since_ms, 0) for mark in last[one])]
    assert not gone or len(fresh) > 2
    if len(fresh) > 2:
        silent = [one for one in "abcd" if one not in fresh and any(mark > BEGINNING for mark in last[one])]
        assert gone == frozenset(silent)


def test_of_two_regions_neither_is_expelled() -> None:
    assert not expelled("ab", {"a": {"a": (9, 0), "b": (1, 0)}, "b": {"b": (1, 0)}}, 5)
    assert expelled("abc", {"a": {"a": (9, 0), "b": (9, 0), "c": (1, 0)}}, 5) == {"c"}


def test_a_restamped_tombstone_is_never_forgotten() -> None:
    deletion = Stamped(Stamp(1, 0, "us"), None)
    assert is_forgettable(deletion, (1, 0))
    assert not is_forgettable(deletion, (0, 9))
    assert not is_forgettable(Stamped(deletion.stamp, None, 1), (1, 0))


def test_only_different_content_unseen_by_the_writer_is_a_conflict() -> None:
    present = Stamped(Stamp(1, 0, "us"), b"1")
    later = Stamp(2, 0, "eu")
    assert overwrites_unseen(present, Event("/p", Stamped(later, b"2"), None))
    assert overwrites_unseen(present, Event("/p", Stamped(later, None), (0, Stamp(0, 0, "us"))))
    assert not overwrites_unseen(present, Event("/p", Stamped(later, b"2"), (0, present.stamp)))
    assert not overwrites_unseen(present, Event("/p", Stamped(later, b"1"), None))
    assert not overwrites_unseen(None, Event("/p", Stamped(later, b"2"), None))


def test_a_writer_knew_what_it_replaced_directly_or_through_others() -> None:
    first, second = Stamped(Stamp(1, 0, "us"), b"1"), Stamped(Stamp(2, 0, "eu"), b"2").following(None)
    third = Stamped(Stamp(3, 0, "ap"), b"3").following(second.following(first))
    assert third.knows == {"eu": (0, 2, 0), "us": (0, 1, 0)}
    assert not overwrites_unseen(first, Event("/p", third, (0, second.stamp)))
    assert overwrites_unseen(replace(first, stamp=Stamp(1, 1, "us")), Event("/p", third, (0, second.stamp)))
    assert overwrites_unseen(replace(first, generation=1), Event("/p", third, (0, second.stamp)))
    again = Stamped(Stamp(4, 0, "us"), b"4").following(third)
    assert again.knows == {"ap": (0, 3, 0), "eu": (0, 2, 0)}, "a region knows what it wrote before"
    many = {f"r{number:02}": (0, number, 0) for number in range(2 * MAX_KNOWN)}
    kept = again.following(replace(first, knows=many)).knows
    assert [*kept] == [f"r{number:02}" for number in range(MAX_KNOWN, 2 * MAX_KNOWN)]


@many
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=["Cs"])),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab"), inner, max_size=3),
    ),
    stamps,
    st.integers(0, 3),
    st.none() | stamps,
)
def test_stored_states_are_read_back(value: object, stamp: Stamp, generation: int, earlier: Stamp | None) -> None:
    replaced = None if earlier is None else Stamped(earlier, b"1", 1)
    for state in (Stamped(stamp, canonical(value), generation), Stamped(stamp, None, generation)):
        found = from_store("/p", to_store(state.following(replaced)), is_deletion=state.value is None)
        assert found == state
        assert found.knows == state.following(replaced).knows


@pytest.mark.parametrize("known", ["1", "[]", '{"eu":1}', '{"eu":[1,2]}', '{"eu":[1,2,"x"]}'])
def test_damage_of_what_its_writer_knew_is_noticed(known: str) -> None:
    with pytest.raises(MetadataError, match="restore it"):
        from_store("/p", b'{"format":1,"value":1,"knows":%s}' % known.encode())


@pytest.mark.parametrize("generation", ["-1", "1.5", '"1"', str(1 << 40), "null"])
def test_a_damaged_generation_is_refused(generation: str) -> None:
    with pytest.raises(MetadataError, match="restore it"):
        from_store("/p", b'{"format":1,"value":1,"generation":%s}' % generation.encode())


T, N = keys.tenant("t"), keys.namespace("t/n")


def test_only_what_regions_agree_on_is_in_a_scope() -> None:
    assert paths.scope_of(T) == paths.scope_of(f"{T}/roles/r") == paths.TENANTS
    assert paths.scope_of(f"{N}/policies/p/e") == paths.NAMESPACES
    for path in (keys.LEDGER_IDS, keys.broker_epoch("b"), keys.TENANTS, paths.tombstone(T), paths.MARK, "/bundles/x"):
        assert paths.scope_of(path) is None


def test_a_path_is_served_only_if_its_ancestors_are() -> None:
    policy = f"{N}/policies/p"
    assert [paths.parent_of(path) for path in (policy, N, f"{T}/roles/r", T)] == [N, T, T, None]
    state, deleted = Stamped(Stamp(1, 0, "us"), b"1"), Stamped(Stamp(2, 0, "us"), None)
    parents = {policy: N, N: T}
    assert hidden({T: state, N: state, policy: state}, parents) == set()
    assert hidden({T: state, N: deleted, policy: state}, parents) == {policy}
    assert hidden({N: state, policy: state}, parents) == {N, policy}


@pytest.mark.parametrize(
    ("path", "value", "fault"),
    [
        (T, b"{}", None),
        (f"{T}/roles/r", b"true", None),
        (N, b'{"deleting":true}', None),
        (f"{N}/policies/message_ttl_in_seconds", b"60", None),
        (f"{N}/policies/of-a-later-version", b'{"a":1}', None),
        (keys.namespaces_of("t"), b"{}", "no object has such a path"),
        (T, b"5", "AttributeError"),
        (N, b"[]", "AttributeError"),
        (f"{N}/policies/message_ttl_in_seconds", b'"soon"', "message_ttl_in_seconds"),
    ],
)
def test_an_unreadable_value_is_detected(path: str, value: bytes, fault: str | None) -> None:
    found = fault_of(path, Stamped(Stamp(1, 0, "us"), value))
    assert (found is None) if fault is None else (found is not None and fault in found)
