# SPDX-License-Identifier: Apache-2.0
"""MetadataSyncPolicy: what is changed in which region, and what is reported. Pure: no cluster, no broker."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from meridian_operator.api.metadata_sync_policy import MetadataSyncPolicySpec, MetadataSyncPolicyStatus, PolicyRegion
from meridian_operator.handlers.deleting import FINALIZER
from meridian_operator.handlers.metadata_sync_policies import MetadataSyncPolicies, latest_conflicts
from meridian_operator.handlers.reconciling import look
from meridian_operator.handlers.reporting import Answer, Report
from meridian_operator.handlers.subject import Views
from meridian_operator.plan import changes, metadata_sync
from meridian_operator.plan.contenders import Contender
from meridian_operator.plan.history import History
from meridian_operator.plan.metadata_sync import EVENT_TOPIC, MAX_CLOCK_SKEW, SCOPES, TOMBSTONE_RETENTION
from meridian_operator.plan.observed import ConflictSeen, RegionSeen, SyncSeen
from meridian_operator.plan.outcome import READY, Finding
from meridian_operator.regions.synchronization import MOST_VALUE, synchronization
from pydantic import ValidationError
from support.kubernetes.field_effects import NAMES, TIME, Witnessed

EVENTS = "persistent://public/default/metadata-events"
CHOSEN = {EVENT_TOPIC: EVENTS, SCOPES: "namespaces,tenants"}
ON = SyncSeen(CHOSEN, enabled=True, synced=True)
OFF = SyncSeen()
YOUNGER = Contender("2026-02-01T00:00:00Z", "y", "second", "MetadataSyncPolicy", "second")


def policy(*regions: str, **fields: Any) -> MetadataSyncPolicySpec:
    return MetadataSyncPolicySpec.model_validate({"regions": list(regions or ("eu", "us")), **fields})


def region(name: str, sync: SyncSeen | None, **fields: Any) -> RegionSeen:
    return RegionSeen(name, f"http://{name}:8080", sync=sync, **fields)


def silent(name: str) -> RegionSeen:
    return region(name, None, problem="no answer")


def carried_out(seen: RegionSeen, planned: tuple[changes.Change, ...]) -> RegionSeen:
    """The region after the changes planned for it."""
    assert seen.sync is not None
    chosen = dict(seen.sync.chosen)
    for change in planned:
        match change:
            case changes.SetSetting(region=seen.name, key=key, value=value):
                chosen[key] = value
            case changes.RemoveSetting(region=seen.name, key=key):
                del chosen[key]
    return replace(seen, sync=replace(seen.sync, chosen=chosen, enabled=EVENT_TOPIC in chosen))


@pytest.mark.parametrize(
    "spec", [policy(), policy(scopes=["tenants"]), policy(suspend=True), policy(eventTopic=f"{EVENTS}-2")]
)
@pytest.mark.parametrize("before", [OFF, ON])
def test_a_plan_carried_out_leaves_nothing_to_do(spec: MetadataSyncPolicySpec, before: SyncSeen) -> None:
    seen = [region("eu", before), region("us", OFF)]
    after = [carried_out(one, metadata_sync.plan(spec, seen).changes) for one in seen]
    assert metadata_sync.plan(spec, after).is_done
    assert [one.sync is not None and one.sync.enabled for one in after] == [not spec.suspend] * 2


def test_the_retention_is_managed_by_the_object_too() -> None:
    """It is removed with the object's other settings, and when the object no longer names it."""
    planned = metadata_sync.plan(policy(tombstoneRetention="3d"), [region("us", ON)]).changes
    assert [one.sentence() for one in planned] == [f"us: set {TOMBSTONE_RETENTION} to 259200"]
    kept = replace(ON, chosen=CHOSEN | {TOMBSTONE_RETENTION: "259200"})
    assert metadata_sync.plan(policy(tombstoneRetention="3d"), [region("us", kept)]).is_done
    planned = metadata_sync.plan(policy(), [region("us", kept)]).changes
    assert [one.sentence() for one in planned] == [f"us: remove {TOMBSTONE_RETENTION}"]
    refused = metadata_sync.refusal(policy(tombstoneRetention="30m"))
    assert refused is not None and "the minimum is 1h" in refused[1]
    assert metadata_sync.refusal(policy(tombstoneRetention="0s")) is None


