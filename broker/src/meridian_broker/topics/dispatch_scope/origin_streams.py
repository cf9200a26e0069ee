# SPDX-License-Identifier: Apache-2.0
"""Dispatch scope ``origin``: the messages of one subscription that this region dispatches, and no other region (R26).

An *origin stream*, stream for short, is the part of a subscription's messages that were published in one region. A
region requests streams while it has consumers, its own first. It dispatches a stream while it holds the lease on it,
and stops by its own clock. A stream that was acquired starts like a subscription without consumers: with the newest
progress of the other regions (R20), then from mark-delete. What was read of other streams is not read again. A stream
that is to be handed back is not dispatched any more; acknowledgements of the next moment still reach the other regions
before it is released.

A cumulative acknowledgement names one message. It covers the messages sent before that one: always those of the
message's own stream, and those of another stream only if the message was sent after that stream was acquired. Otherwise
messages that were passed over until then, and are stored before it, would count as acknowledged although no consumer
got them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.replication.leases.messages import Stream
from meridian_broker.replication.leases.quorums import Voters, VoterSets, preferred_among
from meridian_broker.replication.leases.request import LeaseRequest
from meridian_broker.topics.journal.subscription_record import ORIGIN
from meridian_broker.topics.ports import Leasing

if TYPE_CHECKING:
    from meridian_broker.topics.context import TopicContext
    from meridian_broker.topics.subscriptions.subscription import Subscription

DRAIN_SECONDS: Final = 0.2
"""How long a stream that is handed back waits for acknowledgements of what was sent."""

COUNTED_MAX: Final = 20_000
"""Entries after a cursor that are counted for a status request."""


def preferred_holder(subscription: Subscription, origin: str) -> str:
    """The region that dispatches a stream as long as it can."""
    regions = subscription.topic.regions()
    preferred = subscription.record.preferred.get(origin, origin)
    return preferred if preferred in regions else min(regions)


def wanted_voters(subscription: Subscription) -> Voters:
    """The regions that are to vote on its streams: those of the topic, and the witness if that makes their
    number odd.
    """
    regions = subscription.topic.regions()
    witness = subscription.record.witness
    return tuple(sorted(regions | {witness} if witness and len(regions) % 2 == 0 else regions))


def commit(subscription: Subscription, heard: frozenset[str]) -> None:
    """All of ``heard`` know all lists of voters in force: one list may suffice now."""
    topic, known, wanted = subscription.topic, subscription.record.voter_sets, wanted_voters(subscription)
    origins = origins_of(subscription)
    preferred: dict[Voters, set[str]] = {
        voters: {preferred_among(voters, preferred_holder(subscription, origin)) for origin in (*origins, *voters)}
        for _, voters in known.lists
        if len(voters) == 2
    }
    if not known.is_committed and known.may_commit(wanted, heard, preferred):
        stamp = topic.clock.next(max(known.committed, *(said for said, _ in known.lists)))
        subscription.registry.set_voter_sets(subscription, known.commit(wanted, stamp))
        follow(subscription)


def leave(subscription: Subscription) -> None:
    """Another broker of this region is to serve the topic, which dispatches nothing here any more: release the streams
    at once.
    """
    leasing = subscription.topic.leasing
    if leasing is not None and subscription.record.scope == ORIGIN:
        leasing.leave([(subscription.topic.name, subscription.name, origin) for origin in origins_of(subscription)])


def _say_who_votes(subscription: Subscription, leasing: Leasing) -> None:
    """Add a list of voters to those in force if the topic's regions or the witness changed."""
    topic, known, wanted = subscription.topic, subscription.record.voter_sets, wanted_voters(subscription)
    if not known.has(wanted):
        stamp = topic.clock.next(max(subscription.record.scope_stamp, known.committed))
        known = known.also(wanted, stamp)
        if known != subscription.record.voter_sets:
            subscription.registry.set_voter_sets(subscription, known)
    if not known.is_committed:
        leasing.agree(topic.name, subscription.name)


def origins_of(subscription: Subscription) -> list[str]:
    """All regions in which its messages were published, including former regions of the topic."""
    topic = subscription.topic
    return sorted(topic.regions() | topic.log.last_origin.keys())


