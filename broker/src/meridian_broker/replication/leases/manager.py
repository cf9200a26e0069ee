# SPDX-License-Identifier: Apache-2.0
"""Leases between regions: this region as a candidate for streams and as a voter on them, over the exchange's links.

The two halves communicate only by messages: this region's own vote is requested like any
other. A region of an older version does not know leases; it gets no messages, and ``objection`` reports it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from meridian_broker.replication.leases.claim import Claim
from meridian_broker.replication.leases.leases import Leases, LeaseTimes
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
from meridian_broker.replication.leases.voter import Vote, VoteBasis, Voter

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

    def won(self, claim: Claim) -> None: ...

    def lost(self, claim: Claim) -> None: ...

    def wanted_back(self, claim: Claim) -> None: ...

    def follow_regions(self) -> None:
        """Whether leases are possible may have changed."""


class LeaseLinks(Protocol):
    """The links to other regions."""

    def send_lease(self, region: str, message: LeaseMessage) -> None:
        """Without effect if there is no link."""

    def is_up(self, region: str) -> bool: ...


class LeaseManager:
    """Leases of this region. It is the host of both halves."""

    def __init__(
        self,
        topics: LeasedTopics,
        holder: str,
        now_ms: Callable[[], int],
        times: LeaseTimes | None = None,
        *,
        has_votes: bool = True,
    ) -> None:
        """
        :param has_votes: false in a region of several brokers, which neither vote nor ask for leases.
        :param holder: this life of the broker; its region's name, ``#`` and something that no other life has.
        :param now_ms: a monotonic clock that includes time in which the machine is suspended.
        """
        self._topics = topics
        self._has_votes = has_votes
        self.now_ms = now_ms
        self.leases = Leases(self, topics.region, holder, times)
        self.voter = Voter(self)
        self.reconfiguration = Reconfiguration(topics, topics.region, now_ms, self._is_clean, self.can_ask, self.send)
        self.links: LeaseLinks | None = None
        self.wake: Callable[[], None] = lambda: None
        """Requests a ``tick`` soon."""
        self.is_foreign: Callable[[str], bool] = lambda _: False
        """Whether a region is not a Meridian region."""
        self._speaks: dict[str, bool] = {}
        """Region -> whether it supports leases; regions that have not greeted yet are missing."""
        self._divided = set[str]()
        """Regions of several brokers."""
        self._renews = {topics.region}
        """Regions that support renewals without names."""
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
        for region in sorted(regions):
            if region == self._topics.region:
                if not self._has_votes:
                    return f"{region} has several brokers, which have no leases yet"
                continue
            if self.is_foreign(region):
                return f"{region} is not a Meridian region"
            if region in self._divided:
                return f"{region} has several brokers, which have no leases yet"
            if not self._speaks.get(region, not sure):
                heard = region in self._speaks
                return f"{region} {'runs a version without leases' if heard else 'was not reached yet'}"
        return ""

    def want(self, stream: Stream, voter_sets: VoterSets, preferred: str) -> Claim:
        claim = self.leases.want(stream, voter_sets, preferred, self.now_ms())
        self.wake()
        return claim

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

    def release_unwanted(self) -> None:
        """Release streams without consumers: this broker is stopping, so no consumer will come."""
        self.leases.release_unwanted(self.now_ms())
        self._drain()

    def found(self, stream: Stream, holder: str, term: int, duration_ms: int) -> None:
        """A vote was found on disk; votes in memory are newer."""
        self.voter.found(stream, holder, term, duration_ms, self.now_ms())

    def holder_of(self, stream: Stream) -> tuple[str, int, str]:
        """``(region, milliseconds left, reason if there is none)`` as far as this region knows."""
        now, claim = self.now_ms(), self.leases.claims.get(stream)
        if claim is not None and claim.until_ms > now:
            return self._topics.region, claim.until_ms - now, ""
        vote = self.voter.promised(stream, now)
        if vote is not None and vote.holder != self.leases.holder:
            return vote.holder.partition("#")[0], vote.until_ms - now, ""
        return "", 0, self._why_not(claim)

    def _why_not(self, claim: Claim | None) -> str:
        if claim is None or claim.unwanted_ms is not None:
            return "no consumer is connected here, and this region has not voted"
        known = claim.voter_sets
        if away := [voter for voter in claim.voters if not self.can_ask(voter)]:
            for _, voters in known.lists:
                gone = ", ".join(voter for voter in voters if voter in away)
                if gone and len(voters) == 2 and known.is_committed:
                    if preferred_among(voters, claim.preferred) != self._topics.region:
                        return f"{gone} cannot be reached: with two regions, only a command lets one take over"
                elif len([voter for voter in voters if voter not in away]) < known.enough(voters):
                    return f"no majority of {', '.join(voters)}: {gone} cannot be reached"
        if lacking := self.reconfiguration.lacking(claim.stream[:2]):
            return f"the list of voters is changing: {', '.join(lacking)} did not confirm it yet"
        refusals = sorted(f"{voter}: {item.reason} {item.holder}".strip() for voter, item in claim.refusals.items())
        return f"waiting for votes; {'; '.join(refusals)}" if refusals else "waiting for votes"

    # -- from links ----------------------------------------------------------------------------------------------

    def greeted(self, region: str, *, leases: bool, renewals: bool, is_divided: bool = False) -> None:
        """A region reported whether it supports leases, and renewals without names, and whether it has several
        brokers."""
        if is_divided:
            self._divided.add(region)
        else:
            self._divided.discard(region)
        if renewals:
            self._renews.add(region)
        else:
            self._renews.discard(region)
        if self._speaks.get(region) != leases:
            self._speaks[region] = leases
            self._topics.follow_regions()

    def received(self, region: str, message: LeaseMessage, reply: Callable[[LeaseMessage], None]) -> None:
        now = self.now_ms()
        match message:
            case LeaseAsk():
                self.leases.others_asked(region, message, now)
                self._drain()
                self.voter.asked(message, reply, now)
            case LeaseRenewal():
                self.voter.renew(message, reply, now)
            case LeaseRenewed():
                self.leases.renewed(region, message, now)
            case LeaseRelease():
                self.voter.released(message)
                self.leases.freed(message, now)
            case LeaseAnswer():
                self.leases.answered(region, message, now)
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

    # -- the host of claims --------------------------------------------------------------------------------------

    def can_ask(self, voter: str) -> bool:
        if voter == self._topics.region:
            return True
        return self._speaks.get(voter, False) and self.links is not None and self.links.is_up(voter)

    def can_renew(self, voter: str) -> bool:
        return voter in self._renews

    def send(self, voter: str, message: LeaseMessage) -> None:
        if isinstance(message, LeaseRelease):
            self._releases.setdefault(voter, []).extend(message.items)
            return
        self._say_released(voter)  # first, because what follows depends on it
        if voter == self._topics.region:
            self._own.append(message)
        elif self.links is not None and self.can_ask(voter):
            self.links.send_lease(voter, message)

    def promised_ms(self, stream: Stream) -> int:
        now = self.now_ms()
        vote = self.voter.promised(stream, now)
        return 0 if vote is None or vote.holder == self.leases.holder else vote.until_ms - now

    def won(self, claim: Claim) -> None:
        self._topics.won(claim)

    def lost(self, claim: Claim) -> None:
        self._topics.lost(claim)

    def wanted_back(self, claim: Claim) -> None:
        self._topics.wanted_back(claim)

    def _drain(self) -> None:
        """Send releases, in as few messages as possible, and process messages for this region's own vote."""
        while self._own or self._releases:
            while self._own:
                self._hear_own(self._own.popleft())
            for voter in list(self._releases):
                self._say_released(voter)

    def _say_released(self, voter: str) -> None:
        items = self._releases.pop(voter, [])
        for some in range(0, len(items), ITEMS_MAX):
            release = LeaseRelease(self.leases.holder, tuple(items[some : some + ITEMS_MAX]))
            if voter == self._topics.region:
                self.voter.released(release)
            elif self.links is not None and self.can_ask(voter):
                self.links.send_lease(voter, release)

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
