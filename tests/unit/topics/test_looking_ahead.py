# SPDX-License-Identifier: Apache-2.0
"""Seeks and reports that take several loop turns: what happens in between does not make them wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from meridian_broker.positions import Stamp
from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.topics.cursors import floors, log_walks, rewinding, seeking
from support.worlds.topic_of_one_region import BEGAN_MS, Region, region


@pytest.fixture(autouse=True)
def two_at_a_time() -> Iterator[None]:
    """Two entries or runs per loop turn; a ledger has five entries."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_walks, "SLICE", 2)
        patch.setattr(log_walks, "LEDGER_COSTS", 1)
        yield


def rewound_elsewhere(one: Region) -> None:
    """Another region seeks back to the beginning, and its rewind arrives."""
    progress = one.topic.subscriptions["s"].cursor.progress
    delta = progress.heads()
    rules = {"us": (EARLIEST, one.stored[-1])}
    delta.rewind(Stamp(progress.epoch.time_ms + BEGAN_MS + 1, 0, "eu"), rules)
    rewinding.merge(one.topic.subscriptions["s"].cursor, delta, lambda _: None)


def acked(one: Region) -> list[int]:
    progress = one.topic.subscriptions["s"].cursor.progress
    return [number for number, place in enumerate(one.stored) if progress.is_acked("us", place)]


async def test_a_seek_overtaken_by_a_rewind_is_computed_again() -> None:
    one = await region(s=True)
    await one.ack("s", range(6), 0)
    seek = seeking.seek(one.topic.subscriptions["s"].cursor, one.stored[8])
    one.scheduler.spawn(seek, "seek")
    one.scheduler.defer(lambda: one.scheduler.defer(lambda: rewound_elsewhere(one)))
    await one.settle()
    assert one.topic.subscriptions["s"].cursor.progress.count_rewinds() == 1
    assert acked(one) == list(range(8)), "what is before the position counts as acknowledged under the newest rewind"


async def test_a_seek_back_undoes_what_is_acknowledged_while_it_searches() -> None:
    one = await region(s=True)
    await one.ack("s", range(3), 0)
    subscription = one.topic.subscriptions["s"]
    one.scheduler.spawn(seeking.seek(subscription.cursor, one.stored[3]), "seek")
    one.scheduler.defer(lambda: one.scheduler.defer(lambda: one.acknowledge("s", [4])))
    await one.settle()
    assert acked(one) == [0, 1, 2]
    assert one.topic.log.after(subscription.cursor.mark_delete) == one.stored[3]


async def test_a_seek_to_the_largest_time_of_the_wire_leaves_progress_that_a_restart_can_read() -> None:
    one = await region(s=True)
    subscription = one.topic.subscriptions["s"]

    def stored(_: Any, first: Any) -> None:
        one.stored.append(first)
        one.acknowledge("s", [12])

    one.scheduler.spawn(seeking.seek_to_time(subscription.cursor, (1 << 64) - 1), "seek")
    one.topic.log.append_own([(0, 1, 0, 0, one.scheduler.ms, b"", b"x")], stored, [0])
    await one.settle()
    assert subscription.cursor.progress.count_rewinds() == 1, "the acknowledgement came while the seek searched"
    await one.start()
    assert one.topic.subscriptions["s"].cursor.progress == subscription.cursor.progress
    assert subscription.backlog() == 0


async def test_what_is_published_while_a_seek_searches_is_owed() -> None:
    one = await region(s=True)
    await one.ack("s", range(12), 0)
    subscription = one.topic.subscriptions["s"]
    one.scheduler.spawn(seeking.seek(subscription.cursor, one.stored[2]), "seek")
    await one.publish(3)
    await one.settle()
    assert acked(one) == [0, 1]
    assert subscription.backlog() == 13


async def test_a_report_is_void_once_a_rewind_overtakes_it() -> None:
    one = await region(s=True)
    await one.ack("s", [*range(6), 7], 0)
    cursor = one.topic.subscriptions["s"].cursor
    found: list[dict[str, Position] | None] = []

    async def look() -> None:
        found.append(await floors._unless_rewound(cursor, floors.owed_nothing_upto(cursor)))

    await look()
    assert found == [{"us": one.stored[5]}]
    one.scheduler.spawn(look(), "look")
    one.scheduler.defer(lambda: rewound_elsewhere(one))
    await one.settle()
    assert found[1:] == [None]
    await look()
    assert found[2:] == [{"us": EARLIEST}]


async def test_a_report_includes_what_is_published_while_it_is_computed() -> None:
    one = await region(s=True)
    await one.ack("s", range(12), 0)
    subscription = one.topic.subscriptions["s"]
    steps = floors.owed_nothing_upto(subscription.cursor)
    await one.publish(2)
    upto = await log_walks.carry_out(one.topic.log, one.topic.scheduler, steps)
    assert upto == {"us": one.stored[11]}
