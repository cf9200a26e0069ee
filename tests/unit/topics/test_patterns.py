# SPDX-License-Identifier: Apache-2.0
"""Patterns over topic names, and watchers of the selected topics."""

from __future__ import annotations

import asyncio
import time

import pytest
from meridian_broker.metadata.topic_listing import Listing
from meridian_broker.server.loop import LoopScheduler
from meridian_broker.topics.directory import watching
from meridian_broker.topics.directory.listing import SLICE, names_of, select
from meridian_broker.topics.directory.patterns import BadPattern, TopicPattern
from meridian_broker.topics.directory.watching import TOLD_AT_ONCE, TopicWatchers, Watcher
from meridian_broker.topics.errors import TooManyWatchers
from meridian_broker.wire.pulsar import topic_name
from support.protocol.topic_digest import digest


@pytest.mark.parametrize(
    ("pattern", "topic", "matches"),
    [
        ("persistent://public/default/a.*", "persistent://public/default/abc", True),
        ("public/default/a.*", "persistent://public/default/abc", True),
        ("^persistent://public/default/a.*$", "persistent://public/default/abc", True),
        ("public/default/a.*", "non-persistent://public/default/abc", True),
        ("a.*", "persistent://public/default/abc", False),
        ("public/default/a", "persistent://public/default/abc", False),
        ("public/default/a", "persistent://public/default/a-partition-12", True),
        ("public/default/a", "persistent://public/default/a-partition-x", False),
        ("public/default/[^/]+ü", "persistent://public/default/müü", True),
    ],
)
def test_what_matches(pattern: str, topic: str, matches: bool) -> None:
    assert TopicPattern(pattern).matches(topic) == matches


@pytest.mark.parametrize("pattern", ["public/default/(", "(?!a)b", r"(a)\1", "a{1000000}", "a**"])
def test_invalid_patterns(pattern: str) -> None:
    with pytest.raises(BadPattern):
        TopicPattern(pattern)


@pytest.mark.parametrize("pattern", ["(a+)+b", "(a|aa)+b", "(.*a){12}b", "((a*)*)*b"])
def test_no_pattern_takes_long(pattern: str) -> None:
    made = TopicPattern("public/default/" + pattern)
    began = time.process_time()
    assert not made.matches("persistent://public/default/" + "a" * 2000)
    assert time.process_time() - began < 1


def test_the_hash_is_pulsars() -> None:
    one, two, three = (f"persistent://public/hash/{name}" for name in ("a", "b", "cü"))
    assert digest([]) == "00000000"
    assert digest([one]) == "4573f0e2"
    assert digest([three, one, two]) == "54323650"


class Port:
    """A client that records what it is told."""

    def __init__(self) -> None:
        self.told: asyncio.Queue[tuple[list[str], list[str], str]] = asyncio.Queue()
        self.lost: asyncio.Queue[Watcher] = asyncio.Queue()
        self.takes = True
        self.asked = asyncio.Event()

    def writable(self) -> bool:
        self.asked.set()
        return self.takes

    def topics_changed(self, watcher: Watcher, new: list[str], deleted: list[str], digest: str) -> None:
        self.told.put_nowait((new, deleted, digest))

    def lost_watcher(self, watcher: Watcher) -> None:
        self.lost.put_nowait(watcher)


class PatternWorld:
    """One namespace, and the watchers of a broker."""

    def __init__(self, limit: int = 10) -> None:
        self.names: list[str] = []
        self.reads = 0
        self.port = Port()
        self.watchers = TopicWatchers(LoopScheduler(), self.listed, limit)

    async def listed(self, namespace: str) -> list[str]:
        assert namespace == "t/n"
        self.reads += 1
        return sorted(self.names)

    def change(self, local_name: str, exists: bool = True) -> str:
        name = topic_name.parse(f"persistent://t/n/{local_name}")
        if exists:
            self.names.append(str(name))
        else:
            self.names.remove(str(name))
        self.watchers.changed(name, exists)
        return str(name)

    def watch(self, pattern: str = "t/n/a.*", number: int = 1) -> Watcher:
        return self.watchers.add(self.port, number, "t/n", TopicPattern(pattern))

    async def next(self) -> tuple[list[str], list[str], str]:
        async with asyncio.timeout(60):
            return await self.port.told.get()


