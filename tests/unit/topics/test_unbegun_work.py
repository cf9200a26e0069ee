# SPDX-License-Identifier: Apache-2.0
"""Work on a topic that a client waits for, when the broker stops before it begins."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable

import pytest
from meridian_broker.topics.cursors import acknowledging
from support.worlds.topic_of_one_region import Region, region


async def nothing() -> None:
    pass


def serve(one: Region) -> None:
    one.topic.serve(nothing, "do nothing")


def move_on(one: Region) -> None:
    one.topic.subscriptions["s"].cursor._load_soon(one.stored[0])


def look_up(one: Region) -> None:
    acknowledging.go_on_later(one.topic.subscriptions["s"].cursor, nothing, None)


def acknowledge(one: Region) -> None:
    one.acknowledge("s", [7])


@pytest.mark.parametrize("begin", [serve, move_on, look_up, acknowledge])
async def test_it_leaves_no_coroutine_unawaited(begin: Callable[[Region], None]) -> None:
    one = await region(s=True)
    await one.start()
    await one.settle()
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        begin(one)
        assert one.scheduler._tasks
        await one.scheduler.close()
        gc.collect()
    assert [str(warning.message) for warning in found] == []
