# SPDX-License-Identifier: Apache-2.0
"""Renewals without names (R26): a holder never assumes more, or for longer, than its voters promised."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from meridian_broker.replication.leases import grant_digests
from meridian_broker.replication.leases.grant_digests import GrantDigests
from meridian_broker.replication.leases.messages import (
    AnswerItem,
    AskItem,
    LeaseAnswer,
    LeaseAsk,
    LeaseRelease,
    LeaseRenewal,
    LeaseRenewed,
    Stream,
)
from meridian_broker.replication.leases.quorums import VoterSets
from meridian_broker.replication.leases.transitions import State
from support.worlds.lease_world import EAGER, LeaseNode, LeaseWorld

NAMES = ["ap", "eu", "us"]
KNOWN = VoterSets.of(*NAMES)
OTHER = VoterSets.of("eu", "us")

# -- digests of grants

# One draw of a ready-made value instead of several that make one.
WORDS = ["", "a", "b", "ab", "1:a", "a\n"]
TERMS = st.sampled_from([*product(range(3), range(2), WORDS)])
ITEM = st.builds(lambda stream, term: AskItem(stream, *term), st.sampled_from([*product(WORDS, repeat=3)]), TERMS)


@settings(max_examples=500)
@given(
    st.lists(st.tuples(st.sampled_from(["put", "put", "drop", "empty"]), ITEM), max_size=30),
    st.lists(st.tuples(st.sampled_from(["put", "put", "drop", "empty"]), ITEM), max_size=30),
)
def test_equal_grants_have_equal_digests(one: list[tuple[str, AskItem]], other: list[tuple[str, AskItem]]) -> None:
    def granted_of(steps: list[tuple[str, AskItem]]) -> tuple[set[AskItem], GrantDigests[AskItem]]:
        granted, model = GrantDigests[AskItem]("us#1"), dict[Stream, AskItem]()
        for kind, item in steps:
            if kind == "put":
                granted.put(item, item)
                model[item.stream] = item
            elif kind == "drop":
                granted.drop(item.stream)
                model.pop(item.stream, None)
            else:
                index = next(iter(granted.parts), 0)
                for gone in granted.empty(index):
                    del model[gone.stream]
            assert len(granted) == len(model)
        return set(model.values()), granted

    (first, left), (second, right) = granted_of(one), granted_of(other)
    assert (list(left.digests()) == list(right.digests())) == (first == second)


def test_a_restarted_holder_has_another_grant_digest() -> None:
    both = [GrantDigests[None](holder) for holder in ("us#1", "us#2")]
    for granted in both:
        granted.put(AskItem(("t", "s", "us"), 1, 2, "us"), None)
    assert list(both[0].digests()) != list(both[1].digests())


# -- holders and voters under faults

KINDS = "want unwant unwant crash start start pause resume cut heal isolate prefer old"
STEP = st.sampled_from([*product(KINDS.split(), range(5), range(5), (0, 10, 150, 700, 700, 1400, 2050))])


def do(world: LeaseWorld, step: tuple[str, int, int, int]) -> None:
    kind, who, what, run_ms = step
    names = world.names
    one, other = names[who % len(names)], names[what % len(names)]
    node, stream = world.nodes[one], world.streams[what % len(world.streams)]
    if kind == "prefer" and len(names) > 2:  # set in one, unknown to the others yet; with two voters it decides
        node.preferred[stream] = other
        if stream in node.wanted:
            node.want(stream)
    elif kind == "old":
        world.old ^= {one}
    else:
        world.happens(kind, one, other, stream)
    world.run_ms(run_ms)


@settings(suppress_health_check=list(HealthCheck))
@given(
    st.sampled_from([2, 3, 3, 4]),
    st.integers(0, 10**6),
    st.sampled_from([5, 100, 400]),
    st.sampled_from([0.0, 0.2, 0.4]),
    st.sampled_from([2, 150]),
    st.sampled_from([1, 2, grant_digests.PARTS]),
    st.lists(STEP, min_size=1, max_size=12),
)
def test_holders_assume_only_what_voters_promised(
    count: int,
    seed: int,
    delay_ms: int,
    trouble: float,
    disk_ms: int,
    parts: int,
    steps: list[tuple[str, int, int, int]],
) -> None:
    """Few parts, so each has many entries. Afterwards everything is renewed without names."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grant_digests, "PARTS", parts)
        world = LeaseWorld(
            ["af", "ap", "eu", "us"][:count],
            seed,
            delay_ms=delay_ms,
            loss=trouble / 4,
            twice=trouble,
            disk_ms=disk_ms,
            times=EAGER,
        )
        world.streams.append(("t", "other", world.names[0]))
        for node in world.nodes.values():
            for stream in world.streams:
                node.want(stream)
        world.run_ms(delay_ms * 4)
        for step in steps:
            do(world, step)
        world.old.clear()
        world.repair()
        for node in world.nodes.values():
            node.preferred.clear()
            for stream in world.streams:
                node.want(stream)
        world.run_ms(6 * EAGER.duration)
        assert [world.holders(stream) for stream in world.streams] == [[stream[2]] for stream in world.streams]
        renewed, named = world.renewed, world.named
        world.run_ms(EAGER.duration)
        assert world.renewed >= renewed + 2 * count, "each is renewed"
        assert world.named == named, "nothing is asked for by name any more"
        assert [world.holders(stream) for stream in world.streams] == [[stream[2]] for stream in world.streams]


