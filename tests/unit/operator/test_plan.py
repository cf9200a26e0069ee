# SPDX-License-Identifier: Apache-2.0
"""The operator's plans: what is to be done, and what is reported. Pure: no cluster, no broker."""

from __future__ import annotations

import re
from dataclasses import replace
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meridian_broker.server.settings import BY_KEY
from meridian_operator.api.crd import document
from meridian_operator.api.fields import Condition
from meridian_operator.api.geo_topic import GEO_TOPIC, GeoTopicSpec
from meridian_operator.api.quantities import duration_ms, size_bytes
from meridian_operator.api.replicated_subscription import ReplicatedSubscriptionSpec
from meridian_operator.handlers.reconciling import look
from meridian_operator.handlers.subject import Views
from meridian_operator.plan import changes, geo_topic, replicated_subscription
from meridian_operator.plan.contenders import Contender, heir, ruler
from meridian_operator.plan.history import History
from meridian_operator.plan.observed import Link, RegionSeen, SubscriptionSeen, TopicName, TopicSeen
from meridian_operator.plan.outcome import Finding, judge, merged
from pydantic import ValidationError
from support.kubernetes.field_effects import SUBJECTS, TIME, Witnessed

TOPIC = "persistent://public/default/orders"
NAME = TopicName.parse(TOPIC)
REGIONS = ["ap", "eu", "us"]


def geo(**fields: Any) -> GeoTopicSpec:
    return GeoTopicSpec.model_validate({"topic": TOPIC, "regions": REGIONS, **fields})


def region(name: str, topic: TopicSeen | None = None, **fields: Any) -> RegionSeen:
    return RegionSeen(name, f"http://{name}:8080", known_regions=frozenset(REGIONS), topic=topic, **fields)


def carried_out(seen: RegionSeen, planned: tuple[changes.Change, ...]) -> RegionSeen:
    """The region after the changes planned for it."""
    topic = seen.topic
    for change in planned:
        if change.region != seen.name:
            continue
        match change:
            case changes.CreateTopic(partitions=partitions):
                topic = TopicSeen(partitions)
            case changes.GrowTopic(partitions=partitions):
                topic = replace(topic, partitions=partitions) if topic else None
            case changes.SetPolicy(policy=policy, value=value):
                topic = replace(topic, policies={**topic.policies, policy: value}) if topic else None
            case changes.RemovePolicy(policy=policy):
                left = {name: value for name, value in (topic.policies if topic else {}).items() if name != policy}
                topic = replace(topic, policies=left) if topic else None
            case changes.AddSchema(type=kind, definition=definition):
                topic = (
                    replace(topic, schema={"type": kind, "sha256": sha256(definition.encode()).hexdigest()})
                    if topic
                    else None
                )
    return replace(seen, topic=topic)


specs = st.builds(
    geo,
    partitions=st.none() | st.integers(1, 8),
    retention=st.none() | st.fixed_dictionaries({"time": st.sampled_from(["0s", "72h", "-1"])}),
    messageTTL=st.none() | st.sampled_from(["30s", "7d"]),
    backlogQuota=st.none() | st.just({"size": "10Gi", "policy": "ProducerException"}),
    deduplication=st.none() | st.booleans(),
    schema=st.none() | st.just({"type": "JSON", "definition": "{}"}),
)
seen_topics = st.none() | st.builds(
    TopicSeen,
    partitions=st.integers(0, 8),
    policies=st.dictionaries(
        st.sampled_from(["retention", "messageTTL", "deduplicationEnabled", "replication"]), st.integers(0, 3)
    ),
)


