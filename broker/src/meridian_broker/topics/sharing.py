# SPDX-License-Identifier: Apache-2.0
"""All shares of all topics of a broker, for whoever gets the leases on them; and the votes of this region (R26).

A vote is a record in the progress log of its topic: durable in the same group commit as everything else, and fenced
with the topic, so that a broker that was replaced can vote no more.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

from meridian_broker.ledgers.store import LedgerError
from meridian_broker.topics import scope
from meridian_broker.topics.progress_log import Kind
from meridian_broker.topics.scope import Lease, Shares, Stream

if TYPE_CHECKING:
    from meridian_broker.topics.service import TopicService
    from meridian_broker.topics.topic import Topic

Ballot = tuple[str, int, int]
"""Holder, term, duration in milliseconds."""


class SharedStreams:
    """See the module's text. One per broker."""

    def __init__(self, service: TopicService) -> None:
        self._service = service

    @property
    def region(self) -> str:
        return self._service.region

    def voters(self, stream: Stream) -> tuple[str, ...]:
        """The regions that vote on the stream; empty while its topic or subscription is not served here."""
        topic = self._topic(stream)
        subscription = None if topic is None else topic.subscriptions.get(stream[1])
        return () if subscription is None else scope.voters_on(subscription, stream[2])

    def write_votes(self, votes: list[tuple[Stream, Ballot]], durable: Callable[[list[Stream]], None]) -> None:
        """One record per subscription; ``durable`` hears of each once that is done."""
        records: dict[tuple[str, str], dict[str, Ballot]] = {}
        for stream, ballot in votes:
            records.setdefault(stream[:2], {})[stream[2]] = ballot
        for (topic_name, name), ballots in records.items():
            topic = self._topic((topic_name, name, ""))
            if topic is not None:
                topic.votes.setdefault(name, {}).update(ballots)
                streams = [(topic_name, name, origin) for origin in ballots]
                topic.progress_log.append(Kind.VOTES, name, encode(ballots), _when_done(streams, durable))

    def won(self, claim: Held) -> None:
        shares = self._shares(claim.stream)
        if shares is not None:
            shares.won(claim.stream[2], claim)

    def lost(self, claim: Held) -> None:
        shares = self._shares(claim.stream)
        if shares is not None:
            shares.lost(claim.stream[2])

    def wanted_back(self, claim: Held) -> None:
        shares = self._shares(claim.stream)
        if shares is not None:
            shares.wanted_back(claim.stream[2])

    def follow_regions(self) -> None:
        """Scopes that are set may be in force now, or not any more."""
        for topic in list(self._service.topics.values()):
            if topic.failure is None:
                follow(topic)

    def _topic(self, stream: Stream) -> Topic | None:
        topic = self._service.topics.get(stream[0])
        return topic if topic is not None and topic.failure is None else None

    def _shares(self, stream: Stream) -> Shares | None:
        topic = self._topic(stream)
        subscription = None if topic is None else topic.subscriptions.get(stream[1])
        return None if subscription is None else subscription.share


class Held(Lease, Protocol):
    """A lease that says on what it is."""

    @property
    def stream(self) -> Stream: ...


def follow(topic: Topic) -> None:
    """Do as the records of its subscriptions say, and the regions that it has."""
    for subscription in list(topic.subscriptions.values()):
        scope.follow(subscription)


def opened(service: TopicService, topic: Topic) -> None:
    """A topic is served from now on: what this region voted is known, and its shares are asked for."""
    topic.leasing = service.leasing
    topic.regions = lambda: service.regions_of(topic.name)
    if topic.leasing is not None:
        for name, ballots in topic.votes.items():
            for origin, ballot in ballots.items():
                topic.leasing.found((topic.name, name, origin), *ballot)
    follow(topic)


def encode(ballots: dict[str, Ballot]) -> bytes:
    return json.dumps(ballots, separators=(",", ":"), sort_keys=True).encode()


def recall(topic: Topic, name: str, payload: bytes) -> None:
    """A record that the progress log holds; later ones count."""
    topic.votes.setdefault(name, {}).update(decode(payload))


def decode(payload: bytes) -> dict[str, Ballot]:
    """:raises ValueError: these are no votes."""
    try:
        return {
            str(origin): (str(holder), int(term), int(duration))
            for origin, (holder, term, duration) in json.loads(payload).items()
        }
    except (TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{payload[:80]!r} is no record of votes: {error}") from error


def snapshot(topic: Topic) -> Iterator[tuple[Kind, str, bytes]]:
    """What the progress log must begin a ledger with; of subscriptions that are gone nobody asks."""
    for name, ballots in topic.votes.items():
        if name in topic.subscriptions:
            yield Kind.VOTES, name, encode(ballots)


def _when_done(streams: list[Stream], durable: Callable[[list[Stream]], None]) -> Callable[[LedgerError | None], None]:
    def done(error: LedgerError | None) -> None:
        if error is None:
            durable(streams)

    return done
