# SPDX-License-Identifier: Apache-2.0
"""The voter's side of leases: to whom this voter promised a stream, and until when by its own clock (R26).

A vote is a promise not to vote for anybody else before its time is over. It is durable before it is given. A voter that
comes back does not know how long ago it gave what it finds on its disk, so it counts every vote for its whole length
from then. So a renewal has nothing new to say there; but a voter that was replaced meanwhile must find out that it was
before it renews what its successor may have given to somebody else. One record for all that is renewed together does.

The term of a stream only grows. It keeps what was said in an earlier attempt, and arrives late, from counting in a
later one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from meridian_broker.replication.lease_messages import (
    HELD,
    NOT_SERVED,
    OTHER_VOTERS,
    PAST,
    AnswerItem,
    AskItem,
    LeaseAnswer,
    LeaseAsk,
    LeaseRelease,
    Stream,
)
from meridian_broker.topics.electorates import Electorates

Reply: TypeAlias = Callable[[LeaseAnswer], None]


@dataclass(slots=True)
class Vote:
    """A promise."""

    holder: str
    term: int
    duration_ms: int
    """0: its holder stopped before its time, and the vote is free."""
    until_ms: int = 0
    """By this voter's monotone clock; not kept on disk."""
    mark: int = 0
    """Of what voters were known when it was given or renewed; 0: in an earlier life, nobody remembers."""
    is_written: bool = False

    @property
    def is_released(self) -> bool:
        return self.duration_ms == 0


class Ballots(Protocol):
    """Where a voter writes."""

    def electorates(self, stream: Stream) -> tuple[Electorates, str] | None:
        """Who votes on the stream, and its home, empty where that does not matter; None: it is not known or not served
        here."""

    def has(self, stream: Stream, vote: Vote) -> bool:
        """Is this what was written last, where the stream is kept now? It may have been made anew since."""

    def confirm(self, confirmed: Callable[[], None]) -> None:
        """``confirmed`` once it is sure that no later broker has begun to vote for this voter."""

    def write(self, votes: list[tuple[Stream, Vote]], durable: Callable[[list[Stream]], None]) -> None:
        """Write votes down. ``durable`` hears, once or several times, of which streams that is done; never of those
        that could not be written."""


class Voter:
    """One voter's votes on all streams."""

    def __init__(self, ballots: Ballots) -> None:
        self._ballots = ballots
        self.votes: dict[Stream, Vote] = {}
        self._origins: dict[tuple[str, str], set[str]] = {}

    def _put(self, stream: Stream, vote: Vote) -> None:
        self.votes[stream] = vote
        self._origins.setdefault(stream[:2], set()).add(stream[2])

    def found(self, stream: Stream, holder: str, term: int, duration_ms: int, now_ms: int) -> None:
        """A vote on disk: it counts for its whole length from now on. Of several the one of the highest term counts."""
        before = self.votes.get(stream)
        if before is None or (before.term < term and before.mark == 0):
            self._put(stream, Vote(holder, term, duration_ms, now_ms + duration_ms, is_written=True))

    def is_clean(self, topic: str, subscription: str, mark: int, now_ms: int) -> bool:
        """Is nothing binding that was promised when less was known of who votes?"""
        streams = ((topic, subscription, origin) for origin in self._origins.get((topic, subscription), ()))
        return all(vote.mark == mark for stream in streams if (vote := self.promised(stream, now_ms)) is not None)

    def tidy(self, now_ms: int) -> None:
        """Let go of votes that bind nobody and whose streams are not served here; those on disk are found again."""
        for stream, vote in list(self.votes.items()):
            if (vote.is_released or now_ms >= vote.until_ms) and self._ballots.electorates(stream) is None:
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
        """Somebody wants streams. What is refused is answered at once, what is granted once it is durable."""
        refused: list[AnswerItem] = []
        renewed: list[AnswerItem] = []
        granted: list[tuple[Stream, Vote]] = []
        for item in ask.items:
            refusal = self._refusal(ask, item, now_ms)
            if refusal is not None:
                refused.append(refusal)
                continue
            vote = Vote(ask.holder, item.term, ask.duration_ms, now_ms + ask.duration_ms, item.mark)
            before = self.votes.get(item.stream)
            if before is not None and before.holder == ask.holder:
                vote.until_ms = max(vote.until_ms, before.until_ms)
                is_known = (before.term, before.duration_ms) == (vote.term, vote.duration_ms)
                vote.is_written = is_known and before.is_written
            self._put(item.stream, vote)
            vote.is_written = vote.is_written and self._ballots.has(item.stream, vote)
            if vote.is_written:
                renewed.append(AnswerItem(item.stream, item.term, True))
            else:
                granted.append((item.stream, vote))
        if refused:
            reply(LeaseAnswer(ask.number, tuple(refused)))
        if renewed:
            self._ballots.confirm(lambda: reply(LeaseAnswer(ask.number, tuple(renewed))))
        if granted:
            given = dict(granted)
            terms = {stream: vote.term for stream, vote in granted}

            def durable(streams: list[Stream]) -> None:
                for stream in streams:
                    if (now := self.votes.get(stream)) is not None and _says(now) == _says(given[stream]):
                        now.is_written = True
                items = tuple(AnswerItem(stream, terms[stream], True) for stream in streams)
                if items:
                    reply(LeaseAnswer(ask.number, items))

            self._ballots.write(granted, durable)

    def _refusal(self, ask: LeaseAsk, item: AskItem, now_ms: int) -> AnswerItem | None:
        stream, term = item.stream, item.term
        known = self._ballots.electorates(stream)
        if known is None:
            return AnswerItem(stream, term, False, reason=NOT_SERVED)
        electorates, home = known
        if electorates.mark != item.mark or home not in ("", item.home):
            return AnswerItem(stream, term, False, reason=OTHER_VOTERS)
        vote = self.votes.get(stream)
        if vote is None:
            return None
        if vote.holder != ask.holder and not vote.is_released and now_ms < vote.until_ms:
            return AnswerItem(stream, term, False, vote.term, vote.until_ms - now_ms, vote.holder, HELD)
        is_same_attempt = term == vote.term and vote.holder == ask.holder and not vote.is_released
        if term <= vote.term and not is_same_attempt:
            return AnswerItem(stream, term, False, vote.term, 0, "", PAST)
        return None

    def released(self, release: LeaseRelease) -> None:
        """A holder stopped. That is written as well, so that a voter that comes back does not wait for nothing."""
        freed: list[tuple[Stream, Vote]] = []
        for stream, term in release.items:
            vote = self.votes.get(stream)
            if vote is not None and vote.holder == release.holder and vote.term <= term and not vote.is_released:
                vote = Vote(vote.holder, term, 0)
                self._put(stream, vote)
                freed.append((stream, vote))
        if freed:
            self._ballots.write(freed, lambda _: None)


def _says(vote: Vote) -> tuple[str, int, int]:
    """What is on the disk of it."""
    return vote.holder, vote.term, vote.duration_ms
