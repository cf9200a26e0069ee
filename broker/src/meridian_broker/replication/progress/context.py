# SPDX-License-Identifier: Apache-2.0
"""Shared by the parts of the progress exchange: the host, the peers' state, the digests, counters and the time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol, TypeAlias

from meridian_broker.ledgers.store import Done, LedgerError, WhenDurable
from meridian_broker.positions.progress import Progress
from meridian_broker.replication.peers import region_of
from meridian_broker.replication.progress.digests import DigestCache
from meridian_broker.replication.progress.lag import Why
from meridian_broker.replication.progress.messages import (
    NOT_A_REGION,
    NOT_OWNER,
    OTHER_INCARNATION,
    REFUSED,
    UNDECODABLE,
    UNKNOWN_SUBSCRIPTION,
    ExchangeLimits,
    PeerMessage,
    SubscriptionKey,
)
from meridian_broker.replication.progress.peer import Peer
from meridian_broker.replication.progress.routes import Routes

Reply: TypeAlias = Callable[[PeerMessage], None]
"""Answers on the link that a message arrived on. Without effect once that link is down."""

IN_FLUX_MS: Final = 1000
"""How long after a merge from a third region a difference is taken for a race with that region."""


class ProgressHost(Protocol):
    """Where progress lives: the broker's topics."""

    @property
    def region(self) -> str: ...

    def is_served(self, topic: str) -> bool:
        """Whether ``progress`` is all that this region knows: false while a topic on record is not open."""

    def open_soon(self, topic: str) -> None:
        """Open a topic that is on record and not open yet, before others: another region waits for it."""

    def progress(self, topic: str, subscription: str) -> Progress | None:
        """All this region knows to be acked; None: no such subscription."""

    def record(self, topic: str, subscription: str) -> bytes | None:
        """The subscription's encoded record: equal bytes for equal records, on every region."""

    def when_durable(self, topic: str, done: Done) -> None:
        """``done(None)`` once all that is known now of an open topic is on disk, at once when it is; ``done(error)``
        when it never will be."""

    def incarnation(self, topic: str) -> str:
        """Stamp of the topic's last deletion, empty when it never was deleted; for topics not known here too (R8)."""

    def open_topics(self) -> Collection[str]:
        """The topics that are open on this broker: a live collection."""

    def is_replicated(self, topic: str) -> bool:
        """Whether an open topic has replicated subscriptions, deleted ones included; false for any other topic."""

    def replicated_in(self, topic: str) -> Iterable[str]:
        """The replicated subscriptions of one of them, each once; none if it is not owned any more."""

    def regions_of(self, topic: str) -> frozenset[str]:
        """The topic's regions, ours included; empty for a topic not known here.

        :raises ValueError: this cannot be a topic's name.
        """

    def owns(self, topic: str) -> bool:
        """Whether this broker may answer for the topic: no other broker of its region owns it."""

    def merge(
        self,
        topic: str,
        subscription: str,
        incarnation: str,
        delta: Progress,
        record: bytes | None,
        done: Callable[[str | None], None],
    ) -> None:
        """Join the delta and make it durable; topic and subscription are made when absent.

        ``done(None)`` once durable, ``done(reason)`` when refused; exactly one of them, now or later.

        :raises ValueError: instead of ``done``: the two cannot be joined.
        """


@dataclass(slots=True)
class ExchangeCounters:
    """Since start, for metrics."""

    deltas_sent: int = 0
    deltas_received: int = 0
    items_passed_on: int = 0
    refused_here: int = 0
    """Items of peers that were not merged."""
    refused_there: int = 0
    """Items of ours that a peer did not merge."""
    given_up: int = 0
    """DELTA without a confirmation."""
    digests_sent: int = 0
    topics_equal: int = 0
    topics_differing: int = 0
    states_sent: int = 0
    states_merged: int = 0
    barriers: int = 0
    flushes: int = 0


