# SPDX-License-Identifier: Apache-2.0
"""What a subscription, and code that works on one, needs from the set of all subscriptions of its topic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol, TypeVar

from meridian_broker.ledgers.store import Done

if TYPE_CHECKING:
    from meridian_broker.replication.leases.quorums import VoterSets
    from meridian_broker.topics.compaction.compaction import Compaction
    from meridian_broker.topics.dispatch.rates import DispatchRates
    from meridian_broker.topics.subscriptions.newest import Newest

S = TypeVar("S")
"""A subscription. Its class depends on this port, so the port cannot name it."""


class Registry(Protocol[S]):
    """All subscriptions of one topic (``registry.py``)."""

    @property
    def subscriptions(self) -> Mapping[str, S]:
        """By name."""
        ...

    @property
    def compaction(self) -> Compaction:
        """The topic's compaction: the view that subscriptions may read."""
        ...

    @property
    def newest(self) -> Newest | None:
        """The topic's newest entry; None: it has few subscriptions."""
        ...

    @property
    def dispatch_rates(self) -> DispatchRates:
        """The topic's dispatch rates, which subscriptions keep."""
        ...

    def is_in_doubt(self, name: str, /) -> bool:
        """Whether other regions may know more of a subscription than is left of it here (``damaged_records.py``)."""
        ...

    def may_be_known_elsewhere(self, subscription: S, /) -> bool:
        """Whether other regions know of it, or may know of it."""
        ...

    def check_unused(self, name: str, /) -> None:
        """:raises SubscriptionNotFound: there is none of that name.
        :raises SubscriptionInUse: it has consumers in this region.
        """
        ...

    def delete(self, name: str, done: Done | None = None, *, forced: bool = False) -> None:
        """Delete it, in all regions that share it.

        :raises SubscriptionNotFound: there is none of that name.
        :raises SubscriptionInUse: it has consumers, and ``forced`` is not set.
        """
        ...

    def forget_reader(self, subscription: S, /) -> None:
        """Remove a subscription that is not durable; its reader has left."""
        ...

    def set_replicated(self, subscription: S, replicated: bool, done: Done | None = None) -> None:
        """Switch the replicated flag (R17)."""
        ...

    def set_scope(
        self,
        subscription: S,
        scope: str,
        preferred: Mapping[str, str],
        done: Done | None = None,
        *,
        witness: str | None = None,
    ) -> None:
        """Set which region dispatches which messages (R25, R26)."""
        ...

    def set_voter_sets(self, subscription: S, known: VoterSets, /) -> None:
        """Record who votes, as far as is known (R26)."""
        ...
