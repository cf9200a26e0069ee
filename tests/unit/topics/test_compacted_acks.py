# SPDX-License-Identifier: Apache-2.0
"""Cumulative acknowledgements of a subscription that reads the compacted view: which ids count, and what they claim."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from meridian_broker.engines.memory.ledgers import MemoryLedgerStore
from meridian_broker.ledgers.entry import BATCH
from meridian_broker.ledgers.store import LedgerError, LedgerNotFound
from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.topics.compaction.compaction import CompactionResources, Status
from meridian_broker.topics.compaction.compactor import CompactionLimits
from meridian_broker.topics.cursors import seeking
from meridian_broker.topics.cursors.compacted_cursor import CompactedReading
from meridian_broker.topics.dispatch.consumer import Consumer
from meridian_broker.topics.dispatch.types import EXCLUSIVE
from meridian_broker.topics.subscriptions.subscription import Subscription
from meridian_broker.wire.pulsar.metadata import body_checksum
from support.worlds.compaction_world import Message, batch_body, single_body
from support.worlds.topic_of_one_region import BEGAN_MS, Region
from support.worlds.topic_record import TopicRecord


class Record(TopicRecord):
    """A topic record that names the current view, with gaps between ledger ids for other regions'."""

    def __init__(self) -> None:
        super().__init__()
        self.fence = 1
        self.record = SimpleNamespace(compacted=None, obsolete_ledgers=())

    async def allocate_ledger_id(self) -> int:
        return 10 * await super().allocate_ledger_id()

    async def save_compaction(self, compacted: Any, obsolete: tuple[int, ...]) -> None:
        self.record.compacted, self.record.obsolete_ledgers = compacted, obsolete


class CompactedWorld(Region):
    """A topic with keys, and one consumer of it (which is also its port)."""

    def __init__(self) -> None:
        super().__init__()
        self.metadata = Record()
        self.record = self.metadata
        self.got: list[Position] = []

    async def open(self, *, compacted: bool) -> None:
        await self.start()
        loop = asyncio.get_running_loop()
        store = MemoryLedgerStore(self.disk, schedule=lambda work: loop.call_soon(work))
        resources = CompactionResources(store, asyncio.Lock(), CompactionLimits(1000, 0, True))
        await self.topic.compaction.open(self.metadata, resources)  # type: ignore[arg-type]
        self.subscription: Subscription = self.topic.subscribing.create_subscription("s", EARLIEST)
        self.consumer = self.new_consumer(compacted=compacted)
        await self.settle()

    def new_consumer(self, *, compacted: bool = True) -> Consumer:
        return Consumer(
            self.subscription,
            self,  # type: ignore[arg-type]
            *(1, "c", 0, BEGAN_MS, None, None, self.subscription.cursor.progress.epoch, compacted),
        )

    def replace_consumer(self) -> None:
        """The earlier consumer is gone, with the messages it held."""
        self.subscription.remove_consumer(self.consumer)
        self.consumer = self.new_consumer()
        self.got.clear()

    async def publish_keys(self, *keys: str) -> None:
        def stored(_: Any, first: Any) -> None:
            self.stored.append(first)

        for key in keys:  # several letters: a batch
            messages = [Message(one, b"v") for one in key]
            body = single_body(messages[0], BEGAN_MS) if len(key) == 1 else batch_body(messages, BEGAN_MS)
            flags = 0 if len(key) == 1 else BATCH
            facts = (flags, len(key), 0, body_checksum(body), BEGAN_MS, b"", body)
            self.topic.log.append_own([facts], stored, [0])
            await self.settle()

    async def compact(self) -> None:
        self.topic.compaction.start()
        await self.settle()
        assert self.topic.compaction.status is Status.SUCCESS

    async def receive(self) -> None:
        """Send everything there is."""
        await self.topic.compaction.prepare()
        if not self.subscription.consumers:
            self.subscription.add_consumer(self.consumer, EXCLUSIVE)
        self.consumer.flow(100)
        self.subscription.dispatch_soon()
        await self.settle()

    async def acknowledge_up_to(self, position: Position, part: int | None = None) -> LedgerError | None:
        answers: list[LedgerError | None] = []
        self.subscription.acknowledge_cumulative(self.consumer, position, part, answers.append)
        await self.settle()
        (answer,) = answers
        return answer

    def acked(self) -> list[int]:
        """The acknowledged ones of the published entries."""
        progress = self.subscription.cursor.progress
        return [number for number, place in enumerate(self.stored) if progress.is_acked("us", place)]

    # -- the port ----------------------------------------------------------------------------------------------------

    def deliver(self, _: Consumer, position: Position, *__: Any) -> None:
        self.got.append(position)

    def writable(self) -> bool:
        return True

    def disconnect_consumer(self, _: Consumer) -> None:
        pass


