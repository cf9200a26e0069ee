# SPDX-License-Identifier: Apache-2.0
"""After a restart the progress log gives the true state: subscriptions of one name, and what was reported durable."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

import pytest
from meridian_broker.engines.memory.ledgers import MemoryLedgerStore
from meridian_broker.gateway.pulsar import consumers
from meridian_broker.gateway.pulsar.sent_away import SentAway
from meridian_broker.ledgers.store import LedgerError
from meridian_broker.positions import Progress, Stamp
from meridian_broker.positions.position import EARLIEST
from meridian_broker.server.loop import LoopScheduler
from meridian_broker.topics.dispatch.consumer import Consumer
from meridian_broker.topics.errors import TopicFenced
from meridian_broker.topics.journal.changes import Kind
from meridian_broker.topics.journal.progress_log import ProgressLog
from meridian_broker.topics.journal.subscription_record import ORIGIN, SubscriptionRecord, encode_record
from meridian_broker.topics.subscriptions.administration import (
    NoClient,
    move_subscription,
    replicate_subscription,
    scope_subscription,
    skip,
)
from meridian_broker.wire.proto import pulsar_pb2 as pb
from support.worlds.topic_of_one_region import Region, region
from support.worlds.topic_record import TopicRecord

if TYPE_CHECKING:
    from meridian_broker.gateway.pulsar.connection import Connection


async def rolled_over(one: Region) -> None:
    """Roll over: only the new ledger of the progress log holds everything that is known."""
    log = one.topic.progress_log
    before = log.ledgers
    log._roll()
    await one.settle()
    assert log.ledgers != before
    assert len(log.ledgers) == 1


async def test_a_subscription_created_after_a_deletion_of_its_name_survives_a_roll_over() -> None:
    one = await region(shared=True)
    one.topic.subscription_registry.delete("shared")
    one.topic.subscribing.create_subscription("shared", EARLIEST)
    await one.ack("shared", [0, 1, 2], 10)
    await rolled_over(one)
    await one.start()
    await one.settle()
    assert "shared" in one.topic.subscriptions
    assert one.topic.subscriptions["shared"].cursor.mark_delete == one.stored[2]


async def test_a_subscription_of_this_region_alone_stays_when_others_deleted_one_of_its_name() -> None:
    one = await region(own=False)
    told: list[str | None] = []
    grave = SubscriptionRecord("own", True, deleted=Stamp(1_900_000_000_000, 0, "eu"))
    one.topic.subscription_registry.merge("own", Progress(), encode_record(grave), told.append)
    await one.settle()
    assert told == [None]
    await one.ack("own", [0, 1, 2], 10)
    await rolled_over(one)
    await one.start()
    await one.settle()
    assert "own" in one.topic.subscriptions
    assert one.topic.subscriptions["own"].cursor.mark_delete == one.stored[2]


async def test_records_held_during_a_ledgers_creation_are_durable_after_its_snapshot() -> None:
    store, snapshot = MemoryLedgerStore(), [(Kind.SUBSCRIPTION, f"s{number}", b"") for number in range(3)]
    log = ProgressLog(store, TopicRecord(), 1, LoopScheduler(), lambda: snapshot)
    told: list[LedgerError | None] = []
    log.append(Kind.ACKED, "s0", b"acked")
    log.when_durable(told.append)
    while not log.ledgers:
        store.sync()
        await asyncio.sleep(0)
    for _ in snapshot:
        assert store.sync(1) == 1
        assert told == []
    store.sync(1)
    assert told == [None]


async def test_an_acknowledgement_of_a_deleted_subscription_does_not_count_for_a_later_one() -> None:
    one = await region(sub=False)
    old = one.topic.subscriptions["sub"]
    nobody = Consumer(old, NoClient(), 0, "", 0, 0, None, None, old.cursor.progress.epoch)
    told: list[LedgerError | None] = []
    one.topic.subscription_registry.delete("sub")
    one.topic.subscribing.create_subscription("sub", EARLIEST)
    old.acknowledge(nobody, one.stored[:3], None, told.append)  # for example, its entry's index was being read
    await one.settle()
    assert [type(error) for error in told] == [LedgerError]
    await one.start()
    await one.settle()
    assert not one.topic.subscriptions["sub"].cursor.progress.is_acked("us", one.stored[0])


@pytest.mark.parametrize("change", ["flag", "scope", "seek", "skip"])
async def test_no_command_revives_a_subscription_deleted_since_it_was_found(change: str) -> None:
    one = await region(sub=True)
    found = one.topic.subscriptions["sub"]
    one.topic.subscription_registry.delete("sub")
    await one.settle()
    with pytest.raises(TopicFenced):
        await {
            "flag": lambda: replicate_subscription(found, False),
            "scope": lambda: scope_subscription(found, ORIGIN, {}),
            "seek": lambda: move_subscription(found, one.stored[3]),
            "skip": lambda: skip(found, 2),
        }[change]()
    await one.start()
    await one.settle()
    assert "sub" not in one.topic.subscriptions
    assert "sub" in one.topic.subscription_registry.tombstones


class _Client:
    """Records whether a seek was on disk when it was answered."""

    def __init__(self, log: ProgressLog) -> None:
        self.sent_away = SentAway()
        self.heard: list[bool] = []
        self._log = log

    def succeed(self, request_id: int) -> None:
        self.heard.append(self._log._finished == self._log._asked)


async def test_a_client_is_told_of_a_seek_once_it_is_on_disk() -> None:
    """Otherwise it would expect messages again, and get none of them after a crash."""
    one = await region(sub=False)
    await one.ack("sub", range(6), 5)
    client = _Client(one.topic.progress_log)
    asked = pb.CommandSeek(consumer_id=1, request_id=1)
    asked.message_id.ledgerId, asked.message_id.entryId = one.stored[1]
    await consumers._seek(cast("Connection", client), asked, one.topic.subscriptions["sub"])
    assert client.heard == [True]
