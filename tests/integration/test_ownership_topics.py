# SPDX-License-Identifier: Apache-2.0
"""Topics of a region with several brokers: one broker serves a topic, and nothing is lost when another takes over."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from meridian_broker.ledgers.scheduling import next_turn
from meridian_broker.ledgers.store import LedgerError
from meridian_broker.metadata.shadow_topics import SOURCE
from meridian_broker.metadata.store import MetadataUnavailable, VersionConflict
from meridian_broker.metadata.topic_listing import Listing
from meridian_broker.ownership import paths
from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.topics.directory import following
from meridian_broker.topics.directory.patterns import TopicPattern
from meridian_broker.topics.directory.watching import Watcher
from meridian_broker.topics.errors import TopicElsewhere, TopicFenced
from meridian_broker.topics.lifecycle import opening
from meridian_broker.topics.lifecycle.parts import BrokerParts
from meridian_broker.topics.nonpersistent.topic import NonPersistentTopic
from meridian_broker.topics.service import owned_topics, removal, shadow_topics
from meridian_broker.topics.topic import Topic
from meridian_broker.wire.pulsar.topic_name import TopicName, parse
from support.contracts.metadata_contract import wait_until
from support.worlds.brokers_of_a_region import REGION, Two, acknowledge, stored, two_serving

NAME = parse("orders")


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[Two]:
    async with two_serving(tmp_path, NAME) as made:
        yield made


def owed(topic: Topic, places: list[Position]) -> list[Position]:
    """Those messages that subscription s has not acknowledged."""
    cursor = topic.subscriptions["s"].cursor
    return [place for place in places if cursor.is_owed(REGION, place)]


async def taken_over(two: Two) -> Topic:
    """The second broker's copy, taken while the first was suspended past its lease; the first has not noticed."""
    a, b = two.a, two.b
    a.miss_everything()
    lease = a.owner._membership.lease
    assert lease is not None
    await lease.revoke()
    bundle = await a.bundle(NAME)
    await wait_until(lambda: bundle not in b.owner.view.owners)
    await b.owner.acquire(bundle)
    return await b.open(NAME)


@pytest.mark.parametrize("hangs", ["the topic", "its shadow"])
async def test_a_closing_that_hangs_is_cut_short_when_the_term_ends(
    two: Two, monkeypatch: pytest.MonkeyPatch, hangs: str
) -> None:
    """Otherwise the broker could not own the bundle again until the bookies answer."""
    a, bundle = two.a, await two.a.bundle(NAME)
    await a.open(NAME)
    number = itertools.count()
    view = next(one for one in (parse(f"view-{n}") for n in number) if bundle.has(str(one)))
    await shadow_topics.create(a.service.opener, view, None, {SOURCE: str(NAME)}, listed=True)
    await a.open(view)
    hanging = str(NAME if hangs == "the topic" else view)
    really = Topic.close

    async def close(topic: Topic, *rest: Any, **options: Any) -> None:
        if topic.name == hanging:
            await asyncio.Event().wait()
        await really(topic, *rest, **options)

    monkeypatch.setattr(Topic, "close", close)
    cuts = a.service.registry.cuts
    closing = asyncio.ensure_future(a.owned.close(bundle))
    await wait_until(lambda: hanging in cuts)
    await a.owned.drop(bundle)
    async with asyncio.timeout(10):
        await closing
    assert not cuts
    assert not {str(NAME), str(view)} & set(a.service.topics)


class Client:
    """A watcher's connection, which records the notifications."""

    def __init__(self) -> None:
        self.told: list[tuple[list[str], list[str]]] = []
        self.digest = ""

    def writable(self) -> bool:
        return True

    def topics_changed(self, _watcher: Watcher, new: list[str], deleted: list[str], digest: str) -> None:
        self.told.append((new, deleted))
        self.digest = digest

    def lost_watcher(self, _watcher: Watcher) -> None:
        raise AssertionError("it reads everything")


