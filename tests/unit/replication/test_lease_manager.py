# SPDX-License-Identifier: Apache-2.0
"""Leases between regions: what is sent to whom, in how many messages, and why a region has no leases (R26)."""

from __future__ import annotations

from collections.abc import Callable

from meridian_broker.replication.leases.manager import TIDY_MS, Greeted, LeaseManager
from meridian_broker.replication.leases.messages import (
    AnswerItem,
    AskItem,
    LeaseAnswer,
    LeaseAsk,
    LeaseMessage,
    LeaseRelease,
    LeaseRenewal,
    LeaseRenewed,
    Stream,
)
from meridian_broker.replication.leases.quorums import Voters, VoterSets
from meridian_broker.replication.leases.reconfiguration import Heard, Subject
from meridian_broker.replication.leases.request import LeaseRequest
from meridian_broker.replication.leases.times import LeaseTimes

REGIONS = ("ap", "eu", "us")
VOTERS = VoterSets.of(*REGIONS)
TIMES = LeaseTimes()


class VoteBasis:
    """A basis that stays valid."""

    def __init__(self, region: Region, stream: Stream) -> None:
        self._region, self._stream = region, stream

    def still_valid(self) -> bool:
        return self._stream in self._region.served


class Region:
    """One region's topics and its links, which keep what is sent."""

    region = "us"

    def __init__(self) -> None:
        self.now_ms = 1000
        self.sent: list[tuple[str, LeaseMessage]] = []
        self.served: set[Stream] = set()
        self.written = 0
        self.held: set[Stream] = set()
        self.followed = self.confirmed = 0
        self.manager = LeaseManager(self, "us#1", lambda: self.now_ms, TIMES)
        self.manager.links = self

    def voter_sets(self, stream: Stream) -> tuple[VoterSets, str] | None:
        return (VOTERS, "") if stream in self.served else None

    def known(self, subject: Subject) -> tuple[VoterSets, Voters] | None:
        return VOTERS, REGIONS

    def hear(self, subject: Subject, told: VoterSets, heard: Heard) -> None:
        heard(VOTERS, REGIONS)

    def commit(self, subject: Subject, heard: frozenset[str]) -> None:
        raise AssertionError("all is committed")

    def write_votes(
        self, votes: list[tuple[Stream, tuple[str, int, int]]], durable: Callable[[list[Stream]], None]
    ) -> None:
        self.written += len(votes)
        durable([stream for stream, _ in votes])

    def has_vote(self, stream: Stream, ballot: tuple[str, int, int]) -> bool:
        return stream in self.served

    def basis(self, stream: Stream) -> VoteBasis:
        return VoteBasis(self, stream)

    def confirm(self, confirmed: Callable[[], None]) -> None:
        self.confirmed += 1
        confirmed()

    def won(self, request: LeaseRequest) -> None:
        self.held.add(request.stream)

    def lost(self, request: LeaseRequest) -> None:
        self.held.discard(request.stream)

    def wanted_back(self, request: LeaseRequest) -> None:
        raise AssertionError("everything is with its preferred holder")

    def follow_regions(self) -> None:
        self.followed += 1

    def peer_of(self, region: str, topic: str) -> str:
        return region

    def send_lease(self, region: str, message: LeaseMessage) -> None:
        self.sent.append((region, message))

    def is_up(self, region: str) -> bool:
        return True

    def want(self, stream: Stream) -> None:
        self.served.add(stream)
        self.manager.want(stream, VOTERS, "us")

    def grant_all(self) -> None:
        """The others grant what they were asked for."""
        asked, self.sent = self.sent, []
        for region, message in asked:
            if isinstance(message, LeaseAsk):
                items = tuple(AnswerItem(item.stream, item.term, True) for item in message.items)
                self.manager.received(region, LeaseAnswer(message.number, items), lambda _: None)
            elif isinstance(message, LeaseRenewal):
                self.manager.received(region, LeaseRenewed(message.number), lambda _: None)


def test_a_region_of_an_older_version_is_sent_nothing_and_there_are_no_leases() -> None:
    us = Region()
    assert us.manager.objection(REGIONS) == ""
    assert us.manager.objection(REGIONS, sure=True) == "ap has not been reached yet"
    us.manager.greeted("ap", Greeted(leases=True, renewals=True))
    us.manager.greeted("eu", Greeted(leases=False, renewals=False))
    assert us.manager.objection(REGIONS) == "eu runs a version without leases"
    us.want(("t", "s", "us"))
    us.manager.tick()
    assert {region for region, _ in us.sent} == {"ap"}
    us.manager.greeted("eu", Greeted(leases=True, renewals=True))
    assert us.manager.objection(REGIONS, sure=True) == ""
    assert us.followed == 3
    us.manager.is_foreign = lambda region: region == "ap"
    assert us.manager.objection(REGIONS) == "ap is not a Meridian region"