def test_the_clock_bound_is_managed_by_the_object_too() -> None:
    planned = metadata_sync.plan(policy(maxClockSkew="2s"), [region("us", ON)]).changes
    assert [one.sentence() for one in planned] == [f"us: set {MAX_CLOCK_SKEW} to 2"]
    kept = replace(ON, chosen=CHOSEN | {MAX_CLOCK_SKEW: "2"})
    assert metadata_sync.plan(policy(maxClockSkew="2s"), [region("us", kept)]).is_done
    planned = metadata_sync.plan(policy(), [region("us", kept)]).changes
    assert [one.sentence() for one in planned] == [f"us: remove {MAX_CLOCK_SKEW}"]
    for given, refused in {"0s": True, "500ms": True, "1s": False, "1h": False, "61m": True}.items():
        assert (metadata_sync.refusal(policy(maxClockSkew=given)) is not None) == refused


def test_scopes_are_set_before_the_topic_and_removed_after_it() -> None:
    """Otherwise a region would meanwhile share more than the object says."""
    spec = policy(scopes=["tenants"])
    planned = metadata_sync.plan(spec, [region("us", OFF)]).changes
    assert [one.sentence() for one in planned] == [f"us: set {SCOPES} to tenants", f"us: set {EVENT_TOPIC} to {EVENTS}"]
    off = metadata_sync.plan(policy(suspend=True), [region("us", ON)]).changes
    assert [one.sentence() for one in off] == [f"us: remove {EVENT_TOPIC}", f"us: remove {SCOPES}"]


def test_a_region_that_leaves_is_switched_off_and_then_forgotten() -> None:
    spec, history = policy("eu", "us"), History(established=frozenset({"ap", "eu", "us"}))
    seen = [region("eu", ON), region("us", ON), region("ap", ON)]
    planned = metadata_sync.plan(spec, seen)
    assert {one.region for one in planned.changes} == {"ap"}
    assert metadata_sync.established(seen, history) == ["ap", "eu", "us"]
    after = [*seen[:2], carried_out(seen[2], planned.changes)]
    assert metadata_sync.established(after, history) == ["eu", "us"]
    assert metadata_sync.established([*seen[:2], silent("ap")], history) == ["ap", "eu", "us"]


def test_settings_that_an_object_does_not_control_stay() -> None:
    other = {"someOtherSetting": "1"}
    assert metadata_sync.plan(policy(), [region("us", replace(ON, chosen=CHOSEN | other))]).is_done


def test_a_region_that_is_down_delays_the_others_only_in_a_deletion() -> None:
    seen = [region("eu", OFF), silent("us")]
    planned = metadata_sync.plan(policy(), seen)
    assert {one.region for one in planned.changes} == {"eu"}
    assert planned.problems == (("us", "RegionUnreachable", "us could not be asked: no answer"),)
    blocked = metadata_sync.deletion(policy(), [region("eu", ON), silent("us")])
    assert blocked.problems and not blocked.changes
    ended = metadata_sync.deletion(policy(), [region("eu", ON), region("us", OFF)])
    assert [one.region for one in ended.changes] == ["eu", "eu"]
    assert not metadata_sync.deletion(policy(), [region("eu", OFF), region("us", OFF)]).changes


def test_a_region_that_is_too_old_is_reported_and_delays_no_deletion() -> None:
    old = region("us", None, problem="its version cannot synchronize metadata", reason="NotSupported")
    assert metadata_sync.plan(policy(), [region("eu", ON), old]).problems
    ended = metadata_sync.deletion(policy(), [region("eu", ON), old])
    assert not ended.problems
    assert {one.region for one in ended.changes} == {"eu"}


def test_settings_of_the_brokers_own_are_not_changed_by_us() -> None:
    own = SyncSeen(enabled=True)
    told = metadata_sync.plan(policy(suspend=True), [region("us", own)])
    assert [reason for _, reason, _ in told.problems] == ["SetElsewhere"]
    assert not told.changes
    late = metadata_sync.plan(policy(), [region("us", replace(ON, enabled=False))])
    assert late.waiting and not late.problems, "a broker that was just set"


