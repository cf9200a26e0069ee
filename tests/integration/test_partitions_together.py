# SPDX-License-Identifier: Apache-2.0
"""Partitioned topics created, grown and deleted at the same time, and partitions left half-done."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import pytest
from meridian_broker.metadata.policy_values import InactiveTopics
from meridian_broker.metadata.store import MetadataUnavailable
from meridian_broker.positions import Stamp
from meridian_broker.positions.position import EARLIEST
from meridian_broker.topics.service import closing, creation, partition_growth, removal
from meridian_broker.topics.service.removal import delete_as_elsewhere
from meridian_broker.topics.service.service import TopicService
from meridian_broker.topics.service.unused import remove_unused
from meridian_broker.wire.pulsar.topic_name import TopicName, parse
from support.brokers.broker_inside import broker_inside
from support.brokers.broker_regions import until

NAME = parse("persistent://public/default/together")
PATIENCE = 60.0


class WatchedLock(asyncio.Lock):
    """Records which tasks wait for locks."""

    waiting: set[asyncio.Task[Any] | None]

    async def acquire(self) -> bool:  # type: ignore[override]
        self.waiting.add(asyncio.current_task())
        try:
            return bool(await super().acquire())
        finally:
            self.waiting.discard(asyncio.current_task())


def watch_locks(service: TopicService, monkeypatch: pytest.MonkeyPatch) -> set[asyncio.Task[Any] | None]:
    """The tasks that wait for topic locks from now on."""
    waiting: set[asyncio.Task[Any] | None] = set()

    def new_lock() -> WatchedLock:
        lock = WatchedLock()
        lock.waiting = waiting
        return lock

    locks: WeakValueDictionary[str, WatchedLock] = WeakValueDictionary()
    monkeypatch.setattr(service.registry, "lock", lambda name: locks.setdefault(name, new_lock()))
    return waiting


async def subscribed(service: TopicService, partitions: int) -> None:
    await creation.create_partitioned(service.opener, NAME, partitions, {})
    for index in range(partitions):
        topic = await service.opener.topic(NAME.with_partition(index), create=False)
        topic.subscribing.create_subscription("old", EARLIEST)


async def subscriptions_if_made_again(service: TopicService, partitions: int) -> list[str]:
    await creation.create_partitioned(service.opener, NAME, partitions, {})
    opened = [await service.opener.topic(NAME.with_partition(index), create=False) for index in range(partitions)]
    return [name for topic in opened for name in topic.subscriptions]


def by_command(service: TopicService) -> Coroutine[Any, Any, Any]:
    return removal.delete(service.opener, NAME, force=True)


def unused(service: TopicService) -> Coroutine[Any, Any, Any]:
    return remove_unused(service.opener)


def by_another_region(service: TopicService) -> Coroutine[Any, Any, Any]:
    stamp = Stamp(service.parts.scheduler.now_ms(), 0, "us-west")
    return delete_as_elsewhere(service.opener, NAME, stamp, partitioned=True)


@pytest.mark.parametrize("first", [by_command, unused, by_another_region])
@pytest.mark.parametrize("second", [by_command, unused, by_another_region])
async def test_two_deletions_do_not_wait_for_each_other(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    first: Callable[[TopicService], Coroutine[Any, Any, Any]],
    second: Callable[[TopicService], Coroutine[Any, Any, Any]],
) -> None:
    """Each takes the locks of all partitions. A third task, which holds one of them meanwhile, lets both begin."""
    partitions = 11  # sorted by name, partition 10 comes before partition 2
    async with broker_inside(tmp_path) as inside:
        service = inside.service
        await creation.create_partitioned(service.opener, NAME, partitions, {})
        for index in range(partitions):
            await closing.unload(service.opener, NAME.with_partition(index))
        for index in reversed(range(partitions)):  # clients come in any order
            topic = await service.opener.topic(NAME.with_partition(index), create=False)
            topic.rules = replace(topic.rules, inactive_topics=InactiveTopics(True, "delete_when_no_subscriptions", 0))
        is_unused = "meridian_broker.topics.service.unused.is_unused"
        monkeypatch.setattr(is_unused, lambda topic, *, alone: topic.name.startswith(str(NAME)))  # noqa: ARG005
        waiting = watch_locks(service, monkeypatch)
        held = [service.registry.lock(str(NAME.with_partition(index))) for index in (0, 2)]
        for lock in held:
            await lock.__aenter__()
        deletions = [asyncio.create_task(deletion(service)) for deletion in (first, second)]
        await until(lambda: all(one in waiting for one in deletions))
        for lock in held:
            await lock.__aexit__(None, None, None)
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*deletions, return_exceptions=True)
        assert await service.registry.names("public/default") == []


async def test_a_topic_that_is_deleted_while_it_grows_leaves_no_partition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a recreated topic had the deleted one's subscriptions in some of its partitions."""
    async with broker_inside(tmp_path) as inside:
        service = inside.service
        waiting = watch_locks(service, monkeypatch)
        await subscribed(service, 2)
        reached, go_on = asyncio.Event(), asyncio.Event()
        grow = service.parts.catalog.partitioned.grow

        async def slow(name: TopicName, partitions: int, since: int) -> object:
            reached.set()
            await go_on.wait()
            return await grow(name, partitions, since)

        monkeypatch.setattr(service.parts.catalog.partitioned, "grow", slow)
        growing = asyncio.create_task(partition_growth.grow(service.opener, NAME, 4))
        await reached.wait()
        deleting = asyncio.create_task(removal.delete(service.opener, NAME, force=True))
        await until(lambda: deleting.done() or deleting in waiting)
        go_on.set()
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(growing, deleting, return_exceptions=True)
        assert await service.registry.names("public/default") == []
        assert await subscriptions_if_made_again(service, 4) == []