async def world(*, compacted: bool = True) -> CompactedWorld:
    """Twelve entries with different keys in three ledgers, all in the view if there is one."""
    one = CompactedWorld()
    await one.open(compacted=compacted)
    await one.publish_keys(*"abcdefghijkl")
    if compacted:
        await one.compact()
    return one


@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize(
    "place", [Position(0, 5), Position(0, 1 << 32), Position(0, 1 << 40), Position(3, -1), Position(3, 0)]
)
async def test_an_id_of_another_region_acknowledges_nothing(compacted: bool, place: Position) -> None:
    """It lies between two entries of this region without being either."""
    one = await world(compacted=compacted)
    await one.receive()
    assert one.got == one.stored
    foreign = Position(one.stored[0].ledger + place.ledger, place.entry)
    assert one.stored[0] < foreign < one.stored[-1]
    answer = await one.acknowledge_up_to(foreign)
    assert isinstance(answer, LedgerNotFound)
    assert str(foreign) in str(answer)
    assert one.acked() == []


async def test_an_impossible_id_does_not_disturb_individual_acknowledgements() -> None:
    one = await world()
    await one.receive()
    hostile = Position(one.stored[0].ledger, 1 << 40)
    one.subscription.acknowledge(one.consumer, [hostile, one.stored[0]])
    one.subscription.acknowledge(one.consumer, [one.stored[2]])
    await one.settle()
    assert one.acked() == [0, 2]


async def test_acknowledging_an_entry_of_the_view_covers_the_view_up_to_it() -> None:
    one = await world()
    await one.publish_keys("a", "c")
    await one.compact()
    await one.receive()
    assert one.got == [*one.stored[1:2], *one.stored[3:]]
    assert await one.acknowledge_up_to(one.stored[4]) is None
    assert one.acked() == [1, 3, 4]
    assert await one.acknowledge_up_to(one.stored[2]) is None, "nothing before it is owed"
    assert await one.acknowledge_up_to(one.stored[7]) is None
    assert one.acked() == [1, *range(3, 8)]


async def test_a_sent_entry_counts_although_the_view_has_lost_it() -> None:
    """It was compacted away and trimmed while its consumer held it; earlier entries are only in the view."""
    one = await world()
    await one.topic.log.trim(one.stored[9], 0, None)
    await one.receive()
    assert one.got == one.stored
    sent = one.stored[3]
    await one.publish_keys("d", "e")
    await one.compact()
    view = one.topic.compaction.view
    assert view is not None and not view.holds(sent) and not one.topic.log.holds(sent)
    assert await one.acknowledge_up_to(sent) is None
    assert one.acked() == [0, 1, 2]
    never_sent = Position(sent.ledger, 5)
    assert isinstance(await one.acknowledge_up_to(never_sent), LedgerNotFound)
    assert one.acked() == [0, 1, 2]


async def held(*keys: str) -> CompactedWorld:
    """A consumer that was sent ``keys``; then a compaction removed those that the last ones replace."""
    one = CompactedWorld()
    await one.open(compacted=True)
    await one.publish_keys(*keys)
    await one.receive()
    assert one.got == one.stored
    await one.compact()
    return one


async def test_entries_sent_before_they_were_compacted_away_are_acknowledged() -> None:
    one = await held(*"abcabcad")
    assert await one.acknowledge_up_to(one.stored[4]) is None
    assert one.acked() == [0, 1, 2, 3, 4]
    assert await one.acknowledge_up_to(one.stored[6]) is None
    assert one.acked() == list(range(7))


