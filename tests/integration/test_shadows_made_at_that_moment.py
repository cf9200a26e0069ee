# SPDX-License-Identifier: Apache-2.0
"""One broker makes a shadow while another deletes its source, adds partitions to it, or gives the shadow up: whatever
comes first, no shadow is left without a source, or with fewer partitions than it has."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import ContextVar
from dataclasses import replace
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest
from meridian_broker.engines.etcd.metadata import EtcdMetadataStore
from meridian_broker.metadata import keys
from meridian_broker.metadata.errors import CatalogError
from meridian_broker.metadata.policy_values import InactiveTopics
from meridian_broker.metadata.shadow_topics import SOURCE, ShadowRecord
from meridian_broker.topics.errors import TopicError, TopicFenced, TopicInUse
from meridian_broker.topics.lifecycle import opening
from meridian_broker.topics.service import creation, partition_growth, removal, shadow_topics, unused
from meridian_broker.topics.service.partition_growth import OnlyBroker
from meridian_broker.wire.pulsar.topic_name import TopicName, parse
from support.worlds.brokers_of_a_region import ServingBroker, Two, two_serving

ACTOR: ContextVar[Actor | None] = ContextVar("actor", default=None)
MOST = 60
"""Orders that one test tries."""
PREFIXES = count()
OPERATIONS = ("get", "get_many", "put", "delete", "children", "scan", "transact")


class Actor:
    """A request whose operations on the metadata store are let through one by one."""

    def __init__(self, work: Callable[[], Awaitable[object]]) -> None:
        self.done = 0
        """Operations so far."""
        self._allowed = 0
        self._moved = asyncio.Condition()
        self._task = asyncio.ensure_future(self._run(work))

    async def _run(self, work: Callable[[], Awaitable[object]]) -> Exception | None:
        ACTOR.set(self)
        try:
            await work()
        except (TopicError, CatalogError) as error:
            return error
        finally:
            async with self._moved:
                self._allowed = -1  # over
                self._moved.notify_all()
        return None

    async def through(self, really: Callable[[], Awaitable[Any]]) -> Any:
        async with self._moved:
            await self._moved.wait_for(lambda: self._allowed < 0 or self._allowed > self.done)
        try:
            return await really()
        finally:
            async with self._moved:
                self.done += 1
                self._moved.notify_all()

    async def goes_to(self, place: int) -> None:
        """Let it do this many operations, or all."""
        async with self._moved:
            if self._allowed >= 0:
                self._allowed = place
                self._moved.notify_all()
            await self._moved.wait_for(lambda: self._allowed < 0 or self.done >= place)

    async def ends(self) -> Exception | None:
        await self.goes_to(1 << 30)
        return await self._task


class InTurn:
    """A metadata store that lets actors go on when they may, and everybody else at once."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        really = getattr(self._store, name)
        if name not in OPERATIONS:
            return really

        async def operation(*args: Any, **more: Any) -> Any:
            actor = ACTOR.get()
            if actor is None:
                return await really(*args, **more)
            return await actor.through(lambda: really(*args, **more))

        return operation


class World(NamedTuple):
    """Two brokers: the first serves the sources, the second makes shadows."""

    both: Two
    numbers: count[int]

    @property
    def a(self) -> ServingBroker:
        return self.both.a

    @property
    def b(self) -> ServingBroker:
        return self.both.b

    async def names(self) -> tuple[TopicName, TopicName]:
        """A new source and a name for its shadow, each in a bundle of its broker."""
        source = view = None
        of_a = await self.a.bundle(parse("of-a"))
        while source is None or view is None:
            name = parse(f"name-{next(self.numbers)}")
            if await self.a.bundle(name) == of_a:
                source = source or name
            else:
                view = view or name
        if self.b.owner.term_of(view) is None:
            await self.b.owner.acquire(await self.b.bundle(view))
        return source, view

    async def left(self, source: TopicName, view: TopicName) -> tuple[bool, bool, list[str]]:
        """Whether the source and the shadow exist, and which records of shadows there are."""
        catalog, found = self.a.catalog, list[bool]()
        for name in (source, view):
            plain, parted = await catalog.topics.find(name), await catalog.partitioned.find(name)
            found.append(parted is not None or (plain is not None and plain[0].deleting is None))
        folders = (keys.SHADOWS, keys.SHADOW_NEEDS, keys.SOURCE_DELETIONS)
        paths = [path for folder in folders for path, _ in await self.both.metadata.scan(folder + "/")]
        return found[0], found[1], [path for path in paths if "/told/" not in path]


