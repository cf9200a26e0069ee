# SPDX-License-Identifier: Apache-2.0
"""Deltas: when they are sent, what they cost, how many there may be, and what becomes of bad ones (R13, R18, R19)."""

from __future__ import annotations

from functools import partial

import pytest
from meridian_broker.positions.clock import ZERO
from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.positions.progress import Progress
from meridian_broker.replication.progress.lag import Why
from meridian_broker.replication.progress.messages import (
    OTHER_INCARNATION,
    UNDECODABLE,
    UNKNOWN_SUBSCRIPTION,
    Delta,
    DeltaAck,
    DeltaItem,
    ExchangeLimits,
    Hello,
    PeerMessage,
    Refusal,
)
from support.worlds.exchange_world import ExchangeWorld, S, T, connected


def ack(world: ExchangeWorld, region: str, number: int) -> None:
    world.regions[region].ack(T, S, [world.regions[region].topics[T].entries[number]])


def delta_of(entry: int) -> Progress:
    progress = Progress()
    progress.ack(ZERO, "us", Position(1, entry - 1) if entry else EARLIEST, Position(1, entry))
    return progress


@pytest.mark.parametrize("regions", [["us", "eu"], ["us", "eu", "ap"], ["us", "eu", "ap", "sa", "af"]])
def test_an_ack_costs_one_message_per_other_region(regions: list[str]) -> None:
    world = connected(regions)
    for number, region in enumerate(regions):
        world.sent.clear()
        ack(world, region, number)
        world.run(50)
        assert world.sent == {"Delta": len(regions) - 1, "DeltaAck": len(regions) - 1}
    assert sum(region.exchange.counters.items_passed_on for region in world.regions.values()) == 0


def test_acks_of_one_turn_are_one_message_even_for_many_subscriptions() -> None:
    world = connected(("us", "eu"))
    here = world.regions["us"]
    for name in ("a", "b", "c"):
        here.subscribe(T, name)
    world.run(50)
    world.sent.clear()
    for name in ("a", "b", "c", S):
        for number in (0, 3, 7):
            here.ack(T, name, [here.topics[T].entries[number]])
    world.run(50)
    assert world.sent == {"Delta": 1, "DeltaAck": 1}


def test_an_ack_is_sent_at_once_if_none_is_in_flight() -> None:
    world = connected(("us", "eu"))
    heard = world.listen()
    start = world.now_ms
    ack(world, "us", 0)
    assert world.regions["us"].exchange.next_deadline() == start, "the shell is asked for a tick, now"
    world.run(50)
    assert heard[0][0] == start + 1


def test_acks_are_joined_while_one_is_in_flight_for_at_most_ten_ms() -> None:
    world = connected(("us", "eu"))
    world.network.latency_ms = 100
    heard = world.listen()
    start = world.now_ms
    for number in (9, 7, 5, 3, 1):
        ack(world, "us", number)
        world.run(6)
    world.run(500)
    times = [at - start - 100 for at, _, _, message in heard if isinstance(message, Delta)]
    assert times == [0, 16, 28], "the first at once, then at 6 + 10, 18 + 10"
    assert world.regions["eu"].progress(T, S) == world.regions["us"].progress(T, S)


def test_waiting_deltas_are_sent_before_anybody_is_told_that_it_is_done() -> None:
    world = connected(("us", "eu"))
    world.network.latency_ms = 100
    heard = world.listen()
    start = world.now_ms
    for number in (0, 1):
        ack(world, "us", number)
        world.run(1)
    world.regions["us"].exchange.send_pending(world.now_ms)
    world.run(500)
    assert [at - start - 100 for at, _, _, message in heard if isinstance(message, Delta)] == [0, 2], "not at 11"


def test_waiting_deltas_are_sent_once_the_one_in_flight_is_confirmed() -> None:
    world = connected(("us", "eu"))
    world.network.latency_ms = 2
    ack(world, "us", 0)
    world.run(1)
    ack(world, "us", 1)
    world.run(4)
    assert world.sent["Delta"] == 2, "after 4 ms of round trip, not after 10"


def test_a_full_window_merges_deltas_and_forgets_nothing() -> None:
    world = connected(("us", "eu"), limits=ExchangeLimits(in_flight=2))
    world.network.latency_ms = 400
    for number in range(10):
        ack(world, "us", number)
        world.run(30)
    assert world.sent["Delta"] == 2
    world.run(2000)
    assert world.sent["Delta"] == 3
    assert world.regions["eu"].unacked(T, S) == []


def test_a_full_queue_is_left_to_digests() -> None:
    world = connected(("us", "eu"), limits=ExchangeLimits(pending_subscriptions=1))
    here = world.regions["us"]
    here.subscribe(T, "other")
    world.run(50)
    for name in (S, "other"):
        here.ack(T, name, here.topics[T].entries)
    world.run(50)
    assert world.regions["eu"].unacked(T, "other")
    world.run(6000)
    assert not world.regions["eu"].unacked(T, "other")


