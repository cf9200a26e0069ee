# SPDX-License-Identifier: Apache-2.0
"""Shared and Key_Shared dispatch on a real topic over in-memory ledgers, driven by random consumers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meridian_broker.ledgers.entry import pack_extras, pack_own, unpack
from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.topics.dispatch import in_flight, key_shared
from meridian_broker.topics.dispatch.delayed import TICK_MS, Delays
from meridian_broker.topics.dispatch.in_flight import InFlightDispatcher
from meridian_broker.topics.dispatch.key_shared import KeySharedDispatcher
from meridian_broker.topics.dispatch.types import KEY_SHARED, SHARED, SubscriptionType
from support.worlds.dispatch_world import LEDGER, START_MS, Clocked, DispatchWorld, Message, run

Step = tuple[Callable[[DispatchWorld, int], None], int]
steps = st.lists(
    st.tuples(
        st.sampled_from(
            [
                DispatchWorld.join,
                DispatchWorld.leave,
                DispatchWorld.flow,
                DispatchWorld.flow,
                DispatchWorld.flow,
                DispatchWorld.acknowledge,
                DispatchWorld.acknowledge,
                DispatchWorld.give_back,
                DispatchWorld.give_all_back,
                DispatchWorld.acknowledge_elsewhere,
                DispatchWorld.pass_time,
            ]
        ),
        st.integers(0, 9),
    ),
    max_size=40,
)
keys = st.integers(1, 5).map(lambda key: key * 13_107)
messages = st.lists(
    st.builds(Message, keys, st.sampled_from([0, 0, 0, 150, 400, 2000]), st.none(), st.sampled_from([1, 1, 3])),
    min_size=1,
    max_size=30,
)
busy: st.SearchStrategy[tuple[list[Message], list[Step]]] = st.tuples(
    st.lists(st.builds(Message, keys), min_size=15, max_size=30),
    steps.map(lambda chosen: [(DispatchWorld.join, 1), (DispatchWorld.flow, 6), (DispatchWorld.join, 1), *chosen]),
)
"""Much in flight before anything else happens."""


async def story(world: DispatchWorld, chosen: list[Step]) -> None:
    await world.open()
    try:
        for step, choice in chosen:
            step(world, choice)
            if choice % 3:
                await world.settle()
            else:
                await asyncio.sleep(0)  # in the middle of whatever is in progress
            world.check_counts()
        await world.finish()
    finally:
        await world.close()


@given(st.tuples(messages, steps) | busy)
def test_key_shared_keeps_the_order_of_keys_whatever_consumers_do(drawn: tuple[list[Message], list[Step]]) -> None:
    run(story(DispatchWorld(KEY_SHARED, drawn[0]), drawn[1]))


@given(messages, steps)
def test_shared_delivers_everything_and_nothing_too_early(listed: list[Message], chosen: list[Step]) -> None:
    run(story(DispatchWorld(SHARED, listed), chosen))


@given(st.lists(st.integers(0, 3), max_size=20), steps)
def test_chunks_stay_together_while_their_consumer_stays(order: list[int], chosen: list[Step]) -> None:
    """Four chunked messages, interleaved at random."""
    sizes = Counter(order)
    seen: Counter[int] = Counter()
    listed = []
    for message in order:
        listed.append(Message(0, chunk=(f"u{message}", seen[message], sizes[message])))
        seen[message] += 1
    world = DispatchWorld(SHARED, listed)
    calm = [
        step
        for step in chosen
        if step[0] not in (DispatchWorld.leave, DispatchWorld.give_back, DispatchWorld.give_all_back)
    ]
    run(story(world, calm))
    takers: dict[str, set[int]] = {}
    for consumer, position in world.deliveries:
        chunk = listed[position.entry].chunk
        assert chunk is not None
        takers.setdefault(chunk[0], set()).add(consumer.consumer_id)
    assert all(len(one) == 1 for one in takers.values())


@given(st.tuples(messages, steps) | busy)
def test_low_limits_slow_down_and_lose_nothing(drawn: tuple[list[Message], list[Step]]) -> None:
    """Little look-ahead, few delayed entries noted: reading stops and resumes."""
    listed, chosen = drawn

    async def bounded(world: DispatchWorld) -> None:
        await world.open()
        try:
            for step, choice in chosen:
                step(world, choice)
                await world.settle()
                dispatcher = world.subscription.dispatcher
                if isinstance(dispatcher, InFlightDispatcher):
                    assert len(dispatcher.delays) <= 2
                if isinstance(dispatcher, KeySharedDispatcher):
                    given_back = sum(world.given_back.values()) + len(world.deliveries)
                    assert dispatcher._lanes.waiting <= 3 + given_back
            await world.finish()
        finally:
            await world.close()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_shared, "LOOK_AHEAD", 3)
        patch.setattr(in_flight, "Delays", lambda scheduler, wake: Delays(scheduler, wake, limit=2))
        for kind in (SHARED, KEY_SHARED):
            run(bounded(DispatchWorld(kind, listed)))


def test_a_delayed_entry_wakes_its_subscription_within_a_tick() -> None:
    async def told() -> None:
        world = DispatchWorld(SHARED, [Message(0, 1234), Message(0), Message(0, 2500)])
        await world.open()
        world.join(0)
        world.flow(9)
        await world.settle()
        assert [position.entry for _, position in world.deliveries] == [1]
        world.pass_time(12)
        await world.settle()
        assert len(world.deliveries) == 1
        world.scheduler.pass_time(34 + TICK_MS)
        await world.settle()
        assert [position.entry for _, position in world.deliveries] == [1, 0]
        world.scheduler.pass_time(1300)
        await world.settle()
        assert [position.entry for _, position in world.deliveries] == [1, 0, 2]
        await world.close()

    run(told())


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
def test_rereading_forgets_noted_entries(kind: SubscriptionType) -> None:
    """After a rewind (once a barrier is passed) delayed and waiting entries are read again, and delivered once."""

    async def told() -> None:
        world = DispatchWorld(kind, [Message(1, 500), Message(2), Message(2), Message(1)])
        await world.open()
        world.join(0)
        world.consumers[0].flow(1)
        await world.settle()
        assert [position.entry for _, position in world.deliveries] == [1]
        world.acknowledge(0)
        dispatcher = world.subscription.dispatcher
        assert dispatcher is not None
        dispatcher.rewind()
        world.consumers[0].flow(20)
        await world.settle()
        world.scheduler.pass_time(1000)
        await world.settle()
        assert [position.entry for _, position in world.deliveries] == [1, 2, 3, 0]
        await world.finish()
        await world.close()

    run(told())


def test_a_tick_that_falls_due_during_the_check_still_wakes() -> None:
    """The dispatcher reads the clock and finds nothing due; a millisecond later it would be."""

    async def told() -> None:
        scheduler = Clocked()
        woken: list[int] = []
        delays = Delays(scheduler, lambda: woken.append(scheduler.ms))
        delays.add(START_MS + TICK_MS, Position(LEDGER, 0))
        scheduler.pass_time(TICK_MS)
        assert len(woken) == 1
        assert delays.take_due(scheduler.ms - 1, 10) == []  # what the clock showed before
        scheduler.pass_time(1)
        assert len(woken) == 2
        assert len(delays.take_due(scheduler.ms, 10)) == 1
        scheduler.pass_time(1000)
        assert len(woken) == 2

    run(told())


def test_delayed_entries_come_out_by_time_and_then_by_position() -> None:
    async def told() -> None:
        delays = Delays(Clocked(), lambda: None, limit=4)
        for number, due in enumerate((950, 120, 101, 130)):
            delays.add(START_MS + due, Position(LEDGER, number), number)
        assert delays.full
        assert delays.next_due_ms() == START_MS + 200
        assert delays.take_due(START_MS + 199, 10) == []
        assert delays.take_due(START_MS + 200, 2) == [(Position(LEDGER, 1), 1), (Position(LEDGER, 2), 2)]
        assert delays.take_due(START_MS + 5000, 10) == [(Position(LEDGER, 3), 3), (Position(LEDGER, 0), 0)]
        assert not delays

    run(told())


def test_a_foreign_entry_has_its_deliver_time_too() -> None:
    from meridian_broker.ledgers.entry import EntryHeader, deliver_at_ms, pack_foreign

    for due in (None, 1, START_MS):
        for regions in (None, ("east", "west")):
            header = EntryHeader(0, 0, 1, 0, 0, 1, 2, EARLIEST, "east-of-eden", Position(LEDGER, 1), regions, due)
            foreign = pack_foreign(header) + b"body"
            own = pack_own(0, 1, 0, 0, 1, 2, -1, -1, pack_extras(regions, due)) + b"body"
            assert deliver_at_ms(foreign) == deliver_at_ms(own) == (due or 0)
            assert unpack(foreign).deliver_at_ms == due
