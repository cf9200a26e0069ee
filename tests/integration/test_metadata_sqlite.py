# SPDX-License-Identifier: Apache-2.0
"""The embedded metadata store: the contract, and its own traits (one file, one process, formats)."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from meridian_broker.engines.sqlite.metadata import SqliteMetadataStore
from meridian_broker.engines.watcher import WATCH_QUEUE
from meridian_broker.metadata.noting import NotingStore
from meridian_broker.metadata.store import Change, MetadataError, MetadataFull, MetadataUnavailable, Put, Record
from support.contracts.metadata_contract import MetadataStoreContract, begin, next_changes


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteMetadataStore]:
    opened = await SqliteMetadataStore.open(tmp_path / "metadata.db")
    yield opened
    await opened.close()


class TestContract(MetadataStoreContract):
    pass


async def test_data_and_versions_survive_the_process_and_leases_do_not(tmp_path: Path) -> None:
    path = tmp_path / "new" / "metadata.db"
    store = await SqliteMetadataStore.open(path)
    version = await store.put("/a", b"1")
    newest = await store.put("/gone", b"1")
    await store.delete("/gone")
    await store.close()

    store = await SqliteMetadataStore.open(path)
    assert await store.scan("/") == [("/a", Record(b"1", version))]
    assert await store.put("/gone", b"1") > newest
    await store.close()


async def test_a_killed_process_leaves_its_confirmed_writes_and_no_leased_paths(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _WRITER, str(path), stdout=asyncio.subprocess.PIPE
    )
    assert child.stdout is not None
    told = 0
    async for line in child.stdout:
        told = int(line) if line.endswith(b"\n") else told
        if told == 50:
            child.kill()
    await child.wait()

    store = await SqliteMetadataStore.open(path)
    record = await store.get("/told")
    assert record is not None
    assert int(record.value) >= told
    assert await store.get("/leased") is None
    await store.close()


_WRITER = """
import asyncio, sys
from meridian_broker.engines.sqlite.metadata import SqliteMetadataStore
async def main():
    store = await SqliteMetadataStore.open(sys.argv[1])
    await store.put("/leased", b"", lease=(await store.lease(60)).lease_id)
    for i in range(100000):
        await store.put("/told", b"%d" % i)
        print(i, flush=True)
asyncio.run(main())
"""


async def test_a_second_process_is_told_that_the_file_is_in_use(store: SqliteMetadataStore, tmp_path: Path) -> None:
    with pytest.raises(MetadataUnavailable, match="in use by another process"):
        await SqliteMetadataStore.open(tmp_path / "metadata.db")
    await store.put("/still", b"works")


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (99, r"newer version of Meridian .metadata format 99, .* upgrade"),
        (0, "is damaged: it has metadata format 0, and .* reads 1"),
    ],
)
async def test_an_unknown_format_is_refused_with_a_sentence(tmp_path: Path, found: int, why: str) -> None:
    path = tmp_path / "metadata.db"
    await (await SqliteMetadataStore.open(path)).close()
    with sqlite3.connect(path) as sql:
        sql.execute(f"PRAGMA user_version = {found}")
    sql.close()
    with pytest.raises(MetadataError, match=why):
        await SqliteMetadataStore.open(path)


async def test_a_file_of_another_program_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    with sqlite3.connect(path) as sql:
        sql.execute("CREATE TABLE theirs (x)")
    sql.close()
    with pytest.raises(MetadataError, match="another program"):
        await SqliteMetadataStore.open(path)
    path.write_bytes(b"not a database at all" * 100)
    with pytest.raises(MetadataError, match="damaged or not a metadata file"):
        await SqliteMetadataStore.open(path)


async def test_a_watcher_too_far_behind_is_told_to_rescan(store: SqliteMetadataStore) -> None:
    slow, fast = await begin(store, "/w/"), await begin(store, "/other/")
    await asyncio.gather(*(store.put("/w/a", b"%d" % i) for i in range(WATCH_QUEUE + 1)))
    await store.put("/other/a", b"")
    with pytest.raises(MetadataError, match="scan and watch again"):
        await next_changes(slow)
    assert [change.path for change in await next_changes(fast)] == ["/other/a"]

    again = await begin(store, "/w/")
    version = await store.put("/w/a", b"last")
    assert await next_changes(again) == [Change("/w/a", Record(b"last", version))]


async def test_a_full_disk_fails_the_write_and_keeps_the_store_alive(store: SqliteMetadataStore) -> None:
    version = await store.put("/a", b"1")
    await store._ask(lambda transaction: transaction.sql.execute("PRAGMA max_page_count = 8"))
    noting = NotingStore(store)
    for write in (noting.put("/large", os.urandom(200_000)), noting.transact([], [Put("/large", os.urandom(200_000))])):
        with pytest.raises(MetadataFull, match="full"):
            await write
        assert "free space" in str(noting.full)
        assert await noting.get("/a") == Record(b"1", version)
        assert await noting.get("/large") is None
        assert await noting.delete("/none") is False
        assert noting.full is not None
        version = await noting.put("/a", b"1")
        assert noting.full is None


async def test_a_cancelled_caller_does_not_disturb_others(store: SqliteMetadataStore) -> None:
    calls = [asyncio.ensure_future(store.put(f"/{i}", b"")) for i in range(20)]
    await asyncio.sleep(0)
    for call in calls[::2]:
        call.cancel()
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert [isinstance(result, asyncio.CancelledError) for result in results] == [i % 2 == 0 for i in range(20)]
    assert await store.transact([], [Put("/a", b"")])


async def test_a_directory_where_no_file_can_be_created_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")
    with pytest.raises(MetadataUnavailable, match="cannot be created"):
        async with asyncio.timeout(10):
            await SqliteMetadataStore.open(tmp_path / "file" / "metadata.sqlite")
