# SPDX-License-Identifier: Apache-2.0
"""Laws for incoming subscription records (R15-R17): from other regions, and read back from the log."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from meridian_broker.positions import ZERO, Stamp
from meridian_broker.topics.journal.subscription_record import SubscriptionRecord
from meridian_broker.topics.subscriptions.incoming_records import TOMBSTONE_MS, Decision, Here, Verdict, logged, told
from support.checkout import printed_tables

NOW_MS = 100
ENDING = (Verdict.REMOVE, Verdict.REPLACE)
THOROUGH = settings(max_examples=500, deadline=None)

stamps = st.sampled_from([Stamp(time_ms, 0, region) for time_ms in range(1, 7) for region in ("us", "eu")])
incarnations = st.one_of(st.just(ZERO), stamps)


@st.composite
def tombstones(draw: st.DrawFn) -> SubscriptionRecord:
    return SubscriptionRecord("sub", replicated=True, deleted=draw(stamps), forced=draw(st.booleans()))


@st.composite
def living(draw: st.DrawFn, *, shared: bool = True) -> SubscriptionRecord:
    """The stamp determines flag and properties: no two regions write the same stamp."""
    incarnation, created, flag = draw(incarnations), draw(stamps), draw(stamps)
    is_on = shared and (flag.time_ms + len(flag.region)) % 2 == 0
    return SubscriptionRecord("sub", is_on, flag if shared else ZERO, created, {"made": str(created)}, incarnation)


records = st.one_of(living(), tombstones())


def after(here: Here, came: Decision) -> Here:
    """The state after the decision was carried out."""
    verdict, record, _ = came
    if verdict in (Verdict.NOTHING, Verdict.REFUSE):
        return here
    if verdict is Verdict.BESIDE:
        return here._replace(grave=record)
    if record.is_gone:
        return Here(grave=record)
    if verdict in (Verdict.MAKE, Verdict.REPLACE):
        return Here(record, record.is_known_elsewhere)
    return here._replace(held=record, is_known_elsewhere=record.is_known_elsewhere, grave=None, stands_in=False)


def joined(came: tuple[SubscriptionRecord, ...], here: Here = Here()) -> Here:  # noqa: B008
    for one in came:
        here = after(here, told(one, here, NOW_MS))
    return here


@THOROUGH
@given(st.lists(records, max_size=4, unique_by=lambda one: (one.deleted, one.is_gone, one.created, one.flag_stamp)))
def test_regions_agree_in_any_order_of_records(came: list[SubscriptionRecord]) -> None:
    forced = {one.deleted: one.forced for one in came if one.is_gone}  # one deletion per stamp, forced or not
    came = [replace(one, forced=forced[one.deleted]) if one.is_gone else one for one in came]
    outcomes = {repr(joined(order)) for order in permutations(came)}
    assert len(outcomes) == 1


@THOROUGH
@given(records, st.lists(records, max_size=4))
def test_a_repeated_record_changes_nothing(came: SubscriptionRecord, before: list[SubscriptionRecord]) -> None:
    here = joined((*before, came))
    assert told(came, here, NOW_MS).verdict is Verdict.NOTHING


@THOROUGH
@given(st.lists(records, max_size=4), records)
def test_a_deleted_incarnation_does_not_return(before: list[SubscriptionRecord], came: SubscriptionRecord) -> None:
    here = joined(tuple(before))
    known, now = (one.held or one.grave for one in (here, after(here, told(came, here, NOW_MS))))
    if known is not None:
        assert now is not None
        # An incarnation is named by the deletion before it: with equal stamps, the subscription follows the tombstone.
        assert (now.deleted, not now.is_gone) >= (known.deleted, not known.is_gone)


@THOROUGH
@given(living(shared=False), st.lists(records, max_size=4))
def test_no_other_region_deletes_what_was_always_ours_alone(
    own: SubscriptionRecord, came: list[SubscriptionRecord]
) -> None:
    """Others' state of the same incarnation may be merged into it: then it is no longer ours alone."""
    here = Here(own)
    for one in came:
        decision = told(one, here, NOW_MS)
        assert decision.verdict not in ENDING
        here = after(here, decision)
        if here.is_known_elsewhere:
            return
        assert here.held == own


@THOROUGH
@given(living(), st.lists(records, max_size=4), st.booleans())
def test_a_restart_finds_what_was_adopted(
    first: SubscriptionRecord, came: list[SubscriptionRecord], is_own: bool
) -> None:
    """Read back from the log, each decision's records give the same subscription and the same tombstone."""
    if is_own:
        first = replace(first, replicated=False, flag_stamp=ZERO)
    here, log = Here(first, first.is_known_elsewhere), [first]
    for one in came:
        decision = told(one, here, NOW_MS)
        if decision.verdict not in (Verdict.NOTHING, Verdict.REFUSE):
            log.append(decision.record)
        here = after(here, decision)
    again = Here()
    for one in log:
        again = after(again, logged(one, again))
    assert (again.held, again.grave) == (here.held, here.grave)


