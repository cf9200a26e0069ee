# SPDX-License-Identifier: Apache-2.0
"""The voter's side of leases: to which holder this voter promised a stream, and until when by its own clock (R26).

A vote is a promise not to vote for another holder before it expires. It is durable before it is given. A voter that
restarts does not know when it gave the votes on its disk, so it counts each for its whole duration from then on. So a
renewal need not be written individually; but a voter that was replaced meanwhile must notice that before it renews what
its successor may have granted to another holder. One record for all renewals of a message is enough.

The term of a stream only grows. It prevents a late answer to an earlier attempt from counting in a
later one.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

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
from meridian_broker.replication.leases.verdicts import Asked, Promise, Verdict, VoterView, decide

Reply: TypeAlias = Callable[[LeaseAnswer | LeaseRenewed], None]


class VoteBasis(Protocol):
    """The facts a vote was based on; shows cheaply whether it would be given again."""

    def still_valid(self) -> bool:
        """Whether ``Ballots.voter_sets`` would return the same as then, and the stream is stored where it was then."""


@dataclass(slots=True)
class Vote:
    """A promise."""

    holder: str
    term: int
    duration_ms: int
    """0: the holder released it early, so the vote is free."""
    until_ms: int = 0
    """By this voter's monotonic clock; not kept on disk."""
    mark: int = 0
    """Mark of the voters known when it was given or renewed; 0: given in an earlier run, so not known."""
    preferred: str = ""
    """Preferred holder of the stream according to its holder's request."""
    is_written: bool = False
    basis: VoteBasis | None = None
    """None: it is renewed by name only."""

    @property
    def is_released(self) -> bool:
        return self.duration_ms == 0

    @property
    def ballot(self) -> tuple[str, int, int]:
        """The part that is on disk."""
        return self.holder, self.term, self.duration_ms


class Ballots(Protocol):
    """A voter's durable record of its votes."""

    def voter_sets(self, stream: Stream) -> tuple[VoterSets, str] | None:
        """The voters on the stream, and its preferred holder, which is empty if it does not matter; None: the stream
        is unknown or not served here.
        """

    def has(self, stream: Stream, vote: Vote) -> bool:
        """Whether this is the last written vote where the stream is stored now; it may have been created again
        since."""

    def basis(self, stream: Stream) -> VoteBasis | None:
        """The facts behind ``voter_sets`` and ``has`` as of now; None: unknown."""

    def confirm(self, confirmed: Callable[[], None]) -> None:
        """Call ``confirmed`` once it is certain that no later broker has begun to vote for this voter."""

    def write(self, votes: list[tuple[Stream, Vote]], durable: Callable[[list[Stream]], None]) -> None:
        """Store votes. ``durable`` is called, once or several times, with the streams whose votes are durable; never
        for votes that could not be written.
        """


