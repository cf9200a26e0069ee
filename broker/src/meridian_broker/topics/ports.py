# SPDX-License-Identifier: Apache-2.0
"""What a topic needs from the broker around it: ownership, the exchange with other regions, leases on streams."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from typing import Protocol

from meridian_broker.ledgers.store import WhenDurable
from meridian_broker.positions import Position, Progress
from meridian_broker.replication.leases.messages import Stream
from meridian_broker.replication.leases.quorums import VoterSets
from meridian_broker.replication.leases.request import LeaseRequest
from meridian_broker.wire.pulsar.topic_name import TopicName


class Ownership(Protocol):
    """Which topics this broker may open, one of the brokers of its region."""

    async def acquire(self, topic: TopicName, /) -> int:
        """Own the topic, if no other broker does. Returns the fence of the term (R10).

        :raises TopicFenced: another broker owns it, or none can at this moment: clients look it up again.
        """
        ...

    def holds(self, topic: TopicName, fence: int | None = None, /) -> bool:
        """Whether this broker owns the topic now. :param fence: of the term that is asked about; None: any."""
        ...

    def owns(self, topic: str, /) -> bool:
        """The same by its full name; text that is not a valid name is owned by nobody else."""
        ...

    def is_surveyed(self, topic: str | None = None, /) -> bool:
        """Whether this broker knows if the topic is on record; without a topic: for all topics that it owns."""
        ...

    @property
    def is_sole(self) -> bool:
        """Whether this broker is the only one of its region."""
        ...

    def is_valid(self) -> bool:
        """Whether this broker owns anything at this instant, by its own clock: an owner that was suspended for longer
        than its lease does not."""
        ...


class EveryTopic:
    """Ownership in a region of one broker: it owns every topic, in a term that lasts as long as its process."""

    def __init__(self, fence: int) -> None:
        """:param fence: greater than those of all brokers of the region before it."""
        self._fence = fence

    async def acquire(self, _topic: TopicName, /) -> int:
        return self._fence

    def holds(self, _topic: TopicName, _fence: int | None = None, /) -> bool:
        return True

    def owns(self, _topic: str, /) -> bool:
        return True

    def is_surveyed(self, _topic: str | None = None, /) -> bool:
        return True

    @property
    def is_sole(self) -> bool:
        return True

    def is_valid(self) -> bool:
        return True


class Exchange(Protocol):
    """The progress exchange as a topic sees it."""

    def local_change(
        self,
        topic: str,
        subscription: str,
        delta: Progress,
        durable: WhenDurable,
        *,
        record_changed: bool = False,
        entries: int = 0,
    ) -> None:
        """Something was acked, rewound or created here: send it to the other regions once it is durable (R60).

        :param durable: registers a callback for that moment.
        :param entries: the number of entries acked.
        """
        ...

    def opened(self, topic: str) -> None:
        """The topic was opened: another broker may have changed its subscriptions since it was open here before."""
        ...

    def send_pending(self) -> None:
        """Send everything collected so far now, as far as links take it, without waiting to batch more."""
        ...

    def barrier(self, topic: str, subscription: str, passed: Callable[[], None]) -> None:
        """Call ``passed`` once the newest progress of every reachable region is merged, or at the time limit (R20)."""
        ...

    def flush(self, topic: str, subscription: str, passed: Callable[[], None]) -> None:
        """Call ``passed`` once the other regions confirmed everything sent so far, or at the time limit (R20)."""
        ...


class Snapshots(Protocol):
    """Snapshots of a topic's subscriptions (PIP-33), as the topic's parts see them."""

    def replace_exchange_of(self, subscription: str, /) -> bool:
        """Whether Meridian regions, too, learn by snapshots alone what a subscription has acknowledged here."""
        ...

    @property
    def last_marker(self) -> Position:
        """The last marker that was written here since the topic was opened; ``EARLIEST``: none was."""
        ...

    def moved(self, subscription: str, /) -> None:
        """A replicated subscription was created, or its cursor moved."""
        ...

    def consumer_left(self, subscription: str, /) -> None:
        """A consumer of a replicated subscription left, and what it acknowledged is durable."""
        ...

    def received(self, body: bytes | memoryview, sender: str, source: Position | None = None, /) -> None:
        """A region's replicator brought a marker, and everything that arrived before it is durable here.

        :param source: its position in the log of a region of Apache Pulsar, as far as that names it.
        """
        ...

    def refuse(self, why: str, /) -> None:
        """A region's replicator brought a marker that has no effect."""
        ...


class Leasing(Protocol):
    """Grants leases on streams."""

    def now_ms(self) -> int:
        """A monotonic clock, in milliseconds."""

    @property
    def promise_ms(self) -> int:
        """How long a vote binds, by this region's settings."""

    def objection(self, regions: tuple[str, ...], /) -> str:
        """Why there are no leases for topics of these regions; empty: there are."""

    def agree(self, topic: str, subscription: str, /) -> None:
        """Start to agree on who votes on streams of this subscription."""

    def want(self, stream: Stream, voter_sets: VoterSets, preferred: str, /) -> LeaseRequest:
        """Request a lease and keep it renewed. ``won`` and ``lost`` of the stream are called with the outcome."""

    def unwant(self, stream: Stream, /) -> None:
        """Release it soon, unless it is wanted again."""

    def release(self, stream: Stream, /) -> None:
        """The stream is not dispatched here any more: others may have it."""

    def leave(self, streams: Iterable[Stream], /) -> None:
        """The streams' topic is being closed: release at once those that are held."""

    def left(self, topics: Container[str], /) -> None:
        """This broker does not own these topics any more: the next voter finds its votes on disk."""

    def found(self, stream: Stream, holder: str, term: int, duration_ms: int, /) -> None:
        """A vote of this region was found."""


class DispatchedStreams(Protocol):
    """Dispatch scope ``origin``: which messages of a subscription this region dispatches (R26)."""

    @property
    def held(self) -> Mapping[str, LeaseRequest]:
        """Origins whose messages are dispatched here while their lease lasts."""
        ...

    def holds(self, origin: str) -> bool:
        """Whether messages of this origin may be sent now."""
        ...

    def covered_by(self, origin: str, position: Position) -> frozenset[str]:
        """Origins whose earlier entries a cumulative acknowledgement of this entry covers."""
        ...

    def refresh(self) -> None:
        """Request what is to be dispatched here; nothing while there are no consumers."""
        ...

    def close(self) -> None:
        """The scope changed: request nothing any more."""
        ...

    def won(self, origin: str, lease: LeaseRequest) -> None:
        """The lease on the stream was granted."""
        ...

    def lost(self, origin: str) -> None:
        """The lease ended."""
        ...

    def wanted_back(self, origin: str) -> None:
        """Its preferred holder requests it."""
        ...
