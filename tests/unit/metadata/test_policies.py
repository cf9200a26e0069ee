# SPDX-License-Identifier: Apache-2.0
"""What applies to a topic: its own policies before its namespace's before the broker's settings, policy by policy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from meridian_broker.metadata import keys
from meridian_broker.metadata.errors import Invalid
from meridian_broker.metadata.policies import NamespaceRecord, TopicPolicies
from meridian_broker.metadata.policy_table import TABLE, parse_level, show_level
from meridian_broker.metadata.policy_values import BacklogQuota, InactiveTopics, PublishRate, Retention
from meridian_broker.metadata.records import decode, encode
from meridian_broker.metadata.rules import Rules, rules
from meridian_broker.metadata.store import Put, Record
from meridian_broker.metadata.trees import Tree, fold_namespace, fold_topic_policies, unfold_topic_policies
from meridian_broker.positions.clock import Stamp
from meridian_broker.wire.pulsar.topic_name import parse

HOLD = {"limitSize": 10, "limitTime": -1, "policy": "producer_request_hold"}
AGE = {"limitSize": -1, "limitTime": 60, "policy": "producer_exception"}

SIMPLE = {
    "retention_policies": ({"retentionTimeInMinutes": 1, "retentionSizeInMB": 2}, Retention(1, 2)),
    "message_ttl_in_seconds": (7, 7),
    "deduplicationEnabled": (True, True),
    "max_producers_per_topic": (3, 3),
    "compaction_threshold": (100, 100),
    "subscription_types_enabled": (["Shared"], frozenset({"Shared"})),
    "inactive_topic_policies": (
        {
            "inactiveTopicDeleteMode": "delete_when_subscriptions_caught_up",
            "maxInactiveDurationSeconds": 9,
            "deleteWhileInactive": True,
        },
        InactiveTopics(True, "delete_when_subscriptions_caught_up", 9),
    ),
}


@settings(max_examples=500)
@given(st.sets(st.sampled_from(sorted(SIMPLE))), st.sets(st.sampled_from(sorted(SIMPLE))))
def test_the_nearest_level_that_sets_a_policy_wins(namespace: set[str], topic: set[str]) -> None:
    """Namespace and topic set different values, and neither affects what only the other sets."""
    broker = Rules(message_ttl_seconds=1000, max_producers=1000)
    of_topic = parse_level({name: SIMPLE[name][0] for name in topic})
    of_namespace = {name: getattr(Rules(), TABLE[name].attribute) for name in namespace}
    found = rules(broker, "here", of_namespace, of_topic)
    for name, (_, value) in SIMPLE.items():
        attribute = TABLE[name].attribute
        expected = value if name in topic else getattr(Rules() if name in namespace else broker, attribute)
        assert getattr(found, attribute) == expected
    assert (
        replace(found, **{TABLE[name].attribute: getattr(broker, TABLE[name].attribute) for name in SIMPLE}) == broker
    )


def test_quotas_are_set_kind_by_kind_and_rates_region_by_region() -> None:
    broker = Rules(backlog_quotas={"message_age": BacklogQuota(-1, 5, "producer_request_hold")})
    namespace = parse_level(
        {
            "backlog_quota_map": {"destination_storage": HOLD, "message_age": AGE},
            "publishMaxMessageRate": {"here": {"publishThrottlingRateInMsg": 5}, "there": None},
        }
    )
    topic = parse_level(
        {
            "backlog_quota_map": {"destination_storage": {**HOLD, "limitSize": 20}},
            "publishMaxMessageRate": {"there": {"publishThrottlingRateInByte": 6}},
        }
    )
    found = rules(broker, "here", namespace, topic)
    assert {kind: quota.to_json() for kind, quota in found.backlog_quotas.items()} == {
        "destination_storage": {**HOLD, "limitSize": 20},
        "message_age": AGE,
    }
    assert found.publish_rate == PublishRate(5, 0)
    assert rules(broker, "there", namespace, topic).publish_rate == PublishRate(0, 6)
    assert rules(broker, "nowhere", namespace, topic).publish_rate == PublishRate()
    assert rules(broker, "here", {}, {}) is broker


def test_each_policy_and_each_element_has_a_path_of_its_own() -> None:
    record = TopicPolicies(parse_level({"message_ttl_in_seconds": 5, "backlog_quota_map": {"message_age": AGE}}))
    assert unfold_topic_policies(record) == {"/message_ttl_in_seconds": 5, "/backlog_quota_map/message_age": AGE}
    assert keys.topic_policies(parse("a/b/c-partition-3")) == "/geo/topic-policies/a/b/persistent/c"


def test_a_topics_policies_are_read_back_and_only_changes_are_written() -> None:
    record = (
        TopicPolicies().with_policy("backlog_quota_map", AGE, "message_age").with_policy("deduplicationEnabled", True)
    )
    records = {leaf: Record(encode(value), 3) for leaf, value in unfold_topic_policies(record).items()}
    tree = Tree("/geo/topic-policies/a/b/persistent/c", records)
    assert fold_topic_policies(tree) == record
    wanted = record.with_policy("backlog_quota_map", HOLD, "destination_storage")
    checks, operations = tree.writes(unfold_topic_policies(wanted), lambda _: Stamp(1, 0, "here"))
    (put,) = operations
    assert isinstance(put, Put)
    assert put.path == f"{tree.path}/backlog_quota_map/destination_storage"
    assert decode("", put.value) == (HOLD, Stamp(1, 0, "here"))
    assert {check.path: check.version for check in checks} == {tree.path: 0, put.path: 0}
    gone = wanted.with_policy("backlog_quota_map", None, "destination_storage").with_policy(
        "deduplicationEnabled", None
    )
    assert show_level(gone.own) == {"backlog_quota_map": {"message_age": AGE}}
    assert fold_topic_policies(Tree(tree.path, {})) is None


def test_quotas_that_an_earlier_version_stored_at_one_path_are_read() -> None:
    stored: dict[str, Any] = {
        "": {},
        "/policies/replication_clusters/here": True,
        "/policies/backlog_quota_map": {"message_age": AGE},
        "/policies/backlog_quota_map/destination_storage": HOLD,
    }
    tree = Tree("/geo/namespaces/a/b", {leaf: Record(encode(value), 1) for leaf, value in stored.items()})
    namespace = fold_namespace(tree)
    assert namespace is not None
    assert namespace.to_json()["backlog_quota_map"] == {"message_age": AGE, "destination_storage": HOLD}
    assert isinstance(namespace, NamespaceRecord)


@pytest.mark.parametrize(
    ("policy", "value", "message"),
    [
        ("max_consumers_per_topic", -1, "cannot be negative"),
        ("max_message_size", "big", "expected a whole number"),
        ("max_message_size", 10**4000, "a number of 13288 bits"),
        ("topicDispatchRate", {"here": {"ratePeriodInSecond": 10**400}}, "a number of 1329 bits"),
        ("publishMaxMessageRate", {"here": 5}, "expected a JSON object"),
        ("delayed_delivery_policies", {"tickTime": 0}, "the minimum is 1"),
        ("inactive_topic_policies", {"inactiveTopicDeleteMode": "now"}, "expected one of"),
        ("inactive_topic_policies", {"maxInactiveDurationSeconds": 0}, "the minimum is 1"),
        ("subscription_types_enabled", "Shared", "one or more"),
        ("subscription_types_enabled", ["Lonely"], "one or more"),
        ("autoTopicCreationOverride", {"allowAutoTopicCreation": True, "topicType": "partitioned"}, "is missing"),
        ("autoTopicCreationOverride", {"topicType": "round"}, "expected one of"),
        ("autoSubscriptionCreationOverride", {"allowAutoSubscriptionCreation": 1}, "expected true or false"),
    ],
)
def test_impossible_values_are_refused_with_an_explanation(policy: str, value: Any, message: str) -> None:
    with pytest.raises(Invalid, match=message):
        TopicPolicies().with_policy(policy, value)


def test_what_pulsars_tools_send_for_a_new_namespace_sets_nothing() -> None:
    """They send every policy there is, as null or as an empty collection."""
    sent: dict[str, Any] = {"subscription_types_enabled": [], "backlog_quota_map": {}, "retention_policies": None}
    assert parse_level(sent) == {}


def test_members_of_a_set_have_a_path_each() -> None:
    """Two people who each add a region do not undo each other's change (R41)."""
    chosen = TopicPolicies().with_policy("replicationClusters", {"us": True, "eu": True})
    assert sorted(unfold_topic_policies(chosen)) == ["/replicationClusters/eu", "/replicationClusters/us"]
    grown = chosen.with_policy("replicationClusters", True, "ap")
    assert rules(Rules(), "us", grown.own).regions == frozenset({"us", "eu", "ap"})
    assert rules(Rules(), "us", TopicPolicies().own).regions is None
    with pytest.raises(Invalid):
        chosen.with_policy("replicationClusters", "perhaps", "ap")
