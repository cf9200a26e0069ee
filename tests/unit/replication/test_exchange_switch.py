# SPDX-License-Identifier: Apache-2.0
"""Barriers and flushes (R20): which peers they wait for, how long, and what they promise."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from meridian_broker.replication.progress.barrier_refusals import AGAIN_MS, PATIENCE_MS
from meridian_broker.replication.progress.messages import (
    Barrier,
    BarrierDone,
    Digest,
    ExchangeLimits,
    PeerMessage,
    TopicDigest,
)
from meridian_broker.replication.progress.waits import WaitResult
from support.worlds.exchange_world import ExchangeWorld, S, T, connected


@dataclass
class Wait:
    """A barrier or flush, and the time at which it ended."""

    world: ExchangeWorld
    started_ms: int
    result: WaitResult | None = None
    after_ms: int = -1

    def __call__(self, result: WaitResult) -> None:
        assert self.result is None, "told twice"
        self.result, self.after_ms = result, self.world.now_ms - self.started_ms


def begin(world: ExchangeWorld, what: str, region: str, name: str = S) -> Wait:
    wait = Wait(world, world.now_ms)
    getattr(world.regions[region].exchange, what)(T, name, world.now_ms, wait)
    return wait


def ack(world: ExchangeWorld, region: str, *numbers: int) -> None:
    entries = world.regions[region].topics[T].entries
    world.regions[region].ack(T, S, [entries[number] for number in numbers])


def test_a_barrier_brings_what_every_region_knows() -> None:
    world = connected(("us", "eu", "ap"))
    for remote in ("us", "ap"):
        world.disconnect("eu", remote)
    ack(world, "eu", 1, 2)
    world.disconnect("ap", "us")
    world.disconnect("ap", "eu")
    ack(world, "ap", 3)
    wait = begin(world, "barrier", "us")
    world.run(10)
    assert wait.result == WaitResult(frozenset({"eu", "ap"}), {})
    assert wait.after_ms == 2, "one round trip"
    assert len(world.regions["us"].unacked(T, S)) == 7


def test_a_barrier_waits_until_what_it_brought_is_durable() -> None:
    world = connected(("us", "eu"))
    world.disconnect("eu", "us")
    ack(world, "eu", 1)
    world.regions["us"].disk_ms = 30
    wait = begin(world, "barrier", "us")
    world.run(100)
    assert wait.after_ms == 32
    assert world.regions["us"].disk.progress[T, S] == world.regions["eu"].progress(T, S)


def test_a_barrier_carries_only_what_is_lacking() -> None:
    world = connected(("us", "eu"))
    heard = world.listen()
    begin(world, "barrier", "us")
    world.run(10)
    assert [message for *_, message in heard if isinstance(message, BarrierDone)] == [BarrierDone(1)]


def test_a_subscription_that_exists_only_elsewhere_is_created_by_the_barrier() -> None:
    world = connected(("us", "eu"))
    world.disconnect("eu", "us")
    world.regions["eu"].subscribe(T, "other")
    world.regions["eu"].ack(T, "other", world.regions["eu"].topics[T].entries[:5])
    wait = begin(world, "barrier", "us", "other")
    world.run(10)
    assert wait.result is not None and wait.result.complete
    assert len(world.regions["us"].unacked(T, "other")) == 5


@pytest.mark.parametrize("what", ["barrier", "flush"])
def test_no_peer_is_waited_for_longer_than_the_limit(what: str) -> None:
    world = connected(("us", "eu", "ap"))
    world.network.deaf.add(("eu", "us"))
    ack(world, "us", 0)
    wait = begin(world, what, "us")
    world.run(1000)
    assert wait.after_ms == 250
    assert wait.result == WaitResult(frozenset({"ap"}), {"eu": "NoAnswerInTime"})


@pytest.mark.parametrize("what", ["barrier", "flush"])
def test_a_broken_link_ends_the_wait(what: str) -> None:
    world = connected(("us", "eu", "ap"))
    world.network.deaf.add(("eu", "us"))
    ack(world, "us", 0)
    wait = begin(world, what, "us")
    world.run(50)
    assert wait.result is None
    world.disconnect("us", "eu")
    world.run(0)
    assert wait.result == WaitResult(frozenset({"ap"}), {"eu": "LinkDown"})


@pytest.mark.parametrize("what", ["barrier", "flush"])
def test_without_peers_it_ends_at_once(what: str) -> None:
    world = connected(("us", "eu"))
    world.cut("us", "eu")
    wait = begin(world, what, "us")
    assert wait.result == WaitResult(frozenset(), {"eu": "LinkDown"})


@pytest.mark.parametrize("what", ["barrier", "flush"])
def test_requests_beyond_the_limit_are_answered_as_incomplete(what: str) -> None:
    world = connected(("us", "eu"), limits=ExchangeLimits(waiters=2))
    ack(world, "us", 0)
    waits = [begin(world, what, "us") for _ in range(3)]
    if what == "flush":
        assert waits.pop().result == WaitResult(frozenset(), {"eu": "TooManyWaiting"})
    world.run(10)
    assert all(wait.result is not None and wait.result.complete for wait in waits[:2])
    world.run(AGAIN_MS)
    assert all(wait.result is not None and wait.result.complete for wait in waits)


def test_a_topic_of_another_incarnation_is_reported_missing_with_the_reason() -> None:
    world = connected(("us", "eu"))
    world.regions["us"].delete_topic(T)
    world.regions["us"].subscribe(T, S)
    wait = begin(world, "barrier", "us")
    world.run(PATIENCE_MS + AGAIN_MS)
    assert wait.result is not None and "last deleted" in wait.result.missing["eu"]
    assert wait.after_ms >= PATIENCE_MS, "eu may find out: dispatch waits"
    flush = begin(world, "flush", "us")
    assert flush.result is not None and "last deleted" in flush.result.missing["eu"]


def test_a_flush_waits_for_queued_and_sent_deltas() -> None:
    world = connected(("us", "eu"))
    world.network.latency_ms = 40
    ack(world, "us", 0)
    world.run(1)
    ack(world, "us", 1)
    wait = begin(world, "flush", "us")
    world.run(100)
    assert wait.result == WaitResult(frozenset({"eu"}), {})
    assert wait.after_ms == 80, "queued deltas were sent at once"
    assert world.regions["eu"].disk.progress[T, S] == world.regions["us"].progress(T, S)


def test_a_flush_of_an_idle_subscription_sends_nothing() -> None:
    world = connected(("us", "eu", "ap"))
    wait = begin(world, "flush", "us")
    assert wait.result is not None and wait.result.complete
    world.run(10)
    assert not world.sent


def flushed(world: ExchangeWorld, region: str, peer: str) -> WaitResult:
    """Flush, and read the peer's disk at the moment the flush ends."""
    results: list[WaitResult] = []

    def done(result: WaitResult) -> None:
        results.append(result)
        if peer in result.confirmed:
            known = world.regions[region].progress(T, S)
            assert known is not None and known.within(world.regions[peer].disk.progress[T, S])

    world.regions[region].exchange.flush(T, S, world.now_ms, done)
    world.run(300)
    (result,) = results
    return result


