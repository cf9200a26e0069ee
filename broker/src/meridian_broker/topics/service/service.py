# SPDX-License-Identifier: Apache-2.0
"""All topics of a broker, composed of parts with one job each.

Operations on topics are functions that take the part they need: ``creation``, ``removal``, ``partition_growth``,
``kinds``, ``incarnations``, ``closing`` and ``answering`` take the opener, ``subscribing`` the broker's parts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from meridian_broker.topics.directory.following import FollowedNamespaces
from meridian_broker.topics.directory.watching import TopicWatchers
from meridian_broker.topics.service import incarnations
from meridian_broker.topics.service.backfill_rounds import BackfillRounds
from meridian_broker.topics.service.opener import TopicOpener
from meridian_broker.topics.service.policy_rounds import PolicyRounds
from meridian_broker.topics.service.preloading import Loading

if TYPE_CHECKING:
    from collections.abc import Callable

    from meridian_broker.topics.lifecycle.parts import OtherRegions
    from meridian_broker.topics.service.backfill_rounds import Comparing, StoredEnds
    from meridian_broker.topics.service.registry import TopicRegistry


class TopicService:
    """See the module's text. One per broker."""

    def __init__(
        self,
        registry: TopicRegistry,
        regions: OtherRegions,
        ends: StoredEnds,
        comparing: Comparing,
        jitter: Callable[[], float],
    ) -> None:
        """
        :param ends: the high watermarks that ``comparing``, the exchange with other regions, compares.
        :param jitter: returns numbers from 0 to 1, for pauses.
        """
        self.parts = registry.parts
        self.registry = registry
        self.topics = registry.topics
        """The open topics by name, including fenced ones."""
        self.opener = TopicOpener(registry, regions, incarnations.follow)
        self.policies = PolicyRounds(self.opener)
        self.loading = Loading(self.opener)
        self.backfill_rounds = BackfillRounds(registry, ends, comparing, registry.parts.scheduler.monotonic_ms, jitter)
        self.watchers = TopicWatchers(registry.parts.scheduler, registry.names)
        topics = registry.parts.catalog.topics
        if registry.parts.ownership.is_sole:
            topics.on_change = self.watchers.changed
        else:
            followed = FollowedNamespaces(registry.parts.scheduler, topics, self.watchers.has, self.watchers.changed)
            self.watchers.follow = followed.follow