async def test_a_watcher_hears_of_topics_that_another_broker_creates_and_deletes(two: Two) -> None:
    client, watchers = Client(), two.b.service.watchers
    watcher = watchers.add(client, 1, NAME.namespace_name, TopicPattern("persistent://public/default/.*"))
    assert (await watchers.listed(watcher)).names == []
    watchers.start(watcher)
    topic = await two.a.open(NAME)
    await wait_until(lambda: client.told == [([str(NAME)], [])])
    assert client.digest == (await watchers.listed(watcher)).digest
    assert topic.metadata is not None
    await topic.metadata.save_properties({"a": "b"})  # its record changes, but it existed before
    await removal.delete(two.a.service.opener, NAME, force=True)
    await wait_until(lambda: client.told[1:] == [([], [str(NAME)])])
    watchers.remove(watcher)
    await two.a.open(NAME)
    again = watchers.add(client, 2, NAME.namespace_name, TopicPattern("persistent://public/default/.*"))
    assert (await watchers.listed(again)).names == [str(NAME)]


async def test_a_watch_that_was_interrupted_misses_nothing(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store compacted the changes away: the names are compared."""
    client, service = Client(), two.b.service
    topics, interruptions = service.parts.catalog.topics, asyncio.Event()
    through = topics.watch

    async def watch(namespace: str) -> AsyncIterator[list[tuple[TopicName, bool]]]:
        async for changes in through(namespace):
            if changes and not interruptions.is_set():
                interruptions.set()
                raise MetadataUnavailable("compacted")
            yield changes

    monkeypatch.setattr(following, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(topics, "watch", watch)
    watcher = service.watchers.add(client, 1, NAME.namespace_name, TopicPattern("persistent://public/default/.*"))
    await service.watchers.listed(watcher)
    service.watchers.start(watcher)
    await two.a.open(NAME)
    await wait_until(lambda: client.told == [([str(NAME)], [])])
    assert interruptions.is_set()


async def test_only_the_owner_opens_a_topic(two: Two) -> None:
    await two.a.open(NAME)
    with pytest.raises(TopicFenced, match="served by broker a: look it up again"):
        await two.b.open(NAME)
    assert two.b.service.topics == {}


async def test_a_bundle_moved_by_hand_stays_and_loads_are_reported_when_they_change(two: Two) -> None:
    a, b = two.a.owner, two.b.owner
    for bundle in (await a.bundles("public/default")).every():
        await a.acquire(bundle)
    while (move := a.next_move({})) is not None:  # both brokers have joined
        await a.give_up(*move)
        await b.acquire(move[0])
        await wait_until(lambda: len(a.view.owners) == len(b.view.owners) == len(a.owned()) + len(b.owned()))
    assert b.next_move({}) is None
    for bundle in a.owned()[:2]:
        await a.give_up(bundle, "b")
        await b.acquire(bundle)
    await wait_until(lambda: {one.broker: one.bundles for one in a.view.candidates()}["b"] == len(b.owned()))
    assert len(b.owned()) - len(a.owned()) >= 3
    assert a.next_move({}) is b.next_move({}) is None
    await a.report(0.5)
    await wait_until(lambda: {one.broker: one.usage for one in b.view.candidates()} == {"a": 0.5, "b": 0.0})
    await a.report(0.52)
    assert a.usage == 0.5
    await a.leave()
    await a.report(0.9)
    assert a.usage == 0.5


async def test_a_topic_that_goes_from_broker_to_broker_and_back_keeps_everything(two: Two) -> None:
    places: list[Position] = []
    unacked: list[Position] = []
    owner, other = two.a, two.b
    topic = await owner.open(NAME)
    topic.subscribing.create_subscription("s", EARLIEST)
    fences = []
    for _ in range(4):
        new = await stored(topic, *[b"x"] * 15)
        acknowledge(topic, "s", new[:10])
        places, unacked = places + new, unacked + new[10:]
        fences.append(topic.metadata.fence if topic.metadata is not None else 0)
        await owner.give_up(NAME, other)
        assert str(NAME) not in owner.service.topics
        with pytest.raises(TopicFenced):
            await owner.open(NAME)
        owner, other = other, owner
        topic = await owner.open(NAME)
        assert topic.log.entries == len(places)
        assert owed(topic, places) == unacked
    assert fences == sorted(set(fences))
    assert places == sorted(places)


async def test_a_broker_that_was_suspended_past_its_lease_stores_nothing_more(two: Two) -> None:
    a, b = two.a, two.b
    topic = await a.open(NAME)
    topic.subscribing.create_subscription("s", EARLIEST)
    places = await stored(topic, b"1", b"2")
    bundle, taken = await a.bundle(NAME), await taken_over(two)
    assert topic.failure is None  # the first has not noticed
    acknowledge(topic, "s", places)
    with pytest.raises(LedgerError):
        await stored(topic, b"of the past")
    await stored(taken, b"3")
    await wait_until(lambda: topic.failure is not None)
    assert taken.log.entries == 3
    assert owed(taken, places) == places
    with pytest.raises(TopicFenced):
        await a.open(NAME)
    await b.owner.give_up(bundle)
    await b.owner.acquire(bundle)
    again = await b.open(NAME)
    assert again.log.entries == 3
    assert owed(again, places) == places


async def test_a_topic_that_may_have_another_owner_is_dropped_without_another_write(two: Two) -> None:
    topic = await two.a.open(NAME)
    await stored(topic, b"1")
    before = {path: record.version for path, record in await two.metadata.scan("/local/topics/")}
    await two.metadata.delete(paths.owner(await two.a.bundle(NAME)))
    await wait_until(lambda: topic.failure is not None and not two.a.service.topics)
    assert not topic.reopens
    assert {path: record.version for path, record in await two.metadata.scan("/local/topics/")} == before
    assert not any(ledger.sealed for ledger in two.ledgers.disk.ledgers.values())


async def test_the_topics_of_a_bundle_are_opened_by_whoever_gets_it(two: Two) -> None:
    await two.a.open(NAME)
    await two.b.load()
    assert await two.b.service.registry.unopened() == set()
    await two.a.give_up(NAME, two.b)
    await wait_until(lambda: list(two.b.service.topics) == [str(NAME)])  # without waiting for the periodic round
    assert await two.b.service.registry.unopened() == set()
    assert await two.a.service.registry.unopened() in (set(), None)


async def test_a_split_bundle_goes_on_and_its_halves_move_alone(two: Two) -> None:
    names = [parse(f"topic-{number}") for number in range(30)]
    bundle = await two.a.bundle(NAME)
    inside = [name for name in names if await two.a.bundle(name) == bundle]
    topics = [await two.a.open(name) for name in inside]
    await two.a.owner.split(bundle, bundle.middle)
    upper = bundle.parts(bundle.middle)[1]
    moving = [name for name in inside if await two.a.bundle(name) == upper]
    assert 0 < len(moving) < len(inside)
    assert all(topic.failure is None for topic in topics)
    await two.a.give_up(moving[0], two.b)
    assert set(two.a.service.topics) == {str(name) for name in inside} - {str(name) for name in moving}
    for name in moving:
        await two.b.open(name)


async def test_a_topic_whose_bundle_is_lost_while_it_is_opened_is_not_served(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = two.a.catalog.topics
    find, is_opening, may_go_on = records.find, asyncio.Event(), asyncio.Event()

    async def found_later(name: TopicName) -> object:
        is_opening.set()
        await may_go_on.wait()
        return await find(name)

    monkeypatch.setattr(records, "find", found_later)
    opening = asyncio.create_task(two.a.open(NAME))
    await is_opening.wait()
    await two.a.give_up(NAME, two.b)
    may_go_on.set()
    with pytest.raises(TopicFenced, match="another broker"):
        await opening
    assert two.a.service.topics == {}
    topic = await two.b.open(NAME)
    await stored(topic, b"1")


async def test_a_topic_that_was_opened_in_an_earlier_term_is_not_served_in_a_later_one(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was read then may be out of date: what is acknowledged, and what the region has promised (R26)."""
    open_topic, is_opened, may_go_on = opening.open_topic, asyncio.Event(), asyncio.Event()

    async def opened_late(parts: BrokerParts, *rest: Any) -> Topic:
        topic = await open_topic(parts, *rest)
        if parts is two.a.service.opener.parts and not is_opened.is_set():
            is_opened.set()
            await may_go_on.wait()
        return topic

    monkeypatch.setattr(opening, "open_topic", opened_late)
    first = asyncio.create_task(two.a.open(NAME))
    await is_opened.wait()
    await two.a.give_up(NAME, two.b)
    places = await stored(await two.b.open(NAME), b"1")
    await two.b.give_up(NAME, two.a)
    may_go_on.set()
    with pytest.raises(TopicFenced, match="another broker"):
        await first
    topic = await two.a.open(NAME)
    assert topic.log.holds(places[0])


async def test_a_replaced_owner_cannot_put_a_topic_to_rest(two: Two) -> None:
    """Its snapshot is older than what the next owner wrote, and it would delete the next owner's ledger."""
    a, b = two.a, two.b
    topic = await a.open(NAME)
    topic.subscribing.create_subscription("s", EARLIEST)
    places = await stored(topic, b"1", b"2")
    acknowledge(topic, "s", places[:1])
    topic.take_acknowledgements()
    await topic.scheduler.answer(topic.progress_log.when_durable)
    bundle, taken = await a.bundle(NAME), await taken_over(two)
    with pytest.raises((LedgerError, VersionConflict)):
        await topic.progress_log.rest()
    assert owed(taken, places) == places[1:]
    acknowledge(taken, "s", places[1:])
    taken.take_acknowledgements()
    await taken.scheduler.answer(taken.progress_log.when_durable)
    await taken.progress_log.rest()
    with pytest.raises((LedgerError, VersionConflict)):
        await topic.progress_log.rest()
    await b.owner.give_up(bundle)
    await b.owner.acquire(bundle)
    again = await b.open(NAME)
    assert owed(again, places) == []
    assert again.progress_log.ledgers == []


async def test_a_replaced_owner_says_so_without_a_traceback(two: Two, caplog: pytest.LogCaptureFixture) -> None:
    """It has no open ledger on which it could meet a fence, so it learns of it from the topic's record."""
    topic = await two.a.open(NAME)
    await taken_over(two)
    caplog.clear()
    reason = f"another broker owns {NAME} by now, or another process writes its record"
    with pytest.raises(LedgerError, match=reason):
        await stored(topic, b"1")
    topic.progress_log._roll()
    await wait_until(lambda: topic.failure is not None)
    await wait_until(lambda: topic.progress_log._rolls.is_idle)
    await next_turn(topic.scheduler)  # time in which the loop would log how the task ended
    said = [record for record in caplog.records if record.levelname != "INFO"]
    assert not [record for record in said if record.exc_info]
    assert [f"{NAME} is fenced: acknowledgements cannot be stored" in one.getMessage() for one in said] == [True]
    assert reason in said[0].getMessage()


async def test_a_new_owner_answers_for_no_topic_before_it_knows_which_exist(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another region told "there is no such topic" would dispatch what was acknowledged here (R20)."""
    await two.a.open(NAME)
    await two.b.load()
    registry, records = two.b.service.registry, two.b.catalog.topics
    listing, is_listed, fails = records.listing, asyncio.Event(), [MetadataUnavailable("the store is away")] * 2

    async def listed_later(namespace: str) -> Listing:
        if fails:
            raise fails.pop()
        await is_listed.wait()
        return await listing(namespace)

    monkeypatch.setattr(records, "listing", listed_later)
    monkeypatch.setattr(owned_topics, "SURVEY_SECONDS", 0.001)
    await two.a.give_up(NAME, two.b)
    assert two.b.owned.owns(str(NAME)) and not registry.is_served(str(NAME))
    await wait_until(lambda: not fails)
    assert not registry.is_served(str(NAME)) and await registry.unopened() is None
    is_listed.set()
    await wait_until(lambda: registry.is_served(str(NAME)))
    assert str(NAME) in two.b.service.topics
    assert two.b.owned.is_surveyed()
    assert await registry.unopened() == set()


async def test_a_bundle_lost_while_its_topics_were_listed_is_listed_again_on_return(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first listing lacks what another owner has created since."""
    await two.b.load()
    records, waiting = two.b.catalog.topics, list[asyncio.Event]()
    listing = records.listing

    async def listed_later(namespace: str) -> Listing:
        found = await listing(namespace)
        waiting.append(asyncio.Event())
        await waiting[-1].wait()
        return found

    monkeypatch.setattr(records, "listing", listed_later)
    await two.a.give_up(NAME, two.b)
    await wait_until(lambda: len(waiting) == 1)
    await two.b.give_up(NAME, two.a)
    assert two.b.owned.is_surveyed()
    await two.a.open(NAME)
    await two.a.give_up(NAME, two.b)
    waiting[0].set()
    await wait_until(lambda: len(waiting) == 2)
    assert not two.b.owned.is_surveyed(str(NAME)) and not two.b.service.registry.is_served(str(NAME))
    waiting[1].set()
    await wait_until(lambda: two.b.service.registry.is_served(str(NAME)))


async def test_bundles_acquired_together_are_listed_together(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each listing reads all topics of the namespace, perhaps a hundred thousand, and bundles come by the dozen."""
    names = [parse(f"topic-{number}") for number in range(20)]
    bundles = (await two.a.owner.bundles(NAME.namespace_name)).every()
    for bundle in bundles:
        await two.a.owner.acquire(bundle)
    for name in names:
        await two.a.open(name)
    await two.b.load()
    records, listings = two.b.catalog.topics, list[asyncio.Event]()
    listing = records.listing

    async def listed_later(namespace: str) -> Listing:
        found = await listing(namespace)
        listings.append(asyncio.Event())
        await listings[-1].wait()
        return found

    monkeypatch.setattr(records, "listing", listed_later)
    for bundle in bundles:
        await two.a.owner.give_up(bundle, two.b.name)
    await wait_until(lambda: len(two.b.owner.owned()) == len(bundles))
    assert len(listings) == 1 and not two.b.owned.is_surveyed()
    listings[0].set()
    await wait_until(lambda: len(listings) == 2)
    listings[1].set()
    await wait_until(lambda: two.b.owned.is_surveyed() and len(two.b.service.topics) == len(names))
    assert len(listings) == 2


async def test_only_the_owner_serves_a_non_persistent_topic(two: Two) -> None:
    """Otherwise clients of two brokers would silently miss each other's messages."""
    name = parse("non-persistent://public/default/light")
    await two.a.owner.acquire(await two.a.bundle(name))
    serve = two.b.service.opener.served
    with pytest.raises(TopicElsewhere):
        await serve(name, create=True)
    topic = await two.a.service.opener.served(name, create=True)
    assert isinstance(topic, NonPersistentTopic)
    await two.a.give_up(name, two.b)
    with pytest.raises(TopicFenced):
        topic.check_admits()
    with pytest.raises(TopicFenced):
        await two.a.service.opener.served(name, create=True)
    assert str(name) not in two.a.service.registry.non_persistent.topics
    await serve(name, create=True)


async def test_a_non_persistent_topic_is_not_served_if_its_bundle_is_lost_meanwhile(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = parse("non-persistent://public/default/light")
    await two.a.owner.acquire(await two.a.bundle(name))
    partitioned = two.a.catalog.partitioned
    find, is_looking, may_go_on = partitioned.find, asyncio.Event(), asyncio.Event()

    async def found_later(base: TopicName) -> object:
        is_looking.set()
        await may_go_on.wait()
        return await find(base)

    monkeypatch.setattr(partitioned, "find", found_later)
    serving = asyncio.create_task(two.a.service.opener.served(name, create=True))
    await is_looking.wait()
    await two.a.give_up(name, two.b)
    may_go_on.set()
    with pytest.raises(TopicFenced):
        await serving
    assert str(name) not in two.a.service.registry.non_persistent.topics