@given(specs, st.lists(seen_topics, min_size=3, max_size=3), st.sets(st.sampled_from(REGIONS)), st.booleans())
def test_a_plan_carried_out_leaves_nothing_to_do(
    spec: GeoTopicSpec, topics: list[TopicSeen | None], down: set[str], managed: bool
) -> None:
    """Whatever the regions hold, and whichever are down: after one round, no change is left that could be made."""
    before = History(managed=("retention", "messageTTL") if managed else ())
    seen = [
        RegionSeen(name, "", problem="it is down") if name in down else region(name, topic)
        for name, topic in zip(REGIONS, topics, strict=True)
    ]
    planned = geo_topic.plan(spec, seen, before)
    assert not {change.region for change in planned.changes} & down, "a region that is down is left alone"
    after = [carried_out(one, planned.changes) for one in seen]
    again = geo_topic.plan(spec, after, before)
    assert again.changes == ()
    assert again.problems == planned.problems
    for one in planned.changes:
        assert one.sentence().startswith(f"{one.region}: ")


def test_a_region_that_is_down_delays_no_other() -> None:
    seen = [region("ap"), RegionSeen("eu", "", problem="connection refused"), region("us")]
    planned = geo_topic.plan(geo(partitions=3), seen)
    assert [change for change in planned.changes if isinstance(change, changes.CreateTopic)] == [
        changes.CreateTopic("ap", NAME, 3),
        changes.CreateTopic("us", NAME, 3),
    ]
    ready, _, degraded = judge(planned, REGIONS)
    assert (ready.status, ready.reason) == ("False", "RegionUnreachable")
    assert "connection refused" in ready.message
    assert degraded.message.startswith("1 of 3 regions")


@pytest.mark.parametrize(
    ("seen", "reason"),
    [
        (region("us", TopicSeen(0)), "PartitioningDiffers"),
        (region("us", TopicSeen(5)), "MorePartitions"),
        (replace(region("us"), namespace_exists=False), "NamespaceNotFound"),
        (replace(region("us"), known_regions=frozenset({"us"})), "RegionUnknown"),
    ],
)
def test_problems_that_no_change_fixes_are_reported(seen: RegionSeen, reason: str) -> None:
    planned = geo_topic.plan(geo(partitions=3), [seen])
    assert [problem[1] for problem in planned.problems] == [reason]
    assert not any(isinstance(change, changes.CreateTopic | changes.DeleteTopic) for change in planned.changes)


def test_only_policies_that_we_set_are_removed() -> None:
    topic = TopicSeen(0, {"replication": REGIONS, "messageTTL": 30, "retention": {"by": "somebody else"}})
    planned = geo_topic.plan(geo(), [region("us", topic)], History(managed=("messageTTL",)))
    assert planned.changes == (changes.RemovePolicy("us", NAME, "messageTTL"),)


def test_replicating_is_true_when_every_link_is_up() -> None:
    links = {name: tuple(Link(other, True, 0, 0) for other in REGIONS if other != name) for name in REGIONS}
    seen = [region(name, TopicSeen(0, links=links[name])) for name in REGIONS]
    assert geo_topic.replicating(geo(), seen).status == "True"
    broken = replace(seen[0], topic=TopicSeen(0, links=(Link("eu", True, 0, 0), Link("us", False, 7, 9))))
    told = geo_topic.replicating(geo(), [broken, *seen[1:]])
    assert (told.status, told.message) == ("False", "ap is not connected to us")


def subscribed(replicated: bool = True) -> SubscriptionSeen:
    return SubscriptionSeen(replicated, "1:2", 0, 3, 0, True)


def rsub(**fields: Any) -> ReplicatedSubscriptionSpec:
    return ReplicatedSubscriptionSpec.model_validate({"topic": TOPIC, "subscription": "billing", **fields})


def test_a_subscription_is_created_in_one_region_only() -> None:
    """ "Latest" is a different position in each region: the others learn of the subscription from that one (R15)."""
    seen = [region(name, TopicSeen(0)) for name in REGIONS]
    planned = replicated_subscription.plan(rsub(initialPosition="Latest"), seen)
    assert planned.changes == (changes.CreateSubscription("ap", NAME, "billing", earliest=False),)
    one = [replace(seen[0], subscription=subscribed()), *seen[1:]]
    waiting = replicated_subscription.plan(rsub(), one)
    assert waiting.changes == ()
    assert len(waiting.waiting) == 2
    assert judge(waiting, REGIONS)[1].reason == "Waiting"
    all_have = [replace(one, subscription=subscribed()) for one in seen]
    assert replicated_subscription.plan(rsub(), all_have).is_done


