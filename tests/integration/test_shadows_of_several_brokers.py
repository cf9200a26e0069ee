# SPDX-License-Identifier: Apache-2.0
"""Shadows whose source another broker of the region serves: they read it from the storage that both brokers share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest
from meridian_broker.ledgers.view import LogView
from meridian_broker.metadata import keys
from meridian_broker.metadata.shadow_topics import HOLDS, SOURCE
from meridian_broker.positions import Stamp
from meridian_broker.positions.position import Position
from meridian_broker.topics.errors import TopicInUse
from meridian_broker.topics.lifecycle import termination
from meridian_broker.topics.retention import trimming
from meridian_broker.topics.service import removal, shadow_topics
from meridian_broker.topics.topic import Topic
from meridian_broker.wire.pulsar.topic_name import TopicName, parse
from support.contracts.metadata_contract import wait_until
from support.worlds.brokers_of_a_region import REGION, ServingBroker, Two, acknowledge, stored, two_serving
from support.worlds.shadows import all_of, subscribe

SOURCE_NAME = parse("orders")


class Views(NamedTuple):
    """Two brokers: the first serves the source, the second the shadows of these names."""

    a: ServingBroker
    b: ServingBroker
    both: Two
    view: TopicName
    other: TopicName


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[Views]:
    async with two_serving(tmp_path, SOURCE_NAME) as both:
        a, b = both.a, both.b
        bundle = await a.bundle(SOURCE_NAME)
        names = [parse(f"view-{number}") for number in range(40)]
        view, other = [name for name in names if await a.bundle(name) != bundle][:2]
        for name in (view, other):
            if b.owner.term_of(name) is None:
                await b.owner.acquire(await b.bundle(name))
        yield Views(a, b, both, view, other)


async def source_with(two: Views, count: int) -> tuple[Topic, list[Position]]:
    source = await two.a.open(SOURCE_NAME)
    return source, await stored(source, *(b"%d" % number for number in range(count)))


async def shadow_of(two: Views, name: TopicName | None = None, *, holds: bool = True) -> Topic:
    """A shadow created by the source's broker, and open at the other."""
    name = name or two.view
    having = {SOURCE: str(SOURCE_NAME), HOLDS: str(holds).lower()}
    await shadow_topics.create(two.a.service.opener, name, None, having, listed=True)
    return await opened(two, name)


async def opened(two: Views, name: TopicName | None = None) -> Topic:
    return await two.b.service.opener.topic(name or two.view, create=False)


async def reaches(topic: Topic, places: list[Position]) -> None:
    await wait_until(lambda: topic.log.last_confirmed == places[-1])


async def test_it_has_the_sources_messages_even_of_the_ledger_being_written(two: Views) -> None:
    source, places = await source_with(two, 45)  # in three ledgers, the last one open
    view = await shadow_of(two)
    assert await all_of(view) == places
    await subscribe(view)
    cursor = view.subscriptions["s"].cursor
    assert cursor.backlog() == 45
    places += await stored(source, b"more", b"and more")
    await reaches(view, places)
    for _ in range(5):  # across several ledgers, each sealed while it is followed
        places += await stored(source, *(b"%d" % number for number in range(17)))
    await reaches(view, places)
    assert await all_of(view) == places == await all_of(source)
    assert cursor.backlog() == len(places)
    acknowledge(view, "s", places[:-3])
    await wait_until(lambda: cursor.backlog() == 3)
    assert [place for place in places if cursor.is_owed(REGION, place)] == places[-3:]
    assert view.metadata is not None and view.metadata.record.ledgers == ()


async def test_shadows_of_one_source_read_each_entry_once(two: Views) -> None:
    source, places = await source_with(two, 3)
    views = [await shadow_of(two), await shadow_of(two, two.other)]
    before = two.both.ledgers.reads
    for number in range(10):
        places += await stored(source, b"%d" % number)
        await reaches(views[0], places)
        await reaches(views[1], places)
    assert two.both.ledgers.reads - before <= 10
    assert [await all_of(view) for view in views] == [places, places]
    assert two.both.ledgers.reads - before <= 10  # from memory


async def test_the_source_keeps_what_a_shadow_elsewhere_needs(two: Views) -> None:
    source, places = await source_with(two, 65)  # in four ledgers of 20 entries
    view = await shadow_of(two)
    await subscribe(view)
    await reaches(view, places)
    for _ in range(3):
        await trimming.trim(source)
        await trimming.trim(view)
    assert await all_of(source) == places == await all_of(view)
    acknowledge(view, "s", places[:45])
    await trimmed_to(source, view, places[40:])
    assert view.subscriptions["s"].cursor.backlog() == 20
    assert view_of(view).skipped_entries == 0
    acknowledge(view, "s", places[45:])
    await trimmed_to(source, view, places[60:])


async def trimmed_to(source: Topic, view: Topic, left: list[Position]) -> None:
    """Run the rounds of both brokers until exactly that is stored."""
    async with asyncio.timeout(30):
        while await all_of(source) != left or await all_of(view) != left:
            await trimming.trim(view)
            await trimming.trim(source)
            await asyncio.sleep(0.01)