async def test_changes_at_one_moment_are_told_together() -> None:
    world = PatternWorld()
    world.watchers.start(world.watch())
    first, _, third = world.change("a1"), world.change("b"), world.change("a2")
    world.watchers.changed(topic_name.parse("non-persistent://t/n/a3"), True)
    world.watchers.changed(topic_name.parse("persistent://t/other/a3"), True)
    assert await world.next() == ([first, third], [], digest([first, third]))
    world.change("a1", False)
    assert await world.next() == ([], [first], digest([third]))
    assert world.reads == 2


async def test_a_topic_created_and_deleted_at_once_is_told_as_deleted() -> None:
    world = PatternWorld()
    world.watchers.start(world.watch())
    name = world.change("a")
    world.change("a", False)
    assert await world.next() == ([], [name], digest([]))


async def test_what_happens_before_the_first_list_is_told_after_it() -> None:
    world = PatternWorld()
    waiting, ready = world.watch(number=1), world.watch(number=2)
    world.watchers.start(ready)
    name = world.change("a")
    assert await world.next() == ([name], [], digest([name]))
    assert world.port.told.empty()
    assert await world.watchers.listed(waiting) == ([name], digest([name]), len(name))
    world.watchers.start(waiting)
    assert await world.next() == ([name], [], digest([name]))


async def test_many_changes_are_told_in_updates_that_fit_a_frame() -> None:
    """Only the last one has the hash: a client that lost its connection before asks for the whole list."""
    world = PatternWorld()
    world.watchers.start(world.watch())
    made = [world.change(f"a{number}") for number in range(2 * TOLD_AT_ONCE + 1)]
    updates = [await world.next() for _ in range(3)]
    assert sorted(name for new, _, _ in updates for name in new) == sorted(made)
    assert max(len(new) for new, _, _ in updates) == TOLD_AT_ONCE
    assert [hashed for *_, hashed in updates] == ["", "", digest(made)]


async def test_a_client_that_does_not_read_is_told_later_or_loses_its_watcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "MISSED_MAX", 3)
    monkeypatch.setattr(watching, "GATHER_SECONDS", 0)
    world = PatternWorld()
    watcher = world.watch()
    world.watchers.start(watcher)
    world.port.takes = False
    name = world.change("a1")
    async with asyncio.timeout(60):
        await world.port.asked.wait()
    assert watcher.missed == {name: True}
    world.port.takes = True
    world.watchers.resume(watcher)
    assert await world.next() == ([name], [], digest([name]))
    world.port.takes = False
    for number in range(4):
        world.change(f"a-{number}")
    async with asyncio.timeout(60):
        assert await world.port.lost.get() is watcher
    assert len(world.watchers) == 0


async def test_watchers_are_limited() -> None:
    world = PatternWorld(limit=2)
    one, two = world.watch(), world.watch("t/n/b.*")
    with pytest.raises(TooManyWatchers):
        world.watch()
    world.watchers.remove(one)
    world.watchers.remove(one)
    assert len(world.watchers) == 1
    world.watch()
    world.watchers.remove(two)
    assert len(world.watchers) == 1


async def test_a_long_list_is_processed_in_slices() -> None:
    """It is built, matched against a pattern and hashed, ``SLICE`` names per turn."""
    count = 100_000
    segments, scheduler, turns = [f"a{number:06}" for number in range(count)], LoopScheduler(), 0
    made: list[int] = []

    class Counted(Listing):
        def names(self, first: int, last: int) -> list[str]:
            made.append(last - first)
            return super().names(first, last)

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(others())
    names = await names_of(Counted("persistent", "t/n", segments), scheduler)
    assert turns >= count // SLICE - 1
    assert made == [SLICE] * (count // SLICE)
    assert (names[0], names[-1], len(names)) == ("persistent://t/n/a000000", "persistent://t/n/a099999", count)
    for pattern, wanted in ((None, names), (TopicPattern("t/n/a00.*"), names[:10_000])):
        turns = 0
        assert await select(names, pattern, scheduler) == (wanted, digest(wanted), len("".join(wanted)))
        assert turns >= count // SLICE - 1
    task.cancel()