@pytest.fixture(params=["sqlite", "etcd"])
def etcd_url(request: pytest.FixtureRequest) -> str:
    """Empty: the metadata store is a file."""
    return str(request.getfixturevalue("etcd_server").url) if request.param == "etcd" else ""


@pytest.fixture
async def world(etcd_url: str, tmp_path: Path) -> AsyncIterator[World]:
    store = await EtcdMetadataStore.connect(etcd_url, f"meridian/{next(PREFIXES)}") if etcd_url else None
    async with two_serving(tmp_path, parse("of-a"), store) as both:
        for broker in (both.a, both.b):
            broker.catalog._access.store = InTurn(broker.catalog._access.store)
        yield World(both, count())


async def make(broker: ServingBroker, source: TopicName, view: TopicName) -> None:
    await shadow_topics.create(broker.service.opener, view, None, {SOURCE: str(source)}, listed=True)


async def delete_on_request(world: World, source: TopicName) -> None:
    await removal.delete(world.a.service.opener, source, force=True)


async def delete_partitions(world: World, source: TopicName) -> None:
    opener = world.a.service.opener
    stamp = await removal.new_stamp(opener, source)
    await removal.begin_partitioned(opener, source, stamp)
    await removal.forget_partitions(opener.parts.catalog, source, stamp, None)


async def delete_unused(world: World, source: TopicName) -> None:
    opener = world.a.service.opener
    topic = opener.registry.topics[str(source)]
    topic.rules = replace(topic.rules, inactive_topics=InactiveTopics(remove=True, seconds=1))
    topic.last_used_ms -= 10_000
    await unused.remove_unused(opener)


Way = Callable[[World, TopicName], Awaitable[None]]


async def source_for(world: World, source: TopicName, way: Way) -> None:
    if way is delete_partitions:
        await world.a.catalog.partitioned.create(source, 2, {})
    else:
        await world.a.open(source)


async def places(world: World, way: Way) -> tuple[int, int]:
    """How many operations each of the two takes when nobody disturbs it."""
    source, view = await world.names()
    await source_for(world, source, way)
    making = Actor(lambda: make(world.b, source, view))
    assert await making.ends() is None
    await removal.delete(world.b.service.opener, view, force=True)
    going = Actor(lambda: way(world, source))
    assert await going.ends() is None
    return making.done, going.done


async def in_any_order(
    actors: Callable[[], Awaitable[tuple[Actor, Actor]]],
    check: Callable[[Exception | None, Exception | None], Awaitable[list[object]]],
    places: tuple[int, int],
    *,
    is_first: bool,
) -> None:
    """One of two requests gets to each of its operations, the other one to each of its own; then both end. If these are
    too many, some are drawn.

    :param check: what is wrong then.
    """
    wrong = list[object]()
    before, after = places if is_first else places[::-1]
    every = [(first, second) for first in range(before) for second in range(1, after)]
    for first, second in every if len(every) <= MOST else Random(19).sample(every, MOST):
        pair = await actors()
        one, other = pair if is_first else pair[::-1]
        async with asyncio.timeout(30):
            await one.goes_to(first)
            await other.goes_to(second)
            await one.ends()
            await other.ends()
        wrong += [(first, second, found) for found in await check(await pair[0].ends(), await pair[1].ends())]
    assert not wrong, f"{len(wrong)}: {wrong[:5]}"