Finished: TypeAlias = Callable[[str, str, Progress | None], None]
"""``(code, reason, delta)``. Code and reason empty: the delta is merged and durable."""


_WHY: Final = {
    UNKNOWN_SUBSCRIPTION: Why.UNKNOWN_SUBSCRIPTION,
    OTHER_INCARNATION: Why.OTHER_INCARNATION,
    NOT_A_REGION: Why.NOT_A_REGION,
    UNDECODABLE: Why.UNDECODABLE,
}


def why_of(code: str) -> Why:
    """The reason that a refusal's code names; those of newer versions are refusals like any other."""
    return _WHY.get(code, Why.REFUSED)


class ExchangeContext:
    """State and rules common to sending, receiving and comparing."""

    def __init__(self, host: ProgressHost, limits: ExchangeLimits, wanted: Callable[[str], None]) -> None:
        """:param wanted: see ``Routes``."""
        self.host = host
        self.limits = limits
        self.routes = Routes(host.regions_of, wanted)
        self.peers_of = self.routes.peers_of
        self.digests = DigestCache(host, limits, self.peers_of)
        self.counters = ExchangeCounters()
        self.peers: dict[str, Peer] = {}
        """By name."""
        self.now_ms = 0
        self._merged_at: dict[str, dict[str, int]] = {}
        """Topic -> peer -> when something from there was last merged."""
        self._undurable: Counter[str] = Counter()
        """Topic -> changes that the host holds and a crash would still lose."""
        self.wake: Callable[[], None] = lambda: None
        """Asks for a ``tick`` soon: writes become durable outside of any call."""

    def others_of(self, topic: str) -> list[str]:
        """The topic's other regions, in a fixed order."""
        return sorted(self.host.regions_of(topic) - {self.host.region})

    def peer_in(self, region: str, topic: str) -> Peer | None:
        """The topic's peer in one of its regions."""
        return self.peers.get(self.routes.peer_in(region, topic))

    def is_up(self, region: str, topic: str) -> bool:
        """Whether the topic's peer in the region can be reached."""
        peer = self.peer_in(region, topic)
        return peer is not None and peer.up

    def objection(self, region: str, topic: str, incarnation: str) -> tuple[str, str] | None:
        """Why nothing about this topic may be taken from the region; None: it may."""
        try:
            regions = self.host.regions_of(topic)
        except ValueError as error:
            return UNDECODABLE, str(error)
        if regions and region not in regions:
            return NOT_A_REGION, f"region {region} is not among the regions of {topic} in {self.host.region}"
        if not self.host.owns(topic):
            return NOT_OWNER, f"another broker of {self.host.region} owns {topic}"
        ours = self.host.incarnation(topic)
        if ours != incarnation:
            here, there = ours or "never", incarnation or "never"
            return OTHER_INCARNATION, (
                f"{topic} was last deleted: {here} in {self.host.region}, {there} in {region}; "
                "nothing is merged until both know of the same deletion"
            )
        return None

    def held(self, peer: Peer, topic: str) -> str:
        """Why nothing of the topic is offered to the peer now; empty: it may be.

        The peer's last view of the topic, or its refusal, is judged by what is known here now: this region may have
        learned of the same deletion meanwhile.
        """
        held = peer.waiting.get(topic)
        if held is None:
            return ""
        if held.is_ours:
            is_over = not self.is_now(topic, held.incarnation)
        else:
            is_over = self.objection(peer.region, topic, held.incarnation) is None
        if is_over:
            peer.release(topic)
            return ""
        return held.trouble.text

    # -- permission to send (R10, R60)

    def is_now(self, topic: str, incarnation: str) -> bool:
        """Whether this is still the topic's incarnation. Changes of a deleted one are not sent to anyone (R8)."""
        return self.host.incarnation(topic) == incarnation

    def send_once_durable(self, durable: WhenDurable, tell: Callable[[str], None]) -> None:
        """The one gate for everything that leaves: state that was read from memory is sent once it is on disk.

        Otherwise a broker that is killed in between, or was replaced and cannot write any more, would have reported
        acknowledgements that are recorded nowhere, on behalf of a region that knows nothing of them. If no write is in
        flight, which is nearly always the case, it is sent at once.

        :param tell: called with the reason if it will never be durable; with an empty text when it is.
        """

        def finished(error: LedgerError | None) -> None:
            tell("" if error is None else f"{self.host.region} cannot store it: {error}")
            self.wake()

        durable(finished)

    def show(self, topic: str, tell: Callable[[str], None]) -> None:
        """The same for changes that the host has just reported for a topic."""
        self.send_once_durable(partial(self.host.when_durable, topic), tell)

    def changed(self, key: SubscriptionKey, durable: WhenDurable, tell: Callable[[], None]) -> None:
        """The host changed something: ``tell`` it once it is durable. Until then the topic's digest is not final."""
        topic = key[0]
        self._undurable[topic] += 1
        self.digests.mark(*key)

        def finished(reason: str) -> None:
            self._finished(topic)
            if not reason:
                tell()

        self.send_once_durable(durable, finished)

    def _finished(self, topic: str) -> None:
        assert self._undurable[topic] > 0, "each change becomes durable, or fails, once"
        self._undurable[topic] -= 1
        if not self._undurable[topic]:
            del self._undurable[topic]

    # -- receiving from a region

    def merge(
        self,
        sender: Peer,
        key: SubscriptionKey,
        incarnation: str,
        encoded: bytes,
        record: bytes | None,
        finished: Finished,
    ) -> None:
        """Check a peer's message and merge it; ``finished`` is called with the outcome, now or later."""
        topic, subscription = key
        region = sender.region
        objection = self.objection(region, topic, incarnation)
        if objection is None and record is None and self.host.progress(topic, subscription) is None:
            objection = UNKNOWN_SUBSCRIPTION, f"{self.host.region} has no subscription {subscription} on {topic}"
        delta: Progress | None = None
        if objection is None:
            try:
                delta = Progress.decode(encoded)
            except ValueError as error:
                objection = UNDECODABLE, f"progress of {subscription} on {topic} from {region}: {error}"
        if objection is not None or delta is None:
            self.counters.refused_here += 1
            finished(*(objection or (UNDECODABLE, "no progress")), None)
            return

        def durable(reason: str | None) -> None:
            self._finished(topic)
            self.digests.mark(topic, subscription)
            if reason is None:
                finished("", "", delta)
                return
            self.counters.refused_here += 1
            finished(REFUSED, reason, None)

        self._merged_at.setdefault(topic, {})[sender.name] = self.now_ms
        for other in self.peers.values():
            if other.region != region:  # it may lack this, and may not get it from the acknowledging region
                other.in_sync.discard(topic)
        self._undurable[topic] += 1
        self.digests.mark(topic, subscription)
        try:
            self.host.merge(topic, subscription, incarnation, delta, record, durable)
        except ValueError as error:
            durable(str(error))

    def in_flux(self, topic: str, peer: str) -> bool:
        """The topic's digest is not final: a change is not durable yet, or a third region that is still
        reachable sent us a change a moment ago, and is sending it to the peer, too."""
        if topic in self._undurable:
            return True
        since = self.now_ms - IN_FLUX_MS
        return any(
            at > since and other != peer and self.is_up(region_of(other), topic)
            for other, at in self._merged_at.get(topic, {}).items()
        )

    def topics_in_flux(self, peer: str) -> set[str]:
        """All topics with digests that are not final."""
        topics = self._undurable.keys() | self._merged_at.keys()
        return {topic for topic in topics if self.in_flux(topic, peer)}

    def forget_finished(self) -> None:
        """Remove merges that are not recent any more from the record."""
        since = self.now_ms - IN_FLUX_MS
        self._merged_at = {topic: peers for topic, peers in self._merged_at.items() if max(peers.values()) > since}