def test_a_region_that_is_being_filled_is_waited_for() -> None:
    """R21: the object is Ready once clients may fail over to every region."""
    there = {"replication": REGIONS}
    seen = [region(name, TopicSeen(0, there)) for name in REGIONS]
    assert geo_topic.plan(geo(), seen).is_done
    seen[0] = region("ap", TopicSeen(0, there, unfilled="7 entries of us are missing"))
    planned = geo_topic.plan(geo(), seen)
    assert (planned.changes, planned.problems) == ((), ())
    assert planned.waiting == ("ap is being backfilled: 7 entries of us are missing",)
    ready = judge(planned, REGIONS)[0]
    assert (ready.type, ready.status, ready.reason) == ("Ready", "False", "Progressing")


def test_an_existing_subscription_is_adopted() -> None:
    seen = [replace(region(name, TopicSeen(0)), subscription=subscribed(replicated=False)) for name in REGIONS]
    planned = replicated_subscription.plan(rsub(), seen)
    assert planned.changes == (changes.ReplicateSubscription("ap", NAME, "billing"),)


def test_one_region_is_told_the_dispatch_scope() -> None:
    local, origin = subscribed(), replace(subscribed(), scopes=frozenset({"origin"}))
    seen = [replace(region(name, TopicSeen(0)), subscription=local) for name in REGIONS]
    spec = rsub(dispatchScope="Origin")
    planned = replicated_subscription.plan(spec, seen)
    assert planned.changes == (changes.SetDispatchScope("ap", NAME, "billing", "origin"),)
    assert "dispatch scope origin" in planned.changes[0].sentence()
    told = [replace(seen[0], subscription=origin), *seen[1:]]
    assert replicated_subscription.plan(spec, told).changes == ()
    assert len(replicated_subscription.plan(spec, told).waiting) == len(REGIONS) - 1
    all_have = [replace(one, subscription=origin) for one in seen]
    assert replicated_subscription.plan(spec, all_have).is_done
    back = replicated_subscription.plan(rsub(), all_have)
    assert back.changes == (changes.SetDispatchScope("ap", NAME, "billing", "local"),)


def test_one_region_is_told_the_witness() -> None:
    origin = replace(subscribed(), scopes=frozenset({"origin"}))
    seen = [replace(region(name, TopicSeen(0)), subscription=origin) for name in REGIONS]
    spec = rsub(dispatchScope="Origin", witness="mars")
    planned = replicated_subscription.plan(spec, seen)
    assert planned.changes == (changes.SetDispatchScope("ap", NAME, "billing", "origin", "mars"),)
    assert "origin with witness mars" in planned.changes[0].sentence()
    has_it = [replace(one, subscription=replace(origin, witnesses=frozenset({"mars"}))) for one in seen]
    assert replicated_subscription.plan(spec, has_it).is_done
    assert replicated_subscription.plan(rsub(dispatchScope="Origin"), has_it).is_done, "an unset witness is left alone"


def test_a_dispatch_scope_that_is_not_in_force_is_a_problem() -> None:
    origin = replace(subscribed(), scopes=frozenset({"origin"}), scope_problem="eu runs a version without leases")
    seen = [replace(region(name, TopicSeen(0)), subscription=origin) for name in REGIONS]
    planned = replicated_subscription.plan(rsub(dispatchScope="Origin"), seen)
    assert planned.changes == ()
    assert {problem[1] for problem in planned.problems} == {"ScopeNotInForce"}
    assert "eu runs a version without leases" in planned.problems[0][2]


def test_a_scope_waits_for_the_subscription() -> None:
    seen = [region(name, TopicSeen(0)) for name in REGIONS]
    planned = replicated_subscription.plan(rsub(dispatchScope="Origin"), seen)
    assert [type(change) for change in planned.changes] == [changes.CreateSubscription]


