# SPDX-License-Identifier: Apache-2.0
"""Topics, partitioned topics and schemas in the catalog."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from meridian_broker.engines.sqlite.metadata import SqliteMetadataStore
from meridian_broker.metadata import keys
from meridian_broker.metadata.catalog import Catalog
from meridian_broker.metadata.errors import AlreadyExists, Invalid, NotFound, QuotaReached
from meridian_broker.metadata.records import SchemaRecord, TenantRecord, decode, encode
from meridian_broker.metadata.schema_catalog import SchemaQuota
from meridian_broker.metadata.store import Committed, VersionConflict
from meridian_broker.metadata.topic_records import LedgerRecord, TopicRecord
from meridian_broker.positions.clock import Stamp
from meridian_broker.positions.position import Position
from meridian_broker.wire.pulsar.topic_name import TopicName, parse
from support.worlds.catalog_world import NOW_MS, ORDERS, Clock


class TestTopics:
    async def test_namespaces_with_topics_are_found_without_asking_about_the_others(
        self, catalog: Catalog, store: SqliteMetadataStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await catalog.tenants.create("acme", TenantRecord(allowed_clusters=frozenset(("us-east",))))
        for name in ("acme/one", "acme/two", *(f"public/n{number}" for number in range(20))):
            await catalog.namespaces.create(name)
        await catalog.topics.create(parse("persistent://acme/one/t"))
        await catalog.partitioned.create(parse("persistent://acme/two/t"), 2)
        for name in ("public/n3", "public/n4"):
            await catalog.topics.create(parse(f"persistent://{name}/t"))
        asked: list[str] = []
        children = store.children

        async def counted(path: str) -> list[str]:
            asked.append(path)
            return await children(path)

        monkeypatch.setattr(store, "children", counted)
        assert await catalog.topics.namespaces() == {"acme/one", "public/n3", "public/n4"}
        assert await catalog.partitioned.namespaces() == {"acme/two"}
        assert len(asked) == 5

    async def test_create_put_get_delete(self, catalog: Catalog) -> None:
        record, version = await catalog.topics.create(ORDERS, TopicRecord(properties={"a": "b"}))
        assert (record.incarnation, record.properties) == ("", {"a": "b"})
        grown = replace(
            record,
            ledgers=(LedgerRecord(1 << 50, own_before=Position(5, 6), origins_before={"eu": Position(1, 2)}),),
            progress_ledgers=(7,),
            progress_snapshot=(b"\x00whole", b"\xff"),
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

    async def test_of_brokers_that_create_it_at_once_only_one_succeeds(
        self, make: Callable[[], Catalog], catalog: Catalog
    ) -> None:
        results = await asyncio.gather(*(make().topics.create(ORDERS) for _ in range(8)), return_exceptions=True)
        assert sum(not isinstance(result, BaseException) for result in results) == 1
        assert sum(isinstance(result, AlreadyExists) for result in results) == 7

    async def test_all_partitions_are_recorded_together(self, catalog: Catalog) -> None:
        """Each with its incarnation (R8); existing records stay as they are."""
        topics, count = catalog.topics, 200
        names = [ORDERS.with_partition(index) for index in range(count)]
        of_one, of_all = Stamp(NOW_MS, 7, "eu"), Stamp(NOW_MS, 3, "eu")
        await topics.mark_deleted(names[5], of_one)
        await topics.mark_deleted(ORDERS, of_all)
        await catalog.partitioned.create(ORDERS, count)
        kept, _ = await topics.create(names[70], TopicRecord(properties={"a": "b"}))
        made: list[TopicName] = []
        topics.on_change = lambda name, is_made: made.append(name) if is_made else None
        for _ in range(2):
            await topics.create_partitions(ORDERS, TopicRecord(joining=True))
        assert await topics.partitions(ORDERS) == names
        assert made == [name for name in names if name is not names[70]]
        assert (await topics.get(names[70]))[0] == kept
        for index in (0, 5, count - 1):
            record = (await topics.get(names[index]))[0]
            assert (record.incarnation, record.joining) == (str(of_one if index == 5 else of_all), True)
            assert record.incarnation == await topics.incarnation(names[index])
        with pytest.raises(NotFound):
            await topics.create_partitions(parse("public/default/none"), TopicRecord())

    async def test_it_needs_a_namespace(self, catalog: Catalog) -> None:
        with pytest.raises(NotFound, match="namespace public/none does not exist"):
            await catalog.topics.create(parse("public/none/t"))

    async def test_listing_by_namespace_and_domain(self, catalog: Catalog) -> None:
        await catalog.namespaces.create("public/default2")
        odd = TopicName("persistent", "public", "default", "späte 100% ?#")
        await catalog.partitioned.create(ORDERS, 1)
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

    async def test_a_partition_is_created_only_of_a_topic_that_has_it(
        self, catalog: Catalog, store: SqliteMetadataStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first, third = ORDERS.with_partition(0), ORDERS.with_partition(2)
        with pytest.raises(NotFound):
            await catalog.topics.create(first)
        await catalog.topics.create(first, is_found=True)
        await catalog.partitioned.create(ORDERS, 2)
        with pytest.raises(NotFound):
            await catalog.topics.create(third)
        await catalog.topics.create(third, growing_to=3)
        transact = store.transact

        async def deleted_meanwhile(*arguments: Any) -> Committed | None:
            monkeypatch.setattr(store, "transact", transact)
            await catalog.partitioned.begin_deletion(ORDERS, Stamp(NOW_MS, 0, "us"))
            return await transact(*arguments)

        monkeypatch.setattr(store, "transact", deleted_meanwhile)
        with pytest.raises(NotFound):
            await catalog.topics.create(ORDERS.with_partition(1))
        assert await catalog.topics.names("public/default") == [first, third]

    async def test_a_deletion_of_partitions_counts_from_its_first_write_on(self, catalog: Catalog) -> None:
        await catalog.partitioned.create(ORDERS, 2)
        assert await catalog.topics.deletion(ORDERS.with_partition(0)) is None
        stamp = Stamp(NOW_MS, 0, "us")
        await catalog.partitioned.begin_deletion(ORDERS, stamp)
        begun = await catalog.topics.deletion(ORDERS.with_partition(0))
        assert begun is not None and (begun.stamp, begun.is_of_base) == (stamp, True)
        assert await catalog.partitioned.delete(ORDERS, stamp) == stamp
        assert await catalog.topics.deletion(ORDERS.with_partition(0)) == begun

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
        """R8: a copy that goes further holds messages that were never stored here."""
        assert await catalog.topics.deletion(ORDERS) is None
        await catalog.topics.create(ORDERS)
        stamp = await catalog.topics.delete(ORDERS, None, {"us-west": Position(7, 3), "eu": Position(2, 0)})
        assert await catalog.topics.deletion(ORDERS) == (stamp, {"us-west": (7, 3), "eu": (2, 0)}, False)
        await catalog.topics.create(ORDERS)
        stamp = await catalog.topics.delete(ORDERS, None, {"us-west": Position(7, 1), "eu": Position(9, 1)})
        assert await catalog.topics.deletion(ORDERS) == (stamp, {"us-west": (7, 3), "eu": (9, 1)}, False)
        part = ORDERS.with_partition(0)
        found = await catalog.topics.deletion(part)
        assert found == (stamp, {}, True), "deleting the topic deletes its partitions"

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

        async def somebody_is_quicker(*arguments: Any) -> Committed | None:
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

    async def test_a_policy_of_an_earlier_topic_is_not_served(
        self, catalog: Catalog, store: SqliteMetadataStore
    ) -> None:
        """Whichever region it was set in, and however late it arrives."""
        await catalog.topics.create(ORDERS)
        path = keys.topic_policies(ORDERS) + "/message_ttl_in_seconds"
        late = encode(30, Stamp(NOW_MS + 5, 0, "eu"))
        await catalog.topics.mark_deleted(ORDERS, Stamp(NOW_MS + 10, 0, "ap"))
        await store.put(path, late)
        await catalog.refresh()
        assert not (await catalog.topic_policies.get(ORDERS)).own
        assert not catalog.own_policies(ORDERS)
        await catalog.topic_policies.set_policy(ORDERS, "message_ttl_in_seconds", 30)
        assert (await catalog.topic_policies.get(ORDERS)).own == catalog.own_policies(ORDERS)
        assert catalog.own_policies(ORDERS)["message_ttl_in_seconds"] == 30

    async def test_the_next_topics_policies_survive_a_late_deletion_of_the_earlier_topic(
        self, catalog: Catalog, store: SqliteMetadataStore
    ) -> None:
        """Another region has created the topic again, and a policy that it set arrived here first."""
        await catalog.topics.create(ORDERS)
        await catalog.topic_policies.set_policy(ORDERS, "message_ttl_in_seconds", 30)
        deleted = Stamp(NOW_MS + 10_000, 0, "eu")
        await store.put(keys.topic_policies(ORDERS) + "/max_message_size", encode(9, deleted._replace(counter=1)))
        await catalog.topics.delete(ORDERS, deleted)
        assert dict((await catalog.topic_policies.get(ORDERS)).own) == {"max_message_size": 9}

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
        with pytest.raises(Invalid, match="cannot go back to 4"):
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

    async def test_concurrent_growth_ends_at_the_largest_number(
        self, make: Callable[[], Catalog], catalog: Catalog
    ) -> None:
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
    async def test_numbers_begin_at_0_and_equal_schemas_share_one(self, catalog: Catalog) -> None:
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

    async def test_each_schema_added_concurrently_has_one_number(
        self, make: Callable[[], Catalog], catalog: Catalog
    ) -> None:
        added = await asyncio.gather(
            *(make().schemas.add(ORDERS, SchemaRecord("AVRO", b"%d" % (i % 4))) for i in range(12))
        )
        numbers = {record.data: record.version for record in added}
        assert sorted(numbers.values()) == [0, 1, 2, 3]
        assert all(record.version == numbers[record.data] for record in added)

    async def test_a_number_is_not_reused_after_a_deletion(self, catalog: Catalog, store: SqliteMetadataStore) -> None:
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

    async def test_schemas_that_other_regions_add_and_delete_are_numbered_here(
        self, catalog: Catalog, store: SqliteMetadataStore
    ) -> None:
        """In the order in which they were written; numbers do not change."""

        async def arrives(text: bytes, at: int) -> str:
            one = SchemaRecord("JSON", text, timestamp_ms=at)
            path = keys.schema(ORDERS, one.content_id)
            await store.put(path, encode(one.to_json(), Stamp(at, 0, "eu")))
            return path

        await catalog.schemas.add(ORDERS, SchemaRecord("JSON", b"one"))
        late, early = await arrives(b"late", 20), await arrives(b"early", 10)
        assert [one.data for one in await catalog.schemas.all(ORDERS)] == [b"one", b"early", b"late"]
        assert (await catalog.schemas.get(ORDERS)).version == 2
        assert (await catalog.schemas.get(ORDERS, 1)).data == b"early"
        assert (await catalog.schemas.add(ORDERS, SchemaRecord("JSON", b"early"))).version == 1
        found = await store.get(early)
        assert found is not None and decode(early, found.value)[1] == Stamp(10, 0, "eu"), "it is not written again"
        await store.delete(late)
        assert (await catalog.schemas.get(ORDERS)).data == b"early"
        assert (await catalog.schemas.add(ORDERS, SchemaRecord("JSON", b"late"))).version == 2
        for path, _ in await store.scan(keys.schemas_of(ORDERS) + "/"):
            await store.delete(path)
        quota = SchemaQuota(of_topic=8, of_namespace=8)
        with pytest.raises(NotFound):
            await catalog.schemas.get(ORDERS)
        assert (await catalog.schemas.add(ORDERS, SchemaRecord("JSON", b"one"), quota=quota)).version == 3
        await arrives(b"two", 40)
        assert await catalog.schemas.delete(ORDERS) == 4
        assert await catalog.schemas.all(ORDERS) == []

    async def test_schemas_take_a_bounded_amount_of_room(self, catalog: Catalog, store: SqliteMetadataStore) -> None:
        def schema(number: int) -> SchemaRecord:
            return SchemaRecord("JSON", b"%050d" % number, {"k": "v" * 49})

        quota, other = SchemaQuota(of_topic=250, of_namespace=400), parse("other")
        for number in range(2):
            await catalog.schemas.add(ORDERS, schema(number), quota=quota)
        with pytest.raises(QuotaReached, match="raise maxSchemaBytesPerTopic"):
            await catalog.schemas.add(ORDERS, schema(2), quota=quota)
        await catalog.schemas.add(ORDERS, schema(1), quota=quota)  # it is stored already
        for number in range(2):
            await catalog.schemas.add(other, schema(number), quota=quota)
        with pytest.raises(QuotaReached, match="raise maxSchemaBytesPerNamespace"):
            await catalog.schemas.add(parse("third"), schema(0), quota=quota)
        await catalog.schemas.add(ORDERS, schema(3))  # another region has it
        assert await catalog.schemas.delete(ORDERS) == 2
        await catalog.schemas.add(parse("third"), schema(0), quota=quota)
        await asyncio.gather(catalog.schemas.delete(other), catalog.schemas.delete(parse("third")))
        ((_, record),) = await store.scan(keys.SCHEMA_BYTES)
        assert b'"bytes":0' in record.value.replace(b" ", b"")

    async def test_a_namespaces_topics_are_counted_together_even_when_created_concurrently(
        self, make: Callable[[], Catalog], catalog: Catalog, store: SqliteMetadataStore
    ) -> None:
        quota = SchemaQuota(of_topic=0, of_namespace=50)
        results = await asyncio.gather(
            *(make().schemas.add(parse(f"t{i}"), SchemaRecord("JSON", bytes(10)), quota=quota) for i in range(12)),
            return_exceptions=True,
        )
        assert sum(isinstance(result, SchemaRecord) for result in results) == 5
        assert sum(isinstance(result, QuotaReached) for result in results) == 7
