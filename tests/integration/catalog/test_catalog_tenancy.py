# SPDX-License-Identifier: Apache-2.0
"""Clusters, tenants and namespaces: what exists, what may be deleted, who wins."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest
from meridian_broker.engines.sqlite.metadata import SqliteMetadataStore
from meridian_broker.metadata import keys
from meridian_broker.metadata.catalog import Catalog
from meridian_broker.metadata.errors import AlreadyExists, Invalid, NotEmpty, NotFound
from meridian_broker.metadata.forwarding import ForwardingStore
from meridian_broker.metadata.policies import NamespaceRecord
from meridian_broker.metadata.records import ClusterRecord, TenantRecord
from meridian_broker.metadata.store import Record
from meridian_broker.wire.pulsar.topic_name import parse
from support.worlds.catalog_world import CLUSTERS, ORDERS, Interrupted


class TestBootstrap:
    async def test_it_makes_what_a_region_begins_with(self, catalog: Catalog) -> None:
        assert await catalog.clusters.names() == ["eu", "us-east", "us-west"]
        assert (await catalog.clusters.get("eu")).broker_service_url == "pulsar://eu:6650"
        assert (await catalog.tenants.get("public")).allowed_clusters == CLUSTERS.keys()
        assert (await catalog.namespaces.get("public/default")).replication_clusters == CLUSTERS.keys()

    async def test_a_second_run_sets_addresses_and_leaves_policies(self, catalog: Catalog) -> None:
        await catalog.namespaces.set_policy("public/default", "replication_clusters", ["us-east"])
        await catalog.clusters.put("eu", replace(CLUSTERS["eu"], extra={"peerClusterNames": ["x"]}))
        moved = {**CLUSTERS, "eu": ClusterRecord(broker_service_url="pulsar://moved:1"), "new": ClusterRecord()}
        await catalog.ensure_bootstrap(moved)
        record = await catalog.clusters.get("eu")
        assert (record.broker_service_url, record.extra) == ("pulsar://moved:1", {"peerClusterNames": ["x"]})
        assert (await catalog.tenants.get("public")).allowed_clusters == moved.keys()
        assert (await catalog.namespaces.get("public/default")).replication_clusters == {"us-east"}

    async def test_a_second_run_without_changes_writes_nothing(
        self, catalog: Catalog, store: SqliteMetadataStore
    ) -> None:
        before = await store.scan("/")
        await catalog.ensure_bootstrap(CLUSTERS)
        assert await store.scan("/") == before

    async def test_several_brokers_may_do_it_at_once(self, make: Callable[[], Catalog]) -> None:
        brokers = [make() for _ in range(5)]
        await asyncio.gather(*(broker.ensure_bootstrap(CLUSTERS) for broker in brokers))
        assert await brokers[0].namespaces.names("public") == ["public/default"]

    async def test_a_region_has_to_be_among_its_clusters(self, make: Callable[[], Catalog]) -> None:
        with pytest.raises(Invalid, match=r"us-east, is not among eu"):
            await make().ensure_bootstrap({"eu": ClusterRecord()})


class TestClusters:
    async def test_create_update_delete(self, catalog: Catalog) -> None:
        await catalog.clusters.create("asia", ClusterRecord("http://a"))
        with pytest.raises(AlreadyExists):
            await catalog.clusters.create("asia", ClusterRecord())
        await catalog.clusters.update("asia", ClusterRecord("http://b"))
        record = await catalog.clusters.get("asia")
        assert record.service_url == "http://b"
        assert record.stamp is not None
        assert record.stamp.region == "us-east"
        await catalog.clusters.delete("asia")
        for call in (catalog.clusters.get("asia"), catalog.clusters.delete("asia")):
            with pytest.raises(NotFound):
                await call
        with pytest.raises(NotFound):
            await catalog.clusters.update("asia", ClusterRecord())

    async def test_a_cluster_in_use_stays(self, catalog: Catalog) -> None:
        with pytest.raises(NotEmpty, match="tenant public, namespace public/default"):
            await catalog.clusters.delete("eu")

    @pytest.mark.parametrize("name", ["", "a/b", "a b", "ä", "x" * 3 + "\n"])
    async def test_bad_names(self, catalog: Catalog, name: str) -> None:
        with pytest.raises(Invalid):
            await catalog.clusters.put(name, ClusterRecord())
        with pytest.raises(Invalid):
            await catalog.tenants.create(name, TenantRecord())
        with pytest.raises(Invalid):
            await catalog.namespaces.create(f"public/{name}")


class TestTenants:
    async def test_create_update_delete(self, catalog: Catalog) -> None:
        record = TenantRecord(frozenset({"admin", "CN=ops/x"}), frozenset({"us-east"}))
        await catalog.tenants.create("acme", record)
        assert replace(await catalog.tenants.get("acme"), stamp=None) == record
        with pytest.raises(AlreadyExists):
            await catalog.tenants.create("acme", record)
        await catalog.tenants.update("acme", TenantRecord(allowed_clusters=frozenset({"eu"})))
        assert (await catalog.tenants.get("acme")).to_json() == {"adminRoles": [], "allowedClusters": ["eu"]}
        assert await catalog.tenants.names() == ["acme", "public"]
        await catalog.tenants.delete("acme")
        with pytest.raises(NotFound):
            await catalog.tenants.get("acme")
        with pytest.raises(NotFound):
            await catalog.tenants.update("acme", record)
        with pytest.raises(NotFound):
            await catalog.tenants.delete("acme")

    async def test_an_unknown_cluster_is_refused(self, catalog: Catalog) -> None:
        with pytest.raises(Invalid, match="moon"):
            await catalog.tenants.create("acme", TenantRecord(allowed_clusters=frozenset({"moon"})))

    async def test_a_tenant_with_namespaces_stays_and_stays_open(self, catalog: Catalog) -> None:
        with pytest.raises(NotEmpty, match="public/default"):
            await catalog.tenants.delete("public")
        await catalog.namespaces.create("public/other")

    async def test_two_people_who_change_two_roles_both_win(
        self, make: Callable[[], Catalog], catalog: Catalog
    ) -> None:
        """Roles are paths of their own: the store keeps what the other person did meanwhile."""
        await catalog.tenants.create("acme", TenantRecord(allowed_clusters=frozenset({"us-east"})))
        path = keys.tenant("acme")
        one, other = make()._access, make()._access
        tree = await one.tree(path)
        await other.change(path, lambda tree: {**tree.leaves(), "/roles/b": True})
        checks, operations = tree.writes({**tree.leaves(), "/roles/a": True}, one.stamp)
        assert await one.write(tree, checks, operations)
        assert (await catalog.tenants.get("acme")).admin_roles == {"a", "b"}


class TestNamespaces:
    async def test_create_with_and_without_policies(self, catalog: Catalog) -> None:
        await catalog.namespaces.create("public/plain")
        assert (await catalog.namespaces.get("public/plain")).replication_clusters == {"us-east"}
        wanted = NamespaceRecord.from_json(
            {"replication_clusters": ["eu", "us-east"], "message_ttl_in_seconds": 60, "max_producers_per_topic": 5}
        )
        await catalog.namespaces.create("public/full", wanted)
        found = await catalog.namespaces.get("public/full")
        assert replace(found, stamp=None) == wanted
        assert await catalog.namespaces.names("public") == ["public/default", "public/full", "public/plain"]
        with pytest.raises(AlreadyExists):
            await catalog.namespaces.create("public/full")

    async def test_its_tenant_and_clusters_have_to_exist(self, catalog: Catalog) -> None:
        with pytest.raises(NotFound, match="tenant nobody does not exist"):
            await catalog.namespaces.create("nobody/x")
        with pytest.raises(NotFound):
            await catalog.namespaces.names("nobody")
        with pytest.raises(NotFound):
            await catalog.namespaces.get("public/none")
        with pytest.raises(NotFound):
            await catalog.namespaces.set_policy("public/none", "message_ttl_in_seconds", 5)
        with pytest.raises(Invalid, match="moon"):
            await catalog.namespaces.create("public/x", NamespaceRecord(frozenset({"moon"})))

    async def test_a_cluster_has_to_be_allowed_to_the_tenant(self, catalog: Catalog) -> None:
        await catalog.tenants.create("acme", TenantRecord(allowed_clusters=frozenset({"us-east"})))
        await catalog.namespaces.create("acme/a")
        with pytest.raises(Invalid, match="eu: not among the tenant's allowed clusters"):
            await catalog.namespaces.set_policy("acme/a", "replication_clusters", ["us-east", "eu"])
        with pytest.raises(Invalid, match="at least one"):
            await catalog.namespaces.set_policy("acme/a", "replication_clusters", [])

    async def test_policies_changed_at_the_same_time_all_hold(
        self, make: Callable[[], Catalog], catalog: Catalog
    ) -> None:
        brokers = [make() for _ in range(4)]
        await asyncio.gather(
            *(brokers[i % 4].namespaces.set_policy("public/default", f"max_things_{i}", i) for i in range(12)),
            *(broker.namespaces.set_policy("public/default", "message_ttl_in_seconds", 9) for broker in brokers),
        )
        record = await catalog.namespaces.get("public/default")
        assert record.extra == {f"max_things_{i}": i for i in range(12)}
        assert record.own["message_ttl_in_seconds"] == 9
        assert record.replication_clusters == CLUSTERS.keys()

    async def test_setting_a_policy_of_a_known_namespace_does_not_read_it(
        self, make: Callable[[], Catalog], catalog: Catalog, store: SqliteMetadataStore
    ) -> None:
        class Counting(ForwardingStore):
            async def scan(self, prefix: str) -> list[tuple[str, Record]]:
                scanned.append(prefix)
                return await super().scan(prefix)

        scanned: list[str] = []
        counted = make()
        await counted.refresh()
        counted._access.store = Counting(store)
        await counted.namespaces.set_policy("public/default", "message_ttl_in_seconds", 9)
        assert not scanned, "the transaction checks what is remembered"
        await catalog.namespaces.set_policy("public/default", "message_ttl_in_seconds", 7)
        await counted.namespaces.set_policy("public/default", "message_ttl_in_seconds", 8)
        assert {*scanned} == {keys.namespace("public/default") + "/"}, "what was remembered was wrong"
        await counted.namespaces.set_policy("public/default", "message_ttl_in_seconds", 9)
        assert (await catalog.namespaces.get("public/default")).to_json()["message_ttl_in_seconds"] == 9

    async def test_clusters_are_checked_when_they_change(self, make: Callable[[], Catalog], catalog: Catalog) -> None:
        """Against what is stored, not what this broker remembers."""
        other = make()
        await other.refresh()
        tenant = await catalog.tenants.get("public")
        await catalog.tenants.update("public", replace(tenant, allowed_clusters=frozenset({"us-east"})))
        with pytest.raises(Invalid, match="not among the tenant's allowed clusters"):
            await other.namespaces.set_policy("public/default", "replication_clusters", ["us-east", "eu"])
        with pytest.raises(Invalid, match="at least one replication cluster"):
            await other.namespaces.set_policy("public/default", "replication_clusters", [])
        await other.namespaces.set_policy("public/default", "replication_clusters", ["us-east"])

    async def test_without_its_tenant_a_namespace_takes_no_policy(
        self, catalog: Catalog, store: SqliteMetadataStore
    ) -> None:
        """Another region deleted the tenant (R42)."""
        await store.delete(keys.tenant("public"))
        await catalog.refresh()
        with pytest.raises(NotFound, match="tenant public does not exist"):
            await catalog.namespaces.set_policy("public/default", "message_ttl_in_seconds", 9)

    async def test_a_policy_is_taken_away(self, catalog: Catalog) -> None:
        await catalog.namespaces.set_policy("public/default", "message_ttl_in_seconds", 9)
        record = await catalog.namespaces.set_policy("public/default", "message_ttl_in_seconds", None)
        assert "message_ttl_in_seconds" not in record.own
        assert "message_ttl_in_seconds" not in (await catalog.namespaces.get("public/default")).own

    async def test_a_namespace_with_topics_stays(self, catalog: Catalog) -> None:
        await catalog.topics.create(parse("non-persistent://public/default/x"))
        with pytest.raises(NotEmpty, match="holds x"):
            await catalog.namespaces.delete("public/default")
        await catalog.topics.create(ORDERS)  # reopened
        await catalog.topics.delete(ORDERS)
        await catalog.topics.delete(parse("non-persistent://public/default/x"))
        await catalog.partitioned.create(ORDERS, 2)
        with pytest.raises(NotEmpty, match="holds orders"):
            await catalog.namespaces.delete("public/default")
        await catalog.partitioned.delete(ORDERS)
        await catalog.namespaces.delete("public/default")
        with pytest.raises(NotFound):
            await catalog.namespaces.get("public/default")
        with pytest.raises(NotFound):
            await catalog.namespaces.delete("public/default")

    async def test_a_namespace_deleted_while_a_topic_is_being_made_gets_none(
        self, make: Callable[[], Catalog], catalog: Catalog, store: SqliteMetadataStore
    ) -> None:
        async def delete() -> None:
            await catalog.namespaces.delete("public/default")

        interrupted = make()
        interrupted._access.store = Interrupted(store, "transact", delete)
        with pytest.raises(NotFound, match="does not exist"):
            await interrupted.topics.create(ORDERS)
        assert await store.scan(keys.TOPICS) == []

    async def test_a_topic_made_just_before_its_namespace_is_closed_is_seen(
        self, make: Callable[[], Catalog], catalog: Catalog, store: SqliteMetadataStore
    ) -> None:
        async def create() -> None:
            await catalog.topics.create(ORDERS)

        interrupted = make()
        interrupted._access.store = Interrupted(store, "transact", create)
        with pytest.raises(NotEmpty, match="orders"):
            await interrupted.namespaces.delete("public/default")
        assert not (await catalog.namespaces.get("public/default")).deleting

    async def test_nothing_enters_a_namespace_while_it_is_searched_for_topics(
        self, make: Callable[[], Catalog], catalog: Catalog, store: SqliteMetadataStore
    ) -> None:
        async def create() -> None:
            with pytest.raises(NotFound, match="is being deleted"):
                await catalog.topics.create(ORDERS)
            with pytest.raises(NotFound, match="is being deleted"):
                await catalog.partitioned.create(ORDERS, 2)

        interrupted = make()
        interrupted._access.store = Interrupted(store, "children", create)
        await interrupted.namespaces.delete("public/default")
        assert await catalog.namespaces.names("public") == []

    async def test_a_namespace_with_very_many_policies_is_deleted_whole(
        self, catalog: Catalog, store: SqliteMetadataStore
    ) -> None:
        await catalog.namespaces.create("public/big")

        def with_hundred_more(record: NamespaceRecord) -> NamespaceRecord:
            first = len(record.extra)
            return replace(record, extra={**record.extra, **{f"max_things_{first + i}": 1 for i in range(100)}})

        for _ in range(3):
            await catalog.namespaces.update("public/big", with_hundred_more)
        with pytest.raises(Invalid, match="the limit is 127"):
            await catalog.namespaces.update("public/big", lambda r: replace(r, extra={}))
        await catalog.namespaces.delete("public/big")
        assert await store.scan(keys.namespace("public/big")) == []

    async def test_an_interrupted_deletion_is_finished_by_the_next_attempt(self, catalog: Catalog) -> None:
        access = catalog._access
        await access.change(keys.namespace("public/default"), lambda tree: {**tree.leaves(), "": {"deleting": True}})
        with pytest.raises(NotFound, match="is being deleted"):
            await catalog.topics.create(ORDERS)
        await catalog.namespaces.delete("public/default")
        assert await catalog.namespaces.names("public") == []
