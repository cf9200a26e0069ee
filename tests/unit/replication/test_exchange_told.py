# SPDX-License-Identifier: Apache-2.0
"""No region is told anything that a power cut now would lose (R10, R60).

``ExchangeWorld`` checks every message of every test: it says nothing that its sender does not have on disk. Here each
way of telling something is used while an acknowledgement is in memory and not yet on disk.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from meridian_broker.positions.progress import Progress
from meridian_broker.replication.progress.barrier_refusals import AGAIN_MS, PATIENCE_MS
from meridian_broker.replication.progress.messages import BarrierDone, Delta, Digest, PeerMessage, State
from meridian_broker.replication.progress.waits import WaitResult
from support.worlds.exchange_world import ExchangeWorld, S, T, connected

DISK_MS = 100


def world_of(*names: str) -> ExchangeWorld:
    """``connected``, and then the disk of the first region is slow."""
    world = connected(names)
    world.regions[names[0]].disk_ms = DISK_MS
    return world


def ack(world: ExchangeWorld, region: str, *numbers: int) -> None:
    here = world.regions[region]
    here.ack(T, S, [here.topics[T].entries[number] for number in numbers])


def acked(world: ExchangeWorld, region: str) -> int:
    return 10 - len(world.regions[region].unacked(T, S))


def ask(world: ExchangeWorld) -> None:
    """eu is about to dispatch."""
    world.regions["eu"].exchange.barrier(T, S, world.now_ms, lambda _: None)


def reconnect(world: ExchangeWorld) -> None:
    world.cut("us", "eu")
    world.connect_all()


def close(world: ExchangeWorld) -> None:
    """A consumer closes in us, which has something that it may never have told eu."""
    world.regions["us"].exchange._peers["eu"].in_sync.clear()
    world.regions["us"].exchange.flush(T, S, world.now_ms, lambda _: None)


def forget(world: ExchangeWorld) -> None:
    """eu was restored to a time before the subscription existed: it refuses the delta and asks for everything."""
    ack(world, "us", 0)
    world.run(DISK_MS)
    eu = world.regions["eu"]
    del eu.topics[T].subscriptions[S], eu.disk.progress[T, S], eu.disk.records[T, S]
    eu.exchange._context.digests.mark(T, S)
    ack(world, "us", 1)
    world.run(1)


def make(world: ExchangeWorld) -> None:
    world.regions["us"].subscribe(T, "new")


def of_sub(message: PeerMessage) -> bool:
    return isinstance(message, Delta | State) and any(item.subscription == S for item in message.items)


WAYS: dict[str, tuple[Callable[[ExchangeWorld], None], Callable[[PeerMessage], bool]]] = {
    "the answer to a barrier": (ask, lambda message: isinstance(message, BarrierDone) and bool(message.progress)),
    "what a digest found": (reconnect, of_sub),
    "the whole, before a close": (close, of_sub),
    "the whole, for who lacks the subscription": (forget, of_sub),
    "the record of a new one": (make, lambda message: isinstance(message, Delta)),
}


@pytest.mark.parametrize("way", WAYS)
def test_it_is_sent_once_it_is_on_disk(way: str) -> None:
    world = world_of("us", "eu")
    take, is_it = WAYS[way]
    began, heard = world.now_ms, world.listen()
    ack(world, "us", 2, 3)
    take(world)
    world.run(250)
    told = [at - began for at, source, _, message in heard if source == "us" and is_it(message)]
    assert told and min(told) > DISK_MS, "it was sent before the disk had it"
    world.run(6000)
    assert world.regions["eu"].progress(T, S) == world.regions["us"].progress(T, S)


@pytest.mark.parametrize("way", WAYS)
def test_a_broker_killed_in_between_told_nobody(way: str) -> None:
    world = world_of("us", "eu")
    ack(world, "us", 2, 3)
    WAYS[way][0](world)
    world.run(DISK_MS // 2)
    world.crash("us")
    world.connect_all()
    world.run(6000)
    on_disk = 3 if way == "the whole, for who lacks the subscription" else 0
    assert acked(world, "us") == acked(world, "eu") == on_disk


def test_waiters_are_told_of_a_write_that_never_reaches_the_disk() -> None:
    """A broker that was replaced cannot write any more."""
    world = world_of("us", "eu")
    us, ends = world.regions["us"], list[WaitResult]()
    us.refuses = "another broker has it"
    ack(world, "us", 2)
    world.regions["eu"].exchange.barrier(T, S, world.now_ms, ends.append)
    us.exchange.flush(T, S, world.now_ms, ends.append)
    world.run(DISK_MS + 20)
    assert [end.missing["eu"] for end in ends] == ["us cannot store it: another broker has it"], "the flush"
    world.run(PATIENCE_MS + AGAIN_MS)
    assert [end.missing["us"] for end in ends[1:]] == ["us cannot store it: another broker has it"], "the barrier"
    assert acked(world, "eu") == 0


def test_a_digest_says_that_it_is_not_final() -> None:
    """Equal digests do not mean that the other has it on disk: a flush would promise too much."""
    world = world_of("us", "eu")
    eu = world.regions["eu"]
    us_at_eu = eu.exchange._peers["us"]
    us_at_eu.in_sync.clear()
    ack(world, "eu", 5)
    world.network.deaf.add(("eu", "us"))  # us has the same from its own client, and not on disk yet
    world.regions["us"].disk_ms = 30_000
    ack(world, "us", 5)
    heard = world.listen()
    world.run(6000)
    assert any(isinstance(message, Digest) for *_, message in heard)
    assert T not in us_at_eu.in_sync
    (status,) = eu.exchange.status(T, S, world.now_ms)
    assert status.lag_entries == 1, "nobody said that it is on disk"


@pytest.mark.parametrize("cut_first", [True, False])
def test_a_close_does_not_wait_for_the_disk_if_no_region_can_be_told(cut_first: bool) -> None:
    world = world_of("us", "eu")
    us = world.regions["us"]
    us.disk_ms = 10_000
    ack(world, "us", 2)
    ends: list[WaitResult] = []
    if cut_first:
        world.cut("us", "eu")
    us.exchange.flush(T, S, world.now_ms, ends.append)
    if not cut_first:
        world.cut("us", "eu")
    world.run(1)
    assert len(ends) == 1
    assert us.exchange.next_deadline() is None


@pytest.mark.parametrize("waits_for", ["the disk", "its neighbours", "a link that breaks"])
def test_messages_about_a_deleted_topic_are_not_applied_to_a_later_one(waits_for: str) -> None:
    """R8: else a subscription that only the deleted topic had would return with the recreated topic."""
    world = world_of("us", "eu", "ap")
    us = world.regions["us"]
    us.disk_ms = DISK_MS if waits_for == "the disk" else 0
    if waits_for == "a link that breaks":  # what was in flight is offered to the third region again
        world.network.deaf.add(("us", "eu"))
    us.subscribe(T, "old")
    world.run(1)
    ack(world, "us", 4)
    if waits_for == "a link that breaks":
        world.run(100)
    heard = world.listen()
    us.delete_topic(T)
    if waits_for == "a link that breaks":
        world.cut("us", "eu")
    us.subscribe(T, "new")
    world.run(400)
    told = {
        (item.incarnation, item.subscription)
        for _, source, _, message in heard
        if source == "us" and isinstance(message, Delta)
        for item in message.items
    }
    assert told == {(us.incarnation(T), "new")}


def test_nothing_waits_while_the_disk_is_idle() -> None:
    world = world_of("us", "eu")
    eu, began = world.regions["eu"], world.now_ms
    times: list[int] = []
    eu.exchange.barrier(T, S, world.now_ms, lambda _: times.append(world.now_ms - began))
    world.run(10)
    assert times == [2], "there and back"
    assert eu.progress(T, S) == Progress()
