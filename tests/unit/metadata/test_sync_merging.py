# SPDX-License-Identifier: Apache-2.0
"""A number of partitions never shrinks because of another region's write."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meridian_broker.metadata import keys
from meridian_broker.metadata.sync import paths
from meridian_broker.metadata.sync.catching_up import compared, decide_for
from meridian_broker.metadata.sync.shapes import fault_of
from meridian_broker.metadata.sync.stamped import Stamped, canonical
from meridian_broker.positions.clock import Stamp
from meridian_broker.wire.pulsar.topic_name import parse
from support.worlds.sync_world import PeerInMemory, SyncWorld, known_in

PATH = keys.partitioned_topic(parse("non-persistent://t/n/p"))


def value(partitions: int, created: str = "1.0@us", **properties: str) -> dict[str, Any]:
    return {"created": created, "partitions": partitions, "properties": properties}


def write(world: SyncWorld, region: str, wanted: dict[str, Any]) -> None:
    world.now_ms += 1
    assert world.finish(region, world.write(region, {PATH: wanted}))


@given(
    numbers=st.lists(st.integers(1, 20), min_size=3, max_size=3),
    order=st.sampled_from(list(permutations(("us", "eu", "ap")))),
    is_compared=st.booleans(),
)
def test_the_greatest_number_wins_in_any_order_of_writes(
    numbers: list[int], order: tuple[str, ...], is_compared: bool
) -> None:
    world = SyncWorld(["us", "eu", "ap"])
    for region, number in zip(order, numbers, strict=True):
        write(world, region, value(number))
    if is_compared:
        for region in order:
            for peer in set(order) - {region}:
                world.finish(region, world.catch_up(region, peer))
    world.quiet()
    world.check_agreement()
    assert world.values("ap")[PATH]["partitions"] == max(numbers)
    assert not any(world.conflicts(region) for region in order)


@pytest.mark.parametrize("side", ["us", "eu"])
def test_a_decision_for_one_side_takes_no_partitions_away(side: str) -> None:
    world = SyncWorld(["us", "eu"])
    write(world, "us", value(8, "1.0@us", of="us"))
    write(world, "eu", value(6, "2.0@eu", of="eu"))

    async def decide() -> int:
        peer = await PeerInMemory.of(world, "eu", "us")
        comparison = await compared(await known_in(world.regions["us"].store), peer)
        return await decide_for(comparison, peer, world.regions["us"].brokers[0].catalog, side, paths.SCOPES)

    assert world.finish("us", decide()) == 1
    world.quiet()
    world.check_agreement()
    found = world.values("eu")[PATH]
    assert (found["partitions"], found["properties"]) == (8, {"of": side})


def test_topics_that_store_messages_are_left_to_the_links() -> None:
    assert paths.scope_of(PATH) == paths.PARTITIONED_TOPICS
    assert paths.parent_of(PATH) == keys.namespace("t/n")
    assert paths.scope_of(keys.partitioned_topic(parse("persistent://t/n/p"))) is None


@pytest.mark.parametrize(
    ("wanted", "is_served"),
    [(value(3), True), (value(0), False), (value(10**9), False), ({"partitions": "3"}, False), ([], False)],
)
def test_an_impossible_number_is_refused(wanted: Any, is_served: bool) -> None:
    assert (fault_of(PATH, Stamped(Stamp(1, 0, "eu"), canonical(wanted))) is None) == is_served
