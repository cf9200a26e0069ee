# SPDX-License-Identifier: Apache-2.0
"""Each subscription may lag for as long as its object says: before that nothing is wrong, after that it is."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from meridian_verifier.align.findings import Finding, Reason
from meridian_verifier.align.patience import MaxLags, behind, superseded, undecided
from meridian_verifier.align.verdicts import State, Verdict, judge
from meridian_verifier.cluster import Cluster, ClusterError
from meridian_verifier.wanted_lags import GROUP, KIND, max_lags, milliseconds
from support.kubernetes.api_server import serving
from support.verifier.verdict_worlds import CURSOR, A, B, finding, topic, world
from support.verifier.verifier_worlds import TOPIC

KEY = (TOPIC, "billing")
PATIENT = MaxLags(2000, {KEY: 30_000})


def verdict(*found: Finding, **changed: Any) -> Verdict:
    return judge(dataclasses.replace(world(), **changed), list(found), [], [])


def state(told: Verdict, subscription: str = "billing") -> State:
    (one,) = [one for one in told.subjects if one.subscription == subscription]
    return one.state


def test_a_lagging_subscription_is_compared_again_after_its_permitted_lag() -> None:
    seen = verdict(finding(Reason.MISSING_ACK, A, B))
    assert behind(seen, PATIENT, 2000) == {KEY: 30_000}
    assert behind(seen, PATIENT, 30_000) == {}
    assert behind(seen, MaxLags(2000), 2000) == {}, "no object allows it more"
    caught_up = superseded(seen, verdict(), [KEY])
    assert (caught_up.state, caught_up.findings) == (State.ALIGNED, ())
    assert superseded(seen, seen, [KEY]).findings == seen.findings, "still behind: listed once, not twice"
    assert superseded(seen, verdict(), []).state is State.MISALIGNED


def test_a_loss_is_not_excused_by_waiting() -> None:
    seen = verdict(finding(Reason.OVERCLAIMED, A, A))
    assert behind(seen, PATIENT, 2000) == {}
    both = verdict(finding(Reason.OVERCLAIMED, A, A), finding(Reason.MISSING_ACK, A, B))
    assert behind(both, PATIENT, 2000) == {KEY: 30_000}
    for told in (superseded(both, verdict(), [KEY]), undecided(both, [KEY])):
        assert (state(told), [one.reason for one in told.findings]) == (State.MISALIGNED, [Reason.OVERCLAIMED])


def test_a_subject_unknown_to_the_later_comparison_stays_as_it_was() -> None:
    seen = verdict(finding(Reason.MISSING_ACK, A, B))
    gone = judge(world({A: None, B: None}, {A: None, B: None}), [], [], [])
    assert superseded(seen, gone, [KEY]).state is State.MISALIGNED


def test_a_link_down_is_wrong_for_the_topic_when_wrong_for_its_most_patient_subscription() -> None:
    down = topic(B, link=False)
    seen = judge(world({A: down}, {A: down}), [], [], [])
    assert behind(seen, PATIENT, 2000) == {KEY: 30_000, (TOPIC, ""): 30_000}
    other = topic(B, link=False, cursors={"billing": CURSOR, "radar": CURSOR})
    seen = judge(world({A: other}, {A: other}), [], [], [])
    assert (TOPIC, "radar") not in behind(seen, PATIENT, 2000)


def test_what_is_not_waited_for_is_unknown() -> None:
    told = undecided(verdict(finding(Reason.MISSING_ACK, A, B)), [KEY])
    assert (told.state, told.findings) == (State.UNKNOWN, ())
    assert [one.reasons for one in told.subjects if one.key == KEY] == [(Reason.LAGGING,)]
    assert state(told, "") is State.ALIGNED


def test_partitions_are_as_patient_as_their_topic() -> None:
    lags = MaxLags(2000, {(TOPIC, "billing"): 30_000})
    seen = verdict(finding(Reason.MISSING_ACK, A, B))
    partition = f"{TOPIC}-partition-3"
    subjects = tuple(dataclasses.replace(one, topic=partition) for one in seen.subjects)
    assert lags.by_subject(dataclasses.replace(seen, subjects=subjects)) == {
        (partition, ""): 30_000,
        (partition, "billing"): 30_000,
    }


def replicated(name: str, lag: str | None, made: str = "2026-01-01T00:00:00Z", **spec: str) -> dict[str, Any]:
    wanted = {"topic": TOPIC, "subscription": "billing", **spec} | ({"maxLag": lag} if lag else {})
    return {"metadata": {"name": name, "namespace": "default", "creationTimestamp": made}, "spec": wanted}


def test_the_objects_say_how_patient_to_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(tmp_path, monkeypatch) as (api, account):
        cluster = Cluster(account)
        assert max_lags(cluster) == {}, "the kind is not installed"
        for number in range(1200):
            one = replicated(f"n{number}", "1m30s", subscription=f"s{number}")
            api.objects[f"{GROUP}/{KIND}/n{number}"] = one
        api.objects[f"{GROUP}/{KIND}/younger"] = replicated("younger", "5s", "2026-01-02T00:00:00Z")
        api.objects[f"{GROUP}/{KIND}/older"] = replicated("older", "500ms")
        api.objects[f"{GROUP}/{KIND}/silent"] = replicated("silent", None, subscription="silent")
        found = max_lags(cluster)
        assert len(found) == 1201, "page after page"
        assert (found[KEY], found[TOPIC, "s7"]) == (500, 90_000)
        api.objects[f"{GROUP}/{KIND}/odd"] = replicated("odd", "soon", subscription="odd")
        with pytest.raises(ClusterError, match="not a duration"):
            max_lags(cluster)
        api.refuses = lambda _method, _path: True
        with pytest.raises(ClusterError, match="HTTP 403"):
            max_lags(cluster)


def test_objects_of_other_namespaces_are_not_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If namespaces are configured, the verifier may list objects only in those."""
    with serving(tmp_path, monkeypatch) as (api, account):
        for namespace, lag in (("team-a", "1s"), ("team-b", "2s"), ("team-c", "3s")):
            one = replicated("x", lag, subscription=namespace)
            api.objects[f"{GROUP}/namespaces/{namespace}/{KIND}/x"] = one
        api.refuses = lambda _method, path: "/namespaces/team-a/" not in path and "/namespaces/team-b/" not in path
        assert max_lags(Cluster(account), ("team-a", "team-b")) == {(TOPIC, "team-a"): 1000, (TOPIC, "team-b"): 2000}


@pytest.mark.parametrize(
    ("text", "expected"), [("500ms", 500), ("30s", 30_000), ("1h30m", 5_400_000), ("2d", 172_800_000)]
)
def test_durations_are_those_of_the_custom_resource(text: str, expected: int) -> None:
    assert milliseconds(text) == expected


@pytest.mark.parametrize("text", ["", "soon", "5", "5 s", "-5s", "s"])
def test_invalid_durations(text: str) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        milliseconds(text)