def test_a_large_delta_is_sent_in_several_messages() -> None:
    world = connected(("us", "eu"), limits=ExchangeLimits(message_bytes=30))
    here = world.regions["us"]
    for name in "abcdef":
        here.subscribe(T, name)
    world.run(100)
    world.sent.clear()
    for name in "abcdef":
        here.ack(T, name, here.topics[T].entries[1::2])
    world.run(50)
    assert world.sent["Delta"] == 6
    assert world.regions["eu"].unacked(T, "f") == here.unacked(T, "f")


def test_a_delta_that_fits_no_message_is_reported_and_does_not_stop_the_rest() -> None:
    world = connected(("us", "eu"), limits=ExchangeLimits(item_bytes=20))
    here = world.regions["us"]
    here.ack(T, S, here.topics[T].entries[1::2])
    here.subscribe(T, "x")
    world.run(50)
    (status,) = here.exchange.status(T, S, world.now_ms)
    assert status.reason == Why.TOO_LARGE
    assert "does not fit" in status.detail
    assert world.regions["eu"].progress(T, "x") is not None


def test_a_record_that_fits_no_message_is_reported_and_does_not_stop_the_rest() -> None:
    world = connected(("us", "eu"), limits=ExchangeLimits(record_bytes=1000))
    here = world.regions["us"]
    here.subscribe(T, "large" * 200)
    here.ack(T, "large" * 200, here.topics[T].entries[:2])
    here.ack(T, S, here.topics[T].entries[:2])
    world.run(6000)
    (status,) = here.exchange.status(T, "large" * 200, world.now_ms)
    assert status.reason == Why.TOO_LARGE
    assert "its properties are too large" in status.detail
    assert world.regions["eu"].unacked(T, S) == here.unacked(T, S)


class Wire:
    """One region's exchange, and a peer played by the test."""

    def __init__(self) -> None:
        self.world = ExchangeWorld(["us", "eu"])
        self.region = self.world.regions["us"]
        self.world.produce("us", T, 10)
        self.region.subscribe(T, S)
        self.answers: list[PeerMessage] = []
        self.sent: list[PeerMessage] = []

    def say(self, message: PeerMessage) -> PeerMessage:
        self.answers.clear()
        self.region.exchange.received("eu", message, self.answers.append, self.world.now_ms)
        (answer,) = self.answers
        return answer

    def connect(self) -> None:
        self.region.exchange.connected("eu", self.sent.append, self.world.now_ms)
        self.sent.clear()


def test_a_delta_is_confirmed_only_once_durable() -> None:
    wire = Wire()
    wire.region.disk_ms = 20
    delta = Delta(1, (DeltaItem(T, S, "", delta_of(0).encode()), DeltaItem(T, S, "", delta_of(1).encode())))
    wire.region.exchange.received("eu", delta, wire.answers.append, wire.world.now_ms)
    wire.world.run(19)
    assert wire.answers == []
    wire.world.run(1)
    assert wire.answers == [DeltaAck(1)]


def test_bad_items_are_refused_one_by_one_and_counted() -> None:
    wire = Wire()
    good = delta_of(2).encode()
    answer = wire.say(
        Delta(
            7,
            (
                DeltaItem(T, S, "", b"\x01garbage"),
                DeltaItem(T, S, "", b""),
                DeltaItem(T, "unheard-of", "", good),
                DeltaItem(T, S, "5.0@eu", good),
                DeltaItem(T, S, "", good),
            ),
        )
    )
    assert isinstance(answer, DeltaAck) and answer.number == 7
    assert [(r.index, r.code) for r in answer.refusals] == [
        (0, UNDECODABLE),
        (1, UNDECODABLE),
        (2, UNKNOWN_SUBSCRIPTION),
        (3, OTHER_INCARNATION),
    ]
    assert wire.region.exchange.counters.refused_here == 4
    assert wire.region.progress(T, S) == delta_of(2)


def test_what_the_host_cannot_accept_is_refused_and_not_raised() -> None:
    wire = Wire()
    good = delta_of(2).encode()

    def no_name(topic: str) -> frozenset[str]:
        if topic == "":
            raise ValueError("a topic has a name")
        return frozenset(wire.world.names)

    def no_room(*arguments: object) -> None:
        raise ValueError("too many rewinds")

    wire.region.regions_of = no_name  # type: ignore[method-assign]
    wire.region.merge = no_room  # type: ignore[method-assign, assignment]
    answer = wire.say(Delta(1, (DeltaItem("", S, "", good), DeltaItem(T, S, "", good))))
    assert isinstance(answer, DeltaAck)
    assert [(r.code, r.reason) for r in answer.refusals] == [
        (UNDECODABLE, "a topic has a name"),
        ("Refused", "too many rewinds"),
    ]


