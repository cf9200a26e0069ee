# SPDX-License-Identifier: Apache-2.0
"""The topics that are open on a broker, and how one that is asked for is opened.

A topic is opened once, by whoever asks first; others wait for the same opening. A topic that was fenced is dropped and
opened anew for the next one who asks, after a pause if that happens often (``reopening``). Whatever makes, grows,
moves or deletes topics stands on this; ``service.py`` puts it all together.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol
from weakref import WeakValueDictionary

from meridian_broker.ledgers.chapters import CacheBudget, LogLimits
from meridian_broker.ledgers.scheduling import Scheduler
from meridian_broker.ledgers.store import LedgerError, LedgerStore, LedgerUnreadable
from meridian_broker.ledgers.throttling import Throttle
from meridian_broker.metadata.catalog import Catalog
from meridian_broker.metadata.rules import Rules
from meridian_broker.metadata.store import MetadataError
from meridian_broker.positions import HybridClock, Stamp
from meridian_broker.positions.position import EARLIEST
from meridian_broker.replication.entries.source import DeletionNotice
from meridian_broker.topics.backfill.questions import Peers
from meridian_broker.topics.backfill.skipping import Replicators
from meridian_broker.topics.compaction.compaction import Workshop
from meridian_broker.topics.compaction.compactor import CompactionLimits
from meridian_broker.topics.directory.schemas import SchemaRegistry
from meridian_broker.topics.errors import NotAllowed, TopicError, TopicFenced, TopicNotFound, TopicUnreadable
from meridian_broker.topics.lifecycle import opening
from meridian_broker.topics.lifecycle.labels import Labels
from meridian_broker.topics.lifecycle.unconfirmed import Before
from meridian_broker.topics.limits import TopicLimits
from meridian_broker.topics.nonpersistent.topics import NonPersistentTopics
from meridian_broker.topics.ports import Exchange, Leasing
from meridian_broker.topics.reopening import Failing
from meridian_broker.topics.retention import trimming
from meridian_broker.topics.service import scopes
from meridian_broker.topics.service.unfinished import Unfinished
from meridian_broker.topics.topic import Topic
from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar import topic_name
from meridian_broker.wire.pulsar.topic_name import TopicName

log = logging.getLogger(__name__)


class GeoReplication(Peers, Replicators, Protocol):
    """The shell that runs replicators, and asks other regions."""

    def start(self, topic: Topic, remote: str, /) -> None: ...

    def stop(self, topic_name: str, remote: str | None = None, /) -> object: ...

    async def make_partitioned(
        self, region: str, topic: str, partitions: int, incarnation: str, created: Stamp | None, /
    ) -> None:
        """Have a region make a partitioned topic, with so many partitions at least.

        :param incarnation: stamp of its last deletion (R8).
        :param created: stamp of its creation.
        :raises OtherKind: it made one without partitions earlier.
        :raises PeerAway: it does not do it now.
        """
        ...


async def _cannot_say(topic: str, subscription: str, within_ms: int) -> str | None:
    return f"no other region was asked who used {subscription!r} of {topic} within {within_ms} ms"


@dataclass
class OpenTopics(ABC):
    """See the module's text. One per broker; implements ``BrokerParts``."""

    region: str
    catalog: Catalog
    store: LedgerStore
    scheduler: Scheduler
    clock: HybridClock
    fence: int
    defaults: Rules
    """What the broker's settings say; namespaces and topics may say otherwise."""
    topic_limits: TopicLimits
    log_limits: LogLimits
    cache: CacheBudget
    new_lock: Callable[[], AbstractAsyncContextManager[Any]]
    loading: AbstractAsyncContextManager[Any] = field(default_factory=nullcontext)
    """Held while a topic is opened: bounds how many are at the same time."""
    publishing: Throttle | None = None
    """Of all topics together."""
    backlog_quotas: bool = True
    """They are enforced."""
    exchange: Exchange | None = None
    leasing: Leasing | None = None
    before: Before | None = None
    """What other regions lacked before this broker started; None: nobody asks."""
    replication: GeoReplication | None = None
    used_elsewhere: Callable[[str, str, int], Awaitable[str | None]] = _cannot_say
    """Why a subscription of a topic may have been used in another region within so many milliseconds; None: it was not
    (R16)."""
    compaction_limits: CompactionLimits = field(default_factory=CompactionLimits)
    topics: dict[str, Topic] = field(default_factory=dict)
    closing: bool = False
    _unopened: set[str] = field(default_factory=set)
    """Topics on record that are not open."""
    _locks: WeakValueDictionary[str, AbstractAsyncContextManager[Any]] = field(default_factory=WeakValueDictionary)
    """Of each topic, as long as anybody holds it or waits for it."""

    def __post_init__(self) -> None:
        self.schemas = SchemaRegistry(self.catalog, self.topic_limits)
        self.non_persistent = NonPersistentTopics(self.catalog, self.scheduler, self.topic_limits, self.defaults)
        self.unfinished = Unfinished()
        self.failing = Failing()
        self.labels = Labels(self.store)
        self.workshop = Workshop(self.store, self.fence, self.new_lock(), self.compaction_limits)

    # -- opening -------------------------------------------------------------------------------------------------

    async def check_exists(self, name: TopicName) -> None:
        """:raises TopicNotFound: its namespace does not exist."""
        if self.catalog.namespace(name.namespace_name) is None:
            raise TopicNotFound(f"namespace {name.namespace_name} does not exist: create it first")

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
        :param growing_to: make this partition although the topic has fewer: it is about to have so many.
        :param created: stamp of the creation, if it is made because another region has it (``topics.kinds``).
        :raises TopicError: it does not exist and may not be made, or cannot be opened.
        """
        key = str(name)
        found = self.topics.get(key)
        if found is not None and found.failure is None and not self.closing:
            return found
        if not name.is_persistent:
            raise NotAllowed(f"{name} stores no messages: this is supported for persistent topics only")
        await self.check_exists(name)
        async with self.lock(key):
            if self.closing:
                raise TopicFenced("this broker is shutting down: look the topic up again")
            found = self.topics.get(key)
            if found is not None and found.failure is None:
                return found
            self.failing.check(key, self.scheduler.monotonic_ms())
            if found is not None:
                await self.drop(found)
            async with self.loading:
                return await self._open(name, create, incarnation, growing_to, created)

    async def _open(
        self, name: TopicName, create: bool, incarnation: str | None, growing_to: int, created: Stamp | None
    ) -> Topic:
        try:
            topic = await opening.open_topic(self, name, create, incarnation, growing_to, created)
        except ValueError as error:
            raise TopicUnreadable(f"{name} cannot be opened: {error}") from error
        except LedgerUnreadable as error:  # also of its acknowledgements alone: without them all would come again
            pause_ms = self.failing.failed(str(name), str(error), self.scheduler.monotonic_ms())
            self.unfinished.later(name)
            log.warning("%s stays closed for at least %.1f s, then will be retried: %s", name, pause_ms / 1000, error)
            raise
        self.topics[str(name)] = topic
        self._unopened.discard(str(name))
        scopes.opened(topic, self.leasing)
        self._follow(topic)
        if topic.recall is not None and (topic.recall.joining.is_joining or not topic.recall.is_settled):
            topic.recall.start()
        return topic

    async def open(self, name: TopicName) -> None:
        """Open a topic now or, where that fails, with the next attempt to open all."""
        try:
            await self.topic(name, create=False)
        except (TopicError, LedgerError, MetadataError) as error:
            log.warning("topic %s is not open, will retry, at the latest on the next lookup: %s", name, error)
            self.unfinished.later(name)

    def open_later(self, name: TopicName) -> None:
        """The next attempt to open all opens it."""
        self.unfinished.later(name)

    def fenced(self, topic: Topic) -> None:
        """It cannot go on: it is opened anew from what is durable."""
        log.warning("topic %s is fenced: %s", topic.name, topic.failure)
        if self.replication is not None:
            self.replication.stop(topic.name)
        self._open_again_later(topic)

    def _open_again_later(self, topic: Topic) -> None:
        """After its pause (``topics/reopening.py``)."""
        if self.closing or not topic.reopen:
            return
        scheduler = self.scheduler
        pause_ms = self.failing.failed(topic.name, str(topic.failure), scheduler.monotonic_ms())

        def begin() -> None:
            self.failing.end_pause(topic.name, scheduler.monotonic_ms())
            scheduler.spawn(self._open_again(topic), f"open {topic.name} again")

        if pause_ms:
            scheduler.later(pause_ms / 1000, begin)
        else:
            begin()

    async def _open_again(self, topic: Topic) -> None:
        if self.topics.get(topic.name) is topic and not self.closing and topic.reopen:
            await self.open(topic_name.parse(topic.name))

    @abstractmethod
    def deleted_elsewhere(self, topic: Topic, told: DeletionNotice) -> None:
        """Another region knows of another deletion of the topic than we do (R8)."""

    async def drop(self, topic: Topic) -> None:
        """It is not open any more."""
        if self.topics.get(topic.name) is topic:
            del self.topics[topic.name]
            self._unopened.add(topic.name)
        if self.replication is not None:
            self.replication.stop(topic.name)

    def lock(self, name: str) -> AbstractAsyncContextManager[Any]:
        """Held while a topic is opened, closed or deleted."""
        return self._locks.setdefault(name, self.new_lock())

    def forget(self, name: str) -> None:
        """The topic is no longer on record."""
        self._unopened.discard(name)

    # -- which there are -----------------------------------------------------------------------------------------

    async def survey(self) -> list[TopicName]:
        """The topics on record. :raises MetadataError: they cannot be read."""
        names = [n for space in self.catalog.known_namespaces() for n in await self.catalog.topics.names(space)]
        self._unopened.update(str(name) for name in names if str(name) not in self.topics)
        return names

    def is_served(self, topic: str) -> bool:
        """Whether what we say about a topic is all that we know: it is open, or there never was one here."""
        found = self.topics.get(topic)
        return self.unfinished.is_surveyed and topic not in self._unopened and (found is None or found.failure is None)

    def is_unopened(self, topic: str) -> bool:
        """Whether it is on record and not open."""
        return topic in self._unopened

    def unopened(self) -> set[str] | None:
        """Topics on record that are not served now; None: which there are is not known yet."""
        fenced = {name for name, topic in self.topics.items() if topic.failure is not None}
        return self._unopened | fenced if self.unfinished.is_surveyed else None

    # -- what holds for them -------------------------------------------------------------------------------------

    def regions_of(self, topic: str) -> frozenset[str]:
        """Regions of a topic, this one included. Where it does not live here any more, the copy here is on its own."""
        listed = self.catalog.regions(topic_name.parse(topic))
        return listed if self.region in listed else frozenset((self.region,))

    def is_shared(self, name: TopicName) -> bool:
        """Does the topic live in other regions, too?"""
        return self.replication is not None and len(self.regions_of(str(name))) > 1

    @property
    def peers(self) -> Peers | None:
        return self.replication

    def rules(self, name: TopicName) -> Rules:
        """What holds for a topic, as last seen in the metadata. An open topic keeps it as ``topic.rules``."""
        return self.catalog.rules(self.defaults, name)

    def _follow(self, topic: Topic) -> None:
        is_shared = self.is_shared(topic_name.parse(topic.name))
        if topic.was_alone and is_shared and topic.recall is not None:
            topic.recall.joining.begin()
        topic.was_alone = not is_shared
        self._replicate(topic)
        for remote in topic.remotes - self.regions_of(topic.name):
            topic.region_left(remote)
            if self.replication is not None:
                self.replication.stop(topic.name, remote)
        before = topic.rules.message_ttl_seconds
        topic.follow(self.rules(topic_name.parse(topic.name)))
        scopes.follow(topic)
        if topic.rules.message_ttl_seconds != before:
            self.scheduler.spawn(trimming.expire_soon(topic), "expire old messages")

    def _replicate(self, topic: Topic) -> None:
        if self.replication is None:
            return
        for remote in self.regions_of(topic.name) - {self.region}:
            if remote not in topic.remotes:
                topic.remotes.add(remote)
                skipped = topic.skipped_for(remote)
                topic.replicated_positions.setdefault(remote, EARLIEST if skipped is None else skipped.upto)
                self.replication.start(topic, remote)

    async def add_schema(
        self, name: TopicName, schema: pb.Schema, check: Callable[[], None] = lambda: None, *, author: str | None = None
    ) -> bytes:
        """The version of the schema, see ``SchemaRegistry.add``."""
        return await self.schemas.add(name, schema, self.scheduler.now_ms(), check, author)
