# SPDX-License-Identifier: Apache-2.0
"""Shadows that are made, listed and deleted while the metadata fail, or while somebody else does the opposite."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from meridian_broker.metadata import keys
from meridian_broker.metadata.errors import AlreadyExists, NotFound
from meridian_broker.metadata.records import encode
from meridian_broker.metadata.shadow_topics import SOURCE, ShadowRecord
from meridian_broker.metadata.store import Check, Delete, MetadataUnavailable, Put
from meridian_broker.server.broker import BrokerProcess
from meridian_broker.topics.errors import NotAllowed, TopicError, TopicInUse, TopicNotFound
from meridian_broker.topics.lifecycle import opening
from meridian_broker.topics.service import creation, removal, shadow_topics, unused
from meridian_broker.topics.service.opener import TopicOpener
from meridian_broker.topics.topic import Topic
from meridian_broker.wire.pulsar.topic_name import TopicName, parse
from support.brokers.broker_inside import broker_inside
from support.brokers.broker_regions import until
from support.worlds.brokers_of_a_region import ServingBroker, stored, two_serving
from support.worlds.shadows import all_of

T, U, V = parse("t"), parse("u"), parse("v")


async def make(opener: TopicOpener, source: TopicName = T, shadow: TopicName = V) -> None:
    await shadow_topics.create(opener, shadow, None, {SOURCE: str(source)}, listed=True)


async def opened(opener: TopicOpener, name: TopicName = V) -> Topic:
    return await opener.topic(name, create=False)


async def refused(work: Awaitable[object]) -> Exception | None:
    """The error of a request; None: it succeeded."""
    try:
        await work
    except (TopicError, AlreadyExists, NotFound) as error:
        return error
    return None


class Gate:
    """Holds what writes or deletes a path in the metadata until it is opened, or fails it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, store: Any, what: type[Put | Delete], path: str) -> None:
        self.reached, self.open = asyncio.Event(), asyncio.Event()
        self._what, self._path = what, path
        self._put, self._transact = store.put, store.transact
        self.fails = False
        """It is done, and its answer is lost."""
        monkeypatch.setattr(store, "put", self._do_put)
        monkeypatch.setattr(store, "transact", self._do_transact)

    async def _do_put(self, path: str, value: bytes, **more: Any) -> Any:
        return await self._do([Put(path, value)], lambda: self._put(path, value, **more))

    async def _do_transact(self, checks: Sequence[Check], operations: Sequence[Put | Delete]) -> Any:
        return await self._do(operations, lambda: self._transact(checks, operations))

    async def _do(self, operations: Sequence[Put | Delete], really: Callable[[], Awaitable[Any]]) -> Any:
        is_meant = any(isinstance(one, self._what) and one.path == self._path for one in operations)
        if not is_meant or self.open.is_set():
            return await really()
        self.reached.set()
        if self.fails:
            await really()
            raise MetadataUnavailable("the answer was lost")
        await self.open.wait()
        return await really()


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[BrokerProcess]:
    """The region's only broker, which has the topic ``t``."""
    async with broker_inside(tmp_path) as process:
        await stored(await process.service.opener.topic(T, create=True), b"0", b"1", b"2")
        yield process


def store(broker: BrokerProcess) -> Any:
    return broker.catalog._access.store


async def records(of: Any) -> list[str]:
    return [path for folder in (keys.SHADOWS, keys.SHADOW_NEEDS) for path, _ in await of.scan(folder + "/")]


# -- one broker ----------------------------------------------------------------------------------------------------


async def test_a_record_left_behind_does_not_make_a_shadow_of_an_ordinary_topic(tmp_path: Path) -> None:
    """A broker was not told that its record of a shadow was written, so the name was free for another topic."""
    async with broker_inside(tmp_path) as broker:
        opener = broker.service.opener
        for name in (T, V):
            await stored(await opener.topic(name, create=True), b"0", b"1", b"2")
        await store(broker).put(keys.shadow(V), encode(ShadowRecord(V, T).to_json()))
    async with broker_inside(tmp_path) as broker:
        topic = await opened(broker.service.opener)
        assert topic.shadow_of is None and len(await all_of(topic)) == 3, "its messages cannot be read any more"
        assert await records(store(broker)) == []
        await removal.delete(broker.service.opener, T, force=True)


