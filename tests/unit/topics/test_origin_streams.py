# SPDX-License-Identifier: Apache-2.0
"""Dispatch scope ``origin`` on a real topic (R26): what is sent is held at that moment, nothing of a newly won stream
is skipped, nothing that a consumer has is sent to another, and only what was sent is acknowledged."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Container, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meridian_broker.ledgers.entry import FOREIGN, EntryHeader, pack_foreign, pack_own
from meridian_broker.ledgers.store import WhenDurable
from meridian_broker.positions import Progress
from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.replication.leases.messages import Stream
from meridian_broker.replication.leases.quorums import VoterSets
from meridian_broker.replication.leases.request import LeaseRequest
from meridian_broker.topics.dispatch.consumer import Consumer
from meridian_broker.topics.dispatch.types import EXCLUSIVE, KEY_SHARED, SHARED, SubscriptionType
from meridian_broker.topics.dispatch_scope.origin_streams import DRAIN_SECONDS
from meridian_broker.topics.journal.subscription_record import ORIGIN
from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar.metadata import build_body
from support.worlds.dispatch_world import LEDGER, START_MS, DispatchWorld, Message, run

ORIGINS = ("here", "there")
DURATION_MS = 10_000


class Leasing:
    """Grants what the test says."""

    promise_ms = 6000

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self.now_ms = now_ms
        self.leases: dict[str, LeaseRequest] = {}
        self.released: list[str] = []

    def objection(self, regions: object) -> str:
        return ""

    def agree(self, topic: str, subscription: str) -> None:
        """These tests have no voters."""

    def want(self, stream: Stream, voter_sets: VoterSets, preferred: str) -> LeaseRequest:
        return self.leases.setdefault(stream[2], LeaseRequest(stream, voter_sets, preferred))

    def unwant(self, stream: Stream) -> None:
        """Nobody else asks for it in these tests."""

    def release(self, stream: Stream) -> None:
        self.released.append(stream[2])

    def leave(self, streams: Iterable[Stream]) -> None:
        """Its topics do not move."""

    def left(self, topics: Container[str]) -> None:
        """Nor does this."""

    def found(self, stream: Stream, holder: str, term: int, duration_ms: int) -> None:
        raise AssertionError("there are no votes on this disk")


class Exchange:
    """Other regions that know nothing new."""

    def local_change(self, topic: str, subscription: str, delta: Progress, durable: WhenDurable, **_: object) -> None:
        """Heard."""

    def opened(self, topic: str) -> None:
        """Heard."""

    def send_pending(self) -> None:
        """Sent."""

    def barrier(self, topic: str, subscription: str, passed: Callable[[], None]) -> None:
        passed()

    def flush(self, topic: str, subscription: str, passed: Callable[[], None]) -> None:
        passed()


class FromTwoRegions(Message):
    """Every second entry was published in another region."""

    def stored(self, number: int) -> bytes:
        if number % 2 == 0:
            prev = Position(LEDGER, number - 2) if number else EARLIEST
            head = pack_own(0, self.messages, self.key, 0, START_MS, START_MS, prev.ledger, prev.entry, b"")
        else:
            origin = Position(70, number // 2)
            prev = Position(70, origin.entry - 1) if origin.entry else EARLIEST
            times = (START_MS, START_MS)
            head = pack_foreign(
                EntryHeader(FOREIGN, 0, self.messages, self.key, 0, *times, prev, "there", origin, None, None)
            )
        metadata = pb.MessageMetadata(producer_name="p", sequence_id=number, publish_time=START_MS)
        return head + build_body(metadata.SerializeToString(), b"x")


def began(position: Position) -> str:
    return ORIGINS[position.entry % 2]


class Shared(DispatchWorld):
    """A subscription with dispatch scope origin."""

    async def open(self) -> None:
        await super().open()
        topic, subscription = self.topic, self.subscription
        self.leasing = topic.leasing = Leasing(self.scheduler.now_ms)
        topic.exchange = Exchange()
        topic.regions = lambda: frozenset(ORIGINS)
        subscription.follow_record(replace(subscription.record, replicated=True))
        topic.subscription_registry.set_scope(subscription, ORIGIN, {})
        assert subscription.streams is not None

    def win(self, choice: int) -> None:
        origin = ORIGINS[choice % 2]
        lease = self.leasing.leases.get(origin)
        streams = self.subscription.streams
        if lease is not None and streams is not None and lease.until_ms == 0:
            lease.until_ms = self.scheduler.ms + DURATION_MS
            streams.won(origin, lease)

    def lose(self, choice: int) -> None:
        origin = ORIGINS[choice % 2]
        lease, streams = self.leasing.leases.get(origin), self.subscription.streams
        if lease is not None and streams is not None and lease.until_ms:
            lease.until_ms = 0
            streams.lost(origin)

    def deliver(self, consumer: Consumer, position: Position, entry: bytes, redeliveries: int, _: int | None) -> None:
        assert self.scheduler.ms < self.leasing.leases[began(position)].until_ms, "the stream is not held"
        if self.kind in (SHARED, KEY_SHARED):
            # What was given back while the stream was not held is counted again.
            assert redeliveries <= self.given_back[position]
            self.given_back[position] = redeliveries
            super().deliver(consumer, position, entry, redeliveries, _)
        else:
            self.deliveries.append((consumer, position))

    def _check_key(self, consumer: Consumer, position: Position, key: int) -> None:
        for number in range(position.entry % 2, position.entry, 2):
            earlier = Position(LEDGER, number)
            if self.messages[number].key == key:
                assert earlier in self.in_flight or earlier in self.acked, f"{position} overtakes {earlier}"

    async def finish(self) -> None:
        if not self.consumers:
            self.join(0)
        for choice in (0, 1):
            self.win(choice)
        await super().finish()

    def entries(self) -> list[int]:
        return [position.entry for _, position in self.deliveries]


Step = tuple[Callable[[Shared, int], None], int]
steps: st.SearchStrategy[list[Step]] = st.lists(
    st.tuples(
        st.sampled_from(
            [
                *[Shared.join, Shared.leave, Shared.flow, Shared.flow, Shared.acknowledge, Shared.acknowledge],
                *[Shared.give_back, Shared.give_all_back, Shared.win, Shared.win, Shared.lose],
            ]
        ),
        st.integers(0, 9),
    ),
    max_size=40,
)
some = st.lists(st.builds(FromTwoRegions, st.integers(1, 5).map(lambda key: key * 13_107)), min_size=1, max_size=30)
BEGIN: list[Step] = [(Shared.join, 1), (Shared.flow, 9), (Shared.win, 0), (Shared.join, 1)]


async def lived(world: Shared, chosen: list[Step]) -> None:
    """Run step by step; at the end everything is sent and acknowledged."""
    await world.open()
    try:
        for step, choice in chosen:
            step(world, choice)
            await world.settle()
        await world.finish()
    finally:
        await world.close()


@given(some, steps, st.sampled_from([SHARED, KEY_SHARED]))
def test_what_is_held_is_sent_once_and_nothing_else(
    listed: list[Message], chosen: list[Step], kind: SubscriptionType
) -> None:
    run(lived(Shared(kind, listed), [*BEGIN, *chosen]))


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
@pytest.mark.parametrize("lets_go", [Shared.give_back, Shared.leave])
def test_what_a_consumer_releases_while_its_share_is_reread_is_sent_once(kind: SubscriptionType, lets_go: Any) -> None:
    world = Shared(kind, [FromTwoRegions(key * 13_107) for key in [1] * 9 + [3, 1, 3, 1, 1, 1]])
    run(lived(world, [*BEGIN, (Shared.win, 1), (Shared.lose, 0), (Shared.win, 0), (lets_go, 0)]))


@asynccontextmanager
async def opened(kind: SubscriptionType, messages: list[Message]) -> AsyncIterator[Shared]:
    """A world for one test, closed if the test passes."""
    world = Shared(kind, messages)
    await world.open()
    yield world
    await world.close()


@pytest.fixture
def ten() -> list[Message]:
    return [FromTwoRegions(0) for _ in range(10)]


async def test_a_share_that_is_won_later_is_read_from_the_start(ten: list[Message]) -> None:
    async with opened(EXCLUSIVE, ten) as world:
        world.join(0)
        world.consumers[0].flow(100)
        world.win(0)
        await world.settle()
        assert world.entries() == [0, 2, 4, 6, 8]
        world.win(1)
        await world.settle()
        assert world.entries()[5:] == [1, 3, 5, 7, 9]


async def test_nothing_is_sent_after_the_lease_expired_unnoticed(ten: list[Message]) -> None:
    async with opened(SHARED, ten) as world:
        world.join(0)
        world.win(0)
        world.consumers[0].flow(2)
        await world.settle()
        world.scheduler.ms += DURATION_MS
        world.consumers[0].flow(100)
        await world.settle()
        assert world.entries() == [0, 2]


async def test_a_cumulative_acknowledgement_covers_what_was_sent_before(ten: list[Message]) -> None:
    """Entry 8 was sent before any entry of the other stream: acknowledging it says nothing about those."""
    async with opened(EXCLUSIVE, ten) as world:
        world.join(0)
        (consumer,) = world.consumers
        consumer.flow(5)
        world.win(0)
        await world.settle()
        world.win(1)
        consumer.flow(2)
        await world.settle()
        assert world.entries() == [0, 2, 4, 6, 8, 1, 3]
        subscription = world.subscription
        subscription.acknowledge_cumulative(consumer, Position(LEDGER, 8))
        await world.settle()
        acked = subscription.cursor.progress.is_acked
        assert [acked("here", Position(LEDGER, number)) for number in (0, 2, 4, 6, 8)] == [True] * 5
        assert [acked("there", Position(70, number)) for number in range(5)] == [False] * 5
        subscription.acknowledge_cumulative(consumer, Position(LEDGER, 3))
        await world.settle()
        assert [acked("there", Position(70, number)) for number in range(5)] == [True, True, False, False, False]
        assert subscription.cursor.mark_delete == Position(LEDGER, 4)


async def test_entries_before_the_last_cumulative_acknowledgement_are_not_covered_by_the_next(
    ten: list[Message],
) -> None:
    """Official clients drop them: nobody has seen entries 1, 3, 5 and 7."""
    async with opened(EXCLUSIVE, ten) as world:
        world.join(0)
        (consumer,) = world.consumers
        consumer.flow(100)
        world.win(0)
        await world.settle()
        subscription = world.subscription
        subscription.acknowledge_cumulative(consumer, Position(LEDGER, 8))
        world.win(1)
        await world.settle()
        assert world.entries() == [0, 2, 4, 6, 8, 1, 3, 5, 7, 9]
        subscription.acknowledge_cumulative(consumer, Position(LEDGER, 9))
        await world.settle()
        acked = subscription.cursor.progress.is_acked
        assert [acked("there", Position(70, number)) for number in range(5)] == [False] * 4 + [True]
        assert subscription.cursor.mark_delete == Position(LEDGER, 0)


async def test_a_share_that_its_preferred_holder_wants_back_is_not_sent_and_soon_released(ten: list[Message]) -> None:
    async with opened(SHARED, ten) as world:
        world.join(0)
        world.win(1)
        world.consumers[0].flow(2)
        await world.settle()
        streams = world.subscription.streams
        assert streams is not None
        streams.wanted_back("there")
        world.consumers[0].flow(100)
        world.give_back(0)
        await world.settle()
        assert world.entries() == [1, 3]
        assert world.leasing.released == []
        world.scheduler.pass_time(round(DRAIN_SECONDS * 1000))
        assert world.leasing.released == ["there"]
