# SPDX-License-Identifier: Apache-2.0
"""Messages that arrive together are applied in few transactions, in order, up to the first that cannot be applied."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meridian_broker.metadata import keys
from meridian_broker.metadata.store import Committed, Delete, Put
from meridian_broker.metadata.sync.applying import Poison
from meridian_broker.metadata.sync.events import Changes, Event, Mark, Message
from meridian_broker.metadata.sync.grouping import EVENTS_TOGETHER, in_bursts
from meridian_broker.metadata.sync.outbox import MAX_BYTES
from meridian_broker.metadata.sync.stamped import Stamped
from meridian_broker.positions.clock import Stamp
from support.worlds.sync_world import START_MS, SyncWorld

MARK = Mark("us", (START_MS, 0))


def event(number: int, at_ms: int = START_MS, size: int = 2) -> Event:
    return Event(keys.tenant(f"t{number:04}"), Stamped(Stamp(at_ms, number, "us"), b"{}".ljust(size)))


def changes(*numbers: int, at_ms: int = START_MS, size: int = 2) -> Changes:
    return Changes("us", tuple(event(number, at_ms, size) for number in sorted(set(numbers))))


messages = st.one_of(
    st.just(MARK),
    st.builds(
        lambda some, size: changes(*some, size=size),
        st.sets(st.integers(0, 99), min_size=1),
        st.sampled_from((2, MAX_BYTES // 3)),
    ),
)


@given(st.lists(messages, max_size=20))
def test_bursts_keep_the_order_and_fit_into_a_transaction(some: list[Message]) -> None:
    bursts = in_bursts(some)
    assert [message for burst in bursts for message in burst] == some
    for burst in bursts:
        assert burst == [MARK] or MARK not in burst
        events = [one for message in burst if isinstance(message, Changes) for one in message.events]
        assert len({one.path for one in events}) == len(events)
        size = sum(len(one.state.value or b"") for one in events)
        assert len(burst) == 1 or (len(events) <= EVENTS_TOGETHER and size <= MAX_BYTES)


def test_one_more_message_begins_a_new_burst_only_if_it_must() -> None:
    some = [changes(number) for number in range(2 * EVENTS_TOGETHER)]
    assert list(map(len, in_bursts(some))) == [EVENTS_TOGETHER, EVENTS_TOGETHER]
    assert list(map(len, in_bursts([changes(1), changes(2), changes(1), changes(3)]))) == [2, 2]


@pytest.fixture
def world() -> SyncWorld:
    return SyncWorld(["us", "eu"])


def apply(world: SyncWorld, some: Sequence[Message]) -> int:
    """Apply them; returns the number of transactions."""
    region = world.regions["eu"]
    transact, count = region.store.transact, 0

    async def counted(checks: Sequence, operations: Sequence[Put | Delete]) -> Committed | None:  # type: ignore[type-arg]
        nonlocal count
        count += 1
        return await transact(checks, operations)

    region.store.transact = counted  # type: ignore[method-assign]
    try:
        world.finish("eu", region.brokers[0].applier.apply_all(some))
    finally:
        region.store.transact = transact  # type: ignore[method-assign]
    return count


def test_messages_that_arrive_together_are_one_transaction(world: SyncWorld) -> None:
    assert apply(world, [changes(number, at_ms=START_MS + number) for number in range(20)]) == 1
    assert len(world.values("eu")) == 20
    assert world.regions["eu"].brokers[0].applier.latest["us"].written_ms == START_MS + 19


def test_events_before_the_first_that_cannot_be_applied_are_applied(world: SyncWorld) -> None:
    alien = Changes("mars", (event(2),))
    with pytest.raises(Poison, match="mars is not a region") as raised:
        apply(world, [changes(1), alien, changes(3)])
    assert raised.value.behind == 1
    assert [*world.values("eu")] == [keys.tenant("t0001")]


def test_a_deletion_that_was_not_read_is_found_by_the_transaction(world: SyncWorld) -> None:
    """The first attempt guesses that there is no tombstone: an older value must not come back."""
    deleted = Changes("us", (Event(keys.tenant("t0001"), Stamped(Stamp(START_MS + 5, 0, "us"), None)),))
    apply(world, [deleted])
    assert apply(world, [changes(1), changes(2)]) == 2
    assert [*world.values("eu")] == [keys.tenant("t0002")]
    assert world.tombstones("eu") == [keys.tenant("t0001")]


def test_of_entries_sent_together_the_rewritten_one_stays(world: SyncWorld) -> None:
    us = world.regions["us"]
    names = [keys.tenant(name) for name in "rstu"]
    for path in names:
        assert world.finish("us", world.write("us", {path: {}}))
    publishing = world.begin("us", us.brokers[0].publisher.drain(), "publish")
    while not world.topic["us"]:
        world.advance(publishing)
    assert world.finish("us", world.write("us", {keys.tenant("t"): {"again": 1}}))
    while world.tasks:
        world.advance(publishing)
    assert world.outbox("us") == [keys.tenant("t")]
    assert world.finish("us", us.brokers[0].publisher.drain()) == 1
    assert not world.outbox("us")
