# SPDX-License-Identifier: Apache-2.0
"""Ownership of bundles on a real etcd, which may be down or return after a lease has ended."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator

import pytest
from meridian_broker.engines.clock import monotonic
from meridian_broker.engines.etcd.metadata import EtcdMetadataStore
from meridian_broker.metadata.store import MetadataError, MetadataStore
from meridian_broker.ownership.owner import NotServing
from support.brokers.etcd_server import EtcdServer
from support.contracts.metadata_contract import wait_until
from support.contracts.ownership_brokers import owning, topics
from support.contracts.ownership_contract import FIRST, Connect, OwningContract

_prefixes = itertools.count(1)


@pytest.fixture
async def connect(etcd_server: EtcdServer) -> AsyncIterator[Connect]:
    prefix = f"meridian/region-{next(_prefixes)}"
    connected: list[EtcdMetadataStore] = []

    async def another() -> MetadataStore:
        connected.append(await EtcdMetadataStore.connect(etcd_server.url, prefix))
        return connected[-1]

    yield another
    for store in connected:
        await store.close()


class TestOwning(OwningContract):
    pass


async def test_without_etcd_a_broker_serves_until_its_lease_ends_and_then_stops(
    etcd_server: EtcdServer, connect: Connect
) -> None:
    async with owning("a", await connect(), lease_seconds=4.0) as a:
        before = await a.owner.acquire(FIRST)
        lease = a.owner._membership.lease
        assert lease is not None
        etcd_server.kill()
        until = lease.valid_until()
        assert a.owner.term(FIRST) == before
        try:
            await wait_until(lambda: a.topics.dropped == [FIRST])
            assert monotonic() >= until  # served as long as that was safe
            with pytest.raises((NotServing, MetadataError)):
                await a.owner.locate(topics(1)[0], authoritative=True)
        finally:
            etcd_server.start()
        await wait_until(lambda: a.owner._membership.lease not in (None, lease))
        assert a.owner.term(FIRST) is None
        async with owning("b", await connect()) as b:
            # etcd restarts the TTL of every lease when it starts, so the old owner's record stays a while longer.
            await wait_until(lambda: FIRST not in a.owner.view.owners)
            assert (await b.owner.acquire(FIRST)).fence > before.fence
        assert a.topics.closed == []