def test_a_subscription_waits_for_its_topic() -> None:
    planned = replicated_subscription.plan(rsub(), [region(name) for name in REGIONS])
    assert planned.changes == ()
    assert {problem[1] for problem in planned.problems} == {"TopicNotFound"}


def test_a_condition_keeps_its_time_until_its_truth_changes() -> None:
    found = Finding("Ready", "True", "AsSpecified", "well")
    first = merged([], [found], 1, "2026-01-01T00:00:00Z")
    second = merged(first, [replace(found, message="very well")], 2, "2026-01-02T00:00:00Z")
    assert (second[0].last_transition_time, second[0].observed_generation) == ("2026-01-01T00:00:00Z", 2)
    third = merged(second, [replace(found, status="False")], 2, "2026-01-03T00:00:00Z")
    assert third == [
        Condition(
            type="Ready",
            status="False",
            observed_generation=2,
            last_transition_time="2026-01-03T00:00:00Z",
            reason="AsSpecified",
            message="well",
        )
    ]


def test_quantities() -> None:
    assert duration_ms("1h30m") == 5_400_000
    assert duration_ms("500ms") == 500
    assert size_bytes("10Gi") == 10 << 30
    for wrong in ("", "10", "h", "1w", "-1h"):
        with pytest.raises(ValueError, match="not a duration"):
            duration_ms(wrong)
    with pytest.raises(ValueError, match="not a size"):
        size_bytes("10GB")


@pytest.mark.parametrize(
    "wrong",
    [
        {"regions": ["us"]},
        {"topic": "orders"},
        {"partitions": 0},
        {"messageTTL": "soon"},
        {"retention": {"time": "for ever"}},
        {"nonsense": 1},
    ],
)
def test_specs_that_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        geo(**wrong)


HELD = History(established=frozenset(REGIONS))


def test_the_oldest_contender_rules_and_the_next_one_inherits() -> None:
    first, second = (
        Contender("2026-01-01", "b", "x", "GeoTopic", "1"),
        Contender("2026-01-02", "a", "x", "GeoTopic", "2"),
    )
    assert ruler([second, first]) == first
    assert heir([second, first], "1") == second
    assert heir([second._replace(leaving=True), first], "1") is None
    assert (ruler([]), heir([first], "1")) == (None, None)


def test_what_vanished_everywhere_is_not_recreated_unasked() -> None:
    nowhere = [region(name) for name in REGIONS]
    planned = geo_topic.plan(geo(), nowhere, HELD)
    assert planned.changes == ()
    assert {reason for _, reason, _ in planned.problems} == {"Vanished"}
    assert geo_topic.established(geo(), nowhere, HELD) == REGIONS, "and the status remembers that it existed"
    asked = geo_topic.plan(geo(), nowhere, replace(HELD, recreate=True))
    assert [type(change) for change in asked.changes].count(changes.CreateTopic) == len(REGIONS)


def test_a_region_that_lost_the_topic_gets_it_once_the_others_are_seen_to_keep_it() -> None:
    """A deletion spreading from region to region looks the same at first."""
    there = {"replication": REGIONS}
    seen = [region("ap"), region("eu", TopicSeen(0, there)), region("us", TopicSeen(0, there))]
    first = geo_topic.plan(geo(), seen, HELD)
    assert (first.changes, first.problems, len(first.waiting)) == ((), (), 1)
    then = History(established=frozenset(geo_topic.established(geo(), seen, HELD)))
    assert then.established == {"eu", "us"}
    assert changes.CreateTopic("ap", NAME, 0) in geo_topic.plan(geo(), seen, then).changes


def test_nothing_is_created_while_a_region_that_held_the_topic_is_silent() -> None:
    seen = [region("ap"), RegionSeen("eu", "", problem="it is down"), region("us")]
    planned = geo_topic.plan(geo(), seen, History(established=frozenset({"eu"})))
    assert planned.changes == ()
    assert [reason for _, reason, _ in planned.problems] == ["RegionUnreachable"]
    assert len(planned.waiting) == 2


