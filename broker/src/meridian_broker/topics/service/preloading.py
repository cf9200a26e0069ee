# SPDX-License-Identifier: Apache-2.0
"""Topics are opened although nobody asks for them: what a topic holds for other regions has to leave without clients.

At the start these are all topics on record; later those that failed and could not be opened again at once. What cannot
be opened stays on the list, and the next attempt tries it again.

A partitioned topic is made, and deleted, by one write to its own record. Where what follows that write breaks off, the
next attempt goes on with it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Set
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

from meridian_broker.ledgers.periodic import each
from meridian_broker.ledgers.store import LedgerError
from meridian_broker.metadata.store import MetadataError
from meridian_broker.topics.errors import TopicError, TopicNotFound
from meridian_broker.topics.service import creation, removal
from meridian_broker.wire.pulsar import topic_name

if TYPE_CHECKING:
    from meridian_broker.topics.service.service import TopicService
    from meridian_broker.topics.topic import Topic
    from meridian_broker.wire.pulsar.topic_name import TopicName

log = logging.getLogger(__name__)


class Loading:
    """The topics that a broker opens by itself."""

    def __init__(self, service: TopicService) -> None:
        self._service = service
        self._left: dict[str, TopicName] = {}
        self._going: dict[str, TopicName] = {}
        """Partitioned topics whose deletion was begun."""
        self._coming: dict[str, TopicName] = {}
        """Those that are on record, or may be, while some of their partitions may not be."""
        self.is_surveyed = False
        """The topics on record are known: before that, one that is not open may be one that was not opened yet."""

    def later(self, name: TopicName) -> None:
        """It could not be opened now."""
        self._left[str(name)] = name

    def finish_later(self, name: TopicName) -> None:
        """The deletion of a partitioned topic begins; when it breaks off the next attempt finishes it."""
        self._going[str(name)] = name

    @contextmanager
    def or_later(self, name: TopicName) -> Iterator[None]:
        """A partitioned topic is made: when that breaks off the next attempt goes on with it, if it is on record."""
        self._coming[str(name)] = name
        yield
        self._coming.pop(str(name), None)

    async def open(self, name: TopicName) -> None:
        """Open a topic now or, where that fails, with the next attempt."""
        try:
            await self._service.topic(name, create=False)
        except (TopicError, LedgerError, MetadataError) as error:
            log.warning("topic %s is not open, next try in a while, or when somebody asks: %s", name, error)
            self.later(name)

    def open_again(self, topic: Topic) -> None:
        """Open a topic that failed again, after its pause (``topics/reopening.py``)."""
        service = self._service
        if service.closing or not topic.reopen:
            return
        scheduler = service.scheduler
        pause_ms = service.failing.failed(topic.name, str(topic.failure), scheduler.monotonic_ms())

        def begin() -> None:
            service.failing.end_pause(topic.name, scheduler.monotonic_ms())
            scheduler.spawn(self._open_again(topic), f"open {topic.name} again")

        if pause_ms:
            scheduler.later(pause_ms / 1000, begin)
        else:
            begin()

    async def _open_again(self, topic: Topic) -> None:
        service = self._service
        if service.topics.get(topic.name) is topic and not service.closing and topic.reopen:
            await self.open(topic_name.parse(topic.name))

    async def load_all(self) -> None:
        """Open all that is on the list, and finish the making and the deletions of partitioned topics.

        :raises MetadataError: what is on record cannot be read.
        :raises SomeFailed: some topics cannot be opened.
        """
        if not self.is_surveyed:
            names = await self._service.survey()
            for name in names:
                self.later(name)
            await self._look_for_halves(frozenset(names))
            self.is_surveyed = True
        work = [partial(self._load, name) for name in self._left.values()]
        work += [partial(self._finish, name) for name in self._going.values()]
        work += [partial(self._complete, name) for name in self._coming.values()]
        await each(work, lambda one: str(one.args[0]), lambda one: one())

    async def _look_for_halves(self, topics: Set[TopicName]) -> None:
        """Partitioned topics that an earlier life of the broker began to make, or to delete.

        A topic of this region alone is complete without the partitions that nobody has used.

        :param topics: those on record.
        """
        service = self._service
        for namespace in service.catalog.known_namespaces():
            for name, record in await service.catalog.partitioned.all(namespace):
                if record.deleting is not None:
                    self.finish_later(name)
                elif service.is_shared(name) and any(
                    name.with_partition(number) not in topics for number in range(record.partitions)
                ):
                    self._coming[str(name)] = name

    async def _finish(self, name: TopicName) -> None:
        if not self._service.closing:
            await removal.finish(self._service, name)
            self._going.pop(str(name), None)

    async def _complete(self, name: TopicName) -> None:
        if not self._service.closing:
            await creation.complete(self._service, name)
            self._coming.pop(str(name), None)

    async def _load(self, name: TopicName) -> None:
        if not self._service.closing:
            with suppress(TopicNotFound):  # it was deleted meanwhile
                await self._service.topic(name, create=False)
            self._left.pop(str(name), None)
