# SPDX-License-Identifier: Apache-2.0
"""Many reads and writes at once on a real etcd: they share requests, and each gets its own result."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from meridian_broker.engines.etcd.metadata import EtcdMetadataStore
from meridian_broker.metadata.store import Change, Check, Committed, LeaseExpired, Put, Record, VersionConflict
from support.brokers.etcd_server import EtcdServer


@pytest.fixture
async def store(etcd_server: EtcdServer, request: pytest.FixtureRequest) -> AsyncIterator[EtcdMetadataStore]:
    connected = await EtcdMetadataStore.connect(etcd_server.url, f"meridian/{request.node.name}")
    yield connected
    await connected.close()


def count_requests(store: EtcdMetadataStore, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The requests sent to etcd from now on."""
    asked: list[str] = []
    call = store._channel.call

    async def counted(method: Any, request: Any, seconds: float) -> Any:
        asked.append(type(request).__name__)
        return await call(method, request, seconds)

    monkeypatch.setattr(store._channel, "call", counted)
    return asked


async def test_many_reads_and_writes_at_once_share_requests(
    store: EtcdMetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = count_requests(store, monkeypatch)
    paths = [f"/many/{number:03d}" for number in range(480)]
    versions = await asyncio.gather(*(store.put(path, path.encode(), expected=0) for path in paths))
    assert len(asked) == 10
    asked.clear()
    records = await asyncio.gather(*(store.get(path) for path in [*paths, *paths, "/many/none"]))
    assert len(asked) <= 17
    assert records.pop() is None
    for path, version, record in zip(paths * 2, versions * 2, records, strict=True):
        assert record is not None
        assert (record.value, record.version) == (path.encode(), version)


async def test_adjacent_keys_are_read_by_the_page(store: EtcdMetadataStore, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [f"/many/{number:04d}" for number in range(1200)]
    versions = dict(zip(paths, await asyncio.gather(*(store.put(path, path.encode()) for path in paths)), strict=True))
    asked = count_requests(store, monkeypatch)
    absent = ["/man", "/many/0600/no", "/many/9", "/many/90"]
    wanted = [*absent, *reversed(paths), paths[7]]
    found = await store.get_many(wanted)
    assert found == [Record(path.encode(), versions[path]) if path in versions else None for path in wanted]
    assert asked == ["RangeRequest"] * 3


async def test_distant_keys_are_not_read_with_everything_between_them(
    store: EtcdMetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [f"/many/{number:04d}" for number in range(1200)]
    await asyncio.gather(*(store.put(path, path.encode()) for path in paths))
    asked = count_requests(store, monkeypatch)
    wanted = paths[::8]
    found = await store.get_many(wanted)
    assert [record.value.decode() for record in found if record is not None] == wanted
    assert asked == ["RangeRequest", "TxnRequest", "TxnRequest"]


async def test_each_write_that_shares_a_request_has_its_own_result(store: EtcdMetadataStore) -> None:
    version = await store.put("/taken", b"1")
    results = await asyncio.gather(
        store.put("/new", b"2"),
        store.put("/taken", b"2", expected=version + 1),
        store.transact([Check("/none", 0)], [Put("/checked", b"2")]),
        store.transact([Check("/taken", 0)], [Put("/unchecked", b"2")]),
        store.delete("/none"),
        store.put("/leased", b"2", lease=1),
        store.delete("/taken", expected=version),
        return_exceptions=True,
    )
    new, conflict, checked, unchecked, absent, expired, deleted = results
    assert isinstance(new, int)
    assert isinstance(conflict, VersionConflict)
    assert (unchecked, absent, deleted) == (None, False, True)
    assert isinstance(checked, Committed)
    assert checked.changes == [Change("/checked", Record(b"2", checked.version))]
    assert isinstance(expired, LeaseExpired)
    assert [path for path, _ in await store.scan("/")] == ["/checked", "/new"]


async def test_concurrent_transactions_are_serializable(store: EtcdMetadataStore) -> None:
    """Each writes what the other checks, and etcd checks everything in a request before it writes anything."""
    results = await asyncio.gather(
        store.transact([Check("/a", 0)], [Put("/b", b"")]),
        store.transact([Check("/b", 0)], [Put("/a", b"")]),
    )
    assert sorted(one is not None for one in results) == [False, True]
    versions = await asyncio.gather(
        *(store.put("/counted", b"%d" % number, expected=0) for number in range(20)), return_exceptions=True
    )
    assert sum(isinstance(version, int) for version in versions) == 1


async def test_a_caller_that_stops_waiting_disturbs_nobody(store: EtcdMetadataStore) -> None:
    writing = [asyncio.ensure_future(store.put(f"/w/{number}", b"")) for number in range(200)]
    reading = [asyncio.ensure_future(store.get("/w/0")) for _ in range(200)]
    await asyncio.sleep(0)
    for one in (*writing[::2], *reading[::2]):
        one.cancel()
    results = await asyncio.gather(*writing, *reading, return_exceptions=True)
    assert sum(isinstance(result, asyncio.CancelledError) for result in results) == 200
    assert not [result for result in results if isinstance(result, Exception)]