def test_a_region_that_leaves_is_unlinked_and_remembered() -> None:
    two, there = geo(regions=["ap", "eu"]), TopicSeen(0, {"replication": ["ap", "eu"]})
    left = region("us", TopicSeen(0, {"replication": REGIONS}))
    seen = [region("ap", there), region("eu", there), left]
    planned = geo_topic.plan(two, seen, HELD)
    assert planned.changes == (changes.Unlink("us", NAME),)
    assert geo_topic.established(two, seen, HELD) == REGIONS
    alone = [*seen[:2], region("us", TopicSeen(0, {"replication": ["us"]}))]
    assert geo_topic.plan(two, alone, HELD).is_done
    assert geo_topic.established(two, alone, HELD) == ["ap", "eu"]
    assert geo_topic.left(two, alone, HELD) == ["us"]
    silent = [*seen[:2], RegionSeen("us", "", problem="it is down")]
    assert [reason for _, reason, _ in geo_topic.plan(two, silent, HELD).problems] == ["RegionUnreachable"]
    assert "us" in geo_topic.established(two, silent, HELD), "the region is unlinked once it is back"


def test_nothing_is_deleted_until_every_region_answers() -> None:
    topic = TopicSeen(0, {"replication": REGIONS})
    seen = [region("ap", topic), RegionSeen("eu", "", problem="it is down"), region("us", topic)]
    blocked = geo_topic.deletion(geo(), seen)
    assert (blocked.changes, [reason for _, reason, _ in blocked.problems]) == ((), ["RegionUnreachable"])
    given_up = geo_topic.deletion(geo(), [seen[0], seen[2]], ["eu"])
    assert given_up.changes == (
        changes.SetPolicy("ap", NAME, "replication", ["ap", "us"]),
        changes.SetPolicy("us", NAME, "replication", ["ap", "us"]),
        changes.DeleteTopic("ap", NAME, partitioned=False),
    )


def test_a_subscription_is_deleted_by_force_only_where_nobody_consumes() -> None:
    there = region("ap", TopicSeen(0))
    busy = replace(there, subscription=replace(subscribed(), consumers=2))
    assert [reason for _, reason, _ in replicated_subscription.deletion(rsub(), [busy], ["us"]).problems] == ["InUse"]
    idle = replace(there, subscription=subscribed())
    planned = replicated_subscription.deletion(rsub(), [idle], ["us"])
    assert planned.changes == (changes.DeleteSubscription("ap", NAME, "billing", force=True),)
    assert not replicated_subscription.deletion(rsub(), [idle]).changes[0].force  # type: ignore[attr-defined]


def test_a_subscription_that_vanished_is_not_recreated_unasked() -> None:
    seen = [region(name, TopicSeen(0)) for name in REGIONS]
    planned = replicated_subscription.plan(rsub(), seen, HELD)
    assert planned.changes == ()
    assert {reason for _, reason, _ in planned.problems} == {"Vanished"}
    asked = replicated_subscription.plan(rsub(), seen, replace(HELD, recreate=True))
    assert asked.changes == (changes.CreateSubscription("ap", NAME, "billing", earliest=True),)


def test_the_mode_of_a_topic_is_a_policy_of_each_region() -> None:
    spec = geo(subscriptionSync={"mode": "Snapshot"})
    assert geo_topic.refusal(spec) is None
    seen = [region(name, TopicSeen(0, policies={"replication": REGIONS})) for name in REGIONS]
    planned = geo_topic.plan(spec, seen)
    assert planned.changes == tuple(changes.SetPolicy(name, NAME, "subscriptionSync", "snapshot") for name in REGIONS)
    done = [carried_out(one, planned.changes) for one in seen]
    assert geo_topic.plan(spec, done).changes == ()
    back = geo_topic.plan(geo(), done, History(managed=("subscriptionSync",)))
    assert back.changes == tuple(changes.RemovePolicy(name, NAME, "subscriptionSync") for name in REGIONS)


