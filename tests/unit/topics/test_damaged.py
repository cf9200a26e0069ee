# SPDX-License-Identifier: Apache-2.0
"""Entries damaged on disk, in a topic of one region: which subscriptions wait or skip them, and what is claimed."""

from __future__ import annotations

from typing import Any

import pytest
from meridian_broker.engines.memory.ledgers import MemoryReader
from meridian_broker.ledgers.damage import is_damaged
from meridian_broker.ledgers.store import LedgerCorrupt
from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.topics.backfill import repair
from meridian_broker.topics.backfill.repair import PATIENCE_MS
from meridian_broker.topics.dispatch.consumer import Consumer
from meridian_broker.topics.dispatch.types import EXCLUSIVE, KEY_SHARED, SHARED, SubscriptionType
from meridian_broker.topics.subscriptions.administration import NoClient
from support.worlds.topic_of_one_region import BEGAN_MS, Region, region


class Port(NoClient):
    """A client that accepts everything."""

    def __init__(self) -> None:
        self.got: list[Position] = []

    def writable(self) -> bool:
        return True

    def deliver(self, consumer: Consumer, position: Position, *_: Any) -> None:
        self.got.append(position)


@pytest.fixture
def rotten(monkeypatch: pytest.MonkeyPatch) -> set[Position]:
    """Entries that the disk returns damaged."""
    bad: set[Position] = set()
    read = MemoryReader.read

    async def checked(self: MemoryReader, first: int, last: int, max_bytes: int) -> list[bytes]:
        found = await read(self, first, last, max_bytes)
        whole = next((n for n in range(len(found)) if (self.ledger_id, first + n) in bad), len(found))
        if found and not whole:
            raise LedgerCorrupt(f"entry {first} of ledger {self.ledger_id} fails its checksum", found[0][:-1] + b"?")
        return found[:whole]

    monkeypatch.setattr(MemoryReader, "read", checked)
    return bad


async def consuming(one: Region, name: str, kind: SubscriptionType) -> tuple[Consumer, Port]:
    subscription, port = one.topic.subscriptions[name], Port()
    consumer = Consumer(subscription, port, 1, "", 0, BEGAN_MS, None, None, subscription.cursor.progress.epoch)
    consumer.permits = 1000
    subscription.add_consumer(consumer, kind)
    await one.settle()
    return consumer, port


def numbers(one: Region, port: Port) -> list[int]:
    return [one.stored.index(position) for position in port.got]


@pytest.mark.logs_error("fails its checksum")
async def test_ordered_subscriptions_wait_and_others_skip(rotten: set[Position]) -> None:
    one = await region(exclusive=False, shared=False, keyed=False)
    rotten.add(one.stored[6])
    await one.start()
    ports = {
        name: (await consuming(one, name, kind))[1]
        for name, kind in (
            ("exclusive", EXCLUSIVE),
            ("shared", SHARED),
            ("keyed", KEY_SHARED),
        )
    }
    others = [number for number in range(12) if number != 6]
    assert numbers(one, ports["exclusive"]) == numbers(one, ports["keyed"]) == list(range(6))
    assert numbers(one, ports["shared"]) == others
    rotten.clear()
    one.topic.repair.noticed()
    await one.settle()
    assert numbers(one, ports["exclusive"]) == numbers(one, ports["keyed"]) == list(range(12))
    assert numbers(one, ports["shared"]) == [*others, 6]


@pytest.mark.logs_error("fails its checksum")
async def test_a_cumulative_acknowledgement_claims_no_damaged_entry_that_was_not_sent(rotten: set[Position]) -> None:
    """Its index, and with it the damage, is loaded only while the acknowledgement is looked up."""
    one = await region(s=False)
    rotten |= {one.stored[2], one.stored[6]}
    await one.start()
    subscription = one.topic.subscriptions["s"]
    consumer, port = await consuming(one, "s", EXCLUSIVE)
    assert numbers(one, port) == [0, 1]
    subscription.acknowledge_cumulative(consumer, one.stored[9])
    await one.settle()
    acked = [n for n in range(12) if subscription.cursor.progress.is_acked("us", one.stored[n])]
    assert acked == [0, 1, 3, 4, 5, 7, 8, 9]
    assert subscription.cursor.mark_delete == one.stored[1]
    rotten.clear()
    one.topic.repair.noticed()
    await one.settle()
    assert numbers(one, port) == [0, 1, 2, 6, 10, 11]


