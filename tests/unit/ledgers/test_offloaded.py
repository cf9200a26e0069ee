# SPDX-License-Identifier: Apache-2.0
"""Offloaded ledgers: the contract of every store, reading, and a broker that is killed between any two steps."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from meridian_broker.ledgers.entry import pack_own, unpack
from meridian_broker.ledgers.objects import ObjectStoreAway, ObjectStoreError
from meridian_broker.ledgers.offloaded.offloading import AGAIN_MS
from meridian_broker.ledgers.offloaded.outside import OutsideOffloaded
from meridian_broker.ledgers.offloaded.reading import OffloadableReader
from meridian_broker.ledgers.offloaded.records import FOLLOWING, Offloaded, State
from meridian_broker.ledgers.store import (
    HeadReader,
    LedgerCorrupt,
    LedgerDeleted,
    LedgerFenced,
    LedgerNotFound,
    LedgerUnreadable,
)
from meridian_broker.metadata import keys
from meridian_broker.metadata.records import encode
from meridian_broker.metadata.store import Record, VersionConflict
from support.contracts.ledger_contract import LedgerContract, read_all
from support.worlds.offload_world import FOLDER, Killed, OffloadWorld

ENTRIES = [b"%03d" % number * (number % 9) for number in range(60)]


@pytest.fixture
async def world() -> AsyncIterator[OffloadWorld]:
    world = OffloadWorld()
    await world.start()
    yield world
    await world.close()


async def restarted(world: OffloadWorld, *, prefers_copies: bool) -> OffloadWorld:
    await world.store.close()
    await world.start(prefers_copies=prefers_copies, cache_bytes=0)
    return world


class ContractWorld(OffloadWorld):
    async def reopen(self) -> object:
        await self.store.close()
        return await self.start()

    def fail(self, is_failing: bool) -> None:
        if is_failing:
            self.near.fail_writes("full")
        else:
            self.near.repair()


class TestContract(LedgerContract):
    @pytest.fixture
    async def ledgers(self) -> AsyncIterator[ContractWorld]:
        world = ContractWorld()
        await world.start()
        yield world
        await world.close()


# -- reading -----------------------------------------------------------------------------------------------------------


async def test_an_offloaded_ledger_is_read_as_before(world: OffloadWorld) -> None:
    await world.away(7, ENTRIES)
    assert await read_all(world.store, 7) == ENTRIES
    info = await world.store.recover(7, world.fence)
    assert (info.entries, info.size, info.sealed) == (len(ENTRIES), sum(map(len, ENTRIES)), True)
    reader = await world.store.open(7)
    assert await reader.read(3, 5, 1 << 20) == ENTRIES[3:6]
    assert await reader.read(58, 99, 1 << 20) == ENTRIES[58:]
    assert await reader.read(60, 99, 1 << 20) == []
    assert await reader.read(8, 20, 24) == [ENTRIES[8], b""]  # the next read has no byte budget
    with pytest.raises(ValueError, match="start at 0"):
        await reader.read(-1, 5, 1)


async def test_a_reader_goes_on_while_its_ledger_is_offloaded(world: OffloadWorld) -> None:
    await world.sealed(7, ENTRIES)
    reader = await world.store.open(7)
    assert await reader.read(0, 9, 1 << 20) == ENTRIES[:10]
    await world.offloading.copy(7, world.fence)
    await world.offloading.leave(7)
    assert await reader.read(10, 59, 1 << 20) == ENTRIES[10:]
    assert reader.last_confirmed() == 59


async def test_readers_of_one_block_ask_for_it_once_and_the_next_is_read_ahead(world: OffloadWorld) -> None:
    await world.away(7, ENTRIES)
    readers = [await world.store.open(7) for _ in range(5)]
    before = world.cache.misses
    assert await asyncio.gather(*(reader.read(0, 0, 1) for reader in readers)) == [[b""]] * 5
    await world.scheduler.tasks_ended()
    assert world.cache.misses - before == 2, "the block, and the next one"
    requests = world.objects.requests
    first_of_next = (await world.offloading.copies.index(7, "copy1")).blocks[1].first
    await readers[0].read(first_of_next, first_of_next, 1)
    await world.scheduler.tasks_ended()
    assert world.objects.requests - requests == 2, "the index, for the test, and the third block"


async def test_the_cache_keeps_within_its_bound(world: OffloadWorld) -> None:
    await world.away(7, [b"x" * 150] * 300)
    assert len(await read_all(world.store, 7)) == 300
    await world.scheduler.tasks_ended()
    assert 0 < world.cache.used <= 10_000
    await world.store.delete(7)
    assert world.cache.used == 0


async def test_damage_in_a_copy_costs_the_damaged_entry_alone(world: OffloadWorld) -> None:
    entries = [b"%d" % number * 50 for number in range(10)]
    await world.away(7, entries)
    key = f"{FOLDER}/{7:016d}/copy1/000000"
    good = world.bucket[key]
    at = good.index(entries[4])
    world.bucket[key] = good[:at] + b"?" + good[at + 1 :]
    reader = await world.store.open(7)
    assert await reader.read(0, 9, 1 << 20) == entries[:4]
    with pytest.raises(LedgerCorrupt, match="entry 4 of ledger 7") as caught:
        await reader.read(4, 9, 1 << 20)
    assert caught.value.remains == b"?" + entries[4][1:]
    assert await reader.read(5, 9, 1 << 20) == entries[5:]
    world.bucket[key] = good  # the object was restored
    assert await reader.read(4, 9, 1 << 20) == entries[4:]


async def test_an_index_is_built_from_headers_alone_unless_they_are_damaged(world: OffloadWorld) -> None:
    entries = [pack_own(0, 1, 0, 0, 5, 6, 7, number, b"", b"x" * 1000) for number in range(50)]
    await world.away(7, entries)
    reader = await world.store.open(7)
    read = 0

    def measured(operation: str, key: str) -> None:
        nonlocal read
        read += len(world.bucket.get(key, b"")) if operation == "read" else 0

    async def heads() -> list[bytes]:
        found: list[bytes] = []
        assert isinstance(reader, HeadReader)
        while len(found) < 50:
            found += await reader.read_heads(len(found), 49, 500)
        return found

    world.objects.fault = measured
    assert [unpack(head) for head in await heads()] == [unpack(entry) for entry in entries]
    await world.scheduler.tasks_ended()
    assert read < 12 * 50 * 100, "no bodies"
    for key in [key for key in world.bucket if "/heads/0" in key]:
        world.bucket[key] = b"?" * 500
    world.cache.forget("copy1")
    assert [unpack(head) for head in await heads()] == [unpack(entry) for entry in entries]
    for key in [key for key in world.bucket if "/heads/" in key]:
        del world.bucket[key]
    reader = await world.store.open(7)
    world.cache.forget("copy1")
    assert await heads() == entries
    await world.store.delete(7)
    await world.offloading.clear()
    assert not world.bucket and not world.cache.used


async def test_missing_objects_are_damage_and_not_an_end(world: OffloadWorld) -> None:
    await world.away(7, ENTRIES)
    del world.bucket[f"{FOLDER}/{7:016d}/copy1/000000"]
    with pytest.raises(LedgerCorrupt, match="entry 0 of ledger 7"):
        await (await world.store.open(7)).read(0, 9, 1 << 20)
    del world.bucket[f"{FOLDER}/{7:016d}/copy1/index"]
    with pytest.raises(LedgerCorrupt, match="the copy of ledger 7"):
        await (await world.store.open(7)).read(0, 9, 1 << 20)


async def test_if_one_of_two_copies_is_damaged_or_unavailable_the_other_is_read(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = OffloadWorld()
    await world.start(prefers_copies=True)
    await world.sealed(7, ENTRIES)
    await world.offloading.copy(7, world.fence)
    reader = await world.store.open(7)
    assert await reader.read(0, 59, 1 << 20) == ENTRIES
    assert world.cache.misses, "read from the copy"

    def away(operation: str, key: str) -> None:
        raise ObjectStoreAway("no route to the bucket")

    world.objects.fault = away
    world.cache.forget("copy1")
    with caplog.at_level(logging.WARNING):
        assert await (await world.store.open(7)).read(0, 59, 1 << 20) == ENTRIES
        asked = world.objects.requests
        assert await (await world.store.open(7)).read(0, 59, 1 << 20) == ENTRIES
    assert "no route to the bucket" in caplog.text
    assert world.objects.requests == asked, "not retried at once"

    world.objects.fault = lambda _operation, _key: None
    near = await world.near.open(7)

    async def damaged(first: int, last: int, max_bytes: int) -> list[bytes]:
        raise LedgerCorrupt("entry 0 fails its checksum")

    near.read = damaged  # type: ignore[method-assign]
    reader = await world.store.open(7)
    assert isinstance(reader, OffloadableReader)
    reader._near = near
    assert await reader.read(0, 59, 1 << 20) == ENTRIES, "the copy repairs what the disk damaged"
    await world.close()


async def test_an_unavailable_object_store_is_reported_and_retried(world: OffloadWorld) -> None:
    await world.away(7, ENTRIES)

    def away(operation: str, key: str) -> None:
        raise ObjectStoreAway("no route to the bucket")

    well, world.objects.fault = world.objects.fault, away
    reader = await world.store.open(7)
    with pytest.raises(LedgerUnreadable, match=r"ledger 7 cannot be read from bucket .* no route to the bucket"):
        await reader.read(0, 9, 1 << 20)
    world.objects.fault = well
    assert await reader.read(0, 9, 1 << 20) == ENTRIES[:10]


async def test_another_process_reads_offloaded_ledgers_without_the_metadata(world: OffloadWorld) -> None:
    await world.away(7, ENTRIES)
    await world.sealed(8, [b"near"])

    class Near:
        async def read(self, ledger_id: int, first: int, last: int, max_bytes: int) -> list[bytes]:
            return await (await world.near.open(ledger_id)).read(first, last, max_bytes)

        async def close(self) -> None:
            pass

    outside = OutsideOffloaded(Near(), world.offloading.copies)
    assert await outside.read(7, 0, 59, 1 << 20) == ENTRIES
    assert await outside.read(8, 0, 0, 1 << 20) == [b"near"]
    with pytest.raises(LedgerNotFound):
        await outside.read(9, 0, 0, 1 << 20)


# -- from state to state -----------------------------------------------------------------------------------------------


def test_every_state_leads_to_deletion_and_none_back_to_a_ledger_without_a_copy() -> None:
    assert all(State.DOOMED in following for following in FOLLOWING.values())
    assert FOLLOWING[State.DOOMED] == {State.DOOMED}
    assert State.UPLOADING not in FOLLOWING[State.LEAVING] | FOLLOWING[State.AWAY]
    with pytest.raises(ValueError, match="is away and cannot be copied next"):
        Offloaded(1, State.AWAY, "c", 0).follow(State.COPIED, 0)


@settings(max_examples=500)
@given(
    st.sampled_from(State),
    st.text(max_size=20),
    st.integers(0, 1 << 50),
    st.integers(0, 1 << 31),
    st.binary(max_size=40),
)
def test_a_record_is_read_back(state: State, copy: str, number: int, entries: int, label: bytes) -> None:
    record = Offloaded(7, state, copy, number, entries, number, label, was_uploading=entries % 2 == 1)
    assert Offloaded.from_json(7, record.to_json()) == record


async def live(world: OffloadWorld, *, until: State) -> None:
    """Run the rounds on ledger 7, from whatever state it is in, up to a given state."""
    record = world.table.get(7)
    if 7 in world.disk.ledgers and (record is None or record.state is State.UPLOADING):
        await world.offloading.copy(7, world.fence)
    if until is State.AWAY:
        await world.offloading.leave(7)
    if until is State.DOOMED:
        await world.store.delete(7)
        await world.offloading.clear()


async def steps_of(until: State) -> int:
    world = OffloadWorld()
    await world.start()
    await world.sealed(7, ENTRIES)
    world.steps = 0
    await live(world, until=until)
    taken = world.steps
    await world.close()
    return taken


@pytest.mark.parametrize("until", [State.COPIED, State.AWAY, State.DOOMED])
async def test_a_kill_between_any_two_steps_loses_nothing_and_leaves_nothing(until: State) -> None:
    for step in range(1, await steps_of(until) + 1):
        world = OffloadWorld()
        await world.start()
        await world.sealed(7, ENTRIES)
        world.steps, world.killed_at = 0, step
        with pytest.raises(Killed):
            await live(world, until=until)
        await world.start()
        if until is not State.DOOMED:
            assert await read_all(world.store, 7) == ENTRIES, f"killed at step {step}"
        await live(world, until=until)
        copies = {key.split("/")[2] for key in world.bucket}
        if until is State.DOOMED:
            world.scheduler.ms += AGAIN_MS
            await world.offloading.clear()
            assert not world.bucket and not len(world.table), f"killed at step {step}"
            assert 7 not in world.disk.ledgers
        else:
            record = world.table.get(7)
            assert record is not None and record.state is until
            assert until is State.COPIED or copies == {record.copy}, f"killed at step {step}"
            assert (7 in world.disk.ledgers) is (until is State.COPIED)
            assert await read_all(world.store, 7) == ENTRIES
        await world.close()


async def test_the_earlier_owner_deletes_nothing_of_the_next_owner(world: OffloadWorld) -> None:
    """The first owner is suspended during its upload; meanwhile another copies the ledger and deletes the original."""
    await world.sealed(7, ENTRIES)
    first, go_on = world.offloading, asyncio.Event()
    put = world.objects.put
    reached = asyncio.Event()

    async def suspended(key: str, data: bytes) -> None:
        reached.set()
        await go_on.wait()
        await put(key, data)

    world.objects.put = suspended  # type: ignore[method-assign]
    uploading = asyncio.ensure_future(first.copy(7, world.fence))
    await reached.wait()
    await world.start()
    await world.offloading.copy(7, world.fence)
    await world.offloading.leave(7)
    go_on.set()
    await uploading
    await first.leave(7)
    record = world.table.get(7)
    assert record is not None and record.state is State.AWAY
    assert await read_all(world.store, 7) == ENTRIES
    assert {key.split("/")[2] for key in world.bucket} == {record.copy}


async def test_a_ledger_that_is_trimmed_during_its_upload_leaves_nothing(world: OffloadWorld) -> None:
    await world.sealed(7, ENTRIES)
    put = world.objects.put

    async def trimmed(key: str, data: bytes) -> None:
        await put(key, data)
        if key.endswith("index"):
            await world.store.delete(7)
            await world.offloading.clear()
            await put(key, data)  # it was in flight

    world.objects.put = trimmed  # type: ignore[method-assign]
    await world.offloading.copy(7, world.fence)
    assert not world.bucket
    world.bucket[f"{FOLDER}/{7:016d}/late/000000"] = b"from a broker that was suspended"
    await world.offloading.clear()
    assert world.bucket, "deleted a moment ago"
    world.scheduler.ms += AGAIN_MS
    await world.offloading.clear()
    assert not world.bucket and not len(world.table)


async def test_with_an_incomplete_copy_the_ledger_is_kept_and_copied_again(
    world: OffloadWorld, caplog: pytest.LogCaptureFixture
) -> None:
    await world.sealed(7, ENTRIES)
    await world.offloading.copy(7, world.fence)
    world.bucket.popitem()
    with caplog.at_level(logging.ERROR):
        await world.offloading.leave(7)
    assert "ledger 7 is copied again" in caplog.text
    assert 7 in world.disk.ledgers
    await world.offloading.copy(7, world.fence)
    await world.offloading.leave(7)
    assert 7 not in world.disk.ledgers
    assert await read_all(world.store, 7) == ENTRIES


@pytest.mark.parametrize("prefers_copies", [True, False])
async def test_a_reader_continues_in_the_copy_that_replaced_another(world: OffloadWorld, prefers_copies: bool) -> None:
    """The copy that it read is deleted: that is not damage, which is given up where no other region has it."""
    world = await restarted(world, prefers_copies=prefers_copies)
    await world.sealed(7, ENTRIES)
    await world.offloading.copy(7, world.fence)
    reader = await world.store.open(7)
    assert await reader.read(0, 3, 1 << 20) == ENTRIES[:4]
    record = world.table.get(7)
    assert record is not None
    await world.table.replace(record, record.follow(State.UPLOADING, world.scheduler.now_ms()))
    await world.offloading.copy(7, world.fence)
    await world.offloading.leave(7)
    assert 7 not in world.disk.ledgers
    assert isinstance(reader, OffloadableReader)
    assert await reader.read(0, len(ENTRIES), 1 << 20) == ENTRIES
    assert await reader.read_heads(0, len(ENTRIES), 1 << 20) == ENTRIES


async def test_a_reader_continues_in_a_copy_made_by_another_broker(world: OffloadWorld) -> None:
    await world.away(7, ENTRIES)
    reader = await world.store.open(7)
    record = world.table.get(7)
    assert record is not None
    replaced = replace(record, copy="other")
    for key in list(world.bucket):  # as the other broker leaves it
        world.bucket[key.replace(record.copy, "other")] = world.bucket.pop(key)
    path = keys.offloaded(7)
    world.records[path] = Record(encode(replaced.to_json()), world.records[path].version + 1)
    assert world.table.get(7) == record, "nobody told this broker"
    assert await reader.read(0, len(ENTRIES), 1 << 20) == ENTRIES


async def test_an_object_store_that_fails_anywhere_keeps_the_ledger(world: OffloadWorld) -> None:
    await world.sealed(7, ENTRIES)
    well = world.objects.fault
    for failing in range(1, 40):
        left = failing

        def fault(operation: str, key: str) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                raise ObjectStoreAway("timed out")

        world.objects.fault = fault
        try:
            await world.offloading.copy(7, world.fence)
            await world.offloading.leave(7)
        except (ObjectStoreError, LedgerUnreadable):
            assert 7 in world.disk.ledgers
            world.objects.fault = well
            assert await read_all(world.store, 7) == ENTRIES
        else:
            break
    assert failing > 5
    assert 7 not in world.disk.ledgers
    assert {key.split("/")[2] for key in world.bucket} == {world.table.get(7).copy}  # type: ignore[union-attr]


async def test_a_ledger_of_a_later_owner_is_not_copied(world: OffloadWorld) -> None:
    await world.sealed(7, ENTRIES)
    await world.near.recover(7, world.fence + 1)
    with pytest.raises(LedgerFenced):
        await world.offloading.copy(7, world.fence)
    assert not world.bucket


async def test_metadata_older_than_the_deletion_still_finds_the_copy(world: OffloadWorld) -> None:
    """R5: the metadata was restored from a backup made before the ledger was offloaded."""
    await world.away(7, ENTRIES)
    await world.away(8, ENTRIES)
    for ledger in (7, 8):
        await world.table.remove(world.table.get(ledger))  # type: ignore[arg-type]
    await world.offloading.copies.delete(8)  # this ledger was trimmed since
    info = await world.store.recover(7, world.fence)
    assert info.entries == len(ENTRIES)
    assert await read_all(world.store, 7) == ENTRIES
    with pytest.raises(LedgerDeleted):
        await world.store.recover(8, world.fence)
    with pytest.raises(LedgerNotFound):
        await world.store.recover(9, world.fence)


async def test_a_copied_ledger_lost_by_the_volume_is_still_readable(world: OffloadWorld) -> None:
    await world.sealed(7, ENTRIES)
    await world.offloading.copy(7, world.fence)
    del world.disk.ledgers[7]
    world.disk.used.discard(7)
    await world.start()
    assert (await world.store.recover(7, world.fence)).entries == len(ENTRIES)
    assert await read_all(world.store, 7) == ENTRIES


async def test_records_that_another_broker_wrote_are_found(world: OffloadWorld) -> None:
    await world.sealed(7, ENTRIES)
    other = OffloadWorld()
    other.disk, other.bucket, other.records = world.disk, world.bucket, world.records
    await other.start()
    await other.offloading.copy(7, world.fence)
    await other.offloading.leave(7)
    assert world.table.get(7) is None
    await world.offloading.copy(7, world.fence)  # that is done already
    assert world.offloading.is_copied(7)
    await world.start()
    await world.table.load()
    assert await read_all(world.store, 7) == ENTRIES
    record = world.table.get(7)
    assert record is not None
    with pytest.raises(VersionConflict):
        await world.table.replace(replace(record, copy="not this one"), record)
    await other.scheduler.close()
