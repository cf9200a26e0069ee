# SPDX-License-Identifier: Apache-2.0
"""Agreeing on the voters on the streams of a subscription (R26, ``replication/leases/quorums.py``).

A region that knows a list of voters that is not the only one in force asks all members of all its lists whether they
know them, until enough have confirmed that one list suffices. The question carries its knowledge, so that voters
without a record of the subscription learn it, and the answer carries theirs.

All regions of the topic ask, each on its own, and each may commit: what is committed joins. They commit the list in
their own settings, and not at all while a reachable region wants another list: an operator who changes the regions of
a topic configures one region after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from meridian_broker.replication.leases.messages import ITEMS_MAX, VotersAnswer, VotersAsk, VotersItem
from meridian_broker.replication.leases.quorums import Voters, VoterSets

FIRST_MS: Final = 20
"""A change made in one region first reaches the others in its record."""
AGAIN_MS: Final = 500
"""Pause between questions to a voter that has not confirmed."""
ROUNDS_MS: Final = 10_000
"""Upper bound of the pause between questions; it grows with each round."""

Subject = tuple[str, str]
"""Topic, subscription."""
Heard = Callable[[VoterSets, Voters], None]


class VoterDirectory(Protocol):
    """The voters that this region knows of."""

    def known(self, subject: Subject) -> tuple[VoterSets, Voters] | None:
        """The known lists and the voters this region's settings name. None: no such record, or nothing to ask for."""

    def hear(self, subject: Subject, told: VoterSets, heard: Heard) -> None:
        """Join it to the known lists. ``heard`` is called with the result once that is on disk; never if the
        subscription is not known here, or it cannot be written."""

    def commit(self, subject: Subject, heard: frozenset[str]) -> None:
        """These voters have confirmed all lists known here: one list may suffice now."""


class Reconfiguration:
    """See the module's docstring. One per broker."""

    def __init__(
        self,
        directory: VoterDirectory,
        me: str,
        now_ms: Callable[[], int],
        is_clean: Callable[[Subject, int], bool],
        peer_of: Callable[[str, str], str],
        can_ask: Callable[[str], bool],
        send: Callable[[str, VotersAsk | VotersAnswer], None],
    ) -> None:
        """
        :param is_clean: whether this voter has made no binding promise since it learned of the lists with this mark.
        :param peer_of: what answers for a voter on a topic, see ``LeaseHost``, as for ``can_ask`` and ``send``.
        """
        self._directory = directory
        self._me = me
        self._now_ms = now_ms
        self._is_clean = is_clean
        self._peer_of = peer_of
        self._can_ask = can_ask
        self._send = send
        self._open: dict[Subject, _Question] = {}
        self._next_ms: int | None = None

    def ask(self, subject: Subject) -> None:
        """Start agreeing on its voters; without effect if that has started already."""
        if subject not in self._open:
            self._open[subject] = _Question(self._now_ms() + FIRST_MS)
            self._wake(self._open[subject].next_ms)

    def lacking(self, subject: Subject) -> list[str]:
        """Voters that have not confirmed yet; empty if nothing is being asked."""
        question, known = self._open.get(subject), self._directory.known(subject)
        return [] if question is None or known is None else [v for v in known[0].voters if v not in question.heard]

    def next_deadline(self) -> int | None:
        return self._next_ms

    def _wake(self, at_ms: int) -> None:
        self._next_ms = at_ms if self._next_ms is None else min(self._next_ms, at_ms)

    def tick(self) -> None:
        """Send the questions that are due."""
        now = self._now_ms()
        if self._next_ms is None or now < self._next_ms:
            return
        items: dict[str, list[VotersItem]] = {}
        for subject, question in list(self._open.items()):
            known = self._directory.known(subject)
            if known is None or known[0].is_committed:
                del self._open[subject]
            elif now >= question.next_ms:
                question.follow(known[0])
                question.again(now)
                for voter in known[0].voters:
                    agrees = voter in question.heard and question.wanted.get(voter) in ((), known[1])
                    if not agrees or voter == self._me:  # at the latest, its own answer shows that all agree
                        peer = self._peer_of(voter, subject[0])
                        items.setdefault(peer, []).append(VotersItem(*subject, known[0], known[1]))
        self._next_ms = min((question.next_ms for question in self._open.values()), default=None)
        for peer, wanted in items.items():
            for some in range(0, len(wanted), ITEMS_MAX):
                ask = VotersAsk(tuple(wanted[some : some + ITEMS_MAX]))
                if peer == self._me:
                    self.asked(ask, self.answered_by_me)
                elif self._can_ask(peer):
                    self._send(peer, ask)

    def tell(self, voter: str, subjects: set[Subject]) -> None:
        """Send a voter the lists known here, because it lacks some or knows more."""
        items: dict[str, list[VotersItem]] = {}
        for one in sorted(subjects) if voter != self._me else ():
            if (known := self._directory.known(one)) is not None:
                items.setdefault(self._peer_of(voter, one[0]), []).append(VotersItem(*one, *known))
        for peer, told in items.items():
            if self._can_ask(peer):
                self._send(peer, VotersAsk(tuple(told)))

    def asked(self, ask: VotersAsk, reply: Callable[[VotersAnswer], None]) -> None:
        """Another region asks for this region's knowledge."""

        def answer(item: VotersItem) -> Heard:
            def heard(known: VoterSets, wanted: Voters) -> None:
                is_clean = self._is_clean((item.topic, item.subscription), known.mark)
                reply(VotersAnswer((VotersItem(item.topic, item.subscription, known, wanted, is_clean),)))

            return heard

        for item in ask.items:
            self._directory.hear((item.topic, item.subscription), item.known, answer(item))

    def answered_by_me(self, answer: VotersAnswer) -> None:
        self.answered(self._me, answer)

    def answered(self, voter: str, answer: VotersAnswer) -> None:
        """A voter answered with its knowledge."""
        for item in answer.items:
            subject = (item.topic, item.subscription)
            question, known = self._open.get(subject), self._directory.known(subject)
            if known is None:
                continue
            voter_sets, wanted = known
            if not voter_sets.knows(item.known):
                self._directory.hear(subject, item.known, lambda *_: None)
                continue
            if question is None:
                continue
            question.follow(voter_sets)
            question.wanted[voter] = item.wanted
            if item.known != voter_sets:
                continue
            if item.is_clean:
                question.heard.add(voter)
            missing = [v for v in voter_sets.voters if v not in question.heard and self._is_there(v, subject)]
            others = [
                v for v, said in question.wanted.items() if said not in ((), wanted) and self._is_there(v, subject)
            ]
            if not missing and not others:
                self._directory.commit(subject, frozenset(question.heard))

    def _is_there(self, voter: str, subject: Subject) -> bool:
        return voter == self._me or self._can_ask(self._peer_of(voter, subject[0]))


@dataclass(slots=True)
class _Question:
    next_ms: int
    wait_ms: int = AGAIN_MS
    mark: int = 0
    """Mark of the lists that were asked about."""
    heard: set[str] = field(default_factory=set)
    wanted: dict[str, Voters] = field(default_factory=dict)
    """Voter -> the list in its own settings, or nothing."""

    def follow(self, known: VoterSets) -> None:
        if self.mark != known.mark:
            self.mark, self.wait_ms = known.mark, AGAIN_MS
            self.heard.clear()
            self.wanted.clear()

    def again(self, now_ms: int) -> None:
        self.next_ms = now_ms + self.wait_ms
        self.wait_ms = min(self.wait_ms * 3 // 2, ROUNDS_MS)
