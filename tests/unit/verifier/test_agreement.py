# SPDX-License-Identifier: Apache-2.0
"""Run, JSON, terminal, page, ConfigMap and custom resource say the same of a subject, whatever is wrong and wherever:
none is greener than another."""

from __future__ import annotations

import dataclasses
import io
import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from meridian_operator.plan.outcome import Finding as Condition
from meridian_operator.plan.verdicts import Verdicts, aligned
from meridian_verifier.align.facts import EARLIEST, Cursor, Link, RegionState, TopicState, World
from meridian_verifier.align.findings import Finding, Reason
from meridian_verifier.align.patience import undecided
from meridian_verifier.align.verdicts import EXIT_CODES, WORST_FIRST, State, Verdict, judge
from meridian_verifier.job import Timing
from meridian_verifier.report.configmap import LABEL, Run, manifests, rows, whole
from meridian_verifier.report.page import page
from meridian_verifier.report.summary import summary
from meridian_verifier.report.terminal import show
from rich.console import Console

REGIONS = ("us-east", "us-west", "eu-central")
TOPICS = ("persistent://public/default/flights", "persistent://public/default/hotels")
SUBSCRIPTIONS = ("billing", "radar")
NOW = datetime(2026, 1, 1, tzinfo=UTC)
RUN = Run("default", "run-1", NOW, timedelta(hours=1))
CURSOR = Cursor(replicated=True, durable=True, type="Shared", mark_delete=EARLIEST, backlog=0, epoch="")
SYMBOLS = {"✓": State.ALIGNED, "✗": State.MISALIGNED, "?": State.UNKNOWN}

Moment = dict[str, dict[str, TopicState]]


@dataclasses.dataclass
class Regions:
    """Three regions that agree, and what goes wrong in them."""

    earlier: Moment
    later: Moment
    findings: list[Finding] = dataclasses.field(default_factory=list)
    unreachable: dict[str, str] = dataclasses.field(default_factory=dict)

    @classmethod
    def sound(cls) -> Regions:
        def topics(region: str) -> dict[str, TopicState]:
            links = {other: Link(True, 0, 0) for other in REGIONS if other != region}
            return {topic: TopicState(links=links, cursors=dict.fromkeys(SUBSCRIPTIONS, CURSOR)) for topic in TOPICS}

        return cls({name: topics(name) for name in REGIONS}, {name: topics(name) for name in REGIONS})

    def change(self, moments: Iterable[Moment], region: str, topic: str, **fields: Any) -> None:
        for moment in moments:
            if topic in moment[region]:
                moment[region][topic] = dataclasses.replace(moment[region][topic], **fields)

    def cursor(self, moments: Iterable[Moment], region: str, topic: str, name: str, cursor: Cursor | None) -> None:
        for moment in moments:
            if topic in moment[region]:
                left = {one: known for one, known in moment[region][topic].cursors.items() if one != name}
                self.change([moment], region, topic, cursors=left | ({name: cursor} if cursor else {}))

    def verdict(self) -> Verdict:
        def states(moment: Moment) -> dict[str, RegionState]:
            asked = {name: topics for name, topics in moment.items() if name not in self.unreachable}
            return {name: RegionState(name, "s", 0, topics) for name, topics in asked.items()}

        made = World(REGIONS, states(self.earlier), states(self.later), self.unreachable, 2000)
        return judge(made, self.findings, [], [])


@dataclasses.dataclass(frozen=True)
class Place:
    """The subject and regions of a problem."""

    topic: str
    subscription: str
    """Empty: a problem of the topic."""
    source: str
    target: str
    """The same as ``source``: a problem of one region."""


Cause = Callable[[Regions, Place], None]


def seen(reason: Reason) -> Cause:
    """A finding of a rule."""

    def happen(regions: Regions, at: Place) -> None:
        found = Finding(reason, at.topic, at.subscription, "us-east", at.source, at.target, 3, 3, 1, 2, ())
        regions.findings.append(found)

    return happen


