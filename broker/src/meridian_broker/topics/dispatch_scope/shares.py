# SPDX-License-Identifier: Apache-2.0
"""Dispatch scope ``origin``: of one subscription, the messages that this region dispatches, and nobody else (R26).

A *share* is what of a subscription's messages began in one region. A region asks for shares while it has consumers, its
own first; it dispatches one while it holds the lease on it and stops by its own clock. A share that is won begins like
a subscription that had no consumers: with the newest progress of the other regions (R20), then from mark-delete. What
was read before of other shares is not read again. A share that is to be given back is not dispatched from then on; what
is acknowledged in the next moment still reaches the other regions before they get it.

A cumulative acknowledgement names one message. It covers what was sent before that one: always that message's own
share, and another one only when the message was sent after that share was won; else messages that were passed over
until then, and stand before it, would count as acknowledged although nobody got them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.replication.leases.claim import Claim
from meridian_broker.replication.leases.messages import Stream
from meridian_broker.replication.leases.quorums import Voters, VoterSets, preferred_among
from meridian_broker.topics.journal.subscription_record import ORIGIN
from meridian_broker.topics.ports import Leasing

if TYPE_CHECKING:
    from meridian_broker.topics.subscriptions.subscription import Subscription

DRAIN_SECONDS: Final = 0.2
"""So long a share that is given back waits for acknowledgements of what was sent already."""

COUNTED_MAX: Final = 20_000
"""Entries behind a cursor that are looked at when somebody asks for status."""


def preferred_holder(subscription: Subscription, origin: str) -> str:
    """The region that dispatches a share as long as it can."""
    regions = subscription.topic.regions()
    preferred = subscription.record.preferred.get(origin, origin)
    return preferred if preferred in regions else min(regions)


def wanted_voters(subscription: Subscription) -> Voters:
    """Who is to vote on its shares: the regions of the topic, and the witness where it makes their number odd."""
    regions = subscription.topic.regions()
    witness = subscription.record.witness
    return tuple(sorted(regions | {witness} if witness and len(regions) % 2 == 0 else regions))


def commit(subscription: Subscription, heard: frozenset[str]) -> None:
    """All of these know all lists of voters that count: one may be enough now."""
    topic, known, wanted = subscription.topic, subscription.record.voter_sets, wanted_voters(subscription)
    origins = origins_of(subscription)
    preferred: dict[Voters, set[str]] = {
        voters: {preferred_among(voters, preferred_holder(subscription, origin)) for origin in (*origins, *voters)}
        for _, voters in known.lists
        if len(voters) == 2
    }
    if not known.is_committed and known.may_commit(wanted, heard, preferred):
        stamp = topic.clock.next(max(known.committed, *(said for said, _ in known.lists)))
        subscription.lives.set_voter_sets(subscription, known.commit(wanted, stamp))
        follow(subscription)


def _say_who_votes(subscription: Subscription, leasing: Leasing) -> None:
    """Another list of voters joins those that count, when the topic's regions or the witness are others than before."""
    topic, known, wanted = subscription.topic, subscription.record.voter_sets, wanted_voters(subscription)
    if not known.has(wanted):
        stamp = topic.clock.next(max(subscription.record.scope_stamp, known.committed))
        known = known.also(wanted, stamp)
        if known != subscription.record.voter_sets:
            subscription.lives.set_voter_sets(subscription, known)
    if not known.is_committed:
        leasing.agree(topic.name, subscription.name)


def origins_of(subscription: Subscription) -> list[str]:
    """All regions in which its messages began, those that are no longer regions of the topic included."""
    topic = subscription.topic
    return sorted(topic.regions() | topic.log.last_origin.keys())


def owed(subscription: Subscription) -> dict[str, int] | None:
    """By origin: entries stored here that nobody acknowledged and this region did not drop; None: too many to count.

    What began in a region and is owed elsewhere, but not by whoever dispatches it, was dropped there (R14): nobody
    gets it while that one holds the share.
    """
    log, cursor = subscription.topic.log, subscription.cursor.mark_delete
    if log.distance(cursor, log.last_confirmed) > COUNTED_MAX:
        return None
    counts = dict.fromkeys(origins_of(subscription), 0)
    following = log.after(cursor)
    while following is not None:
        place = log.place(following)
        if place is not None and subscription.cursor.is_owed(place.region, place.origin, following):
            counts[place.region] = counts.get(place.region, 0) + 1
        following = log.after(following)
    return counts


def objection(subscription: Subscription) -> str:
    """Why scope ``origin`` is not in force although it is set; empty when it is."""
    leasing = subscription.topic.leasing
    if not subscription.durable or not subscription.replicated:
        return "the subscription is not replicated"
    if leasing is None:
        return "this broker is not connected to other regions"
    if subscription.topic.regions() == {subscription.topic.region}:
        return "the topic exists only in this region, which dispatches everything"
    return leasing.objection(tuple(subscription.topic.regions()))


def follow(subscription: Subscription) -> None:
    """Do as the record says, now. When the scope changes, consumers come again: what they have may come twice."""
    leasing = subscription.topic.leasing
    is_in_force = subscription.record.scope == ORIGIN and not objection(subscription)
    if is_in_force and leasing is not None:
        _say_who_votes(subscription, leasing)
        if subscription.share is None:
            subscription.disconnect_consumers()
            subscription.share = Shares(subscription, leasing)
        subscription.share.refresh()
    elif subscription.share is not None:
        subscription.disconnect_consumers()
        subscription.share.close()
        subscription.share = None


