# SPDX-License-Identifier: Apache-2.0
"""A job that seeks back repeatedly: old rewinds are merged once all regions agree on them, and none is lost."""

from __future__ import annotations

import pytest
from meridian_broker.positions import Progress, Stamp
from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.positions.reports import Report
from meridian_broker.topics.cursors import rewind_merging, rewinding, seeking
from meridian_broker.topics.errors import LimitReached
from meridian_broker.topics.retention import trimming
from meridian_broker.topics.subscriptions.subscription import Subscription
from support.worlds.topic_world import TopicWorld

TIMES = 15


async def opened() -> tuple[TopicWorld, Subscription]:
    world = TopicWorld()
    await world.open()
    await world.own(4)
    await world.settle()
    return world, world.subscription(0)


async def ack_all(world: TopicWorld, subscription: Subscription) -> None:
    last = world.entries[-1].place
    subscription.acknowledge_cumulative(world._nobody(subscription, last), last)
    await world.settle()
    assert world.topic.log.after(subscription.cursor.mark_delete) is None


async def seek_back(world: TopicWorld, subscription: Subscription, *, by_time: bool) -> None:
    """Publish some entries, acknowledge all, seek back over the last ones, and acknowledge them again."""
    for _ in range(3):
        world.scheduler.ms += 100
        await world.own(4)
    await world.settle()
    await ack_all(world, subscription)
    again = world.entries[-5:]
    if by_time:
        await seeking.seek_to_time(subscription.cursor, again[0].published_ms)
    else:
        await seeking.seek(subscription.cursor, again[0].place)
    assert world.topic.log.after(subscription.cursor.mark_delete) == again[0].place
    await ack_all(world, subscription)


@pytest.mark.parametrize("by_time", [False, True])
async def test_old_rewinds_are_merged_if_no_other_region_knows_the_subscription(by_time: bool) -> None:
    world, _ = await opened()
    subscription = world.topic.subscribing.create_subscription("own", EARLIEST, replicated=False)
    world.told.progress["own"] = Progress()
    for _ in range(TIMES):
        await seek_back(world, subscription, by_time=by_time)
        await trimming.trim(world.topic)
        assert subscription.cursor.progress.count_rewinds() < rewind_merging.WORTH
    await world._open_topic()
    await world.settle()
    again = world.topic.subscriptions["own"]
    assert again.cursor.progress == subscription.cursor.progress
    assert world.topic.log.after(again.cursor.mark_delete) is None


@pytest.mark.parametrize("by_time", [False, True])
async def test_if_other_regions_know_it_they_all_have_to_agree(by_time: bool) -> None:
    world, subscription = await opened()
    world.topic.regions = lambda: frozenset({"here", "there"})
    for _ in range(TIMES):
        await seek_back(world, subscription, by_time=by_time)
        await trimming.trim(world.topic)
        await world.settle()
    progress = subscription.cursor.progress
    assert progress.count_rewinds() == TIMES, "the other region has said nothing"
    mine = progress.reports["here"]
    assert mine.state == progress.state()
    report = progress.empty_delta()
    report.reports = {"there": Report(world.topic.clock.next(), mine.state ^ 1, mine.upto)}
    rewinding.merge(subscription.cursor, report, lambda _: None)
    assert progress.count_rewinds() == TIMES, "it knows other rewinds"
    report.reports = {"there": Report(world.topic.clock.next(), mine.state, mine.upto)}
    epoch = progress.epoch
    rewinding.merge(subscription.cursor, report, lambda _: None)
    await world.settle()
    assert (progress.count_rewinds(), progress.epoch) == (1, epoch)
    for entry in world.entries:
        assert progress.is_acked("here", entry.origin, entry.published_ms)
        assert world.told.progress["one"].is_acked("here", entry.origin, entry.published_ms)
    assert subscription.cursor.first_hand is not None
    assert subscription.cursor.first_hand.count_rewinds() == 1
    assert world.told.progress["one"].count_rewinds() == 1


async def test_a_region_that_is_told_keeps_its_consumers_and_merges_as_much() -> None:
    world, subscription = await opened()
    for _ in range(TIMES):
        await seek_back(world, subscription, by_time=True)
    resent = subscription.cursor.resent
    delta = subscription.cursor.progress.merge_rewinds({"here": world.entries[-1].origin})
    assert delta is not None
    rewinding.merge(subscription.cursor, delta, lambda _: None)
    await world.settle()
    assert subscription.cursor.resent is resent
    assert subscription.cursor.progress.count_rewinds() == 1
    assert subscription.cursor.first_hand is not None
    assert subscription.cursor.first_hand.count_rewinds() == 1
    before = subscription.cursor.first_hand.copy()
    await world._open_topic()
    assert world.topic.subscriptions["one"].cursor.first_hand == before


async def test_too_many_rewinds_are_refused_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seeking, "LAYERS_MAX", 3)
    world, subscription = await opened()
    for _ in range(3):
        await seek_back(world, subscription, by_time=True)
    with pytest.raises(LimitReached, match="has 3 unmerged rewinds"):
        await seeking.seek_to_time(subscription.cursor, 0)
    with pytest.raises(LimitReached, match="has 3 unmerged rewinds"):
        await seeking.seek(subscription.cursor, Position(0, 0))


async def test_regions_cut_off_with_as_many_rewinds_as_allowed_go_on_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each made as many rewinds as allowed. Together they are more: they are written, read at the next start, counted
    against a further seek, and merged once the regions agree."""
    monkeypatch.setattr(seeking, "LAYERS_MAX", 4)
    world, subscription = await opened()
    world.topic.regions = lambda: frozenset({"here", "there"})
    for _ in range(4):
        await seek_back(world, subscription, by_time=True)
    there, told = Progress(), list[str | None]()
    there.beginning = subscription.cursor.progress.beginning.bare()
    for number in range(4):
        there.rewind(
            Stamp(world.scheduler.ms + number, 0, "there"),
            {},
            publish_time_ms=world.entries[-1].published_ms + 1 + number,
        )
    rewinding.merge(subscription.cursor, Progress.decode(there.encode()), told.append)
    await world.settle()
    assert told == [None]
    await ack_all(world, subscription)
    assert subscription.cursor.progress.count_rewinds() > 4
    progress, first_hand = subscription.cursor.progress.copy(), subscription.cursor.first_hand
    await world._open_topic()
    world.topic.regions = lambda: frozenset({"here", "there"})
    await world.settle()
    subscription = world.topic.subscriptions["one"]
    assert (subscription.cursor.progress, subscription.cursor.first_hand) == (progress, first_hand)
    with pytest.raises(LimitReached, match="once all regions of the topic can be reached"):
        await seeking.seek_to_time(subscription.cursor, 0)
    world.topic.regions = lambda: frozenset({"here", "there"})
    await trimming.trim(world.topic)
    await world.settle()
    mine = subscription.cursor.progress.reports["here"]
    report = subscription.cursor.progress.empty_delta()
    report.reports = {"there": Report(world.topic.clock.next(), mine.state, mine.upto)}
    rewinding.merge(subscription.cursor, report, lambda _: None)
    await world.settle()
    assert subscription.cursor.progress.count_rewinds() == 1
    await seeking.seek_to_time(subscription.cursor, 0)


async def test_entries_only_dropped_are_not_acked_by_a_merge() -> None:
    """The entry was acked before the rewind. A region that joins the topic later gets it, and owes it."""
    rewinds = [step for first in range(rewind_merging.WORTH) for step in (("ack", 6), ("seek", 2 * first))]
    await TopicWorld().live([("own", 0)] * 4 + [*rewinds, ("expire", 0), ("trim", 0)])
