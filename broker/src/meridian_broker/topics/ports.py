# SPDX-License-Identifier: Apache-2.0
"""What a topic asks of the broker around it: the progress exchange with other regions, and leases on shares."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from meridian_broker.ledgers.store import WhenDurable
from meridian_broker.positions import Position, Progress
from meridian_broker.replication.leases.claim import Claim
from meridian_broker.replication.leases.messages import Stream
from meridian_broker.replication.leases.quorums import VoterSets


class Exchange(Protocol):
    """The progress exchange, seen from a topic."""

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
        """Something was acked, rewound or made here: tell the other regions, once it is durable (R60).

        :param durable: asked when that is.
        :param entries: how many entries were acked.
        """
        ...

    def send_pending(self) -> None:
        """Send everything collected so far now, as far as links take it, without waiting to batch more."""
        ...

    def barrier(self, topic: str, subscription: str, passed: Callable[[], None]) -> None:
        """``passed`` once the newest progress of every reachable region is merged, or the time for it is over (R20)."""
        ...

    def flush(self, topic: str, subscription: str, passed: Callable[[], None]) -> None:
        """``passed`` once the other regions confirmed everything sent so far, or the time for it is over (R20)."""
        ...


class Leasing(Protocol):
    """Where leases come from."""

    def now_ms(self) -> int:
        """A monotone clock."""

    @property
    def promise_ms(self) -> int:
        """How long a vote binds, by this region's settings."""

    def objection(self, regions: tuple[str, ...], /) -> str:
        """Why there are no leases for topics of these regions; empty: there are."""

    def agree(self, topic: str, subscription: str, /) -> None:
        """It is to be agreed who votes on shares of this subscription."""

    def want(self, stream: Stream, voter_sets: VoterSets, preferred: str, /) -> Claim:
        """Ask for a lease, and renew it, from now on. ``won`` and ``lost`` of the share hear how it goes."""

    def unwant(self, stream: Stream, /) -> None:
        """Give it back in a moment, unless it is wanted again."""

    def release(self, stream: Stream, /) -> None:
        """Nothing of it is dispatched any more: others may have it."""

    def found(self, stream: Stream, holder: str, term: int, duration_ms: int, /) -> None:
        """This region has voted so."""


class DispatchShares(Protocol):
    """Dispatch scope ``origin``: which messages of a subscription this region dispatches (R26)."""

    @property
    def held(self) -> Mapping[str, Claim]:
        """Origins whose messages are dispatched here while their lease lasts."""
        ...

    def holds(self, origin: str) -> bool:
        """May messages of this origin be sent at this moment?"""
        ...

    def covered_by(self, origin: str, position: Position) -> frozenset[str]:
        """Origins of which a cumulative acknowledgement of an entry covers what stands before it."""
        ...

    def refresh(self) -> None:
        """Ask for what is to be dispatched here, and for nothing while nobody consumes."""
        ...

    def close(self) -> None:
        """The scope is another one: ask for nothing any more."""
        ...

    def won(self, origin: str, lease: Claim) -> None:
        """The share is ours."""
        ...

    def lost(self, origin: str) -> None:
        """The lease ended."""
        ...

    def wanted_back(self, origin: str) -> None:
        """Its preferred holder asks for it."""
        ...
