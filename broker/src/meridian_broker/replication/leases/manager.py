# SPDX-License-Identifier: Apache-2.0
"""Leases between regions: this region as a candidate for streams and as a voter on them, over the exchange's links.

The two halves communicate only by messages: this region's own vote is requested like any
other. A region of an older version does not know leases; it gets no messages, and ``objection`` reports it.

In a region of several brokers, the one that owns a topic speaks for the region on its streams: it asks for them, and
votes on them. Votes are stored with the topic, so its next owner finds them before it votes, and the fence of the
topic's term keeps an earlier owner from storing any. Messages go from owner to owner (``LeaseLinks.peer_of``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterable
from typing import Final, NamedTuple, Protocol

from meridian_broker.replication.leases.leases import Leases
from meridian_broker.replication.leases.messages import (
    ITEMS_MAX,
    NOT_SERVED,
    OTHER_VOTERS,
    LeaseAnswer,
    LeaseAsk,
    LeaseMessage,
    LeaseRelease,
    LeaseRenewal,
    LeaseRenewed,
    Stream,
    VotersAnswer,
    VotersAsk,
)
from meridian_broker.replication.leases.quorums import VoterSets, preferred_among
from meridian_broker.replication.leases.reconfiguration import Reconfiguration, Subject, VoterDirectory
from meridian_broker.replication.leases.request import LeaseRequest
from meridian_broker.replication.leases.times import LeaseTimes
from meridian_broker.replication.leases.voter import Vote, VoteBasis, Voter
from meridian_broker.replication.peers import region_of

TURNS: Final = 4
TIDY_MS: Final = 60_000
"""How often votes for deleted streams are dropped."""


class LeasedTopics(VoterDirectory, Protocol):
    """The topics whose streams are leased."""

    @property
    def region(self) -> str: ...

    def voter_sets(self, stream: Stream) -> tuple[VoterSets, str] | None:
        """See ``Ballots.voter_sets``."""

    def write_votes(
        self, votes: list[tuple[Stream, tuple[str, int, int]]], durable: Callable[[list[Stream]], None]
    ) -> None:
        """Store (holder, term, duration) of each vote; see ``Ballots.write``."""

    def has_vote(self, stream: Stream, ballot: tuple[str, int, int]) -> bool:
        """See ``Ballots.has``."""

    def basis(self, stream: Stream) -> VoteBasis | None:
        """See ``Ballots.basis``."""

    def confirm(self, confirmed: Callable[[], None]) -> None:
        """See ``Ballots.confirm``."""

    def won(self, request: LeaseRequest) -> None: ...

    def lost(self, request: LeaseRequest) -> None: ...

    def wanted_back(self, request: LeaseRequest) -> None: ...

    def follow_regions(self) -> None:
        """Whether leases are possible may have changed."""


class Greeted(NamedTuple):
    """What a peer supports."""

    leases: bool
    renewals: bool
    """... without names."""
    finds_owners: bool = False
    """It takes part in leases even if a region has several brokers."""
    is_divided: bool = False
    """Its region has several brokers."""


class LeaseLinks(Protocol):
    """The links to other regions. A *peer* is a region of one broker, or a broker of another one."""

    def peer_of(self, region: str, topic: str) -> str:
        """The one that owns the topic there; a region of several brokers itself, which cannot be reached, if none is
        known to own it."""

    def send_lease(self, peer: str, message: LeaseMessage) -> None:
        """Without effect if there is no link."""

    def is_up(self, peer: str) -> bool: ...


class LeaseManager:
    """Leases of this region. It is the host of both halves."""

    def __init__(
        self,
        topics: LeasedTopics,
        holder: str,
        now_ms: Callable[[], int],
        times: LeaseTimes | None = None,
        *,
        is_one_of_several: bool = False,
    ) -> None:
        """
        :param is_one_of_several: of the brokers of its region.
        :param holder: this run of the broker; its region's name, ``#`` and something that no other run has.
        :param now_ms: a monotonic clock that includes time in which the machine is suspended.
        """
        self._topics = topics
        self._is_one_of_several = is_one_of_several
        self.now_ms = now_ms
        self.leases = Leases(self, topics.region, holder, times)
        self.voter = Voter(self)
        self.reconfiguration = Reconfiguration(
            *(topics, topics.region, now_ms, self._is_clean),
            *(self.peer_of, self.can_ask, self.send),
        )
        self.links: LeaseLinks | None = None
        self.wake: Callable[[], None] = lambda: None
        """Requests a ``tick`` soon."""
        self.is_foreign: Callable[[str], bool] = lambda _: False
        """Whether a region is not a Meridian region."""
        self._speaks: dict[str, Greeted] = {}
        """What peers said that they support; those that have not greeted yet are missing."""
        self._own: deque[LeaseMessage] = deque()
        self._tidy_ms = 0
        self._releases: dict[str, list[tuple[Stream, int]]] = {}

    # -- from topics ---------------------------------------------------------------------------------------------

    @property
    def promise_ms(self) -> int:
        """How long a vote binds, by this region's settings."""
        return self.leases.times.duration

    def objection(self, regions: Iterable[str], *, sure: bool = False) -> str:
        """Why streams of topics of these regions cannot be leased; empty: no known reason.

        :param sure: also object to regions that have not greeted yet.
        """
        others = sorted(set(regions) - {self._topics.region})
        said = {region: self._speaks.get(region) for region in others}
        divided = [region for region, one in said.items() if one is not None and one.is_divided]
        for region, one in said.items():
            if self.is_foreign(region):
                return f"{region} is not a Meridian region"
            if one is None:
                if sure:
                    return f"{region} has not been reached yet"
            elif not one.leases:
                return f"{region} runs a version without leases"
            elif (self._is_one_of_several or divided) and not one.finds_owners:
                several = self._topics.region if self._is_one_of_several else divided[0]
                return f"{region} runs a version without leases in regions of several brokers, such as {several}"
        return ""

    def objection_to_witness(self, region: str) -> str:
        """Why a region cannot vote on topics that it does not have; empty: it can."""
        said = self._speaks.get(region)
        if said is not None and said.is_divided:
            return f"{region} has several brokers, and votes only on topics that it has itself"
        return self.objection((region,), sure=True)

    def want(self, stream: Stream, voter_sets: VoterSets, preferred: str) -> LeaseRequest:
        request = self.leases.want(stream, voter_sets, preferred, self.now_ms())
        self.wake()
        return request

    def agree(self, topic: str, subscription: str) -> None:
        """Start to agree on who votes."""
        self.reconfiguration.ask((topic, subscription))
        self.wake()

    def unwant(self, stream: Stream) -> None:
        self.leases.unwant(stream, self.now_ms())
        self.wake()

    def release(self, stream: Stream) -> None:
        self.leases.release(stream, self.now_ms())
        self.wake()

    def leave(self, streams: Iterable[Stream]) -> None:
        """The streams' topic is being closed: release at once those that are held."""
        self.leases.leave(streams, self.now_ms())
        self._drain()

    def left(self, topics: Container[str]) -> None:
        """This broker does not own these topics any more."""
        self.leave([stream for stream in self.leases.requests if stream[0] in topics])
        self.voter.moved(topics)

    def release_unwanted(self) -> None:
        """Release streams without consumers: this broker is stopping, so no consumer will come."""
        self.leases.release_unwanted(self.now_ms())
        self._drain()

    def found(self, stream: Stream, holder: str, term: int, duration_ms: int) -> None:
        """A vote was found on disk; votes in memory are newer."""
        self.voter.found(stream, holder, term, duration_ms, self.now_ms())

    def holder_of(self, stream: Stream) -> tuple[str, int, str]:
        """``(region, milliseconds left, reason if there is none)`` as far as this region knows."""
        now, request = self.now_ms(), self.leases.requests.get(stream)
        if request is not None and request.until_ms > now:
            return self._topics.region, request.until_ms - now, ""
        vote = self.voter.promised(stream, now)
        if vote is not None and vote.holder != self.leases.holder:
            return vote.holder.partition("#")[0], vote.until_ms - now, ""
        return "", 0, self._why_not(request)

    def _why_not(self, request: LeaseRequest | None) -> str:
        if request is None or request.unwanted_ms is not None:
            return "no consumer is connected here, and this region has not voted"
        known = request.voter_sets
        topic = request.stream[0]
        if away := [voter for voter in request.voters if not self.can_ask(self.peer_of(voter, topic))]:
            for _, voters in known.lists:
                gone = ", ".join(voter for voter in voters if voter in away)
                if gone and len(voters) == 2 and known.is_committed:
                    if preferred_among(voters, request.preferred) != self._topics.region:
                        return f"{gone} cannot be reached: with two regions, only a command lets one take over"
                elif len([voter for voter in voters if voter not in away]) < known.enough(voters):
                    return f"no majority of {', '.join(voters)}: {gone} cannot be reached"
        if lacking := self.reconfiguration.lacking(request.stream[:2]):
            return f"the list of voters is changing: not confirmed yet by {', '.join(lacking)}"
        refusals = sorted(f"{voter}: {item.reason} {item.holder}".strip() for voter, item in request.refusals.items())
        return f"waiting for votes; {'; '.join(refusals)}" if refusals else "waiting for votes"

    # -- from links ----------------------------------------------------------------------------------------------

    def greeted(self, peer: str, greeted: Greeted) -> None:
        """A peer, or a region of several brokers before it named them, reported what it supports."""
        if self._speaks.get(peer) != greeted:
            self._speaks[peer] = greeted
            self._topics.follow_regions()

    def gone(self, peer: str) -> None:
        """The peer is gone."""
        self._speaks.pop(peer, None)

    def moved(self, region: str) -> None:
        """Other brokers of a region of several may own topics now."""
        self.leases.moved(region)

    def received(self, peer: str, message: LeaseMessage, reply: Callable[[LeaseMessage], None]) -> None:
        now, region = self.now_ms(), region_of(peer)
        match message:
            case LeaseAsk():
                self.leases.others_asked(region, message, now)
                self._drain()
                self.voter.asked(message, reply, now)
            case LeaseRenewal():
                self.voter.renew(message, reply, now)
            case LeaseRenewed():
                self.leases.renewed(region, message, now, peer)
            case LeaseRelease():
                self.voter.released(message)
                self.leases.freed(message, now)
            case LeaseAnswer():
                self.leases.answered(region, message, now, peer)
                unknown = {item.stream[:2] for item in message.items if item.reason in (OTHER_VOTERS, NOT_SERVED)}
                self.reconfiguration.tell(region, unknown)
            case VotersAsk():
                self.reconfiguration.asked(message, reply)
            case VotersAnswer():
                self.reconfiguration.answered(region, message)
        self._drain()

    def tick(self) -> None:
        if self.now_ms() >= self._tidy_ms:
            self._tidy_ms = self.now_ms() + TIDY_MS
            self.voter.tidy(self.now_ms())
        for _ in range(TURNS):  # the answer of this region's own vote may end one attempt and allow the next
            self.leases.tick(self.now_ms())
            self._drain()
            deadline = self.leases.next_deadline()
            if deadline is None or deadline > self.now_ms():
                return

    def next_deadline(self) -> int | None:
        times = (self.leases.next_deadline(), self.reconfiguration.next_deadline())
        return min((time for time in times if time is not None), default=None)

    # -- the host of requests --------------------------------------------------------------------------------------

    def peer_of(self, voter: str, topic: str) -> str:
        return voter if voter == self._topics.region or self.links is None else self.links.peer_of(voter, topic)

    def can_ask(self, peer: str) -> bool:
        if peer == self._topics.region:
            return True
        said = self._speaks.get(peer)
        return said is not None and said.leases and self.links is not None and self.links.is_up(peer)

    def can_renew(self, peer: str) -> bool:
        said = self._speaks.get(peer)
        return peer == self._topics.region or (said is not None and said.renewals)

    def send(self, peer: str, message: LeaseMessage) -> None:
        if isinstance(message, LeaseRelease):
            self._releases.setdefault(peer, []).extend(message.items)
            return
        self._say_released(peer)  # first, because what follows depends on it
        if peer == self._topics.region:
            self._own.append(message)
        elif self.links is not None and self.can_ask(peer):
            self.links.send_lease(peer, message)

    def promised_ms(self, stream: Stream) -> int:
        now = self.now_ms()
        vote = self.voter.promised(stream, now)
        return 0 if vote is None or vote.holder == self.leases.holder else vote.until_ms - now

    def won(self, request: LeaseRequest) -> None:
        self._topics.won(request)

    def lost(self, request: LeaseRequest) -> None:
        self._topics.lost(request)

    def wanted_back(self, request: LeaseRequest) -> None:
        self._topics.wanted_back(request)

    def _drain(self) -> None:
        """Send releases, in as few messages as possible, and process messages for this region's own vote."""
        while self._own or self._releases:
            while self._own:
                self._hear_own(self._own.popleft())
            for peer in list(self._releases):
                self._say_released(peer)

    def _say_released(self, peer: str) -> None:
        items = self._releases.pop(peer, [])
        for some in range(0, len(items), ITEMS_MAX):
            release = LeaseRelease(self.leases.holder, tuple(items[some : some + ITEMS_MAX]))
            if peer == self._topics.region:
                self.voter.released(release)
            elif self.links is not None and self.can_ask(peer):
                self.links.send_lease(peer, release)

    def _hear_own(self, message: LeaseMessage) -> None:
        def answered(answer: LeaseAnswer | LeaseRenewed) -> None:
            self._own.append(answer)
            self.wake()

        match message:
            case LeaseAsk():
                self.voter.asked(message, answered, self.now_ms())
            case LeaseRenewal():
                self.voter.renew(message, answered, self.now_ms())
            case LeaseAnswer():
                self.leases.answered(self._topics.region, message, self.now_ms())
            case LeaseRenewed():
                self.leases.renewed(self._topics.region, message, self.now_ms())

    # -- the voter's ballots -------------------------------------------------------------------------------------

    def voter_sets(self, stream: Stream) -> tuple[VoterSets, str] | None:
        return self._topics.voter_sets(stream)

    def has(self, stream: Stream, vote: Vote) -> bool:
        return self._topics.has_vote(stream, vote.ballot)

    def basis(self, stream: Stream) -> VoteBasis | None:
        return self._topics.basis(stream)

    def confirm(self, confirmed: Callable[[], None]) -> None:
        self._topics.confirm(confirmed)

    def _is_clean(self, subject: Subject, mark: int) -> bool:
        return self.voter.is_clean(*subject, mark, self.now_ms())

    def write(self, votes: list[tuple[Stream, Vote]], durable: Callable[[list[Stream]], None]) -> None:
        self._topics.write_votes([(stream, vote.ballot) for stream, vote in votes], durable)