class Shares:
    """The shares of one subscription that this region has, or asks for."""

    __slots__ = ("_begun", "_high", "_leasing", "_preferred", "_subscription", "_wanted", "_wins", "held")

    def __init__(self, subscription: Subscription, leasing: Leasing) -> None:
        self._subscription = subscription
        self._leasing = leasing
        self.held: dict[str, Claim] = {}
        """Origins whose messages are dispatched here while their lease lasts."""
        self._wanted: dict[str, tuple[VoterSets, str]] = {}
        """Origin -> voters and preferred holder, as asked for."""
        self._preferred: dict[str, str] = {}
        """As this region knew them when it asked first, or when the other regions had heard of a change."""
        own, end = subscription.topic.region, subscription.topic.log.last_confirmed
        self._begun: dict[str, Position] = {o: end for o in origins_of(subscription) if o != own}
        """Origin -> how far was read when its share was won. What was read in an earlier life is not known."""
        self._high: Position = EARLIEST
        self._wins: dict[str, int] = {}

    # -- what dispatch asks --------------------------------------------------------------------------------------

    def holds(self, origin: str) -> bool:
        """May messages of this origin be sent at this moment?"""
        lease = self.held.get(origin)
        return lease is not None and self._leasing.now_ms() < lease.until_ms

    def covered_by(self, origin: str, position: Position) -> frozenset[str]:
        """Origins of which a cumulative acknowledgement of an entry covers what stands before it."""
        return frozenset({origin} | {o for o in self.held if position > self._begun.get(o, EARLIEST)})

    # -- what is asked for ---------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Ask for what is to be dispatched here, and for nothing while nobody consumes."""
        subscription = self._subscription
        is_consumed = bool(subscription.consumers) and not subscription.barrier
        origins = origins_of(subscription) if is_consumed else []
        for origin in [origin for origin in self._wanted if origin not in origins]:
            del self._wanted[origin]
            self._leasing.unwant(self._stream(origin))
        for origin in origins:
            self._ask(origin)

    def _ask(self, origin: str) -> None:
        subscription = self._subscription
        topic, preferred = subscription.topic, preferred_holder(subscription, origin)
        known = self._preferred.setdefault(origin, preferred)
        if known != preferred:
            if preferred != topic.region or topic.exchange is None:
                self._preferred[origin] = preferred
            else:  # whoever dispatched it hears first that it does not any more, when it can be reached
                topic.progress_log.when_durable(lambda _: self._tell_others(origin, preferred))
                return
        voter_sets = subscription.record.voter_sets
        if self._wanted.get(origin) != (voter_sets, preferred):
            self._wanted[origin] = voter_sets, preferred
            lease = self._leasing.want(self._stream(origin), voter_sets, preferred)
            if lease.until_ms > 0 and origin not in self.held:
                self.won(origin, lease)

    def _tell_others(self, origin: str, preferred: str) -> None:
        topic, name = self._subscription.topic, self._subscription.name

        def told() -> None:
            if preferred_holder(self._subscription, origin) == preferred:
                self._preferred[origin] = preferred
                self._again()

        if topic.exchange is not None:
            topic.exchange.flush(topic.name, name, told)

    def _again(self) -> None:
        if self._subscription.share is self:
            self.refresh()

    def _stream(self, origin: str) -> Stream:
        return self._subscription.topic.name, self._subscription.name, origin

    def close(self) -> None:
        """The scope is another one: nothing is asked for any more."""
        for origin in self._wanted:
            self._leasing.unwant(self._stream(origin))
        self._wanted.clear()
        self.held.clear()

    # -- what becomes of it --------------------------------------------------------------------------------------

    def won(self, origin: str, lease: Claim) -> None:
        """The share is ours: it is dispatched once the newest progress of the others is here (R20)."""
        topic = self._subscription.topic
        self._wins[origin] = win = self._wins.get(origin, 0) + 1

        def passed() -> None:
            is_current = self._wins[origin] == win and self._subscription.share is self
            if is_current and self._leasing.now_ms() < lease.until_ms:
                self._begin(origin, lease)

        if topic.exchange is None:
            passed()
        else:
            topic.exchange.barrier(topic.name, self._subscription.name, passed)

    def _begin(self, origin: str, lease: Claim) -> None:
        others = list(self.held)
        self.held[origin] = lease
        dispatcher = self._subscription.dispatcher
        if dispatcher is not None:
            self._high = max(self._high, dispatcher.read)
            self._begun[origin] = max(self._begun.get(origin, EARLIEST), self._high)
            dispatcher.read_back(origin, others)
            self._subscription.dispatch_soon()

    def lost(self, origin: str) -> None:
        """The lease ended. What was sent and is acknowledged later counts all the same."""
        self._wins[origin] = self._wins.get(origin, 0) + 1
        self.held.pop(origin, None)

    def wanted_back(self, origin: str) -> None:
        """Its preferred holder asks for it: stop, let the acknowledgements of what is on its way come, tell them, give
        it back."""
        self.lost(origin)
        topic = self._subscription.topic

        def drained() -> None:
            self._subscription.cursor.flush_pending()
            if topic.exchange is None or topic.failure is not None:
                self._leasing.release(self._stream(origin))
            else:
                topic.exchange.flush(
                    topic.name, self._subscription.name, lambda: self._leasing.release(self._stream(origin))
                )

        topic.scheduler.later(DRAIN_SECONDS, drained)