def epoch(earlier: str, later: str) -> Cause:
    def happen(regions: Regions, at: Place) -> None:
        for moments, region, text in (
            ([regions.earlier, regions.later], at.source, earlier),
            ([regions.later], at.target, later),
        ):
            changed = dataclasses.replace(CURSOR, epoch=text)
            regions.cursor(moments, region, at.topic, at.subscription, changed)

    return happen


def link_down(regions: Regions, at: Place) -> None:
    for moment in (regions.earlier, regions.later):
        if at.topic in moment[at.source]:
            links = dict(moment[at.source][at.topic].links) | {at.target: Link(False, 0, 0)}
            regions.change([moment], at.source, at.topic, links=links)


def no_subscription(regions: Regions, at: Place) -> None:
    regions.cursor([regions.earlier, regions.later], at.target, at.topic, at.subscription, None)


def not_replicated(regions: Regions, at: Place) -> None:
    local = dataclasses.replace(CURSOR, replicated=False)
    regions.cursor([regions.earlier, regions.later], at.target, at.topic, at.subscription, local)


def no_topic(regions: Regions, at: Place) -> None:
    for moment in (regions.earlier, regions.later):
        moment[at.target].pop(at.topic, None)


def other_life(regions: Regions, at: Place) -> None:
    regions.change([regions.later], at.target, at.topic, incarnation="another")


def silent(regions: Regions, at: Place) -> None:
    regions.unreachable[at.target] = f"{at.target}: connection refused"


def stranger(regions: Regions, at: Place) -> None:
    for moment in (regions.earlier, regions.later):
        if at.topic in moment[at.source]:
            links = dict(moment[at.source][at.topic].links) | {"ap-south": Link(True, 0, 0)}
            regions.change([moment], at.source, at.topic, links=links)


FOUND = (
    Reason.MISSING_ACK,
    Reason.PASSED_UNACKED,
    Reason.OVERCLAIMED,
    Reason.TRIMMED_UNACKED,
    Reason.OWED_ELSEWHERE,
    Reason.CHECKSUM_DIFFERS,
    Reason.ENTRY_MISSING,
    Reason.SKIPPED,
    Reason.ENTRY_DOUBLED,
    Reason.OUT_OF_ORDER,
    Reason.ORIGIN_ROLLED_BACK,
)
STRUCTURAL: dict[Reason, tuple[Cause, State]] = {
    Reason.EPOCH_BEHIND: (epoch("2", ""), State.MISALIGNED),
    Reason.LINK_DOWN: (link_down, State.MISALIGNED),
    Reason.SUBSCRIPTION_MISSING: (no_subscription, State.MISALIGNED),
    Reason.NOT_REPLICATED: (not_replicated, State.MISALIGNED),
    Reason.TOPIC_MISSING: (no_topic, State.MISALIGNED),
    Reason.REWOUND: (epoch("", "2"), State.UNKNOWN),
    Reason.INCARNATION: (other_life, State.UNKNOWN),
    Reason.UNREACHABLE: (silent, State.UNKNOWN),
    Reason.NOT_ASKED: (stranger, State.UNKNOWN),
}
PAIR = ("us-east", "us-west")
PLACES = [Place(TOPICS[0], subscription, PAIR[0], target) for subscription in ("", SUBSCRIPTIONS[0]) for target in PAIR]


def terminal(verdict: Verdict) -> dict[tuple[str, str], State]:
    """The symbol of each row of the terminal's table."""
    console = Console(file=io.StringIO(), width=400, record=True)
    show(verdict, console)
    told = {}
    for line in console.export_text().splitlines():
        row = re.match(r"│ (public/\S+) +│ (\(its entries\)|\S+) +│ ([✓✗?]) ", line)
        if row:
            name = "" if row[2].startswith("(") else row[2]
            told["persistent://" + row[1], name] = SYMBOLS[row[3]]
    return told


