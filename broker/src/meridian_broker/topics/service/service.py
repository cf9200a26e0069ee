# SPDX-License-Identifier: Apache-2.0
"""All topics of a broker: finding, making, opening, growing, deleting and closing them.

A topic is opened once, by whoever asks first; others wait for the same opening. A topic that was fenced is dropped and
opened anew for the next one who asks, after a pause if that happens often (``reopening``).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol
from weakref import WeakValueDictionary

from meridian_broker.ledgers.chapters import CacheBudget, LogLimits
from meridian_broker.ledgers.periodic import SomeFailed
from meridian_broker.ledgers.scheduling import Scheduler, run_all
from meridian_broker.ledgers.store import LedgerError, LedgerStore, LedgerUnreadable
from meridian_broker.ledgers.throttling import Throttle
from meridian_broker.ledgers.under_way import all_over
from meridian_broker.metadata.catalog import Catalog
from meridian_broker.metadata.rules import Rules
from meridian_broker.metadata.store import MetadataError
from meridian_broker.positions import HybridClock, Stamp
from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.replication.entries.source import DeletionNotice
from meridian_broker.topics.backfill.backfill import find
from meridian_broker.topics.backfill.questions import NOTHING_TO_SEND, Found, Peers, Want
from meridian_broker.topics.backfill.skipping import Replicators
from meridian_broker.topics.compaction.compaction import Workshop
from meridian_broker.topics.compaction.compactor import CompactionLimits
from meridian_broker.topics.cursors import seeking
from meridian_broker.topics.directory.schemas import SchemaBook
from meridian_broker.topics.directory.watching import TopicWatchers
from meridian_broker.topics.errors import (
    NotAllowed,
    NotInThisRegion,
    TopicFenced,
    TopicNotFound,
    TopicUnreadable,
)
from meridian_broker.topics.lifecycle import opening, orphans
from meridian_broker.topics.lifecycle.labels import Labels
from meridian_broker.topics.lifecycle.unconfirmed import Before
from meridian_broker.topics.limits import TopicLimits
from meridian_broker.topics.nonpersistent.topic import NonPersistentTopic
from meridian_broker.topics.nonpersistent.topics import NonPersistentTopics
from meridian_broker.topics.ports import Exchange, Leasing
from meridian_broker.topics.reopening import Failing
from meridian_broker.topics.retention import trimming
from meridian_broker.topics.service import creation, incarnations, kinds, leased_topics, partition_growth, removal
from meridian_broker.topics.service.backfill_rounds import Missing
from meridian_broker.topics.service.preloading import Loading
from meridian_broker.topics.subscriptions.subscription import Subscription
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
class TopicService:
    """See the module's text."""

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
    _followed: int = -1
    """The catalog's revision that open topics go by."""
    _unopened: set[str] = field(default_factory=set)
    """Topics on record that are not open."""
    _locks: WeakValueDictionary[str, AbstractAsyncContextManager[Any]] = field(default_factory=WeakValueDictionary)
    """Of each topic, as long as anybody holds it or waits for it."""

    def __post_init__(self) -> None:
        self.schemas = SchemaBook(self.catalog, self.topic_limits)
        self.watchers = TopicWatchers(self.scheduler, self.topic_names)
        self.catalog.topics.on_change = self.watchers.changed
        self.non_persistent = NonPersistentTopics(self.catalog, self.scheduler, self.topic_limits, self.defaults)
        self.missing = Missing()
        self.loader = Loading(self)
        self.failing = Failing()
        self.labels = Labels(self.store)
        self.workshop = Workshop(self.store, self.fence, self.new_lock(), self.compaction_limits)

    # -- finding and opening -------------------------------------------------------------------------------------

    async def check_exists(self, name: TopicName) -> None:
        """:raises TopicNotFound: its namespace does not exist."""
        if self.catalog.namespace(name.namespace_name) is None:
            raise TopicNotFound(f"namespace {name.namespace_name} does not exist: make it first")

    async def check_lives_here(self, name: TopicName) -> None:
        """For clients. :raises TopicNotFound: as ``check_exists``. :raises NotInThisRegion: it lives elsewhere only."""
        await self.check_exists(name)
        regions = self.catalog.regions(name)
        if regions and self.region not in regions:
            raise NotInThisRegion(
                f"{name} lives in {', '.join(sorted(regions))} and not in {self.region}: connect there, or add "
                f"{self.region} to the clusters of namespace {name.namespace_name}"
            )

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
            raise NotAllowed(f"{name} stores no messages: this can be asked of persistent topics only")
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
            self.loader.later(name)
            log.warning("%s stays closed for %.1f s at least, then it is tried again: %s", name, pause_ms / 1000, error)
            raise
        self.topics[str(name)] = topic
        self._unopened.discard(str(name))
        leased_topics.opened(self, topic)
        self._follow(topic)
        if topic.recall is not None and (topic.recall.joining.is_joining or not topic.recall.is_settled):
            topic.recall.start()
        return topic

    def is_shared(self, name: TopicName) -> bool:
        """Does the topic live in other regions, too?"""
        return self.replication is not None and len(self.regions_of(str(name))) > 1

    async def served(
        self, name: TopicName, *, create: bool, incarnation: str | None = None, created: Stamp | None = None
    ) -> Topic | NonPersistentTopic:
        """The topic of whatever kind, for clients. :raises TopicError: see ``topic``."""
        if name.is_persistent:
            return await self.topic(name, create=create, incarnation=incarnation, created=created)
        await self.check_exists(name)
        return await self.non_persistent.topic(name, create=create)

    def fenced(self, topic: Topic) -> None:
        """It cannot go on: it is opened anew from what is durable."""
        log.warning("topic %s is fenced: %s", topic.name, topic.failure)
        if self.replication is not None:
            self.replication.stop(topic.name)
        self.loader.open_again(topic)

    def deleted_elsewhere(self, topic: Topic, told: DeletionNotice) -> None:
        """Another region knows of another deletion of the topic than we do (R8)."""
        self.scheduler.spawn(incarnations.follow(self, topic, told), "follow a deletion in another region")

    def open_later(self, name: TopicName) -> None:
        """The next attempt of ``load_all`` opens it."""
        self.loader.later(name)

    @property
    def peers(self) -> Peers | None:
        return self.replication

    async def drop(self, topic: Topic) -> None:
        """It is not open any more."""
        if self.topics.get(topic.name) is topic:
            del self.topics[topic.name]
            self._unopened.add(topic.name)
        if self.replication is not None:
            self.replication.stop(topic.name)

    async def make_topics(self) -> None:
        """Put on record what only the volume knows, before anybody asks. :raises MetadataError: it cannot be read."""
        await orphans.make_topics(self)

    async def load_all(self) -> None:
        """Open every topic on record, see ``Loading.load_all``. Call it again after an error, and now and then."""
        await self.loader.load_all()

    async def survey(self) -> list[TopicName]:
        """The topics on record. :raises MetadataError: they cannot be read."""
        names = [n for space in self.catalog.known_namespaces() for n in await self.catalog.topics.names(space)]
        self._unopened.update(str(name) for name in names if str(name) not in self.topics)
        return names

    async def partitions(self, name: TopicName, *, create: bool) -> int:
        """Number of partitions, 0 for a topic without. A partitioned topic is made when it may and none is there; one
        without partitions is made by its first client.

        :raises TopicNotFound: there is none, and none may be made.
        """
        return await creation.partitions(self, name, create=create)

    async def create_topic(self, name: TopicName, properties: dict[str, str]) -> None:
        """Make a topic without partitions. :raises AlreadyExists: there is one of that name."""
        await creation.create_plain(self, name, properties)

    async def create_partitioned(self, name: TopicName, partitions: int, properties: dict[str, str]) -> None:
        """Make a partitioned topic, in all its regions that can be reached. :raises AlreadyExists: there is one."""
        await creation.create_partitioned(self, name, partitions, properties)

    async def grow(self, name: TopicName, partitions: int, known: str | None = None) -> None:
        """More partitions; the subscriptions of the topic start at the earliest message of the new ones (R15).

        :param known: see ``growth.grow``.
        """
        await partition_growth.grow(self, name, partitions, known)

    async def topic_names(self, namespace: str) -> list[str]:
        """Every topic of a namespace, partitions by their own names."""
        return sorted(str(name) for name in await self.catalog.topics.names(namespace))

    async def delete_topic(self, name: TopicName, *, force: bool) -> None:
        """Delete a topic, or a partitioned one with its partitions.

        :raises TopicInUse: clients or subscriptions are there and ``force`` is not given.
        :raises NotFound: there is none.
        """
        await removal.delete(self, name, force=force)

    def lock(self, name: str) -> AbstractAsyncContextManager[Any]:
        """Held while a topic is opened, closed or deleted."""
        return self._locks.setdefault(name, self.new_lock())

    def forget(self, name: str) -> None:
        """The topic is no longer on record."""
        self._unopened.discard(name)

    async def unload(self, name: TopicName) -> None:
        """Close the topic in good order; it is opened again for whoever asks."""
        self.failing.end_pause(str(name), self.scheduler.monotonic_ms())
        topic = await self.topic(name, create=False)
        async with self.lock(topic.name):
            topic.reopen = False
            await self._close(topic, "the topic was unloaded: look it up again")

    async def _close(self, topic: Topic, reason: str) -> None:
        """It is not open any more afterwards, but until then: what it still tells of its acknowledgements says of which
        topic it is."""
        try:
            await topic.close(reason)
        finally:
            await self.drop(topic)

    async def send_consumers_away(self) -> None:
        """Consumers have to come again, and what was acknowledged is told to other regions."""
        self.closing = True
        topics = list(self.topics.values())
        for topic in topics:
            for subscription in topic.subscriptions.values():
                subscription.disconnect_consumers()
        await all_over([work for topic in topics for work in topic.look_ups()], self.scheduler)
        for topic in topics:
            topic.take_acknowledgements()

    async def close(self) -> None:
        """The end of a drain: hand every client away and seal what is open."""
        self.closing = True
        self.non_persistent.close("this broker is shutting down")
        jobs = [partial(self._close_for_good, topic) for topic in self.topics.values()]
        await run_all(self.scheduler, jobs, "close a topic")  # together, for they share the group commit

    async def _close_for_good(self, topic: Topic) -> None:
        topic.reopen = False
        try:
            await self._close(topic, "this broker is shutting down: look the topic up again")
        except (LedgerError, MetadataError) as error:  # the others are closed all the same
            log.warning("%s is not closed in good order: the next start recovers it: %s", topic.name, error)
        except Exception:
            log.exception("%s is not closed in good order: the next start recovers it", topic.name)

    # -- subscriptions and schemas -------------------------------------------------------------------------------

    async def subscription(
        self,
        topic: Topic,
        name: str,
        *,
        durable: bool,
        replicated: bool | None,
        initial: Position,
        properties: dict[str, str],
        read_compacted: bool = False,
    ) -> Subscription:
        """Find or make one; durable, and at its place, when this returns.

        :param replicated: None: as the policies say, as they are now; the topic hears of a change a moment later.
        :raises TopicError: refused.
        """
        places = None
        if durable and name not in topic.subscriptions:
            if replicated is None:
                replicated = self.rules(topic_name.parse(topic.name)).replicate_subscriptions
            places = await seeking.for_new(topic, initial)
        if read_compacted:
            await topic.compaction.prepare()
        answer: Subscription = await self.scheduler.answer(
            lambda ready: topic.subscribe(
                name,
                durable=durable,
                replicated=replicated,
                initial=initial,
                properties=properties,
                may_create=topic.rules.auto_subscription_creation.allowed,
                read_compacted=read_compacted,
                ready=ready,
                places=places,
            )
        )
        return answer

    async def ensure_subscription(self, topic: Topic, name: str) -> None:
        """Make the subscription at the earliest message when there is none (a producer's initial subscription).

        :raises NotAllowed: there is none, and consumers may not make any by themselves either.
        """
        if name not in topic.subscriptions and not topic.rules.auto_subscription_creation.allowed:
            raise NotAllowed(f"there is no subscription {name!r}, and automatic creation is switched off")
        await self.subscription(topic, name, durable=True, replicated=None, initial=EARLIEST, properties={})

    async def add_schema(
        self, name: TopicName, schema: pb.Schema, check: Callable[[], None] = lambda: None, *, author: str | None = None
    ) -> bytes:
        """The version of the schema, see ``SchemaBook.add``."""
        return await self.schemas.add(name, schema, self.scheduler.now_ms(), check, author)

    # -- other regions -------------------------------------------------------------------------------------------

    def _replicate(self, topic: Topic) -> None:
        if self.replication is None:
            return
        for remote in self.regions_of(topic.name) - {self.region}:
            if remote not in topic.remotes:
                topic.remotes.add(remote)
                skipped = topic.skipped_for(remote)
                topic.replicated_positions.setdefault(remote, EARLIEST if skipped is None else skipped.upto)
                self.replication.start(topic, remote)

    def recall_missing(self) -> None:
        """Ask other regions for what topics lack, where there is reason to (R5, R6)."""
        self.missing.look(self)

    async def answer(self, asker: str, want: Want) -> Found:
        """What is here of what another region asks for.

        :raises TopicError: this region cannot say now.
        :raises LedgerError: it cannot be read.
        """
        name = topic_name.parse(want.topic)
        try:
            topic = await self.topic(name, create=False)
        except TopicNotFound:
            await kinds.check_kind(self, name)
            return Found((), is_chained=True, is_settled=False, feed=NOTHING_TO_SEND)
        except NotAllowed:
            await kinds.check_kind(self, name)
            raise
        is_outside = asker not in self.regions_of(topic.name)
        if is_outside and want.origin != asker:
            raise NotAllowed(f"{asker} is not a region of {topic.name} here")
        if topic.incarnation != want.incarnation:
            raise TopicFenced(f"{asker} speaks of another incarnation of {topic.name}: wait until both know it (R8)")
        found = await find(topic, topic.recall, asker, want)
        feed = None if self.replication is None else self.replication.feed(topic.name, asker)
        if feed is not None:
            shared = sum(one.durable and one.replicated for one in topic.subscriptions.values())
            feed = feed._replace(end=topic.log.last_confirmed, subscriptions=shared)
        own = {self.region} if topic.log.last_own > EARLIEST else set()
        origins = frozenset(topic.log.last_origin.keys() | own)
        return found._replace(origins=origins, feed=feed, is_outside=is_outside)

    def rules(self, name: TopicName) -> Rules:
        """What holds for a topic, as last seen in the metadata. An open topic keeps it as ``topic.rules``."""
        return self.catalog.rules(self.defaults, name)

    def follow_policies(self) -> None:
        """Do what policies say now, when any changed: a topic's regions, and whatever rules it.

        :raises SomeFailed: it failed for some topics, which the next call tries again.
        """
        if self._followed == self.catalog.revision:
            return
        self.non_persistent.follow_policies()
        failures: dict[str, Exception] = {}
        for topic in list(self.topics.values()):
            if topic.failure is None:
                try:
                    self._follow(topic)
                except Exception as error:
                    failures[topic.name] = error
        if failures:
            raise SomeFailed(failures, len(self.topics))
        self._followed = self.catalog.revision

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
        leased_topics.follow(topic)
        if topic.rules.message_ttl_seconds != before:
            self.scheduler.spawn(trimming.expire_soon(topic), "expire old messages")

    def regions_of(self, topic: str) -> frozenset[str]:
        """Regions of a topic, this one included. Where it does not live here any more, the copy here is on its own."""
        listed = self.catalog.regions(topic_name.parse(topic))
        return listed if self.region in listed else frozenset((self.region,))

    def is_served(self, topic: str) -> bool:
        """Whether what we say about a topic is all that we know: it is open, or there never was one here."""
        found = self.topics.get(topic)
        return self.loader.is_surveyed and topic not in self._unopened and (found is None or found.failure is None)

    def is_unopened(self, topic: str) -> bool:
        """Whether it is on record and not open."""
        return topic in self._unopened

    def unopened(self) -> set[str] | None:
        """Topics on record that are not served now; None: which there are is not known yet."""
        fenced = {name for name, topic in self.topics.items() if topic.failure is not None}
        return self._unopened | fenced if self.loader.is_surveyed else None
