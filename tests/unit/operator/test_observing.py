# SPDX-License-Identifier: Apache-2.0
"""How one region is observed for all objects: few requests, and one verdict on whether it is reachable."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import aiohttp
from meridian_operator.plan.budget import Budget
from meridian_operator.plan.observed import RegionSeen, TopicName
from meridian_operator.regions import observing
from meridian_operator.regions.client import Ask, Refused, RegionClient
from meridian_operator.regions.directory import Region
from meridian_operator.regions.observing import PAGE, Observer

EAST = Region("east", "http://east")


@dataclass
class Clock:
    """Time that passes only while somebody sleeps."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        await asyncio.sleep(0)


@dataclass
class StandIn(RegionClient):
    """Answers at once, as the test says."""

    away: str = ""
    most: int = 10_000
    """The region does not finish a request for more than this at once."""
    each: int = 10_000
    """It describes at most this many at once."""
    refusal: Exception | None = None
    pages: list[int] = field(default_factory=list)
    probes: int = 0
    region: Region = EAST

    async def describe(self, asks: Sequence[Ask]) -> list[RegionSeen]:
        self.pages.append(len(asks))
        if self.refusal is not None:
            raise self.refusal
        if self.away:
            raise aiohttp.ClientConnectionError
        if len(asks) > self.most:
            raise TimeoutError
        return [
            RegionSeen(EAST.name, EAST.url, known_regions=frozenset((ask.topic.local,))) for ask in asks[: self.each]
        ]

    async def probe(self) -> str:
        self.probes += 1
        return self.away


async def look(client: StandIn, count: int, clock: Clock) -> list[RegionSeen]:
    """This many objects observe at the same time."""
    observer = Observer(client, clock, clock.sleep)
    names = [TopicName("public", "default", f"topic-{n}") for n in range(count)]
    try:
        return list(await asyncio.gather(*(observer.see(name) for name in names)))
    finally:
        await observer.close()


async def test_many_objects_are_one_request() -> None:
    client = StandIn(each=200)
    clock = Clock()
    seen = await look(client, 1000, clock)
    assert [next(iter(one.known_regions)) for one in seen] == [f"topic-{n}" for n in range(1000)]
    assert client.pages == [500, 500, 500, 400, 200], "what was not described is requested again, in its turn"


async def test_requests_come_at_a_bounded_rate() -> None:
    client, clock = StandIn(each=1), Clock()
    await look(client, 100, clock)
    assert len(client.pages) == 100
    assert clock.now >= 95, "five at once, then one a second"


async def test_a_waiting_object_says_nothing_about_the_region() -> None:
    client, clock = StandIn(each=1), Clock()
    seen = await look(client, 200, clock)
    assert clock.now > 100
    assert all(one.reachable for one in seen)


async def test_a_region_that_is_slow_is_asked_for_less() -> None:
    client, clock = StandIn(most=100), Clock()
    seen = await look(client, 600, clock)
    assert all(one.reachable for one in seen)
    assert client.pages[:4] == [PAGE, 250, 125, 62]


async def test_a_request_that_a_region_never_finishes_does_not_condemn_the_rest() -> None:
    client, clock = StandIn(most=0), Clock()
    seen = await look(client, 2, clock)
    assert {one.reason for one in seen} == {"RegionSlow"}


async def test_a_region_that_is_down_is_detected_once_for_all_objects() -> None:
    client, clock = StandIn(away="no connection"), Clock()
    seen = await look(client, 3000, clock)
    assert {(one.reason, one.problem) for one in seen} == {("RegionUnreachable", "no connection")}
    assert (client.pages, client.probes) == ([PAGE], 1)


async def test_a_region_that_is_back_is_observed_again() -> None:
    client, clock = StandIn(away="no connection"), Clock()
    observer = Observer(client, clock, clock.sleep)
    name = TopicName("public", "default", "topic")
    assert not (await observer.see(name)).reachable
    client.away = ""
    assert not (await observer.see(name)).reachable, "it was tried a moment ago"
    clock.now += observing.PROBE_SECONDS
    assert (await observer.see(name)).reachable
    assert client.probes == 2
    await observer.close()


async def test_a_refusal_or_an_invalid_answer_is_reported_to_every_object() -> None:
    clock = Clock()
    for refusal in (Refused("east", 503, "etcd is away"), ValueError("<html>")):
        client = StandIn(refusal=refusal)
        seen = await look(client, 700, clock)
        assert all(str(refusal) in one.problem for one in seen)
        assert (len(client.pages), client.probes) == (1, 0)


async def test_waiting_objects_are_told_when_a_region_moves() -> None:
    asked = asyncio.Event()

    class Hangs(StandIn):
        async def describe(self, asks: Sequence[Ask]) -> list[RegionSeen]:
            asked.set()
            await asyncio.Event().wait()
            return []

    observer = Observer(Hangs())
    waiting = asyncio.create_task(observer.see(TopicName("public", "default", "topic")))
    await asked.wait()
    await observer.close()
    assert not (await waiting).reachable


def test_a_budget_bounds_a_burst_and_the_long_run() -> None:
    clock = Clock()
    budget = Budget(2, 3, clock)
    assert [budget.take() for _ in range(4)] == [True, True, True, False]
    assert budget.wait_seconds() == 0.5
    clock.now = 60
    assert sum(budget.take() for _ in range(10)) == 3
