# SPDX-License-Identifier: Apache-2.0
"""The metadata store on a real etcd: the contract, and what happens when etcd is killed, cut off or compacted."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path

import pytest
from aetcd import rpc
from meridian_broker.engines.etcd import client
from meridian_broker.engines.etcd.metadata import EtcdMetadataStore
from meridian_broker.metadata.catalog import Catalog
from meridian_broker.metadata.errors import NotEmpty
from meridian_broker.metadata.records import ClusterRecord
from meridian_broker.metadata.store import (
    Change,
    LeaseExpired,
    MetadataError,
    MetadataUnavailable,
    MetadataWentBack,
    Put,
    Record,
)
from meridian_broker.positions.clock import HybridClock
from meridian_broker.wire.pulsar.topic_name import parse
from support.brokers.etcd_server import EtcdServer
from support.contracts.metadata_contract import MetadataStoreContract, begin, end, next_changes, wait_until

_prefixes = itertools.count(1)


@pytest.fixture
async def store(etcd_server: EtcdServer) -> AsyncIterator[EtcdMetadataStore]:
    connected = await EtcdMetadataStore.connect(etcd_server.url, f"meridian/region-{next(_prefixes)}")
    yield connected
    await connected.close()


class TestContract(MetadataStoreContract):
    pass


async def test_regions_with_their_own_prefix_do_not_see_each_other(etcd_server: EtcdServer) -> None:
    east = await EtcdMetadataStore.connect(etcd_server.url, "meridian/east")
    west = await EtcdMetadataStore.connect(etcd_server.url, "meridian/east-2")
    watch = await begin(west, "/")
    await east.put("/a", b"east")
    await west.put("/b", b"west")
    assert [path for path, _ in await east.scan("/")] == ["/a"]
    assert [change.path for change in await next_changes(watch)] == ["/b"]
    await end(watch)
    await east.close()
    await west.close()


async def test_a_watch_misses_nothing_while_etcd_is_killed_and_started_again(
    etcd_server: EtcdServer, store: EtcdMetadataStore
) -> None:
    other = await EtcdMetadataStore.connect(etcd_server.url, store._prefix)
    watch = await begin(store, "/w/")
    written: list[int] = []
    stop = asyncio.Event()

    async def write() -> None:
        """Write numbers in order, two paths per transaction, and repeat what etcd did not confirm."""
        for number in itertools.count():
            while True:
                try:
                    await other.transact([], [Put("/w/a", b"%d" % number), Put("/w/b", b"%d" % number)])
                    break
                except MetadataUnavailable:
                    await asyncio.sleep(0.01)
            written.append(number)
            if stop.is_set():
                return

    async def write_more() -> None:
        target = len(written) + 50
        await wait_until(lambda: len(written) >= target)

    writer = asyncio.create_task(write())
    for _ in range(2):
        await write_more()
        await asyncio.to_thread(etcd_server.kill)
        await asyncio.to_thread(etcd_server.start)
        await write_more()
    stop.set()
    await writer

    seen: list[int] = []
    while not seen or seen[-1] != written[-1]:
        changes = await next_changes(watch)
        assert [change.path for change in changes] == ["/w/a", "/w/b"]
        values = {int(change.record.value) for change in changes if change.record is not None}
        assert len(values) == 1
        seen.extend(values)
    assert sorted(set(seen)) == written
    assert seen == sorted(seen)
    await end(watch)
    await other.close()


async def test_a_watch_that_missed_compacted_changes_says_so(etcd_server: EtcdServer, store: EtcdMetadataStore) -> None:
    watch = store._open_watch("/w/")  # as if nobody read for this watch
    assert await next_changes(watch) == []
    version = await store.put("/w/a", b"1")
    assert len(await next_changes(watch)) == 1
    await asyncio.to_thread(etcd_server.kill)
    await asyncio.to_thread(etcd_server.start)
    # Nobody reads the watch: its stream breaks, and it comes back only after the compaction.
    for _ in range(3):
        version = await store.put("/w/a", b"2")
    await store._channel._connections.now.kv.Compact(rpc.CompactionRequest(revision=version, physical=True), timeout=60)
    with pytest.raises(MetadataError, match="scan and watch again"):
        await next_changes(watch)


async def test_followers_of_a_folder_share_one_watch(store: EtcdMetadataStore) -> None:
    opened: list[str] = []

    def open_watch(prefix: str) -> AsyncGenerator[list[Change], None]:
        opened.append(prefix)
        return store._open_watch(prefix)

    store._watches._open = open_watch
    prefixes = ["/geo/", "/geo/tenants/", "/local/sync/outbox/", "/local/sync/parked/", "/local/other/"]
    watches = [await begin(store, prefix) for prefix in prefixes]
    assert opened == ["/geo/", "/local/sync/", "/local/other/"]
    puts = [Put(f"{prefix}a", b"1") for prefix in prefixes]
    done = await store.transact([], puts)
    assert done is not None
    for prefix, watch in zip(prefixes[1:], watches[1:], strict=True):
        assert await next_changes(watch) == [Change(f"{prefix}a", Record(b"1", done.version))]
    assert [one.path for one in await next_changes(watches[0])] == ["/geo/a", "/geo/tenants/a"]
    await end(watches[0])
    await store.put("/geo/tenants/a", b"2")
    assert len(await next_changes(watches[1])) == 1, "one follower ended, the other goes on"
    await end(watches[1])
    again = await begin(store, "/geo/tenants/")
    assert opened[3:] == ["/geo/"]
    for watch in (*watches[2:], again):
        await end(watch)
    assert not store._watches._streams


async def test_a_scan_restarts_when_its_revision_is_compacted(
    store: EtcdMetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for at in range(0, 600, 100):
        await store.transact([], [Put(f"/s/{i:04d}", b"") for i in range(at, at + 100)])
    ask, asked = store._range, 0

    async def compact_after_the_first_page(request: object, doing: str) -> object:
        nonlocal asked
        asked += 1
        answer = await ask(request, doing)
        if asked == 1:
            version = await store.put("/s/0000", b"new")
            await store._channel._connections.now.kv.Compact(rpc.CompactionRequest(revision=version), timeout=60)
        return answer

    monkeypatch.setattr(store, "_range", compact_after_the_first_page)
    found = await store.scan("/s/")
    assert len(found) == 600
    assert found[0][1].value == b"new"
    assert asked == 4


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests wait longer than etcd takes to start on a busy machine."""
    monkeypatch.setattr("meridian_broker.engines.etcd.metadata.REQUEST_TIMEOUT", 60.0)


