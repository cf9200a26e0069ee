# SPDX-License-Identifier: Apache-2.0
"""Roll-over of a progress log: when it is due, and that nothing gets lost while a snapshot is written in slices."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from meridian_broker.engines.memory.ledgers import MemoryLedgerStore
from meridian_broker.ledgers.store import LedgerError
from meridian_broker.metadata.store import MetadataFull, VersionConflict
from meridian_broker.positions import Cause
from meridian_broker.positions.position import EARLIEST
from meridian_broker.server.loop import LoopScheduler
from meridian_broker.topics.cursors import drops, seeking
from meridian_broker.topics.journal import progress_log
from meridian_broker.topics.journal.changes import Kind
from meridian_broker.topics.journal.progress_log import ProgressLog
from support.brokers.broker_regions import until
from support.worlds.topic_of_one_region import Region, region
from support.worlds.topic_record import TopicRecord


class Ledgers:
    """Ledgers of one progress log: how many were begun, and how much was written."""

    def __init__(self, one: Region, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made = self.bytes = 0
        store: Any = one.topic.progress_log._chain._store
        create, append = store.create, store.append

        async def counted_create(*what: Any) -> Any:
            self.made += 1
            return await create(*what)

        def counted_append(handle: Any, buffer: bytes, done: Any) -> int:
            self.bytes += len(buffer)
            return int(append(handle, buffer, done))

        monkeypatch.setattr(store, "create", counted_create)
        monkeypatch.setattr(store, "append", counted_append)


def snapshot_bytes(one: Region) -> int:
    return sum(len(payload) for _, _, payload in one.topic.progress_log._snapshot())


async def test_a_large_snapshot_is_written_only_as_often_as_it_saves_something(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = await region(**{f"s{number}": False for number in range(50)})
    monkeypatch.setattr(progress_log, "ROLL_BYTES", 1)
    whole = snapshot_bytes(one)
    await one.ack("s0", [0], 0)
    ledgers, changes = Ledgers(one, monkeypatch), 0
    while ledgers.made < 3:
        one.topic.progress_log.append(Kind.VOTES, "s0", b"{}" + b" " * 198)
        changes += 200
        await one.settle()
    assert changes > 2 * whole
    assert ledgers.bytes < 3 * changes


async def test_a_ledger_is_rolled_over_by_the_number_of_its_records(monkeypatch: pytest.MonkeyPatch) -> None:
    one = await region(sub=False)
    monkeypatch.setattr(progress_log, "ROLL_RECORDS", 8)
    ledgers = Ledgers(one, monkeypatch)
    for number in range(12):
        await one.ack("sub", [number], number)
    assert ledgers.made == 1
    assert len(one.topic.progress_log.ledgers) == 1


async def test_a_new_subscription_does_not_wait_for_the_snapshot_of_the_others() -> None:
    one = await region(**{f"s{number}": False for number in range(100)})
    log = one.topic.progress_log
    await one.ack("s0", [0], 0)
    log._roll()
    await until(lambda: log._snapshot_bytes > 0)
    await log.prepare()
    one.topic.subscribing.create_subscription("new", EARLIEST)
    assert not log._rolls.is_idle, "the snapshot is not written yet"
    before = one.state()
    await one.settle()
    await one.kill()
    await one.start()
    assert one.state() == before


async def test_small_subscriptions_share_the_records_of_a_snapshot() -> None:
    one = await region(**{f"s{number}": False for number in range(100)})
    await one.ack("s7", [0, 3], 0)
    before, log = one.state(), one.topic.progress_log
    log._roll()
    await one.settle()
    (ledger,) = log.ledgers
    entries = (await one.store.open(ledger)).last_confirmed() + 1
    await one.kill()
    await one.start()
    assert one.state() == before
    assert [change.subscription for change in one.changes if change.kind == Kind.WHOLE] == list(before)[:100]
    assert 1 < entries < 10


async def test_a_close_on_a_full_disk_fails_everybody_who_waits() -> None:
    store, refused = MemoryLedgerStore(), list[LedgerError | None]()
    log = ProgressLog(store, TopicRecord(), 1, LoopScheduler(), lambda: ())
    log.append(Kind.ACKED, "s0", b"acked", refused.append)
    log.when_durable(refused.append)
    await asyncio.sleep(0)
    store.fail_writes("no space left")
    store.sync()
    await log.close()
    assert ["no space left" in str(error) for error in refused] == [True, True]


class Refusing(TopicRecord):
    """A metadata store that may be full."""

    full = False

    async def save_progress_ledgers(self, ledgers: list[int], snapshot: tuple[bytes, ...] | None = None) -> None:
        if self.full:
            raise MetadataFull("the metadata store is full")
        await super().save_progress_ledgers(ledgers, snapshot)


@pytest.mark.logs_error("no snapshot of this")
async def test_a_failed_first_snapshot_is_reported_to_everybody_who_waits() -> None:
    def broken() -> Iterator[tuple[Kind, str, bytes]]:
        raise ValueError("no snapshot of this")

    refused: list[LedgerError | None] = []
    store = MemoryLedgerStore(schedule=asyncio.get_running_loop().call_soon)
    log = ProgressLog(store, TopicRecord(), 1, LoopScheduler(), broken)
    log.append(Kind.ACKED, "s0", b"acked", refused.append)
    log.when_durable(refused.append)
    await until(lambda: len(refused) == 2)
    log.append(Kind.ACKED, "s0", b"acked", refused.append)
    await until(lambda: len(refused) == 3)
    assert all(error is not None and "no snapshot of this" in str(error) for error in refused)


async def test_while_the_metadata_store_is_full_changes_go_to_the_earlier_ledger(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(progress_log, "ROLL_RECORDS", 2)
    store, record, told = MemoryLedgerStore(), Refusing(), list[LedgerError | None]()
    log = ProgressLog(store, record, 1, LoopScheduler(), lambda: ())

    async def sync() -> None:
        while True:
            store.sync()
            await asyncio.sleep(0)

    async def settle() -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    syncing = asyncio.create_task(sync())
    record.full = True
    with pytest.raises(MetadataFull):
        await log.prepare()
    assert (log.failure, log.ledgers) == (None, [])
    record.full = False
    await log.prepare()
    (first,) = log.ledgers
    record.full = True
    for _ in range(8):
        log.append(Kind.ACKED, "s", b"acked", told.append)
        await settle()
    assert told == [None] * 8
    assert (log.failure, log.ledgers) == (None, [first])
    assert len(await store.list()) == 2, "one ledger is ready for the moment when there is room"
    record.full = False
    log.append(Kind.ACKED, "s", b"acked", told.append)
    await settle()
    assert log.ledgers == record.progress != [first]
    record.full = True
    for _ in range(3):
        log.append(Kind.ACKED, "s", b"acked", told.append)
        await settle()
    await log.close()
    syncing.cancel()
    assert [one.ledger_id for one in await store.list()] == log.ledgers, "the prepared ledger is gone"


class Replaced(TopicRecord):
    """A metadata store to which another owner writes once the ledger of a roll-over is recorded."""

    async def save_progress_ledgers(self, ledgers: list[int], snapshot: tuple[bytes, ...] | None = None) -> None:
        if len(self.progress) > len(ledgers):
            raise VersionConflict("another broker owns the topic by now")
        await super().save_progress_ledgers(ledgers, snapshot)


async def test_an_owner_replaced_before_it_deletes_old_ledgers_deletes_none_and_writes_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next owner reads them: its record still names them."""
    monkeypatch.setattr(progress_log, "ROLL_RECORDS", 2)
    store = MemoryLedgerStore(schedule=asyncio.get_running_loop().call_soon)
    record, told, failed = Replaced(), list[LedgerError | None](), list[str]()
    log = ProgressLog(store, record, 1, LoopScheduler(), lambda: ())
    log.on_failure = failed.append
    await log.prepare()
    for _ in range(2):  # the roll-over begins with the second one
        log.append(Kind.ACKED, "s", b"acked", told.append)
    await until(lambda: bool(failed))
    assert told == [None, None]
    assert "another broker owns the topic by now" in failed[0]
    assert [one.ledger_id for one in await store.list()] == record.progress == log.ledgers
    assert len(record.progress) == 2
    log.append(Kind.ACKED, "s", b"acked", told.append)
    await until(lambda: len(told) == 3)
    assert "another broker owns the topic by now" in str(told[2])


