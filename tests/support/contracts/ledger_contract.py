# SPDX-License-Identifier: Apache-2.0
"""What every `LedgerStore` must do. A test module imports `LedgerContract` and provides a store as a fixture.

The fixture ``ledgers`` is a `LedgerWorld`: it opens a store, and opens the same storage again after a clean close.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

import pytest
from meridian_broker.ledgers.store import (
    LABEL_BYTES_MAX,
    LedgerDeleted,
    LedgerError,
    LedgerFenced,
    LedgerInfo,
    LedgerNotFound,
    LedgerStore,
    Reader,
    Writer,
)

EVERYTHING = 1 << 40


class LedgerWorld(Protocol):
    """A storage, and the store that is open on it."""

    store: LedgerStore

    async def reopen(self) -> LedgerStore:
        """Close the store and start another on the same storage."""
        ...

    def fail(self, is_failing: bool) -> None:
        """From now on, every storage operation that can fail does; or the storage is repaired."""
        ...


class Readable(Protocol):
    """The part of a store that readers need."""

    async def open(self, ledger_id: int) -> Reader: ...


async def append_all(writer: Writer, entries: list[bytes]) -> list[int]:
    """Append and wait for all receipts."""
    heard: list[int | LedgerError] = []
    told = asyncio.get_running_loop().create_future()

    def done(result: int | LedgerError) -> None:
        heard.append(result)
        if len(heard) == len(entries):
            told.set_result(None)

    for entry in entries:
        writer.append(entry, done)
    if entries:
        await told
    errors = [result for result in heard if isinstance(result, LedgerError)]
    if errors:
        raise errors[0]
    return [result for result in heard if isinstance(result, int)]


async def append_one(writer: Writer, entry: bytes) -> int | LedgerError:
    """Append an entry, and return the result of its callback."""
    heard: asyncio.Future[int | LedgerError] = asyncio.get_running_loop().create_future()
    writer.append(entry, heard.set_result)
    return await heard


async def read_all(store: Readable, ledger_id: int) -> list[bytes]:
    reader = await store.open(ledger_id)
    entries: list[bytes] = []
    while len(entries) <= reader.last_confirmed():
        entries += await reader.read(len(entries), reader.last_confirmed(), 1 << 20)
    return entries


class LedgerContract:
    """Inherit in a test module that has a fixture ``ledgers``."""

    async def test_entries_come_back_in_order_with_ids_from_zero(self, ledgers: LedgerWorld) -> None:
        writer = await ledgers.store.create(7, fence=1)
        entries = [b"", b"a", b"b" * 70_000, *(b"entry %d" % number for number in range(500))]
        assert await append_all(writer, entries) == list(range(len(entries)))
        assert writer.next_entry == len(entries)
        assert writer.size == sum(map(len, entries))
        assert await read_all(ledgers.store, 7) == entries

    async def test_append_returns_the_id_at_once_and_reports_later(self, ledgers: LedgerWorld) -> None:
        writer = await ledgers.store.create(7, fence=1)
        heard: list[int | LedgerError] = []
        assert [writer.append(b"x", heard.append) for _ in range(3)] == [0, 1, 2]
        assert heard == []
        reader = await ledgers.store.open(7)
        await append_one(writer, b"y")
        assert heard == [0, 1, 2]
        assert reader.last_confirmed() == 3

    async def test_entries_appended_together_are_reported_in_order_up_to_the_last(self, ledgers: LedgerWorld) -> None:
        writer = await ledgers.store.create(7, fence=1)
        entries = [bytes([number]) * size for number, size in enumerate([0, 1, 70_000, 900_000, 3, 4_000_000, 5] * 3)]
        heard: list[int | LedgerError] = []
        assert writer.append_many(entries[:4], heard.append) == 0
        assert writer.append_many(entries[4:], heard.append) == 4
        assert (writer.next_entry, writer.size, heard) == (len(entries), sum(map(len, entries)), [])
        assert await append_one(writer, b"behind") == len(entries)
        told = [result for result in heard if isinstance(result, int)]
        assert told == heard == sorted(set(told))
        assert {3, len(entries) - 1} <= set(told)
        assert await read_all(ledgers.store, 7) == [*entries, b"behind"]

    async def test_refused_entries_appended_together_get_an_error(self, ledgers: LedgerWorld) -> None:
        writer = await ledgers.store.create(7, fence=1)
        await writer.seal()
        heard: list[int | LedgerError] = []
        writer.append_many([b"late", b"later"], heard.append)
        assert isinstance(await append_one(writer, b"last"), LedgerError)
        assert heard and all(isinstance(result, LedgerError) for result in heard)
        assert await read_all(ledgers.store, 7) == []

    async def test_readers_see_confirmed_entries_only(self, ledgers: LedgerWorld) -> None:
        writer = await ledgers.store.create(7, fence=1)
        reader = await ledgers.store.open(7)
        heard: list[int | LedgerError] = []
        writer.append(b"x", heard.append)
        assert reader.last_confirmed() == -1
        assert await reader.read(0, 10, EVERYTHING) == []
        await append_one(writer, b"y")
        assert await reader.read(0, 10, EVERYTHING) == [b"x", b"y"]

    async def test_a_read_keeps_to_its_bounds(self, ledgers: LedgerWorld) -> None:
        writer = await ledgers.store.create(7, fence=1)
        entries = [bytes([number]) * 100 for number in range(20)]
        await append_all(writer, entries)
        reader = await ledgers.store.open(7)
        assert await reader.read(3, 5, EVERYTHING) == entries[3:6]
        assert await reader.read(3, 19, 250) == entries[3:5]
        assert await reader.read(3, 19, 200) == entries[3:5]
        assert await reader.read(3, 19, 1) == entries[3:4]
        assert await reader.read(3, 19, 0) == entries[3:4]
        assert await reader.read(18, 99, EVERYTHING) == entries[18:]
        assert await reader.read(20, 99, EVERYTHING) == []
        assert await reader.read(5, 4, EVERYTHING) == []
        with pytest.raises(ValueError, match="start at 0"):
            await reader.read(-1, 4, EVERYTHING)

    async def test_many_ledgers_share_the_storage(self, ledgers: LedgerWorld) -> None:
        writers = [await ledgers.store.create(number, fence=1) for number in range(50)]
        await asyncio.gather(
            *(append_all(writer, [b"%d/%d" % (writer.ledger_id, entry) for entry in range(20)]) for writer in writers)
        )
        for number in range(50):
            assert await read_all(ledgers.store, number) == [b"%d/%d" % (number, entry) for entry in range(20)]
        assert sorted(info.ledger_id for info in await ledgers.store.list()) == list(range(50))

    async def test_an_id_is_not_used_twice(self, ledgers: LedgerWorld) -> None:
        await ledgers.store.create(7, fence=1)
        with pytest.raises(LedgerError, match="used before"):
            await ledgers.store.create(7, fence=2)
        await ledgers.store.delete(7)
        with pytest.raises(LedgerError, match="used before"):
            await ledgers.store.create(7, fence=2)
        store = await ledgers.reopen()
        with pytest.raises(LedgerError, match="used before"):
            await store.create(7, fence=2)

    async def test_two_creations_at_once_make_one_ledger(self, ledgers: LedgerWorld) -> None:
        results = await asyncio.gather(
            ledgers.store.create(7, fence=1), ledgers.store.create(7, fence=1), return_exceptions=True
        )
        assert sum(isinstance(result, LedgerError) for result in results) == 1

    async def test_seal_waits_for_what_is_queued(self, ledgers: LedgerWorld) -> None:
        writer = await ledgers.store.create(7, fence=1)
        heard: list[int | LedgerError] = []
        for number in range(10):
            writer.append(b"%d" % number, heard.append)
        assert await writer.seal() == LedgerInfo(7, 10, 10, True)
        assert heard == list(range(10))
        assert await writer.seal() == LedgerInfo(7, 10, 10, True)
        assert isinstance(await append_one(writer, b"late"), LedgerError)
        assert await ledgers.store.recover(7, fence=5) == LedgerInfo(7, 10, 10, True)

    async def test_recover_fences_the_old_writer(self, ledgers: LedgerWorld) -> None:
        writer = await ledgers.store.create(7, fence=1)
        heard: list[int | LedgerError] = []
        for number in range(5):
            writer.append(b"%d" % number, heard.append)
        assert await ledgers.store.recover(7, fence=2) == LedgerInfo(7, 5, 5, True)
        assert heard == list(range(5))
        assert isinstance(await append_one(writer, b"late"), LedgerFenced)
        with pytest.raises(LedgerFenced):
            await writer.seal()
        assert await read_all(ledgers.store, 7) == [b"0", b"1", b"2", b"3", b"4"]

    async def test_a_refused_append_is_told_behind_those_before_it(self, ledgers: LedgerWorld) -> None:
        writer = await ledgers.store.create(7, fence=1)
        heard: list[int | LedgerError] = []
        writer.append(b"before", heard.append)
        recovering = asyncio.ensure_future(ledgers.store.recover(7, fence=2))
        await asyncio.sleep(0)
        writer.append(b"behind", heard.append)
        await recovering
        await append_one(writer, b"last")
        assert heard[0] == 0
        assert isinstance(heard[1], LedgerFenced)

    async def test_an_older_fence_is_refused(self, ledgers: LedgerWorld) -> None:
        await ledgers.store.create(7, fence=5)
        with pytest.raises(LedgerFenced):
            await ledgers.store.recover(7, fence=4)
        await ledgers.store.recover(7, fence=5)

    async def test_a_fence_survives_a_restart(self, ledgers: LedgerWorld) -> None:
        await ledgers.store.create(7, fence=5)
        store = await ledgers.reopen()
        with pytest.raises(LedgerFenced):
            await store.recover(7, fence=4)
        assert await store.recover(7, fence=6) == LedgerInfo(7, 0, 0, True)

    async def test_what_is_absent_is_not_found(self, ledgers: LedgerWorld) -> None:
        for attempt in (ledgers.store.open(9), ledgers.store.recover(9, fence=1)):
            with pytest.raises(LedgerNotFound):
                await attempt
        await ledgers.store.delete(9)

    async def test_a_deleted_ledger_is_told_from_one_that_never_was(self, ledgers: LedgerWorld) -> None:
        await ledgers.store.create(7, fence=1)
        await ledgers.store.delete(7)
        with pytest.raises(LedgerDeleted):
            await ledgers.store.recover(7, fence=1)
        store = await ledgers.reopen()
        with pytest.raises(LedgerDeleted):
            await store.recover(7, fence=1)
        with pytest.raises(LedgerNotFound) as never:
            await store.recover(9, fence=1)
        assert not isinstance(never.value, LedgerDeleted)

    async def test_a_label_stays_with_its_ledger(self, ledgers: LedgerWorld) -> None:
        label = bytes(range(256)) * 4
        await ledgers.store.create(7, 1, label)
        await (await ledgers.store.create(8, 1, b"8")).seal()
        await ledgers.store.create(9, 1)
        store = await ledgers.reopen()
        assert await store.recover(7, fence=2) == LedgerInfo(7, 0, 0, True, label)
        store = await ledgers.reopen()
        assert {info.ledger_id: info.label for info in await store.list()} == {7: label, 8: b"8", 9: b""}
        with pytest.raises(LedgerError, match="a label of"):
            await store.create(10, 1, bytes(LABEL_BYTES_MAX + 1))

    async def test_delete_takes_the_ledger_from_everybody(self, ledgers: LedgerWorld) -> None:
        writer = await ledgers.store.create(7, fence=1)
        await append_all(writer, [b"x"])
        reader = await ledgers.store.open(7)
        await ledgers.store.delete(7)
        await ledgers.store.delete(7)
        with pytest.raises(LedgerNotFound):
            await reader.read(0, 0, EVERYTHING)
        with pytest.raises(LedgerNotFound):
            await ledgers.store.open(7)
        assert isinstance(await append_one(writer, b"late"), LedgerError)
        assert await ledgers.store.list() == []
        store = await ledgers.reopen()
        assert await store.list() == []

    async def test_a_restart_keeps_everything(self, ledgers: LedgerWorld) -> None:
        open_writer = await ledgers.store.create(1, fence=1)
        sealed_writer = await ledgers.store.create(2, fence=1)
        await append_all(open_writer, [b"open"] * 10)
        await append_all(sealed_writer, [b"sealed"] * 10)
        await sealed_writer.seal()
        store = await ledgers.reopen()
        assert sorted(await store.list(), key=lambda info: info.ledger_id) == [
            LedgerInfo(1, 10, 40, False),
            LedgerInfo(2, 10, 60, True),
        ]
        assert await read_all(store, 1) == [b"open"] * 10
        assert await store.recover(1, fence=2) == LedgerInfo(1, 10, 40, True)
        assert await store.recover(2, fence=2) == LedgerInfo(2, 10, 60, True)
        store = await ledgers.reopen()
        assert [info.sealed for info in await store.list()] == [True, True]
        assert await read_all(store, 2) == [b"sealed"] * 10

    async def test_a_storage_that_fails_raises_nothing_but_ledger_errors(self, ledgers: LedgerWorld) -> None:
        writer = await ledgers.store.create(1, fence=1)
        sealed = await ledgers.store.create(2, fence=1)
        await append_all(writer, [b"kept"] * 10)
        await append_all(sealed, [b"sealed"] * 10)
        await sealed.seal()
        ledgers.fail(True)
        reader = await ledgers.store.open(2)
        results = await asyncio.gather(
            append_one(writer, b"unsure"),
            reader.read(0, 9, EVERYTHING),
            ledgers.store.create(3, fence=1),
            ledgers.store.recover(1, fence=2),
            ledgers.store.delete(9),
            ledgers.store.list(),
            return_exceptions=True,
        )
        errors = [result for result in results if isinstance(result, BaseException)]
        assert [error for error in errors if not isinstance(error, LedgerError)] == []
        ledgers.fail(False)
        assert await reader.read(0, 9, EVERYTHING) == [b"sealed"] * 10
        assert (await ledgers.store.recover(1, fence=2)).sealed
        assert (await read_all(ledgers.store, 1))[:10] == [b"kept"] * 10
        assert await append_all(await ledgers.store.create(4, fence=2), [b"new"]) == [0]
        store = await ledgers.reopen()
        assert (await read_all(store, 1))[:10] == [b"kept"] * 10
        assert await read_all(store, 4) == [b"new"]
