# SPDX-License-Identifier: Apache-2.0
"""Digests: what they cost when nothing differs, how little is sent when something does, and the cut (R8, R15, R19)."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from meridian_broker.positions.progress import Progress
from meridian_broker.replication.progress import digests as cache
from meridian_broker.replication.progress import links
from meridian_broker.replication.progress.digest_tree import bucket_of
from meridian_broker.replication.progress.messages import (
    OLDEST_VERSION,
    SUMMARY_VERSION,
    Digest,
    ExchangeLimits,
    Fetch,
    Question,
    State,
    StateItem,
    TopicDigest,
)
from meridian_broker.replication.progress.waits import FlushResult
from support.worlds.exchange_world import ExchangeWorld, S, T, connected


def world_of(*names: str, limits: ExchangeLimits | None = None) -> ExchangeWorld:
    return connected(names, limits=limits, ledgers=(1, 2, 3))


def same(world: ExchangeWorld, name: str = S) -> bool:
    found = [region.progress(T, name) for region in world.regions.values()]
    return all(progress == found[0] for progress in found)


def test_idle_topics_cost_one_digest_per_round_whatever_the_number_of_subscriptions() -> None:
    world = world_of("us", "eu")
    for number in range(200):
        world.regions["us"].subscribe(T, f"s{number}")
    world.run(12_000)
    world.sent.clear()
    world.sent_bytes.clear()
    world.run(10_000)
    assert world.sent == {"Digest": 4}, "two rounds, both directions, and no answers"
    assert world.sent_bytes["Digest"] < 4 * 60


def test_many_topics_are_announced_a_message_at_a_time() -> None:
    world = ExchangeWorld(["us", "eu"], limits=ExchangeLimits(items_per_message=4))
    here = world.regions["us"]
    for number in range(30):
        here.subscribe(f"topic {number}", S)
    heard = world.listen()
    world.connect_all()
    world.run(400)
    assert all(world.regions["eu"].progress(f"topic {number}", S) is not None for number in range(30))
    told = [(at, m.topics) for at, source, _, m in heard if isinstance(m, Digest) and source == "us" and not m.answer]
    digests = [(at, topics) for at, topics in told if topics and topics[0].subscriptions is None]
    assert [len(topics) for _, topics in digests] == [4] * 7 + [2]
    assert [later - earlier for (earlier, _), (later, _) in pairwise(digests)] == [10] * 7
    assert {topic.topic for _, topics in digests for topic in topics} == set(here.topics)


def test_connecting_again_costs_what_differs() -> None:
    """A flapping link must not list 100,000 topics each time; bench/exchange measures that."""
    world = world_of("us", "eu")
    here = world.regions["us"]
    for number in range(5000):
        here.subscribe(f"topic {number}", S)
    world.run(20_000)
    peer = here.exchange._peers["eu"]
    assert peer.in_sync == set(here.topics)
    for missed in range(3):
        world.cut("us", "eu")
        for topic in (f"topic {missed}", f"topic {missed + 2000}")[:missed]:
            for entry in world.produce("us", topic, 3):
                here.ack(topic, S, [entry])
            world.replicate_all(topic)
        world.sent_bytes.clear()
        heard = world.listen()
        world.connect_all()
        world.run(2000)
        assert sum(world.sent_bytes.values()) < 250 + 7000 * missed
        listed = {t.topic for *_, m in heard if isinstance(m, Digest) for t in m.topics}
        assert len(listed) <= 3 * missed
        assert all(world.regions["eu"].progress(t, S) == here.progress(t, S) for t in here.topics)
        assert peer.in_sync == set(here.topics), "a flush sends nothing in full"


def test_only_a_part_around_an_unnoticed_difference_is_listed() -> None:
    """A restored region does not know what it lacks: one topic costs its bucket's digests and a few neighbours."""
    world = world_of("us", "eu")
    here = world.regions["us"]
    for number in range(5000):
        here.subscribe(f"topic {number}", S)
    world.run(20_000)
    entries = world.produce("us", "topic 7", 3)
    world.replicate_all("topic 7")
    world.cut("us", "eu")
    here.know("topic 7", S, entries[0])
    here.exchange._context.digests.mark("topic 7", S)
    heard = world.listen()
    world.sent_bytes.clear()
    world.connect_all()
    world.run(500)
    assert world.regions["eu"].progress("topic 7", S) == here.progress("topic 7", S)
    listed = {t.topic for *_, m in heard if isinstance(m, Digest) for t in m.topics}
    assert "topic 7" in listed
    assert len(listed) <= 4, "of 5,000: a part of a bucket has one, or two"
    assert sum(world.sent_bytes.values()) < 12_000


