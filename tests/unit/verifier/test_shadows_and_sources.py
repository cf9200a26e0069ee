# SPDX-License-Identifier: Apache-2.0
"""Shadows against their sources: silence while the source is written, trimmed, truncated, deleted and recreated, and
exactly the fault that was put in."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from meridian_verifier.align.facts import EARLIEST, Cursor, Place, RegionState, TopicState, World
from meridian_verifier.align.findings import LOSS, Finding, Reason
from meridian_verifier.align.gather import gather
from meridian_verifier.align.patience import MaxLags, behind
from meridian_verifier.align.shadows import compared, differences, lost_in_shadow
from meridian_verifier.align.verdicts import State, judge
from meridian_verifier.report.words import compared_text, troubles
from meridian_verifier.source.snapshots import apart
from meridian_verifier.source.tables import TABLES, combined
from support.verifier.verifier_worlds import RANGE_TABLES

REGION = "us-east"
SOURCE = "persistent://public/default/orders"
SHADOW = "persistent://public/other/orders-view"
LATEST = (1 << 62, 0)
WHOLE = ((1, 10), (2, 10), (3, 4))


@dataclasses.dataclass(frozen=True)
class Log:
    """A source at one moment; without an incarnation: it is deleted."""

    life: str | None = ""
    ledgers: tuple[tuple[int, int], ...] = ()
    is_trimmed: bool = False
    next_ledger: int = 1

    def written(self, count: int) -> Log:
        if not self.ledgers:
            return self.rolled().written(count)
        (ledger, entries), before = self.ledgers[-1], self.ledgers[:-1]
        return dataclasses.replace(self, ledgers=(*before, (ledger, entries + count)))

    def rolled(self) -> Log:
        return dataclasses.replace(
            self, ledgers=(*self.ledgers, (self.next_ledger, 0)), next_ledger=self.next_ledger + 1
        )

    def trimmed(self, count: int) -> Log:
        return dataclasses.replace(self, ledgers=self.ledgers[count:], is_trimmed=True)

    def after(self, kind: str, count: int) -> Log:
        if self.life is None:
            return dataclasses.replace(self, life=f"{self.next_ledger}")
        return {
            "write": lambda: self.written(count),
            "roll": lambda: self.rolled().written(count),
            "trim": lambda: self.trimmed(count),
            "truncate": lambda: self.trimmed(len(self.ledgers)),
            "delete": lambda: Log(None, (), False, self.next_ledger),
        }[kind]()

    @property
    def end(self) -> Place:
        return (self.ledgers[-1][0], self.ledgers[-1][1] - 1) if self.ledgers else EARLIEST

    def state(self, cursors: Mapping[str, Place] | None = None, shadow_of: str = "") -> TopicState:
        trimmed = EARLIEST
        if self.is_trimmed:
            trimmed = (self.ledgers[0][0], -1) if self.ledgers else LATEST
        told = {name: Cursor(False, True, "", place, 0, "") for name, place in (cursors or {}).items()}
        life = "" if shadow_of else self.life or ""
        return TopicState(life, trimmed, cursors=told, shadow_of=shadow_of, ledgers=self.ledgers)


def moment(**topics: TopicState | None) -> dict[str, RegionState]:
    names = {"source": SOURCE, "shadow": SHADOW}
    named = {names[key]: state for key, state in topics.items() if state is not None}
    return {REGION: apart(RegionState(REGION, "s", 0, named))}


def world(earlier: Mapping[str, RegionState], later: Mapping[str, RegionState], **more: Any) -> World:
    return World((REGION,), earlier, later, more.get("unreachable", {}), 2000)


def seen(source: Log, shadow: Log, end: Place | None = None) -> dict[str, RegionState]:
    cursors = {"sub": shadow.end if end is None else end}
    there = None if source.life is None else source.state()
    return moment(source=there, shadow=shadow.state(cursors, SOURCE))


steps = st.tuples(st.sampled_from(("write", "roll", "roll", "trim", "truncate", "delete")), st.integers(0, 3))


@given(st.lists(steps, max_size=14), st.data())
def test_a_shadow_that_follows_within_the_lag_has_no_finding(ops: list[tuple[str, int]], data: st.DataObject) -> None:
    """Each of the four copies is from a different moment, and the shadow may show its source as it was before S1."""
    history = [Log().written(2)]
    for kind, count in ops:
        history.append(history[-1].after(kind, count))
    at = sorted(data.draw(st.tuples(*[st.integers(0, len(history) - 1)] * 4)))
    first, second = data.draw(st.permutations(at[:2])), data.draw(st.permutations(at[2:]))
    shown = data.draw(st.integers(0, first[0])), data.draw(st.integers(at[1], second[0]))
    views = [history[index] for index in shown]
    # If the shadow was empty both times, it either never saw its source or the source was deleted just now.
    assume(any(view.ledgers or view.is_trimmed for view in views))
    told = world(seen(history[first[1]], views[0]), seen(history[second[1]], views[1]))
    assert differences(told) == []
    verdict = judge(told, [], [], [])
    # Both copies of the source may be from the moment between its deletion and its recreation.
    was_seen = any(history[index].life is not None for index in (first[1], second[1]))
    allowed = {State.ALIGNED} if was_seen else {State.ALIGNED, State.UNKNOWN}
    assert {pair.state for pair in verdict.pairs if pair.topic == SHADOW} <= allowed


def faulty(*, now: Log, before: Log | None = None, end: Place | None = None) -> list[Finding]:
    """A shadow, with this fault, of a source that did not change."""
    source = Log("", WHOLE, next_ledger=4)
    return differences(world(seen(source, before or now, end), seen(source, now, end)))


@pytest.mark.parametrize(
    ("ledgers", "ranges"),
    [
        ((), (((1, -1), (1, 9)), ((2, -1), (2, 9)), ((3, -1), (3, 3)))),
        (WHOLE[1:], (((1, -1), (1, 9)),)),
        ((WHOLE[0], WHOLE[2]), (((2, -1), (2, 9)),)),
        (WHOLE[:2], (((3, -1), (3, 3)),)),
        ((*WHOLE[:2], (3, 1)), (((3, 0), (3, 3)),)),
        ((*WHOLE[:1], (2, 7), WHOLE[2]), (((2, 6), (2, 9)),)),
    ],
)
def test_entries_that_a_shadow_lacks_are_named(ledgers: tuple[tuple[int, int], ...], ranges: object) -> None:
    (found,) = faulty(now=Log("", ledgers))
    assert (found.reason, found.topic, found.shadow_of) == (Reason.SHADOW_INCOMPLETE, SHADOW, SOURCE)
    assert found.ranges == ranges
    assert found.entries == sum(upto - after for (_, after), (_, upto) in found.ranges)


@pytest.mark.parametrize(
    ("more", "ranges"),
    [
        (((3, 6),), (((3, 3), (3, 5)),)),
        ((*WHOLE[2:], (5, 2)), (((5, -1), (5, 1)),)),
    ],
)
def test_entries_that_only_a_shadow_has_are_named(more: tuple[tuple[int, int], ...], ranges: object) -> None:
    (found,) = faulty(now=Log("", (*WHOLE[:2], *more)), end=(3, 3))
    assert (found.reason, found.shadow_of, found.ranges) == (Reason.SHADOW_STRANGE, SOURCE, ranges)


def test_what_the_source_deleted_long_ago_is_foreign_in_the_shadow() -> None:
    whole, source = Log("", WHOLE), Log("", WHOLE[1:], is_trimmed=True)
    (found,) = differences(world(seen(source, whole), seen(source, whole)))
    assert (found.reason, found.ranges) == (Reason.SHADOW_STRANGE, (((1, -1), (1, 9)),))
    assert differences(world(seen(whole, whole), seen(source, whole))) == [], "it was deleted between the snapshots"


def test_a_cursor_beyond_the_end_of_the_source_is_named() -> None:
    (found,) = faulty(now=Log("", WHOLE), end=(3, 4))
    assert (found.reason, found.subscription, found.ranges) == (Reason.SHADOW_CURSOR_AHEAD, "sub", (((3, 3), (3, 4)),))
    source, whole = Log("", WHOLE), Log("", (*WHOLE[:2], (3, 5)))
    assert differences(world(seen(source, whole), seen(whole, whole))) == [], "the source was copied first"


def test_a_shadow_created_or_recreated_in_between_is_not_judged() -> None:
    source, nothing = Log("", WHOLE), Log("", ())
    later = seen(source, nothing)
    assert compared(world(moment(source=source.state()), later)) == []
    again = dataclasses.replace(nothing.state({}, SOURCE), incarnation="1")
    assert compared(world(seen(source, nothing), moment(source=source.state(), shadow=again))) == []
    other = dataclasses.replace(nothing.state({}, SHADOW))
    assert compared(world(seen(source, nothing), moment(source=source.state(), shadow=other))) == []


def test_verdicts_name_the_shadow_and_its_source() -> None:
    whole, part = Log("", WHOLE), Log("", WHOLE[:2])
    good = world(seen(whole, whole), seen(whole, whole))
    verdict = judge(good, differences(good), [], [])
    assert (verdict.state, verdict.exit_code) == (State.ALIGNED, 0)
    assert "1 shadow" in verdict.summary
    (subject,) = [one for one in verdict.subjects if one.topic == SHADOW]
    assert compared_text(subject) == "same as its source"
    bad = world(seen(whole, part, (3, 9)), seen(whole, part, (3, 9)))
    verdict = judge(bad, differences(bad), [], [])
    states = {(one.topic, one.subscription): one.state for one in verdict.subjects}
    assert states == {(SHADOW, ""): State.MISALIGNED, (SHADOW, "sub"): State.MISALIGNED}
    said = [line for one in verdict.subjects for line in troubles(one)]
    assert said == [  # ids there, of entries from any region; and how many a cursor passed cannot be told
        "ShadowIncomplete: 4 entries in us-east, shadow of public/default/orders: (3:-1, 3:3]",
        "ShadowCursorAhead: in us-east, shadow of public/default/orders: (3:3, 3:9]",
        "ShadowIncomplete: 4 entries (of the topic) in us-east, shadow of public/default/orders: (3:-1, 3:3]",
    ]
    assert behind(verdict, MaxLags(3000), 2000), "a shadow may lag for as long as other topics"
    verdict = judge(dataclasses.replace(bad, unreachable={REGION: "gone"}), differences(bad), [], [])
    assert verdict.state is State.UNKNOWN


def test_a_shadow_whose_source_was_not_read_is_unknown_unless_it_waits() -> None:
    def alone(shadow: Log) -> dict[str, RegionState]:
        return moment(shadow=shadow.state({}, SOURCE))

    full = world(alone(Log("", WHOLE)), alone(Log("", WHOLE)))
    verdict = judge(full, differences(full), [], [])
    assert verdict.state is State.UNKNOWN
    assert [pair.reasons for pair in verdict.pairs] == [(Reason.SOURCE_NOT_READ,)]
    (said,) = troubles(verdict.subjects[0])
    assert said == f"SourceNotRead: us-east (the export lacks its source, {SOURCE}: verify both topics)"
    waits = world(alone(Log("", ())), alone(Log("", ())))
    assert judge(waits, differences(waits), [], []).subjects == ()


def test_shadows_of_one_name_in_two_regions_are_not_compared_with_each_other() -> None:
    here, there = Log("", WHOLE), Log("5", ((7, 2),))
    shadows = [one.state({}, SOURCE) for one in (here, there)]
    states = {
        name: apart(RegionState(name, "s", 0, {SHADOW: shadow, f"{SOURCE}-{name}": one.state()}))
        for name, shadow, one in zip(("us-east", "us-west"), shadows, (here, there), strict=True)
    }
    told = World(("us-east", "us-west"), states, states, {}, 2000)
    assert SHADOW not in told.topics()
    assert told.regions_of(SHADOW) == []


def _row(place: Place, **more: Any) -> dict[str, Any]:
    origin = {"origin_region": REGION, "origin_ledger": place[0], "origin_entry": place[1]}
    head = {"region": REGION, "topic": SHADOW, "ledger": place[0], "entry": place[1], "prev_ledger": place[0]}
    rest = {"prev_entry": place[1] - 1, "checksum": 1, "size": 1, "messages": 1, "publish_ms": 5, "stored_ms": 5}
    return {**head, **origin, **rest, "key_hash": 0, "marker": False, "replicate_to": None, **more}


def _range(table: str, upto: Place, after: Place = EARLIEST, name: str = "sub") -> dict[str, Any]:
    bounds = dict(zip(("after_ledger", "after_entry", "upto_ledger", "upto_entry"), (*after, *upto), strict=True))
    head = {"taken": 2, "table": table, "region": REGION, "topic": SHADOW, "subscription": name, "epoch": ""}
    return {**head, "origin_region": REGION, **bounds}


@given(st.sets(st.integers(0, 9)), st.sets(st.integers(0, 9)), st.integers(-1, 9), st.sets(st.integers(0, 9)))
def test_what_a_subscription_skipped_was_acked_or_dropped(
    acked: set[int], dropped: set[int], mark_delete: int, ahead: set[int]
) -> None:
    entries = pa.Table.from_pylist([_row((1, number)) for number in range(10)], TABLES["entries"])
    rows = [_range("progress", (1, number), (1, number - 1)) for number in acked]
    rows += [_range("dropped", (1, number), (1, number - 1)) for number in dropped]
    rows += [_range("passed", (1, number), (1, number - 1)) for number in ahead]
    rows += [_range("passed", (1, mark_delete))] if mark_delete >= 0 else []
    rows += [_range("passed", (1, 9), name="reader"), _range("passed", (1, 9), name="other")]
    rows += [_range("progress", (1, 9), name="other")]
    shadow = Log("", ((1, 10),)).state({"sub": (1, mark_delete), "other": (1, 9)}, SOURCE)
    reader = Cursor(False, False, "", (1, 9), 0, "")
    shadow = dataclasses.replace(shadow, cursors={**shadow.cursors, "reader": reader})
    both = moment(source=Log("", ((1, 10),)).state(), shadow=shadow)
    ranges = pa.Table.from_pylist(rows, combined(RANGE_TABLES))
    evidence = gather(SHADOW, REGION, world(both, both), entries, ranges)
    lost = sorted((set(range(mark_delete + 1)) | ahead) - acked - dropped)
    found = lost_in_shadow(evidence, REGION)
    assert [(one.reason, one.subscription, one.shadow_of, one.entries) for one in found] == (
        [(Reason.PASSED_UNACKED, "sub", SOURCE, len(lost))] if lost else []
    )
    assert all(one.reason in LOSS for one in found)