class Voter:
    """One voter's votes on all streams."""

    def __init__(self, ballots: Ballots) -> None:
        self._ballots = ballots
        self.votes: dict[Stream, Vote] = {}
        self._origins: dict[tuple[str, str], set[str]] = {}
        self._granted: dict[str, GrantDigests[Vote]] = {}
        """By holder: grants made by name, on disk, and unchanged since (``grant_digests.py``)."""

    def _put(self, stream: Stream, vote: Vote) -> None:
        before = self.votes.get(stream)
        assert before is None or vote.term >= before.term, "the term of a stream only grows"
        self._strike(stream)
        self.votes[stream] = vote
        self._origins.setdefault(stream[:2], set()).add(stream[2])

    def _strike(self, stream: Stream) -> None:
        """The stream's grant can no longer be renewed without naming the stream."""
        vote = self.votes.get(stream)
        granted = None if vote is None else self._granted.get(vote.holder)
        if vote is not None and granted is not None:
            granted.drop(stream)
            if not granted:
                del self._granted[vote.holder]

    def _keep_grant(self, stream: Stream, vote: Vote) -> None:
        """Keep a grant whose holder is about to learn that the promise is durable."""
        if vote.basis is not None:
            item = AskItem(stream, vote.term, vote.mark, vote.preferred)
            self._granted.setdefault(vote.holder, GrantDigests(vote.holder)).put(item, vote)

    def found(self, stream: Stream, holder: str, term: int, duration_ms: int, now_ms: int) -> None:
        """A vote found on disk: it counts for its whole duration from now on. Of several votes, the one with the
        highest term counts."""
        before = self.votes.get(stream)
        if before is None or (before.term < term and before.mark == 0):
            self._put(stream, Vote(holder, term, duration_ms, now_ms + duration_ms, is_written=True))

    def is_clean(self, topic: str, subscription: str, mark: int, now_ms: int) -> bool:
        """Whether no promise is binding that was made with other known voters."""
        streams = ((topic, subscription, origin) for origin in self._origins.get((topic, subscription), ()))
        return all(vote.mark == mark for stream in streams if (vote := self.promised(stream, now_ms)) is not None)

    def tidy(self, now_ms: int) -> None:
        """Drop votes that no longer bind and whose streams are not served here; those on disk are found again."""
        for stream, vote in list(self.votes.items()):
            if not vote.is_released and now_ms < vote.until_ms:
                continue
            self._strike(stream)
            if self._ballots.voter_sets(stream) is None:
                self._forget(stream)

    def moved(self, topics: Container[str]) -> None:
        """Another broker of this region may vote on the streams of these topics from now on. If this one is to vote on
        them again, it finds on disk what was promised meanwhile, and by whom."""
        for stream in [stream for stream in self.votes if stream[0] in topics]:
            self._strike(stream)
            self._forget(stream)

    def _forget(self, stream: Stream) -> None:
        del self.votes[stream]
        origins = self._origins[stream[:2]]
        origins.discard(stream[2])
        if not origins:
            del self._origins[stream[:2]]

    def promised(self, stream: Stream, now_ms: int) -> Vote | None:
        """The vote that binds this voter now."""
        vote = self.votes.get(stream)
        return vote if vote is not None and not vote.is_released and now_ms < vote.until_ms else None

    def asked(self, ask: LeaseAsk, reply: Reply, now_ms: int) -> None:
        """A candidate requests streams. Refusals are answered at once, grants once they are durable."""
        refused: list[AnswerItem] = []
        renewed: list[tuple[Stream, Vote]] = []
        granted: list[tuple[Stream, Vote]] = []
        for item in ask.items:
            refusal = self._refusal(ask, item, now_ms)
            if refusal is not None:
                refused.append(refusal)
                continue
            vote = Vote(ask.holder, item.term, ask.duration_ms, now_ms + ask.duration_ms, item.mark, item.preferred)
            vote.basis = self._ballots.basis(item.stream)
            before = self.votes.get(item.stream)
            if before is not None and before.holder == ask.holder:
                vote.until_ms = max(vote.until_ms, before.until_ms)
                is_known = (before.term, before.duration_ms) == (vote.term, vote.duration_ms)
                vote.is_written = is_known and before.is_written
            self._put(item.stream, vote)
            vote.is_written = vote.is_written and self._ballots.has(item.stream, vote)
            if vote.is_written:
                renewed.append((item.stream, vote))
            else:
                granted.append((item.stream, vote))
        if refused:
            reply(LeaseAnswer(ask.number, tuple(refused)))
        if renewed:
            self._ballots.confirm(lambda: self._grant(ask.number, renewed, reply))
        if granted:
            given = dict(granted)
            self._ballots.write(
                granted, lambda streams: self._grant(ask.number, [(one, given[one]) for one in streams], reply)
            )

    def _grant(self, number: int, votes: list[tuple[Stream, Vote]], reply: Reply) -> None:
        """Send votes that are durable, once it is certain that no later broker votes for this voter."""
        for stream, vote in votes:
            now = self.votes.get(stream)
            if now is not None and now.ballot == vote.ballot:
                now.is_written = True
                self._keep_grant(stream, now)
        if votes:
            reply(LeaseAnswer(number, tuple(AnswerItem(stream, vote.term, True) for stream, vote in votes)))

    def renew(self, renewal: LeaseRenewal, reply: Reply, now_ms: int) -> None:
        """A holder asks to renew everything it was promised (``grant_digests.py``)."""
        granted = self._granted.get(renewal.holder)
        differing: list[int] = []
        for index, digest in renewal.parts:
            part = None if granted is None else granted.parts.get(index)
            if part is not None and part.digest == digest and _stand(part.grants.values(), now_ms):
                for vote in part.grants.values():
                    vote.until_ms = now_ms + vote.duration_ms
            else:
                differing.append(index)
                if granted is not None:
                    granted.empty(index)
        if granted is not None and not granted:
            del self._granted[renewal.holder]
        answer = LeaseRenewed(renewal.number, tuple(differing))
        if len(differing) == len(renewal.parts):
            reply(answer)
        else:
            self._ballots.confirm(lambda: reply(answer))

    def _refusal(self, ask: LeaseAsk, item: AskItem, now_ms: int) -> AnswerItem | None:
        """The refusal, if the stream is not granted."""
        voter_sets, vote = self._ballots.voter_sets(item.stream), self.votes.get(item.stream)
        verdict = decide(
            Asked(ask.holder, item.term, item.mark, item.preferred),
            None if voter_sets is None else VoterView(voter_sets[0].mark, voter_sets[1]),
            None if vote is None else Promise(vote.holder, vote.term, vote.is_released, now_ms >= vote.until_ms),
        )
        if verdict is Verdict.GRANTED:
            return None
        refusal = AnswerItem(item.stream, item.term, False, reason=verdict.value)
        if vote is None or verdict not in (Verdict.HELD, Verdict.PAST):
            return refusal
        if verdict is Verdict.PAST:
            return replace(refusal, known_term=vote.term)
        return replace(refusal, known_term=vote.term, left_ms=vote.until_ms - now_ms, holder=vote.holder)

    def released(self, release: LeaseRelease) -> None:
        """A holder stopped. That is stored as well, so that a restarted voter does not wait for it."""
        freed: list[tuple[Stream, Vote]] = []
        for stream, term in release.items:
            vote = self.votes.get(stream)
            if vote is not None and vote.holder == release.holder and vote.term <= term and not vote.is_released:
                vote = Vote(vote.holder, term, 0)
                self._put(stream, vote)
                freed.append((stream, vote))
        if freed:
            self._ballots.write(freed, lambda _: None)


def _stand(votes: Iterable[Vote], now_ms: int) -> bool:
    """Whether each of them would be promised again by name, unchanged and without a write."""
    for vote in votes:
        basis = vote.basis
        if basis is None or now_ms >= vote.until_ms or not basis.still_valid():
            return False
    return True
