# SPDX-License-Identifier: Apache-2.0
"""What regions that are down lacked before a restart, as recorded in the progress log."""

from __future__ import annotations

import asyncio

import pytest
from meridian_broker.topics.journal import progress_log
from meridian_broker.topics.lifecycle import unconfirmed
from support.worlds.topic_of_one_region import BEGAN_MS, Region, region


class Before:
    """What the broker before the restart left."""

    def __init__(self, **since_ms: int) -> None:
        self.since_ms = since_ms
        self.said: dict[tuple[str, str], tuple[int, int]] = {}

    def found(self, topic: str, subscription: str, region: str, entries: int, since_ms: int) -> None:
        assert topic == "t"
        self.said[subscription, region] = entries, since_ms - BEGAN_MS


async def recall(one: Region, **since_ms: int) -> dict[tuple[str, str], tuple[int, int]]:
    """What a restart finds."""
    before = Before(**{region: BEGAN_MS + ms for region, ms in since_ms.items()})
    lacking = unconfirmed.Unconfirmed({"us", "eu", "ap"}, before)
    await one.start(lacking.acked)
    await lacking.tell(one.topic)
    return before.said


def test_entries_and_age_are_those_since_the_region_went_down() -> None:
    async def story() -> None:
        one = await region(s=True, other=True, alone=False)
        await one.ack("s", [0, 1], 100)
        await one.ack("s", [3, 7, 11], 400)
        await one.ack("s", [5], 900)
        await one.ack("other", [2], 700)
        await one.ack("alone", [2], 700)
        assert await recall(one, eu=300) == {("s", "eu"): (4, 400), ("other", "eu"): (1, 700)}
        assert await recall(one, eu=300, ap=800) == await recall(one, eu=300) | {("s", "ap"): (1, 900)}
        assert await recall(one, eu=1000) == await recall(one) == await recall(one, nobody=0) == {}

    asyncio.run(story())


def test_a_deleted_subscription_is_owed_nothing() -> None:
    async def story() -> None:
        one = await region(s=True)
        await one.ack("s", [0], 100)
        one.topic.subscription_registry.delete("s")
        await one.settle()
        assert await recall(one, eu=0) == {}

    asyncio.run(story())


def test_a_log_rolled_over_since_says_less_but_nothing_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        one = await region(s=True)
        await one.ack("s", [0, 1], 100)
        monkeypatch.setattr(progress_log, "ROLL_BYTES", 1)
        await one.ack("s", [2], 200)
        monkeypatch.undo()
        await one.ack("s", [3, 4], 300)
        assert await recall(one, eu=0) == {("s", "eu"): (2, 300)}

    asyncio.run(story())


def test_the_newest_entries_of_a_long_log_count(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        one = await region(s=True)
        await one.ack("s", range(12), 100)
        monkeypatch.setattr(unconfirmed, "LOOKS", 4)
        assert 0 < (await recall(one, eu=0))["s", "eu"][0] <= 4

    asyncio.run(story())
