# SPDX-License-Identifier: Apache-2.0
"""Opens topics without a request: what a topic holds for other regions has to leave even without clients.

At the start these are all topics on record; later those that failed and could not be opened again at once. What cannot
be opened stays on the list, and the next attempt tries it again.

A partitioned topic is made, and deleted, by one write to its own record. If what follows that write is interrupted, the
next attempt continues it.
"""

from __future__ import annotations

import logging
from collections.abc import Set
from functools import partial
from typing import TYPE_CHECKING, Final

from meridian_broker.ledgers.periodic import each
from meridian_broker.ledgers.scheduling import in_slices
from meridian_broker.topics.errors import TopicNotFound
from meridian_broker.topics.lifecycle import orphans
from meridian_broker.topics.service import creation, followed_sources, removal, shadow_topics

if TYPE_CHECKING:
    from meridian_broker.topics.service.opener import TopicOpener
    from meridian_broker.wire.pulsar.topic_name import TopicName

log = logging.getLogger(__name__)

LOADED_AT_ONCE: Final = 8
"""Topics opened at the same time if each waits for etcd and bookies rather than for this process. Their requests share
commits; with more of them, clients wait longer for their own topics (``bench/brokers/start``).
"""
PARTITIONED: Final = 10
"""Partitioned topics looked at in one turn of the loop: each may have thousands of partitions."""


class Loading:
    """The topics that a broker opens by itself."""

    def __init__(self, opener: TopicOpener) -> None:
        self._opener = opener
        self._registry = opener.registry
        self._parts = opener.parts

    async def make_topics(self) -> None:
        """Put on record what only the volume knows, before anybody asks. :raises MetadataError: it cannot be read."""
        await orphans.make_topics(self._parts)

    async def load_all(self) -> None:
        """Open all that is on the list, and finish the making and the deletions of partitioned topics.

        :raises MetadataError: what is on record cannot be read.
        :raises SomeFailed: some topics cannot be opened.
        """
        unfinished = self._parts.unfinished
        if not unfinished.is_surveyed:
            on_record: set[TopicName] = set()
            async for name in in_slices(self._parts.scheduler, await self._registry.survey()):
                unfinished.later(name)
                on_record.add(name)
            await self._look_for_halves(on_record)
            await shadow_topics.look_after(self._opener)
            unfinished.is_surveyed = True
        await shadow_topics.catch_up(self._opener)
        followed_sources.check_waiting(self._registry)
        work = [partial(self._load, name) for name in unfinished.closed.values()]
        work += [partial(self._finish, name) for name in unfinished.going.values()]
        work += [partial(self._complete, name) for name in unfinished.coming.values()]
        at_once = LOADED_AT_ONCE if self._parts.labels.are_on_record else 1
        await each(self._parts.scheduler, work, lambda one: str(one.args[0]), lambda one: one(), at_once=at_once)

    async def _look_for_halves(self, on_record: Set[TopicName]) -> None:
        """Partitioned topics that an earlier run of the broker began to make, or to delete.

        A topic of this region alone is complete without the partitions that were never used.

        :param on_record: topics.
        """
        parts, unfinished = self._parts, self._parts.unfinished
        inhabited = await parts.catalog.partitioned.namespaces()
        for namespace in filter(inhabited.__contains__, parts.catalog.known_namespaces()):
            found = await parts.catalog.partitioned.all(namespace)
            async for name, record in in_slices(parts.scheduler, found, PARTITIONED):
                if record.deleting is not None:
                    unfinished.finish_later(name)
                elif parts.is_multi_region(name) and any(
                    partition not in on_record and parts.ownership.holds(partition)
                    for partition in map(name.with_partition, range(record.partitions))
                ):
                    unfinished.coming[str(name)] = name

    async def _finish(self, name: TopicName) -> None:
        if not self._registry.closing:
            await removal.finish(self._opener, name)
            self._parts.unfinished.going.pop(str(name), None)

    async def _complete(self, name: TopicName) -> None:
        if not self._registry.closing:
            await creation.complete(self._opener, name)
            self._parts.unfinished.coming.pop(str(name), None)

    async def _load(self, name: TopicName) -> None:
        if not self._registry.closing:
            try:
                await self._opener.topic(name, create=False)
            except TopicNotFound:  # it was deleted in the meantime, perhaps while the survey was under way
                self._parts.unfinished.forget(str(name))
            self._parts.unfinished.closed.pop(str(name), None)
