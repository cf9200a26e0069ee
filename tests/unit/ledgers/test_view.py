# SPDX-License-Identifier: Apache-2.0
"""A view of a log: at any moment it reads what its source has, at the same positions, and never writes."""

from __future__ import annotations

import asyncio
from random import Random

import pytest
from meridian_broker.ledgers.chapters import CacheBudget
from meridian_broker.ledgers.log import TopicLog
from meridian_broker.ledgers.store import LedgerError
from meridian_broker.ledgers.view import LogView
from meridian_broker.positions.position import EARLIEST, Position
from support.worlds.topic_of_one_region import Region


async def entries(log: TopicLog, random: Random) -> list[tuple[Position, bytes]]:
    """Everything, in pieces."""
    found: list[tuple[Position, bytes]] = []
    while some := await log.read_after(found[-1][0] if found else EARLIEST, random.randint(1, 7), 1 << 20):
        found += some
    return found


async def append(log: TopicLog, count: int) -> None:
    done = asyncio.get_running_loop().create_future()
    bodies = [(0, 1, 0, 0, 1, b"", b"%d" % number) for number in range(count)]
    left = count

    def stored(tokens: list[int], _: object) -> None:
        nonlocal left
        left -= len(tokens)
        if not left:
            done.set_result(None)

    log.append_own(bodies, stored, list(range(count)))
    await done


@pytest.mark.parametrize("seed", range(12))
async def test_a_view_reads_what_its_source_has(seed: int) -> None:
    random, region = Random(seed), Region()
    await region.start()
    source = region.topic.log
    view = LogView("us", region.store, region.scheduler, CacheBudget(1 << 20))
    told: list[Position] = []
    view.watch(lambda: told.append(view.last_confirmed))
    view.attach(source)
    for _ in range(30):
        what = random.random()
        if what < 0.6:
            await append(source, random.randint(1, 8))
        elif what < 0.7:
            await source.roll()
        elif what < 0.8:
            source.drop_tail()
        elif source.entries:
            await source.trim(source.before(source.last_confirmed), 0, None)
        await asyncio.sleep(0)
        assert await entries(view, random) == await entries(source, random)
        assert (view.first, view.last_confirmed, view.entries) == (source.first, source.last_confirmed, source.entries)
        assert view.counts() == source.counts() and view.last_own == source.last_own
        at = random.choice([position for position, _ in await entries(source, random)] or [EARLIEST])
        assert view.after(at) == source.after(at) and view.before(at) == source.before(at)
        if source.holds(at):
            assert await view.load_index(at.ledger) is await source.load_index(at.ledger)
    assert told == sorted(set(told))
    end = view.last_confirmed
    view.detach()
    assert await entries(view, random) == [] and view.last_confirmed == end
    stored = source.counts()
    with pytest.raises(LedgerError):
        view.append_own([(0, 1, 0, 0, 1, b"", b"x")], lambda *_: None, [0])
    with pytest.raises(LedgerError):
        await view.roll()
    await view.delete()
    assert source.counts() == stored and source.failure is None
    await region.kill()
