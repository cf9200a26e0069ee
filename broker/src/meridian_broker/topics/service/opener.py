# SPDX-License-Identifier: Apache-2.0
"""Opens topics on demand, and reopens them after a failure.

The first request opens a topic; concurrent requests wait for it. A fenced topic is dropped and reopened, after a pause
if that happens often (``reopening``). The modules that create, grow, move or delete topics build on this one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from meridian_broker.ledgers.store import LedgerError, LedgerUnreadable
from meridian_broker.metadata.store import MetadataError
from meridian_broker.topics.context import WindingDown
from meridian_broker.topics.errors import (
    NotAllowed,
    TopicElsewhere,
    TopicError,
    TopicFenced,
    TopicNotFound,
    TopicUnreadable,
)
from meridian_broker.topics.lifecycle import opening
from meridian_broker.topics.reopening import Failing
from meridian_broker.topics.replication_source import TopicSource
from meridian_broker.topics.retention import trimming
from meridian_broker.topics.service import scopes
from meridian_broker.topics.service.followed_sources import FollowedSources, open_of
from meridian_broker.topics.service.snapshot_rounds import SnapshotRounds
from meridian_broker.topics.topic import Topic
from meridian_broker.wire.pulsar import topic_name

if TYPE_CHECKING:
    from meridian_broker.metadata.shadow_topics import ShadowRecord
    from meridian_broker.positions import Stamp
    from meridian_broker.replication.entries.source import DeletionNotice
    from meridian_broker.topics.lifecycle.parts import OtherRegions
    from meridian_broker.topics.nonpersistent.topic import NonPersistentTopic
    from meridian_broker.topics.service.registry import TopicRegistry
    from meridian_broker.topics.topic import Followed
    from meridian_broker.wire.pulsar.topic_name import TopicName

log = logging.getLogger(__name__)

FollowDeletion = Callable[["TopicOpener", "Topic", "DeletionNotice"], Coroutine[Any, Any, None]]
"""Another region knows of another deletion of the topic than we do (R8)."""


class TopicOpener:
    """See the module's text. One per broker."""

    def __init__(self, registry: TopicRegistry, regions: OtherRegions, follow_deletion: FollowDeletion) -> None:
        self.parts = registry.parts
        self.registry = registry
        self.regions = regions
        self.snapshots = SnapshotRounds(
            registry.parts, lambda topic, remote: regions.replication.is_sending(topic, remote)
        )
        self.failing = Failing()
        """Topics that fail repeatedly, and how long each stays closed."""
        self.following: set[str] = set()
        """Topics whose deletion in another region is being followed."""
        self._follow_deletion = follow_deletion
        self._followed = FollowedSources(registry.parts)
        """The sources of shadows here that other brokers serve."""
        self._announcing = WeakSet[Topic]()
        """Sources that shadows at other brokers may follow."""
        if not registry.parts.ownership.is_sole:
            registry.parts.catalog.shadows.on_first = self._has_shadows

    async def topic(
        self,
        name: TopicName,
        *,
        create: bool,
        incarnation: str | None = None,
        growing_to: int = 0,
        created: Stamp | None = None,
    ) -> Topic:
        """The open topic.

        :param incarnation: another region asks: make the topic only if both mean the same one (R8).
        :param growing_to: create this partition although the topic has fewer: it is about to grow to this number.
        :param created: stamp of the creation, if it is made because another region has it (``kinds.py``).
        :raises TopicError: it does not exist and may not be made, or cannot be opened.
        """
        key, registry = str(name), self.registry
        found = registry.topics.get(key)
        if found is not None and found.failure is None and not registry.closing:
            return found
        if not name.is_persistent:
            raise NotAllowed(f"{name} stores no messages: this is supported for persistent topics only")
        registry.check_exists(name)
        source = await self._open_source(name)
        async with registry.lock(key):
            if registry.closing:
                raise TopicFenced("this broker is shutting down: look the topic up again")
            found = registry.topics.get(key)
            if found is not None and found.failure is None:
                return found
            self.failing.check(key, self.parts.scheduler.monotonic_ms())
            if found is not None:
                await self.drop(found)
            async with self.parts.loading:
                return await self._open(name, create, incarnation, growing_to, created, source)

    async def served(
        self, name: TopicName, *, create: bool, incarnation: str | None = None, created: Stamp | None = None
    ) -> Topic | NonPersistentTopic:
        """The persistent or non-persistent topic, for clients. :raises TopicError: see ``topic``."""
        if name.is_persistent:
            return await self.topic(name, create=create, incarnation=incarnation, created=created)
        self.registry.check_exists(name)
        await self.parts.ownership.acquire(name)
        topic = await self.registry.non_persistent.topic(name, create=create)
        if not self.parts.ownership.holds(name):  # the term ended while it was looked up
            moved = "is moving to another broker: look it up again"
            self.registry.non_persistent.drop(str(name), moved)
            raise TopicFenced(f"{name} {moved}")
        return topic

    async def _open_source(self, name: TopicName) -> Topic | Followed | None:
        """Open the topic that ``name`` is a shadow of: before its lock is taken, and one of the places for loading.

        :returns: None: it does not exist, or ``name`` is no shadow.
        :raises TopicError: it exists and cannot be opened.
        :raises LedgerError, MetadataError: another broker serves it, and it cannot be followed now.
        """
        shadows = self.parts.catalog.shadows
        record = shadows.find(name) if self.parts.ownership.is_sole else await shadows.fetch(name)
        if record is None:
            return None
        source = record.source_of(name)
        try:
            return await self.topic(source, create=False)
        except TopicElsewhere:
            return await self._followed.open(source, name)
        except (TopicNotFound, NotAllowed) as error:  # deleted, or made again with partitions, or without
            log.info("%s waits for its source %s: %s", name, source, error)
            return None

    async def _open(
        self,
        name: TopicName,
        create: bool,
        incarnation: str | None,
        growing_to: int,
        created: Stamp | None,
        source: Topic | Followed | None,
    ) -> Topic:
        if isinstance(source, Topic) and self.registry.topics.get(source.name) is not source:
            raise TopicFenced(f"{name} waits for its source {source.name}, which was closed: look it up again")
        try:
            topic = await opening.open_topic(
                self.parts,
                self.regions,
                name,
                create,
                incarnation,
                growing_to,
                created,
                source,
            )
        except ValueError as error:
            raise TopicUnreadable(f"{name} cannot be opened: {error}") from error
        except LedgerUnreadable as error:  # even of acknowledgements alone: without them all comes again
            pause_ms = self.failing.failed(str(name), str(error), self.parts.scheduler.monotonic_ms())
            self.parts.unfinished.later(name)
            log.warning("%s stays closed for at least %.1f s, then will be retried: %s", name, pause_ms / 1000, error)
            raise
        fence = None if topic.metadata is None else topic.metadata.fence
        if not self.parts.ownership.holds(name, fence):  # the term ended while it was opened
            topic.fence("this broker does not own the topic any more", for_good=True)
            raise TopicFenced(f"{name} is moving to another broker: look it up again")
        topic.when_fenced(lambda _: self._fenced(topic))
        self.parts.labels.forget(topic.name)
        self.registry.add(topic)
        self._wake_shadows(name)
        self._check_source(topic, name)
        if not self.parts.ownership.is_sole and self.parts.catalog.shadows.of(name):
            self._announce(topic)
        self.regions.exchange.opened(topic.name)
        scopes.opened(topic)
        self.follow(topic)
        if topic.backfill is not None and (topic.backfill.joining.is_joining or not topic.backfill.is_complete):
            topic.backfill.start()
        return topic

    def _wake_shadows(self, source: TopicName) -> None:
        """Shadows that were opened while their source did not exist read it from now on."""
        for record in self.parts.catalog.shadows.of(source):
            shadow = self.registry.topics.get(str(record.shadow_of(source)))
            if shadow is not None:
                self._check_source(shadow, record.shadow_of(source))

    def _check_source(self, shadow: Topic, name: TopicName) -> None:
        """Let a shadow go on that waits for its source, if that is open here now. Open it again if it cannot, or if it
        was opened without its source, or followed it."""
        record = self.parts.catalog.shadows.find(name)
        if record is None or shadow.shadow_of is None:
            return
        source = self.registry.topics.get(str(record.source_of(name)))
        if source is None or source.failure is not None or source.shadows.open.get(shadow.name) is shadow:
            return
        if shadow.failure is not None or shadow.source is None or not shadow.source.returned(source):
            shadow.fence(f"its source {source.name} is back")

    def _has_shadows(self, record: ShadowRecord) -> None:
        """A broker, perhaps this one, made the first shadow of a source: it may follow the source that is open here."""
        for source in open_of(self.registry.topics, record.source):
            self._announce(source)

    def followed_sources(self) -> list[Topic]:
        """The open topics here that shadows at other brokers may follow."""
        topics = self.registry.topics
        return [one for one in self._announcing if one.failure is None and topics.get(one.name) is one]

    def _announce(self, source: Topic) -> None:
        """Let brokers that follow a topic know of its messages from now on."""
        if source not in self._announcing:
            self._announcing.add(source)
            source.log.watch(source.log.announce)
            source.log.announce()

    async def open(self, name: TopicName) -> None:
        """Open a topic now or, where that fails, with the next attempt to open all."""
        try:
            await self.topic(name, create=False)
        except (TopicError, LedgerError, MetadataError) as error:
            if self.parts.ownership.holds(name):  # otherwise it is another broker's to open
                log.warning("topic %s is not open, will retry, at the latest on the next lookup: %s", name, error)
                self.parts.unfinished.later(name)

    async def drop(self, topic: Topic) -> None:
        """It is not open any more."""
        self.registry.remove(topic)
        self.regions.replication.stop(topic.name)

    # -- what happens to it --------------------------------------------------------------------------------------

    def _fenced(self, topic: Topic) -> None:
        """The topic was fenced: reopen it from its durable state, unless it is being closed."""
        level = logging.DEBUG if topic.winding_down is WindingDown.IGNORES_MESSAGES else logging.WARNING
        then = "; opening it again" if topic.reopens else ""
        log.log(level, "topic %s is fenced: %s%s", topic.name, topic.failure, then)
        self.regions.replication.stop(topic.name)
        self._open_again_later(topic)

    def _open_again_later(self, topic: Topic) -> None:
        """After its pause (``topics/reopening.py``)."""
        if self.registry.closing or not topic.reopens:
            return
        scheduler = self.parts.scheduler
        pause_ms = self.failing.failed(topic.name, str(topic.failure), scheduler.monotonic_ms())

        def begin() -> None:
            self.failing.end_pause(topic.name, scheduler.monotonic_ms())
            scheduler.spawn(self._open_again(topic), f"open {topic.name} again")

        if pause_ms:
            scheduler.later(pause_ms / 1000, begin)
        else:
            begin()

    async def _open_again(self, topic: Topic) -> None:
        registry = self.registry
        if registry.topics.get(topic.name) is topic and not registry.closing and topic.reopens:
            await self.open(topic_name.parse(topic.name))

    def deleted_elsewhere(self, topic: Topic, told: DeletionNotice) -> None:
        """Another region knows of another deletion of the topic than we do (R8). Replicators report it again until it
        is followed."""
        if topic.name not in self.following:
            self.following.add(topic.name)
            self.parts.scheduler.spawn(self._follow_one(topic, told), "follow a deletion in another region")

    async def _follow_one(self, topic: Topic, told: DeletionNotice) -> None:
        try:
            await self._follow_deletion(self, topic, told)
        finally:
            self.following.discard(topic.name)

    # -- what holds for it ---------------------------------------------------------------------------------------

    def follow(self, topic: Topic) -> None:
        """Apply the topic's current regions and rules."""
        name = topic_name.parse(topic.name)
        if topic.backfill is not None:
            topic.backfill.joining.follow(is_multi_region=self.parts.is_multi_region(name))
        self._replicate(topic)
        pulsar = self.parts.pulsar_regions_of(topic.name)
        for remote in topic.remotes - self.parts.regions_of(topic.name) - pulsar:
            topic.region_left(remote)
            self.regions.replication.stop(topic.name, remote)
        before = topic.rules.message_ttl_seconds
        topic.follow(self.parts.rules(name))
        scopes.follow(topic)
        self.snapshots.follow(topic)
        if topic.rules.message_ttl_seconds != before:
            self.parts.scheduler.spawn(trimming.expire_soon(topic), "expire old messages")

    def _replicate(self, topic: Topic) -> None:
        pulsar = self.parts.pulsar_regions_of(topic.name)
        for remote in (self.parts.regions_of(topic.name) | pulsar) - {self.parts.region}:
            if remote not in topic.remotes:
                topic.region_joined(remote)
                self.regions.replication.start(self._source(topic), remote)

    def _source(self, topic: Topic) -> TopicSource:
        schema_for = self.parts.schemas.for_topic(topic_name.parse(topic.name))
        return TopicSource(topic, schema_for, partial(self.deleted_elsewhere, topic))