@pytest.mark.parametrize("version", [OLDEST_VERSION, SUMMARY_VERSION])
def test_regions_of_earlier_versions_get_in_sync_with_this_one(version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that greets with an earlier version is sent nothing unknown to it, and both end up in sync."""
    monkeypatch.setattr(links, "PROTOCOL_VERSION", version)
    world = ExchangeWorld(["us", "eu"])
    for name in ("us", "eu"):
        for number in range(2000):
            world.regions[name].subscribe(f"topic {number} of {name if number % 7 else 'both'}", S)
    heard = world.listen()
    world.connect_all()
    world.run(20_000)
    assert set(world.regions["us"].topics) == set(world.regions["eu"].topics)
    for name, other in (("us", "eu"), ("eu", "us")):
        region = world.regions[name]
        assert region.exchange._peers[other].in_sync == set(region.topics)
        assert all(region.progress(t, S) == world.regions[other].progress(t, S) for t in region.topics)
    digests = [m for *_, m in heard if isinstance(m, Digest)]
    assert not any(m.differing or (m.summary and version < SUMMARY_VERSION) for m in digests)
    assert not any(m.parts for *_, m in heard if isinstance(m, Fetch))


def test_idle_topics_cost_one_digest_per_round_whatever_their_number() -> None:
    """100,000 idle subscriptions in three regions may cost 50 KB/s; bench/exchange measures that."""
    world = world_of("us", "eu", "ap")
    for number in range(300):
        world.regions["us"].subscribe(f"topic {number}", S)
    world.run(12_000)
    world.sent.clear()
    world.sent_bytes.clear()
    world.run(10_000)
    assert world.sent == {"Digest": 12}, "two rounds, each region to two others, and no questions"
    assert world.sent_bytes["Digest"] < 12 * 60
    peer = world.regions["us"].exchange._peers["eu"]
    assert peer.in_sync == {T, *(f"topic {number}" for number in range(300))}


def test_of_many_topics_only_those_that_differ_are_listed() -> None:
    world = world_of("us", "eu")
    here = world.regions["us"]
    for number in range(300):
        here.subscribe(f"topic {number}", S)
    world.run(12_000)
    entries = world.produce("us", "topic 7", 3)
    world.replicate_all("topic 7")
    here.know("topic 7", S, entries[0])
    here.exchange._context.digests.mark("topic 7", S)  # nobody was told about it
    world.sent.clear()
    heard = world.listen()
    world.run(6000)
    assert world.regions["eu"].progress("topic 7", S) == here.progress("topic 7", S)
    listed = {topic.topic for _, _, _, message in heard if isinstance(message, Digest) for topic in message.topics}
    assert "topic 7" in listed
    assert len(listed) < 10, "a bucket of 256"
    assert not peer_is_uneven(world)


def peer_is_uneven(world: ExchangeWorld) -> set[str]:
    world.run(12_000)
    return set(world.regions["us"].topics) - world.regions["us"].exchange._peers["eu"].in_sync


def test_a_peer_of_the_first_version_gets_a_digest_of_each_topic() -> None:
    world = world_of("us", "eu")
    for number in range(20):
        world.regions["us"].subscribe(f"topic {number}", S)
    world.run(12_000)
    for name, other in (("us", "eu"), ("eu", "us")):
        world.regions[name].exchange._peers[other].version = OLDEST_VERSION
    heard = world.listen()
    world.run(6000)
    messages = [message for _, _, _, message in heard if isinstance(message, Digest)]
    assert all(message.summary is None for message in messages)
    assert {topic.topic for message in messages for topic in message.topics} == set(world.regions["us"].topics)


def test_only_differences_are_sent() -> None:
    world = world_of("us", "eu")
    here = world.regions["us"]
    for number in range(50):
        here.subscribe(T, f"s{number}")
        here.ack(T, f"s{number}", here.topics[T].entries[1::2])
    world.run(12_000)
    world.cut("us", "eu")
    entries = [entry for entry in here.topics[T].entries if entry.origin.ledger == 3]
    here.ack(T, "s7", entries[4:5])
    heard = world.listen()
    world.connect_all()
    world.run(50)
    assert same(world, "s7")
    states = [message for *_, message in heard if isinstance(message, State)]
    items = [item for state in states for item in state.items]
    assert {item.subscription for item in items} == {"s7"}
    told = Progress.decode(items[0].progress)
    assert not any(told.is_acked("us", entry.origin.position) for entry in here.topics[T].entries[:20]), (
        "ledgers 1 and 2 are equal on both sides"
    )


def test_a_long_list_of_differences_is_requested_in_pieces() -> None:
    limits = ExchangeLimits(fetching=4, wanted=10, subscriptions_per_digest=7, keys_inline=5, items_per_message=3)
    world = world_of("us", "eu", limits=limits)
    world.cut("us", "eu")
    here = world.regions["us"]
    for number in range(30):
        here.subscribe(T, f"s{number}")
        here.ack(T, f"s{number}", here.topics[T].entries[number % 7 :: 3])
    world.connect_all()
    world.run(30_000)
    assert all(same(world, f"s{number}") for number in range(30))


def test_both_sides_missing_something_heal_each_other() -> None:
    world = world_of("us", "eu", "ap")
    for one, two in (("us", "eu"), ("us", "ap"), ("eu", "ap")):
        world.cut(one, two)
    for number, region in enumerate(world.regions.values()):
        region.ack(T, S, region.topics[T].entries[number::5])
        region.subscribe(T, f"made in {region.region}")
    world.connect_all()
    world.run(100)
    assert same(world)
    assert all(same(world, f"made in {name}") for name in world.names)


def test_one_link_alone_heals_both_directions() -> None:
    """us can connect to eu, eu cannot connect to us (R19: digests are answered on the link they came on)."""
    world = world_of("us", "eu")
    world.disconnect("eu", "us")
    world.regions["eu"].ack(T, S, world.regions["eu"].topics[T].entries[:4])
    world.run(50)
    assert not same(world)
    world.run(6000)
    assert same(world)


def test_one_link_alone_reports_that_all_is_equal() -> None:
    """A region that cannot connect says so in answer: else every close of a consumer would send its whole progress."""
    world = world_of("us", "eu")
    world.disconnect("eu", "us")
    world.disconnect("us", "eu")
    world.connect("us", "eu")
    heard = world.listen()
    world.run(1000)
    assert world.regions["us"].exchange._peers["eu"].in_sync == {T}
    assert world.regions["eu"].exchange._peers["us"].in_sync == {T}
    assert [m.summary is not None and m.answer for _, source, _, m in heard if source == "eu" and isinstance(m, Digest)]
    assert len(heard) == 4, "two greetings, two numbers"


def test_a_region_that_lost_data_is_not_in_sync_on_a_new_link() -> None:
    """Restored from a copy, it lacks what it once confirmed: a flush must not rely on earlier knowledge."""
    world = world_of("us", "eu")
    here, there = world.regions["us"], world.regions["eu"]
    here.ack(T, S, here.topics[T].entries[:3])
    world.run(6000)
    assert here.exchange._peers["eu"].in_sync == {T}
    world.cut("us", "eu")
    there.topics[T].subscriptions[S].progress = Progress()
    there.exchange._context.digests.mark(T, S)
    world.connect_all()
    done: list[tuple[bool, bool]] = []

    def flushed(result: FlushResult) -> None:
        done.append((result.complete, there.progress(T, S) == here.progress(T, S)))

    here.exchange.flush(T, S, world.now_ms, flushed)
    world.run(300)
    assert done == [(True, True)]


def test_a_region_learns_from_a_third_what_a_dead_one_did_not_send() -> None:
    world = world_of("us", "eu", "ap")
    world.network.deaf.add(("us", "ap"))
    world.regions["us"].ack(T, S, world.regions["us"].topics[T].entries[:4])
    world.run(20)
    world.crash("us")
    world.run(300)
    assert len(world.regions["ap"].unacked(T, S)) == 26, "soon after the loss, not at the next round"


def digest(sent: int, applied: int, *, number: int = 1, forced: bool = False, in_flux: bool = False) -> Digest:
    return Digest(sent, applied, (TopicDigest(T, "", number, in_flux, forced),))


class Asked:
    """What a region requests when it gets a digest that differs from its own."""

    def __init__(self) -> None:
        self.world = world_of("us", "eu")
        self.region = self.world.regions["eu"]
        self.exchange = self.region.exchange
        self.highest = self.world.regions["us"].exchange.status(T, S, self.world.now_ms)[0].last_sent

    def when(self, message: Digest) -> bool:
        answers: list[object] = []
        self.exchange.received("us", message, answers.append, self.world.now_ms)
        assert all(isinstance(answer, Fetch) for answer in answers)
        return bool(answers)


def test_a_digest_of_an_idle_topic_is_compared() -> None:
    asked = Asked()
    assert asked.when(digest(asked.highest, 0))


@pytest.mark.parametrize("what", ["a delta of theirs is missing", "a delta of ours is not in it", "in_flux"])
def test_a_digest_that_races_a_delta_causes_no_transfer(what: str) -> None:
    asked = Asked()
    message = digest(asked.highest, 0)
    if what == "a delta of theirs is missing":
        message = digest(asked.highest + 1, 0)
    elif what == "a delta of ours is not in it":
        asked.region.ack(T, S, asked.region.topics[T].entries[:1])
        asked.world.run(10)
    else:
        message = digest(asked.highest, 0, in_flux=True)
    assert not asked.when(message)


def test_a_topic_that_is_never_quiet_is_compared_every_fourth_time() -> None:
    asked = Asked()
    assert [asked.when(digest(asked.highest, 0, in_flux=True)) for _ in range(8)] == [False, False, False, True] * 2


def test_a_topic_with_a_given_up_delta_is_compared_at_once() -> None:
    asked = Asked()
    assert asked.when(digest(asked.highest + 1, 0, forced=True))


def test_a_digest_waits_for_the_deltas_before_it() -> None:
    world = world_of("us", "eu")
    eu = world.regions["eu"]
    eu.disk_ms = 500
    us = world.regions["us"]
    us.ack(T, S, us.topics[T].entries[:3])
    world.run(10)
    asked: list[object] = []
    number = us.exchange.status(T, S, world.now_ms)[0].last_sent
    eu.exchange.received("us", digest(number, 0), asked.append, world.now_ms)
    world.run(400)
    assert asked == []
    world.run(200)
    assert asked == [Fetch((Question(T),))]


def test_a_digest_names_only_deltas_that_are_durable() -> None:
    world = world_of("us", "eu")
    world.regions["eu"].disk_ms = 500
    world.regions["us"].ack(T, S, world.regions["us"].topics[T].entries[:3])
    world.run(10)
    number = world.regions["us"].exchange.status(T, S, world.now_ms)[0].last_sent
    heard = world.listen()
    world.disconnect("eu", "us")
    world.connect("eu", "us")
    world.run(10)
    (first,) = [message for _, source, _, message in heard if isinstance(message, Digest) and source == "eu"]
    assert first.applied == number - 1
    assert first.summary is not None
    assert first.summary.in_flux, "and that not all it holds is durable"
    assert first.summary.buckets_in_flux == (bucket_of(T),)


def test_a_digest_in_answer_is_not_answered_with_another() -> None:
    asked = Asked()
    asked.world.disconnect("eu", "us")
    for answer in (False, True):
        heard: list[object] = []
        message = Digest(asked.highest, 0, (TopicDigest(T, "", 1),), answer)
        asked.exchange.received("us", message, heard.append, asked.world.now_ms)
        assert [type(one).__name__ for one in heard] == (["Fetch"] if answer else ["Fetch", "Digest"])


@pytest.mark.parametrize("late", [False, True])
def test_digests_follow_merges_whenever_the_host_merges(late: bool) -> None:
    world = world_of("us", "eu")
    eu = world.regions["eu"]
    eu.joins_when_durable, eu.disk_ms = late, 20
    us = world.regions["us"]
    before = eu.exchange._context.digests.topic(T)
    us.ack(T, S, us.topics[T].entries[:3])
    world.run(5)
    eu.exchange._context.digests.topic(T)
    world.run(50)
    assert eu.exchange._context.digests.topic(T) == us.exchange._context.digests.topic(T) != before


def test_nothing_useless_is_sent_under_steady_traffic() -> None:
    world = world_of("us", "eu", "ap")
    world.network.latency_ms = 20
    for number in range(30):
        region = world.regions[world.names[number % 3]]
        region.ack(T, S, [region.topics[T].entries[number]])
        world.run(230)
    assert world.sent["State"] == 0
    assert world.sent["Digest"] >= 6


def test_unrequested_states_are_judged_like_deltas() -> None:
    world = world_of("us", "eu")
    eu, before = world.regions["eu"], world.regions["eu"].progress(T, S)
    assert before is not None
    before = before.copy()
    items = (
        StateItem(T, S, "", b"record", b"\x07"),
        StateItem(T, S, "9.0@us", b"record", before.encode()),
    )
    answers: list[object] = []
    eu.exchange.received("us", State(items), answers.append, world.now_ms)
    assert eu.progress(T, S) == before
    assert eu.exchange.counters.refused_here == 2


def test_deleted_subscriptions_are_left_out_of_the_answer() -> None:
    world = world_of("us", "eu")
    questions = (Question("no topic"), Question(T, "no subscription"), Question(T, "none", state=True))
    answers: list[object] = []
    world.regions["eu"].exchange.received("us", Fetch(questions), answers.append, world.now_ms)
    assert all(isinstance(answer, Digest) for answer in answers)
    assert [topic.subscriptions for a in answers if isinstance(a, Digest) for topic in a.topics] == [(), ()]


def test_a_flood_of_unknown_topics_is_not_remembered() -> None:
    world = world_of("us", "eu", limits=ExchangeLimits(topics_apart=10))
    exchange = world.regions["eu"].exchange
    answers: list[object] = []
    for number in range(100):
        topics = tuple(TopicDigest(f"{number} {kind}", kind, 0 if kind else 5, in_flux=True) for kind in ("", "x"))
        exchange.received("us", Digest(0, 0, topics), answers.append, world.now_ms)
    peer = exchange._context.peers["us"]
    assert len(peer.waiting) == len(peer.skips) == 10
    assert peer.in_sync == {T}
    assert len(peer.forced) <= 1


def test_open_topics_are_found_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass over a hundred thousand topics at each round's start would block the broker for a while."""
    monkeypatch.setattr(cache, "FOLLOWED", 3)
    world = ExchangeWorld(("us", "eu"))
    us = world.regions["us"]
    looked: Counter[int] = Counter()
    is_replicated = us.is_replicated

    def counted(topic: str) -> bool:
        looked[world.now_ms] += 1
        return is_replicated(topic)

    monkeypatch.setattr(us, "is_replicated", counted)
    for number in range(20):
        us.subscribe(f"t{number}", S)
    world.connect_all()
    world.run(15)
    assert 0 < sum(looked.values()) < 20
    world.disconnect("us", "eu")
    world.connect_all()  # the next round begins again
    world.run(1000)
    assert max(looked.values()) == 3
    assert all(world.regions["eu"].progress(f"t{number}", S) is not None for number in range(20))
    for number in range(15):
        del us.topics[f"t{number}"]
    looked.clear()
    world.run(10_000)
    assert set(us.exchange._context.digests.topics()) == us.topics.keys()
    assert max(looked.values()) <= 3


def test_a_round_over_many_subscriptions_is_done_in_pieces() -> None:
    """R19: the broker works on between two messages of a round, however many idle subscriptions there are."""
    world = ExchangeWorld(("us", "eu"), limits=ExchangeLimits(subscriptions_at_once=20))
    for number in range(10):
        world.produce("us", f"t{number}", 1)
        for name in range(10):
            world.regions["us"].subscribe(f"t{number}", f"s{name}")
    heard = world.listen()
    world.connect_all()  # all topics are counted, and then, as eu has none, listed
    world.run(1000)
    digests = [(at, m) for at, source, _, m in heard if source == "us" and isinstance(m, Digest)]
    summary = next(at for at, m in digests if m.summary is not None)
    assert summary - min(at for at, *_ in heard) >= 40
    rounds = [(at, len(m.topics)) for at, m in digests if m.topics and m.topics[0].subscriptions is None]
    assert [count for _, count in rounds] == [2] * 5
    assert [at - rounds[0][0] for at, _ in rounds] == [0, 10, 20, 30, 40]
