# SPDX-License-Identifier: Apache-2.0
"""Applies changed policies and settings to the open topics: their regions and their rules.

A topic whose namespace is missing keeps its last known regions and rules, and nothing of it is removed until the
namespace is back: another region decides about the namespace, and may not know the topic.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from meridian_broker.ledgers.periodic import SomeFailed
from meridian_broker.ledgers.scheduling import in_slices
from meridian_broker.wire.pulsar import topic_name

if TYPE_CHECKING:
    from meridian_broker.metadata.rules import Rules
    from meridian_broker.topics.service.opener import TopicOpener

log = logging.getLogger(__name__)


class PolicyRounds:
    """See the module's text. One per broker."""

    def __init__(self, opener: TopicOpener) -> None:
        self._opener = opener
        self._revision = -1
        """The catalog's revision that the open topics follow."""
        self._defaults: Rules | None = None
        """The rules from the settings that they follow."""
        self.missing: frozenset[str] = frozenset()
        """Namespaces that have open topics here, and are missing or being deleted."""

    async def follow(self) -> None:
        """Apply the policies to every open topic, if a policy or a setting changed since the last call.

        :raises SomeFailed: it failed for some topics, which the next call tries again.
        """
        opener, registry = self._opener, self._opener.registry
        revision, defaults = opener.parts.catalog.revision, opener.parts.defaults()
        if self._revision == revision and self._defaults is defaults:
            return
        await registry.non_persistent.follow_policies()
        failures: dict[str, Exception] = {}
        missing: set[str] = set()
        async for topic in in_slices(opener.parts.scheduler, registry.topics.values()):
            if topic.failure is None:
                try:
                    opener.follow(topic)
                except Exception as error:
                    failures[topic.name] = error
                if not topic.rules.are_current:
                    missing.add(topic_name.parse(topic.name).namespace_name)
        self._note(frozenset(missing))
        if failures:
            raise SomeFailed(failures, len(registry.topics))
        self._revision, self._defaults = revision, defaults

    def _note(self, missing: frozenset[str]) -> None:
        for namespace in sorted(missing - self.missing):
            log.warning(
                "namespace %s is missing or being deleted, but has open topics here: they keep their last known "
                "policies, and nothing in them is deleted or expires; create the namespace again, or delete its topics",
                namespace,
            )
        for namespace in sorted(self.missing - missing):
            log.info("namespace %s exists again, or no longer has open topics here", namespace)
        self.missing = missing
        self._opener.parts.catalog.remember_missing(missing)