async def test_an_id_before_the_whole_view_acknowledges_removed_entries() -> None:
    one = await held(*"aaab")
    assert await one.acknowledge_up_to(one.stored[1]) is None
    assert one.acked() == [0, 1]


async def test_entries_removed_from_the_view_and_the_log_are_acknowledged() -> None:
    one = await held(*"aaaaaaaaab")
    assert one.subscription.cursor.mark_delete == one.stored[7]
    await one.topic.log.trim(one.stored[7], 0, None)
    assert not one.topic.log.holds(one.stored[0])
    one.subscription.acknowledge(one.consumer, [one.stored[0]])
    await one.settle()
    assert one.acked() == [0]
    assert await one.acknowledge_up_to(one.stored[3]) is None
    assert one.acked() == [0, 1, 2, 3]


@pytest.mark.parametrize("how", ["replaced", "redelivered"])
async def test_removed_entries_not_sent_since_reading_restarted_are_not_acknowledged(how: str) -> None:
    """Its consumer lost it unseen and nobody here is sent it any more, but another region may deliver it."""
    one = await held(*"aaab")
    if how == "replaced":
        one.replace_consumer()
    else:
        one.got.clear()
        one.subscription.send_again(one.consumer, None, 0)
    await one.receive()
    assert one.got == one.stored[2:]
    assert await one.acknowledge_up_to(one.stored[3]) is None
    assert one.acked() == [2, 3]


async def test_entries_redelivered_before_their_removal_are_acknowledged() -> None:
    one = await held(*"ab")
    one.replace_consumer()
    await one.receive()
    await one.publish_keys("a")
    await one.compact()
    assert await one.acknowledge_up_to(one.stored[1]) is None
    assert one.acked() == [0, 1]


async def test_a_batch_that_lost_messages_after_it_was_sent_is_acknowledged_whole() -> None:
    one = await held("abc", "a", "xy", "x", "y")
    assert await one.acknowledge_up_to(one.stored[0]) is None
    assert one.acked() == [0]
    assert await one.acknowledge_up_to(one.stored[2], part=0b10) is None
    assert one.subscription.cursor.progress.remaining("us", one.stored[2], 2) == 0b10
    assert await one.acknowledge_up_to(one.stored[3]) is None
    assert one.acked() == [0, 1, 2, 3]


async def test_a_consumer_of_a_compacted_batch_acknowledges_what_it_got() -> None:
    one = await held("abc", "a")
    one.replace_consumer()
    await one.receive()
    assert await one.acknowledge_up_to(one.stored[1]) is None
    assert one.acked() == [1]
    assert one.subscription.cursor.progress.remaining("us", one.stored[0], 3) == 0b001


async def test_entries_redelivered_before_the_last_acknowledgement_are_not_acknowledged() -> None:
    """Official clients drop what is redelivered up to their last cumulative acknowledgement."""
    one = await world()
    await one.receive()
    assert await one.acknowledge_up_to(one.stored[5]) is None
    await seeking.seek(one.subscription.cursor, one.stored[0])
    acked_to, one.consumer = one.consumer.acked_to, one.new_consumer()
    one.consumer.acked_to = acked_to
    one.got.clear()
    await one.receive()
    assert one.got == one.stored
    assert await one.acknowledge_up_to(one.stored[8]) is None
    assert one.acked() == [6, 7, 8]
    one.replace_consumer()
    await one.receive()
    assert one.got == [*one.stored[:6], *one.stored[9:]]
    assert await one.acknowledge_up_to(one.stored[9]) is None
    assert one.acked() == list(range(10))


async def test_ids_are_remembered_only_while_something_before_them_is_owed() -> None:
    one = await world()
    await one.receive()
    compacted = one.subscription.cursor.compacted
    assert isinstance(compacted, CompactedReading)
    assert compacted._ids_sent.count_detail()
    assert await one.acknowledge_up_to(one.stored[-1]) is None
    await one.publish_keys("z", "z", "z", "z")  # the last of them begins a ledger
    await one.receive()
    assert one.got == one.stored
    assert compacted._ids_sent.contains(one.stored[-1])
    assert compacted._ids_sent.floor >= one.stored[11]