def on_page(verdict: Verdict) -> dict[tuple[str, str], State]:
    """The content of the page's table rows."""
    section = page(verdict).partition("<h2>Subscriptions</h2>")[2].partition("</section>")[0]
    rows_shown = re.findall(r'<tr><td>(public/[^<]+)</td><td>(.*?)</td><td><span class="chip (\w+)">', section)
    return {
        ("persistent://" + topic, "" if name.startswith("<") else name): State(state)
        for topic, name, state in rows_shown
    }


class Operator:
    """The operator's reading of ConfigMaps."""

    def __init__(self, written: list[dict[str, Any]]) -> None:
        self._verdicts = Verdicts({one["metadata"]["labels"][LABEL] for one in written})
        for one in written:
            self._verdicts.put(one)

    def condition(self, topic: str, subscription: str, now: datetime = NOW) -> Condition:
        time = now.strftime("%Y-%m-%dT%H:%M:%SZ")
        return aligned(self._verdicts.on(topic, subscription, time), time)


CONDITIONS = {State.ALIGNED: "True", State.MISALIGNED: "False", State.UNKNOWN: "Unknown"}


def check_agreement(verdict: Verdict) -> None:
    states = {one.key: one.state for one in verdict.subjects}
    assert terminal(verdict) == states
    assert on_page(verdict) == states
    told = summary(verdict, Timing(0, 0, 0), None)
    assert {(one["topic"], one["subscription"]): State(one["state"]) for one in told["subjects"]} == states
    operator = Operator(manifests(RUN, whole(verdict), rows(verdict), "a"))
    for (topic, subscription), state in states.items():
        assert operator.condition(topic, subscription).status == CONDITIONS[state], (topic, subscription)
    worst = min([*states.values(), *[State.UNKNOWN] * bool(verdict.world.unreachable)], key=WORST_FIRST.index)
    assert verdict.state is worst
    assert told["state"] == worst.value
    assert verdict.exit_code == EXIT_CODES[worst]
    for found in verdict.findings:
        concerned = [one for one in verdict.subjects if one.topic == found.topic]
        for one in concerned:
            if found.subscription in ("", one.subscription):
                assert one.state is State.MISALIGNED
                assert found.reason in one.reasons
        assert any(one.subscription == found.subscription for one in concerned)


def test_every_reason_occurs_here() -> None:
    of_metadata = {Reason.METADATA_BEHIND, Reason.METADATA_MISSING, Reason.METADATA_DIFFERS}  # see there
    of_shadows = {Reason.SHADOW_INCOMPLETE, Reason.SHADOW_STRANGE, Reason.SHADOW_CURSOR_AHEAD, Reason.SOURCE_NOT_READ}
    of_pulsar = {Reason.AHEAD_OF_SOURCE, Reason.NOT_COMPARABLE}
    assert {*FOUND, *STRUCTURAL, Reason.LAGGING} == set(Reason) - of_metadata - of_shadows - of_pulsar


def test_the_terminal_names_the_topic_of_each_finding() -> None:
    regions = Regions.sound()
    for topic in TOPICS:
        seen(Reason.PASSED_UNACKED)(regions, Place(topic, SUBSCRIPTIONS[0], "us-east", "us-east"))
    console = Console(file=io.StringIO(), width=200, record=True)
    show(regions.verdict(), console)
    wrong = console.export_text().partition("What is wrong")[2]
    for topic in TOPICS:
        assert re.search(rf"PassedUnacked +│ {topic.removeprefix('persistent://')} +│ billing +│ us-east ", wrong)


def test_names_that_clients_chose_are_shown_and_not_obeyed() -> None:
    """A closing tag without an opening one would end the command, and a control character the line."""
    regions = Regions.sound()
    seen(Reason.PASSED_UNACKED)(regions, Place(TOPICS[0], SUBSCRIPTIONS[0], "us-east", "us-east"))
    verdict = regions.verdict()
    name = "[/x][red]\x1b[2J\u202e<b>"
    told = dataclasses.replace(
        verdict,
        subjects=tuple(dataclasses.replace(one, subscription=name) for one in verdict.subjects),
        findings=tuple(dataclasses.replace(one, subscription=name, origin=name) for one in verdict.findings),
    )
    console = Console(file=io.StringIO(), width=200, record=True)
    show(told, console)
    text = console.export_text()
    assert all(line.isprintable() for line in text.split("\n"))
    assert r"[/x][red]\x1b[2J\u202e<b>" in text
    shown = page(told)
    assert "\u202e" not in shown and "\x1b" not in shown
    assert r"[/x][red]\x1b[2J\u202e&lt;b&gt;" in shown


