# SPDX-License-Identifier: Apache-2.0
"""Ledgers that no topic names are deleted, and no others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from meridian_broker.engines.memory.ledgers import MemoryDisk, MemoryLedgerStore
from meridian_broker.ledgers.labels import Belonging, Kind, Label
from meridian_broker.ledgers.periodic import SomeFailed
from meridian_broker.ledgers.storage import OldLedger
from meridian_broker.ledgers.store import LedgerError, LedgerFenced, LedgerInfo, Writer
from meridian_broker.metadata.catalog import Catalog
from meridian_broker.metadata.topic_catalog import ASIDE
from meridian_broker.metadata.topic_records import CompactedRecord, LedgerRecord, TopicRecord
from meridian_broker.positions.clock import Stamp
from meridian_broker.positions.position import Position
from meridian_broker.server.loop import LoopScheduler
from meridian_broker.topics.lifecycle import garbage
from meridian_broker.wire.pulsar.topic_name import TopicName
from support.contracts.ledger_contract import append_one
from support.worlds.catalog_world import ORDERS

FENCE = 5
RECORD = TopicRecord(
    ledgers=(LedgerRecord(1),),
    progress_ledgers=(2,),
    obsolete_ledgers=(3,),
    compacted=CompactedRecord(4, Position(1, 0)),
)


def label_of(topic: object, incarnation: str = "") -> bytes:
    return Label(Kind.MESSAGES, Belonging(str(topic), incarnation)).encode()


class Volume:
    """Ledgers by id, each with its label."""

    def __init__(self) -> None:
        self.disk = MemoryDisk()
        self.store = Interrupted(self.disk, schedule=asyncio.get_running_loop().call_soon)
        self.labels: dict[int, bytes] = {}

    async def add(self, topic: str, *ledgers: int, incarnation: str = "") -> None:
        for ledger in ledgers:
            await self.add_labelled(ledger, label_of(topic, incarnation))

    async def add_labelled(self, ledger: int, label: bytes) -> None:
        await (await self.create(ledger, label)).seal()

    async def create(self, ledger: int, label: bytes) -> Writer:
        """Left unsealed, as if its owner were writing."""
        self.labels[ledger] = label
        return await self.store.create(ledger, FENCE, label)

    async def kept(self, catalog: Catalog) -> list[int]:
        """What is left after a collection."""
        old = [OldLedger(ledger, FENCE, label) for ledger, label in self.labels.items()]
        await garbage.collect(catalog.topics, self.store, old, LoopScheduler())
        return sorted(self.disk.ledgers)


async def test_what_a_record_names_is_kept(catalog: Catalog) -> None:
    volume = Volume()
    await catalog.topics.create(ORDERS, RECORD)
    await volume.add(str(ORDERS), 1, 2, 3, 4, 5)
    await volume.add("persistent://public/default/gone", 6)
    await volume.add_labelled(7, b"written by somebody else")
    assert await volume.kept(catalog) == [1, 2, 3, 4, 7]


async def test_a_quarantined_copy_keeps_its_ledgers(catalog: Catalog) -> None:
    """Their labels name the topic, which may have been created again or be gone."""
    volume = Volume()
    await volume.add(str(ORDERS), 1, 2, 3, 4, 5)
    await catalog.topics.create(ORDERS, RECORD)
    copy = TopicName(ORDERS.domain, ORDERS.tenant, ORDERS.namespace, f"{ORDERS.local_name}{ASIDE}17")
    await catalog.topics.move(ORDERS, copy, {}, Stamp(17, 0, "us-west"))
    await catalog.topics.create(ORDERS, TopicRecord(progress_ledgers=(6,)))
    incarnation = await catalog.topics.incarnation(ORDERS)
    await volume.add(str(ORDERS), 6, 8, incarnation=incarnation)
    assert await volume.kept(catalog) == [1, 2, 3, 4, 6]


async def test_a_topic_that_is_being_deleted_or_is_newer_than_its_record_keeps_all(catalog: Catalog) -> None:
    volume = Volume()
    _, version = await catalog.topics.create(ORDERS, RECORD)
    await volume.add(str(ORDERS), 5, incarnation=str(Stamp(1 << 40, 0, "us-west")))
    assert await volume.kept(catalog) == [5]
    await volume.add(str(ORDERS), 6)
    await catalog.topics.put(ORDERS, replace(RECORD, deleting=""), version)
    assert await volume.kept(catalog) == [5, 6]


class Interrupted(MemoryLedgerStore):
    """Lets something happen after the records were read and before a ledger is fenced."""

    happening: Callable[[], Awaitable[None]] | None = None

    async def recover(self, ledger_id: int, fence: int) -> LedgerInfo:
        happening, self.happening = self.happening, None
        if happening is not None:
            await happening()
        return await super().recover(ledger_id, fence)


async def test_a_ledger_that_its_owner_records_at_the_last_moment_is_kept(catalog: Catalog) -> None:
    """Its owner was suspended between creation and record, or its clock is a day behind, and a producer gets a receipt
    after the records were read."""
    volume = Volume()
    _, version = await catalog.topics.create(ORDERS, TopicRecord())
    writer = await volume.create(9, label_of(ORDERS))

    async def go_on() -> None:
        await catalog.topics.put(ORDERS, TopicRecord(ledgers=(LedgerRecord(9),)), version)
        assert await append_one(writer, b"promised") == 0

    volume.store.happening = go_on
    assert await volume.kept(catalog) == [9]
    assert volume.disk.ledgers[9].entries == [b"promised"]
    assert isinstance(await append_one(writer, b"later"), LedgerFenced)


async def test_an_owner_that_records_a_ledger_after_it_was_deleted_stores_nothing_in_it(catalog: Catalog) -> None:
    volume = Volume()
    _, version = await catalog.topics.create(ORDERS, TopicRecord())
    writer = await volume.create(9, label_of(ORDERS))
    assert await volume.kept(catalog) == []
    await catalog.topics.put(ORDERS, TopicRecord(ledgers=(LedgerRecord(9),)), version)
    assert isinstance(await append_one(writer, b"later"), LedgerError)


async def test_a_ledger_that_a_newer_owner_takes_over_meanwhile_is_kept(catalog: Catalog) -> None:
    volume = Volume()
    await volume.create(9, label_of(ORDERS))

    async def take_over() -> None:
        await MemoryLedgerStore.recover(volume.store, 9, FENCE + 1)

    volume.store.happening = take_over
    assert await volume.kept(catalog) == [9]


async def test_a_ledger_that_cannot_be_looked_at_holds_up_no_other(catalog: Catalog) -> None:
    volume = Volume()
    await volume.add("strange://a/b/c", 7)
    await volume.add("persistent://public/default/gone", 8)
    with pytest.raises(SomeFailed, match="1 of 2 failed: strange://a/b/c"):
        await volume.kept(catalog)
    assert sorted(volume.disk.ledgers) == [7]
