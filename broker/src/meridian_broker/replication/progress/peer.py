# SPDX-License-Identifier: Apache-2.0
"""The exchange's state for one peer, a region or one of its several brokers: deltas in flight, what it lacks, what we
asked it for.

It has three parts:

* **Pending and in flight.** Waiting acks are joined per subscription, so the queue never grows with traffic. A DELTA
  leaves at once when none is in flight, otherwise when the one in flight is confirmed or ``coalesce_ms`` after its
  first ack, whichever is earlier (R19).
* **Topics in sync.** A topic is *in sync* with a peer when its digest was seen to equal ours, and since then no offered
  delta was given up and no third region changed it. Only then does "all deltas are confirmed" mean "the peer has
  everything that is acked here", which is what a flush promises.
* **Wanted and fetching.** Subscriptions the peer has more of than we do.

Giving something up (link down, window or queue full, no confirmation) only costs being in sync: digests heal it.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from meridian_broker.positions.progress import Progress
from meridian_broker.replication.peers import region_of
from meridian_broker.replication.progress.catching_up import CatchingUp
from meridian_broker.replication.progress.lag import Lag, Trouble, Why
from meridian_broker.replication.progress.messages import (
    OLDEST_VERSION,
    Digest,
    ExchangeLimits,
    PeerMessage,
    Question,
    SubscriptionKey,
    Summary,
)
from meridian_broker.replication.progress.pending import Pending, PendingKey

HEALED_MS: Final = 60_000
"""This long after a link is back, what was missed before has been compared often enough."""


@dataclass(frozen=True, slots=True)
class Withheld:
    """Why nothing of a topic is offered to the peer."""

    trouble: Trouble
    incarnation: str
    """The peer's, as last shown; or ours, as it last refused it."""
    is_ours: bool


@dataclass(slots=True)
class Flight:
    """A DELTA without its confirmation yet."""

    sent_ms: int
    items: list[tuple[PendingKey, Pending]]

    def keys(self) -> list[SubscriptionKey]:
        return [(topic, subscription) for (topic, subscription, _), _ in self.items]


@dataclass(slots=True)
class Incoming:
    """Messages from the peer that are still being processed."""

    highest: int = 0
    """Highest DELTA number seen."""
    merging: set[int] = field(default_factory=set)
    """Numbers whose progress is not durable here yet."""
    held: deque[tuple[Digest, Callable[[PeerMessage], None]]] = field(default_factory=deque)
    """Digests that wait for those."""

    def restarted(self, next_delta: int) -> None:
        """The peer greeted on a new link: its earlier messages have arrived by now, or never will."""
        self.highest = next_delta - 1
        self.merging.clear()
        self.held.clear()

    def applied(self) -> int:
        """Every DELTA seen up to this number is durable here."""
        return min(self.merging) - 1 if self.merging else self.highest