@pytest.mark.parametrize(
    "field", [{"snapshotInterval": "5s"}, {"snapshotTimeout": "5s"}, {"snapshotCacheSize": 5}], ids=lambda one: min(one)
)
def test_how_snapshots_are_taken_is_a_setting_of_brokers(field: dict[str, Any]) -> None:
    told = geo_topic.refusal(geo(subscriptionSync={"mode": "Snapshot", **field}))
    assert told is not None and f"subscriptionSync.{min(field)}" in told[1]
    named = re.search(r"set (\w+) of the brokers", told[1])
    assert named is not None and named[1] in BY_KEY, "no broker has this setting"
    schema: Any = document(GEO_TOPIC)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for part in ("spec", "subscriptionSync", min(field)):
        schema = schema["properties"][part]
    assert schema["description"].startswith("Not supported") and named[1] in schema["description"]


def test_a_subscription_in_snapshot_mode_waits_for_its_topic_s_mode() -> None:
    spec, there = rsub(syncMode="Snapshot"), SubscriptionSeen(True, "1:1", 0, 0, 0, True)
    assert replicated_subscription.refusal(spec, REGIONS, REGIONS) is None
    exact = [region(name, TopicSeen(0), subscription=there) for name in REGIONS]
    planned = replicated_subscription.plan(spec, exact)
    assert planned.changes == () and [told.split()[0] for told in planned.waiting] == REGIONS
    policies = {"subscriptionSync": "snapshot"}
    seen = [region(name, TopicSeen(0, policies=policies), subscription=there) for name in REGIONS]
    assert replicated_subscription.plan(spec, seen).waiting == ()
    told = replicated_subscription.refusal(rsub(syncMode="Snapshot", dispatchScope="Origin"), REGIONS, REGIONS)
    assert told is not None and told[0] == "InvalidSpec"


NOW, BEFORE = "2026-01-01T12:00:00Z", "2026-01-01T10:59:59Z"
NO_VIEWS = Views({}, {}, {}, {})


def moving(*without: str, us: bool = False) -> TopicSeen:
    """A topic with subscriptions in snapshot mode, in a region that reaches ``eu``, and perhaps ``us``."""
    links = (Link("eu", True, 0, 0), Link("us", us, 0, 0))
    policies = {"subscriptionSync": "snapshot"}
    return TopicSeen(2, policies, links=links, takes_snapshots=True, without=frozenset(without))


def with_us_away(ap: TopicSeen, eu: TopicSeen) -> list[RegionSeen]:
    there = subscribed()
    return [
        region("ap", ap, subscription=there),
        region("eu", eu, subscription=there),
        RegionSeen("us", "", problem="it is down"),
    ]


def test_regions_go_on_without_one_that_was_silent_too_long() -> None:
    spec, seen = rsub(syncMode="Snapshot", partialSnapshotAfter="1h"), with_us_away(moving(), moving("us"))
    assert replicated_subscription.refusal(spec, REGIONS, REGIONS) is None

    (told,) = replicated_subscription.plan(spec, seen, lost=frozenset({"us"})).changes
    assert told == changes.GoOnWithout("ap", NAME, 2, ("us",)), "eu goes on already"
    assert told.warning == "PartialSnapshots"
    assert replicated_subscription.plan(spec, seen).changes == (), "not yet"