@pytest.mark.parametrize(
    ("seen", "status", "reason", "words"),
    [
        ([region("eu", ON), region("us", ON)], "True", "InSync", "all 2 regions"),
        ([region("eu", ON), region("us", replace(ON, synced=False))], "False", "CatchingUp", "us"),
        ([region("eu", ON), region("us", OFF)], "False", "CatchingUp", "us"),
        ([region("eu", ON), silent("us")], "Unknown", "RegionUnreachable", "us"),
        (
            [region("eu", replace(ON, troubles=("us: 2 entries differ",))), silent("us")],
            "False",
            "SyncBlocked",
            "eu: us",
        ),
        ([region("eu", ON), region("us", ON), region("ap", OFF)], "True", "InSync", "all 2 regions"),
    ],
)
def test_regions_are_in_sync_when_all_say_so(seen: list[RegionSeen], status: str, reason: str, words: str) -> None:
    found = metadata_sync.synced(policy(), seen)
    assert (found.type, found.status, found.reason) == ("Synced", status, reason)
    assert words in found.message


def test_what_keeps_regions_from_being_in_sync_is_reported_once() -> None:
    ready = Finding(READY, "True", "AsSpecified", "all as specified")
    blocked = metadata_sync.synced(policy(), [region("eu", replace(ON, troubles=("2 values differ from us",)))])

    def told(findings: list[Finding], status: Any) -> Answer:
        body = {"metadata": {"generation": 1}, "status": status}
        return Report(body, "2026-01-01T00:00:00Z").found(findings, MetadataSyncPolicyStatus())

    before = told([ready, metadata_sync.synced(policy(), [region("eu", ON), region("us", ON)])], {})
    late = told([ready, metadata_sync.synced(policy(), [region("eu", OFF), region("us", ON)])], before.status)
    assert not late.events, "it resolves by itself"
    assert late.again_seconds < before.again_seconds, "and it is checked again soon"
    first = told([ready, blocked], before.status)
    (event,) = first.events
    assert event.warning
    assert (event.reason, event.message) == ("SyncBlocked", "eu: 2 values differ from us")
    assert told([ready, blocked], {**before.status, **first.status}).events == ()


def test_suspended_regions_are_not_unknown() -> None:
    assert metadata_sync.synced(policy(suspend=True), [region("eu", OFF)]).reason == "Suspended"


@pytest.mark.parametrize(
    ("others", "off", "reason"),
    [([], ["ap", "eu", "us"], ""), (["eu"], ["ap", "us"], ""), ([*NAMES], [], "HandedOver")],
    ids=["none", "one region", "all regions"],
)
def test_it_is_removed_from_regions_that_no_other_policy_names(others: list[str], off: list[str], reason: str) -> None:
    spec = {"regions": [*NAMES], "deletionPolicy": "Delete"}
    meta = {"name": "all", "namespace": "y", "uid": "all", "generation": 1, "creationTimestamp": TIME}
    body = {"metadata": meta | {"deletionTimestamp": TIME, "finalizers": [FINALIZER]}, "spec": spec}
    own = Contender(TIME, "y", "all", "MetadataSyncPolicy", "all")
    contenders = {name: [own, YOUNGER] if name in others else [own] for name in NAMES}
    world = Witnessed(sync=ON)
    answer = asyncio.run(look(MetadataSyncPolicies(), body, Views({}, {}, {}, contenders), world))  # type: ignore[arg-type]
    assert sorted({one.region for one in world.made}) == off
    assert [one.reason for one in answer.events] == ([reason] if reason else [])


def test_invalid_policies_are_refused() -> None:
    with pytest.raises(ValidationError):
        policy(scopes=["topics"])
    with pytest.raises(ValidationError):
        policy("us")
    refused = metadata_sync.refusal(policy(eventTopic=f"{EVENTS}-partition-0"))
    assert refused is not None and refused[0] == "InvalidSpec"
    assert metadata_sync.refusal(policy()) is None


