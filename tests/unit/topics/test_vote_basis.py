# SPDX-License-Identifier: Apache-2.0
"""The basis on which a vote was given (R26): a renewal without its name detects every change since."""

from __future__ import annotations

from typing import cast

import pytest
from meridian_broker.replication.leases.manager import LeaseManager
from meridian_broker.replication.leases.voter import VoteBasis
from meridian_broker.topics.service.leased_topics import LeasedTopics
from simulation.story import Story

TOPIC = "persistent://public/default/t"
STREAM = (TOPIC, "sub", "eu")


def told(*lines: str) -> Story:
    story = Story()
    for line in ("regions us eu ap", *lines):
        story.run(line)
    return story


def manager_of(story: Story, region: str) -> LeaseManager:
    broker = story.world.regions[region].broker
    assert broker is not None
    manager = broker.exchange.core.leases
    assert manager is not None
    return manager


def basis_of(manager: LeaseManager) -> tuple[LeasedTopics, VoteBasis]:
    """The basis of what this region promised eu."""
    leased = cast("LeasedTopics", manager._topics)
    vote = manager.voter.votes[STREAM]
    assert vote.holder.startswith("eu#")
    assert vote.is_written
    basis = leased.basis(STREAM)
    assert basis is not None
    assert basis.still_valid()
    return leased, basis


SHARED = ("subscribe us t sub", "tick 100", "scope us t sub origin", "consumer c eu t sub auto", "tick 3000")


@pytest.mark.parametrize(
    "trouble",
    [
        "nothing",
        "takeover us t sub eu ap",
        "scope ap t sub local",
        "live t us eu",
        "gone",
        "closed",
    ],
)
def test_a_topics_vote_stands_as_long_as_nothing_changes(trouble: str) -> None:
    story = told(*SHARED)
    leased, basis = basis_of(manager_of(story, "us"))
    topic = leased._topics.topics[TOPIC]
    if trouble == "gone":
        topic.subscription_registry.delete("sub")
    elif trouble == "closed":
        topic.fence("a test ends it")
    elif trouble != "nothing":
        story.run(trouble)
        story.run("tick 500")
    assert basis.still_valid() == (trouble == "nothing")
    story.run("tick 500")  # a fenced topic is reopened


@pytest.mark.parametrize("trouble", ["nothing", "more is known", "live t us eu ap", "forgotten"])
def test_a_witness_vote_stands_as_long_as_nothing_changes(trouble: str) -> None:
    story = told("live t us eu", "tick 1500", *SHARED, "witness us t sub ap", "tick 9000")
    leased, basis = basis_of(manager_of(story, "ap"))
    store = leased.witness
    asked_ms = store._records[STREAM[:2]].asked_ms
    if trouble == "more is known":
        known = store.known(STREAM[:2])
        assert known is not None
        store.hear(STREAM[:2], known.also(("eu", "xx"), known.lists[-1][0]), lambda _: None)
        assert store.known(STREAM[:2]) != known
    elif trouble == "forgotten":
        del store._records[STREAM[:2]]
    elif trouble != "nothing":
        story.run(trouble)
        story.run("produce ap t x1")
        story.run("tick 1000")
    else:
        story.run("tick 1000")
    assert basis.still_valid() == (trouble == "nothing")
    if trouble == "nothing":
        assert store._records[STREAM[:2]].asked_ms > asked_ms, "it is in use, so it is not forgotten"