@pytest.mark.parametrize(
    ("since", "after", "left_out"),
    [
        ("2025-12-31T23:00:00Z", "1h", True),
        ("2025-12-31T23:00:01Z", "1h", False),
        ("2025-12-31T23:00:00Z", None, False),
        (None, "1ms", False),
    ],
)
async def test_a_region_is_waited_for_as_long_as_its_object_says(
    since: str | None, after: str | None, left_out: bool
) -> None:
    spec = {"topic": TOPIC, "subscription": "billing", "regions": REGIONS, "syncMode": "Snapshot"}
    meta = {"name": "x", "namespace": "y", "uid": "z", "generation": 1, "creationTimestamp": TIME}
    body = {
        "metadata": meta,
        "spec": spec if after is None else spec | {"partialSnapshotAfter": after},
        "status": {} if since is None else {"silent": [{"name": "us", "since": since}]},
    }
    world = Witnessed(topic=moving(), subscription=subscribed(), away=frozenset({"us"}))
    answer = await look(SUBJECTS["ReplicatedSubscription"], body, NO_VIEWS, world)  # type: ignore[arg-type]
    assert [type(one) for one in world.made] == [changes.GoOnWithout] * (2 if left_out else 0)
    assert [(one.reason, one.warning) for one in answer.events if one.reason != "RegionUnreachable"] == (
        [("PartialSnapshots", True)] if left_out else []
    )
    assert answer.status.get("silent", [{"name": "us", "since": since}]) == [{"name": "us", "since": since or TIME}]


def test_a_region_is_silent_where_nobody_reaches_it() -> None:
    history = History(silent={"us": BEFORE, "eu": BEFORE})
    assert replicated_subscription.silent(with_us_away(moving(), moving()), history, NOW) == {"us": BEFORE}
    assert replicated_subscription.silent(with_us_away(moving(), moving()), History(), NOW) == {"us": NOW}
    reached = with_us_away(moving(), moving(us=True))
    assert replicated_subscription.silent(reached, history, NOW) == {}, "eu reaches the region"
    nobody = [RegionSeen(name, "", problem="it is down") for name in REGIONS]
    assert replicated_subscription.silent(nobody, history, NOW) == {}, "the operator may be the one that is cut off"
    refused = [*reached[:1], RegionSeen("us", "", problem="no", reason="TokenRefused")]
    assert replicated_subscription.silent(refused, history, NOW) == {}, "the region answers"


def test_a_subscription_in_some_of_the_topic_s_regions_is_refused() -> None:
    links = (Link("eu", True, 0, 0), Link("us", True, 0, 0))
    seen = [region("ap", TopicSeen(0, links=links)), region("eu", TopicSeen(0))]
    planned = replicated_subscription.plan(rsub(regions=["ap", "eu"]), seen)
    assert (planned.changes, [reason for _, reason, _ in planned.problems]) == ((), ["NotSupported"])
    assert (replicated_subscription.refusal(rsub(regions=["ap", "eu"]), ["ap", "eu"], REGIONS) or ("",))[
        0
    ] == "NotSupported"


@pytest.mark.parametrize(
    ("retention", "policy"),
    [
        ({"time": "72h"}, (4320, -1)),
        ({"size": "10Gi"}, (-1, 10240)),
        ({"time": "0s", "size": "0"}, (0, 0)),
        ({"time": "-1", "size": "1Gi"}, (-1, 1024)),
    ],
)
def test_an_unset_retention_limit_is_no_limit(retention: dict[str, str], policy: tuple[int, int]) -> None:
    made = geo_topic.policies(geo(retention=retention))["retention"]
    assert (made["retentionTimeInMinutes"], made["retentionSizeInMB"]) == policy


def test_a_namespace_is_created_for_objects_that_ask_for_it() -> None:
    seen = [region("ap", namespace_exists=False), region("eu"), region("us")]
    refused = geo_topic.plan(geo(), seen)
    assert [reason for _, reason, _ in refused.problems] == ["NamespaceNotFound"]
    assert "createNamespace" in refused.problems[0][2]
    planned = geo_topic.plan(geo(createNamespace=True), seen)
    assert not planned.problems
    assert [type(one) for one in planned.changes if one.region == "ap"][:2] == [
        changes.CreateNamespace,
        changes.CreateTopic,
    ]
    assert not [one for one in planned.changes if isinstance(one, changes.CreateNamespace) and one.region != "ap"]


@pytest.mark.parametrize("wrong", ["999999999d", "1000000h", "soon", "-1s", "1.5h", ""])
def test_a_duration_is_limited_to_years(wrong: str) -> None:
    with pytest.raises(ValidationError):
        geo(messageTTL=wrong)
    assert geo(messageTTL="9999d").message_ttl == "9999d"