def test_the_last_conflicts_are_shown_with_both_values_and_who_won() -> None:
    def side(value: Any, region: str, *, deleted: bool = False) -> dict[str, Any]:
        return {"stamp": f"1-0@{region}", "region": region, "deleted": deleted, "value": value}

    gone = side(None, "eu", deleted=True)
    said = {"region": "eu", "enabled": True, "refusal": None, "conflicts": 7, "peers": {}}
    listed = [
        {"path": "/geo/tenants/a", "won": side({"n": 1}, "us"), "lost": gone | {"caller": "ann"}},
        {"path": "/geo/tenants/b", "won": side("x" * 5000, "us"), "lost": side(None, "eu") | {"caller": None}},
        *({"path": f"/geo/tenants/{number}", "won": side(2, "us"), "lost": side(3, "eu")} for number in range(5)),
    ]
    seen = synchronization(said, {}, {"conflicts": listed, "count": 7})
    assert seen.latest[0] == ConflictSeen("/geo/tenants/a", '{"n": 1}', "us", "", "eu", "ann")
    assert (len(seen.latest[1].won), seen.latest[1].lost, seen.latest[1].caller) == (MOST_VALUE, "...", "")
    assert len(seen.latest) == 5
    own = Contender(TIME, "y", "all", "MetadataSyncPolicy", "all")
    meta = {"name": "all", "namespace": "y", "uid": "all", "generation": 1, "creationTimestamp": TIME}
    body = {"metadata": meta, "spec": {"regions": [*NAMES]}}
    views = Views({}, {}, {}, {name: [own] for name in NAMES})
    world = Witnessed(sync=replace(ON, latest=seen.latest))
    answer = asyncio.run(look(MetadataSyncPolicies(), body, views, world))  # type: ignore[arg-type]
    told = answer.status["latestConflicts"]
    assert [one["path"] for one in told] == [one.path for one in seen.latest], "each once, however many regions tell it"
    first = {"won": '{"n": 1}', "winner": "us", "lost": "", "loser": "eu", "caller": "ann"}
    assert told[0] == {"path": "/geo/tenants/a"} | first


def test_a_conflict_found_by_several_regions_is_shown_once_with_the_role_that_one_knows() -> None:
    """Only the region that wrote the lost value knows who asked for it."""
    found = ConflictSeen("/geo/tenants/a", "80", "us", "70", "eu")
    seen = [
        RegionSeen(name, "", sync=replace(ON, latest=(replace(found, caller=caller),)))
        for name, caller in (("ap", ""), ("eu", "ann"), ("us", ""))
    ]
    (shown,) = latest_conflicts(seen)
    assert (shown.path, shown.won, shown.lost, shown.caller) == ("/geo/tenants/a", "80", "70", "ann")


def test_a_new_conflict_creates_one_event() -> None:
    def told(before: dict[str, int], now: dict[str, int], reason: str = "Settled") -> list[str]:
        old = {"regions": [{"name": name, "conflicts": count} for name, count in before.items()]}
        rows = [PolicyRegion(name=name, conflicts=count) for name, count in now.items()]
        findings = [Finding("Ready", "True", "Settled", ""), Finding("Synced", "True", "InSync", "")]
        condition = {"type": "Ready", "status": "True", "reason": reason, "message": "", "lastTransitionTime": "now"}
        body = {"metadata": {"generation": 1}, "status": old | {"conditions": [condition]}}
        events = Report(body, "now").found(findings, MetadataSyncPolicyStatus(regions=rows)).events
        return [f"{event.reason}: {event.message}" for event in events]

    said = "MetadataConflict: metadata writes that lost to another region's: "
    assert told({"eu": 0, "us": 1}, {"eu": 2, "us": 1}) == [f"{said}eu has 2; see `meridian metadata conflicts`"]
    assert told({}, {"eu": 1, "us": 3}) == [f"{said}eu has 1, us has 3; see `meridian metadata conflicts`"]
    assert told({"eu": 2, "us": 1}, {"eu": 2, "us": 0}) == []
    back = told({"eu": 0}, {"eu": 1}, "RegionUnreachable")
    assert back == ["Settled: ", f"{said}eu has 1; see `meridian metadata conflicts`"], "found as eu was reached again"