@pytest.mark.parametrize("way", [delete_on_request, delete_partitions, delete_unused])
@pytest.mark.parametrize("is_first", [True, False], ids=["making", "deleting"])
async def test_a_shadow_has_a_source_wherever_its_deletion_comes_between(
    world: World, way: Way, is_first: bool
) -> None:
    source = view = parse("none")

    async def actors() -> tuple[Actor, Actor]:
        nonlocal source, view
        source, view = await world.names()
        await source_for(world, source, way)
        return Actor(lambda: make(world.b, source, view)), Actor(lambda: way(world, source))

    async def check(making: Exception | None, going: Exception | None) -> list[object]:
        has_source, has_shadow, records = await world.left(source, view)
        is_recorded = keys.shadow(view) in records
        found = {
            "a shadow without a source": has_shadow and not has_source,
            "an answer that is not true": has_shadow != (making is None),
            "a source that stays": way is not delete_unused and going is None and has_source,
            "something left": is_recorded != has_shadow or len(records) > has_shadow,
            "an unclear refusal": has_shadow and going is not None and not isinstance(going, TopicInUse),
        }
        if has_shadow:
            await removal.delete(world.b.service.opener, view, force=True)
        if has_source and way is delete_partitions:
            await world.a.catalog.partitioned.take_back(source)
        elif has_source:
            await removal.delete(world.a.service.opener, source, force=True)
        return [(what, making, going, records) for what, is_so in found.items() if is_so]

    await in_any_order(actors, check, await places(world, way), is_first=is_first)


@pytest.mark.parametrize("is_first", [True, False], ids=["making", "growing"])
async def test_a_shadow_has_all_partitions_wherever_a_growth_comes_between(world: World, is_first: bool) -> None:
    """The broker that adds partitions has not heard of the shadow yet."""
    opener = world.a.service.opener
    for task in world.a.scheduler._tasks:
        if task.get_name() == "follow which topics are shadows":
            task.cancel()
    owners = OnlyBroker(opener)
    for bundle in (await world.a.owner.bundles("public/default")).every():
        if bundle not in world.a.owner.view.owners:
            await world.a.owner.acquire(bundle)
    catalog, number = world.a.catalog, count()
    source = view = parse("none")

    async def grow() -> None:
        await partition_growth.grow(opener, source, 2, owners=owners)
        await shadow_topics.follow_partitions(opener, source, owners)

    async def actors() -> tuple[Actor, Actor]:
        nonlocal source, view
        source, view = parse(f"parted-{next(number)}"), parse(f"view-{next(number)}")
        await creation.create_partitioned(opener, source, 1, {})
        return Actor(lambda: make(world.b, source, view)), Actor(grow)

    async def check(making: Exception | None, growing: Exception | None) -> list[object]:
        of_source, of_view = await catalog.partitioned.get(source), await catalog.partitioned.find(view)
        found = {
            "an answer that is not true": (of_view is not None) != (making is None),
            "a growth that failed": growing is not None and of_source.partitions != 1,
            "too few partitions": of_view is not None and of_view.partitions != of_source.partitions,
            "something left": of_view is None and await world.both.metadata.get(keys.shadow(view)) is not None,
        }
        return [(what, making, growing, of_source, of_view) for what, is_so in found.items() if is_so]

    made, grown = await actors()
    assert await made.ends() is None and await grown.ends() is None
    await in_any_order(actors, check, (made.done, grown.done), is_first=is_first)


