# SPDX-License-Identifier: Apache-2.0
"""When consumers may return: what this region reports as still missing, and that this ends once it has everything."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from meridian_broker.replication.progress.catching_up import CatchingUp
from meridian_broker.replication.progress.messages import ExchangeLimits
from support.worlds.exchange_world import ExchangeWorld

TOPICS = [f"t{number}" for number in range(12)]
INTERVAL_MS = 5000
COMPARED = "CatchingUp: comparing what eu acknowledged"


def world_of(limits: ExchangeLimits | None = None) -> ExchangeWorld:
    """Two regions that were cut off from each other while eu acknowledged in every topic."""
    world = ExchangeWorld(["us", "eu"], limits=limits)
    world.connect_all()
    for topic in TOPICS:
        world.produce("us", topic, 50)
        world.replicate_all(topic)
        world.regions["us"].subscribe(topic, "s")
    world.run(12_000)
    assert apart(world) == {}
    world.disconnect("us", "eu")
    world.disconnect("eu", "us")
    for topic in TOPICS:
        ack(world, "eu", topic, 0, 10)
    world.run(1000)
    return world


def ack(world: ExchangeWorld, region: str, topic: str, first: int, count: int) -> None:
    world.regions[region].ack(topic, "s", world.regions[region].topics[topic].entries[first : first + count])


def apart(world: ExchangeWorld, region: str = "us", other: str = "eu") -> dict[str, str]:
    return world.regions[region].exchange.apart(world.now_ms)[other]


def lacks(world: ExchangeWorld) -> bool:
    """Whether us would redeliver what eu acknowledged while there was no link."""
    us = world.regions["us"]
    return any(len(us.unacked(topic, "s")) > 40 for topic in us.topics)


def come_back(world: ExchangeWorld, meanwhile: Callable[[int], None] = lambda _: None) -> int:
    """Milliseconds until us reports that it lacks nothing."""
    for ms in range(0, 60_000, 10):
        if not apart(world):
            assert not lacks(world), "it reports so although it lacks something"
            return ms
        meanwhile(ms)
        world.run(10)
    raise AssertionError(f"still apart: {apart(world)}")


def test_a_region_is_in_sync_once_it_has_what_it_missed() -> None:
    world = world_of()
    world.connect_all()
    assert apart(world)[""] == COMPARED
    assert come_back(world) <= 2 * INTERVAL_MS
    assert come_back(world) == 0, "it stays so"


def test_a_region_catches_up_under_traffic_too() -> None:
    """The two regions' digests are never found equal."""
    world = world_of()
    world.connect_all()

    def meanwhile(ms: int) -> None:
        if ms % 100 == 0 and ms < 3900:
            for region, first in (("us", 10), ("eu", 30)):
                ack(world, region, TOPICS[ms // 100 % 12], first + ms // 1200, 1)

    assert come_back(world, meanwhile) <= 3 * INTERVAL_MS


def test_with_more_differences_than_it_can_record() -> None:
    world = world_of(ExchangeLimits(topics_apart=3, items_per_message=2, fetching=2))
    world.connect_all()
    come_back(world)


def test_a_region_that_shares_nothing_is_waited_for_at_most_two_rounds() -> None:
    world = ExchangeWorld(["us", "eu"])
    world.connect_all()
    assert apart(world)[""] == COMPARED
    assert come_back(world) <= 2 * INTERVAL_MS + 10


def test_where_only_one_of_the_two_can_dial() -> None:
    world = world_of()
    world.connect("us", "eu")
    come_back(world)


def test_a_topic_that_one_of_the_two_has_deleted_keeps_them_apart() -> None:
    world = world_of()
    world.connect_all()
    world.run(12_000)
    world.regions["eu"].delete_topic("t3")
    ack(world, "us", "t3", 20, 5)
    world.run(6000)
    assert list(apart(world)) == ["t3"]
    assert apart(world)["t3"].startswith("OtherIncarnation: t3 was last deleted: ")
    world.regions["us"].learn_deletion("t3", world.regions["eu"].topics["t3"].incarnation)
    world.run(12_000)
    assert apart(world) == {}


def test_a_broken_link_starts_over() -> None:
    world = world_of()
    world.connect_all()
    come_back(world)
    world.disconnect("us", "eu")
    world.connect("us", "eu")
    assert apart(world)[""] == COMPARED
    come_back(world)


events = st.sampled_from(["round", "differs", "same", "listed", "drained"])


@settings(max_examples=500)
@given(st.lists(st.tuples(events, st.integers(0, 3), st.integers(0, 4000)), max_size=40))
def test_no_difference_is_forgotten(happening: list[tuple[str, int, int]]) -> None:
    """In any order of events, it ends once all differences were found equal, or were listed and drained."""
    book, now, rounds = CatchingUp(most=10), 0, 0
    differing, listed = set[int](), set[int]()
    book.begin(now, INTERVAL_MS)
    was_over = False
    for what, topic, pause in happening:
        now += pause
        if what == "round":
            book.round(now)
            rounds += 1
        elif what == "differs":
            book.differs(str(topic))
            if not was_over:
                differing.add(topic)
        elif what == "same":
            book.same([str(topic)])
            differing.discard(topic)
        elif what == "listed":
            book.listed(str(topic))
            listed |= {topic} & differing
        else:
            book.drained()
            differing -= listed
            listed.clear()
        if book.is_over(now):
            assert not differing
            assert was_over or rounds >= 2 or (rounds == 0 and now >= 2 * INTERVAL_MS)
            was_over = True


@pytest.mark.parametrize("most", [0, 2])
def test_with_too_many_differences_it_waits_for_equal_digests(most: int) -> None:
    book = CatchingUp(most=most)
    book.begin(0, INTERVAL_MS)
    for number in range(3):
        book.differs(str(number))
    for number in range(3):
        book.same([str(number)])
    book.round(0)
    book.round(INTERVAL_MS)
    assert not book.is_over(INTERVAL_MS)
    book.equal()
    assert book.is_over(INTERVAL_MS)