def test_permitted_lag_is_reported_everywhere() -> None:
    regions = Regions.sound()
    at = Place(TOPICS[0], SUBSCRIPTIONS[0], *PAIR)
    seen(Reason.MISSING_ACK)(regions, at)
    link_down(regions, at)
    verdict = undecided(regions.verdict(), [(at.topic, name) for name in ("", *SUBSCRIPTIONS)])
    check_agreement(verdict)
    assert verdict.state is State.UNKNOWN
    assert {one.reasons for one in verdict.subjects if one.topic == at.topic} == {(Reason.LAGGING,)}


@pytest.mark.parametrize("at", PLACES, ids=lambda at: f"{at.subscription or 'topic'}, {at.target}")
@pytest.mark.parametrize("reason", FOUND)
def test_findings_of_rules_are_reported_everywhere(reason: Reason, at: Place) -> None:
    regions = Regions.sound()
    seen(reason)(regions, at)
    verdict = regions.verdict()
    check_agreement(verdict)
    red = {one.key for one in verdict.subjects if one.state is State.MISALIGNED}
    assert red == {(at.topic, name) for name in ([at.subscription] if at.subscription else ["", *SUBSCRIPTIONS])}
    operator = Operator(manifests(RUN, whole(verdict), rows(verdict), "a"))
    for name in SUBSCRIPTIONS:
        message = operator.condition(at.topic, name).message
        assert (reason in message) == ((at.topic, name) in red)
        assert ("of the topic" in message) == (not at.subscription), "and it says whose problem it is"


@pytest.mark.parametrize("reason", STRUCTURAL)
def test_what_regions_report_of_themselves_is_reported_everywhere(reason: Reason) -> None:
    cause, expected = STRUCTURAL[reason]
    regions = Regions.sound()
    cause(regions, Place(TOPICS[0], SUBSCRIPTIONS[0], *PAIR))
    verdict = regions.verdict()
    check_agreement(verdict)
    (one,) = [one for one in verdict.subjects if one.key == (TOPICS[0], SUBSCRIPTIONS[0])]
    assert (one.state, reason in one.reasons) == (expected, True)
    assert verdict.state is expected


def test_a_problem_of_the_topic_outweighs_an_unknown_subscription() -> None:
    regions = Regions.sound()
    at = Place(TOPICS[0], SUBSCRIPTIONS[0], *PAIR)
    epoch("", "2")(regions, at)
    link_down(regions, at)
    verdict = regions.verdict()
    check_agreement(verdict)
    (one,) = [one for one in verdict.subjects if one.key == (at.topic, at.subscription)]
    assert (one.state, one.reasons) == (State.MISALIGNED, (Reason.LINK_DOWN, Reason.REWOUND))


happenings = st.lists(
    st.tuples(
        st.sampled_from([seen(reason) for reason in FOUND] + [cause for cause, _ in STRUCTURAL.values()]),
        st.builds(
            Place,
            st.sampled_from(TOPICS),
            st.sampled_from(("", *SUBSCRIPTIONS, "new")),
            st.sampled_from(REGIONS),
            st.sampled_from(REGIONS),
        ),
    ),
    max_size=4,
)


@given(happenings)
@settings(max_examples=150, deadline=None)
def test_whatever_goes_wrong_together_no_output_is_greener_than_another(what: list[tuple[Cause, Place]]) -> None:
    regions = Regions.sound()
    for cause, at in what:
        cause(regions, at)
    check_agreement(regions.verdict())