@THOROUGH
@given(living(shared=False), records)
def test_a_stand_in_follows_what_other_regions_report(own: SubscriptionRecord, came: SubscriptionRecord) -> None:
    """It was recreated because its record is damaged: the other regions know its incarnation better."""
    decision = told(came, Here(own, stands_in=True), NOW_MS)
    assert decision.verdict is not Verdict.REFUSE
    if came.deleted == own.deleted and not came.is_gone and decision.verdict is not Verdict.NOTHING:
        assert decision.record.created == came.created
    if came.deleted > own.deleted:
        assert decision.verdict is (Verdict.REMOVE if came.is_gone else Verdict.REPLACE)


@THOROUGH
@given(tombstones(), st.booleans(), st.booleans())
def test_clients_are_kept_out_after_an_unexpected_deletion(
    came: SubscriptionRecord, is_there: bool, has_consumers: bool
) -> None:
    held = SubscriptionRecord("sub", True, Stamp(1, 0, "us"), Stamp(1, 0, "us"))
    here = Here(held, is_known_elsewhere=True, has_consumers=has_consumers) if is_there else Here()
    assert told(came, here, NOW_MS).closes == (came.forced or (is_there and has_consumers))
    assert logged(came, here).closes == came.forced


def test_an_expired_tombstone_is_not_accepted() -> None:
    old = SubscriptionRecord("sub", replicated=True, deleted=Stamp(1, 0, "us"))
    assert told(old, Here(), 1 + TOMBSTONE_MS).verdict is Verdict.BURY
    assert told(old, Here(), 2 + TOMBSTONE_MS).verdict is Verdict.NOTHING


def one(incarnation: int, flag: int, *, is_on: bool) -> SubscriptionRecord:
    """A subscription whose flag was last set by ``flag``; 0: it is of this region alone."""
    flagged = Stamp(flag, 0, "us") if flag else ZERO
    return SubscriptionRecord("sub", is_on, flagged, Stamp(9, 0, "us"), {}, Stamp(incarnation, 0, "us"))


def tombstone(incarnation: int) -> SubscriptionRecord:
    return SubscriptionRecord("sub", replicated=True, deleted=Stamp(incarnation, 0, "us"))


HERE = {
    "nothing": [Here()],
    "a tombstone": [Here(grave=tombstone(5))],
    "our own": [Here(one(5, 0, is_on=False))],
    "replicated": [Here(one(5, 20, is_on=is_on), is_known_elsewhere=True) for is_on in (True, False)],
}
STANDS_IN = Here(one(5, 0, is_on=False), stands_in=True)
INCARNATIONS = {"earlier": 4, "same": 5, "later": 6}


def of_another_region(came: SubscriptionRecord, here: Here) -> Decision:
    return told(came, here, NOW_MS)


@pytest.mark.parametrize(("decide", "source"), [(of_another_region, told), (logged, logged)])
def test_the_printed_verdicts_are_those_that_are_given(
    decide: Callable[[SubscriptionRecord, Here], Decision], source: Callable[..., Decision]
) -> None:
    (_, *columns), *rows = printed_tables.rows(inspect.getdoc(source))
    assert set(columns) == HERE.keys()
    assert {says for says, *_ in rows} == {
        f"{incarnation}, {fate}" for incarnation in INCARNATIONS for fate in ("ended", "lives")
    }
    for says, *cells in rows:
        incarnation, fate = says.split(", ")
        flags = (True, False) if fate == "lives" else (None,)
        for column, cell in zip(columns, cells, strict=True):
            for here, is_on in ((here, is_on) for here in HERE[column] for is_on in flags):
                came = (
                    tombstone(INCARNATIONS[incarnation])
                    if is_on is None
                    else one(INCARNATIONS[incarnation], 30, is_on=is_on)
                )
                verdict = decide(came, here).verdict
                turns_on = cell == "update" and is_on and here.held is not None and not here.held.replicated
                assert verdict is (Verdict.TURN_ON if turns_on else Verdict[cell.upper()]), (says, here)


def test_what_is_known_changes_nothing_and_what_stands_in_is_treated_as_replicated() -> None:
    (known,) = [here for here in HERE["replicated"] if here.held is not None and here.held.replicated]
    assert known.held is not None
    assert told(known.held, known, NOW_MS).verdict is Verdict.NOTHING
    assert told(tombstone(6), STANDS_IN, NOW_MS).verdict is Verdict.REMOVE
    assert told(one(6, 30, is_on=True), STANDS_IN, NOW_MS).verdict is Verdict.REPLACE