@pytest.mark.usefixtures("patient")
async def test_requests_wait_for_an_etcd_that_comes_back_in_time(
    etcd_server: EtcdServer, store: EtcdMetadataStore
) -> None:
    await store.put("/a", b"1")
    await asyncio.to_thread(etcd_server.kill)
    reading = asyncio.ensure_future(store.get("/a"))
    await asyncio.to_thread(etcd_server.start)
    record = await reading
    assert record is not None
    assert record.value == b"1"


@pytest.mark.usefixtures("patient")
async def test_a_read_in_flight_when_etcd_died_is_repeated(etcd_server: EtcdServer, store: EtcdMetadataStore) -> None:
    await store.put("/a", b"1")
    await asyncio.to_thread(etcd_server.pause)
    try:
        reading = asyncio.ensure_future(store.get("/a"))
        await written(store)
    finally:
        await asyncio.to_thread(etcd_server.kill)
        await asyncio.to_thread(etcd_server.start)
    record = await reading
    assert record is not None
    assert record.value == b"1"


async def written(store: EtcdMetadataStore) -> None:
    """Waits until all requests so far are in the socket of the stopped etcd."""
    with pytest.raises(MetadataUnavailable):
        await store._channel.read(rpc.RangeRequest(key=b"/"), "asking", 0.3)


