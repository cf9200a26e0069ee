# SPDX-License-Identifier: Apache-2.0
"""The holder's side of leases: which region may read a stream, while no other does (R26).

Several regions may want a stream; one may have it. A candidate asks all voters, and holds the stream once enough of
them have promised it. Times of different clocks are never compared: the holder counts from the moment *before* it
asked, each voter from the moment it was asked, both for the same duration, and the holder slightly less, because clocks
run at different rates (``times.CLOCK_RATE``). So the holder stops before the first of its promises ends, whatever the
messages' delay, and the next holder starts after that.

*Enough* is a majority, so that two holders would need a voter in common. With two voters a majority is both, and a
failure of either would stop everything: there the *preferred holder* of the stream needs its own vote alone, any other
region both. Any two of those sets intersect, too, but no region can take over the stream of a dead preferred holder;
only naming another one allows that, which is up to an operator, who has to know that the old one is dead. While the
voters are being changed several lists of them are in force, and each requires enough votes
(``replication/leases/quorums.py``).

Grants are renewed without naming their streams, by digests of the grants that both ends keep (``grant_digests.py``);
where those differ, by name.

The preferred holder goes first. Other candidates wait a moment for it, each a different time, so that they do not split
the votes; a holder is told to hand over a stream that its preferred holder asks for. A holder that no longer wants a
stream releases it.

Groups within a region can use this as it is: their leader is then the only voter. Nothing here knows about topics.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from meridian_broker.replication.leases.host import LeaseHost
from meridian_broker.replication.leases.messages import (
    PAST,
    LeaseAnswer,
    LeaseAsk,
    LeaseRelease,
    LeaseRenewed,
    Stream,
)
from meridian_broker.replication.leases.questions import Questions
from meridian_broker.replication.leases.quorums import VoterSets
from meridian_broker.replication.leases.renewals import Renewals
from meridian_broker.replication.leases.request import FOREVER, LeaseRequest, Quorums, quorums_of
from meridian_broker.replication.leases.times import LeaseTimes
from meridian_broker.replication.leases.transitions import TRANSITIONS, Action, Event, State

AGAIN_MS: Final = 20
"""Delay before voters are asked again after a change of voters or term; other streams often change at the same time."""


class Leases:
    """All requests of one holder."""

    def __init__(self, host: LeaseHost, me: str, holder: str, times: LeaseTimes | None = None) -> None:
        """
        :param me: this voter's name.
        :param holder: this run of it: no two may ever have the same name.
        """
        self._host = host
        self._me = me
        self.holder = holder
        self.times = times or LeaseTimes()
        self.requests: dict[Stream, LeaseRequest] = {}
        self._usable = self.times.usable
        self._quorums: dict[Quorums, Quorums] = {}
        """Distinct quorums of the requests."""
        self._renewals = Renewals(holder)
        self._used_term = 0
        """The highest term of the forgotten streams. A stream that is wanted again asks with a higher one; otherwise
        late answers from before its release would count for it."""
        self._questions = Questions(host, holder, self.times.duration)
        self._beat_ms = FOREVER
        self._next_ms = FOREVER

    # -- wanted streams

    def want(self, stream: Stream, voter_sets: VoterSets, preferred: str, now_ms: int) -> LeaseRequest:
        """Hold the stream as soon as possible, until ``unwant``. Voters and preferred holder may have changed since
        the last call.
        """
        request = self.requests.get(stream)
        if request is None:
            request = self.requests[stream] = LeaseRequest(stream, voter_sets, preferred, term=self._used_term)
            self._let_vote(request, voter_sets, preferred)
            request.next_ms = now_ms + self._patience(request)
        request.unwanted_ms = None
        if (request.voter_sets, request.preferred) != (voter_sets, preferred):
            if request.preferred != preferred:
                request.next_ms = min(request.next_ms, now_ms) if preferred == self._me else request.next_ms
            self._let_vote(request, voter_sets, preferred)
            request.asked_ms = {voter: asked for voter, asked in request.asked_ms.items() if voter in request.voters}
            request.refusals.clear()
            self._reckon(request, now_ms)
            if request.state == State.HELD:  # voters remember the last question
                request.next_ms = now_ms + AGAIN_MS
                self._wake(request.next_ms)
        self._wake(request.next_ms)
        return request

    def _let_vote(self, request: LeaseRequest, voter_sets: VoterSets, preferred: str) -> None:
        """Set the voters and the preferred holder of a request."""
        self._renewals.left(request)
        request.voter_sets, request.preferred, request.voters = voter_sets, preferred, voter_sets.voters
        request.by_name = set(request.voters)
        request.granted_by = {}
        quorums = quorums_of(voter_sets, preferred, self._me)
        request.quorums = self._quorums.setdefault(quorums, quorums)

    def unwant(self, stream: Stream, now_ms: int) -> None:
        """Release the stream in a moment, unless it is wanted again by then."""
        request = self.requests.get(stream)
        if request is not None and request.unwanted_ms is None:
            request.unwanted_ms = now_ms
            self._wake(now_ms + self.times.linger)

    def release(self, stream: Stream, now_ms: int) -> None:
        """The stream is not read here any more: let others have it at once."""
        request = self.requests.get(stream)
        if request is None:
            return
        self._happened(request, Event.GIVEN_BACK, now_ms)
        if request.unwanted_ms is not None:
            del self.requests[stream]
            self._used_term = max(self._used_term, request.term)
        else:
            request.next_ms = now_ms + self.times.step + self._patience(request)
            self._wake(request.next_ms)

    def leave(self, streams: Iterable[Stream], now_ms: int) -> None:
        """These are not read here any more, nor wanted: release them without a delay."""
        for stream in streams:
            if (request := self.requests.get(stream)) is not None:
                request.unwanted_ms = now_ms
                self.release(stream, now_ms)

    def release_unwanted(self, now_ms: int) -> None:
        """Release unwanted streams now, without waiting for consumers to return."""
        for request in list(self.requests.values()):
            if request.unwanted_ms is not None:
                self.release(request.stream, now_ms)

    # -- time

    def next_deadline(self) -> int | None:
        return self._next_ms if self._next_ms < FOREVER else None

    def tick(self, now_ms: int) -> None:
        """Do everything that is due: attempts, renewals, expirations."""
        if now_ms < self._next_ms:
            return
        is_beat = now_ms >= self._beat_ms
        asking: dict[str, list[LeaseRequest]] = {}
        for request in list(self.requests.values()):
            if request.is_held and now_ms >= request.until_ms:
                self._happened(request, Event.ENDED, now_ms)
            if request.unwanted_ms is not None:
                if now_ms >= request.unwanted_ms + self.times.linger and request.state != State.YIELDING:
                    self.release(request.stream, now_ms)
            elif now_ms >= request.next_ms:
                if self._happened(request, Event.DUE, now_ms) in (Action.ASK, Action.ASK_AGAIN):
                    self._add(asking, request, request.voters)
            elif is_beat and request.state is State.HELD and request.by_name:
                self._add(asking, request, request.by_name)
        if asking or is_beat:
            number = self._questions.next_number(now_ms)
            self._questions.ask(number, asking)
            if is_beat:
                self._renew(number)
        self._plan(now_ms, is_beat)

    def _plan(self, now_ms: int, is_beat: bool) -> None:
        if is_beat or self._beat_ms == FOREVER:
            has_any = any(request.state in (State.HELD, State.ASKING) for request in self.requests.values())
            self._beat_ms = now_ms + self.times.beat if has_any else FOREVER
        self._next_ms = min(map(self._due_ms, self.requests.values()), default=FOREVER)

    def _due_ms(self, request: LeaseRequest) -> int:
        assert request.is_held == (request.state in (State.HELD, State.YIELDING))
        due = request.until_ms if request.is_held else FOREVER
        if request.unwanted_ms is not None:
            return min(due, request.unwanted_ms + self.times.linger) if request.state != State.YIELDING else due
        if request.state == State.HELD:
            return min(due, self._beat_ms, request.next_ms)
        return min(due, request.next_ms) if request.state != State.YIELDING else due

    def _wake(self, at_ms: int) -> None:
        self._next_ms = min(self._next_ms, at_ms)

    # -- attempts

    def _patience(self, request: LeaseRequest) -> int:
        """How long to wait for candidates that go first."""
        if request.preferred == self._me:
            return 0
        return self.times.step * (1 + sum(voter < self._me for voter in request.voters if voter != request.preferred))

    def _happened(self, request: LeaseRequest, event: Event, now_ms: int, until_ms: int = 0) -> Action | None:
        """Apply the table of transitions. Returns the action; None: the event changes nothing.

        :param until_ms: until when enough voters have promised the stream.
        """
        state, action = TRANSITIONS.get((request.state, event), (request.state, None))
        match action:
            case Action.ASK:
                if not self._begin(request, now_ms):
                    return None
            case Action.ASK_AGAIN:
                request.next_ms = FOREVER
            case Action.WIN:
                self._win(request, now_ms, until_ms)
            case Action.EXTEND:
                request.until_ms = until_ms
                self._wake(until_ms)
            case Action.GIVE_UP:
                self._give_up(request, now_ms)
            case Action.LOSE:
                self._lose(request, now_ms)
            case Action.HAND_OVER:
                request.state = state
                self._renewals.left(request)
                self._host.wanted_back(request)
            case Action.LET_GO:
                self._let_go(request)
        return action

    def _begin(self, request: LeaseRequest, now_ms: int) -> bool:
        """Begin an attempt, if it may succeed. While this region's own vote is promised to another holder, only the
        preferred holder begins one, so that the holder learns of it.
        """
        patience, is_preferred = self._patience(request), request.preferred == self._me
        if not is_preferred and (left := self._host.promised_ms(request.stream)) > 0:
            request.next_ms = now_ms + left + patience
            return False
        reachable = dict.fromkeys((voter for voter in request.voters if self._can_ask(voter, request)), now_ms)
        if request.promised_since(reachable) is None:
            request.next_ms = now_ms + self.times.step
            return False
        request.state = State.ASKING
        request.term = request.known_term = max(request.term, request.known_term) + 1
        request.asked_ms.clear()
        request.refusals.clear()
        request.next_ms = now_ms + self.times.attempt
        return True

    def _add(self, asking: dict[str, list[LeaseRequest]], request: LeaseRequest, voters: Iterable[str]) -> None:
        for voter in voters:
            asking.setdefault(self._host.peer_of(voter, request.stream[0]), []).append(request)

    def _can_ask(self, voter: str, request: LeaseRequest) -> bool:
        return self._host.can_ask(self._host.peer_of(voter, request.stream[0]))

    def _renew(self, number: int) -> None:
        """Ask peers to renew all their promises, without names."""
        for peer, renewal in self._renewals.questions(number, self._host.can_renew):
            self._host.send(peer, renewal)

    def moved(self, voter: str) -> None:
        """Other brokers of a voter's region may own topics now: they are asked by name."""
        for request in self.requests.values():
            if voter in request.granted_by:
                self._renewals.follow(voter, request, self._host.peer_of(voter, request.stream[0]))

    def renewed(self, voter: str, answer: LeaseRenewed, now_ms: int, peer: str = "") -> None:
        """A voter renewed its promises, as far as both sides agree on them.

        :param peer: that one of its brokers which did; empty: it has one.
        """
        asked_ms = self._questions.asked_ms(answer.number)
        if asked_ms is None:
            return
        renewed, unknown = self._renewals.answered(peer or voter, answer)
        quorums: Quorums = ()
        like: dict[str, int] = {}
        until: int | None = None
        for request in renewed:
            asked = request.asked_ms
            if asked_ms <= asked.get(voter, 0):
                continue
            asked[voter] = asked_ms
            if request.until_ms >= asked_ms + self._usable:  # enough others answered before
                continue
            if request.quorums is not quorums or asked != like:  # nearly all requests share their quorums
                quorums, like, until = request.quorums, asked, request.promised_since(asked)
            if until is None or request.state != State.HELD or now_ms >= request.until_ms:
                self._reckon(request, now_ms)
            else:
                request.until_ms = until + self._usable
        if unknown:
            asking: dict[str, list[LeaseRequest]] = {}
            for request in unknown:
                self._add(asking, request, (voter,))
            self._questions.ask(self._questions.next_number(now_ms), asking)

    def answered(self, voter: str, answer: LeaseAnswer, now_ms: int, peer: str = "") -> None:
        """A voter answered which votes it gives. :param peer: see ``renewed``."""
        asked_ms = self._questions.asked_ms(answer.number)
        if asked_ms is None:
            return
        for item in answer.items:
            request = self.requests.get(item.stream)
            if request is None or voter not in request.voters:
                continue
            request.known_term = max(request.known_term, item.known_term)
            if item.term != request.term or request.state == State.IDLE:
                continue
            if item.granted:
                request.asked_ms[voter] = max(request.asked_ms.get(voter, 0), asked_ms)
                request.refusals.pop(voter, None)
                if self._host.can_renew(peer or voter):
                    self._renewals.granted(voter, request, self._questions.last, peer or voter)
            else:
                request.refusals[voter] = item
                self._renewals.refused(voter, request)
                if item.reason == PAST and request.state == State.HELD:
                    self._raise(request, now_ms)
            self._reckon(request, now_ms)

    def _raise(self, request: LeaseRequest, now_ms: int) -> None:
        """Another candidate's failed attempt used higher terms with a voter that has not voted for us: it may vote for
        us once we ask with a higher term still. Existing promises keep their duration."""
        self._renewals.left(request)
        request.term = request.known_term = request.known_term + 1
        request.next_ms = now_ms + AGAIN_MS
        self._wake(request.next_ms)

    def _reckon(self, request: LeaseRequest, now_ms: int) -> None:
        """Recompute until when the stream is ours."""
        first = request.promised_since(request.asked_ms)
        has_expired = request.is_held and now_ms >= request.until_ms  # readers have stopped: acquire it again
        if first is not None and first + self._usable > now_ms and not has_expired:
            self._happened(request, Event.ENOUGH, now_ms, first + self._usable)
        elif request.is_held:
            self._happened(request, Event.ENDED, now_ms)
        elif request.state is State.ASKING and not request.may_succeed(lambda voter: self._can_ask(voter, request)):
            self._happened(request, Event.HOPELESS, now_ms)

    def freed(self, release: LeaseRelease, now_ms: int) -> None:
        """Another region released streams: there is no need to wait for the end of its lease."""
        for stream, _ in release.items:
            request = self.requests.get(stream)
            if request is not None and request.state == State.IDLE and release.holder != self.holder:
                request.next_ms = min(request.next_ms, now_ms + self._patience(request))
                self._wake(request.next_ms)

    # -- ends

    def _win(self, request: LeaseRequest, now_ms: int, until_ms: int) -> None:
        request.state, request.until_ms, request.tries = State.HELD, until_ms, 0
        request.next_ms = FOREVER
        self._beat_ms = min(self._beat_ms, now_ms + self.times.beat)
        self._wake(self._due_ms(request))
        self._host.won(request)

    def _give_up(self, request: LeaseRequest, now_ms: int) -> None:
        """This attempt failed. The preferred holder soon tries again: the holder has been told."""
        left = max((item.left_ms for item in request.refusals.values()), default=0)
        is_late = bool(request.refusals) and all(item.reason == PAST for item in request.refusals.values())
        self._let_go(request)
        if is_late:  # only the term was too low
            request.next_ms = now_ms + 1
            self._wake(request.next_ms)
            return
        request.tries = min(request.tries + 1, 8)
        patience = self._patience(request)
        request.next_ms = now_ms + (self.times.step if patience == 0 else left + patience * request.tries)
        self._wake(request.next_ms)

    def _lose(self, request: LeaseRequest, now_ms: int) -> None:
        self._let_go(request)
        request.next_ms = now_ms + self.times.step + self._patience(request)
        self._wake(request.next_ms)
        self._host.lost(request)

    def _let_go(self, request: LeaseRequest) -> None:
        if request.state != State.IDLE:
            for voter in request.voters:
                peer = self._host.peer_of(voter, request.stream[0])
                self._host.send(peer, LeaseRelease(self.holder, ((request.stream, request.term),)))
        request.state, request.until_ms = State.IDLE, 0
        self._renewals.left(request)
        request.asked_ms.clear()
        request.refusals.clear()

    def others_asked(self, region: str, ask: LeaseAsk, now_ms: int) -> None:
        """Another region asks this voter: hand over the streams that it is the preferred holder of, and yield to
        candidates that go first.
        """
        for item in ask.items:
            request = self.requests.get(item.stream)
            if request is None or region == self._me or request.preferred == self._me:
                continue
            if region == request.preferred:
                self._happened(request, Event.PREFERRED_ASKS, now_ms)
            elif region < self._me:
                self._happened(request, Event.ANOTHER_ASKS, now_ms)