class Peer:
    """One remote region, or a broker of one. Methods change this peer's state only; they send nothing."""

    def __init__(self, name: str, *, coalesce_ms: int, limits: ExchangeLimits) -> None:
        """:param name: see ``routes.py``."""
        self.name = name
        self.region = region_of(name)
        self.is_divided = False
        """It stands for a region of several brokers, which are peers of their own: nothing is sent to it."""
        self.is_awaited = False
        """It cannot be reached yet, but is about to be: what needs it may wait a little."""
        self.send: Callable[[PeerMessage], None] | None = None
        """Our own link to the region; None while it is down."""
        self.back: Callable[[PeerMessage], None] | None = None
        """The way back on the region's own link, as of its last message."""
        self.incompatible = ""
        """Why nothing is sent to the peer although its link is up; empty normally."""
        self.incoming = Incoming()
        self.version = OLDEST_VERSION
        """Version of the peer protocol, as announced on this link."""
        self.is_greeted = False
        """It answered our HELLO on this link."""
        self.in_sync: set[str] = set()
        self.down_since_ms: int | None = None
        """Since when our own link is down, or the peer incompatible; None: it never was up."""
        self.up_since_ms = 0
        self.behind_since_ms: int | None = None
        """Since when it may lack something; None: it was found to have all, or to be about to get it."""
        self.heard_ms = 0
        """When the region last sent anything, on any link."""
        self.waiting: dict[str, Withheld] = {}
        """Topics that are not offered until both regions are known to have the same incarnation."""
        self.troubles: dict[SubscriptionKey, Trouble] = {}
        """Why the peer refused a subscription's last delta, or we could not send it."""
        self.catching = CatchingUp(most=limits.topics_apart)
        """Whether we have what it had when our link came up."""
        self.lag = Lag(limits.tracked)
        """How far the peer is behind."""
        self.forced: set[str] = set()
        """Topics for which something was given up since the last digest."""
        self.last_delta_of: dict[str, int] = {}
        """Topic -> number of the last DELTA with it; confirmed ones are dropped at each digest."""
        self.skips: dict[str, int] = {}
        self.next_digest_ms: int | None = None
        """When the next round of digests begins."""
        self.following: Iterator[None] | None = None
        """The pass over the open topics with which this round began, until it is complete."""
        self.to_announce: deque[str] = deque()
        """Topics whose digest is still to be sent in this round."""
        self.next_announce_ms: int | None = None
        self.is_new = False
        """Our link is new: everything is being compared on it for the first time."""
        self.to_summarize = False
        """Our number for all topics is sent once they are counted."""
        self.announced: set[str] = set()
        """Topics whose digests were sent beside the number of this round, as they are known to differ."""
        self.early: tuple[Digest, Summary, Callable[[PeerMessage], None]] | None = None
        """The peer's number of all topics, and the way to answer: it waits until ours are counted."""
        self.next_count_ms: int | None = None
        """When more of them are counted."""
        self.wanted: OrderedDict[SubscriptionKey, Question] = OrderedDict()
        self.fetching: dict[SubscriptionKey, int] = {}
        """Asked for -> when."""
        self.next_number = 1
        self.confirmed = 0
        self._coalesce_ms = coalesce_ms
        self._limits = limits
        self._pending: dict[PendingKey, Pending] = {}
        self._pending_since_ms = 0
        self._in_flight: dict[int, Flight] = {}

    @property
    def up(self) -> bool:
        """Requests may be sent on our own link."""
        return self.send is not None and not self.incompatible

    def look_behind(self, now_ms: int) -> int | None:
        """Since when the region may lack something. Called every second; only a call ends it: a region that is back and
        still lacks something after a while is busy, and gets it by comparisons.
        """
        if self.up:
            if not self.lag.has_missed or now_ms - self.up_since_ms >= HEALED_MS:
                self.behind_since_ms = None
        elif self.behind_since_ms is None:
            self.behind_since_ms = now_ms
        return self.behind_since_ms

    @property
    def idle(self) -> bool:
        return not self._pending and not self._in_flight

    # -- deltas to it

    def offer(
        self,
        key: PendingKey,
        delta: Progress,
        *,
        incarnation: str,
        now_ms: int,
        record: bytes | None = None,
        entries: int = 0,
    ) -> bool:
        """Queue progress that is durable here for the peer; the delta must not be modified afterwards. False: not
        accepted, the topic is no longer in sync.

        :param incarnation: the topic's current one. Queued progress of an earlier one is dropped.
        :param entries: how many entries were acknowledged in it.
        """
        topic = key[0]
        if not self.up or topic in self.waiting:
            self.give_up(topic)
            self.lag.missed(key[:2], entries, now_ms)
            return False
        pending = self._pending.get(key)
        if pending is not None and pending.incarnation != incarnation:
            self.lag.taken_back(key[:2], self._pending.pop(key))
            pending = None
        if pending is not None:
            if self._join(topic, pending, delta, record):
                pending.entries += entries
                return True
            self.lag.missed(key[:2], entries, now_ms)
            return False
        if len(self._pending) >= self._limits.pending_subscriptions:
            self.give_up(topic)
            self.lag.missed(key[:2], entries, now_ms)
            return False
        if not self._pending:
            self._pending_since_ms = now_ms
        pending = self._pending[key] = Pending(delta, record, incarnation, entries, now_ms)
        self.lag.of(key[:2]).outstanding.append(pending)
        return True

    def _join(self, topic: str, pending: Pending, delta: Progress, record: bytes | None) -> bool:
        if pending.is_borrowed:
            pending.delta, pending.is_borrowed = pending.delta.copy(), False
        pending.record = record or pending.record
        try:
            pending.delta.join(delta)
        except ValueError:
            # More rewinds than one progress can hold: the queued one leaves without the new ones, digests carry those.
            self.give_up(topic)
            return False
        return True

    def due_ms(self) -> int | None:
        """When the next DELTA should leave; None: nothing waits, or the window is full."""
        if not self._pending or len(self._in_flight) >= self._limits.in_flight:
            return None
        return self._pending_since_ms if not self._in_flight else self._pending_since_ms + self._coalesce_ms

    def take(self) -> Iterator[tuple[PendingKey, Pending]]:
        """Candidates for the next DELTA, oldest first; each one drawn has left the queue."""
        for key in list(self._pending):
            yield key, self._pending.pop(key)

    def put_back(self, key: PendingKey, pending: Pending) -> None:
        """Put the last one drawn back: it did not fit."""
        self._pending = {key: pending, **self._pending}

    def sent(self, items: list[tuple[PendingKey, Pending]], now_ms: int) -> int:
        """Record a DELTA as in flight and give its number."""
        number = self.next_number
        self.next_number += 1
        self._in_flight[number] = Flight(now_ms, items)
        for (topic, name, _), _ in items:
            self.last_delta_of[topic] = number
            self.lag.of((topic, name)).sent_ms = now_ms
        return number

    def confirm(self, number: int) -> Flight | None:
        """The answer to a DELTA arrived; None: it was given up before, or answered already."""
        flight = self._in_flight.pop(number, None)
        if flight is not None:
            self.confirmed = max(self.confirmed, number)
        return flight

    def expire(self, before_ms: int) -> list[Flight]:
        """Give up every DELTA sent before this time."""
        late = [number for number, flight in self._in_flight.items() if flight.sent_ms < before_ms]
        flights = [self._in_flight.pop(number) for number in late]
        for flight in flights:
            for (topic, name, _), pending in flight.items:
                self.give_up(topic)
                self.lag.given_up((topic, name), pending)
        return flights

    def oldest_flight_ms(self) -> int | None:
        return next(iter(self._in_flight.values())).sent_ms if self._in_flight else None

    def give_up(self, topic: str) -> None:
        """Something offered for the topic will not arrive by itself."""
        self.in_sync.discard(topic)
        self.forced.add(topic)

    def hold_back(
        self, topic: str, why: Why, text: str, now_ms: int, *, shown: str | None = None, refused: str = ""
    ) -> None:
        """Offer nothing of the topic until both have the same incarnation of it.

        :param shown: the peer's.
        :param refused: ours, which it refused without showing its own.
        """
        known = self.waiting.get(topic)
        if known is not None or len(self.waiting) < self._limits.topics_apart:
            trouble = _trouble(None if known is None else known.trouble, why, text, now_ms)
            self.waiting[topic] = Withheld(trouble, refused, True) if shown is None else Withheld(trouble, shown, False)
        if topic in self.in_sync:
            self.give_up(topic)

    def leave(self, topic: str) -> None:
        """Another peer has it from now on."""
        self.in_sync.discard(topic)
        self.forced.discard(topic)
        self.waiting.pop(topic, None)
        self.skips.pop(topic, None)
        self.forget_troubles(topic)
        self.catching.same([topic])

    def release(self, topic: str) -> None:
        """The peer is known to have no objection any more."""
        if self.waiting.pop(topic, None) is not None:
            self.forget_troubles(topic)
            self.catching.again()

    def put_off(self, topic: str) -> bool:
        """Put a comparison off to the next digest. False: this one, or too many, were put off before."""
        skips = self.skips.pop(topic, 0)
        if skips >= self._limits.digest_skips or len(self.skips) >= self._limits.topics_apart:
            return False
        self.skips[topic] = skips + 1
        return True

    def drop(self) -> list[tuple[PendingKey, Pending]]:
        """The link is down: forget deltas in flight, and return them."""
        lost = [item for flight in self._in_flight.values() for item in flight.items]
        lost.extend(self._pending.items())
        self._in_flight.clear()
        self._pending.clear()
        for (topic, name, _), pending in lost:
            self.give_up(topic)
            self.lag.given_up((topic, name), pending)
        self.version = OLDEST_VERSION
        self.is_greeted = False
        self.wanted.clear()
        self.fetching.clear()
        self.following = None
        self.to_announce.clear()
        self.next_announce_ms = None
        self.is_new = self.to_summarize = False
        self.skips.clear()
        return lost

    def note_trouble(self, key: SubscriptionKey, why: Why, text: str, now_ms: int) -> None:
        """Remember why a subscription does not sync, for its status."""
        known = self.troubles.get(key)
        if known is not None or len(self.troubles) < self._limits.troubles:
            self.troubles[key] = _trouble(known, why, text, now_ms)

    def forget_troubles(self, topic: str) -> None:
        for key in [key for key in self.troubles if key[0] == topic]:
            del self.troubles[key]

    def carries(self, key: SubscriptionKey) -> tuple[set[int], bool]:
        """Numbers of the unconfirmed DELTA with this subscription, and whether more of it waits."""
        numbers = {
            number
            for number, flight in self._in_flight.items()
            if any(topic == key[0] and name == key[1] for (topic, name, _), _ in flight.items)
        }
        return numbers, any((*key, passed_on) in self._pending for passed_on in (False, True))

    def pending_topics(self) -> set[str]:
        return {topic for topic, _, _ in self._pending}

    def forget_confirmed(self) -> None:
        """Drop confirmed deltas from ``last_delta_of``."""
        oldest = next(iter(self._in_flight), self.next_number)
        self.last_delta_of = {topic: number for topic, number in self.last_delta_of.items() if number >= oldest}

    # -- our questions to it

    def want(self, questions: Iterable[Question]) -> None:
        """Queue subscriptions the peer has more of; those already requested, or beyond the limit, are left out."""
        for question in questions:
            if len(self.wanted) >= self._limits.wanted:
                return
            key = (question.topic, question.subscription or "")
            if key not in self.fetching:
                self.wanted.setdefault(key, question)

    def next_questions(self, now_ms: int) -> tuple[Question, ...]:
        """The next questions the window allows; recorded as asked."""
        questions = []
        while self.wanted and len(self.fetching) < self._limits.fetching:
            key, question = self.wanted.popitem(last=False)
            self.fetching[key] = now_ms
            questions.append(question)
        return tuple(questions)

    def expire_questions(self, before_ms: int) -> None:
        """Questions without an answer may be asked again after the next digest."""
        self.fetching = {key: asked for key, asked in self.fetching.items() if asked >= before_ms}


def _trouble(known: Trouble | None, why: Why, text: str, now_ms: int) -> Trouble:
    """Trouble of the same kind as before counts from when that began."""
    return Trouble(why, text, known.since_ms if known is not None and known.why is why else now_ms)
