# SPDX-License-Identifier: Apache-2.0
"""Each scope is shared separately: existing differences need a decision, and what belongs to a topic ends with it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import pytest
from meridian_broker.metadata import keys
from meridian_broker.metadata.records import SchemaRecord, encode
from meridian_broker.metadata.store import Delete
from meridian_broker.metadata.sync import paths
from meridian_broker.metadata.sync.catching_up import Comparison, compared, keep
from meridian_broker.metadata.sync.events import Event
from meridian_broker.metadata.sync.shapes import fault_of
from meridian_broker.metadata.sync.stamped import Stamped, canonical
from meridian_broker.metadata.sync.standing import Standing
from meridian_broker.positions.clock import Stamp
from meridian_broker.wire.pulsar.topic_name import parse
from support.worlds.sync_world import START_MS, PeerInMemory, SyncWorld, known_in

TENANT = keys.tenant("t")
TOPIC = parse("persistent://t/n/orders")
TTL = keys.topic_policies(TOPIC) + "/message_ttl_in_seconds"
BOTH = {paths.TENANTS, paths.NAMESPACES}


@pytest.fixture
def world() -> SyncWorld:
    return SyncWorld(["us", "eu"])


def write(world: SyncWorld, region: str, path: str, value: object) -> None:
    world.now_ms += 10
    assert world.finish(region, world.write(region, {path: value}))


def exchange(world: SyncWorld) -> None:
    for region in world.names:
        world.finish(region, world.publish(region))
    for region in world.names:
        for source in world.names:
            for index in world.deliverable(region, source):
                world.finish(region, world.deliver(region, source, index))


def standing(world: SyncWorld) -> Standing:
    return Standing(world.regions["us"].store, None, "us", lambda: world.now_ms, lambda: "1")  # type: ignore[arg-type]


def compare(world: SyncWorld, scopes: Collection[str] = paths.SCOPES.keys()) -> Comparison:
    async def run() -> Comparison:
        peer = await PeerInMemory.of(world, "eu", "us", scopes)
        return await compared(await known_in(world.regions["us"].store), peer, scopes)

    found: Comparison = world.finish("us", run())
    return found


def test_differences_are_decided_scope_by_scope(world: SyncWorld) -> None:
    one = standing(world)
    assert world.finish("us", one.joined("eu")) == frozenset()
    assert world.finish("us", one.join("eu", BOTH)) == BOTH
    write(world, "us", TENANT, {})
    write(world, "us", TTL, 5)
    write(world, "eu", TENANT, {})
    write(world, "eu", TTL, 6)
    found = compare(world)
    undecided = found.digest.scopes - world.finish("us", one.joined("eu"))
    assert found.differences(undecided) == [TTL]
    assert compare(world, BOTH).paths() == [], "regions compare what both share"
    assert world.finish("us", one.join("eu", undecided)) == paths.SCOPES.keys()
    world.finish("us", one.leave(BOTH))
    assert world.finish("us", one.joined("eu")) == BOTH, "shared again, it needs a decision again"


def test_a_decision_recorded_by_an_earlier_version_covers_its_scopes(world: SyncWorld) -> None:
    world.finish("us", world.regions["us"].store.put(paths.joined("eu"), encode(START_MS)))
    assert world.finish("us", standing(world).joined("eu")) == BOTH


def test_what_the_other_side_deleted_before_sharing_is_kept(world: SyncWorld) -> None:
    write(world, "us", TTL, 5)
    write(world, "eu", TTL, 6)
    write(world, "eu", TTL, None)
    assert world.finish("us", keep(compare(world), world.regions["us"].brokers[0].catalog, paths.SCOPES)) == 1
    world.quiet()
    world.check_agreement()
    assert world.values("eu") == {TTL: 5}


def test_a_deletion_that_follows_from_another_removes_nothing_newer(world: SyncWorld) -> None:
    """A topic is deleted in us. Before us has removed its policies, eu recreates it and sets one."""
    write(world, "us", TTL, 5)
    exchange(world)
    world.now_ms += 10
    deleted = Stamp(world.now_ms, 0, "us")
    write(world, "eu", TTL, 7)
    world.now_ms += 10
    catalog = world.regions["us"].brokers[0].catalog
    assert world.finish("us", catalog.transact([], [Delete(TTL, deleted)]))
    assert world.regions["us"].store.state(TTL) == Stamped(deleted, None)
    exchange(world)
    world.quiet()
    world.check_agreement()
    assert world.values("us") == {TTL: 7}


@pytest.mark.parametrize(("region", "stays"), [("us", False), ("eu", True)])
def test_after_the_mark_only_the_origin_of_a_deletion_sends_what_follows(
    world: SyncWorld, region: str, stays: bool
) -> None:
    write(world, "us", TTL, 5)
    deleted = Stamp(world.now_ms, 1, region)
    world.now_ms += 10
    world.finish("us", world.mark("us"))
    assert world.finish("us", world.regions["us"].brokers[0].catalog.transact([], [Delete(TTL, deleted)]))
    assert (TTL in world.values("us")) == stays


def test_a_later_policy_is_not_deleted(world: SyncWorld) -> None:
    write(world, "us", TTL, 5)
    before = Stamp(world.now_ms - 5, 0, "us")
    assert world.finish("us", world.regions["us"].brokers[0].catalog.transact([], [Delete(TTL, before)]))
    assert world.values("us") == {TTL: 5}


@pytest.mark.parametrize(
    ("path", "value", "is_served"),
    [
        (TTL, 5, True),
        (TTL, "soon", False),
        (keys.topic_policies(TOPIC), {}, False),
        (keys.TOPIC_POLICIES + "/t", 5, False),
        (keys.topic_policies(TOPIC) + "/replicationClusters/eu", True, True),
        (keys.topic_policies(TOPIC) + "/unknown_policy", {"any": 1}, True),
    ],
)
def test_policies_of_topics_are_validated_before_they_are_applied(path: str, value: object, is_served: bool) -> None:
    fault = fault_of(path, Event(path, Stamped(Stamp(1, 0, "eu"), canonical(value))).state)
    assert (fault is None) == is_served, fault


def test_schemas_are_a_set_without_conflicts(world: SyncWorld) -> None:
    """Equal schemas of two regions are one, however different the times at which they were stored."""
    one = SchemaRecord("JSON", b"one", timestamp_ms=1)
    path = keys.schema(TOPIC, one.content_id)
    write(world, "us", path, one.to_json())
    write(world, "eu", path, replace(one, timestamp_ms=2).to_json())
    assert compare(world).differences(paths.SCOPES) == []
    exchange(world)
    world.quiet()
    world.check_agreement()
    assert not world.conflicts("us") and not world.conflicts("eu")
    good, other = Stamped(Stamp(1, 0, "eu"), canonical(one.to_json())), keys.schema(TOPIC, "0" * 64)
    assert fault_of(path, good) is None
    assert "hash" in (fault_of(other, good) or "")
    assert fault_of(keys.schemas_of(TOPIC), good) is not None
    assert paths.parent_of(path) == keys.namespace("t/n")


@pytest.mark.parametrize(
    ("name", "value", "is_served"),
    [
        ("ap", {"brokerServiceUrlTls": "pulsar+ssl://ap:6651"}, True),
        ("ap", {}, True),
        ("ap/more", {}, False),
        ("a%2Fp", {}, False),
        ("ap", {"serviceUrlTls": "http://ap"}, False),
        ("ap", {"brokerServiceUrl": "file:///etc/passwd"}, False),
        ("ap", ["ap"], False),
    ],
)
def test_introductions_are_validated_before_they_are_applied(name: str, value: object, is_served: bool) -> None:
    path = f"{keys.INTRODUCTIONS}/{name}"
    assert paths.scope_of(path) == paths.CLUSTERS
    assert (fault_of(path, Stamped(Stamp(1, 0, "eu"), canonical(value))) is None) == is_served


def test_each_region_rules_its_own_cluster_record() -> None:
    assert paths.scope_of(keys.cluster("ap")) is None


def test_policies_of_topics_belong_to_a_namespace() -> None:
    assert paths.parent_of(TTL) == keys.namespace("t/n")


@pytest.mark.parametrize(
    ("path", "value", "is_served"),
    [
        (f"{keys.namespace_permissions('t/n')}/app", ["produce"], True),
        (f"{keys.namespace_permissions('t/n')}/a%2Fb", [], True),
        (f"{keys.topic_permissions(TOPIC)}/app", ["consume", "produce"], True),
        (keys.namespace_permissions("t/n"), ["produce"], False),
        (f"{keys.namespace_permissions('t/n')}/a/b", ["produce"], False),
        (f"{keys.namespace_permissions('t/n')}/a%0Ab", ["produce"], False),
        (f"{keys.namespace_permissions('t/n')}/{'x' * 1025}", ["produce"], False),
        (f"{keys.namespace_permissions('t/n')}/%61pp", ["produce"], False),
        (f"{keys.PERMISSIONS}/others/t/n/app", ["produce"], False),
        (f"{keys.namespace_permissions('t/n')}/app", ["everything"], False),
        (f"{keys.namespace_permissions('t/n')}/app", {"produce": True}, False),
        (f"{keys.topic_permissions(TOPIC)}/app", "produce", False),
    ],
)
def test_permissions_are_validated_before_they_are_applied(path: str, value: object, is_served: bool) -> None:
    assert paths.scope_of(path) == paths.PERMISSIONS
    assert (fault_of(path, Stamped(Stamp(1, 0, "eu"), canonical(value))) is None) == is_served


def test_permissions_belong_to_a_namespace() -> None:
    for path in (keys.namespace_permissions("t/n"), keys.topic_permissions(TOPIC)):
        assert paths.parent_of(f"{path}/app") == keys.namespace("t/n")