async def test_an_etcd_that_stays_down_is_reported(
    etcd_server: EtcdServer, store: EtcdMetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("metadata", "leasing", "watching"):
        monkeypatch.setattr(f"meridian_broker.engines.etcd.{module}.REQUEST_TIMEOUT", 0.3)
    await asyncio.to_thread(etcd_server.kill)
    try:
        with pytest.raises(MetadataUnavailable, match="is it running and reachable"):
            await store.get("/a")
        with pytest.raises(MetadataUnavailable):
            await store.put("/a", b"")
        with pytest.raises(MetadataUnavailable):
            await store.lease(5)
        with pytest.raises(MetadataUnavailable):
            await anext(store.watch("/a"))
        with pytest.raises(MetadataUnavailable):
            await EtcdMetadataStore.connect(etcd_server.url, "meridian/nowhere")
    finally:
        await asyncio.to_thread(etcd_server.start)
    assert await store.get("/a") is None


@pytest.mark.usefixtures("etcd_server")
@pytest.mark.parametrize("lost", [1, 3])
async def test_an_etcd_that_was_restored_under_us_is_noticed(tmp_path: Path, lost: int) -> None:
    """Whichever request comes first: no answer is believed, even where our own write would hide the loss."""
    server = EtcdServer(tmp_path / "etcd")
    told: list[str] = []
    try:
        await asyncio.to_thread(server.kill)
        shutil.copytree(tmp_path / "etcd", tmp_path / "copy")
        await asyncio.to_thread(server.start)
        stores = [await EtcdMetadataStore.connect(server.url, "meridian/east", told.append) for _ in range(3)]
        reading, writing, watching = stores
        watch = await begin(watching, "/")
        for number in range(lost):
            await reading.put(f"/{number}", b"")
        for _ in range(lost):
            await next_changes(watch)
        await writing.get("/0")
        await asyncio.to_thread(server.kill)
        shutil.rmtree(tmp_path / "etcd")
        shutil.copytree(tmp_path / "copy", tmp_path / "etcd")
        await asyncio.to_thread(server.start)
        with pytest.raises(MetadataWentBack, match="went back in time"):
            await reading.get("/0")
        with pytest.raises(MetadataWentBack):
            await next_changes(watch)
        with pytest.raises(MetadataWentBack):
            await writing.put("/other", b"")
        assert len(told) == 3, "each store logs it once"
        with pytest.raises(MetadataWentBack):
            await writing.get("/other")
        assert len(told) == 3
        for store in stores:
            await store.close()
    finally:
        server.close()


async def test_a_lease_outlives_a_short_absence_of_etcd(etcd_server: EtcdServer, store: EtcdMetadataStore) -> None:
    lease = await store.lease(10)
    await store.put("/mine", b"", lease=lease.lease_id)
    before = lease.valid_until()
    await asyncio.to_thread(etcd_server.kill)
    await asyncio.to_thread(etcd_server.start)
    await wait_until(lambda: lease.valid_until() > before)
    assert await store.get("/mine") is not None
    await lease.revoke()


async def test_what_a_dead_holder_put_with_its_lease_ends(etcd_server: EtcdServer, store: EtcdMetadataStore) -> None:
    watch = await begin(store, "/holder")
    holder = await asyncio.create_subprocess_exec(sys.executable, "-c", _HOLDER, etcd_server.url, store._prefix)
    assert [change.record is not None for change in await next_changes(watch)] == [True]
    holder.kill()
    await holder.wait()
    assert [change.record for change in await next_changes(watch)] == [None]
    await end(watch)


_HOLDER = """
import asyncio, sys
from meridian_broker.engines.etcd.metadata import EtcdMetadataStore
async def main():
    store = await EtcdMetadataStore.connect(sys.argv[1], sys.argv[2])
    await store.put("/holder", b"", lease=(await store.lease(2)).lease_id)
    await asyncio.sleep(60)
asyncio.run(main())
"""


async def test_a_lease_taken_away_in_etcd_is_noticed(store: EtcdMetadataStore) -> None:
    lease = await store.lease(2)
    await store._channel._connections.now.leases.LeaseRevoke(rpc.LeaseRevokeRequest(ID=lease.lease_id), timeout=60)
    with pytest.raises(LeaseExpired):
        await store.put("/a", b"", lease=lease.lease_id)
    await wait_until(lambda: lease.valid_until() == float("-inf"))


@pytest.mark.parametrize(
    "url", ["127.0.0.1:2379", "ftp://127.0.0.1:2379", "http://127.0.0.1", "http://[::1:2379", "etcd"]
)
async def test_an_invalid_address_is_refused(url: str) -> None:
    with pytest.raises(MetadataError, match="not an etcd address"):
        await EtcdMetadataStore.connect(url, "meridian/x")


async def test_a_catalog_lives_in_etcd_as_in_the_file(store: EtcdMetadataStore) -> None:
    def now_ms() -> int:
        return 1_700_000_000_000

    catalog = Catalog(store, HybridClock(now_ms, "us-east"), now_ms, asyncio.sleep, lambda _: 0)
    running = asyncio.create_task(catalog.run())
    clusters = {"us-east": ClusterRecord("http://a"), "eu": ClusterRecord("http://b")}
    await catalog.ensure_bootstrap(clusters)
    await catalog.ensure_bootstrap(clusters)
    topic = parse("orders")
    await catalog.partitioned.create(topic, 2)
    record, version = await catalog.topics.create(topic.with_partition(0))
    assert await catalog.topics.get(topic.with_partition(0)) == (record, version)
    with pytest.raises(NotEmpty):
        await catalog.namespaces.delete("public/default")
    assert len({await catalog.allocate_ledger_id() for _ in range(100)}) == 100
    other = Catalog(store, HybridClock(now_ms, "us-east"), now_ms, asyncio.sleep, lambda _: 0)
    await other.clusters.create("asia", ClusterRecord())
    await wait_until(lambda: catalog.cluster("asia") is not None)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def test_the_embedded_store_and_the_catalog_import_no_grpc() -> None:
    code = (
        "import sys, meridian_broker.engines.sqlite.metadata, meridian_broker.metadata.catalog;"
        "assert not any(name == 'grpc' or name.startswith(('grpc.', 'aetcd')) for name in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_request_timeout_is_shorter_than_callers_wait() -> None:
    assert 1 <= client.REQUEST_TIMEOUT <= 10


def test_the_running_binary_is_named(etcd_server: EtcdServer) -> None:
    assert etcd_server.binary.startswith("etcd 3.")
    assert Path(etcd_server.binary.rpartition(", ")[2].rstrip(")")).exists()
