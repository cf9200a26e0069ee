# SPDX-License-Identifier: Apache-2.0
"""Paths, records, policies and trees: they are read back, and what is impossible is refused with an explanation."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from meridian_broker.metadata import keys, policy_table
from meridian_broker.metadata.errors import Invalid
from meridian_broker.metadata.limits import (
    BadRequest,
    after_prefix,
    check_path,
    check_prefix,
    collect_children,
)
from meridian_broker.metadata.policies import NamespaceRecord, boundaries
from meridian_broker.metadata.policy_values import (
    INACTIVE_MODES,
    QUOTA_KINDS,
    QUOTA_POLICIES,
    SUBSCRIPTION_TYPES,
    AutoSubscriptionCreation,
    AutoTopicCreation,
    BacklogQuota,
    DelayedDelivery,
    InactiveTopics,
    PublishRate,
    Retention,
)
from meridian_broker.metadata.records import (
    ClusterRecord,
    PartitionedTopicRecord,
    SchemaRecord,
    TenantRecord,
    decode,
    encode,
)
from meridian_broker.metadata.store import MetadataError, Put, Record
from meridian_broker.metadata.topic_records import LedgerRecord, TopicRecord
from meridian_broker.metadata.trees import Tree, fold_namespace, fold_tenant, unfold_namespace, unfold_tenant
from meridian_broker.positions.clock import Stamp
from meridian_broker.positions.position import Position
from meridian_broker.positions.skipped import Skipped
from meridian_broker.wire.pulsar.topic_name import TopicName

names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
entities = st.text("abcXYZ019-=:._", min_size=1, max_size=8)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
set_values = json_values.filter(lambda value: value not in (None, [], {}))
positions = st.builds(Position, st.integers(-1, 2**53), st.integers(-1, 2**31))
stamps = st.builds(Stamp, st.integers(0, 2**45), st.integers(0, 2**20), names)
topics = st.builds(
    TopicName,
    st.sampled_from(["persistent", "non-persistent"]),
    entities,
    entities,
    names.filter(lambda s: "/" not in s),
)

ledgers = st.builds(
    LedgerRecord,
    st.integers(0, 2**53),
    st.integers(0, 2**40),
    st.integers(0, 2**50),
    st.integers(0, 2**45),
    positions,
    st.dictionaries(names, positions, max_size=3),
    st.booleans(),
)
levels = st.fixed_dictionaries(
    {},
    optional={
        policy_table.RETENTION: st.builds(Retention, st.integers(1, 2**31), st.integers(-1, 2**31).filter(bool)),
        policy_table.MESSAGE_TTL: st.integers(0, 2**31),
        policy_table.DEDUPLICATION: st.booleans(),
        policy_table.MAX_MESSAGE_SIZE: st.integers(0, 2**31),
        policy_table.BACKLOG_QUOTAS: st.dictionaries(
            st.sampled_from(QUOTA_KINDS),
            st.builds(BacklogQuota, st.integers(-1, 2**50), st.integers(-1, 2**31), st.sampled_from(QUOTA_POLICIES)),
            min_size=1,
        ),
        policy_table.PUBLISH_RATE: st.dictionaries(
            entities, st.builds(PublishRate, st.integers(-1, 2**31), st.integers(-1, 2**50)), min_size=1, max_size=3
        ),
        policy_table.DELAYED_DELIVERY: st.builds(
            DelayedDelivery, st.booleans(), st.integers(1, 2**31), st.integers(0, 2**40)
        ),
        policy_table.INACTIVE_TOPICS: st.builds(
            InactiveTopics, st.booleans(), st.sampled_from(INACTIVE_MODES), st.integers(1, 2**31)
        ),
        policy_table.ENABLED_TYPES: st.frozensets(st.sampled_from(SUBSCRIPTION_TYPES), min_size=1),
        policy_table.AUTO_TOPICS: st.builds(AutoTopicCreation, st.booleans(), st.just(True), st.integers(1, 1000)),
        policy_table.AUTO_SUBSCRIPTIONS: st.builds(AutoSubscriptionCreation, st.booleans()),
    },
)
namespaces = st.builds(
    NamespaceRecord,
    replication_clusters=st.frozensets(entities, max_size=4),
    allowed_clusters=st.frozensets(entities, max_size=4),
    own=levels,
    bundles=st.integers(1, 1024),
    extra=st.dictionaries(names.map(lambda name: "x-" + name), set_values, max_size=3),
    deleting=st.booleans(),
)


def as_tree(path: str, leaves: dict[str, Any], version: int = 1) -> Tree:
    return Tree(path, {leaf: Record(encode(value), version) for leaf, value in leaves.items()})


@settings(max_examples=500)
@given(names)
def test_escaped_names_are_one_ascii_segment_and_are_read_back(name: str) -> None:
    segment = keys.escape(name)
    assert keys.unescape(segment) == name
    assert "/" not in segment
    check_path(f"/x/{segment}")


@settings(max_examples=500)
@given(topics, topics)
def test_different_topics_have_different_paths(one: TopicName, other: TopicName) -> None:
    for place in (keys.topic, keys.partitioned_topic, keys.deletion):
        assert (place(one) == place(other)) == (one == other)
        check_path(place(one))


def test_a_partition_shares_the_schemas_of_its_topic() -> None:
    topic = TopicName("persistent", "t", "n", "orders")
    assert keys.schemas_of(topic.with_partition(3)) == keys.schemas_of(topic)
    assert keys.schema_versions(topic.with_partition(3)) == keys.schema_versions(topic)


@settings(max_examples=500)
@given(json_values, st.none() | stamps)
def test_stored_values_are_read_back_with_their_stamp(value: Any, stamp: Stamp | None) -> None:
    assert decode("/p", encode(value, stamp)) == (value, stamp)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"{}",
        b"\xff",
        b"[1]",
        b'{"format":1}',
        b'{"format":1,"value":1,"stamp":[1]}',
        b'{"format":0,"value":1}',
    ],
)
def test_damaged_values_are_named(data: bytes) -> None:
    with pytest.raises(MetadataError, match="/where/it/is"):
        decode("/where/it/is", data)


def test_a_newer_format_is_refused_with_a_sentence() -> None:
    with pytest.raises(MetadataError, match=r"newer version of Meridian \(format 2, .*upgrade"):
        decode("/p", b'{"format":2,"value":{},"more":1}')


@settings(max_examples=500)
@given(
    st.builds(
        TopicRecord,
        st.text(max_size=20),
        st.dictionaries(names, st.text(max_size=8), max_size=3),
        st.lists(ledgers, max_size=3).map(tuple),
        st.lists(st.integers(0, 2**53), max_size=3).map(tuple),
        st.none() | st.lists(st.binary(max_size=20), max_size=3).map(tuple),
        positions,
        st.dictionaries(names, positions, max_size=3),
        st.none() | positions,
        st.dictionaries(names.map(lambda name: "x-" + name), json_values, max_size=2),
        topic_epoch=st.none() | st.integers(0, 2**53),
        holes=st.dictionaries(names, st.lists(st.tuples(positions, positions), min_size=1, max_size=3).map(tuple)),
        skipped=st.dictionaries(names, st.builds(Skipped, positions, positions, positions), max_size=3),
        skipped_before=st.dictionaries(names, st.tuples(st.tuples(positions, positions)), max_size=3),
        terminated_origins=st.dictionaries(names, positions, max_size=3),
    )
)
def test_topic_records_are_read_back(record: TopicRecord) -> None:
    assert TopicRecord.from_json(json.loads(json.dumps(record.to_json()))) == record


@settings(max_examples=500)
@given(
    st.builds(SchemaRecord, names, st.binary(max_size=50), st.dictionaries(names, names, max_size=2), st.integers(0))
)
def test_schema_records_are_read_back(record: SchemaRecord) -> None:
    assert SchemaRecord.from_json(json.loads(json.dumps(record.to_json()))) == record


@pytest.mark.parametrize(
    "found", [{"eu": ["1:2", "3:4"]}, {"eu": "1:2"}, {"eu": ["a", "b", "c"]}, ["eu"], {"eu": None}]
)
def test_a_topic_record_with_invalid_skipped_ranges_is_refused(found: object) -> None:
    with pytest.raises(Invalid, match="skipped"):
        TopicRecord.from_json({"skipped": found})


def test_a_schema_is_identified_by_type_and_definition_alone() -> None:
    schema = SchemaRecord("JSON", b"{}", {"a": "b"}, 5, 3)
    assert schema.content_id == SchemaRecord("JSON", b"{}").content_id
    assert schema.content_id != SchemaRecord("AVRO", b"{}").content_id
    assert schema.content_id != SchemaRecord("JSON", b"{ }").content_id


def test_unknown_fields_are_kept() -> None:
    cluster = {"serviceUrl": "http://a:8080", "peerClusterNames": ["x"], "brokerClientTlsEnabled": False}
    assert ClusterRecord.from_json(cluster).to_json().items() >= cluster.items()
    partitioned = {"partitions": 3, "properties": {}, "shape": "round"}
    assert PartitionedTopicRecord.from_json(partitioned).to_json() == partitioned
    policies = {"replication_clusters": ["a"], "max_things": 7, "clusterDispatchRate": {"a": {}}}
    assert NamespaceRecord.from_json(policies).to_json().items() >= policies.items()


@settings(max_examples=500)
@given(st.builds(TenantRecord, st.frozensets(names, max_size=4), st.frozensets(entities, max_size=4), st.booleans()))
def test_tenants_are_read_back_from_their_paths(record: TenantRecord) -> None:
    assert fold_tenant(as_tree("/geo/tenants/t", unfold_tenant(record))) == record


@settings(max_examples=500)
@given(namespaces, namespaces)
def test_namespaces_are_read_back_from_json_and_paths_and_become_others_by_writing_only_the_differences(
    before: NamespaceRecord, after: NamespaceRecord
) -> None:
    """One property, because drawing a namespace takes longer than all these checks."""
    read = NamespaceRecord.from_json(json.loads(json.dumps(before.to_json())))
    assert replace(read, deleting=before.deleting) == before
    tree = as_tree("/geo/namespaces/t/n", json.loads(json.dumps(unfold_namespace(before))), 7)
    assert fold_namespace(tree) == before
    for leaf in tree.records:
        check_path(tree.path + leaf)
    checks, operations = tree.writes(unfold_namespace(after), lambda _: Stamp(1, 0, "here"))
    records = dict(tree.records)
    for operation in operations:
        leaf = operation.path.removeprefix(tree.path)
        if isinstance(operation, Put):
            assert leaf not in records or records[leaf].value != encode(decode("", operation.value)[0])
            records[leaf] = Record(operation.value, 8)
        else:
            del records[leaf]
    found = fold_namespace(Tree(tree.path, records))
    assert found is not None
    assert replace(found, stamp=None) == after
    assert {check.path for check in checks} == {tree.path, *(operation.path for operation in operations)}
    assert all(check.version == (7 if check.path.removeprefix(tree.path) in tree.records else 0) for check in checks)


def test_lists_of_regions_have_one_path_per_element() -> None:
    leaves = unfold_namespace(NamespaceRecord(frozenset({"us-east", "eu"}), own={"message_ttl_in_seconds": 5}))
    assert leaves == {
        "": {},
        "/policies/replication_clusters/us-east": True,
        "/policies/replication_clusters/eu": True,
        "/policies/message_ttl_in_seconds": 5,
        "/policies/bundles": {"numBundles": 4},
    }


def test_a_namespace_without_its_base_is_not_visible() -> None:
    assert fold_namespace(as_tree("/n", {"/policies/message_ttl_in_seconds": 5})) is None
    assert fold_tenant(as_tree("/t", {"/roles/admin": True})) is None


@pytest.mark.parametrize(
    ("policies", "message"),
    [
        ({"retention_policies": {"retentionTimeInMinutes": 5, "retentionSizeInMB": 0}}, "both time and size to 0"),
        ({"retention_policies": {"retentionTimeInMinutes": -2, "retentionSizeInMB": 1}}, "the minimum is -1"),
        ({"retention_policies": {"retentionTimeInMinutes": "5"}}, "expected a whole number"),
        ({"retention_policies": 5}, "expected a JSON object"),
        ({"message_ttl_in_seconds": -1}, "cannot be negative"),
        ({"message_ttl_in_seconds": True}, "expected a whole number"),
        ({"deduplicationEnabled": 1}, "expected true or false"),
        ({"replication_clusters": "us-east"}, "expected a list"),
        ({"replication_clusters": [1]}, "expected a list of names"),
        ({"backlog_quota_map": {"moon": {}}}, "the kinds are"),
        ({"backlog_quota_map": {"message_age": {"policy": "explode"}}}, "not a backlog quota policy"),
        ({"bundles": {"numBundles": 0}}, "1 to 1024"),
        ([], "expected a JSON object"),
    ],
)
def test_impossible_policies_are_refused_with_an_explanation(policies: Any, message: str) -> None:
    with pytest.raises(Invalid, match=message):
        NamespaceRecord.from_json(policies)


def test_one_policy_is_set_and_removed() -> None:
    record = NamespaceRecord(frozenset({"a"}), deleting=True, stamp=Stamp(1, 2, "a"))
    with_ttl = record.with_policy("message_ttl_in_seconds", 60).with_policy("max_things", 3)
    assert (with_ttl.own, with_ttl.extra) == ({"message_ttl_in_seconds": 60}, {"max_things": 3})
    assert with_ttl.with_policy("message_ttl_in_seconds", None).with_policy("max_things", None) == record


def test_bundles_divide_the_hash_range_as_pulsar_writes_it() -> None:
    assert boundaries(4) == ["0x00000000", "0x40000000", "0x80000000", "0xc0000000", "0xffffffff"]
    assert boundaries(1) == ["0x00000000", "0xffffffff"]


paths = st.lists(st.text("ab-/0.z", min_size=1, max_size=5), min_size=1, max_size=4).map(
    lambda parts: "/" + "/".join(parts)
)


@settings(max_examples=500)
@given(st.sets(paths, max_size=30), st.integers(1, 4))
def test_paged_listing_finds_exactly_the_children(found: set[str], page_size: int) -> None:
    stored = sorted(path for path in found if "//" not in path and not path.endswith("/"))
    base = "/a/"
    expected = sorted({path.removeprefix(base).partition("/")[0] for path in stored if path.startswith(base)})
    listed: set[str] = set()
    at = base
    for _ in range(len(stored) + 1):
        page = [path for path in stored if at <= path < after_prefix(base)][:page_size]
        at = collect_children(base, page, listed)
        if len(page) < page_size:
            break
    assert sorted(listed) == expected


@settings(max_examples=500)
@given(st.text("ab/~!", min_size=1, max_size=4), st.text("ab/~!", max_size=6))
def test_the_end_of_a_prefix_is_after_everything_that_begins_with_it(prefix: str, text: str) -> None:
    assert text.startswith(prefix) == (prefix <= text < after_prefix(prefix))


@pytest.mark.parametrize("prefix", ["", "a", "/ä", "/ b", "/" + "x" * 40_000])
def test_bad_prefixes_are_refused(prefix: str) -> None:
    with pytest.raises(BadRequest):
        check_prefix(prefix)
