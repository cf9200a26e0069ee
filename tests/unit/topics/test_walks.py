# SPDX-License-Identifier: Apache-2.0
"""A cursor with a long way to go lets other work run in between."""

from __future__ import annotations

import asyncio

import pytest
from meridian_broker.ledgers import reading
from meridian_broker.topics.cursors import cursor
from support.worlds.topic_of_one_region import Region, region

STEP = 3


async def turns(one: Region) -> list[int]:
    """How many entries the cursor passes in each loop turn until it has arrived."""
    found: list[int] = []
    at = one.topic.subscriptions["s"].cursor
    while at.mark_delete != one.stored[-1]:
        before = at.mark_delete
        await asyncio.sleep(0)
        found.append(sum(before < place <= at.mark_delete for place in one.stored))
    return found


@pytest.fixture(autouse=True)
def short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cursor, "WALK", STEP)


def test_the_missing_acknowledgement_comes_last() -> None:
    async def story() -> None:
        one = await region(s=True)
        await one.ack("s", range(1, 12), 100)
        at = one.topic.subscriptions["s"].cursor
        assert at.mark_delete < one.stored[0]
        one.acknowledge("s", [0])
        assert max(await turns(one)) <= STEP

    asyncio.run(story())


def test_entries_it_has_not_passed_yet_are_not_sent() -> None:
    async def story() -> None:
        one = await region(s=True)
        await one.ack("s", range(1, 12), 100)
        at = one.topic.subscriptions["s"].cursor
        one.acknowledge("s", [0])
        await asyncio.sleep(0)
        assert at.mark_delete < one.stored[-1] and at.backlog() == 0
        for place in one.stored:
            entry = await one.topic.log.read_one(place)
            assert at.is_done(place, entry)

    asyncio.run(story())


@pytest.mark.parametrize("leap", [1, 2, 3])
@pytest.mark.parametrize("missing", [None, 0, 3, 4, 5, 7, 9, 11])
async def test_it_passes_the_rest_of_a_ledger_at_once_if_everything_in_it_is_acknowledged(
    leap: int, missing: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cursor, "WALK", 100)
    monkeypatch.setattr(cursor, "LEAP", leap)
    one = await region(s=True)
    at = one.topic.subscriptions["s"].cursor
    before = at.mark_delete
    await one.ack("s", [number for number in range(12) if number != missing], 100)
    reached = [before, *one.stored][12 if missing is None else missing]
    assert at.mark_delete == reached
    if missing is not None:
        await one.ack("s", [missing], 200)
        assert at.mark_delete == one.stored[-1]


def test_the_headers_of_a_ledger_are_read_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        one = await region(s=True)
        await one.start()
        log, ledger = one.topic.log, one.stored[0].ledger
        assert log.index(ledger) is None
        monkeypatch.setattr(reading, "SCAN_BYTES", 1)
        work, turns = asyncio.ensure_future(log.load_index(ledger)), 0
        while not work.done():
            await asyncio.sleep(0)
            turns += 1
        assert turns >= len(work.result()) > 1

    asyncio.run(story())


async def test_mark_delete_goes_back_only_with_a_rewind(monkeypatch: pytest.MonkeyPatch) -> None:
    one = await region(s=True)
    at, log = one.topic.subscriptions["s"].cursor, one.topic.log
    await one.ack("s", range(6), 100)
    monkeypatch.setattr(log, "after", lambda _: one.stored[0])
    with pytest.raises(AssertionError, match="only a rewind"):
        at.advance()