def test_a_region_outside_the_topic_is_refused() -> None:
    wire = Wire()
    wire.world.regions_of[T] = frozenset({"us", "ap"})
    answer = wire.say(Delta(1, (DeltaItem(T, S, "", delta_of(0).encode()),)))
    assert isinstance(answer, DeltaAck)
    assert [refusal.code for refusal in answer.refusals] == ["NotARegionOfTheTopic"]
    wire.connect()
    wire.region.ack(T, S, wire.region.topics[T].entries[:1])
    wire.region.exchange.tick(wire.world.now_ms)
    assert wire.sent == [], "and it is told nothing about the topic"


def test_what_was_passed_on_is_not_passed_on_again() -> None:
    for passed_on in (False, True):
        wire = Wire()
        wire.connect()
        item = DeltaItem(T, S, "", delta_of(0).encode(), unreached=("eu",), passed_on=passed_on)
        wire.region.exchange.add_peer("ap")
        wire.world.regions_of[T] = frozenset({"us", "eu", "ap"})
        wire.region.exchange.received("ap", Delta(1, (item,)), wire.answers.append, wire.world.now_ms)
        assert [message.items[0].passed_on for message in wire.sent if isinstance(message, Delta)] == (
            [] if passed_on else [True]
        )


def test_an_unknown_subscription_is_sent_whole_with_its_record() -> None:
    wire = Wire()
    wire.connect()
    wire.region.ack(T, S, wire.region.topics[T].entries[:3])
    wire.region.exchange.tick(wire.world.now_ms)
    (first,) = wire.sent
    assert isinstance(first, Delta) and first.items[0].record is None
    refusal = DeltaAck(first.number, (Refusal(0, UNKNOWN_SUBSCRIPTION, "not here"),))
    wire.region.exchange.received("eu", refusal, wire.answers.append, wire.world.now_ms)
    second = wire.sent[-1]
    assert isinstance(second, Delta) and second.number == first.number + 1
    assert second.items[0].record == wire.region.record(T, S)
    assert Progress.decode(second.items[0].progress) == wire.region.progress(T, S)


def test_answers_without_a_request_change_nothing() -> None:
    wire = Wire()
    wire.connect()
    wire.region.ack(T, S, wire.region.topics[T].entries[:1])
    wire.region.exchange.tick(wire.world.now_ms)
    for message in (DeltaAck(99), DeltaAck(1, (Refusal(5, "Odd", "?"),)), DeltaAck(1)):
        wire.region.exchange.received("eu", message, wire.answers.append, wire.world.now_ms)
    (status,) = wire.region.exchange.status(T, S, wire.world.now_ms)
    assert (status.last_applied, status.pending, status.reason) == (1, 0, Why.CATCHING_UP)


def test_a_peer_of_too_old_a_version_is_left_alone() -> None:
    wire = Wire()
    wire.connect()
    wire.say(Hello(0, "eu", 1))
    wire.region.ack(T, S, wire.region.topics[T].entries[:1])
    wire.region.exchange.tick(wire.world.now_ms)
    assert wire.sent == []
    (status,) = wire.region.exchange.status(T, S, wire.world.now_ms)
    assert not status.connected and status.reason == Why.OTHER_VERSION and "version 0" in status.detail


def test_a_region_that_is_no_peer_is_ignored() -> None:
    wire = Wire()
    wire.region.exchange.remove_peer("eu")
    wire.region.exchange.received("eu", Delta(1, ()), wire.answers.append, 0)
    assert wire.answers == []
    with pytest.raises(KeyError):
        wire.region.exchange.connected("eu", wire.sent.append, 0)


def test_an_old_delta_is_given_up_and_made_up_for() -> None:
    world = connected(("us", "eu"))
    world.network.deaf.add(("us", "eu"))
    ack(world, "us", 0)
    world.run(5100)
    assert world.regions["us"].exchange.counters.given_up == 1
    world.network.deaf.clear()
    world.run(6000)
    assert world.regions["eu"].progress(T, S) == world.regions["us"].progress(T, S)


def test_all_ids_of_an_ack_command_are_sent_in_one_delta() -> None:
    world = connected(("us", "eu"))
    here, heard = world.regions["us"], world.listen()
    here.ack(T, S, [here.topics[T].entries[number] for number in (2, 5, 9)])
    world.run(10)
    (delta,) = [message for *_, message in heard if isinstance(message, Delta)]
    assert Progress.decode(delta.items[0].progress) == here.progress(T, S)


def test_a_delta_given_to_two_peers_is_not_shared_while_it_waits() -> None:
    """Merging for one peer must not change what another peer is still to get."""
    world = connected(("us", "eu", "ap"))
    world.network.latency_ms = 5
    here = world.regions["us"]
    ack(world, "us", 9)
    world.run(1)
    delta = delta_of(4)
    before = delta.encode()
    durable = partial(here.when_durable, T)
    here.exchange.local_ack(T, S, delta, world.now_ms, durable)
    here.exchange.local_ack(T, S, delta_of(6), world.now_ms, durable)
    assert delta.encode() == before
