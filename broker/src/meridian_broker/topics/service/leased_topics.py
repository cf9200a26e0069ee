# SPDX-License-Identifier: Apache-2.0
"""All streams of all topics of a broker, as the leases see them; and the votes of this region (R26).

A vote is a record in the progress log of its topic: durable in the same group commit as everything else, and fenced
with the topic, so that a replaced broker cannot vote any more. Where the topic does not live here this region may still
be its witness, and keeps its votes in a store of its own (``witness.py``). A copy that is here and not open, as when
the broker has just begun, holds votes that were not read yet: until it is open there is no vote on it.

A renewal is not written, so a voter that was replaced has to notice that before it renews what its successor may have
granted to another holder. The only broker of a region writes a line to the store above, which each opens before it
votes. One of several brokers looks at its clock: its lease on bundles ends there before another one may own them. That
is enough, because it looks after it was asked: a successor that opens the topic later finds the vote, and counts it for
its whole duration from then on, which is longer than the holder counts from before it asked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from meridian_broker.ledgers.scheduling import in_slices
from meridian_broker.ledgers.store import LedgerError
from meridian_broker.replication.leases.messages import Stream
from meridian_broker.replication.leases.quorums import Voters, VoterSets
from meridian_broker.replication.leases.reconfiguration import Subject
from meridian_broker.replication.leases.request import LeaseRequest
from meridian_broker.replication.leases.voter import VoteBasis
from meridian_broker.topics.dispatch_scope import origin_streams
from meridian_broker.topics.dispatch_scope.votes import Ballot, encode
from meridian_broker.topics.journal.changes import Kind
from meridian_broker.topics.journal.subscription_record import ORIGIN
from meridian_broker.topics.ports import DispatchedStreams, Ownership
from meridian_broker.topics.service import scopes
from meridian_broker.topics.service.witness import WitnessStore

if TYPE_CHECKING:
    from meridian_broker.topics.service.registry import TopicRegistry
    from meridian_broker.topics.subscriptions.subscription import Subscription


class LeasedTopics:
    """See the module's text. One per broker."""

    def __init__(self, topics: TopicRegistry, *, is_one_of_several: bool = False) -> None:
        """:param is_one_of_several: this broker is one of its region's brokers, each with the topics that it owns."""
        self._topics = topics
        self._is_one_of_several = is_one_of_several
        self._ownership = topics.parts.ownership
        self.witness = WitnessStore(topics)

    @property
    def region(self) -> str:
        return self._topics.parts.region

    def voter_sets(self, stream: Stream) -> tuple[VoterSets, str] | None:
        """Who votes on the stream, and its preferred holder where that matters to this voter; None while it is not
        served here."""
        if self._is_one_of_several:
            if not self._ownership.owns(stream[0]):
                return None
        elif not self.witness.is_open:
            self.witness.open_soon()
            return None
        if self._abstains(stream[0]):
            return None
        subscription = self._subscription(stream[:2])
        if subscription is None:
            witnessed = self.witness.known(stream[:2]) if self._topics.is_served(stream[0]) else None
            return None if witnessed is None else (witnessed, "")
        known = subscription.record.voter_sets
        return known, origin_streams.preferred_holder(subscription, stream[2]) if known.is_on_pair(self.region) else ""

    def known(self, subject: Subject) -> tuple[VoterSets, Voters] | None:
        """Who votes, as far as known, and who is to vote by this region's own settings."""
        subscription = self._subscription(subject)
        if subscription is None or subscription.record.scope != ORIGIN or origin_streams.objection(subscription):
            return None
        return subscription.record.voter_sets, origin_streams.wanted_voters(subscription)

    def hear(self, subject: Subject, told: VoterSets, heard: Callable[[VoterSets, Voters], None]) -> None:
        """Join what another region knows about the voters. ``heard`` gets the result once it is on disk."""
        if self._abstains(subject[0]):
            return  # earlier promises may still bind it; it is asked again
        subscription = self._subscription(subject)
        if subscription is None:
            is_witness = self.region in told.voters or self.witness.known(subject) is not None
            if is_witness and self._topics.is_served(subject[0]):
                copy = self._topics.topics.get(subject[0])
                alone = None if copy is None else copy.subscriptions.get(subject[1])
                told = told if alone is None else told.joined(alone.record.voter_sets)
                self.witness.hear(subject, told, lambda known: heard(known, ()))
            return
        topic, record = subscription.topic, subscription.record
        known = record.voter_sets.joined(told)
        if known != record.voter_sets:
            subscription.registry.set_voter_sets(subscription, known)
            origin_streams.follow(subscription)
            known = subscription.record.voter_sets
        wanted = origin_streams.wanted_voters(subscription) if record.scope == ORIGIN else ()
        topic.progress_log.when_durable(lambda error: heard(known, wanted) if error is None else None)

    def commit(self, subject: Subject, heard: frozenset[str]) -> None:
        """These voters know all that is known here."""
        subscription = self._subscription(subject)
        if subscription is not None:
            origin_streams.commit(subscription, heard)

    def write_votes(self, votes: list[tuple[Stream, Ballot]], durable: Callable[[list[Stream]], None]) -> None:
        """One record per subscription; ``durable`` is called for each once it is written."""
        records: dict[Subject, dict[str, Ballot]] = {}
        for stream, ballot in votes:
            records.setdefault(stream[:2], {})[stream[2]] = ballot
        for (topic_name, name), ballots in records.items():
            done = _when_done([(topic_name, name, origin) for origin in ballots], durable)
            subscription = self._subscription((topic_name, name), is_closing=True)
            if subscription is None:
                self.witness.write((topic_name, name), ballots, done)
            else:
                topic = subscription.topic
                topic.votes.setdefault(name, {}).update(ballots)
                topic.progress_log.append(Kind.VOTES, name, encode(ballots), done)

    def has_vote(self, stream: Stream, ballot: Ballot) -> bool:
        """Whether it is the stream's last written vote, in the log that its topic has now."""
        subscription = self._subscription(stream[:2])
        votes = self.witness.votes(stream[:2]) if subscription is None else subscription.topic.votes.get(stream[1], {})
        return votes.get(stream[2]) == ballot

    def basis(self, stream: Stream) -> VoteBasis | None:
        """The basis of an answer about who votes; None while the stream is not served here."""
        subscription = self._subscription(stream[:2])
        if subscription is not None:
            return _SubscriptionBasis(subscription, self._ownership)
        return None if stream[0] in self._topics.topics else self.witness.basis(stream[:2])

    def confirm(self, confirmed: Callable[[], None]) -> None:
        """Call ``confirmed`` once it is certain that no later broker of this region had begun to vote at the call."""
        if not self._is_one_of_several:
            self.witness.confirm(confirmed)
        elif self._ownership.is_valid():
            confirmed()

    def won(self, request: LeaseRequest) -> None:
        streams = self._streams(request.stream)
        if streams is not None:
            streams.won(request.stream[2], request)

    def lost(self, request: LeaseRequest) -> None:
        streams = self._streams(request.stream)
        if streams is not None:
            streams.lost(request.stream[2])

    def wanted_back(self, request: LeaseRequest) -> None:
        streams = self._streams(request.stream)
        if streams is not None:
            streams.wanted_back(request.stream[2])

    def follow_regions(self) -> None:
        """Scopes that are set may be in force now, or not any more."""
        self._topics.parts.scheduler.spawn(self._follow_regions(), "follow which regions support leases")

    async def _follow_regions(self) -> None:
        async for topic in in_slices(self._topics.parts.scheduler, self._topics.topics.values()):
            if topic.failure is None:
                scopes.follow(topic)

    def _subscription(self, subject: Subject, *, is_closing: bool = False) -> Subscription | None:
        """None as well if its topic exists in this region only: it is not the one that other regions mean.

        :param is_closing: also of a topic that is not served any more and whose log is still open.
        """
        topic = self._topics.topics.get(subject[0])
        if topic is None or topic.regions() == {self.region}:
            return None
        if topic.failure is not None and not (is_closing and topic.progress_log.failure is None):
            return None
        return topic.subscriptions.get(subject[1])

    def _abstains(self, topic_name: str) -> bool:
        """Whether a promise on this topic's streams that the disk damaged may still bind."""
        topic = self._topics.topics.get(topic_name)
        if topic is None or topic.leasing is None or not topic.subscription_registry.lost_records.votes_from_ms:
            return False
        return topic.leasing.now_ms() < topic.subscription_registry.lost_records.votes_from_ms

    def _streams(self, stream: Stream) -> DispatchedStreams | None:
        topic = self._topics.topics.get(stream[0])
        found = None if topic is None or topic.failure is not None else topic.subscriptions.get(stream[1])
        return None if found is None else found.streams


class _SubscriptionBasis:
    """A subscription, its record, its topic's regions: each is replaced by another object when anything changes.

    A topic that is not served any more has a failure. Ten thousand are checked at once, so this is cheap.
    """

    __slots__ = ("_ownership", "_record", "_regions", "_subscription")

    def __init__(self, subscription: Subscription, ownership: Ownership) -> None:
        self._ownership = ownership
        self._subscription = subscription
        self._record = subscription.record
        self._regions = subscription.topic.followed

    def still_valid(self) -> bool:
        subscription = self._subscription
        topic = subscription.topic
        return (
            subscription.record is self._record
            and topic.followed is self._regions
            and topic.failure is None
            and subscription.is_there
            and self._ownership.is_valid()
        )


def _when_done(streams: list[Stream], durable: Callable[[list[Stream]], None]) -> Callable[[LedgerError | None], None]:
    def done(error: LedgerError | None) -> None:
        if error is None:
            durable(streams)

    return done