async def test_a_name_is_free_after_a_shadow_could_not_be_made(
    broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, opener = Gate(monkeypatch, store(broker), Put, keys.shadow(V)), broker.service.opener
    gate.fails = True
    with pytest.raises(MetadataUnavailable):
        await make(opener)
    assert await records(store(broker))
    gate.open.set()
    await creation.create_plain(opener, V, {})
    await broker.catalog.shadows.refresh()  # as after a restart
    topic = await opened(opener)
    assert topic.shadow_of is None
    await opener.drop(topic)
    topic.fence("closed", for_good=True)
    assert (await opened(opener)).shadow_of is None
    assert await records(store(broker)) == []
    await removal.delete(opener, V, force=True)
    await make(opener)
    assert len(await all_of(await opened(opener))) == 3


async def test_deleting_a_shadow_again_removes_what_the_first_time_left(
    broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make(broker.service.opener)
    opener, really = broker.service.opener, store(broker).transact

    async def lost(checks: Sequence[Check], operations: Sequence[Put | Delete]) -> Any:
        if operations == [Delete(keys.shadow(V))]:
            raise MetadataUnavailable("the metadata do not answer")
        return await really(checks, operations)

    monkeypatch.setattr(store(broker), "transact", lost)
    with pytest.raises(MetadataUnavailable):
        await removal.delete(opener, V, force=False)
    monkeypatch.undo()
    assert await records(store(broker)) == [keys.shadow(V)]
    with pytest.raises(TopicNotFound):
        await removal.delete(opener, V, force=False)
    assert await records(store(broker)) == []
    await removal.delete(opener, T, force=False)


async def test_a_record_without_a_topic_does_not_prevent_the_deletion_of_its_source(broker: BrokerProcess) -> None:
    await store(broker).put(keys.shadow(V), encode(ShadowRecord(V, T).to_json()))
    await broker.catalog.shadows.refresh()
    await removal.delete(broker.service.opener, T, force=False)
    assert await records(store(broker)) == []


async def test_asking_for_a_shadow_as_the_other_kind_changes_nothing(broker: BrokerProcess) -> None:
    """For a partition of one without partitions, and for a partitioned one as if it were a topic."""
    opener = broker.service.opener
    await make(opener)
    await creation.create_partitioned(opener, U, 2, {})
    parted = parse("w")
    await make(opener, U, parted)
    before = await records(store(broker))
    for name in (V.with_partition(0), parted):
        with pytest.raises(NotAllowed):
            await opener.topic(name, create=True)
    with pytest.raises(TopicNotFound):
        await removal.delete(opener, V.with_partition(0), force=True)
    assert await records(store(broker)) == before
    for name in (V, parted.with_partition(1)):
        topic = await opened(opener, name)
        await opener.drop(topic)
        topic.fence("closed", for_good=True)
        assert (await opened(opener, name)).shadow_of is not None, "it is an ordinary topic now"


@pytest.mark.parametrize("what", ["the list", "its properties"])
async def test_a_change_does_not_bring_a_deleted_shadow_back(
    broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """The change arrives while the shadow's record is being deleted."""
    opener = broker.service.opener
    await make(opener)
    await make(opener, shadow=U)
    really = store(broker).transact

    async def slow(checks: Sequence[Check], operations: Sequence[Put | Delete]) -> Any:
        done = await really(checks, operations)
        if operations == [Delete(keys.shadow(V))]:
            change = (
                shadow_topics.set_list(opener, T, [str(U)])
                if what == "the list"
                else shadow_topics.change(opener, V, holds=False)
            )
            await refused(change)
        return done

    monkeypatch.setattr(store(broker), "transact", slow)
    await removal.delete(opener, V, force=False)
    assert await records(store(broker)) == [keys.shadow(U)]
    assert shadow_topics.listed(broker.catalog.shadows, T) == [str(U)]


async def test_of_deleting_a_source_and_making_a_shadow_of_it_one_is_refused(
    broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    opener = broker.service.opener
    gate = Gate(monkeypatch, store(broker), Put, keys.shadow(V))
    making = asyncio.ensure_future(refused(make(opener)))
    await gate.reached.wait()
    deleting = asyncio.ensure_future(refused(removal.delete(opener, T, force=True)))
    for _ in range(100):
        await asyncio.sleep(0)
    gate.open.set()
    assert await making is None and isinstance(await deleting, TopicInUse)
    await removal.delete(opener, V, force=False)
    # And the other way round.
    found = await asyncio.gather(refused(removal.delete(opener, T, force=True)), refused(make(opener)))
    assert [one is None for one in found].count(True) == 1, found


async def test_neither_a_shadow_nor_its_source_is_removed_as_unused(tmp_path: Path) -> None:
    """Even if the shadow's own policy says so: who made it deletes it."""
    settings = {"brokerDeleteInactiveTopicsMaxInactiveDurationSeconds": 1, "brokerDeleteInactiveTopicsEnabled": "true"}
    async with broker_inside(tmp_path, **settings) as broker:
        opener = broker.service.opener
        for name in (T, U):
            await opener.topic(name, create=True)
        await make(opener)
        policy = {"inactiveTopicDeleteMode": "delete_when_no_subscriptions", "maxInactiveDurationSeconds": 1}
        for name in (U, V):
            await broker.catalog.topic_policies.set_policy(
                name, "inactive_topic_policies", {**policy, "deleteWhileInactive": True}
            )
        for topic in broker.service.topics.values():
            topic.follow(opener.parts.rules(parse(topic.name)))
            topic.last_used_ms -= 10_000
        await unused.remove_unused(opener)
        assert set(broker.service.topics) == {str(T), str(V)}
        assert keys.shadow(V) in await records(store(broker))


# -- two brokers ---------------------------------------------------------------------------------------------------


class Views(NamedTuple):
    """Two brokers: the first serves the sources, the second a shadow of this name."""

    a: ServingBroker
    b: ServingBroker
    store: Any
    view: TopicName
    second: TopicName
    """Another source."""


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[Views]:
    async with two_serving(tmp_path, T) as both:
        names = [parse(f"name-{number}") for number in range(40)]
        of_source = await both.a.bundle(T)
        view, *_ = [name for name in names if await both.a.bundle(name) != of_source]
        second, *_ = [name for name in names if await both.a.bundle(name) == of_source]
        await both.b.owner.acquire(await both.b.bundle(view))
        for name, count in ((T, 2), (second, 5)):
            await stored(await both.a.open(name), *(b"%d" % number for number in range(count)))
        yield Views(both.a, both.b, both.metadata, view, second)


async def test_of_two_brokers_that_make_a_shadow_of_one_name_one_is_refused(
    two: Views, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch, two.store, Put, keys.shadow(two.view))
    slow = asyncio.ensure_future(refused(make(two.b.service.opener, two.second, two.view)))
    await gate.reached.wait()
    monkeypatch.undo()
    await make(two.a.service.opener, T, two.view)
    gate.open.set()
    assert await slow is not None
    view = await opened(two.b.service.opener, two.view)
    assert view.shadow_of == str(T) and len(await all_of(view)) == 2
    assert [one.source for one in two.b.catalog.shadows.all()] == [T]


async def test_a_shadow_made_again_while_its_predecessor_is_deleted_stays_one(
    two: Views, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make(two.a.service.opener, T, two.view)
    monkeypatch.setattr(opening, "MAKING_MS", -1)  # the record is an old one
    gate = Gate(monkeypatch, two.store, Delete, keys.shadow(two.view))
    going = asyncio.ensure_future(removal.delete(two.b.service.opener, two.view, force=True))
    await gate.reached.wait()
    making = await refused(make(two.a.service.opener, two.second, two.view))
    gate.open.set()
    await going
    if making is not None:
        await make(two.a.service.opener, two.second, two.view)
    view = await opened(two.b.service.opener, two.view)
    assert view.shadow_of == str(two.second) and len(await all_of(view)) == 5


async def test_a_source_deleted_at_another_broker_meanwhile_gets_no_shadow(
    two: Views, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch, two.store, Put, keys.shadow(two.view))
    making = asyncio.ensure_future(refused(make(two.b.service.opener, T, two.view)))
    await gate.reached.wait()
    await removal.delete(two.a.service.opener, T, force=True)
    gate.open.set()
    assert isinstance(await making, TopicNotFound)
    assert await records(two.store) == [] and await two.b.catalog.topics.find(two.view) is None


async def test_nothing_is_left_of_a_shadow_that_was_being_opened_when_it_was_deleted(
    two: Views, monkeypatch: pytest.MonkeyPatch
) -> None:
    opener = two.b.service.opener
    await make(two.a.service.opener, T, two.view)
    gate = Gate(monkeypatch, two.store, Put, f"{keys.shadow_needs(T)}/told/{keys.escape(str(two.view))}")
    opening_it = asyncio.ensure_future(refused(opened(opener, two.view)))
    await gate.reached.wait()
    deleting = asyncio.ensure_future(refused(removal.delete(opener, two.view, force=True)))
    gate.open.set()
    await asyncio.gather(opening_it, deleting)
    await refused(removal.delete(opener, two.view, force=True))
    assert await records(two.store) == []


@pytest.mark.parametrize("partitions", [2, 40])
async def test_the_deletion_of_a_partitioned_shadow_is_completed_after_a_crash_however_old_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, partitions: int
) -> None:
    monkeypatch.setattr(opening, "MAKING_MS", -1)
    async with broker_inside(tmp_path) as broker:
        opener = broker.service.opener
        await creation.create_partitioned(opener, U, partitions, {})
        await make(opener, U)
        await broker.catalog.partitioned.begin_deletion(V, await removal.new_stamp(opener, V))
    async with broker_inside(tmp_path) as broker:
        catalog = broker.catalog

        async def is_gone() -> bool:
            return await catalog.partitioned.on_record(V) is None and catalog.shadows.find(V) is None

        await until(is_gone)
        assert await catalog.topics.partitions(V) == []
        names = [V, *(V.with_partition(number) for number in range(partitions))]
        assert [await catalog.topics.deletion(name) for name in names] == [None] * len(names), "a shadow has no stamp"
        await make(broker.service.opener, U)


async def test_two_topics_that_are_to_become_shadows_of_each_other_stay_what_they_are(tmp_path: Path) -> None:
    async with broker_inside(tmp_path) as broker, asyncio.timeout(30):
        opener = broker.service.opener
        for name in (T, V):
            await creation.create_plain(opener, name, {})
        told = await asyncio.gather(refused(make(opener, T, V)), refused(make(opener, V, T)))
        assert [type(one) for one in told] == [AlreadyExists] * 2
        for name in (T, V):
            await removal.delete(opener, name, force=True)


async def test_a_shadow_made_while_all_are_read_is_not_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with two_serving(tmp_path, T) as both:
        broker = both.a
        await stored(await broker.open(T), b"0")
        shadows = broker.catalog.shadows
        really, has_read, may_return = shadows._access.store.scan, asyncio.Event(), asyncio.Event()

        async def slow(path: str) -> Any:
            found = await really(path)
            if path == keys.SHADOWS + "/" and not has_read.is_set():
                has_read.set()
                await may_return.wait()
            return found

        monkeypatch.setattr(shadows._access.store, "scan", slow)
        reading = asyncio.ensure_future(shadows.refresh())
        await has_read.wait()
        await make(broker.service.opener)
        may_return.set()
        await reading
        assert shadows.find(V) is not None
        assert list(shadows.holding(T)) == [str(V)]
