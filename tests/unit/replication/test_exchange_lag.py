# SPDX-License-Identifier: Apache-2.0
"""How far another region is behind, since when, and why: the data of status, stats and metrics."""

from __future__ import annotations

import pytest
from meridian_broker.replication.progress.lag import Lag, Why
from meridian_broker.replication.progress.messages import ExchangeLimits, PeerMessage
from meridian_broker.replication.progress.statuses import PeerStatus
from support.worlds.exchange_world import ExchangeWorld, S, T, connected


def world_of(*names: str, limits: ExchangeLimits | None = None) -> ExchangeWorld:
    return connected(names, limits=limits, entries=50)


def ack(world: ExchangeWorld, region: str, first: int, count: int) -> None:
    world.regions[region].ack(T, S, world.regions[region].topics[T].entries[first : first + count])


def seen(world: ExchangeWorld, region: str = "us", other: str = "eu") -> PeerStatus:
    statuses = world.regions[region].exchange.status(T, S, world.now_ms)
    return next(status for status in statuses if status.region == other)


def test_a_peer_is_behind_until_it_has_confirmed() -> None:
    world = world_of("us", "eu")
    world.regions["eu"].disk_ms = 300
    ack(world, "us", 0, 3)
    world.run(100)
    status = seen(world)
    assert (status.lag_entries, status.lag_ms, status.reason) == (3, 100, "")
    ack(world, "us", 3, 2)
    world.run(150)
    assert (seen(world).lag_entries, seen(world).lag_ms) == (5, 250)
    world.run(100)
    assert seen(world).lag_entries == 2, "the first three acks are confirmed"
    assert 200 < seen(world).lag_ms < 260, "and the age is that of the others"
    world.run(300)
    status = seen(world)
    assert (status.lag_entries, status.lag_ms, status.reason) == (0, 0, "")
    assert status.sent_ms_ago is not None and status.confirmed_ms_ago is not None
    assert status.confirmed_ms_ago < status.sent_ms_ago
    there = seen(world, "eu", "us").applied_ms_ago
    assert there is not None and status.confirmed_ms_ago < there <= status.sent_ms_ago


def test_the_lag_of_a_region_that_is_down_grows_and_says_since_when() -> None:
    world = world_of("us", "eu")
    world.disconnect("us", "eu")
    world.disconnect("eu", "us")
    world.run(1000)
    for number in range(4):
        ack(world, "us", 2 * number, 2)
        world.run(1000)
    status = seen(world)
    assert (status.lag_entries, status.lag_ms) == (8, 4000)
    assert (status.reason, status.for_ms) == (Why.LINK_DOWN, 5000)
    world.connect("us", "eu")
    assert seen(world).reason == Why.CATCHING_UP
    world.connect("eu", "us")
    world.run(12_000)
    status = seen(world)
    assert (status.lag_entries, status.lag_ms, status.reason) == (0, 0, "")


def test_lag_that_was_made_up_for_does_not_stay_on_a_topic_that_is_never_idle() -> None:
    """Digests of a topic with constant acks are hardly ever equal: a newer delta's confirmation is enough."""
    world = world_of("us", "eu")
    world.disconnect("us", "eu")
    ack(world, "us", 0, 5)
    world.run(500)
    world.connect("us", "eu")
    for number in range(5, 45):
        ack(world, "us", number, 1)
        ack(world, "eu", number - 5, 1)
        world.run(500)
    assert seen(world).lag_entries <= 1
    assert seen(world).lag_ms < 1000


def test_a_peer_that_does_not_answer_is_named() -> None:
    world = world_of("us", "eu")
    world.network.deaf.add(("us", "eu"))
    ack(world, "us", 0, 1)
    world.run(9_000)
    assert seen(world).lag_entries == 1
    world.network.deaf.add(("eu", "us"))
    world.run(12_000)
    status = seen(world)
    assert (status.reason, status.lag_entries) == (Why.NOT_CONFIRMED, 1)
    assert status.lag_ms == 21_000
    world.network.deaf.clear()
    world.run(20_000)
    assert (seen(world).lag_entries, seen(world).reason) == (0, "")


def test_what_a_peer_refuses_counts_and_is_reported_with_its_reason() -> None:
    world = world_of("us", "eu")
    world.regions["eu"].refuses = "the disk is full"
    ack(world, "us", 0, 2)
    world.run(2000)
    ack(world, "us", 2, 1)
    world.run(2000)
    status = seen(world)
    assert (status.lag_entries, status.reason, status.detail) == (3, Why.REFUSED, "the disk is full")
    assert status.lag_ms == 4000 and status.for_ms is not None and status.for_ms > 3900
    world.regions["eu"].refuses = ""
    world.run(20_000)
    assert (seen(world).lag_entries, seen(world).reason) == (0, "")


