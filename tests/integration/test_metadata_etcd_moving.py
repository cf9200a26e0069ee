# SPDX-License-Identifier: Apache-2.0
"""Metadata that an earlier version wrote to keys with a leading slash: moved once, in pages, whatever happens."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncIterator
from typing import Any

import pytest
from meridian_broker.engines.etcd.address import parse_endpoints
from meridian_broker.engines.etcd.client import EtcdChannel
from meridian_broker.engines.etcd.metadata import EtcdMetadataStore
from meridian_broker.engines.etcd.moving import PAGE_BYTES, PAGE_KEYS, UNDER_WAY, move_earlier_keys
from meridian_broker.engines.etcd.together import Together
from meridian_broker.metadata.store import MetadataUnavailable
from support.brokers.etcd_server import EtcdServer

WRITTEN = {
    **{f"/topics/{number:04}": b"%d" % number for number in range(2 * PAGE_KEYS + 7)},
    **{f"/schemas/{number}": bytes(PAGE_BYTES - 1) for number in range(3)},
}
_regions = itertools.count()


class Earlier:
    """A region as an earlier version left it."""

    def __init__(self, server: EtcdServer) -> None:
        self.url = server.url
        self.prefix = f"meridian/moved-{next(_regions)}"
        self.store = EtcdMetadataStore(EtcdChannel(parse_endpoints(server.url)), "/" + self.prefix)

    async def paths(self) -> list[str]:
        return [path for path, _ in await self.store.scan("/")]


@pytest.fixture
async def earlier(etcd_server: EtcdServer) -> AsyncIterator[Earlier]:
    region = Earlier(etcd_server)
    for path, value in WRITTEN.items():
        await region.store.put(path, value)
    yield region
    await region.store.close()


async def contents(store: EtcdMetadataStore) -> dict[str, bytes]:
    return {path: record.value for path, record in await store.scan("/")}


async def test_everything_is_at_the_keys_of_this_version_after_the_first_connection(earlier: Earlier) -> None:
    lease = await earlier.store.lease(60)
    await earlier.store.put("/alive", b"1", lease=lease.lease_id)
    store = await EtcdMetadataStore.connect(earlier.url, earlier.prefix)
    assert await contents(store) == WRITTEN
    assert await earlier.paths() == ["/alive"]  # ends with its lease; without a lease it would stay for good
    await store.close()


async def test_nothing_older_is_moved_to_where_this_version_has_written(earlier: Earlier) -> None:
    begun = EtcdMetadataStore(EtcdChannel(parse_endpoints(earlier.url)), earlier.prefix)
    await begun.put("/topics/0001", b"newer")
    store = await EtcdMetadataStore.connect(earlier.url, earlier.prefix)
    assert await contents(store) == {"/topics/0001": b"newer"}
    assert len(await earlier.paths()) == len(WRITTEN)
    await store.close()
    await begun.close()


class Dying(Together):
    """Dies before a certain write."""

    writes_left = 0

    async def write(self, request: Any, doing: str, seconds: float) -> Any:
        if not self.writes_left:
            raise MetadataUnavailable("killed")
        self.writes_left -= 1
        return await super().write(request, doing, seconds)


async def test_a_broker_that_dies_before_any_write_continues_at_its_next_start(earlier: Earlier) -> None:
    for writes in itertools.islice(itertools.cycle((0, 1, 2)), 20):
        channel = EtcdChannel(parse_endpoints(earlier.url))
        dying = Dying(channel)
        dying.writes_left = writes
        with contextlib.suppress(MetadataUnavailable):
            await move_earlier_keys(channel, dying, earlier.prefix)
        await dying.close()
        await channel.close()
        left = set(await earlier.paths())
        now = EtcdMetadataStore(EtcdChannel(parse_endpoints(earlier.url)), earlier.prefix)
        moved = set(await contents(now)) - {UNDER_WAY}
        await now.close()
        assert moved.isdisjoint(left)
        assert moved | left == set(WRITTEN)
    store = await EtcdMetadataStore.connect(earlier.url, earlier.prefix)
    assert await contents(store) == WRITTEN
    assert await earlier.paths() == []
    await store.close()
