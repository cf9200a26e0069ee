# SPDX-License-Identifier: Apache-2.0
"""Which topics are open on a broker, and which are on record but not open. ``opener.py`` opens them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from meridian_broker.ledgers.scheduling import in_slices
from meridian_broker.topics.directory import listing
from meridian_broker.topics.errors import NotInThisRegion, TopicNotFound
from meridian_broker.topics.nonpersistent.topics import NonPersistentTopics

if TYPE_CHECKING:
    from meridian_broker.topics.lifecycle.parts import BrokerParts
    from meridian_broker.topics.topic import Topic
    from meridian_broker.wire.pulsar.topic_name import TopicName


class TopicRegistry:
    """See the module's text. One per broker."""

    def __init__(self, parts: BrokerParts) -> None:
        self.parts = parts
        self.topics: dict[str, Topic] = {}
        """The open topics by name, including fenced ones."""
        self.non_persistent = NonPersistentTopics(parts.catalog, parts.scheduler, parts.topic_limits, parts.defaults)
        self.closing = False
        """The broker is shutting down: no more topics are opened."""
        self.cuts: dict[str, dict[str, Callable[[], None]]] = {}
        """By topic, the closings that hang on it, its own and those of shadows, and what cuts each short."""
        self._locks: WeakValueDictionary[str, AbstractAsyncContextManager[Any]] = WeakValueDictionary()
        """One lock per topic, as long as it is held or waited for."""

    def lock(self, name: str) -> AbstractAsyncContextManager[Any]:
        """Held while a topic is opened, closed or deleted."""
        return self._locks.setdefault(name, self.parts.new_lock())

    def close(self) -> None:
        """The broker is shutting down: open no more topics."""
        self.closing = True

    def add(self, topic: Topic) -> None:
        """The topic is open from now on."""
        self.topics[topic.name] = topic
        self.parts.unfinished.forget(topic.name)

    def remove(self, topic: Topic) -> None:
        """The topic is no longer open, but still on record."""
        if self.topics.get(topic.name) is topic:
            del self.topics[topic.name]
            self.parts.unfinished.unopened.add(topic.name)

    # -- which there are -----------------------------------------------------------------------------------------

    def check_exists(self, name: TopicName) -> None:
        """:raises TopicNotFound: its namespace does not exist."""
        if self.parts.catalog.namespace(name.namespace_name) is None:
            raise TopicNotFound(f"namespace {name.namespace_name} does not exist: create it first")

    def check_lives_here(self, name: TopicName) -> None:
        """For clients. :raises TopicNotFound: as ``check_exists``. :raises NotInThisRegion: it exists in other regions
        only.
        """
        self.check_exists(name)
        here, regions = self.parts.region, self.parts.catalog.regions(name)
        if regions and here not in regions:
            raise NotInThisRegion(
                f"{name} exists in {', '.join(sorted(regions))} but not in {here}: connect there, or add "
                f"{here} to the clusters of namespace {name.namespace_name}"
            )

    async def names(self, namespace: str) -> list[str]:
        """Every persistent topic of a namespace, partitions by their own names; sorted."""
        return await listing.names_of(await self.parts.catalog.topics.listing(namespace), self.parts.scheduler)

    async def partitioned_names(self, namespace: str, domain: str) -> list[str]:
        """Every partitioned topic of a namespace, sorted."""
        found = await self.parts.catalog.partitioned.listing(namespace, domain)
        return await listing.names_of(found, self.parts.scheduler)

    async def survey(self) -> list[TopicName]:
        """The topics on record that this broker owns. :raises MetadataError: they cannot be read."""
        catalog = self.parts.catalog
        every: list[TopicName] = []
        inhabited = await catalog.topics.namespaces()
        for namespace in filter(inhabited.__contains__, catalog.known_namespaces()):
            found = await catalog.topics.listing(namespace)
            every += await listing.topic_names_of(found, self.parts.scheduler)
        names: list[TopicName] = []
        async for name in in_slices(self.parts.scheduler, every):
            if not self.parts.ownership.holds(name):
                continue
            names.append(name)
            if str(name) not in self.topics:
                self.parts.unfinished.unopened.add(str(name))
        return names

    def is_served(self, topic: str) -> bool:
        """Whether this broker's answers about a topic are complete: it is open, or never existed here."""
        found, unfinished = self.topics.get(topic), self.parts.unfinished
        if found is None and not self.parts.ownership.is_surveyed(topic):
            return False
        is_open = found is None or found.failure is None
        return unfinished.is_surveyed and topic not in unfinished.unopened and is_open

    def is_unopened(self, topic: str) -> bool:
        """Whether it is on record and not open."""
        return topic in self.parts.unfinished.unopened

    async def unopened(self) -> set[str] | None:
        """Topics on record that are not served now; None: the topics on record are not known yet."""
        if not self.parts.unfinished.is_surveyed or not self.parts.ownership.is_surveyed():
            return None
        walk = in_slices(self.parts.scheduler, self.topics.items(), listing.SLICE)
        fenced = {name async for name, topic in walk if topic.failure is not None}
        return self.parts.unfinished.unopened | fenced