def test_a_flush_after_a_cut_sends_everything() -> None:
    """Acks were dropped while the link was down; until digests make up for them, a flush must not report success."""
    world = connected(("us", "eu"))
    world.cut("us", "eu")
    ack(world, "us", 3)
    world.connect("us", "eu")
    assert flushed(world, "us", "eu").complete


def test_a_flush_after_a_delta_was_given_up_sends_everything() -> None:
    world = connected(("us", "eu"))
    world.network.deaf.add(("us", "eu"))
    ack(world, "us", 3)
    world.run(5100)
    world.network.deaf.clear()
    assert flushed(world, "us", "eu").complete


def test_a_flush_after_a_restart_sends_everything() -> None:
    world = connected(("us", "eu"))
    world.cut("us", "eu")
    ack(world, "us", 3)
    world.crash("us")
    world.connect("us", "eu")
    assert flushed(world, "us", "eu").complete


def test_a_flush_with_a_full_queue_says_so() -> None:
    world = connected(("us", "eu"), limits=ExchangeLimits(pending_subscriptions=1, in_flight=1))
    world.network.latency_ms = 50
    here = world.regions["us"]
    for name in ("a", "b"):
        here.subscribe(T, name)
        world.run(1)
    ack(world, "us", 3)
    assert flushed(world, "us", "eu") == WaitResult(frozenset(), {"eu": "QueueFull"})


def test_an_equal_digest_that_is_not_durable_yet_confirms_nothing() -> None:
    world = connected(("us", "eu"))
    here = world.regions["us"]
    ack(world, "us", 3)
    world.cut("us", "eu")
    world.connect("us", "eu")
    digests = here.exchange._context.digests
    for in_flux, sends in ((True, 1), (False, 0)):
        equal = Digest(0, 0, (TopicDigest(T, "", digests.topic(T), in_flux),))
        answers: list[PeerMessage] = []
        here.exchange.received("eu", equal, answers.append, world.now_ms)
        world.sent.clear()
        begin(world, "flush", "us")
        assert world.sent["Delta"] == sends
        world.run(20)


def test_a_refused_flush_is_reported_missing_with_the_reason() -> None:
    world = connected(("us", "eu"))
    world.regions["eu"].refuses = "the disk is full"
    ack(world, "us", 3)
    wait = begin(world, "flush", "us")
    world.run(20)
    assert wait.result == WaitResult(frozenset(), {"eu": "the disk is full"})


def test_a_planned_switch_repeats_nothing() -> None:
    world = connected(("us", "eu", "ap"))
    for region in world.regions.values():
        region.disk_ms = 5
    world.regions["us"].take(T, S, 7)
    ack(world, "us", 0, 1, 2, 4, 6)
    closing = begin(world, "flush", "us")
    world.run(250)
    assert closing.result is not None and closing.result.complete
    opening = begin(world, "barrier", "eu")
    world.run(250)
    assert opening.result is not None and opening.result.complete
    assert [entry.origin.entry for entry in world.regions["eu"].unacked(T, S)] == [3, 5, 7, 8, 9]


def test_answers_nobody_waits_for_are_ignored() -> None:
    world = connected(("us", "eu"))
    answers: list[PeerMessage] = []
    world.regions["us"].exchange.received("eu", BarrierDone(77, b"\x00", b""), answers.append, world.now_ms)
    assert answers == []
    assert world.regions["us"].exchange.counters.refused_here == 0


def test_a_request_about_an_unknown_topic_is_answered() -> None:
    world = connected(("us", "eu"))
    answers: list[PeerMessage] = []
    question = Barrier(5, "no topic", "none", "", (), wants_record=True)
    world.regions["us"].exchange.received("eu", question, answers.append, world.now_ms)
    assert answers == [BarrierDone(5)]
