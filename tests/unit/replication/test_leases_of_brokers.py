# SPDX-License-Identifier: Apache-2.0
"""Leases between regions with several brokers (R26): a region's promises survive its topics' owners."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from meridian_broker.replication.leases.voter import Voter
from support.worlds.lease_brokers_world import BEAT_MS, OWNER_MS, BrokerNode, LeaseBrokersWorld
from support.worlds.lease_world import EAGER

SHAPES = [{"eu": 2, "us": 2}, {"ap": 2, "eu": 2, "us": 2}, {"ap": 1, "eu": 3, "us": 2}, {"ap": 2, "eu": 1, "us": 1}]
KINDS = ["hand"] * 4 + ["pause", "pause", "resume", "crash", "start", "cut", "heal", "want", "unwant"]
STEP = st.tuples(
    st.sampled_from(KINDS),
    st.integers(0, 8),
    st.integers(0, 8),
    st.sampled_from([0, 10, 150, 400, 1000, OWNER_MS + BEAT_MS, EAGER.duration]),
)
Steps = list[tuple[str, int, int, int]]
STEPS = st.lists(STEP, min_size=1, max_size=16)
SUSPENDED: Steps = [("pause", 2, 0, 2000), ("hand", 0, 0, 150), ("resume", 2, 0, 0), ("hand", 8, 0, 0)]
"""The topic's next owner hands it back the moment the earlier one, suspended past its lease, is resumed."""
HANDED: Steps = [SUSPENDED[1], SUSPENDED[0], *SUSPENDED[2:]]
FENCED: Steps = [
    *[("hand", 0, 0, 400), ("pause", 0, 0, 1000), ("pause", 1, 0, 150), ("hand", 0, 0, 150)],
    *[("hand", 0, 0, 1800)] * 2,
    *[("resume", 0, 0, 400), ("pause", 1, 0, 0), ("hand", 0, 0, 150), ("hand", 0, 0, 0)],
]
"""A broker that gets the topic back was writing when it lost it."""


def story(shape: dict[str, int], seed: int, delay_ms: int, disk_ms: int, steps: Steps) -> None:
    """Every win and renewal is checked. At the end the preferred holder has its stream."""
    world = LeaseBrokersWorld(shape, seed, delay_ms=delay_ms, disk_ms=disk_ms)
    stream = world.streams[0]
    regions = list(shape)
    for home in world.homes.values():
        home.wanted.add(stream)
    world.run_ms(1000 + delay_ms * 4)
    for kind, one, other, run_ms in steps:
        region, there = regions[one % len(regions)], world.of(regions[other % len(regions)])
        to = there[other // 3 % len(there)]
        owner = world.owner(region)
        others = [node for node in world.of(region) if node is not owner and node.alive and not node.paused]
        if kind == "hand" and owner is not None and owner.serves and not owner.paused and others:
            owner.hand_over(others[other % len(others)])
        elif kind in ("want", "unwant"):
            for node in world.of(region):
                node.happen(kind, stream)
        elif kind in ("start", "resume"):
            for node in world.of(region):
                world.happens(kind, node.name, to.name, stream)
        elif kind != "hand" and owner is not None:
            world.happens(kind, owner.name, to.name, stream)
        world.run_ms(run_ms)
    world.repair()
    world.run_ms(8 * EAGER.duration)
    world.check(stream)
    holders = world.holders(stream)
    if all(stream in home.wanted for home in world.homes.values()):
        assert holders == [world.homes[stream[2]].owner]


@settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(SHAPES), st.integers(0, 10**6), st.sampled_from([5, 100]), st.sampled_from([2, 150]), STEPS)
@example(SHAPES[1], 0, 5, 2, SUSPENDED)
@example(SHAPES[1], 0, 5, 2, HANDED)
@example(SHAPES[0], 0, 5, 150, FENCED)
def test_one_holder_at_a_time_whoever_owns_the_topic(
    shape: dict[str, int], seed: int, delay_ms: int, disk_ms: int, steps: Steps
) -> None:
    story(shape, seed, delay_ms, disk_ms, steps)


def moved_owners(monkeypatch: pytest.MonkeyPatch, plant: str) -> None:
    """Stories that expose a planted bug: moves, suspensions and deaths of owners."""
    if plant == "a vote is forgotten at a move":
        monkeypatch.setattr(BrokerNode, "find", lambda _: None)
    elif plant == "a voter that comes back goes by what it knew":
        monkeypatch.setattr(Voter, "moved", lambda *_: None)
    elif plant == "a suspended owner votes on":
        monkeypatch.setattr(BrokerNode, "serves", property(lambda node: node.alive and node.is_open))
    elif plant == "a broker gets a topic back before it forgot what it voted":
        monkeypatch.setattr(BrokerNode, "may_gain", property(lambda node: node.alive and not node.paused))
    for seed in range(20):
        for shape in SHAPES[:2]:
            for first in ("hand", "pause", "crash"):
                steps = [(first, seed % 3, seed, 150), ("resume", seed % 3, 0, 400), ("crash", 0, 0, 400)]
                steps += [("hand", seed, seed // 3, 150), ("pause", seed // 2, 0, OWNER_MS + BEAT_MS)] * 2
                story(shape, seed, 100, 20, steps)
                suspended = [("pause", seed, 0, OWNER_MS + BEAT_MS + seed * 20), ("resume", seed, 0, 400)]
                story(shape, seed, 100, 20, suspended * 2)
    for steps in (SUSPENDED, HANDED):
        story(SHAPES[1], 0, 5, 2, steps)


def test_the_stories_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    moved_owners(monkeypatch, "")


@pytest.mark.parametrize(
    "plant",
    [
        "a vote is forgotten at a move",
        "a voter that comes back goes by what it knew",
        "a suspended owner votes on",
        "a broker gets a topic back before it forgot what it voted",
    ],
)
def test_a_planted_bug_is_found(monkeypatch: pytest.MonkeyPatch, plant: str) -> None:
    with pytest.raises(AssertionError, match=r"believes|hold"):
        moved_owners(monkeypatch, plant)


def test_a_planned_move_costs_only_a_moment() -> None:
    world = LeaseBrokersWorld({"ap": 2, "eu": 2, "us": 2}, 1, delay_ms=20, disk_ms=5)
    streams = world.streams
    for home in world.homes.values():
        home.wanted.update(streams)
    world.run_ms(3000)
    assert [world.holders(stream) for stream in streams] == [["ap/1"], ["eu/1"], ["us/1"]]
    owner, to = world.of("us")
    owner.hand_over(to)
    world.run_ms(500)
    assert world.holders(streams[2]) == ["us/2"], "it did not wait for the end of the lease"