def test_a_change_without_entries_lags_in_time() -> None:
    world = world_of("us", "eu")
    ack(world, "us", 0, 4)
    world.run(100)
    world.disconnect("us", "eu")
    world.regions["us"].rewind(T, S, world.regions["us"].topics[T].entries[1])
    world.run(700)
    assert (seen(world).lag_entries, seen(world).lag_ms) == (0, 700)


def test_the_sum_over_all_subscriptions_of_a_topic() -> None:
    world = world_of("us", "eu", "ap")
    world.regions["us"].subscribe(T, "other")
    world.run(100)
    world.disconnect("us", "eu")
    world.disconnect("eu", "us")
    ack(world, "us", 0, 2)
    world.run(300)
    world.regions["us"].ack(T, "other", world.regions["us"].topics[T].entries[:3])
    world.run(300)
    assert world.regions["us"].exchange.lags(world.now_ms) == {(T, "eu"): (5, 600)}


def test_a_deleted_topic_is_forgotten() -> None:
    world = world_of("us", "eu")
    world.disconnect("us", "eu")
    ack(world, "us", 0, 2)
    world.run(100)
    world.regions["us"].delete_topic(T)
    world.regions["eu"].learn_deletion(T, world.regions["us"].topics[T].incarnation)
    world.connect("us", "eu")
    world.run(12_000)
    assert world.regions["us"].exchange.lags(world.now_ms) == {}


@pytest.mark.parametrize("most", [3, 10])
def test_records_of_lag_are_bounded(most: int) -> None:
    lag = Lag(most)
    for number in range(20):
        lag.of((T, str(number))).sent_ms = number
    assert len(lag) <= most
    for number in range(20):
        lag.missed((T, str(number)), 1, number)
    assert len(lag) == most
    lag.same_topic(T)
    assert list(lag.behind()) == []


def test_every_kind_of_message_counts_as_a_sign_of_life() -> None:
    """A region that sends digests and confirms no delta is catching up, not silent."""
    world = world_of("us", "eu")

    def lose(source: str, target: str, message: PeerMessage) -> None:
        del source, target, message

    world.on_message = lose
    world.regions["eu"].refuses = "not yet"
    ack(world, "us", 0, 1)
    world.run(20_000)
    assert seen(world).reason == Why.REFUSED


def test_the_lag_includes_what_a_region_lacked_before_a_restart() -> None:
    world = world_of("us", "eu")
    world.crash("us")
    us, now = world.regions["us"].exchange, world.now_ms
    us.was_away("eu", now - 5000)
    assert us.behind_for(now) == {"eu": 5000}
    us.was_behind("eu", (T, S), 7, now - 4000)
    us.was_behind("eu", (T, S), 7, now - 4000)  # opened again
    ack(world, "us", 0, 2)
    status = seen(world)
    assert (status.lag_entries, status.lag_ms) == (9, 4000)
    assert (status.reason, status.for_ms) == (Why.LINK_DOWN, 5000)
    world.connect_all()
    world.run(12_000)
    status = seen(world)
    assert (status.lag_entries, status.lag_ms, status.reason) == (0, 0, "")
    assert us.behind_for(world.now_ms) == {}
    us.was_behind("eu", (T, S), 7, now - 4000)
    assert seen(world).lag_entries == 0, "a region that is up is compared with"


def test_a_region_may_lack_something_since_the_first_change_that_it_did_not_confirm() -> None:
    world = world_of("us", "eu")
    us = world.regions["us"].exchange
    assert us.behind_for(world.now_ms) == {}
    world.regions["eu"].disk_ms = 10_000
    ack(world, "us", 0, 2)
    world.run(700)
    world.disconnect("us", "eu")
    world.run(300)
    assert us.behind_for(world.now_ms) == {"eu": 1000}
    world.connect("us", "eu")
    world.run(10)
    assert us.behind_for(world.now_ms) == {"eu": 1010}, "it is back, and still lacks it"
    world.regions["eu"].disk_ms = 0
    world.run(30_000)
    assert us.behind_for(world.now_ms) == {}


def test_a_region_that_caught_up_between_checks_is_behind_only_since_then() -> None:
    """Checks run once a second: between two of them it was up, and lacked nothing."""
    world = world_of("us", "eu")
    us = world.regions["us"].exchange
    world.disconnect("us", "eu")
    world.run(5000)
    assert us.behind_for(world.now_ms) == {"eu": 5000}
    world.connect("us", "eu")
    world.run(500)
    world.disconnect("us", "eu")
    world.run(300)
    assert us.behind_for(world.now_ms) == {"eu": 300}
