# SPDX-License-Identifier: Apache-2.0
"""All non-persistent topics of a broker: created on demand and removed when no longer used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from meridian_broker.ledgers.scheduling import Scheduler, in_slices
from meridian_broker.metadata.catalog import Catalog
from meridian_broker.metadata.errors import AlreadyExists
from meridian_broker.metadata.rules import Rules
from meridian_broker.topics import validation
from meridian_broker.topics.directory.listing import SLICE, in_order
from meridian_broker.topics.errors import NotAllowed, TopicFenced, TopicInUse, TopicNotFound
from meridian_broker.topics.limits import TopicLimits
from meridian_broker.topics.nonpersistent.topic import NonPersistentTopic
from meridian_broker.wire.pulsar import topic_name
from meridian_broker.wire.pulsar.topic_name import NON_PERSISTENT, TopicName

UNUSED_MS: Final = 60_000
"""A topic without clients is removed after this time."""


class NonPersistentTopics:
    """The non-persistent topics in use. Numbers of partitions are in the catalog, as for other topics."""

    def __init__(
        self, catalog: Catalog, scheduler: Scheduler, limits: TopicLimits, defaults: Callable[[], Rules]
    ) -> None:
        """:param defaults: returns the rules from the broker's settings."""
        self._catalog = catalog
        self._scheduler = scheduler
        self._limits = limits
        self._defaults = defaults
        self.topics: dict[str, NonPersistentTopic] = {}
        self._closed: str | None = None

    async def topic(self, name: TopicName, *, create: bool) -> NonPersistentTopic:
        """The topic. :raises TopicError: it does not exist and must not be created."""
        found = self.topics.get(str(name))
        if found is not None:
            return found
        record = await self._catalog.partitioned.find(name.base)
        if record is not None and not 0 <= name.partition < record.partitions:
            raise NotAllowed(
                f"{name.base} has {record.partitions} partitions, numbered from 0; {name} is not one of them"
            )
        if record is None and (not create or not self._defaults().auto_topic_creation.allowed):
            raise TopicNotFound(f"topic {name} does not exist")
        if record is None:
            validation.new_topic(name)
        if self._closed is not None:
            raise TopicFenced(f"{name} is no longer served ({self._closed}): look it up again")
        found = self.topics.get(str(name))  # created concurrently
        if found is None:
            found = self.topics[str(name)] = NonPersistentTopic(
                str(name), name.partition, self._scheduler, self._limits
            )
            found.follow(self._catalog.rules(self._defaults(), name))
        return found

    async def create(self, name: TopicName) -> None:
        """Create a topic without partitions. :raises AlreadyExists: the name is in use."""
        if str(name) in self.topics or await self._catalog.partitioned.find(name) is not None:
            raise AlreadyExists(f"topic {name} already exists")
        await self.topic(name, create=True)

    async def names(self, namespace: str) -> list[str]:
        """Topics of ``tenant/namespace`` that are in use, sorted; partitions under their own names."""
        prefix = f"{NON_PERSISTENT}://{namespace}/"
        walk = in_slices(self._scheduler, self.topics, SLICE)
        return await in_order([name async for name in walk if name.startswith(prefix)], self._scheduler)

    def delete(self, names: list[TopicName], *, force: bool, partitioned: bool) -> None:
        """Remove topics, or the partitions of one, of which only those in use are here.

        :raises TopicNotFound: it does not exist. :raises TopicInUse: it has clients, and ``force`` is not set.
        """
        topics = [self.topics[str(name)] for name in names if str(name) in self.topics]
        if not topics and not partitioned:
            raise TopicNotFound(f"topic {names[0]} does not exist")
        for topic in topics:
            if topic.clients and not force:
                raise TopicInUse(f"{topic.name} has {topic.clients} producers and consumers: close them, or force")
        for topic in topics:
            del self.topics[topic.name]
            topic.fence("the topic was unloaded or deleted")

    def drop(self, name: str, reason: str) -> None:
        """Disconnect the clients of one, if it is here."""
        if (topic := self.topics.pop(name, None)) is not None:
            topic.fence(reason)

    async def follow_policies(self) -> None:
        """The rules may have changed."""
        async for name, topic in in_slices(self._scheduler, self.topics.items()):
            topic.follow(self._catalog.rules(self._defaults(), topic_name.parse(name)))

    async def tidy(self) -> None:
        """Remove topics that are no longer used."""
        before = self._scheduler.now_ms() - UNUSED_MS
        async for name, topic in in_slices(self._scheduler, self.topics.items(), SLICE):
            if not topic.clients and topic.last_used_ms < before and self.topics.get(name) is topic:
                del self.topics[name]
                topic.fence("nobody used it")

    def close(self, reason: str) -> None:
        """Disconnect all clients, and accept none any more."""
        self._closed = reason
        for topic in self.topics.values():
            topic.fence(reason)
        self.topics.clear()