def owed(subscription: Subscription) -> dict[str, int] | None:
    """Per origin, the number of entries stored here that are not acknowledged and not dropped here; None: too many to
    count.

    An entry that is owed elsewhere, but not in the region that dispatches it, was dropped there (R14): no consumer
    gets it while that region holds the stream.
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
    """Why scope ``origin`` is not in force although it is set; empty if it is in force."""
    leasing = subscription.topic.leasing
    if not subscription.durable or not subscription.replicated:
        return "the subscription is not replicated"
    if leasing is None:
        return "this broker is not connected to other regions"
    if at_pulsar := elsewhere(subscription.topic):
        return at_pulsar
    if subscription.topic.regions() == {subscription.topic.region}:
        return "the topic exists only in this region, which dispatches everything"
    return leasing.objection(tuple(subscription.topic.regions()))


def elsewhere(topic: TopicContext) -> str:
    """Why scope ``origin`` cannot hold for a topic that regions of Apache Pulsar have, too (R26); empty: it can."""
    foreign = sorted(topic.remotes - topic.regions())
    return f"Apache Pulsar runs in {', '.join(foreign)}, and its consumers get every message" if foreign else ""


def follow(subscription: Subscription) -> None:
    """Apply the record. When the scope changes, consumers are disconnected."""
    leasing = subscription.topic.leasing
    is_in_force = subscription.record.scope == ORIGIN and not objection(subscription)
    if is_in_force and leasing is not None:
        _say_who_votes(subscription, leasing)
        if subscription.streams is None:
            subscription.divide(OriginStreams(subscription, leasing))
        if subscription.streams is not None:
            subscription.streams.refresh()
    elif subscription.streams is not None:
        subscription.divide(None)


class OriginStreams:
    """The streams of one subscription that this region holds or requests."""

    __slots__ = ("_begun", "_high", "_leasing", "_preferred", "_subscription", "_wanted", "_wins", "held")

    def __init__(self, subscription: Subscription, leasing: Leasing) -> None:
        self._subscription = subscription
        self._leasing = leasing
        self.held: dict[str, LeaseRequest] = {}
        """Origins whose messages are dispatched here while their lease lasts."""
        self._wanted: dict[str, tuple[VoterSets, str]] = {}
        """Origin -> voters and preferred holder, as requested."""
        self._preferred: dict[str, str] = {}
        """Preferred holders as known when the stream was first requested, or when the other regions had confirmed a
        change.
        """
        own, end = subscription.topic.region, subscription.topic.log.last_confirmed
        self._begun: dict[str, Position] = {o: end for o in origins_of(subscription) if o != own}
        """Origin -> how far was read when its stream was acquired. What was read before the topic was opened is not
        known.
        """
        self._high: Position = EARLIEST
        self._wins: dict[str, int] = {}

    # -- what dispatch asks --------------------------------------------------------------------------------------

    def holds(self, origin: str) -> bool:
        """Whether messages of this origin may be sent now."""
        lease = self.held.get(origin)
        return lease is not None and self._leasing.now_ms() < lease.until_ms

    def covered_by(self, origin: str, position: Position) -> frozenset[str]:
        """Origins whose earlier entries a cumulative acknowledgement of this entry covers."""
        return frozenset({origin} | {o for o in self.held if position > self._begun.get(o, EARLIEST)})

    # -- requests ------------------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Request what is to be dispatched here; nothing while there are no consumers."""
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
            else:  # if it can be reached, the current holder is told first to stop
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
        if self._subscription.streams is self:
            self.refresh()

    def _stream(self, origin: str) -> Stream:
        return self._subscription.topic.name, self._subscription.name, origin

    def close(self) -> None:
        """The scope changed: request nothing any more."""
        for origin in self._wanted:
            self._leasing.unwant(self._stream(origin))
        self._wanted.clear()
        self.held.clear()

    # -- outcomes ------------------------------------------------------------------------------------------------

    def won(self, origin: str, lease: LeaseRequest) -> None:
        """The lease was granted: the stream is dispatched once the newest progress of the others has arrived (R20)."""
        topic = self._subscription.topic
        self._wins[origin] = win = self._wins.get(origin, 0) + 1

        def passed() -> None:
            is_current = self._wins[origin] == win and self._subscription.streams is self
            if is_current and self._leasing.now_ms() < lease.until_ms:
                self._begin(origin, lease)

        if topic.exchange is None:
            passed()
        else:
            topic.exchange.barrier(topic.name, self._subscription.name, passed)

    def _begin(self, origin: str, lease: LeaseRequest) -> None:
        others = list(self.held)
        self.held[origin] = lease
        dispatcher = self._subscription.dispatcher
        if dispatcher is not None:
            self._high = max(self._high, dispatcher.read)
            self._begun[origin] = max(self._begun.get(origin, EARLIEST), self._high)
            dispatcher.read_back(origin, others)
            self._subscription.dispatch_soon()

    def lost(self, origin: str) -> None:
        """The lease ended. Later acknowledgements of what was sent still count."""
        self._wins[origin] = self._wins.get(origin, 0) + 1
        self.held.pop(origin, None)

    def wanted_back(self, origin: str) -> None:
        """The preferred holder requests the stream: stop, wait for acknowledgements of what is in flight, send them,
        release it.
        """
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
