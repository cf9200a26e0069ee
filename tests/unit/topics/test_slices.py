# SPDX-License-Identifier: Apache-2.0
"""Work over all topics of a broker does a bounded part in each loop turn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from meridian_broker.ledgers.periodic import each
from meridian_broker.ledgers.scheduling import SLICE
from meridian_broker.metadata.rules import Rules
from meridian_broker.metadata.topic_listing import Listing
from meridian_broker.ownership.bundles import LAST, Bundle
from meridian_broker.server.loop import LoopScheduler
from meridian_broker.topics.backfill.backfill import Due, Look
from meridian_broker.topics.context import WindingDown
from meridian_broker.topics.directory import listing
from meridian_broker.topics.errors import TopicNotFound
from meridian_broker.topics.lifecycle.unfinished import Unfinished
from meridian_broker.topics.nonpersistent.topics import UNUSED_MS, NonPersistentTopics
from meridian_broker.topics.ports import EveryTopic
from meridian_broker.topics.service.backfill_rounds import LOOKS, BackfillRounds, StoredEnds
from meridian_broker.topics.service.leased_topics import LeasedTopics
from meridian_broker.topics.service.owned_topics import OwnedTopics
from meridian_broker.topics.service.policy_rounds import PolicyRounds
from meridian_broker.topics.service.preloading import Loading
from meridian_broker.topics.service.registry import TopicRegistry
from meridian_broker.topics.service.winding_down import wind_down
from meridian_broker.wire.pulsar.topic_name import TopicName, parse

MANY = 10_050
PREFIX = "non-persistent://t/n/"


class Counter:
    """Counts the work done."""

    def __init__(self) -> None:
        self.count = 0

    def done(self, *_: Any) -> None:
        self.count += 1


async def most_in_a_turn(work: Coroutine[Any, Any, Any], done: Callable[[], int]) -> int:
    """The most that was done in one loop turn until the work ended. The work begins within one turn."""
    task, most, before = asyncio.ensure_future(work), 0, 0
    while not task.done():
        await asyncio.sleep(0)
        most, before = max(most, done() - before), done()
    await task
    return most


def parts(**others: Any) -> Any:
    shadows = SimpleNamespace(behind=set())
    catalog = SimpleNamespace(
        known_namespaces=lambda: ["t/n"], revision=1, rules=lambda *_: None, shadows=shadows, **others
    )
    return SimpleNamespace(
        catalog=catalog,
        scheduler=LoopScheduler(),
        topic_limits=None,
        defaults=lambda: None,
        labels=SimpleNamespace(are_on_record=False),
        unfinished=Unfinished(),
        ownership=EveryTopic(1),
    )


def non_persistent(topic: Callable[[], Any]) -> NonPersistentTopics:
    some = parts()
    topics = NonPersistentTopics(some.catalog, some.scheduler, some.topic_limits, some.defaults)
    topics.topics = {f"{PREFIX}{number * 7919 % MANY:05}": topic() for number in range(MANY)}
    return topics


async def test_periodic_work_on_each_topic() -> None:
    counter = Counter()

    async def work(_: int) -> None:
        counter.done()

    assert await most_in_a_turn(each(LoopScheduler(), range(MANY), str, work), lambda: counter.count) == SLICE
    assert counter.count == MANY


async def test_names_of_non_persistent_topics() -> None:
    looked = Counter()

    class Name(str):
        __slots__ = ()

        def startswith(self, *prefix: Any) -> bool:
            looked.done()
            return super().startswith(*prefix)

    topics = non_persistent(object)
    topics.topics = {Name(name): topic for name, topic in topics.topics.items()} | {"non-persistent://t/m/a": object()}  # type: ignore[dict-item]
    task = asyncio.ensure_future(topics.names("t/n"))
    assert await most_in_a_turn(asyncio.wait_for(task, None), lambda: looked.count) <= listing.SLICE
    assert task.result() == [f"{PREFIX}{number:05}" for number in range(MANY)]


async def test_rules_of_non_persistent_topics_and_what_is_unused() -> None:
    counter, fenced = Counter(), Counter()
    topics = non_persistent(
        lambda: SimpleNamespace(follow=counter.done, clients=0, last_used_ms=-UNUSED_MS, fence=fenced.done)
    )
    assert await most_in_a_turn(topics.follow_policies(), lambda: counter.count) == SLICE
    assert counter.count == MANY
    assert await most_in_a_turn(topics.tidy(), lambda: fenced.count) <= listing.SLICE
    assert (fenced.count, topics.topics) == (MANY, {})


async def test_changed_policies() -> None:
    counter = Counter()
    registry = TopicRegistry(parts(remember_missing=lambda _: None))
    every = {str(number): SimpleNamespace(failure=None, rules=Rules()) for number in range(MANY)}
    registry.topics = every  # type: ignore[assignment]
    opener: Any = SimpleNamespace(parts=registry.parts, registry=registry, follow=counter.done)
    assert await most_in_a_turn(PolicyRounds(opener).follow(), lambda: counter.count) == SLICE
    assert counter.count == MANY


async def test_regions_that_support_leases() -> None:
    counter = Counter()

    registry = TopicRegistry(parts())
    topic = SimpleNamespace(failure=None, follow_regions=counter.done, subscriptions={})
    registry.topics = dict.fromkeys(map(str, range(MANY)), topic)  # type: ignore[arg-type]
    assert await most_in_a_turn(LeasedTopics(registry)._follow_regions(), lambda: counter.count) == SLICE
    assert counter.count == MANY


async def test_the_topics_on_record() -> None:
    made = Counter()

    class Counted(Listing):
        def topic_names(self, first: int, last: int) -> list[TopicName]:
            found = super().topic_names(first, last)
            made.count += len(found)
            return found

    async def listed(namespace: str) -> Listing:
        return Counted("persistent", namespace, [f"{number:05}" for number in range(MANY)])

    async def inhabited() -> frozenset[str]:
        return frozenset(("t/n",))

    some = parts(topics=SimpleNamespace(listing=listed, namespaces=inhabited))
    registry = TopicRegistry(some)
    unopened = some.unfinished.unopened
    task = asyncio.ensure_future(registry.survey())
    assert await most_in_a_turn(asyncio.wait_for(task, None), lambda: made.count + len(unopened)) <= listing.SLICE
    assert set(map(str, task.result())) == unopened
    assert (len(unopened), f"persistent://t/n/{MANY - 1:05}" in unopened) == (MANY, True)


async def test_topics_that_are_not_open() -> None:
    looked = Counter()

    class Fenced:
        @property
        def failure(self) -> str:
            looked.done()
            return "fenced"

    registry = TopicRegistry(parts())
    assert await registry.unopened() is None
    registry.parts.unfinished.is_surveyed = True
    registry.parts.unfinished.unopened.add("closed")
    registry.topics = dict.fromkeys(map(str, range(MANY)), Fenced())  # type: ignore[arg-type]
    task = asyncio.ensure_future(registry.unopened())
    assert await most_in_a_turn(asyncio.wait_for(task, None), lambda: looked.count) <= listing.SLICE
    assert task.result() == {"closed", *registry.topics}


async def test_topics_that_are_wound_down() -> None:
    """Each topic stops dispatching, and each subscription is checked once; then only those that wait for acks are."""
    rested, idle, slow, deaf = Counter(), Counter(), Counter(), Counter()

    class Subscription:
        consumers, durable = ("c",), True
        dispatcher = SimpleNamespace(read=0, tracks_holders=True)
        cursor = SimpleNamespace(mark_delete=0)

        def __init__(self, looked: Counter, unacked: int) -> None:
            self.looked, self.unacked = looked, unacked

        @property
        def unacked_messages(self) -> int:
            """One more is acknowledged between two checks."""
            self.looked.done()
            self.unacked = max(0, self.unacked - 1)
            return self.unacked

    def topic(subscription: Subscription) -> Any:
        log: Any = SimpleNamespace(when_durable=lambda told: told(None))
        stages = {WindingDown.DISPATCHES_NOTHING: rested.done, WindingDown.IGNORES_MESSAGES: deaf.done}
        return SimpleNamespace(wind_down=lambda stage: stages[stage](), subscriptions={"s": subscription}, log=log)

    topics = [topic(Subscription(idle, 0)) for _ in range(MANY)]
    topics.append(topic(Subscription(slow, 3)))
    work = wind_down(topics, LoopScheduler())
    assert await most_in_a_turn(work, lambda: rested.count + deaf.count) <= SLICE
    assert (rested.count, idle.count, slow.count, deaf.count) == (MANY + 1, MANY, 3, MANY + 1)


async def test_topics_of_a_lost_bundle() -> None:
    looked, fenced = Counter(), Counter()

    class LookedAt(Bundle):
        def has(self, topic: str) -> bool:
            looked.done()
            return super().has(topic)

    def fence(*_: Any, **__: Any) -> None:
        fenced.done()

    some = parts()
    registry = TopicRegistry(some)
    topics = [SimpleNamespace(name=f"persistent://t/n/{number}", fence=fence) for number in range(MANY)]
    registry.topics = {topic.name: topic for topic in topics}  # type: ignore[misc]
    registry.non_persistent.topics = {f"{PREFIX}{number}": SimpleNamespace(fence=fenced.done) for number in range(MANY)}  # type: ignore[misc]
    some.unfinished.unopened.update(registry.topics)

    async def drop(topic: Any) -> None:
        del registry.topics[topic.name]

    regions = SimpleNamespace(leasing=SimpleNamespace(left=lambda _: None))
    owned = OwnedTopics(SimpleNamespace(bind=lambda _: None))  # type: ignore[arg-type]
    owned.bind(SimpleNamespace(parts=some, registry=registry, drop=drop, regions=regions))  # type: ignore[arg-type]
    one, other = LookedAt("t/n", 0, LAST // 2), LookedAt("t/n", LAST // 2, LAST)
    most = await most_in_a_turn(owned.drop(one), lambda: looked.count)
    assert most <= 2 * SLICE  # the end of one walk and the beginning of the next
    assert all(map(other.has, registry.topics)) and 0 < len(registry.topics) < MANY
    await owned.drop(other)
    assert not (registry.topics or registry.non_persistent.topics or some.unfinished.unopened)
    assert fenced.count == 2 * MANY


async def test_a_topic_deleted_during_the_survey_is_not_waited_for_forever() -> None:
    """A recorded topic that is not open prevents this region from voting, for example."""
    some, name = parts(), parse("persistent://t/n/a")
    registry = TopicRegistry(some)

    async def is_gone(name: TopicName, **_: Any) -> None:
        raise TopicNotFound(str(name))

    opener: Any = SimpleNamespace(registry=registry, parts=some, topic=is_gone)
    some.unfinished.is_surveyed = True
    some.unfinished.later(name)
    some.unfinished.unopened.add(str(name))
    await Loading(opener).load_all()
    assert registry.is_served(str(name))


def test_a_round_of_topics_that_wait_for_polls() -> None:
    """Another round begins while hundreds of topics wait: it does not compare each name with all of them."""
    compared = Counter()

    class Name(str):
        __slots__ = ()

        def __eq__(self, other: object) -> bool:
            compared.done()
            return super().__eq__(other)

        __hash__ = str.__hash__

    backfill: Any = SimpleNamespace(look=lambda: Look(Due.POLL), start=lambda: None)
    topic = SimpleNamespace(failure=None, backfill=backfill, remotes=set())
    topics = {Name(number): topic for number in range(2 * LOOKS)}
    registry: Any = SimpleNamespace(topics=topics)
    exchange: Any = SimpleNamespace(compare_ends=lambda _: None, compares_ends_with=lambda _: False)
    missing = BackfillRounds(registry, StoredEnds(registry), exchange, lambda: 0, lambda: 1.0)
    for _ in range(30):
        missing.look()
    assert compared.count < 30 * 2 * LOOKS


async def in_order(names: list[str]) -> list[str]:
    return await listing.in_order(names, LoopScheduler())


@given(st.lists(st.text(max_size=3), max_size=50), st.integers(1, 7))
@settings(max_examples=500)
def test_names_in_order(names: list[str], slice_: int) -> None:
    before, listing.SLICE = listing.SLICE, slice_  # type: ignore[misc]
    try:
        assert asyncio.run(in_order(names)) == sorted(names)
    finally:
        listing.SLICE = before  # type: ignore[misc]


async def test_a_long_list_is_sorted_in_slices() -> None:
    count, turns = 100_000, Counter()

    async def others() -> None:
        while True:
            turns.done()
            await asyncio.sleep(0)

    task = asyncio.create_task(others())
    names = [f"{number * 7919 % count:05}" for number in range(count)]
    assert await in_order(names) == [f"{number:05}" for number in range(count)]
    task.cancel()
    assert turns.count >= 2 * (count // listing.SLICE - 1)
