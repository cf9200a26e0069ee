# SPDX-License-Identifier: Apache-2.0
"""Permissions of roles: deleted with their namespace or topic, and bounded in number."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from meridian_broker.bounds.permissions import ROLES_PER_OBJECT
from meridian_broker.engines.sqlite.metadata import SqliteMetadataStore
from meridian_broker.metadata import keys, permissions
from meridian_broker.metadata.catalog import Catalog
from meridian_broker.metadata.errors import Invalid, NotFound, QuotaReached
from meridian_broker.metadata.permissions import NOTHING, Held
from meridian_broker.metadata.records import TenantRecord
from meridian_broker.wire.pulsar.topic_name import parse
from support.contracts.metadata_contract import wait_until
from support.worlds.catalog_world import ORDERS, running

DEFAULT = "public/default"
PRODUCE, CONSUME = frozenset({"produce"}), frozenset({"consume"})


async def everything_below(store: SqliteMetadataStore) -> list[str]:
    return [path for path, _ in await store.scan(keys.PERMISSIONS + "/")]


async def test_a_grant_replaces_what_the_role_was_permitted_and_no_other(catalog: Catalog) -> None:
    one = catalog.permissions
    await one.grant_in_namespace(DEFAULT, "app", PRODUCE)
    await one.grant_in_namespace(DEFAULT, "b/ü %", CONSUME)
    await one.grant_in_namespace(DEFAULT, "app", CONSUME)
    await one.grant_on_topic(ORDERS, "app", PRODUCE)
    assert await one.on_namespace(DEFAULT) == {"app": CONSUME, "b/ü %": CONSUME}
    assert await one.on_topic(ORDERS.with_partition(3)) == {"app": PRODUCE}, "partitions share them"
    assert one.held("app", DEFAULT, ORDERS) == Held(CONSUME, PRODUCE)
    assert one.held("App", DEFAULT, ORDERS) == NOTHING, "roles differ by case"
    assert one.held("app", DEFAULT) == Held(CONSUME)
    await one.revoke_in_namespace(DEFAULT, "app")
    await one.revoke_in_namespace(DEFAULT, "nobody")
    assert one.held("app", DEFAULT, ORDERS) == Held(on_topic=PRODUCE)
    assert await one.revoke_on_topic(ORDERS, "app")
    assert not await one.revoke_on_topic(ORDERS, "app")
    assert await one.on_namespace(DEFAULT) == {"b/ü %": CONSUME}


async def test_a_repeated_grant_writes_nothing(catalog: Catalog, store: SqliteMetadataStore) -> None:
    await catalog.permissions.grant_in_namespace(DEFAULT, "app", PRODUCE)
    before = await store.scan(keys.PERMISSIONS)
    await catalog.permissions.grant_in_namespace(DEFAULT, "app", PRODUCE)
    assert await store.scan(keys.PERMISSIONS) == before


async def test_brokers_of_a_region_grant_at_the_same_time(make: Callable[[], Catalog], catalog: Catalog) -> None:
    brokers = [make() for _ in range(4)]
    await asyncio.gather(
        *(one.permissions.grant_in_namespace(DEFAULT, f"r{number}", PRODUCE) for number, one in enumerate(brokers))
    )
    assert len(await catalog.permissions.on_namespace(DEFAULT)) == 4
    async with running(catalog):
        await brokers[0].permissions.revoke_in_namespace(DEFAULT, "r3")
        await wait_until(lambda: catalog.permissions.held("r3", DEFAULT) == NOTHING)
        assert catalog.permissions.held("r2", DEFAULT) == Held(PRODUCE)


async def test_they_end_with_their_namespace(catalog: Catalog, store: SqliteMetadataStore) -> None:
    """And do not come back when a namespace of that name is created again."""
    await catalog.namespaces.create("public/short")
    topics = [parse(f"public/short/t{number}") for number in range(3)]
    for number in range(ROLES_PER_OBJECT // 20):  # more than are deleted in one transaction
        await catalog.permissions.grant_in_namespace("public/short", f"r{number}", PRODUCE)
    for topic in topics:
        await catalog.permissions.grant_on_topic(topic, "app", CONSUME)
    await catalog.permissions.grant_in_namespace(DEFAULT, "app", PRODUCE)
    assert (await catalog.permissions.inside("public/short"))[1] == {topic: {"app": CONSUME} for topic in topics}
    await catalog.namespaces.delete("public/short")
    assert await everything_below(store) == [f"{keys.namespace_permissions(DEFAULT)}/app"]
    await catalog.namespaces.create("public/short")
    assert catalog.permissions.held("app", "public/short", topics[0]) == NOTHING
    assert await catalog.permissions.inside("public/short") == ({}, {})


async def test_a_new_namespace_does_not_inherit_permissions_of_an_earlier_one(
    catalog: Catalog, store: SqliteMetadataStore
) -> None:
    """Another region may have granted them while this one deleted the namespace (R42)."""
    await store.put(f"{keys.namespace_permissions('public/again')}/app", b'{"format":1,"value":["produce"]}')
    topic = parse("public/again/t")
    await store.put(f"{keys.topic_permissions(topic)}/app", b'{"format":1,"value":["produce"]}')
    await catalog.refresh()
    await catalog.namespaces.create("public/again")
    assert catalog.permissions.held("app", "public/again", topic) == NOTHING
    assert await everything_below(store) == []


async def test_they_end_with_their_topic(catalog: Catalog, store: SqliteMetadataStore) -> None:
    """A topic need not exist for a grant; deleting it deletes its grants wherever they are still stored."""
    await catalog.permissions.grant_on_topic(ORDERS, "app", PRODUCE)
    record = (await store.get(f"{keys.topic_permissions(ORDERS)}/app")) or pytest.fail("nothing was stored")
    await catalog.topics.create(ORDERS)
    assert catalog.permissions.held("app", DEFAULT, ORDERS).on_topic == PRODUCE
    await catalog.topics.delete(ORDERS)
    assert catalog.permissions.held("app", DEFAULT, ORDERS) == NOTHING
    assert await everything_below(store) == []
    await store.put(f"{keys.topic_permissions(ORDERS)}/app", record.value)
    await catalog.refresh()
    assert catalog.permissions.held("app", DEFAULT, ORDERS) == NOTHING
    assert await catalog.permissions.on_topic(ORDERS) == {}
    await catalog.permissions.grant_on_topic(ORDERS, "app", CONSUME)
    assert await catalog.permissions.on_topic(ORDERS) == {"app": CONSUME}


async def test_they_end_with_a_partitioned_topic(catalog: Catalog) -> None:
    parted = parse("non-persistent://public/default/parted")
    await catalog.partitioned.create(parted, 2)
    await catalog.permissions.grant_on_topic(parted.with_partition(1), "app", CONSUME)
    assert catalog.permissions.held("app", DEFAULT, parted).on_topic == CONSUME
    await catalog.partitioned.delete(parted)
    assert catalog.permissions.held("app", DEFAULT, parted) == NOTHING


async def test_nothing_is_permitted_where_the_namespace_does_not_exist(catalog: Catalog) -> None:
    with pytest.raises(NotFound):
        await catalog.permissions.grant_in_namespace("public/none", "app", PRODUCE)
    with pytest.raises(NotFound):
        await catalog.permissions.grant_on_topic(parse("public/none/t"), "app", PRODUCE)
    with pytest.raises(NotFound):
        await catalog.permissions.on_namespace("public/none")
    with pytest.raises(Invalid):
        await catalog.permissions.on_namespace("none")


async def test_nothing_is_permitted_below_a_tenant_that_another_region_deleted(
    catalog: Catalog, store: SqliteMetadataStore
) -> None:
    await catalog.tenants.create("shop", TenantRecord(allowed_clusters=frozenset({"us-east"})))
    await catalog.namespaces.create("shop/n")
    await catalog.permissions.grant_in_namespace("shop/n", "app", PRODUCE)
    assert catalog.permissions.held("app", "shop/n") == Held(PRODUCE)
    await store.delete(keys.tenant("shop"))
    await catalog.refresh()
    assert catalog.permissions.held("app", "shop/n") == NOTHING


async def test_their_number_is_bounded(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(permissions, "ROLES_PER_OBJECT", 3)
    monkeypatch.setattr(permissions, "GRANTS_PER_NAMESPACE", 4)
    one = catalog.permissions
    for number in range(3):
        await one.grant_in_namespace(DEFAULT, f"r{number}", PRODUCE)
        await one.grant_on_topic(ORDERS, f"r{number}", PRODUCE)
    for refused in (one.grant_in_namespace(DEFAULT, "r3", PRODUCE), one.grant_on_topic(ORDERS, "r3", PRODUCE)):
        with pytest.raises(QuotaReached):
            await refused
    await one.grant_in_namespace(DEFAULT, "r0", CONSUME)
    await one.grant_on_topic(parse("other"), "r0", PRODUCE)
    with pytest.raises(QuotaReached, match="topics of public/default"):
        await one.grant_on_topic(parse("another"), "r0", PRODUCE)
    await one.grant_on_topic(ORDERS, "r0", CONSUME)
    assert await one.revoke_on_topic(ORDERS, "r0")
    await one.grant_on_topic(parse("another"), "r0", PRODUCE)


async def test_what_cannot_be_read_permits_nothing(catalog: Catalog, store: SqliteMetadataStore) -> None:
    await catalog.permissions.grant_in_namespace(DEFAULT, "app", PRODUCE)
    await store.put(f"{keys.namespace_permissions(DEFAULT)}/other", b'{"format":1,"value":["everything"]}')
    await catalog.refresh()
    with pytest.raises(Invalid):
        catalog.permissions.held("app", DEFAULT)