# -- single cases


@pytest.fixture
def world() -> LeaseWorld:
    """Three nodes, each with its own stream; eu has two more, granted by us."""
    world = LeaseWorld(NAMES, 1, delay_ms=2, disk_ms=2)
    world.streams += [("t", "more", "eu"), ("t", "most", "eu")]
    for node in world.nodes.values():
        for stream in world.streams:
            node.want(stream)
    world.run_ms(6000)
    assert [world.holders(stream) for stream in world.streams] == [[stream[2]] for stream in world.streams]
    return world


def question(world: LeaseWorld) -> LeaseRenewal:
    """What eu would ask us, without sending it."""
    leases = world.nodes["eu"].leases
    number = leases._questions.next_number(world.nodes["eu"].now_ms())
    return dict(leases._renewals.questions(number, lambda _: True))["us"]


def answers(world: LeaseWorld, renewal: LeaseRenewal) -> Iterator[LeaseAnswer | LeaseRenewed]:
    us, heard = world.nodes["us"], list[LeaseAnswer | LeaseRenewed]()
    us.voter.renew(renewal, heard.append, us.now_ms())
    world.run_ms(10)
    return iter(heard)


def all_of(renewal: LeaseRenewal) -> tuple[int, ...]:
    return tuple(index for index, _ in renewal.parts)


def test_what_both_know_is_renewed_in_full_and_again_if_asked_twice(world: LeaseWorld) -> None:
    us, renewal = world.nodes["us"], question(world)
    assert len(renewal.parts) == 3
    for _ in range(2):
        begun_ms = us.now_ms()
        assert list(answers(world, renewal)) == [LeaseRenewed(renewal.number)]
        votes = [vote for vote in us.voter.votes.values() if vote.holder == "eu#1"]
        assert [vote.until_ms for vote in votes] == [begun_ms + world.times.duration] * 3
        world.run_ms(100)


def test_a_restarted_voter_renews_nothing_without_its_name(world: LeaseWorld) -> None:
    """Even though its disk says that it promised it."""
    renewal = question(world)
    world.nodes["us"].crash()
    world.nodes["us"].start()
    assert list(answers(world, renewal)) == [LeaseRenewed(renewal.number, all_of(renewal))]


def test_only_the_part_that_differs_is_asked_for_by_name(world: LeaseWorld) -> None:
    renewal, us, eu, stream = question(world), world.nodes["us"], world.nodes["eu"], ("t", "more", "eu")
    us.voter.votes[stream].basis = None
    (answer,) = answers(world, renewal)
    assert isinstance(answer, LeaseRenewed)
    (index,) = answer.differing
    assert index not in us.voter._granted["eu#1"].parts
    named = world.named
    eu.leases.renewed("us", answer, eu.now_ms())
    assert [one.by_name for one in eu.leases.requests.values()].count({"us"}) == 1
    world.run_ms(20)
    assert world.named == named + 1
    assert index in us.voter._granted["eu#1"].parts, "it is promised again"
    assert not any(one.by_name for one in eu.leases.requests.values() if one.is_held)


def test_a_voter_that_now_keeps_its_votes_elsewhere_writes_them_again(world: LeaseWorld) -> None:
    """The topic was deleted, and recreated by a producer."""
    renewal, us, eu = question(world), world.nodes["us"], world.nodes["eu"]
    before, us.disk = us.disk, {}
    (answer,) = answers(world, renewal)
    assert answer == LeaseRenewed(renewal.number, all_of(renewal))
    eu.leases.renewed("us", answer, eu.now_ms())
    world.run_ms(20)
    assert us.disk == {stream: ballot for stream, ballot in before.items() if ballot[0] == "eu#1"}


