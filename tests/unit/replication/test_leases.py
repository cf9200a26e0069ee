# SPDX-License-Identifier: Apache-2.0
"""Leases on streams (R26): never two holders at one instant of true time, and one as soon as a majority is up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from meridian_broker.replication.leases.messages import (
    HELD,
    AnswerItem,
    AskItem,
    LeaseAnswer,
    LeaseAsk,
    LeaseRenewed,
    Stream,
)
from meridian_broker.replication.leases.quorums import VoterSets
from meridian_broker.replication.leases.times import CLOCK_RATE, LeaseTimes
from meridian_broker.replication.leases.transitions import State
from meridian_broker.replication.leases.voter import Vote, Voter
from support.worlds.lease_world import EAGER, TIMES, LeaseWorld

NAMES = ["af", "ap", "eu", "sa", "us"]
THREE = VoterSets.of("ap", "eu", "us")
WHO = st.integers(0, 5)
"""One of the nodes, or (5) the current holder."""
STEP = st.tuples(
    st.sampled_from(["want", "unwant", "crash", "start", "start", "pause", "resume", "cut", "heal", "isolate"]),
    WHO,
    WHO,
    st.sampled_from([0, 10, 150, 400, 1000, 1950, 2050]),
)


def do(world: LeaseWorld, step: tuple[str, int, int, int]) -> None:
    """Do something to a node, and let the world run for a while."""
    kind, *who, run_ms = step
    stream = world.streams[0]
    holder = [world.names.index(name) for name in world.holders(stream)] or [0]
    one, other = (world.names[holder[0] if number == 5 else number % len(world.names)] for number in who)
    world.happens(kind, one, other, stream)
    world.run_ms(run_ms)


@settings(suppress_health_check=list(HealthCheck))
@given(
    st.sampled_from([2, 3, 3, 3, 4, 5]),
    st.integers(0, 10**6),
    st.sampled_from([5, 100, 400]),
    st.sampled_from([0.0, 0.2]),
    st.sampled_from([2, 150]),
    st.lists(STEP, min_size=1, max_size=16),
)
def test_at_most_one_holder_and_one_if_a_majority_is_up(
    count: int, seed: int, delay_ms: int, trouble: float, disk_ms: int, steps: list[tuple[str, int, int, int]]
) -> None:
    world = LeaseWorld(
        NAMES[:count], seed, delay_ms=delay_ms, loss=trouble / 4, twice=trouble, disk_ms=disk_ms, times=EAGER
    )
    (stream, *_) = world.streams
    for node in world.nodes.values():
        node.want(stream)
    world.run_ms(delay_ms * 4)
    for step in steps:
        do(world, step)
    world.repair()
    if count > 2:
        world.nodes[world.names[-1]].crash()
    world.run_ms(6 * EAGER.duration)
    wanting = [name for name, node in world.nodes.items() if node.alive and stream in node.wanted]
    holders = world.holders(stream)
    assert bool(holders) == bool(wanting), "a majority is up"
    if stream[2] in wanting:
        assert holders == [stream[2]], "its preferred holder has it, if it wants it"


LISTS = st.sets(st.integers(0, 4), min_size=2, max_size=4)
CHANGE = st.tuples(
    st.sampled_from(
        ["tell"] * 4 + ["split"] * 3 + ["want", "crash", "start", "pause", "resume", "cut", "heal", "isolate"]
    ),
    WHO,
    WHO,
    st.sampled_from([0, 10, 150, 400, 1000, 1950, 2050]),
)


@settings(suppress_health_check=list(HealthCheck))
@given(
    LISTS,
    st.lists(LISTS, min_size=1, max_size=3),
    st.integers(0, 10**6),
    st.sampled_from([5, 100]),
    st.sampled_from([0.0, 0.2]),
    st.sampled_from([2, 150]),
    st.lists(CHANGE, min_size=1, max_size=16),
)
def test_at_most_one_holder_while_the_voters_are_being_changed(
    first: set[int],
    lists: list[set[int]],
    seed: int,
    delay_ms: int,
    trouble: float,
    disk_ms: int,
    steps: list[tuple[str, int, int, int]],
) -> None:
    """Each node is told the next configuration of voters at a different time, or not at all for a while."""
    world = LeaseWorld(NAMES, seed, delay_ms=delay_ms, loss=trouble / 4, twice=trouble, disk_ms=disk_ms, times=EAGER)
    (stream, *_) = world.streams
    stays = min(first)  # the record is brought to those who join
    orders = [tuple(NAMES[number] for number in sorted({stays, *some})) for some in (first, *lists)]
    for name, node in world.nodes.items():
        node.voter_sets_now = node.known_on_disk = VoterSets.of(*orders[0]) if name in orders[0] else VoterSets()
        node.told = orders[0] if name in orders[0] else ()
        if node.told:
            node.want(stream)
    world.run_ms(delay_ms * 4)
    heard = dict.fromkeys(NAMES, 0)
    for step in steps:
        kind, who, other, run_ms = step
        name = NAMES[who % len(NAMES)]
        if kind == "split":
            mask = 1 + 6 * who + other
            parts = [[one for at, one in enumerate(NAMES) if mask >> at & 1 == side] for side in (0, 1)]
            world.cuts = {frozenset((one, two)) for one in parts[0] for two in parts[1]}
            world.run_ms(run_ms)
            continue
        if kind == "tell" and heard[name] < len(lists):
            heard[name] += 1
            tell(world, name, orders[heard[name]])
            world.run_ms(run_ms)
        elif kind == "want" and world.nodes[name].told:
            world.nodes[name].want(stream)
        elif kind != "want":
            do(world, step)
    world.cuts.clear()
    world.loss = world.twice = 0.0
    world.delay_ms, world.disk_ms = 20, 5
    for name, node in world.nodes.items():
        if not node.alive:
            node.start()
        node.resume()
        tell(world, name, orders[-1])
    world.run_ms(14 * EAGER.duration)
    known = {world.nodes[name].voter_sets_now for name in orders[-1]}
    assert len(known) == 1
    (agreed,) = known
    assert agreed.is_committed
    assert agreed.voters == orders[-1]
    holders = world.holders(stream)
    assert holders == ([stream[2]] if stream[2] in orders[-1] else holders)
    assert holders


def tell(world: LeaseWorld, name: str, voters: tuple[str, ...]) -> None:
    """An administrator tells one node who votes from now on."""
    node, stream = world.nodes[name], world.streams[0]
    if name in voters:
        node.tell(voters)
        node.want(stream)
    else:
        node.tell(())
        node.unwant(stream)


@pytest.fixture
def three() -> LeaseWorld:
    world = LeaseWorld(["ap", "eu", "us"], 1, delay_ms=20)
    for stream in world.streams:
        for node in world.nodes.values():
            node.want(stream)
    world.run_ms(1000)
    return world


def test_each_node_has_its_own_stream(three: LeaseWorld) -> None:
    assert [three.holders(stream) for stream in three.streams] == [["ap"], ["eu"], ["us"]]


def test_a_dead_nodes_stream_is_taken_over_within_the_lease_and_given_back(three: LeaseWorld) -> None:
    us = three.streams[2]
    three.nodes["us"].crash()
    three.run_ms(TIMES.duration + 2 * TIMES.step + 300)
    assert three.holders(us) == ["ap"]
    three.nodes["us"].start()
    three.run_ms(1500)
    assert three.holders(us) == ["us"]


def test_an_isolated_preferred_holder_stops(three: LeaseWorld) -> None:
    us = three.streams[2]
    three.cuts |= {frozenset(("us", "ap")), frozenset(("us", "eu"))}
    three.run_ms(TIMES.duration + 50)
    assert "us" not in three.holders(us)


def test_a_holder_that_was_paused_does_not_go_on(three: LeaseWorld) -> None:
    us = three.streams[2]
    three.nodes["us"].paused = True
    three.run_ms(TIMES.duration + 2 * TIMES.step + 300)
    assert three.holders(us) == ["ap"]
    assert not three.nodes["us"].holds(us)


def test_a_stream_that_its_preferred_holder_does_not_want_is_given_away_at_once(three: LeaseWorld) -> None:
    us = three.streams[2]
    three.nodes["us"].unwant(us)
    three.run_ms(TIMES.linger + 50)
    assert three.holders(us) == []
    three.run_ms(TIMES.duration)
    assert three.holders(us) == ["ap"]


def test_of_two_only_the_preferred_holder_goes_on_alone_until_another_is_named() -> None:
    world = LeaseWorld(["eu", "us"], 3, delay_ms=20)
    us = world.streams[1]
    for node in world.nodes.values():
        node.want(us)
    world.run_ms(1000)
    assert world.holders(us) == ["us"]
    world.nodes["eu"].crash()
    world.run_ms(3 * TIMES.duration)
    assert world.holders(us) == ["us"], "it needs no other"
    world.nodes["eu"].start()
    world.nodes["us"].crash()
    world.run_ms(3 * TIMES.duration)
    assert world.holders(us) == [], "eu cannot know that us is dead"
    world.nodes["eu"].preferred[us] = "eu"
    world.nodes["eu"].want(us)
    world.run_ms(TIMES.step)
    assert world.holders(us) == ["eu"], "until an administrator says so"


def test_a_returning_voter_honours_its_votes_for_their_whole_length(three: LeaseWorld) -> None:
    us, ap = three.streams[2], three.nodes["ap"]
    three.cuts.add(frozenset(("us", "ap")))
    three.run_ms(TIMES.duration - 1000)
    ap.crash()
    ap.start()
    answers: list[LeaseAnswer | LeaseRenewed] = []
    ask = LeaseAsk(1, "eu#9", TIMES.duration, (AskItem(us, 99, VoterSets.of("ap", "eu", "us").mark, "us"),))
    ap.voter.asked(ask, answers.append, ap.now_ms())
    (answer,) = answers
    assert isinstance(answer, LeaseAnswer)
    (item,) = answer.items
    assert (item.granted, item.holder, item.left_ms) == (False, "us#1", TIMES.duration)


def test_voters_that_disagree_on_who_votes_grant_it_to_nobody(three: LeaseWorld) -> None:
    us = three.nodes["us"]
    request = us.leases.want(three.streams[2], VoterSets.of("ap", "eu", "sa", "us"), "us", us.now_ms())
    three.run_ms(2 * TIMES.duration)
    assert not request.is_held
    assert request.state in (State.IDLE, State.ASKING)


def test_the_holder_counts_from_before_it_asked(three: LeaseWorld) -> None:
    us, stream = three.nodes["us"], three.streams[2]
    request = us.leases.requests[stream]
    us.leases.tick(us.now_ms() + TIMES.beat)  # a renewal with slow answers
    begun, before = us.now_ms() + TIMES.beat, request.until_ms
    number = max(us.leases._questions._asked_ms)
    for voter in request.voters:
        us.leases.answered(voter, LeaseAnswer(number, (AnswerItem(stream, request.term, True),)), begun + 900)
    assert before < request.until_ms == begun + TIMES.usable


def test_the_slowest_holder_stops_before_the_fastest_voter_forgets() -> None:
    for times in (TIMES, EAGER, LeaseTimes()):
        assert times.usable / (1 - CLOCK_RATE) < times.duration / (1 + CLOCK_RATE)


def test_a_vote_is_durable_before_it_is_given() -> None:
    class Slow:
        def __init__(self) -> None:
            self.written: list[tuple[list[Stream], Callable[[list[Stream]], None]]] = []
            self.confirming: list[Callable[[], None]] = []
            self.has_it = True

        def voter_sets(self, stream: Stream) -> tuple[VoterSets, str] | None:
            return THREE, ""

        def write(self, votes: list[tuple[Stream, Vote]], durable: Callable[[list[Stream]], None]) -> None:
            self.written.append(([stream for stream, _ in votes], durable))

        def has(self, stream: Stream, vote: Vote) -> bool:
            return self.has_it

        def basis(self, stream: Stream) -> None:
            return None

        def confirm(self, confirmed: Callable[[], None]) -> None:
            self.confirming.append(confirmed)

    slow, answers, stream = Slow(), list[LeaseAnswer | LeaseRenewed](), ("t", "s", "us")
    voter = Voter(slow)
    voter.asked(LeaseAsk(7, "us#1", 1000, (AskItem(stream, 1, THREE.mark, "us"),)), answers.append, 0)
    assert answers == []
    voter.asked(LeaseAsk(3, "eu#1", 1000, (AskItem(stream, 2, THREE.mark, "us"),)), answers.append, 10)
    refused = answers.pop()
    assert isinstance(refused, LeaseAnswer)
    assert [item.reason for item in refused.items] == [HELD], "a vote being written binds already"
    renewal = LeaseAsk(8, "us#1", 1000, (AskItem(stream, 1, THREE.mark, "us"),))
    voter.asked(renewal, answers.append, 20)
    assert len(slow.written) == 2, "the vote is not on disk yet"
    (streams, durable), (_, durable_again) = slow.written
    durable(streams)
    assert answers == [LeaseAnswer(7, (AnswerItem(stream, 1, True),))]
    durable_again(streams)
    answers.clear()
    voter.asked(replace(renewal, number=9), answers.append, 30)
    assert (answers, len(slow.written)) == ([], 2), "it is, and a later broker could have started"
    slow.confirming.pop()()
    assert answers == [LeaseAnswer(9, (AnswerItem(stream, 1, True),))]
    slow.has_it = False
    voter.asked(replace(renewal, number=10), answers.append, 40)
    assert len(slow.written) == 3, "the topic was recreated"


def test_an_answer_to_an_earlier_attempt_does_not_count(three: LeaseWorld) -> None:
    us = three.nodes["us"]
    request = us.leases.requests[three.streams[2]]
    us.leases.release(request.stream, us.now_ms())
    for number in range(1, 9):
        for voter in request.voters:
            us.leases.answered(
                voter, LeaseAnswer(number, (AnswerItem(request.stream, request.term, True),)), us.now_ms()
            )
    assert not request.is_held