async def change(one: Region, random: Random) -> None:
    names = sorted(one.topic.subscriptions)
    name = random.choice(names)
    match random.randrange(6):
        case 0 if len(names) > 2:
            one.topic.subscription_registry.delete(name)
        case 1:
            fresh = random.choice("abcdefgh")
            if fresh not in names:
                one.topic.subscribing.create_subscription(fresh, EARLIEST, replicated=random.random() < 0.5)
        case 2:
            upto = one.stored[random.randrange(12)]
            await drops.drop_upto(one.topic, [one.topic.subscriptions[name].cursor], Cause.TTL, upto)
        case 3:
            await seeking.seek(one.topic.subscriptions[name].cursor, one.stored[random.randrange(12)])
        case _:
            one.acknowledge(name, [random.randrange(12)])


@pytest.mark.parametrize("seed", range(40))
async def test_what_changes_between_the_slices_of_a_snapshot_is_in_the_log(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = Random(seed)
    one = await region(a=True, b=False, c=True, d=False, e=True)
    monkeypatch.setattr(progress_log, "SNAPSHOT_RECORDS", 1)
    monkeypatch.setattr(progress_log, "SNAPSHOT_SMALL_BYTES", 0)
    log = one.topic.progress_log
    for _ in range(8):
        await change(one, random)
    await one.settle()
    log._roll()
    changes = 0
    while not log._rolls.is_idle:
        await change(one, random)
        await asyncio.sleep(0)
        changes += 1
    assert changes > 2
    await one.settle()
    assert len(log.ledgers) == 1, "the ledgers before it are gone"
    before = one.state()
    await one.start()
    assert one.state() == before