def test_a_thousand_streams_are_renewed_in_a_few_messages() -> None:
    us = Region()
    for region in ("ap", "eu"):
        us.manager.greeted(region, Greeted(leases=True, renewals=True))
    for number in range(1000):
        us.want((f"t{number // 10}", f"s{number % 10}", "us"))
    us.manager.tick()
    us.grant_all()
    assert len(us.held) == 1000
    for _ in range(3):
        us.sent.clear()
        us.now_ms += TIMES.beat
        us.manager.tick()
        assert len(us.sent) == 2
        us.grant_all()
    us.now_ms += TIMES.duration - TIMES.beat
    us.manager.tick()
    assert len(us.held) == 1000
    assert us.written == 1000, "a renewal adds nothing to record"
    assert us.confirmed >= 3, "but it is checked that no later owner votes for this region"
    for number in range(1000):
        us.manager.unwant((f"t{number // 10}", f"s{number % 10}", "us"))
    us.sent.clear()
    us.manager.release_unwanted()
    assert len(us.sent) == 2 * 4
    assert all(isinstance(message, LeaseRelease) for _, message in us.sent)
    assert us.manager.next_deadline() is None or not us.manager.leases.requests


def test_a_region_of_an_older_version_is_asked_by_name_each_time() -> None:
    us = Region()
    us.manager.greeted("ap", Greeted(leases=True, renewals=False))
    us.manager.greeted("eu", Greeted(leases=True, renewals=True))
    for number in range(300):
        us.want((f"t{number}", "s", "us"))
    us.manager.tick()
    us.grant_all()

    def said() -> list[tuple[str, str]]:
        us.sent.clear()
        us.now_ms += TIMES.beat
        us.manager.tick()
        said = [(region, type(message).__name__) for region, message in us.sent]
        us.grant_all()
        return said

    assert sorted(said()) == [("ap", "LeaseAsk"), ("ap", "LeaseAsk"), ("eu", "LeaseRenewal")]
    us.manager.greeted("ap", Greeted(leases=True, renewals=True))
    assert sorted(said()) == [("ap", "LeaseAsk"), ("ap", "LeaseAsk"), ("eu", "LeaseRenewal")]
    assert sorted(said()) == [("ap", "LeaseRenewal"), ("eu", "LeaseRenewal")]
    us.manager.greeted("eu", Greeted(leases=True, renewals=False))
    assert said() == [("ap", "LeaseRenewal")]
    assert sorted(said()) == [("ap", "LeaseRenewal"), ("eu", "LeaseAsk"), ("eu", "LeaseAsk")]
    assert len(us.held) == 300


def test_releases_are_sent_before_the_rest_is_renewed() -> None:
    us = Region()
    us.manager.greeted("ap", Greeted(leases=True, renewals=True))
    us.manager.greeted("eu", Greeted(leases=True, renewals=True))
    for number in range(3):
        us.want((f"t{number}", "s", "us"))
    us.manager.tick()
    us.grant_all()
    us.now_ms += TIMES.beat - TIMES.linger
    us.manager.unwant(("t1", "s", "us"))
    us.sent.clear()
    us.now_ms += TIMES.linger
    us.manager.tick()
    said = [type(message).__name__ for region, message in us.sent if region == "ap"]
    assert said == ["LeaseRelease", "LeaseRenewal"], "otherwise the two digests would differ"


def test_votes_on_deleted_topics_are_dropped() -> None:
    us = Region()
    gone, kept = ("gone", "s", "eu"), ("kept", "s", "eu")
    us.served |= {gone, kept}
    items = tuple(AskItem(stream, 1, VOTERS.mark, "eu") for stream in (gone, kept))
    us.manager.received("eu", LeaseAsk(1, "eu#1", 6000, items), lambda _: None)
    us.served.discard(gone)
    us.manager.tick()
    assert set(us.manager.voter.votes) == {gone, kept}, "it is still promised"
    us.now_ms += TIDY_MS
    us.manager.tick()
    assert set(us.manager.voter.votes) == {kept}


def test_the_dispatcher_is_reported_with_a_reason() -> None:
    us = Region()
    stream = ("t", "s", "us")
    assert us.manager.holder_of(stream)[2].startswith("no consumer is connected here")
    us.want(stream)
    us.manager.tick()
    assert us.manager.holder_of(stream) == ("", 0, "no majority of ap, eu, us: ap, eu cannot be reached")
    for region in ("ap", "eu"):
        us.manager.greeted(region, Greeted(leases=True, renewals=True))
    us.now_ms += TIMES.step
    us.manager.tick()
    us.grant_all()
    holder, left_ms, reason = us.manager.holder_of(stream)
    assert (holder, reason) == ("us", "")
    assert 0 < left_ms <= TIMES.usable


def test_of_two_regions_the_reason_for_no_take_over_is_given_and_a_witness_adds_one() -> None:
    us = Region()
    stream = ("t", "s", "eu")
    us.served.add(stream)
    us.manager.want(stream, VoterSets.of("eu", "us"), "eu")
    us.manager.tick()
    alone = "eu cannot be reached: with two regions, only a command lets one take over"
    assert us.manager.holder_of(stream)[2] == alone
    us.manager.want(stream, VOTERS, "eu")
    assert us.manager.holder_of(stream)[2] == "no majority of ap, eu, us: ap, eu cannot be reached"
    us.manager.greeted("ap", Greeted(leases=True, renewals=True))
    assert us.manager.holder_of(stream)[2] == "waiting for votes"