@pytest.mark.parametrize("is_first", [True, False], ids=["making", "using"])
async def test_an_ordinary_topic_is_not_taken_for_the_shadow_that_was_to_have_its_name(
    world: World, is_first: bool
) -> None:
    """A client's producer creates it at its own broker. A deletion of the source must not take it along."""
    opener = world.a.service.opener
    source = view = parse("none")

    async def actors() -> tuple[Actor, Actor]:
        nonlocal source, view
        (source, _), (view, _) = await world.names(), await world.names()
        await world.a.open(source)
        return Actor(lambda: make(world.b, source, view)), Actor(lambda: opener.topic(view, create=True))

    async def check(making: Exception | None, using: Exception | None) -> list[object]:
        found = await world.a.catalog.topics.find(view)
        is_shadow = found is not None and SOURCE in found[0].properties
        has_record = await world.both.metadata.get(keys.shadow(view)) is not None
        await shadow_topics.as_stored(opener)
        await shadow_topics.delete_shadows(opener, source, force=True)
        left = await world.a.catalog.topics.find(view)
        wrong = {
            "an answer that is not true": is_shadow != (making is None),
            "an ordinary topic on record as a shadow": has_record and not is_shadow,
            "an ordinary topic deleted": found is not None and not is_shadow and left is None,
        }
        return [(what, making, using) for what, is_so in wrong.items() if is_so]

    made, used = await actors()
    assert await used.ends() is None
    await made.ends()
    taken = used.done
    made, used = await actors()
    assert await made.ends() is None and await used.ends() is None
    await in_any_order(actors, check, (made.done, taken), is_first=is_first)


async def test_a_record_that_a_dead_broker_left_makes_no_shadow_of_an_ordinary_topic(world: World) -> None:
    (source, _), (view, _) = await world.names(), await world.names()
    await world.a.open(source)
    await world.b.catalog.shadows.create(ShadowRecord(view, source))
    await world.a.catalog.topics.create(view)
    opener = world.a.service.opener
    await shadow_topics.as_stored(opener)
    await shadow_topics.delete_shadows(opener, source, force=True)
    assert await world.a.catalog.topics.find(view) is not None
    await world.b.catalog.shadows.create(ShadowRecord(view, source))
    await removal.delete(opener, source, force=True)
    assert await world.a.catalog.topics.find(view) is not None
    assert await world.both.metadata.get(keys.shadow(view)) is None


async def record_written(world: World) -> tuple[TopicName, TopicName, Actor]:
    """A shadow is being made, and has no topic yet."""
    source, view = await world.names()
    await world.a.open(source)
    making, place = Actor(lambda: make(world.b, source, view)), 0
    while await world.both.metadata.get(keys.shadow(view)) is None:
        place += 1
        await making.goes_to(place)
    return source, view, making


async def test_a_shadow_that_took_so_long_that_its_source_was_deleted_is_not_made(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "MAKING_MS", -1)  # its record looks left over at once
    source, view, making = await record_written(world)
    await making.goes_to(making.done + 3)  # it has seen its source since
    assert await world.left(source, view) == (True, False, [keys.shadow(view)])
    await removal.delete(world.a.service.opener, source, force=False)
    assert isinstance(await making.ends(), TopicError)
    assert await world.left(source, view) == (False, False, [])


async def test_a_shadow_whose_record_was_given_up_meanwhile_is_refused_and_can_be_made_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "MAKING_MS", -1)
    source, view, making = await record_written(world)
    await removal.check_no_shadows(world.a.service.opener, source)
    refused = await making.ends()
    assert isinstance(refused, TopicFenced) and "repeat the request" in str(refused)
    assert await world.left(source, view) == (True, False, [])
    await make(world.b, source, view)
    assert await world.left(source, view) == (True, True, [keys.shadow(view)])


async def test_the_record_of_a_shadow_that_is_made_after_all_is_not_given_up(world: World) -> None:
    """Another broker has seen that it has no topic, and then it has one."""
    source, view = await world.names()
    await world.a.open(source)
    await make(world.b, source, view)
    (record,) = world.b.catalog.shadows.of(source)
    await world.a.catalog.shadows.delete_left(record)
    assert await world.left(source, view) == (True, True, [keys.shadow(view)])