async def test_failed_growth_leaves_no_partition_beyond_the_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with broker_inside(tmp_path) as inside:
        service = inside.service
        await subscribed(service, 2)
        partitioned = service.parts.catalog.partitioned

        async def fail(name: TopicName, partitions: int, _since: int) -> object:
            raise MetadataUnavailable(f"{name} cannot get {partitions} partitions: the store is away")

        with monkeypatch.context() as patched:
            patched.setattr(partitioned, "grow", fail)
            with pytest.raises(MetadataUnavailable):
                await partition_growth.grow(service.opener, NAME, 4)
        kept = [str(NAME.with_partition(index)) for index in (0, 1)]
        assert await service.registry.names("public/default") == kept
        await partition_growth.grow(service.opener, NAME, 3)
        opened = [await service.opener.topic(NAME.with_partition(index), create=False) for index in range(3)]
        assert [list(topic.subscriptions) for topic in opened] == [["old"]] * 3


@pytest.mark.parametrize("told", [False, True], ids=["here", "elsewhere"])
async def test_partitions_left_by_a_broken_growth_are_deleted_with_their_topic(tmp_path: Path, told: bool) -> None:
    """A broker died after it created partitions and before the topic recorded their number."""
    async with broker_inside(tmp_path) as inside:
        service = inside.service
        await subscribed(service, 2)
        left = await service.opener.topic(NAME.with_partition(3), create=True, growing_to=4)
        left.subscribing.create_subscription("old", EARLIEST)
        await (by_another_region(service) if told else removal.delete(service.opener, NAME, force=True))
        assert await service.registry.names("public/default") == []
        assert await subscriptions_if_made_again(service, 4) == []


async def test_partitions_that_a_link_deletes_meanwhile_do_not_fail_a_deletion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replicators report the same deletion partition by partition while the request for the whole topic is
    being carried out: partitions already gone are no reason to refuse it."""
    async with broker_inside(tmp_path) as inside:
        service = inside.service
        await subscribed(service, 3)
        reached, go_on = asyncio.Event(), asyncio.Event()
        find = service.parts.catalog.topics.find

        async def slow(name: TopicName) -> object:
            found = await find(name)
            if name == NAME.with_partition(0) and not reached.is_set():
                reached.set()
                await go_on.wait()
            return found

        monkeypatch.setattr(service.parts.catalog.topics, "find", slow)
        deleting = asyncio.create_task(by_another_region(service))
        await reached.wait()
        await removal.delete(service.opener, NAME.with_partition(1), force=True)
        await service.parts.catalog.partitioned.delete(NAME)
        go_on.set()
        async with asyncio.timeout(PATIENCE):
            await deleting
        assert await service.registry.names("public/default") == []