def view_of(topic: Topic) -> LogView:
    assert isinstance(topic.log, LogView)
    return topic.log


async def test_a_shadow_without_a_hold_skips_what_the_source_deletes_and_counts_it(two: Views) -> None:
    source, places = await source_with(two, 45)
    view = await shadow_of(two, holds=False)
    await subscribe(view)
    acknowledge(view, "s", places[:7])
    await trimmed_to(source, view, places[40:])
    assert view_of(view).skipped_entries == 33
    assert view.subscriptions["s"].cursor.backlog() == 5


async def test_nothing_is_deleted_before_each_shadow_has_said_what_it_needs(two: Views) -> None:
    source, places = await source_with(two, 45)
    view = await shadow_of(two)
    await subscribe(view)
    await two.b.service.opener.drop(view)
    view.fence("its broker is away", for_good=True)
    for _ in range(3):
        await trimming.trim(source)
    assert await all_of(source) == places
    view = await opened(two)
    acknowledge(view, "s", places)
    await trimmed_to(source, view, places[40:])


async def test_an_answer_to_an_earlier_question_does_not_count(two: Views) -> None:
    source, places = await source_with(two, 45)
    await subscribe(source)
    view = await shadow_of(two)
    acknowledge(source, "s", places[:20])
    await trimmed_to(source, view, places[20:])  # the shadow has no subscription, so it needs nothing
    await subscribe(view)
    await two.b.service.opener.drop(view)
    view.fence("its broker is away", for_good=True)
    acknowledge(source, "s", places[20:])
    await wait_until(lambda: source.subscriptions["s"].cursor.mark_delete == places[-1])
    await trimming.trim(source)
    assert await all_of(source) == places[20:]


async def test_nothing_is_deleted_under_a_shadow_unknown_to_the_sources_broker(two: Views) -> None:
    source, places = await source_with(two, 45)
    view = await shadow_of(two)
    await subscribe(view)
    two.a.catalog.shadows._forget(str(two.view))  # another broker's writes are seen later
    for _ in range(3):
        await trimming.trim(source)
    assert await all_of(source) == places == await all_of(view)
    two.a.catalog.shadows._forget(str(two.view))
    await trimming.truncate(source)
    await wait_until(lambda: view.log.entries == 0)
    assert view_of(view).skipped_entries == 45


async def test_entries_far_behind_are_not_read_ahead_if_every_shadow_says_so(two: Views) -> None:
    """Both shadows are followed together; while neither is, two ledgers fill up."""
    source, places = await source_with(two, 3)
    views = [await shadow_of(two), await shadow_of(two, two.other)]
    for view in views:
        await subscribe(view)
    opener = two.b.service.opener
    for limits, resets in (((10, 0), 0), ((10, 12), 1)):
        for view, entries in zip(views, limits, strict=True):
            await shadow_topics.change(opener, parse(view.name), reset_behind=entries)
        followed = opener._followed._sources[str(SOURCE_NAME)]
        async with followed._turn:
            for _ in range(3):
                places += await stored(source, *(b"%d" % number for number in range(20)))
        for view in views:
            await reaches(view, places)
            assert (view_of(view).resets > 0) == bool(resets)
            assert await all_of(view) == places
            assert view.subscriptions["s"].cursor.backlog() == len(places)


async def test_truncation_and_termination_of_the_source_apply_to_it(two: Views) -> None:
    source, places = await source_with(two, 25)
    view = await shadow_of(two)
    await subscribe(view)
    await trimming.truncate(source)
    assert await all_of(source) == []
    await wait_until(lambda: view.log.entries == 0)
    assert view.subscriptions["s"].cursor.backlog() == 0 and view_of(view).skipped_entries == 25
    places = await stored(source, b"last")
    end = await termination.terminate(source)
    await wait_until(lambda: view.terminated == end)
    assert await all_of(view) == places and view.is_ended
    await two.b.service.opener.drop(view)
    view.fence("closed", for_good=True)
    assert (await opened(two)).terminated == end


async def test_it_follows_its_source_to_another_broker_and_reads_it_directly_there(two: Views) -> None:
    source, places = await source_with(two, 25)
    view = await shadow_of(two)
    await subscribe(view)
    acknowledge(view, "s", places[:5])
    await two.a.give_up(SOURCE_NAME, two.b)
    source = await two.b.open(SOURCE_NAME)
    await wait_until(lambda: two.b.service.topics.get(str(two.view)) not in (None, view))
    view = await opened(two)
    assert source.shadows.open == {str(two.view): view}
    places += await stored(source, b"more")
    assert await all_of(view) == places and view.subscriptions["s"].cursor.backlog() == 21
    await two.b.give_up(SOURCE_NAME, two.a)
    source = await two.a.open(SOURCE_NAME)
    places += await stored(source, b"and more")
    await two.b.load()
    view = two.b.service.topics[str(two.view)]
    assert view.failure is None
    await reaches(view, places)
    assert await all_of(view) == places and view.subscriptions["s"].cursor.backlog() == 22
    acknowledge(view, "s", places[5:])
    await trimmed_to(source, view, places[26:])


