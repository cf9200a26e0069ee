# SPDX-License-Identifier: Apache-2.0
"""An Apache Pulsar region beside Meridian regions: what its positions prove, and what stays unknown."""

from __future__ import annotations

import dataclasses
import json
import urllib.error
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from meridian_verifier.align.facts import EARLIEST, Link, Place, PulsarCursor, PulsarRegion, PulsarTopic, World
from meridian_verifier.align.findings import LOSS, Finding, Reason
from meridian_verifier.align.verdicts import State, judge
from meridian_verifier.source import pulsar as source
from meridian_verifier.source.client import RegionUnreachable
from meridian_verifier.source.pulsar import PulsarClient, topic_of
from meridian_verifier.source.regions import Region, RegionsError, read_regions_file
from support.verifier.stand_in_pulsar import answering, ok
from support.verifier.verdict_worlds import A, B, world
from support.verifier.verdict_worlds import topic as state_of
from support.verifier.verifier_worlds import REGIONS, SUBSCRIPTIONS, TOPIC, Entry, Simulation, whole

PULSAR = "apache"
several = settings(max_examples=settings().max_examples // 4)


def with_pulsar(there: Mapping[str, PulsarCursor], **changed: Any) -> World:
    """Two Meridian regions that replicate the topic to a Pulsar."""
    told = PulsarTopic((5, 9), {A: True, B: True}, there)
    states = {}
    for name, other in ((A, B), (B, A)):
        links = {other: Link(True, 0, 0), PULSAR: Link(True, 0, 0)}
        states[name] = dataclasses.replace(state_of(other), **{"links": links, **changed})
    seen = PulsarRegion({TOPIC: told}, {TOPIC: told})
    return dataclasses.replace(world(states, states), pulsar={PULSAR: seen})


def pairs(judged: World, findings: list[Finding] | None = None) -> dict[tuple[str, str, str], tuple[State, Any]]:
    verdict = judge(judged, findings or [], [], [])
    return {
        (pair.subscription, pair.source, pair.target): (pair.state, pair.reasons)
        for pair in verdict.pairs
        if PULSAR in (pair.source, pair.target)
    }


def cursor(mark_delete: Place = (5, 9), *, replicated: bool = True) -> PulsarCursor:
    return PulsarCursor(replicated, mark_delete)


def test_what_cannot_be_compared_is_unknown() -> None:
    judged = with_pulsar({"billing": cursor((5, 3))})
    found = pairs(judged)
    unknown = State.UNKNOWN, (Reason.NOT_COMPARABLE,)
    assert found["", A, PULSAR] == found["", PULSAR, B] == unknown, "nothing says which messages Pulsar has"
    assert found["billing", A, PULSAR] == unknown
    assert found["billing", PULSAR, A] == (State.ALIGNED, ()), "nothing is owed in the Meridian region"
    assert judge(judged, [], [], []).exit_code == 2
    assert pairs(with_pulsar({"billing": cursor((5, 9))}))["billing", A, PULSAR] == (State.ALIGNED, ())
    behind = {"billing": dataclasses.replace(judged.later[A].topics[TOPIC].cursors["billing"], backlog=3)}
    assert pairs(with_pulsar({"billing": cursor()}, cursors=behind))["billing", PULSAR, A] == unknown


def test_a_subscription_announced_to_pulsar_exists_there() -> None:
    assert pairs(with_pulsar({}))["billing", A, PULSAR] == (State.UNKNOWN, (Reason.NOT_COMPARABLE,))
    told = {"billing": {A: (3, 1)}}
    assert pairs(with_pulsar({}, told=told))["billing", A, PULSAR] == (
        State.MISALIGNED,
        (Reason.SUBSCRIPTION_MISSING,),
    )
    nothing = dataclasses.replace(with_pulsar({}, told=told), pulsar={PULSAR: PulsarRegion()})
    assert pairs(nothing)["billing", B, PULSAR] == (State.MISALIGNED, (Reason.TOPIC_MISSING,))
    alone = with_pulsar({"billing": cursor(replicated=False)})
    assert pairs(alone)["billing", A, PULSAR] == (State.MISALIGNED, (Reason.NOT_REPLICATED,))


def test_a_link_that_is_down_both_times_is_wrong() -> None:
    down = PulsarTopic((5, 9), {A: False, B: True}, {"billing": cursor()})
    judged = with_pulsar({"billing": cursor()})
    up = judged.pulsar[PULSAR].later
    both = dataclasses.replace(judged, pulsar={PULSAR: PulsarRegion({TOPIC: down}, {TOPIC: down})})
    assert pairs(both)["", PULSAR, A] == (State.MISALIGNED, (Reason.LINK_DOWN,))
    assert pairs(both)["", PULSAR, B][0] is State.UNKNOWN
    links = {PULSAR: Link(False, 0, 0)}
    plain = with_pulsar({"billing": cursor()}, links=links)
    assert pairs(plain)["", A, PULSAR][0] is State.UNKNOWN, "a region exports no such link"
    once = dataclasses.replace(judged, pulsar={PULSAR: PulsarRegion({TOPIC: down}, up)})
    assert pairs(once)["", PULSAR, A][0] is State.UNKNOWN


def test_a_pulsar_that_does_not_answer_or_was_not_named_is_unknown() -> None:
    judged = with_pulsar({"billing": cursor()})
    silent = dataclasses.replace(judged, pulsar={PULSAR: PulsarRegion()}, unreachable={PULSAR: "apache: no answer"})
    assert {state for state, _ in pairs(silent).values()} == {State.UNKNOWN}
    verdict = judge(silent, [], [], [])
    assert verdict.exit_code == 2 and PULSAR in verdict.summary
    stranger = dataclasses.replace(judged, pulsar={})
    assert all(Reason.NOT_ASKED in one.reasons for one in judge(stranger, [], [], []).subjects)


# -- entries that Pulsar published -----------------------------------------------------------------------------------


def seen_from_pulsar(simulation: Simulation, acked: set[Place], places: list[Place]) -> tuple[World, list[Finding]]:
    """One region of a made-up world is a Pulsar that acknowledged these of its own entries."""
    origin = REGIONS[0]
    mark_delete = EARLIEST
    for place in places:
        if place not in acked:
            break
        mark_delete = place
    ranges = tuple(
        ((ledger, entry - 1), (ledger, entry)) for ledger, entry in sorted(acked) if (ledger, entry) > mark_delete
    )
    told = PulsarTopic(places[-1], {}, dict.fromkeys(SUBSCRIPTIONS, PulsarCursor(True, mark_delete, ranges)))
    seen = simulation.world(REGIONS[1:])
    seen = dataclasses.replace(seen, pulsar={origin: PulsarRegion({TOPIC: told}, {TOPIC: told})})
    findings, _ = simulation.examined(REGIONS[1:], seen)
    return seen, [one for one in findings if origin in (one.source, one.target)]


@given(st.integers(0, 2**32), st.data())
@several
def test_only_what_pulsar_still_owes_and_nobody_acknowledged_is_wrong(seed: int, data: st.DataObject) -> None:
    simulation = Simulation(seed, trim=False)
    origin = REGIONS[0]
    stored = {copy.entry for region in REGIONS[1:] for copy in simulation.regions[region].log}
    own: list[Entry] = sorted(
        (one for one in simulation.known() if one.origin == origin and one in stored), key=lambda one: one.place
    )
    assume(own)
    places = [one.place for one in own]
    acked = set(data.draw(st.lists(st.sampled_from(places), unique=True)))
    name = data.draw(st.sampled_from(SUBSCRIPTIONS))
    told = data.draw(st.sampled_from(places))
    for region in REGIONS[1:]:
        simulation.regions[region].told = {name: {origin: told}}
    _, findings = seen_from_pulsar(simulation, acked, places)
    assert not {one.reason for one in findings} & LOSS
    bits_of: dict[Entry, int] = {}  # each region may have received part of a batch
    for region in REGIONS[1:]:
        for entry, bits in simulation.regions[region].firsthand[name].items():
            bits_of[entry] = bits_of.get(entry, 0) | bits
    received = {entry.place for entry, bits in bits_of.items() if entry.origin == origin and bits == whole(entry)}
    dropped = {
        entry.place
        for region in REGIONS[1:]
        for entry in simulation.regions[region].dropped[name]
        if entry.origin == origin
    }
    for region in REGIONS[1:]:
        progress = {
            entry.place
            for entry, bits in simulation.regions[region].earlier[name].items()
            if entry.origin == origin and bits == whole(entry) and entry.place in set(places)
        }
        counted = {
            (one.reason, one.source, one.target): one.entries
            for one in findings
            if one.subscription == name and region in (one.source, one.target)
        }
        owed = {place for place in progress if place <= told} - acked
        assert counted.pop((Reason.MISSING_ACK, region, origin), 0) == len(owed)
        ahead = counted.pop((Reason.AHEAD_OF_SOURCE, origin, region), 0)
        assert ahead <= len(progress - acked - received)
        assert ahead or progress <= acked | received | dropped, "only what both dropped is not acked"
        assert not counted


# -- its REST --------------------------------------------------------------------------------------------------------


STATS = {
    "subscriptions": {"a b": {"isReplicated": True}, "alone": {"replicated": False}, "gone": {"isReplicated": True}},
    "replication": {"west": {"connected": True}},
}
INSIDE = {
    "lastConfirmedEntry": "7:20",
    "cursors": {
        "a%20b": {
            "markDeletePosition": "7:-1",
            "individuallyDeletedMessages": "[(7:3..7:5],[7:7..7:7],(7:9..8:2)]",
        },
        "alone": {"markDeletePosition": "7:20", "individuallyDeletedMessages": "[]"},
    },
}


def test_positions_and_ranges_are_read() -> None:
    topic = topic_of(STATS, INSIDE)
    assert topic.end == (7, 20) and topic.links == {"west": True} and set(topic.cursors) == {"a b", "alone"}
    assert topic.cursors["a b"] == PulsarCursor(True, (7, -1), (((7, 3), (7, 5)), ((7, 6), (7, 7)), ((7, 9), (8, 1))))
    assert not topic.cursors["alone"].replicated


def usual(path: str) -> tuple[int, dict[str, str], bytes]:
    if "missing" in path:
        return 404, {}, b"{}"
    return ok(INSIDE if path.endswith("internalStats") else STATS)


def test_topics_are_requested_one_by_one_with_pulsars_own_token() -> None:
    with answering(usual) as (url, asked):
        found = PulsarClient(Region(PULSAR, url), "secret").read(
            ["persistent://shop/orders/a b", "persistent://shop/orders/missing"]
        )
    assert list(found) == ["persistent://shop/orders/a b"]
    assert {token for _, token in asked} == {"Bearer secret"}
    assert "/admin/v2/persistent/shop/orders/a%20b/stats" in {path for path, _ in asked}


def test_a_request_follows_redirects_to_the_topics_owner_but_never_without_tls() -> None:
    with (
        answering(usual) as (owner, _),
        answering(lambda path: (307, {"Location": owner + path}, b"")) as (first, _),
        answering(lambda path: (307, {"Location": "https://127.0.0.1:1" + path}, b"")) as (other, _),
        answering(lambda path: (307, {"Location": path}, b"")) as (circle, asked),
    ):
        assert set(PulsarClient(Region(PULSAR, first)).read([TOPIC])) == {TOPIC}
        with pytest.raises(RegionUnreachable, match="expected http"):
            PulsarClient(Region(PULSAR, other)).read([TOPIC])
        with pytest.raises(RegionUnreachable):
            PulsarClient(Region(PULSAR, circle)).read([TOPIC])
        assert len(asked) < 10


@pytest.mark.parametrize(
    "wrong",
    [
        (401, {}, b""),
        (503, {}, b""),
        (200, {}, b"not json"),
        ok([1]),
        ok({"lastConfirmedEntry": 5, "cursors": {}}),
        ok({"lastConfirmedEntry": "5:" + "9" * 40, "cursors": {}}),
        ok({"subscriptions": [], "lastConfirmedEntry": "5:1"}),
    ],
)
def test_an_answer_of_another_form_makes_the_region_unreachable(wrong: tuple[int, dict[str, str], bytes]) -> None:
    with (
        answering(lambda _: wrong) as (url, _),
        pytest.raises(RegionUnreachable, match=f"^{PULSAR}: not read at") as refused,
    ):
        PulsarClient(Region(PULSAR, url)).read([TOPIC])
    cause = refused.value.__cause__
    assert not isinstance(cause, urllib.error.HTTPError) or cause.closed, "it keeps no connection open"


def test_an_endless_answer_and_one_that_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(lambda _: ok("x" * (3 << 16))) as (url, _):
        monkeypatch.setattr(source, "ANSWER_BYTES", 1 << 16)
        with pytest.raises(RegionUnreachable, match="longer than"):
            PulsarClient(Region(PULSAR, url)).read([TOPIC])
        monkeypatch.setattr(source, "ANSWER_BYTES", 1 << 30)
        monkeypatch.setattr(source, "REGION_SECONDS", 0.0)
        with pytest.raises(RegionUnreachable, match="took longer than"):
            PulsarClient(Region(PULSAR, url)).read([TOPIC])
    with pytest.raises(RegionUnreachable):
        PulsarClient(Region(PULSAR, url)).read([TOPIC])


def test_a_regions_file_names_the_kind_of_each_region(tmp_path: Path) -> None:
    file = tmp_path / "regions.json"

    def listed(*regions: dict[str, str]) -> list[Region]:
        file.write_text(json.dumps({"regions": regions}))
        return read_regions_file(file)

    east = {"name": "east", "admin_url": "http://e:1/"}
    apache = {"name": PULSAR, "admin_url": "https://p:1", "kind": "pulsar"}
    assert [(one.name, one.kind) for one in listed(east, apache)] == [("east", "meridian"), (PULSAR, "pulsar")]
    with pytest.raises(RegionsError, match="kind 'kafka'"):
        listed(east, apache | {"kind": "kafka"})
    with pytest.raises(RegionsError, match="no region of Meridian"):
        listed(apache)