@pytest.mark.parametrize("trouble", ["voters", "preferred holder", "over", "other holder", "other term", "other life"])
def test_entries_that_would_not_be_granted_by_name_make_the_digest_differ(world: LeaseWorld, trouble: str) -> None:
    renewal, us, stream = question(world), world.nodes["us"], ("t", "more", "eu")
    vote = us.voter.votes[stream]
    if trouble == "voters":
        us.voter_sets_now = OTHER
    elif trouble == "preferred holder":
        us.preferred[stream] = "ap"
    elif trouble == "over":
        vote.until_ms = us.now_ms()
    elif trouble == "other holder":
        us.voter.released(LeaseRelease("eu#1", ((stream, vote.term),)))
        us.voter.asked(LeaseAsk(1, "ap#1", 3000, (AskItem(stream, 99, KNOWN.mark, "eu"),)), lambda _: None, us.now_ms())
        world.run_ms(20)
        assert us.voter.votes[stream].holder == "ap#1"
    elif trouble == "other term":
        item = AskItem(stream, vote.term + 1, KNOWN.mark, "eu")
        us.voter.asked(LeaseAsk(1, "eu#1", 3000, (item,)), lambda _: None, us.now_ms())
        world.run_ms(20)
    elif trouble == "other life":
        renewal = LeaseRenewal(renewal.number, "eu#2", renewal.parts)
    until_ms = us.voter.votes[stream].until_ms
    (answer,) = answers(world, renewal)
    assert isinstance(answer, LeaseRenewed)
    all_differ = trouble in ("voters", "other life")
    assert len(answer.differing) == (3 if all_differ else 1)
    assert us.voter.votes[stream].until_ms == until_ms, "no promise was made"


def test_an_answer_counts_for_the_grants_listed_when_it_was_asked(world: LeaseWorld) -> None:
    """A stream that was released and won again in between has been promised since, but not in answer to that
    request."""
    renewal, eu, stream = question(world), world.nodes["eu"], ("t", "more", "eu")
    asked = {one: dict(eu.leases.requests[one].asked_ms) for one in world.streams if one[2] == "eu"}
    world.run_ms(50)
    eu.leases.release(stream, eu.now_ms())
    world.run_ms(1000)
    request = eu.leases.requests[stream]
    assert world.holders(stream) == ["eu"]
    assert request.by_name == set()
    won = dict(request.asked_ms)
    eu.leases.renewed("us", LeaseRenewed(renewal.number), eu.now_ms())
    assert request.asked_ms == won
    for other in (("t", "s", "eu"), ("t", "most", "eu")):
        assert eu.leases.requests[other].asked_ms["us"] >= asked[other]["us"]
    later = question(world)
    eu.leases._questions._asked_ms[later.number] = eu.now_ms() + 1
    eu.leases.renewed("us", LeaseRenewed(later.number), eu.now_ms())
    assert request.asked_ms["us"] == eu.now_ms() + 1


def test_a_holder_raises_its_term_if_another_attempt_used_a_higher_one(world: LeaseWorld) -> None:
    """Otherwise one voter would never vote for it, and it would depend on all others."""
    eu, us, stream = world.nodes["eu"], world.nodes["us"], ("t", "more", "eu")
    request = eu.leases.requests[stream]
    item = AskItem(stream, request.term + 5, KNOWN.mark, "eu")
    us.unwant(stream)
    world.cuts.add(frozenset(("eu", "us")))
    world.run_ms(world.times.duration + 100)
    world.cuts.clear()
    us.voter.asked(LeaseAsk(1, "us#1", 3000, (item,)), lambda _: None, us.now_ms())
    us.voter.released(LeaseRelease("us#1", ((stream, request.term + 5),)))
    until_ms = request.until_ms
    world.run_ms(2 * world.times.beat)
    assert request.term == item.term + 1
    assert us.voter.votes[stream].ballot == ("eu#1", request.term, world.times.duration)
    assert request.until_ms > until_ms
    assert request.by_name == set()


def test_answers_from_before_a_release_do_not_count_for_the_next_attempt(world: LeaseWorld) -> None:
    """A voter's answer in flight, and the message of the release: a term is used once."""
    eu, us, stream = world.nodes["eu"], world.nodes["us"], ("t", "more", "eu")
    term = eu.leases.requests[stream].term
    eu.unwant(stream)
    world.run_ms(world.times.linger + 50)
    assert stream not in eu.leases.requests
    assert us.voter.votes[stream].is_released
    number = max(eu.leases._questions._asked_ms)
    world.delay_ms = 200
    eu.want(stream)
    world.run_ms(2)
    request = eu.leases.requests[stream]
    assert request.state is State.ASKING
    eu.leases.answered("us", LeaseAnswer(number, (AnswerItem(stream, term, True),)), eu.now_ms())
    assert "us" not in request.asked_ms
    world.run_ms(2 * world.delay_ms + 50)
    assert world.holders(stream) == ["eu"]
    us.voter.released(LeaseRelease("eu#1", ((stream, term),)))
    assert not us.voter.votes[stream].is_released
    world.check(stream)


def test_an_answer_without_a_request_is_ignored(world: LeaseWorld) -> None:
    eu: LeaseNode = world.nodes["eu"]
    before = {stream: dict(request.asked_ms) for stream, request in eu.leases.requests.items()}
    for number in (0, 10**9):
        eu.leases.renewed("us", LeaseRenewed(number), eu.now_ms())
        eu.leases.renewed("nobody", LeaseRenewed(number, (1, 2)), eu.now_ms())
    assert {stream: dict(request.asked_ms) for stream, request in eu.leases.requests.items()} == before