async def test_it_resumes_where_it_was_when_it_moves_itself(two: Views) -> None:
    source, places = await source_with(two, 25)
    view = await shadow_of(two)
    await subscribe(view)
    acknowledge(view, "s", places[:5])
    await trimming.trim(source)
    await two.b.give_up(two.view, two.a)
    view = await two.a.service.opener.topic(two.view, create=False)
    assert source.shadows.open == {str(two.view): view}
    assert view.subscriptions["s"].cursor.backlog() == 20
    await two.a.give_up(two.view, two.b)
    assert (await opened(two)).subscriptions["s"].cursor.backlog() == 20


async def test_a_shadow_loses_nothing_when_a_writer_dies_without_sealing_its_ledger(two: Views) -> None:
    source, places = await source_with(two, 5)
    view = await shadow_of(two)
    await subscribe(view)
    two.a.miss_everything()
    lease = two.a.owner._membership.lease
    assert lease is not None
    await lease.revoke()
    bundle = await two.a.bundle(SOURCE_NAME)
    await wait_until(lambda: bundle not in two.b.owner.view.owners)
    places += await stored(source, b"not known to be fenced yet")
    await two.b.owner.acquire(bundle)
    source = await two.b.open(SOURCE_NAME)
    places += await stored(source, b"of the next owner")
    view = await opened(two)
    await wait_until(lambda: two.b.service.topics.get(str(two.view)) is not None)
    view = await opened(two)
    assert await all_of(view) == await all_of(source) == places
    assert view.subscriptions["s"].cursor.backlog() == 7


async def test_it_waits_for_its_source_and_reads_its_next_incarnation(two: Views) -> None:
    _, old = await source_with(two, 12)
    view = await shadow_of(two)
    await subscribe(view)
    with pytest.raises(TopicInUse, match=str(two.view)):
        await removal.delete(two.a.service.opener, SOURCE_NAME, force=True)
    # Another region, which does not know of the shadow, deletes it.
    stamp = Stamp(two.a.catalog._access.clock.next(None).time_ms, 0, "elsewhere")
    await removal.delete_as_elsewhere(two.a.service.opener, SOURCE_NAME, stamp, partitioned=False)
    await wait_until(lambda: two.b.service.topics.get(str(two.view)) not in (None, view))
    view = await opened(two)
    assert not view_of(view).is_attached and await all_of(view) == []
    _, new = await source_with(two, 7)
    assert min(new) > max(old), "no id of the source's earlier incarnation is reused (R1)"

    def is_there() -> bool:
        found = two.b.service.topics.get(str(two.view))
        return found is not None and found.failure is None and found.log.last_confirmed == new[-1]

    await wait_until(is_there)
    view = await opened(two)
    assert view_of(view).is_attached and await all_of(view) == new
    assert view.subscriptions["s"].cursor.backlog() == 7


async def test_a_deleted_shadow_leaves_nothing_behind(two: Views) -> None:
    source, places = await source_with(two, 45)
    view = await shadow_of(two)
    await subscribe(view)
    await trimming.trim(source)
    await removal.delete(two.b.service.opener, two.view, force=True)
    await wait_until(lambda: two.a.catalog.shadows.all() == [])
    assert await two.both.metadata.scan(keys.SHADOWS + "/") == []
    assert await two.both.metadata.scan(keys.SHADOW_NEEDS + "/") == []
    await trimming.trim(source)
    assert await all_of(source) == places[40:]
    await removal.delete(two.a.service.opener, SOURCE_NAME, force=False)


async def test_partitions_of_a_shadow_are_served_by_the_brokers_that_own_them(two: Views) -> None:
    name, of = parse("parted"), parse("parted-view")
    await two.a.catalog.partitioned.create(name, 6, {})
    await shadow_topics.create(two.a.service.opener, of, None, {SOURCE: str(name)}, listed=True)
    crossed = 0
    for number in range(6):
        opener: dict[str, ServingBroker] = {}
        for one in (name.with_partition(number), of.with_partition(number)):
            for broker in two[:2]:
                if broker.owner.term_of(one) is None and await broker.bundle(one) not in broker.owner.view.owners:
                    await broker.owner.acquire(await broker.bundle(one))
                if broker.owner.term_of(one) is not None:
                    opener[str(one)] = broker
                    break
        source = await opener[str(name.with_partition(number))].open(name.with_partition(number))
        places = await stored(source, b"1", b"2")
        view_name = of.with_partition(number)
        view = await opener[str(view_name)].service.opener.topic(view_name, create=True)
        await reaches(view, places)
        assert await all_of(view) == places and view.shadow_of == source.name
        crossed += len(set(opener.values())) > 1
    assert crossed
