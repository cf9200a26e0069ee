# SPDX-License-Identifier: Apache-2.0
"""What every metadata store must do. A test module derives a class and provides the fixture ``store``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import cast

import pytest
from meridian_broker.engines.clock import monotonic
from meridian_broker.metadata.limits import MAX_OPERATIONS, MAX_VALUE_BYTES, BadRequest
from meridian_broker.metadata.store import (
    ABSENT,
    Change,
    Check,
    Delete,
    LeaseExpired,
    MetadataError,
    MetadataStore,
    Put,
    Record,
    VersionConflict,
)

PATIENCE = 60.0


async def next_changes(watch: AsyncIterator[list[Change]]) -> list[Change]:
    async with asyncio.timeout(PATIENCE):
        return await anext(watch)


async def begin(store: MetadataStore, prefix: str) -> AsyncIterator[list[Change]]:
    watch = store.watch(prefix)
    assert await next_changes(watch) == []
    return watch


async def wait_until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 - no event announces the condition
            await asyncio.sleep(0.005)


async def end(watch: AsyncIterator[list[Change]]) -> None:
    await cast("AsyncGenerator[list[Change], None]", watch).aclose()


class ReadingAndWriting:
    async def test_what_was_put_is_read(self, store: MetadataStore) -> None:
        version = await store.put("/a/b", b"\x00\xffvalue")
        assert version >= 1
        assert await store.get("/a/b") == Record(b"\x00\xffvalue", version)

    async def test_absent_is_none_and_so_is_a_path_with_only_descendants(self, store: MetadataStore) -> None:
        await store.put("/a/b", b"1")
        assert await store.get("/a") is None
        assert await store.get("/a/b/c") is None

    async def test_an_empty_value_is_a_value(self, store: MetadataStore) -> None:
        version = await store.put("/empty", b"")
        assert await store.get("/empty") == Record(b"", version)

    async def test_versions_grow_even_across_a_deletion(self, store: MetadataStore) -> None:
        first = await store.put("/p", b"1")
        second = await store.put("/p", b"2")
        assert await store.delete("/p")
        third = await store.put("/p", b"1")
        assert first < second < third

    async def test_expected_absent_creates_once(self, store: MetadataStore) -> None:
        version = await store.put("/p", b"1", expected=ABSENT)
        with pytest.raises(VersionConflict):
            await store.put("/p", b"2", expected=ABSENT)
        assert await store.get("/p") == Record(b"1", version)

    async def test_expected_version_writes_only_over_that_version(self, store: MetadataStore) -> None:
        first = await store.put("/p", b"1")
        second = await store.put("/p", b"2", expected=first)
        with pytest.raises(VersionConflict):
            await store.put("/p", b"3", expected=first)
        with pytest.raises(VersionConflict):
            await store.put("/other", b"3", expected=first)
        assert await store.get("/p") == Record(b"2", second)
        assert await store.get("/other") is None

    async def test_delete_says_whether_there_was_something(self, store: MetadataStore) -> None:
        await store.put("/p", b"1")
        await store.put("/p/below", b"2")
        assert await store.delete("/p") is True
        assert await store.delete("/p") is False
        assert await store.get("/p/below") is not None

    async def test_delete_with_expected_version(self, store: MetadataStore) -> None:
        old = await store.put("/p", b"1")
        new = await store.put("/p", b"2")
        with pytest.raises(VersionConflict):
            await store.delete("/p", expected=old)
        with pytest.raises(VersionConflict):
            await store.delete("/p", expected=ABSENT)
        assert await store.delete("/p", expected=new)
        with pytest.raises(VersionConflict):
            await store.delete("/p", expected=new)
        assert await store.delete("/p", expected=ABSENT) is False

    async def test_of_writers_with_the_same_expectation_one_wins(self, store: MetadataStore) -> None:
        async def increment() -> None:
            while True:
                record = await store.get("/counter")
                value = int(record.value) if record else 0
                try:
                    await store.put("/counter", b"%d" % (value + 1), expected=record.version if record else ABSENT)
                except VersionConflict:
                    continue
                return

        await asyncio.gather(*(increment() for _ in range(20)))
        record = await store.get("/counter")
        assert record is not None
        assert record.value == b"20"

    @pytest.mark.parametrize("path", ["", "a", "/", "/a/", "//a", "/a//b", "/a b", "/ä", "/a\x00", "/" + "x" * 40_000])
    async def test_a_bad_path_is_refused(self, store: MetadataStore, path: str) -> None:
        with pytest.raises(BadRequest):
            await store.get(path)
        with pytest.raises(BadRequest):
            await store.put(path, b"")
        with pytest.raises(BadRequest):
            await store.delete(path)
        with pytest.raises(BadRequest):
            await store.transact([], [Put(path, b"")])

    async def test_the_largest_value_fits_and_a_larger_one_is_refused(self, store: MetadataStore) -> None:
        value = bytes(MAX_VALUE_BYTES)
        await store.put("/large", value)
        record = await store.get("/large")
        assert record is not None
        assert record.value == value
        with pytest.raises(BadRequest):
            await store.put("/large", value + b"x")


class Listing:
    async def test_many_paths_are_read_in_the_order_asked_for(self, store: MetadataStore) -> None:
        version = await store.put("/b", b"1")
        assert await store.get_many(["/b", "/a", "/b"]) == [Record(b"1", version), None, Record(b"1", version)]
        assert await store.get_many([]) == []
        with pytest.raises(BadRequest):
            await store.get_many(["/b", "no path"])

    async def test_children_are_one_level_sorted_and_complete(self, store: MetadataStore) -> None:
        for path in ("/t/a", "/t/a/x/y", "/t/a-b", "/t/a.c/d/e", "/t/b/c", "/t/b/d", "/tt/z", "/s/t"):
            await store.put(path, b"")
        assert await store.children("/t") == ["a", "a-b", "a.c", "b"]
        assert await store.children("/t/a") == ["x"]
        assert await store.children("/t/b/c") == []
        assert await store.children("/") == ["s", "t", "tt"]

    async def test_children_of_many_pages(self, store: MetadataStore) -> None:
        deep = [Put(f"/t/0-deep/{i:04d}/x", b"") for i in range(1200)]
        wide = [Put(f"/t/wide-{i:04d}", b"") for i in range(600)]
        both = [*deep, *wide]
        for at in range(0, len(both), MAX_OPERATIONS):
            assert await store.transact([], both[at : at + MAX_OPERATIONS])
        assert await store.children("/t") == ["0-deep", *(f"wide-{i:04d}" for i in range(600))]
        assert len(await store.children("/t/0-deep")) == 1200

    async def test_scan_is_sorted_and_by_prefix_not_by_level(self, store: MetadataStore) -> None:
        versions = {path: await store.put(path, path.encode()) for path in ("/b/1", "/a/2", "/a/1", "/ab", "/a")}
        assert await store.scan("/a") == [
            (path, Record(path.encode(), versions[path])) for path in ("/a", "/a/1", "/a/2", "/ab")
        ]
        assert [path for path, _ in await store.scan("/a/")] == ["/a/1", "/a/2"]
        assert len(await store.scan("/")) == 5
        assert await store.scan("/nothing") == []
        with pytest.raises(BadRequest):
            await store.scan("a")

    async def test_scan_of_many_pages_shows_one_moment(self, store: MetadataStore) -> None:
        count = 1100
        for at in range(0, count, 100):
            assert await store.transact([], [Put(f"/many/{i:05d}", b"0") for i in range(at, at + 100)])
        first, last = "/many/00000", f"/many/{count - 1:05d}"
        stop = asyncio.Event()

        async def write_both_ends() -> None:
            turn = 0
            while not stop.is_set():
                turn += 1
                assert await store.transact([], [Put(first, b"%d" % turn), Put(last, b"%d" % turn)])

        writer = asyncio.create_task(write_both_ends())
        try:
            for _ in range(10):
                found = await store.scan("/many/")
                assert len(found) == count
                assert found[0][1].value == found[-1][1].value
        finally:
            stop.set()
            await writer


class Transactions:
    async def test_all_operations_happen_when_all_checks_hold(self, store: MetadataStore) -> None:
        version = await store.put("/a", b"1")
        await store.put("/gone", b"1")
        assert await store.transact(
            [Check("/a", version), Check("/new", ABSENT)], [Put("/a", b"2"), Put("/new", b"3"), Delete("/gone")]
        )
        assert [(path, record.value) for path, record in await store.scan("/")] == [("/a", b"2"), ("/new", b"3")]

    async def test_writes_of_one_transaction_share_a_version(self, store: MetadataStore) -> None:
        assert await store.transact([], [Put("/a", b""), Put("/b", b"")])
        (_, a), (_, b) = await store.scan("/")
        assert a.version == b.version

    async def test_nothing_happens_when_one_check_fails(self, store: MetadataStore) -> None:
        version = await store.put("/a", b"1")
        before = await store.scan("/")
        assert not await store.transact([Check("/a", version), Check("/b", 7)], [Put("/a", b"2"), Put("/c", b"2")])
        assert not await store.transact([Check("/a", ABSENT)], [Delete("/a")])
        assert await store.scan("/") == before

    async def test_checks_alone_are_a_question(self, store: MetadataStore) -> None:
        version = await store.put("/a", b"1")
        assert await store.transact([Check("/a", version)], [])
        assert not await store.transact([Check("/a", version + 1)], [])

    async def test_concurrent_transfers_lose_nothing(self, store: MetadataStore) -> None:
        await store.put("/left", b"100")
        await store.put("/right", b"0")

        async def move_one() -> None:
            while True:
                left, right = await store.get("/left"), await store.get("/right")
                assert left is not None
                assert right is not None
                if await store.transact(
                    [Check("/left", left.version), Check("/right", right.version)],
                    [Put("/left", b"%d" % (int(left.value) - 1)), Put("/right", b"%d" % (int(right.value) + 1))],
                ):
                    return

        await asyncio.gather(*(move_one() for _ in range(10)))
        assert [record.value for _, record in await store.scan("/")] == [b"90", b"10"]

    async def test_what_no_store_can_do_is_refused(self, store: MetadataStore) -> None:
        with pytest.raises(BadRequest, match="twice"):
            await store.transact([], [Put("/a", b""), Delete("/a")])
        with pytest.raises(BadRequest, match="limit"):
            await store.transact([], [Put(f"/{i}", b"") for i in range(MAX_OPERATIONS + 1)])
        with pytest.raises(BadRequest, match="limit"):
            await store.transact([Check(f"/{i}", 0) for i in range(MAX_OPERATIONS + 1)], [])
        with pytest.raises(BadRequest, match="limit"):
            await store.transact([], [Put("/a", bytes(MAX_VALUE_BYTES)), Put("/b", b"x")])
        assert await store.scan("/") == []


class Watching:
    async def test_changes_arrive_in_order_with_their_records(self, store: MetadataStore) -> None:
        await store.put("/w/before", b"")
        watch = await begin(store, "/w/")
        first = await store.put("/w/a", b"1")
        second = await store.put("/w/a", b"2")
        await store.put("/elsewhere", b"")
        await store.delete("/w/a")
        assert await next_changes(watch) == [Change("/w/a", Record(b"1", first))]
        assert await next_changes(watch) == [Change("/w/a", Record(b"2", second))]
        assert await next_changes(watch) == [Change("/w/a", None)]
        await end(watch)

    async def test_a_transaction_arrives_whole(self, store: MetadataStore) -> None:
        await store.put("/w/old", b"")
        watch = await begin(store, "/w/")
        await store.transact([], [Put("/w/b", b"1"), Delete("/w/old"), Put("/x", b""), Put("/w/a", b"2")])
        changes = await next_changes(watch)
        assert {change.path: change.record and change.record.value for change in changes} == {
            "/w/b": b"1",
            "/w/old": None,
            "/w/a": b"2",
        }
        await end(watch)

    async def test_what_changes_nothing_is_not_told(self, store: MetadataStore) -> None:
        watch = await begin(store, "/w/")
        await store.delete("/w/absent")
        assert not await store.transact([Check("/w/absent", 3)], [Put("/w/a", b"")])
        await store.put("/w/last", b"")
        assert [change.path for change in await next_changes(watch)] == ["/w/last"]
        await end(watch)

    async def test_several_watches_see_their_own_prefixes(self, store: MetadataStore) -> None:
        wide, narrow = await begin(store, "/w"), await begin(store, "/w/n")
        await store.put("/w/a", b"")
        await store.put("/w/n", b"")
        assert [change.path for change in await next_changes(narrow)] == ["/w/n"]
        assert [change.path for change in await next_changes(wide)] == ["/w/a"]
        assert [change.path for change in await next_changes(wide)] == ["/w/n"]
        await end(wide)
        await end(narrow)

    async def test_a_scan_after_the_empty_list_and_the_changes_give_everything(self, store: MetadataStore) -> None:
        """While writers run, a client that watches, scans and applies changes ends with the same tree."""
        stop = asyncio.Event()
        counts = [0, 0, 0]

        async def write(writer: int) -> None:
            while not stop.is_set():
                counts[writer] += 1
                await store.put(f"/w/{writer}/{counts[writer] % 7}", b"%d" % counts[writer])
                if counts[writer] % 5 == 0:
                    await store.delete(f"/w/{writer}/{counts[writer] % 3}")

        writers = [asyncio.create_task(write(writer)) for writer in range(3)]
        try:
            await wait_until(lambda: min(counts) >= 10)
            watch = await begin(store, "/w/")
            tree = {path: record.value for path, record in await store.scan("/w/")}
            target = max(counts) + 30
            await wait_until(lambda: min(counts) >= target)
        finally:
            stop.set()
            await asyncio.gather(*writers)
        await store.put("/w/end", b"")
        while "/w/end" not in tree:
            for change in await next_changes(watch):
                if change.record is None:
                    tree.pop(change.path, None)
                else:
                    tree[change.path] = change.record.value
        assert tree == {path: record.value for path, record in await store.scan("/w/")}
        await end(watch)

    async def test_closing_the_store_ends_a_watch_with_an_error(self, store: MetadataStore) -> None:
        watch = await begin(store, "/w/")
        waiting = asyncio.ensure_future(next_changes(watch))
        await asyncio.sleep(0)
        await store.close()
        with pytest.raises(MetadataError, match="closed"):
            await waiting

    async def test_cancelling_a_watcher_cancels_it(self, store: MetadataStore) -> None:
        watch = await begin(store, "/w/")
        waiting = asyncio.ensure_future(next_changes(watch))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting


class Leasing:
    async def test_revoking_removes_what_was_put_with_it(self, store: MetadataStore) -> None:
        lease, other = await store.lease(30), await store.lease(30)
        await store.put("/mine", b"1", lease=lease.lease_id)
        await store.transact([], [Put("/too", b"1", lease.lease_id), Put("/theirs", b"1", other.lease_id)])
        await store.put("/free", b"1")
        await store.put("/freed", b"1", lease=lease.lease_id)
        await store.put("/freed", b"2")
        watch = await begin(store, "/")
        await lease.revoke()
        assert [path for path, _ in await store.scan("/")] == ["/free", "/freed", "/theirs"]
        assert {change.path for change in await next_changes(watch)} == {"/mine", "/too"}
        assert lease.valid_until() < monotonic()
        await end(watch)

    async def test_a_revoked_lease_protects_nothing_new(self, store: MetadataStore) -> None:
        lease = await store.lease(30)
        await lease.revoke()
        with pytest.raises(LeaseExpired):
            await store.put("/a", b"", lease=lease.lease_id)
        with pytest.raises(LeaseExpired):
            await store.transact([], [Put("/b", b""), Put("/a", b"", lease.lease_id)])
        assert await store.scan("/") == []

    async def test_an_unknown_lease_is_refused(self, store: MetadataStore) -> None:
        with pytest.raises(LeaseExpired):
            await store.put("/a", b"", lease=0x7EADBEEF)
        with pytest.raises(LeaseExpired):
            await store.transact([], [Put("/b", b""), Put("/a", b"", 0x7EADBEEF)])
        assert await store.scan("/") == []

    async def test_it_is_renewed_and_never_promises_more_than_its_time(self, store: MetadataStore) -> None:
        lease = await store.lease(6)
        first = lease.valid_until()
        assert monotonic() < first < monotonic() + 6
        await store.put("/mine", b"", lease=lease.lease_id)
        async with asyncio.timeout(PATIENCE):
            while lease.valid_until() < first + 2:
                assert monotonic() < lease.valid_until()
                await asyncio.sleep(0.05)
        assert await store.get("/mine") is not None
        await lease.revoke()

    async def test_a_holder_that_stalls_loses_it(self, store: MetadataStore) -> None:
        """After ``valid_until``, a lease is over for good, even if the store would still renew it."""
        lease = await store.lease(3)
        await store.put("/mine", b"", lease=lease.lease_id)
        watch = await begin(store, "/mine")
        stalled_until = lease.valid_until() + 0.05
        while monotonic() < stalled_until:  # nothing in this process runs, as in a long garbage collection
            time.sleep(0.02)  # noqa: ASYNC251
        assert lease.valid_until() < monotonic()
        with pytest.raises(LeaseExpired):
            await store.put("/mine", b"again", lease=lease.lease_id)
        assert await next_changes(watch) == [Change("/mine", None)]
        assert lease.valid_until() < monotonic()
        await end(watch)


class Closing:
    async def test_after_closing_every_request_fails_and_closing_again_is_fine(self, store: MetadataStore) -> None:
        lease = await store.lease(30)
        await store.put("/leased", b"", lease=lease.lease_id)
        await store.close()
        await store.close()
        with pytest.raises(MetadataError, match="closed"):
            await store.get("/a")
        with pytest.raises(MetadataError, match="closed"):
            await store.put("/a", b"")
        with pytest.raises(MetadataError, match="closed"):
            await anext(store.watch("/a"))


class MetadataStoreContract(ReadingAndWriting, Listing, Transactions, Watching, Leasing, Closing):
    """The whole contract."""
