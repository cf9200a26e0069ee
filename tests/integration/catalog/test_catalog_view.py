# SPDX-License-Identifier: Apache-2.0
"""Ids and epochs that never repeat, stamps, and when each broker sees what of the others' writes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest
from meridian_broker.engines.sqlite.metadata import SqliteMetadataStore
from meridian_broker.metadata import counters, keys
from meridian_broker.metadata.catalog import Catalog
from meridian_broker.metadata.errors import AlreadyExists, Contended, NotFound
from meridian_broker.metadata.records import ClusterRecord, SchemaRecord, TenantRecord, decode, encode
from meridian_broker.metadata.store import MetadataError, MetadataUnavailable, Put
from meridian_broker.metadata.view import Changed
from meridian_broker.positions.clock import HybridClock, Stamp
from support.contracts.metadata_contract import wait_until
from support.worlds.catalog_world import CLUSTERS, NOW_MS, ORDERS, Clock, Interrupted, running


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

    async def test_concurrent_requests_for_ids_share_writes(self, store: SqliteMetadataStore, clock: Clock) -> None:
        catalog = Catalog(store, HybridClock(clock, "us-east"), clock, asyncio.sleep, lambda _: 0, alone=asyncio.Lock())
        written = await store.put("/before", b"")
        given = await asyncio.gather(*(catalog.allocate_ledger_id() for _ in range(1000)))
        assert len(set(given)) == 1000
        assert await store.put("/after", b"") - written == 2, "versions count writes: one write took the ids of all"

    async def test_they_grow_although_the_store_confirms_a_block_late(
        self, make: Callable[[], Catalog], store: SqliteMetadataStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Else a topic's log would go backwards: replicators and consumers would never reach what is stored there."""
        catalog, put, written, told = make(), store.put, asyncio.Event(), asyncio.Event()

        async def late(path: str, value: bytes, *, expected: int | None = None) -> int:
            version = await put(path, value, expected=expected)
            if not written.is_set():
                written.set()
                await told.wait()
            return version

        monkeypatch.setattr(store, "put", late)
        asking = asyncio.create_task(catalog.allocate_ledger_id())
        await written.wait()
        before = [await catalog.allocate_ledger_id() for _ in range(3)]
        told.set()
        given = [*before, await asking, *[await catalog.allocate_ledger_id() for _ in range(100)]]
        assert given == sorted(set(given))

    async def test_a_caller_that_stops_waiting_for_an_id_takes_none_from_the_others(
        self, store: SqliteMetadataStore, clock: Clock
    ) -> None:
        catalog = Catalog(store, HybridClock(clock, "us-east"), clock, asyncio.sleep, lambda _: 0, alone=asyncio.Lock())
        asking = [asyncio.ensure_future(catalog.allocate_ledger_id()) for _ in range(100)]
        await asyncio.sleep(0)
        for one in asking[:50]:
            one.cancel()
        given = await asyncio.gather(*asking, return_exceptions=True)
        assert len({one for one in given if isinstance(one, int)}) == 50

    async def test_a_clock_that_is_set_back_repeats_no_id(self, make: Callable[[], Catalog], clock: Clock) -> None:
        before = await make().allocate_ledger_id()
        clock.now_ms -= 86_400_000
        assert await make().allocate_ledger_id() == before + (1 << 12)

    async def test_brokers_started_from_copies_of_one_store_give_different_ids(
        self, make: Callable[[], Catalog], clock: Clock, store: SqliteMetadataStore
    ) -> None:
        await make().allocate_ledger_id()
        backup = await store.get(keys.LEDGER_IDS)
        assert backup is not None
        clock.now_ms -= 86_400_000
        given: list[int] = []
        for draw in (lambda _: 3, lambda _: 5):
            await store.put(keys.LEDGER_IDS, backup.value)
            broker = Catalog(store, HybridClock(clock, "us-east"), clock, asyncio.sleep, draw)
            given += [await broker.allocate_ledger_id() for _ in range(100)]
        assert len(set(given)) == 200

    async def test_a_region_restored_from_an_old_backup_repeats_no_id(
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
        """A client that fails over brings its message ids along: they must not be those of other messages there."""
        seen: list[int] = []
        for region in ("us-east", "us-west", "eu-central"):
            store = await SqliteMetadataStore.open(tmp_path / f"{region}.db")
            try:
                catalog = Catalog(store, HybridClock(clock, region), clock, asyncio.sleep, lambda _: 0)
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

    async def test_a_broker_hears_of_a_later_start_under_its_name(self, make: Callable[[], Catalog]) -> None:
        """Also of a start before anybody listened, but neither of its own nor of another broker's."""
        epoch = await make().next_broker_epoch("broker-0")
        listening = asyncio.ensure_future(make().later_broker_epoch("broker-0", epoch))
        assert await make().next_broker_epoch("broker-1") == epoch
        assert await make().next_broker_epoch("broker-0") == epoch + 1
        assert await listening == await make().later_broker_epoch("broker-0", epoch) == epoch + 1


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
        assert catalog.namespace("public/default") is record, "assembled once"
        await catalog.namespaces.delete("public/default")
        assert catalog.namespace("public/default") is None
        assert catalog.known_namespaces() == []

    async def test_writes_of_other_brokers_are_seen_while_it_runs(
        self, make: Callable[[], Catalog], catalog: Catalog
    ) -> None:
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

    async def test_a_write_between_the_first_scan_and_the_watch_is_seen_without_another_scan(
        self, make: Callable[[], Catalog], catalog: Catalog
    ) -> None:
        other = make()
        await other.begin()
        assert other.namespace("public/default") is not None
        await catalog.clusters.create("asia", ClusterRecord("http://a"))
        running = asyncio.create_task(other.run())
        await wait_until(lambda: other.cluster("asia") is not None)
        assert other._access.scans == 1
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    async def test_listeners_hear_of_own_writes_too(self, catalog: Catalog) -> None:
        async with running(catalog) as heard:
            await catalog.namespaces.set_policy("public/default", "message_ttl_in_seconds", 9)
            await wait_until(lambda: heard == [Changed("namespace", "public/default")])

    async def test_listeners_are_not_told_of_topics_of_this_region(self, catalog: Catalog) -> None:
        async with running(catalog) as heard:
            await catalog.topics.create(ORDERS)
            await catalog.clusters.create("asia", ClusterRecord())
            await wait_until(lambda: bool(heard))
            assert heard == [Changed("cluster", "asia")]

    async def test_it_catches_up_after_its_watch_broke(
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

    async def test_reading_back_its_own_write_does_not_undo_what_the_watch_reported(
        self, make: Callable[[], Catalog], catalog: Catalog, store: SqliteMetadataStore
    ) -> None:
        """Another broker removes a policy, and the watch reports it while our read of the policy is on its way back."""
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

    async def test_under_constant_change_all_views_end_equal(
        self, make: Callable[[], Catalog], catalog: Catalog
    ) -> None:
        """Two brokers write, watch and read back at the same time; nothing stale remains."""
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


class TestIncarnations:
    """A topic's incarnation, answered from memory (R8)."""

    async def test_own_deletions_count_at_once(self, catalog: Catalog) -> None:
        assert catalog.incarnation(ORDERS) == ""
        await catalog.topics.create(ORDERS)
        first = await catalog.topics.delete(ORDERS)
        assert catalog.incarnation(ORDERS) == str(first)
        told = Stamp(NOW_MS + 60_000, 0, "us-west")
        await catalog.topics.mark_deleted(ORDERS, told)
        assert catalog.incarnation(ORDERS) == str(told) == await catalog.topics.incarnation(ORDERS)

    async def test_a_partition_goes_with_its_topic(self, catalog: Catalog) -> None:
        partition = ORDERS.with_partition(1)
        await catalog.partitioned.create(ORDERS, 2)
        await catalog.topics.create(partition)
        own = await catalog.topics.delete(partition)
        whole = await catalog.partitioned.delete(ORDERS)
        assert catalog.incarnation(partition) == str(whole) != str(own)
        assert catalog.incarnation(partition) == await catalog.topics.incarnation(partition)

    async def test_they_are_all_known_after_a_restart(self, make: Callable[[], Catalog]) -> None:
        before, after = make(), make()
        await before.topics.mark_deleted(ORDERS, stamp := Stamp(NOW_MS, 7, "eu"))
        await after.refresh()
        assert after.incarnation(ORDERS) == str(stamp)

    async def test_deletions_by_another_broker_arrive_through_the_watch(self, make: Callable[[], Catalog]) -> None:
        one, other = make(), make()
        async with running(other):
            await one.topics.mark_deleted(ORDERS, stamp := Stamp(NOW_MS, 7, "eu"))
            await wait_until(lambda: other.incarnation(ORDERS) == str(stamp))

    async def test_an_unreadable_record_does_not_hide_the_others(
        self, catalog: Catalog, store: SqliteMetadataStore
    ) -> None:
        await store.put(keys.deletion(ORDERS), b"rotten")
        await catalog.topics.mark_deleted(ORDERS.with_partition(3), stamp := Stamp(NOW_MS, 0, "eu"))
        await catalog.refresh()
        assert catalog.incarnation(ORDERS) == ""
        assert catalog.incarnation(ORDERS.with_partition(3)) == str(stamp)
