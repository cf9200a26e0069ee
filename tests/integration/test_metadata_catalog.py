# SPDX-License-Identifier: Apache-2.0
"""The region's catalog on the embedded store: what exists, what may be deleted, who wins, what is seen when."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from meridian_broker.engines.sqlite.metadata import SqliteMetadataStore
from meridian_broker.metadata import counters, keys
from meridian_broker.metadata.catalog import Catalog
from meridian_broker.metadata.errors import AlreadyExists, Contended, Invalid, NotEmpty, NotFound
from meridian_broker.metadata.policies import NamespaceRecord
from meridian_broker.metadata.records import (
    ClusterRecord,
    LedgerRecord,
    SchemaRecord,
    TenantRecord,
    TopicRecord,
    decode,
    encode,
)
from meridian_broker.metadata.store import MetadataError, MetadataUnavailable, Put, VersionConflict
from meridian_broker.metadata.view import Changed
from meridian_broker.positions.clock import HybridClock, Stamp
from meridian_broker.positions.position import Position
from meridian_broker.wire.pulsar.topic_name import TopicName, parse
from metadata_contract import wait_until

CLUSTERS = {
    name: ClusterRecord(f"http://{name}:8080", "", f"pulsar://{name}:6650", "") for name in ("us-east", "us-west", "eu")
}
NOW_MS = counters.EPOCH_2020_MS + 5 * 365 * 86_400_000


@dataclass
class Clock:
    now_ms: int = NOW_MS

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteMetadataStore]:
    opened = await SqliteMetadataStore.open(tmp_path / "metadata.db")
    yield opened
    await opened.close()


@pytest.fixture
def make(store: SqliteMetadataStore, clock: Clock) -> Callable[[], Catalog]:
    """Catalogs as several brokers of one region have them."""
    return lambda: Catalog(store, HybridClock(clock, "us-east"), clock, asyncio.sleep)


@pytest.fixture
async def catalog(make: Callable[[], Catalog]) -> Catalog:
    made = make()
    await made.ensure_bootstrap(CLUSTERS)
    return made


@contextlib.asynccontextmanager
async def running(catalog: Catalog) -> AsyncIterator[list[Changed]]:
    """``catalog.run`` with its watch in place, and what its listeners hear."""
    heard: list[Changed] = []
    stop = catalog.subscribe(heard.append)
    task = asyncio.create_task(catalog.run())
    try:
        await wait_until(lambda: Changed("everything", "") in heard)
        heard.clear()
        yield heard
    finally:
        stop()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


class Interrupted:
    """The real store, but something else happens once around a call: before a write or listing, after a read."""

    def __init__(self, store: SqliteMetadataStore, call: str, happening: Callable[[], Awaitable[None]]) -> None:
        self._store = store
        self._call = call
        self._happening: Callable[[], Awaitable[None]] | None = happening

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._store, name)
        if name != self._call:
            return real

        async def interrupted(*arguments: Any, **options: Any) -> Any:
            happening, self._happening = self._happening, None
            if name in ("get", "scan"):
                result = await real(*arguments, **options)
                if happening is not None:
                    await happening()
                return result
            if happening is not None:
                await happening()
            return await real(*arguments, **options)

        return interrupted


ORDERS = parse("orders")


class TestBootstrap:
    async def test_it_makes_what_a_region_begins_with(self, catalog: Catalog) -> None:
        assert await catalog.clusters.names() == ["eu", "us-east", "us-west"]
        assert (await catalog.clusters.get("eu")).broker_service_url == "pulsar://eu:6650"
        assert (await catalog.tenants.get("public")).allowed_clusters == CLUSTERS.keys()
        assert (await catalog.namespaces.get("public/default")).replication_clusters == CLUSTERS.keys()

    async def test_again_it_sets_addresses_and_leaves_policies(self, catalog: Catalog) -> None:
        await catalog.namespaces.set_policy("public/default", "replication_clusters", ["us-east"])
        await catalog.clusters.put("eu", replace(CLUSTERS["eu"], extra={"peerClusterNames": ["x"]}))
        moved = {**CLUSTERS, "eu": ClusterRecord(broker_service_url="pulsar://moved:1"), "new": ClusterRecord()}
        await catalog.ensure_bootstrap(moved)
        record = await catalog.clusters.get("eu")
        assert (record.broker_service_url, record.extra) == ("pulsar://moved:1", {"peerClusterNames": ["x"]})
        assert (await catalog.tenants.get("public")).allowed_clusters == moved.keys()
        assert (await catalog.namespaces.get("public/default")).replication_clusters == {"us-east"}

    async def test_unchanged_it_writes_nothing(self, catalog: Catalog, store: SqliteMetadataStore) -> None:
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

    async def test_one_in_use_stays(self, catalog: Catalog) -> None:
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

    async def test_one_with_namespaces_stays_and_stays_open(self, catalog: Catalog) -> None:
        with pytest.raises(NotEmpty, match="public/default"):
            await catalog.tenants.delete("public")
        await catalog.namespaces.create("public/other")

    async def test_two_people_who_change_two_roles_both_win(
        self, make: Callable[[], Catalog], catalog: Catalog
    ) -> None:
        """Roles are paths of their own: the store keeps what the other one did meanwhile."""
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

    async def test_what_it_needs_has_to_be_there(self, catalog: Catalog) -> None:
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

    async def test_a_policy_is_taken_away(self, catalog: Catalog) -> None:
        await catalog.namespaces.set_policy("public/default", "message_ttl_in_seconds", 9)
        record = await catalog.namespaces.set_policy("public/default", "message_ttl_in_seconds", None)
        assert "message_ttl_in_seconds" not in record.own
        assert "message_ttl_in_seconds" not in (await catalog.namespaces.get("public/default")).own

    async def test_one_with_topics_stays(self, catalog: Catalog) -> None:
        await catalog.topics.create(parse("non-persistent://public/default/x"))
        with pytest.raises(NotEmpty, match="holds x"):
            await catalog.namespaces.delete("public/default")
        await catalog.topics.create(ORDERS)  # open again
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

    async def test_nothing_enters_a_namespace_while_it_is_looked_through(
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

    async def test_one_with_very_many_policies_is_deleted_whole(
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

    async def test_an_interrupted_deletion_is_finished_by_the_next(self, catalog: Catalog) -> None:
        access = catalog._access
        await access.change(keys.namespace("public/default"), lambda tree: {**tree.leaves(), "": {"deleting": True}})
        with pytest.raises(NotFound, match="is being deleted"):
            await catalog.topics.create(ORDERS)
        await catalog.namespaces.delete("public/default")
        assert await catalog.namespaces.names("public") == []


class TestTopics:
    async def test_create_put_get_delete(self, catalog: Catalog) -> None:
        record, version = await catalog.topics.create(ORDERS, TopicRecord(properties={"a": "b"}))
        assert (record.incarnation, record.properties) == ("", {"a": "b"})
        grown = replace(
            record,
            ledgers=(LedgerRecord(1 << 50, own_before=Position(5, 6), origins_before={"eu": Position(1, 2)}),),
            progress_ledgers=(7,),
            last_origins={"eu": Position(3, 4)},
        )
        newer = await catalog.topics.put(ORDERS, grown, version)
        assert newer > version
        assert await catalog.topics.get(ORDERS) == (grown, newer)
        with pytest.raises(VersionConflict):
            await catalog.topics.put(ORDERS, record, version)
        with pytest.raises(AlreadyExists):
            await catalog.topics.create(ORDERS)
        await catalog.topics.delete(ORDERS)
        assert await catalog.topics.find(ORDERS) is None
        with pytest.raises(NotFound):
            await catalog.topics.get(ORDERS)
        with pytest.raises(NotFound):
            await catalog.topics.delete(ORDERS)
        with pytest.raises(VersionConflict):
            await catalog.topics.put(ORDERS, grown, newer)

    async def test_of_brokers_that_create_it_at_once_one_does(
        self, make: Callable[[], Catalog], catalog: Catalog
    ) -> None:
        results = await asyncio.gather(*(make().topics.create(ORDERS) for _ in range(8)), return_exceptions=True)
        assert sum(not isinstance(result, BaseException) for result in results) == 1
        assert sum(isinstance(result, AlreadyExists) for result in results) == 7

    async def test_it_needs_a_namespace(self, catalog: Catalog) -> None:
        with pytest.raises(NotFound, match="namespace public/none does not exist"):
            await catalog.topics.create(parse("public/none/t"))

    async def test_listing_by_namespace_and_domain(self, catalog: Catalog) -> None:
        await catalog.namespaces.create("public/default2")
        odd = TopicName("persistent", "public", "default", "späte 100% ?#")
        for topic in (
            ORDERS.with_partition(0),
            odd,
            parse("public/default2/x"),
            parse("non-persistent://public/default/np"),
        ):
            await catalog.topics.create(topic)
        assert set(await catalog.topics.names("public/default")) == {ORDERS.with_partition(0), odd}
        assert await catalog.topics.names("public/default", "non-persistent") == [
            parse("non-persistent://public/default/np")
        ]

    async def test_the_incarnation_is_the_stamp_of_the_last_deletion(self, catalog: Catalog, clock: Clock) -> None:
        await catalog.topics.create(ORDERS)
        first = await catalog.topics.delete(ORDERS)
        record, _ = await catalog.topics.create(ORDERS)
        assert record.incarnation == str(first)
        clock.now_ms -= 10_000  # a clock set back must not make an older incarnation
        second = await catalog.topics.delete(ORDERS)
        assert second > first
        record, _ = await catalog.topics.create(ORDERS)
        assert record.incarnation == str(second)

    async def test_a_deletion_of_another_region_keeps_its_stamp(self, catalog: Catalog) -> None:
        await catalog.topics.create(ORDERS)
        theirs = Stamp(NOW_MS + 5, 1, "eu")
        assert await catalog.topics.delete(ORDERS, theirs) == theirs
        record, _ = await catalog.topics.create(ORDERS)
        assert record.incarnation == str(theirs)
        assert await catalog.topics.delete(ORDERS, Stamp(NOW_MS, 0, "us-west")) == theirs, (
            "an older one changes nothing"
        )

    async def test_a_deletion_remembers_how_far_each_origin_had_come(self, catalog: Catalog) -> None:
        """R8: whose copy goes further holds messages that nobody here had."""
        assert await catalog.topics.deletion(ORDERS) is None
        await catalog.topics.create(ORDERS)
        stamp = await catalog.topics.delete(ORDERS, None, {"us-west": Position(7, 3), "eu": Position(2, 0)})
        assert await catalog.topics.deletion(ORDERS) == (stamp, {"us-west": (7, 3), "eu": (2, 0)}, False)
        await catalog.topics.create(ORDERS)
        stamp = await catalog.topics.delete(ORDERS, None, {"us-west": Position(7, 1), "eu": Position(9, 1)})
        assert await catalog.topics.deletion(ORDERS) == (stamp, {"us-west": (7, 3), "eu": (9, 1)}, False)
        part = ORDERS.with_partition(0)
        found = await catalog.topics.deletion(part)
        assert found == (stamp, {}, True), "the deletion of the whole counts for its parts"

    async def test_a_topic_is_moved_with_all_it_holds_and_without_its_policies(self, catalog: Catalog) -> None:
        aside = parse("public/default/orders-set-aside")
        ledger = LedgerRecord(7, 3, 100, 5)
        await catalog.topics.create(ORDERS, TopicRecord(properties={"a": "b"}, ledgers=(ledger,)))
        await catalog.topic_policies.set_policy(ORDERS, "message_ttl_in_seconds", 30)
        stamp = Stamp(NOW_MS + 5, 1, "eu")
        await catalog.topics.move(ORDERS, aside, {"why": "so"}, stamp)
        assert await catalog.topics.find(ORDERS) is None
        assert await catalog.topics.incarnation(ORDERS) == str(stamp)
        record, _ = await catalog.topics.get(aside)
        assert (record.ledgers, record.properties, record.incarnation) == ((ledger,), {"a": "b", "why": "so"}, "")
        assert not (await catalog.topic_policies.get(ORDERS)).own
        with pytest.raises(NotFound):
            await catalog.topics.move(ORDERS, aside, {}, stamp)

    async def test_a_policy_set_while_the_topic_is_deleted_goes_with_it(
        self, catalog: Catalog, store: SqliteMetadataStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await catalog.topics.create(ORDERS)
        transact, is_set = store.transact, False

        async def somebody_is_quicker(*arguments: Any) -> bool:
            nonlocal is_set
            if not is_set:
                is_set = True
                await catalog.topic_policies.set_policy(ORDERS, "message_ttl_in_seconds", 30)
            return await transact(*arguments)

        monkeypatch.setattr(store, "transact", somebody_is_quicker)
        await catalog.topics.delete(ORDERS)
        assert is_set
        assert not (await catalog.topic_policies.get(ORDERS)).own
        await catalog.topic_policies.set_policy(ORDERS, "message_ttl_in_seconds", 40)
        await catalog.topics.create(ORDERS)
        assert (await catalog.topic_policies.get(ORDERS)).own["message_ttl_in_seconds"] == 40

    async def test_deleting_a_partitioned_topic_counts_for_its_partitions(self, catalog: Catalog) -> None:
        await catalog.partitioned.create(ORDERS, 2)
        stamp = await catalog.partitioned.delete(ORDERS)
        await catalog.partitioned.create(ORDERS, 2)
        record, _ = await catalog.topics.create(ORDERS.with_partition(1))
        assert record.incarnation == str(stamp)


class TestPartitionedTopics:
    async def test_create_grow_delete(self, catalog: Catalog) -> None:
        record = await catalog.partitioned.create(ORDERS, 3, {"owner": "x"})
        assert record.partitions == 3
        assert await catalog.partitioned.get(ORDERS) == record
        with pytest.raises(AlreadyExists):
            await catalog.partitioned.create(ORDERS, 5)
        grown = await catalog.partitioned.grow(ORDERS, 5)
        assert (grown.partitions, grown.properties) == (5, {"owner": "x"})
        assert record.stamp is not None
        assert grown.stamp is not None
        assert grown.stamp > record.stamp
        assert await catalog.partitioned.grow(ORDERS, 5) == grown
        with pytest.raises(Invalid, match="no way back to 4"):
            await catalog.partitioned.grow(ORDERS, 4)
        assert await catalog.partitioned.names("public/default") == [ORDERS]
        await catalog.partitioned.delete(ORDERS)
        assert await catalog.partitioned.find(ORDERS) is None
        for call in (
            catalog.partitioned.get(ORDERS),
            catalog.partitioned.grow(ORDERS, 9),
            catalog.partitioned.delete(ORDERS),
        ):
            with pytest.raises(NotFound):
                await call

    async def test_concurrent_growing_ends_at_the_largest(self, make: Callable[[], Catalog], catalog: Catalog) -> None:
        await catalog.partitioned.create(ORDERS, 1)
        await asyncio.gather(*(make().partitioned.grow(ORDERS, n) for n in (2, 9, 4, 7)), return_exceptions=True)
        assert (await catalog.partitioned.get(ORDERS)).partitions == 9

    @pytest.mark.parametrize("partitions", [0, -1, 10_001])
    async def test_impossible_numbers(self, catalog: Catalog, partitions: int) -> None:
        with pytest.raises(Invalid, match="1 to 10000"):
            await catalog.partitioned.create(ORDERS, partitions)

    async def test_a_partition_cannot_be_partitioned(self, catalog: Catalog) -> None:
        with pytest.raises(Invalid, match="name of a partition"):
            await catalog.partitioned.create(ORDERS.with_partition(0), 2)

    async def test_a_topic_and_a_partitioned_topic_exclude_each_other(
        self, make: Callable[[], Catalog], catalog: Catalog
    ) -> None:
        await catalog.partitioned.create(ORDERS, 2)
        with pytest.raises(AlreadyExists, match="is partitioned"):
            await catalog.topics.create(ORDERS)
        await catalog.topics.create(ORDERS.with_partition(0))
        plain = parse("plain")
        await catalog.topics.create(plain)
        with pytest.raises(AlreadyExists, match="without partitions"):
            await catalog.partitioned.create(plain, 2)
        for i in range(10):
            both = parse(f"both-{i}")
            results = await asyncio.gather(
                make().topics.create(both), make().partitioned.create(both, 1), return_exceptions=True
            )
            assert sum(isinstance(result, AlreadyExists) for result in results) == 1


class TestSchemas:
    async def test_numbers_begin_at_0_and_the_same_content_has_one(self, catalog: Catalog) -> None:
        first = await catalog.schemas.add(ORDERS, SchemaRecord("JSON", b"one", {"p": "q"}, 5))
        second = await catalog.schemas.add(ORDERS.with_partition(3), SchemaRecord("JSON", b"two"))
        again = await catalog.schemas.add(ORDERS, SchemaRecord("JSON", b"one", timestamp_ms=99))
        assert [first.version, second.version] == [0, 1]
        assert again == first
        assert await catalog.schemas.all(ORDERS) == [first, second]
        assert await catalog.schemas.get(ORDERS) == second
        assert await catalog.schemas.get(ORDERS, 0) == first
        for missing in (2, -1):
            with pytest.raises(NotFound, match=f"no schema of version {missing}"):
                await catalog.schemas.get(ORDERS, missing)
        with pytest.raises(NotFound, match="no schema"):
            await catalog.schemas.get(parse("other"))

    async def test_added_at_once_each_content_has_one_number(
        self, make: Callable[[], Catalog], catalog: Catalog
    ) -> None:
        added = await asyncio.gather(
            *(make().schemas.add(ORDERS, SchemaRecord("AVRO", b"%d" % (i % 4))) for i in range(12))
        )
        numbers = {record.data: record.version for record in added}
        assert sorted(numbers.values()) == [0, 1, 2, 3]
        assert all(record.version == numbers[record.data] for record in added)

    async def test_a_number_is_not_given_again_after_deleting(
        self, catalog: Catalog, store: SqliteMetadataStore
    ) -> None:
        assert await catalog.schemas.delete(ORDERS) == -1
        for i in range(130):
            await catalog.schemas.add(ORDERS, SchemaRecord("JSON", b"%d" % i))
        assert await catalog.schemas.delete(ORDERS) == 129
        assert await catalog.schemas.all(ORDERS) == []
        assert await store.scan(keys.SCHEMAS) == []
        with pytest.raises(NotFound):
            await catalog.schemas.get(ORDERS, 3)
        assert (await catalog.schemas.add(ORDERS, SchemaRecord("JSON", b"3"))).version == 130

    async def test_limits(self, catalog: Catalog) -> None:
        largest = SchemaRecord("JSON", bytes(512 << 10))
        await catalog.schemas.add(ORDERS, largest)
        assert (await catalog.schemas.get(ORDERS)).data == largest.data
        with pytest.raises(Invalid, match="the limit is"):
            await catalog.schemas.add(ORDERS, SchemaRecord("JSON", bytes((512 << 10) + 1)))
        with pytest.raises(NotFound, match="namespace"):
            await catalog.schemas.add(parse("public/none/t"), SchemaRecord("JSON", b""))


class TestLedgerIds:
    async def test_they_grow_with_time_and_are_never_repeated(self, make: Callable[[], Catalog], clock: Clock) -> None:
        brokers = [make() for _ in range(3)]
        seen: list[int] = []
        for turn in range(3):
            seen += await asyncio.gather(*(brokers[i % 3].allocate_ledger_id() for i in range(200)))
            clock.now_ms += 1000
            assert len(set(seen)) == 200 * (turn + 1)
        assert min(seen) >= (NOW_MS - counters.EPOCH_2020_MS) << 12
        assert max(seen) < 1 << 53

    async def test_a_block_costs_one_write(self, make: Callable[[], Catalog], store: SqliteMetadataStore) -> None:
        catalog = make()
        first = await catalog.allocate_ledger_id()
        record = await store.get(keys.LEDGER_IDS)
        assert [await catalog.allocate_ledger_id() for _ in range(63)] == list(range(first + 1, first + 64))
        assert await store.get(keys.LEDGER_IDS) == record
        await catalog.allocate_ledger_id()
        assert await store.get(keys.LEDGER_IDS) != record

    async def test_a_clock_set_back_repeats_none(self, make: Callable[[], Catalog], clock: Clock) -> None:
        before = await make().allocate_ledger_id()
        clock.now_ms -= 86_400_000
        assert await make().allocate_ledger_id() == before + (1 << 12)

    async def test_a_region_restored_from_an_old_backup_repeats_none(
        self, make: Callable[[], Catalog], clock: Clock, store: SqliteMetadataStore
    ) -> None:
        await make().allocate_ledger_id()
        backup = await store.get(keys.LEDGER_IDS)
        assert backup is not None
        clock.now_ms += 60_000
        later = await make().allocate_ledger_id()
        await store.put(keys.LEDGER_IDS, backup.value)
        clock.now_ms += 1
        assert await make().allocate_ledger_id() > later + 64

    async def test_regions_that_start_together_number_their_ledgers_differently(
        self, clock: Clock, tmp_path: Path
    ) -> None:
        """A client that moves by itself brings ids along: there they must not be those of other messages."""
        seen: list[int] = []
        for region in ("us-east", "us-west", "eu-central"):
            store = await SqliteMetadataStore.open(tmp_path / f"{region}.db")
            try:
                catalog = Catalog(store, HybridClock(clock, region), clock, asyncio.sleep)
                seen += [await catalog.allocate_ledger_id() for _ in range(130)]
            finally:
                await store.close()
        assert len(set(seen)) == 3 * 130

    async def test_an_impossible_clock_is_noticed(self, make: Callable[[], Catalog], clock: Clock) -> None:
        clock.now_ms = counters.EPOCH_2020_MS + (1 << 41)
        with pytest.raises(MetadataError, match="clock right"):
            await make().allocate_ledger_id()

    async def test_each_start_of_a_broker_has_a_greater_epoch(self, make: Callable[[], Catalog]) -> None:
        epochs = await asyncio.gather(*(make().next_broker_epoch("broker-0") for _ in range(5)))
        assert sorted(epochs) == [1, 2, 3, 4, 5]
        assert await make().next_broker_epoch("broker-1") == 1


class TestView:
    async def test_own_writes_are_seen_at_once(self, catalog: Catalog) -> None:
        assert catalog.known_clusters() == ["eu", "us-east", "us-west"]
        record = catalog.namespace("public/default")
        assert record is not None
        assert record.replication_clusters == CLUSTERS.keys()
        await catalog.namespaces.set_policy("public/default", "message_ttl_in_seconds", 9)
        record = catalog.namespace("public/default")
        assert record is not None
        assert record.own["message_ttl_in_seconds"] == 9
        assert catalog.namespace("public/default") is record, "put together once"
        await catalog.namespaces.delete("public/default")
        assert catalog.namespace("public/default") is None
        assert catalog.known_namespaces() == []

    async def test_writes_of_others_are_seen_while_it_runs(self, make: Callable[[], Catalog], catalog: Catalog) -> None:
        other = make()
        assert other.namespace("public/default") is None
        async with running(other) as heard:
            assert other.namespace("public/default") is not None
            await catalog.namespaces.set_policy("public/default", "message_ttl_in_seconds", 9)
            await catalog.clusters.create("asia", ClusterRecord("http://a"))
            await catalog.tenants.create("acme", TenantRecord())
            await catalog.partitioned.create(ORDERS, 2)
            await catalog.schemas.add(ORDERS, SchemaRecord("JSON", b"{}"))
            await catalog.partitioned.delete(ORDERS)
            await wait_until(lambda: Changed("deletion", "public/default/orders") in heard)
            assert heard[:5] == [
                Changed("namespace", "public/default"),
                Changed("cluster", "asia"),
                Changed("tenant", "acme"),
                Changed("partitioned", "public/default/orders"),
                Changed("schema", "public/default/orders"),
            ]
            assert set(heard[5:]) == {
                Changed("partitioned", "public/default/orders"),
                Changed("deletion", "public/default/orders"),
            }
            record = other.namespace("public/default")
            assert record is not None
            assert record.own["message_ttl_in_seconds"] == 9
            assert other.tenant("acme") is not None
            cluster = other.cluster("asia")
            assert cluster is not None
            assert cluster.service_url == "http://a"

    async def test_listeners_hear_of_own_writes_too(self, catalog: Catalog) -> None:
        async with running(catalog) as heard:
            await catalog.namespaces.set_policy("public/default", "message_ttl_in_seconds", 9)
            await wait_until(lambda: heard == [Changed("namespace", "public/default")])

    async def test_topics_of_this_region_are_no_news(self, catalog: Catalog) -> None:
        async with running(catalog) as heard:
            await catalog.topics.create(ORDERS)
            await catalog.clusters.create("asia", ClusterRecord())
            await wait_until(lambda: bool(heard))
            assert heard == [Changed("cluster", "asia")]

    async def test_after_its_watch_broke_it_catches_up(
        self, make: Callable[[], Catalog], catalog: Catalog, store: SqliteMetadataStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("meridian_broker.metadata.catalog.RETRY_SECONDS", 0.01)
        other = make()
        async with running(other) as heard:
            for watcher in list(store._watchers):
                watcher.fail(MetadataUnavailable("as when etcd went away"))
            await catalog.clusters.create("asia", ClusterRecord())
            await wait_until(lambda: Changed("everything", "") in heard)
            assert other.cluster("asia") is not None

    async def test_reading_back_an_own_write_does_not_undo_what_the_watch_told(
        self, make: Callable[[], Catalog], catalog: Catalog, store: SqliteMetadataStore
    ) -> None:
        """A policy is removed by somebody else, and the watch says so, while our read of it is on its way back."""
        await catalog.namespaces.set_policy("public/default", "message_ttl_in_seconds", 9)
        other = make()
        async with running(other) as heard:

            async def remove() -> None:
                heard.clear()
                await catalog.namespaces.set_policy("public/default", "message_ttl_in_seconds", None)
                await wait_until(lambda: Changed("namespace", "public/default") in heard)

            other._access.store = Interrupted(store, "scan", remove)
            await other._access._show(keys.namespace("public/default"))
            record = other.namespace("public/default")
            assert record is not None
            assert "message_ttl_in_seconds" not in record.own

    async def test_under_constant_change_all_views_end_alike(
        self, make: Callable[[], Catalog], catalog: Catalog
    ) -> None:
        """Two brokers write, watch and read back at the same time; nothing stale stays."""
        one, other = make(), make()
        async with running(one) as heard_one, running(other) as heard_other:

            async def work(broker: Catalog, seed: int) -> None:
                for i in range(25):
                    name = f"public/n{(i * seed) % 3}"
                    with contextlib.suppress(AlreadyExists, NotFound, Contended):
                        await broker.namespaces.create(name)
                    with contextlib.suppress(NotFound, Contended):
                        await broker.namespaces.set_policy(name, "message_ttl_in_seconds", i)
                    if i % 3 == seed - 1:
                        with contextlib.suppress(NotFound, Contended):
                            await broker.namespaces.delete(name)

            await asyncio.gather(work(one, 1), work(other, 2))
            end = Changed("cluster", "end")
            await catalog.clusters.create("end", ClusterRecord())
            await wait_until(lambda: end in heard_one and end in heard_other)
            await catalog.refresh()
            for broker in (one, other):
                assert broker.known_namespaces() == catalog.known_namespaces()
                for name in catalog.known_namespaces():
                    assert broker.namespace(name) == catalog.namespace(name)


async def test_every_value_that_regions_agree_on_has_a_stamp(catalog: Catalog, store: SqliteMetadataStore) -> None:
    await catalog.partitioned.create(ORDERS, 2)
    await catalog.schemas.add(ORDERS, SchemaRecord("JSON", b"{}"))
    await catalog.partitioned.delete(ORDERS)
    for path, record in await store.scan(keys.GEO):
        stamp = decode(path, record.value)[1]
        assert stamp is not None, path
        assert stamp.region == "us-east"


async def test_a_write_over_a_stamp_from_the_future_is_later_than_it(
    catalog: Catalog, store: SqliteMetadataStore
) -> None:
    path = keys.namespace("public/default") + "/policies/message_ttl_in_seconds"
    future = Stamp(NOW_MS + 1_000_000, 3, "eu")
    await store.transact([], [Put(path, encode(5, future))])
    await catalog.namespaces.set_policy("public/default", "message_ttl_in_seconds", 6)
    record = await store.get(path)
    assert record is not None
    stamp = decode(path, record.value)[1]
    assert stamp is not None
    assert stamp > future
