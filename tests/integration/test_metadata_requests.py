# SPDX-License-Identifier: Apache-2.0
"""How many store requests a region makes per change: each costs etcd and the broker more than its content."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from meridian_broker.engines.sqlite.metadata import SqliteMetadataStore
from meridian_broker.metadata import keys
from meridian_broker.metadata.catalog import Catalog
from meridian_broker.metadata.errors import NotFound
from meridian_broker.metadata.policies import NamespaceRecord
from meridian_broker.metadata.records import ClusterRecord, TenantRecord
from meridian_broker.metadata.store import Delete, Put
from meridian_broker.metadata.sync import paths
from meridian_broker.metadata.sync.applying import Applier
from meridian_broker.metadata.sync.converging import Verdict, written
from meridian_broker.metadata.sync.events import Changes, Event, Mark, decode
from meridian_broker.metadata.sync.followed_outbox import FollowedOutbox
from meridian_broker.metadata.sync.publishing import Publisher, in_groups
from meridian_broker.metadata.sync.recording import RecordingStore
from meridian_broker.metadata.sync.stamped import Stamped, canonical, from_store
from meridian_broker.positions.clock import HybridClock, Stamp
from support.worlds.sync_store import StoreInMemory, WaitingInMemory
from support.worlds.sync_world import is_synced

TTL = "message_ttl_in_seconds"
NOW_MS = 1_700_000_000_000
PATH = f"{keys.namespace('shop/orders')}/policies/{TTL}"


class Requests:
    """A store that records the requests and passes them to another store."""

    def __init__(self, store: SqliteMetadataStore) -> None:
        self._store = store
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name not in ("get", "get_many", "scan", "transact", "put", "delete", "children"):
            return found

        async def ask(*given: Any, **named: Any) -> Any:
            self.asked.append(name)
            return await found(*given, **named)

        return ask


class Region:
    """A region with tenant ``shop``, as one of its brokers sees it."""

    def __init__(self, name: str, store: SqliteMetadataStore) -> None:
        self.requests: Any = Requests(store)
        self.clock = HybridClock(lambda: NOW_MS, name)
        self.recording = RecordingStore(self.requests, self.clock, is_synced)
        self.catalog = Catalog(self.recording, self.clock, lambda: NOW_MS, asyncio.sleep, lambda _: 0)
        self.recording.guess_records(self.catalog.last_seen)
        self.sent: list[bytes] = []
        self.publisher = Publisher(self.requests, self.clock, self._notify, self.recording.recent)
        self.applier = Applier(
            *(self.requests, self.clock, lambda: NOW_MS, is_synced, lambda: frozenset(("eu", "us"))),
            WaitingInMemory(StoreInMemory(name)),
            last_seen=self.catalog.last_seen,
        )

    async def _notify(self, message: bytes) -> None:
        self.sent.append(message)

    async def asked(self, work: Any) -> list[str]:
        """The requests that an action made."""
        self.requests.asked.clear()
        await work
        return [*self.requests.asked]

    async def set_ttl(self, seconds: int) -> NamespaceRecord:
        return await self.catalog.namespaces.set_policy("shop/orders", TTL, seconds)

    async def followed(self) -> FollowedOutbox:
        """The entries of the outbox, once the writer knows them."""
        found = FollowedOutbox()
        found.read(await self.requests.scan(paths.OUTBOX + "/"))
        self.recording.guess_entries(found.entry)
        return found

    async def followed_and_sent(self) -> FollowedOutbox:
        """As ``followed``, with everything sent and not removed yet."""
        found = await self.followed()
        [sent] = in_groups(found.unsent.items())
        await self.publisher.send(sent)
        found.were_sent(sent)
        return found

    async def send(self) -> list[str]:
        owed = await self.requests.scan(paths.OUTBOX + "/")
        return [one for some in in_groups(owed) for one in await self.asked(self.publisher.send(some))]


@pytest.fixture
async def region(tmp_path: Path) -> AsyncIterator[Region]:
    async with AsyncExitStack() as stack:
        store = await SqliteMetadataStore.open(tmp_path / "us")
        stack.push_async_callback(store.close)
        made = Region("us", store)
        await made.catalog.clusters.put("us", ClusterRecord("http://us:8080"))
        await made.catalog.tenants.create("shop", TenantRecord(allowed_clusters=frozenset(("us",))))
        await made.catalog.namespaces.create("shop/orders")
        await made.publisher.mark(made.applier.heard)
        await made.set_ttl(1)
        yield made


async def test_a_policy_is_set_by_one_transaction_and_seen_at_once(region: Region) -> None:
    await region.publisher.drain()
    assert await region.asked(region.set_ttl(2)) == ["transact"]
    seen = region.catalog.namespace("shop/orders")
    assert seen is not None
    assert seen.own[TTL] == 2


async def test_a_policy_that_waits_to_be_sent_is_set_again_by_one_transaction(region: Region) -> None:
    await region.publisher.drain()
    await region.set_ttl(2)
    before = await region.requests.get(PATH)
    await region.followed()
    assert await region.asked(region.set_ttl(3)) == ["transact"]
    assert await region.asked(region.set_ttl(4)) == ["transact", "get_many", "transact"], "no watch has reported 3"
    region.sent.clear()
    await region.publisher.drain()
    message = decode(region.sent[0])
    assert isinstance(message, Changes)
    assert [event.state.value for event in message.events] == [b"4"]
    assert [event.replaced for event in message.events] != [written(from_store(PATH, before.value))]


async def test_a_policy_that_another_region_set_is_replaced_by_one_transaction(region: Region) -> None:
    await region.publisher.drain()
    await region.catalog.begin()
    followed, heard = asyncio.create_task(region.catalog.run()), asyncio.Event()
    region.catalog.subscribe(lambda _: heard.set())
    state = Stamped(Stamp(NOW_MS, 7, "eu"), b"60")
    await region.applier.apply(Changes("eu", (Event(PATH, state),)))
    await heard.wait()
    assert await region.asked(region.set_ttl(2)) == ["transact"]
    assert from_store(PATH, (await region.requests.get(PATH)).value).knew(state)
    followed.cancel()


async def test_a_region_that_never_wrote_a_mark_reads_nothing_either(tmp_path: Path) -> None:
    store = await SqliteMetadataStore.open(tmp_path / "us")
    try:
        region = Region("us", store)
        await region.catalog.clusters.put("us", ClusterRecord("http://us:8080"))
        await region.catalog.tenants.create("shop", TenantRecord(allowed_clusters=frozenset(("us",))))
        await region.catalog.namespaces.create("shop/orders")
        await region.set_ttl(1)
        await region.publisher.drain()
        assert await region.asked(region.set_ttl(2)) == ["transact"]
    finally:
        await store.close()


async def test_a_write_takes_the_place_of_an_entry_that_was_sent(region: Region) -> None:
    """Its event names the replaced value correctly, although the sent entry was not removed yet."""
    await region.publisher.drain()
    await region.set_ttl(2)
    await region.followed_and_sent()
    before = await region.requests.get(PATH)
    assert await region.asked(region.set_ttl(3)) == ["transact"]
    region.sent.clear()
    await region.publisher.drain()
    message = decode(region.sent[0])
    assert isinstance(message, Changes)
    assert [event.replaced for event in message.events] == [written(from_store(PATH, before.value))]


async def test_a_mark_sends_what_was_not_sent_before_it_and_repeats_nothing(region: Region) -> None:
    await region.publisher.drain()
    await region.set_ttl(2)
    followed = await region.followed_and_sent()
    region.sent.clear()
    await region.publisher.mark(region.applier.heard, followed.sent)
    assert [type(decode(message)) for message in region.sent] == [Mark]
    await region.set_ttl(3)
    region.sent.clear()
    await region.publisher.mark(region.applier.heard, followed.sent)
    assert [type(decode(message)) for message in region.sent] == [Changes, Mark]


async def test_what_was_just_written_is_sent_without_reading_it(region: Region) -> None:
    await region.publisher.drain()
    await region.set_ttl(3)
    region.sent.clear()
    assert await region.send() == []
    message = decode(region.sent[0])
    assert isinstance(message, Changes)
    assert [(event.path, event.state.value) for event in message.events] == [(PATH, b"3")]


async def test_what_another_broker_wrote_since_is_read(region: Region) -> None:
    await region.set_ttl(3)
    other = RecordingStore(region.requests, region.clock, is_synced)
    catalog = Catalog(other, region.clock, lambda: NOW_MS, asyncio.sleep, lambda _: 0)
    await catalog.namespaces.set_policy("shop/orders", TTL, 4)
    region.sent.clear()
    assert await region.send() == ["get_many"]
    message = decode(region.sent[0])
    assert isinstance(message, Changes)
    assert (PATH, b"4") in [(event.path, event.state.value) for event in message.events]


async def test_an_event_is_applied_by_one_transaction(region: Region) -> None:
    async def offer(value: int, time_ms: int) -> list[str]:
        state = Stamped(Stamp(time_ms, 0, "eu"), canonical(value))
        return await region.asked(region.applier.apply(Changes("eu", (Event(PATH, state),))))

    await offer(5, NOW_MS + 1000)  # it reads the horizon once
    await region.catalog.refresh()
    assert await offer(6, NOW_MS + 2000) == ["transact"]
    verdicts = region.applier.counts.verdicts
    assert await offer(7, NOW_MS + 3000) == ["transact", "get_many", "transact"], "the view does not know 6 yet"
    assert await offer(6, NOW_MS + 2000) == ["transact", "get_many"]
    assert verdicts == {Verdict.APPLIED: 3, Verdict.STALE: 1}
    record = await region.requests.get(PATH)
    assert b"7" in record.value


async def test_nothing_is_refused_because_of_a_stale_view(region: Region) -> None:
    """Other brokers of the region write too, and the view learns of it a moment later."""
    base = keys.namespace("shop/orders")
    records = await region.requests.scan(base + "/")
    bare = await region.requests.get(base)
    assert await region.requests.transact([], [Delete(base), *(Delete(path) for path, _ in records)])
    with pytest.raises(NotFound):
        await region.set_ttl(2)
    await region.catalog.refresh()
    puts: Sequence[Put] = [Put(base, bare.value), *(Put(path, record.value) for path, record in records)]
    assert await region.requests.transact([], puts)
    await region.set_ttl(2)
    seen = region.catalog.namespace("shop/orders")
    assert seen is not None
    assert seen.own[TTL] == 2


async def test_a_write_that_changes_nothing_is_compared_with_the_store(region: Region) -> None:
    other = Catalog(
        *(RecordingStore(region.requests, region.clock, is_synced), region.clock, lambda: NOW_MS),
        *(asyncio.sleep, lambda _: 0),
    )
    await other.namespaces.set_policy("shop/orders", TTL, 9)
    await region.set_ttl(1)  # as it was when this broker last read it
    assert (await other.namespaces.get("shop/orders")).own[TTL] == 1
