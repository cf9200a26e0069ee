# SPDX-License-Identifier: Apache-2.0
"""Applies changed policies and settings to the open topics: their regions and their rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meridian_broker.ledgers.periodic import SomeFailed
from meridian_broker.ledgers.scheduling import in_slices

if TYPE_CHECKING:
    from meridian_broker.metadata.rules import Rules
    from meridian_broker.topics.service.opener import TopicOpener


class PolicyRounds:
    """See the module's text. One per broker."""

    def __init__(self, opener: TopicOpener) -> None:
        self._opener = opener
        self._revision = -1
        """The catalog's revision that the open topics follow."""
        self._defaults: Rules | None = None
        """The rules from the settings that they follow."""

    async def follow(self) -> None:
        """Apply the policies to every open topic, if any or a setting changed since the last call.

        :raises SomeFailed: it failed for some topics, which the next call tries again.
        """
        opener, registry = self._opener, self._opener.registry
        revision, defaults = opener.parts.catalog.revision, opener.parts.defaults()
        if self._revision == revision and self._defaults is defaults:
            return
        await registry.non_persistent.follow_policies()
        failures: dict[str, Exception] = {}
        async for topic in in_slices(opener.parts.scheduler, registry.topics.values()):
            if topic.failure is None:
                try:
                    opener.follow(topic)
                except Exception as error:
                    failures[topic.name] = error
        if failures:
            raise SomeFailed(failures, len(registry.topics))
        self._revision, self._defaults = revision, defaults