@pytest.mark.logs_error("fails its checksum")
async def test_an_entry_that_was_sent_before_it_was_damaged_is_acknowledged(rotten: set[Position]) -> None:
    one = await region(s=False)
    subscription = one.topic.subscriptions["s"]
    consumer, port = await consuming(one, "s", EXCLUSIVE)
    assert numbers(one, port) == list(range(12))
    rotten.add(one.stored[2])
    one.topic.log.drop_tail()
    assert is_damaged((await one.topic.log.read_after(one.stored[1], 1, 1))[0][1])
    subscription.acknowledge_cumulative(consumer, one.stored[9])
    await one.settle()
    assert subscription.cursor.mark_delete == one.stored[9]
    one.scheduler.ms += PATIENCE_MS
    one.topic.repair.noticed()
    await one.settle()
    assert one.topic.gaps.all() == [], "it is no longer owed to anybody"


@pytest.mark.logs_error("fails its checksum")
async def test_consecutive_damaged_entries_of_a_ledger_are_one_gap(rotten: set[Position]) -> None:
    one = await region(s=False)
    rotten |= set(one.stored[6:9])
    await one.start()
    _, port = await consuming(one, "s", EXCLUSIVE)
    (gap,) = one.topic.gaps.all()
    assert (gap.origin, gap.after, gap.upto, gap.is_judged) == ("us", one.stored[5], one.stored[8], True)
    accepted, names = await one.topic.gaps.accept("us", gap.upto, "a test", forced=False)
    await one.settle()
    assert (accepted.after, names) == (one.stored[5], ["s"])
    assert numbers(one, port) == [0, 1, 2, 3, 4, 5, 9, 10, 11]
    assert one.topic.gaps.accepted == [accepted]


@pytest.mark.logs_error("fails its checksum")
async def test_a_reader_waits_as_others_do_and_skips_what_is_lost(rotten: set[Position]) -> None:
    one = await region(s=False)
    rotten.add(one.stored[4])
    await one.start()
    reader = one.topic.subscribing.create_subscription("reader", EARLIEST, durable=False)
    _, port = await consuming(one, reader.name, EXCLUSIVE)
    assert numbers(one, port) == list(range(4))
    await one.topic.gaps.accept("us", one.stored[4], "a test", forced=False)
    await one.settle()
    assert numbers(one, port) == [0, 1, 2, 3, *range(5, 12)]


@pytest.mark.logs_error("fails its checksum")
async def test_very_many_damaged_entries_are_processed_in_turns_and_shown_as_one_gap(
    rotten: set[Position], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repair, "AT_ONCE", 2)
    one = await region(s=False)
    rotten |= set(one.stored[5:10])
    await one.start()
    _, port = await consuming(one, "s", EXCLUSIVE)
    (gap,) = one.topic.gaps.all()
    assert (gap.after, gap.upto, gap.is_judged) == (one.stored[4], one.stored[9], True)
    one.scheduler.ms += PATIENCE_MS
    one.topic.repair.noticed()
    await one.settle()
    assert [(found.after, found.upto) for found in one.topic.repair.for_a_person()] == [(gap.after, gap.upto)]
    await one.topic.gaps.accept("us", gap.upto, "a test", forced=False)
    await one.settle()
    assert numbers(one, port) == [0, 1, 2, 3, 4, 10, 11]
    assert one.topic.gaps.accepted and not one.topic.repair.gaps()
